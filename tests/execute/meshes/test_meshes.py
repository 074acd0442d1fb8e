"""Schedules on meshes whose devices stand in any order, and for all groups along an axis."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import integers, sharded

ORDER = random.Random(5).sample(range(8), 8)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A CPU device that says where it is."""

    device: Any
    coords: tuple[int, int]
    device_kind: str = "TPU v5p"


def chips(*sides: int) -> list[Chip]:
    places = np.ndindex(*sides)
    return [Chip(d, place) for d, place in zip(jax.devices(), places, strict=False)]


def total(schedule: jc.Schedule, mesh: Mesh, x: np.ndarray) -> np.ndarray:
    names = mesh.axis_names
    psum = sharded(lambda v: jc.psum(v, names, schedule=schedule), mesh, P(names), P())
    return np.asarray(psum(x))


@pytest.mark.parametrize("synthesizer", ["bucket", "tacos"])
def test_a_permuted_mesh_runs_the_schedule_of_its_own_wires(synthesizer):
    chosen = [chips(2, 4)[i] for i in ORDER]
    topology = jc.Topology.from_devices(chosen)
    assert topology.grid is None
    schedule = jc.synthesize(topology, "all_reduce", synthesizer, chunks=1)
    mesh = Mesh(np.array([chip.device for chip in chosen]).reshape(4, 2), ("a", "b"))
    x = integers((8, 5), np.float32)
    np.testing.assert_array_equal(total(schedule, mesh, x)[0], x.sum(0))
    # It sends between neighbours only.
    apart = [
        np.abs(np.subtract(chosen[u].coords, chosen[v].coords)) % (3, 3)
        for u, v in zip(schedule.src, schedule.dst, strict=True)
    ]
    assert all(step.sum() <= 1 for step in apart)


def test_a_reordered_mesh_runs_a_schedule_of_the_box():
    topology = jc.topologies.torus(2, 4)
    schedule = jc.synthesize(topology, "all_reduce", "bucket", chunks=1)
    ordered = jc.reorder([chips(2, 4)[i] for i in ORDER], schedule.topology)
    mesh = Mesh(np.array([chip.device for chip in ordered]), ("a",))
    x = integers((8, 5), np.float32)
    np.testing.assert_array_equal(total(schedule, mesh, x)[0], x.sum(0))


def test_a_mesh_of_jax_is_reordered():
    devices = [jax.devices()[i] for i in ORDER]
    types = (jax.sharding.AxisType.Explicit,) * 2
    mesh = Mesh(np.array(devices).reshape(2, 4), ("a", "b"), axis_types=types)
    after = jc.reorder(mesh, jc.topologies.ring(8))
    assert (after.shape, after.axis_types) == (mesh.shape, mesh.axis_types)
    assert set(after.devices.flat) == set(devices)


def test_a_box_inside_a_slice_runs_its_own_schedule():
    whole = chips(4, 4)
    part = [chip for chip in whole if chip.coords[0] in (1, 2)]
    topology = jc.Topology.from_devices(part, within=whole)
    assert topology.grid == jc.grid.Grid((2, 4), (False, True))
    mesh = Mesh(np.array([chip.device for chip in part]).reshape(2, 4), ("a", "b"))
    x = integers((8, 3), np.float32)
    schedule = jc.synthesize(topology, "all_reduce", "bucket", chunks=1)
    np.testing.assert_array_equal(total(schedule, mesh, x)[0], x.sum(0))


# ---------------------------------------------------------------------- groups


@pytest.mark.parametrize("axis", ["data", "model"])
@pytest.mark.in_every_run("model")
def test_all_groups_along_an_axis_run_one_schedule(axis):
    chosen = [chips(2, 4)[i] for i in ORDER]
    mesh = Mesh(np.array([chip.device for chip in chosen]).reshape(2, 4), ("data", "model"))
    topology = jc.Topology.from_devices(chosen)
    schedule = jc.axis_schedule(mesh, axis, "all_gather", chunks=2, topology=topology)
    assert schedule.collective.groups == jc.mesh.axis_groups(mesh, axis)

    def both(v):
        ours = (
            jc.psum(v, axis, schedule=schedule),
            jc.all_gather(v, axis, tiled=True, schedule=schedule),
            jc.psum_scatter(v, axis, tiled=True, schedule=schedule),
        )
        theirs = (
            lax.psum(v, axis),
            lax.all_gather(v, axis, tiled=True),
            lax.psum_scatter(v, axis, tiled=True),
        )
        return jax.tree.map(lambda t: t[None, None], (ours, theirs))

    every = P(("data", "model"))
    ours, theirs = sharded(both, mesh, every, P("data", "model"))(integers((8 * 8, 3), np.float32))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_along_one_axis_of_a_mesh():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    schedule = jc.axis_schedule(
        mesh, "data", "all_gather", "bucket", topology=jc.topologies.torus(4, 2)
    )
    transformation = jc.optax.all_reduce_gradients("data", schedule=schedule)

    def step(x):
        ours, _ = transformation.update({"w": x}, transformation.init({}))
        return ours, {"w": lax.pmean(x, "data")}

    x = integers((8, 6), np.float32)
    ours, theirs = sharded(step, mesh, P(("data", "model")), P("model"))(x)
    np.testing.assert_array_equal(ours["w"], theirs["w"])
