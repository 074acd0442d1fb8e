"""Orders of devices in which links are wires, and groups along the axes of a mesh."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import Topology
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.mesh import embed
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, star, torus


@dataclasses.dataclass(frozen=True)
class Tpu:
    coords: tuple[int, ...]
    device_kind: str = "TPU v5p"


@dataclasses.dataclass(frozen=True)
class Gpu:
    process_index: int
    id: int
    device_kind: str = "NVIDIA H100 80GB HBM3"


@dataclasses.dataclass(frozen=True)
class Mesh:
    devices: np.ndarray
    axis_names: tuple[str, ...]


def chips(*sides: int) -> list[Tpu]:
    return [Tpu(tuple(int(c) for c in place)) for place in np.ndindex(*sides)]


def shuffled(devices: list, seed: int = 0) -> list:
    return random.Random(seed).sample(devices, len(devices))


def all_links_are_wires(topology: Topology, wires: Topology, order) -> bool:
    wired = set(zip(wires.src.tolist(), wires.dst.tolist(), strict=True))
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    return all((int(order[u]), int(order[v])) in wired for u, v in ends)


# ---------------------------------------------------------------------- order

FITS = [
    (torus(2, 4), (4, 2)),
    (torus(4, 4), (4, 4)),
    (torus(4, 4, 8), (8, 4, 4)),
    (ring(16), (4, 4)),
    (ring(16, bidirectional=False), (2, 8)),
    (ring(12), (2, 3, 2)),
    (mesh(12), (3, 4)),
    (mesh(8, 2), (4, 2, 2)),
    (torus(8, 4), (2, 4, 4)),
    (torus(8, 8), (4, 4, 4)),
    (hypercube(4), (4, 4)),
    (mesh(2, 2, 2, 2), (4, 4)),
    (star(1), (1,)),
]


@pytest.mark.parametrize(("topology", "sides"), FITS, ids=str)
def test_links_become_wires(topology, sides):
    devices = shuffled(chips(*sides))
    ordered = jc.reorder(devices, topology)
    assert sorted(ordered, key=str) == sorted(devices, key=str)
    assert all_links_are_wires(topology, Topology.from_devices(ordered), range(len(devices)))
    # An order that does is kept, and the same devices give the same order.
    assert jc.reorder(ordered, topology) == ordered
    assert jc.reorder(devices, topology) == ordered


@given(st.permutations(range(12)), st.permutations(range(12)))
@settings(max_examples=20)
def test_any_order_of_ranks_on_any_order_of_devices(ranks, devices):
    topology, wires = torus(3, 4).relabel(ranks), torus(4, 3).relabel(devices)
    assert all_links_are_wires(topology, wires, embed(topology, wires))


def test_networks_without_a_box_are_searched():
    wires = Topology.from_networkx(torus(4, 4).to_networkx())
    assert wires.placement is None
    order = random.Random(1).sample(range(16), 16)
    for topology in (ring(16), torus(4, 4), mesh(2, 8)):
        assert all_links_are_wires(
            topology, wires.relabel(order), embed(topology, wires.relabel(order))
        )


@pytest.mark.parametrize(
    ("topology", "devices", "match"),
    [
        (fully_connected(8), chips(2, 4), "every link of .* is a wire"),
        (torus(3, 3), Topology, "has 9 ranks, but there are 8 devices"),
        (ring(9), chips(3, 3), "Topology.from_mesh"),
    ],
)
def test_what_does_not_fit_is_refused(topology, devices, match):
    devices = chips(2, 4) if devices is Topology else devices
    with pytest.raises(TopologyError, match=match):
        jc.reorder(devices, topology)


def test_a_mesh_keeps_its_shape_and_axes():
    devices = np.empty(8, object)
    devices[:] = shuffled(chips(2, 4))
    before = Mesh(devices.reshape(4, 2), ("a", "b"))
    after = jc.reorder(before, torus(2, 4))
    assert isinstance(after, Mesh)
    assert (after.devices.shape, after.axis_names) == ((4, 2), ("a", "b"))
    assert all_links_are_wires(torus(2, 4), Topology.from_mesh(after), range(8))


def test_a_box_inside_a_slice_has_no_wire_round_its_end():
    devices = [chip for chip in chips(8, 4) if chip.coords[0] < 4]
    with pytest.raises(TopologyError, match="is a wire"):
        jc.reorder(devices, torus(4, 4), within=chips(8, 4))
    ordered = jc.reorder(devices, ring(16), within=chips(8, 4))
    wires = Topology.from_devices(ordered, within=chips(8, 4))
    assert all_links_are_wires(ring(16), wires, range(16))


@pytest.mark.parametrize("hosts", [2, 4])
def test_ranks_of_a_host_come_together(hosts):
    each = 16 // hosts
    devices = [Gpu(i // each, i) for i in range(16)]
    topology = Topology.from_devices(devices)
    ordered = jc.reorder(shuffled(devices), topology)
    for first in range(0, 16, each):
        assert len({gpu.process_index for gpu in ordered[first : first + each]}) == 1
    # Around a ring, a message leaves a host as seldom as can be.
    around = jc.reorder(shuffled(devices, 3), ring(16))
    leaves = [a.process_index != b.process_index for a, b in zip(around, around[1:] + around[:1])]  # noqa: B905
    assert sum(leaves) == hosts


# ---------------------------------------------------------------------- groups


def of_shape(*shape: int) -> Any:
    return SimpleNamespace(
        devices=np.empty(shape, object), axis_names=("x", "y", "z")[: len(shape)]
    )


@pytest.mark.parametrize(
    ("shape", "axis", "groups"),
    [
        ((2, 4), "x", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ((2, 4), "y", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ((2, 3), ("x", "y"), ((0, 1, 2, 3, 4, 5),)),
        ((2, 3), ("y", "x"), ((0, 3, 1, 4, 2, 5),)),
        ((2, 2, 2), ("z", "x"), ((0, 4, 1, 5), (2, 6, 3, 7))),
        ((3,), ["x"], ((0, 1, 2),)),
    ],
)
def test_groups_along_an_axis(shape, axis, groups):
    assert jc.mesh.axis_groups(of_shape(*shape), axis) == groups


@pytest.mark.parametrize("axis", ["w", ("x", "x"), (), ("x", "w")])
def test_unknown_axes_are_refused(axis):
    with pytest.raises(CollectiveError, match="one or more axes of the mesh, which has x, y"):
        jc.mesh.axis_groups(of_shape(2, 4), axis)


def test_a_network_of_another_size_is_refused():
    with pytest.raises(TopologyError, match="has 6 ranks, the mesh 8 devices"):
        jc.axis_schedule(of_shape(2, 4), "x", "all_reduce", topology=torus(2, 3))


# ---------------------------------------------------------------------- contention


def loads(schedule: jc.Schedule) -> np.ndarray:
    """Chunks that cross each link."""
    used = [link for edge in schedule.edge for link in schedule.edges.path(edge)]
    return np.bincount(used, minlength=schedule.topology.num_links)


def overlaid(topology: Topology, groups, synthesizer: str, chunks: int):
    """Every group's own schedule, made as if it were alone, and all of them at the same time."""
    alone = [
        jc.synthesize(topology, "all_gather", synthesizer, chunks=chunks, groups=(group,))
        for group in groups
    ]
    whole = jc.Collective("all_gather", topology.num_ranks, chunks, groups)
    columns = [
        np.concatenate([np.asarray(column) for column in parts])
        for parts in (
            [a.step for a in alone],
            [a.edge for a in alone],
            [a.chunk + first for a, first in zip(alone, whole.chunk_ptr, strict=False)],
        )
    ]
    together = jc.Schedule.from_sends(topology, whole, *columns, edges=alone[0].edges)
    jc.verify(together)
    return alone, together


CASES = [
    # Every second rank: each group's routes go through the other group's ranks.
    (ring(8, alpha=0.0), (4, 2), "x"),
    (torus(4, 4, alpha=0.0), (8, 2), "x"),
    (mesh(3, 4, alpha=0.0), (6, 2), "x"),
]


def shared(schedule: jc.Schedule) -> int:
    """Times that a link is given to messages of more than one group in the same step."""
    given: dict[tuple[int, int], set[int]] = {}
    group = schedule.collective.group_of_chunk[schedule.chunk]
    for step, edge, g in zip(schedule.step, schedule.edge, group, strict=True):
        for link in schedule.edges.path(edge):
            given.setdefault((int(step), link), set()).add(int(g))
    return sum(len(groups) > 1 for groups in given.values())


@pytest.mark.parametrize(("topology", "shape", "axis"), CASES, ids=str)
def test_groups_synthesized_together_hide_no_contention(topology, shape, axis):
    groups = jc.mesh.axis_groups(of_shape(*shape), axis)
    alone, overlay = overlaid(topology, groups, "tacos", 2)
    grouped = jc.axis_schedule(
        of_shape(*shape), axis, "all_gather", "tacos", chunks=2, topology=topology
    )
    # What each group was told it would take is not what it takes beside the others, since links
    # carry the loads of all: some are given to two groups at once.
    np.testing.assert_array_equal(loads(overlay), sum(loads(schedule) for schedule in alone))
    assert shared(overlay) > 0
    claimed = max(jc.simulate(schedule, 1e6).time for schedule in alone)
    assert jc.simulate(overlay, 1e6).time > claimed
    # Together no link ever is, and the time is what the steps say: a chunk's time each.
    assert shared(grouped) == 0
    assert (grouped.edges.hops == 1).all()
    _, sends = np.unique(np.stack([grouped.step, grouped.edge]), axis=1, return_counts=True)
    assert (sends == 1).all()
    chunk = 1e6 / grouped.collective.chunks_per_buffer.max()
    planned = grouped.num_steps * chunk / 50e9
    assert jc.simulate(grouped, 1e6).time <= planned * (1 + 1e-9)


def test_loads_of_rows_are_equal():
    together = jc.axis_schedule(
        of_shape(2, 4), "y", "all_gather", "bucket", chunks=2, topology=torus(2, 4)
    )
    along = loads(together)
    inside = (together.topology.src // 4) == (together.topology.dst // 4)
    # Three other shards of 2 chunks reach each rank over its two links along the row.
    assert (along[inside] == 3).all()
    assert (along[~inside] == 0).all()
