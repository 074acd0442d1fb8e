"""Searched plans: the predicted bytes, and training steps as on one device."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.ir.placements import MeshShape
from tensorstate.report.hlo_check import compare_with_hlo
from tests.tensorstate.execution.test_sharded_step import (
    LINE,
    PLANE,
    SHALLOW,
    devices,
    on_one_device,
    problem_of,
    traced,
)
from tests.tensorstate.oracle import MODELS, jitted, on_devices
from tests.tensorstate.solvers import coordinate_descent, solve_milp

STEPS, CLOSE = 10, 1e-5
# Of the largest root mean square of a gradient's element: less is rounding.
ROUNDING = 1e-6
# The others take over ten seconds.
FAST = ("mlp-2x4",)


ON_TWO_AXES = ("mlp", "gpt_scan", "moe")


def cases():
    """The fast ones, and every other model on one of two meshes."""
    for name in MODELS:
        meshes = [("2x4", PLANE)] if name in ON_TWO_AXES else [("8", LINE)]
        for mesh, axes in [("8", LINE), ("2x4", PLANE)] if name == "mlp" else meshes:
            marks = () if f"{name}-{mesh}" in FAST else pytest.mark.slow
            yield pytest.param(name, axes, id=f"{name}-{mesh}", marks=marks)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "axes"), list(cases()))
def test_ten_steps_are_those_of_one_device(name, axes):
    """Relative to the loss, and to each parameter's norm.

    Biases of keys change all scores of a query equally, and so no probabilities: their gradients
    are rounding, which Adam blows up to whole steps in any direction. They are left out.
    """
    sizes = SHALLOW.get(name, {})
    model, _ = traced(name, **sizes)
    network = AlphaBetaCosts(MeshShape.of(axes), (1e-6,) * len(axes), (1e9,) * len(axes))
    problem = problem_of(name, axes, network, **sizes)
    # Any plan has the values: a linear program of a model's takes longer than to train it.
    solve = solve_milp if name == "mlp" else coordinate_descent
    found = solve(problem, [strategies.all for strategies in problem.strategies], gap=1e-2)
    applied = apply(problem, found.decisions, found.cost, devices(axes), lax_collectives)
    run = jitted(applied).lower(*model.abstract_args).compile()
    report = compare_with_hlo(run, problem.mesh, found.cost)
    assert report.agrees, str(report)
    (params, state, batch), results = on_one_device(name, STEPS, **sizes)
    for _, _, expected in results:
        params, state, loss = run(*on_devices((params, state, batch), applied))
        assert float(loss) == pytest.approx(float(expected), rel=CLOSE)
    params, (wanted, memory, _) = jax.device_get((params, results[-1]))
    squares = jax.tree.leaves(optax.tree_utils.tree_get(memory, "nu"))
    least = ROUNDING**2 * max(float(np.max(leaf)) for leaf in squares)
    for made, leaf, square in zip(*map(jax.tree.leaves, (params, wanted)), squares, strict=True):
        moved = (square == 0) | (square >= least)
        difference = np.where(moved, made - leaf, 0)
        assert np.linalg.norm(difference) <= CLOSE * np.linalg.norm(leaf)
