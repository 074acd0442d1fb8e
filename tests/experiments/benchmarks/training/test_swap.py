"""The benchmarks of training: the same numbers by jaxcoll as by ``jax.lax``, and their ratios."""

from __future__ import annotations

import argparse
import re
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.benchmarks.training import Program, compare, ratio
from experiments.benchmarks.training.public_steps import AXIS, STEPS, Library


def one_step(case: str, library: Library):
    """State and metrics after a step on four devices, and the operations of its program."""
    step = STEPS[case](library, np.random.default_rng(0))
    mesh = Mesh(np.array(jax.devices()[:4]), (AXIS,))
    run = jax.jit(jax.shard_map(step.run, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P()))
    compiled = run.lower(step.state, step.batch).compile()
    text: Any = compiled.as_text()
    # Without what says where in the source an operation is from.
    text = re.sub(r",? *metadata=\{[^}]*\}", "", text)
    return compiled(step.state, step.batch), [line for line in text.splitlines() if " = " in line]


@pytest.mark.slow
@pytest.mark.parametrize("case", STEPS)
def test_a_swapped_step_is_the_step(case):
    by_lax, operations = one_step(case, Library(jax.lax))
    for library in (Library(jc), Library(jc, jc.optax.all_reduce_gradients(AXIS))):
        ours, found = one_step(case, library)
        assert found == operations
        jax.tree.map(np.testing.assert_array_equal, ours, by_lax)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(by_lax))


def test_rows_are_ratios_to_the_first():
    x = np.ones(8, np.float32)
    programs = {
        "one": lambda: Program(lambda x: x + 1, (x,)),
        "two": lambda: Program(lambda x: (x @ x) * x, (x,)),
    }
    rows = compare("sums", programs, argparse.Namespace(rounds=3, compiles=1))
    assert [row["program"] for row in rows] == ["one", "two"]
    assert all(rows[0][key] == 1 for key in ("step", "compile", "operations, ratio"))
    assert rows[1]["operations, ratio"] > 1
    assert ratio([2.0, 9.0, 3.0], [1.0, 3.0, 3.0]) == 2
