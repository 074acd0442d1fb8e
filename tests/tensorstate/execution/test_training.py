"""Searched plans: the predicted bytes, and training steps as on one device."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import optax
import pytest

from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import AlphaBetaCosts
from tensorstate.ir.placements import MeshShape
from tensorstate.report.hlo_check import compare_with_hlo
from tests.tensorstate.execution.test_sharded_step import LINE, PLANE, devices, problem_of, traced
from tests.tensorstate.oracle import MODELS, QUICK, jitted, on_devices
from tests.tensorstate.solvers import solve_milp

STEPS, CLOSE = 10, 1e-5
# Of the largest root mean square of a gradient's element: less is rounding.
ROUNDING = 1e-6
# The others take over ten seconds.
FAST = ("mlp-2x4",)


def cases():
    """The fast ones, and every other model on one of two meshes in turn."""
    turn = itertools.cycle((("8", LINE), ("2x4", PLANE)))
    for name in MODELS:
        for mesh, axes in (next(turn), next(turn)) if name == "mlp" else (next(turn),):
            marks = () if f"{name}-{mesh}" in FAST else pytest.mark.slow
            yield pytest.param(name, axes, id=f"{name}-{mesh}", marks=marks)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "axes"), list(cases()))
def test_ten_steps_are_those_of_one_device(name, axes):
    """Relative to the loss, and to each parameter's norm.

    Biases of keys change all scores of a query equally, and so no probabilities: their gradients
    are rounding, which Adam blows up to whole steps in any direction. They are left out.
    """
    model, _ = traced(name)
    network = AlphaBetaCosts(MeshShape.of(axes), (1e-6,) * len(axes), (1e9,) * len(axes))
    problem = problem_of(name, axes, network)
    found = solve_milp(problem, [strategies.all for strategies in problem.strategies], gap=1e-2)
    applied = apply(problem, found.decisions, found.cost, devices(axes), lax_collectives)
    run = jitted(applied)
    report = compare_with_hlo(run.lower(*model.abstract_args).compile(), problem.mesh, found.cost)
    assert report.agrees, str(report)
    alone = jax.jit(model.step, compiler_options=QUICK)
    params, state, batch = model.init(0)
    wanted, memory = params, state
    for _ in range(STEPS):
        params, state, loss = run(*on_devices((params, state, batch), applied))
        wanted, memory, expected = alone(wanted, memory, batch)
        assert float(loss) == pytest.approx(float(expected), rel=CLOSE)
    squares = jax.tree.leaves(optax.tree_utils.tree_get(memory, "nu"))
    least = ROUNDING**2 * max(float(np.max(leaf)) for leaf in squares)
    for made, leaf, square in zip(*map(jax.tree.leaves, (params, wanted)), squares, strict=True):
        moved = (square == 0) | (square >= least)
        difference = np.where(moved, np.asarray(made) - np.asarray(leaf), 0)
        assert np.linalg.norm(difference) <= CLOSE * np.linalg.norm(np.asarray(leaf))
