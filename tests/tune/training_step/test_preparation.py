"""Programs that are compiled before the search of the online tuner."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.tune import Config, Table, tasks_of, this_machine
from jaxcoll.tune.training_step.preparation import Preparation, candidates_each
from tests.execute.harness import mesh_of


def _step(sizes):
    """It sums operands of so many elements per rank, and gathers the first."""

    def step():
        operands = [jnp.ones(size) for size in sizes]
        return [jc.psum(x, "x") for x in operands], jc.all_gather(operands[0], "x")

    return jax.jit(
        jax.shard_map(step, mesh=mesh_of(8), in_specs=(), out_specs=P(), check_vma=False)
    )


def _prepared(step, space):
    return Preparation(
        step,
        (),
        {},
        base=None,
        spaces=space,
        most=None,
        table=Table(),
        machine=this_machine(),
        as_switch=False,
    )


@pytest.mark.parametrize(("tasks", "each"), [(0, 15), (1, 15), (3, 15), (6, 7), (9, 5), (40, 5)])
def test_many_tasks_have_fewer_candidates_each(tasks, each):
    assert candidates_each(tasks) == each


def test_tasks_that_differ_in_size_alone_are_compared_with_lax_once():
    configs = [Config({"algorithm": name, "lowering": "ssa"}) for name in ("ring", "direct")]
    step = _step((64, 256, 1024))
    tasks = tasks_of(step)
    found = _prepared(step, dict.fromkeys(tasks, configs))
    assert list(found.candidates) == list(tasks)
    assert len(tasks) == 4
    assert len({id(comparison) for comparison in found.comparisons.values()}) == 2
    assert all(found.equal(t, i, jax.block_until_ready) for t in tasks for i in (1, 2))
    # Other candidates, other programs.
    sums = [task for task in tasks if task.collective == "all_reduce"]
    found = _prepared(step, {sums[0]: configs, sums[1]: configs[:1]})
    assert len({id(comparison) for comparison in found.comparisons.values()}) == 2
