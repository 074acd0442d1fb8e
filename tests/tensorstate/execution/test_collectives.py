"""Reshard steps on devices end in their target placements, by schedules and by jax.lax."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tensorstate.execution.placement_table import (
    apply_reshard_step,
    lax_collectives,
    local_shard,
    scheduled_collectives,
)
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM, MeshShape, Placements
from tensorstate.problem.reshard import ReshardStep, reshard_steps

MESH = MeshShape(("a", "b"), (2, 4))
SIZES = (8, 16)
FULL = np.arange(math.prod(SIZES), dtype=np.float32).reshape(SIZES)


def devices() -> jax.sharding.Mesh:
    return jax.make_mesh(MESH.sizes, MESH.names, axis_types=(jax.sharding.AxisType.Auto,) * 2)


def parts(placements: Placements) -> dict[int, jax.Array]:
    """The local array of every device: sums and extrema of them combine to ``FULL``."""
    found = {}
    for number, place in enumerate(itertools.product(*map(range, MESH.sizes))):
        x = FULL
        for axis, placement in enumerate(placements):
            if placement in (SUM, MAX, MIN):
                x = x if place[axis] == number_of(axis) else neutral(placement, x)
        for position in sorted({placement for placement in placements if placement >= 0}):
            axes = [axis for axis, placement in enumerate(placements) if placement == position]
            index = np.ravel_multi_index([place[a] for a in axes], [MESH.sizes[a] for a in axes])
            count = math.prod(MESH.sizes[a] for a in axes)
            x = np.split(x, count, position)[int(index)]
        found[number] = x
    return found


def number_of(axis: int) -> int:
    """The one device along an axis that has the values; the others have the neutral element."""
    return axis % MESH.sizes[axis]


def neutral(placement: int, x: np.ndarray) -> np.ndarray:
    return {SUM: x * 0, MAX: x - 1000, MIN: x + 1000}[placement]


def carried(step: ReshardStep, collectives) -> np.ndarray:
    """The local arrays of all devices after a reshard step, side by side."""
    before = parts(step.source)
    stacked = jnp.asarray(np.stack([before[number] for number in range(MESH.num_devices)]))

    def run(x):
        return apply_reshard_step(step, x[0], MESH, collectives)[None]

    both = PartitionSpec(("a", "b"))
    body = jax.shard_map(run, mesh=devices(), in_specs=both, out_specs=both, check_vma=False)
    return np.asarray(jax.jit(body)(stacked))


STATES = [(REPLICATED, 0), (0, 0), (1, 0), (SUM, 1), (1, SUM), (MAX, REPLICATED), (0, MIN)]
MOVES = [
    step
    for placements in STATES
    for step in reshard_steps(placements, SIZES, FULL.nbytes, MESH)
    if not (step.source[1 - step.axis] < REPLICATED)
]


def name_of(step: ReshardStep) -> str:
    return f"{step.source}-{step.target}"


@pytest.mark.parametrize("step", MOVES, ids=name_of)
def test_reshard_steps_end_in_their_target(step):
    expected = parts(step.target)
    for number, x in enumerate(carried(step, lax_collectives)):
        np.testing.assert_array_equal(x, expected[number])


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all"])
def test_schedules_do_the_same(kind):
    for step in [step for step in MOVES if step.kind == kind][:2]:
        np.testing.assert_array_equal(
            carried(step, scheduled_collectives()), carried(step, lax_collectives)
        )


def test_extrema_travel_by_a_schedule_too():
    for placements in [(MAX, REPLICATED), (0, MIN)]:
        (step,) = [m for m in MOVES if m.source == placements and m.kind == "all_reduce"]
        np.testing.assert_array_equal(
            carried(step, scheduled_collectives()), carried(step, lax_collectives)
        )


def test_schedules_are_asked_for_by_kind_axis_and_bytes():
    asked = []

    def choose(*what):
        asked.append(what)

    step = next(m for m in MOVES if m.kind == "all_gather")
    carried(step, scheduled_collectives(choose))
    assert asked == [("all_gather", step.axis, step.nbytes)]


@pytest.mark.parametrize("placements", [(0, 1), (0, 0), (REPLICATED, 1), (1, 1)])
def test_sharding_a_full_array(placements):
    def run(x):
        return local_shard(x, placements, MESH)[None]

    body = jax.shard_map(
        run,
        mesh=devices(),
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(("a", "b")),
        check_vma=False,
    )
    for number, x in enumerate(np.asarray(jax.jit(body)(FULL))):
        np.testing.assert_array_equal(x, parts(placements)[number])
