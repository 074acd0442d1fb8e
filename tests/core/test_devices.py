"""Networks read off devices: stand-ins for TPUs and clusters, and the CPU devices that are here."""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Topology
from jaxcoll.device_kinds import DEVICE_KINDS, UNKNOWN_KIND, kind_of, words_of
from jaxcoll.errors import AssumptionWarning, TopologyError
from jaxcoll.grid import Grid
from jaxcoll.topologies import torus
from jaxcoll.topologies.grids import grid


@dataclasses.dataclass(frozen=True)
class Tpu:
    coords: tuple[int, ...] | None
    core_on_chip: int = 0
    process_index: int = 0
    device_kind: str = "TPU v5p"


@dataclasses.dataclass(frozen=True)
class Gpu:
    process_index: int
    device_kind: str = "NVIDIA H100 80GB HBM3"


def box(*sides: int, kind: str = "TPU v5p", at: tuple[int, ...] | None = None) -> list[Tpu]:
    """Devices of a grid of coordinates, last coordinate fastest."""
    corner = at or (0,) * len(sides)
    return [
        Tpu(tuple(int(c + o) for c, o in zip(place, corner, strict=True)), device_kind=kind)
        for place in np.ndindex(*sides)
    ]


def same_wires(one: Topology, other: Topology) -> bool:
    return one.num_ranks == other.num_ranks and set(pairs(one)) == set(pairs(other))


def pairs(topology: Topology) -> list[tuple[int, int]]:
    return list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


# ---------------------------------------------------------------------- TPU slices


@pytest.mark.parametrize(
    ("kind", "sides", "wrap"),
    [
        ("TPU v5p", (4, 4, 8), (True, True, True)),
        ("TPU v5p", (6, 5, 3), (False, False, False)),
        ("TPU v5", (2, 2, 4), (False, False, True)),
        ("TPU v4", (4, 4, 2), (True, True, False)),
        ("TPU v5 lite", (4, 4, 1), (False, False, False)),
        ("TPU v5e", (16, 2, 1), (True, False, False)),
        ("TPU v6 lite", (8, 4, 1), (False, False, False)),
        ("TPU v9", (4, 4, 4), (False, False, False)),
    ],
)
def test_slices_close_where_the_kind_says(kind, sides, wrap):
    topology = Topology.from_devices(box(*sides, kind=kind))
    speed = kind_of(Tpu((0,), device_kind=kind))
    assert topology == grid(sides, wrap, alpha=speed.alpha, bandwidth=speed.bandwidth)
    assert topology.grid.shape == sides  # type: ignore[union-attr]
    assert topology.grid.wrap == wrap  # type: ignore[union-attr]
    assert topology.name == f"{kind} {'x'.join(map(str, sides))}"


def test_given_numbers_replace_the_assumed_ones():
    topology = Topology.from_devices(
        box(2, 3, 3), alpha=2e-6, bandwidth=5e9, wrap=(True, False, True)
    )
    assert topology == grid((2, 3, 3), (False, False, True), alpha=2e-6, bandwidth=5e9)


@given(st.permutations(range(12)), st.tuples(st.integers(-3, 9), st.integers(0, 9)))
def test_ranks_are_in_the_order_given(order, corner):
    devices = box(3, 4, at=corner)
    topology = Topology.from_devices([devices[i] for i in order], alpha=0.0, bandwidth=1.0)
    # Rank r is the device at place order[r], so the device at place p is rank argsort(order)[p].
    expected = grid((3, 4), (False, True), alpha=0.0, bandwidth=1.0).relabel(np.argsort(order))
    assert topology == expected
    assert (topology.grid is not None) == (list(order) == sorted(order))


def test_cores_of_a_chip_are_one_more_dimension():
    devices = [dataclasses.replace(d, core_on_chip=c) for d in box(2, 2, 1) for c in (0, 1)]
    topology = Topology.from_devices(devices)
    assert topology.grid.shape == (2, 2, 1, 2)  # type: ignore[union-attr]
    assert same_wires(topology, grid((2, 2, 1, 2), False))
    assert Topology.from_devices(devices, wrap=(False, False, False)) == topology


def test_one_chip():
    alone = Topology.from_devices(box(1, 1, 1))
    assert (alone.num_ranks, alone.num_links) == (1, 0)


@pytest.mark.parametrize(
    "devices",
    [
        box(2, 2)[:3],
        [*box(2, 2), *box(2, 2)],
        [Tpu((0, 0)), Tpu((2, 0))],
        [Tpu((0, 0)), Tpu((0, 0))],
        [Tpu((0, 0, 0)), Tpu((10**7, 10**7, 10**7))],
        [Tpu((0, 0, 0)), Tpu((10**12, 10**12, 1))],
    ],
)
def test_coordinates_that_do_not_fill_a_box_are_refused(devices):
    with pytest.raises(TopologyError, match=rf"{len(devices)} devices do not fill a grid"):
        Topology.from_devices(devices)


@pytest.mark.parametrize(
    "devices",
    [
        [Tpu((0, 0)), Tpu((0, 1, 0))],
        [Tpu((0, 0)), Tpu(None)],
        [Tpu(None), Tpu((0, 0))],
    ],
)
def test_devices_without_like_coordinates_are_refused(devices):
    with pytest.raises(TopologyError, match="coord"):
        Topology.from_devices(devices)


def test_a_wrap_for_more_dimensions_than_there_are_is_refused():
    with pytest.raises(TopologyError, match=r"wrap needs one flag per dimension.*has 2, got 3"):
        Topology.from_devices(box(3, 3), wrap=(True, True, True))


# ---------------------------------------------------------------------- hosts


def test_one_host_is_one_switch():
    topology = Topology.from_devices([Gpu(7)] * 4)
    assert (topology.num_ranks, topology.num_vertices, topology.num_links) == (4, 5, 8)
    assert set(topology.bandwidth) == {450e9}
    assert sorted(pairs(topology)) == sorted(
        [(r, 4) for r in range(4)] + [(4, r) for r in range(4)]
    )


def test_hosts_meet_in_one_network_switch():
    hosts = [3, 1, 3, 1, 1, 9]
    topology = Topology.from_devices([Gpu(host) for host in hosts])
    assert topology.num_ranks == 6
    graph = topology.to_networkx()
    network = max(graph.nodes)
    for rank, host in enumerate(hosts):
        near = set(graph.successors(rank))
        assert near == set(graph.predecessors(rank))
        assert network in near
        assert graph[rank][network]["bandwidth"] == 50e9
        peers = {r for r, other in enumerate(hosts) if other == host and r != rank}
        switches = near - {network}
        assert len(switches) == bool(peers)
        for switch in switches:
            assert set(graph.successors(switch)) == peers | {rank}
            assert graph[rank][switch]["bandwidth"] == 450e9


def test_speeds_of_hosts_may_be_given():
    topology = Topology.from_devices([Gpu(0)] * 2, alpha=3e-6, bandwidth=7e9)
    assert set(topology.alpha) == {3e-6}
    assert set(topology.bandwidth) == {7e9}


def test_hosts_of_linked_pairs():
    """MI300X: a link from every device to each other one of its host, and a network between."""
    devices = [Gpu(host, "AMD Instinct MI300X") for host in (0, 0, 0, 1, 1, 1)]
    topology = Topology.from_devices(devices)
    inside = {(a, b) for a in range(6) for b in range(6) if a != b and a // 3 == b // 3}
    outside = {(r, 6) for r in range(6)} | {(6, r) for r in range(6)}
    assert set(pairs(topology)) == inside | outside
    assert topology.num_vertices == 7
    assert set(topology.bandwidth) == {64e9, 50e9}


def test_a_switch_of_several_hosts():
    """The 18 hosts of a GB200 rack share one NVLink switch; racks are told by slice_index."""
    rack = [Gpu(host, "NVIDIA GB200") for host in range(4) for _ in range(2)]
    topology = Topology.from_devices(rack)
    assert (topology.num_vertices, set(topology.bandwidth)) == (9, {900e9})
    two = [
        SimpleNamespace(process_index=host, device_kind="NVIDIA GB200", slice_index=host // 2)
        for host in range(4)
    ]
    assert Topology.from_devices(two).num_vertices == 4 + 2 + 1


def test_unknown_kinds_warn_and_say_how_to_state_their_links():
    devices = [SimpleNamespace(device_kind="quantum")] * 2
    with pytest.warns(AssumptionWarning, match=r"'quantum'.* 50 GB/s .*alpha=.*bandwidth=") as seen:
        topology = Topology.from_devices(devices)
    assert seen[0].filename == __file__  # blamed on the line that called, whatever is between
    assert (topology.num_ranks, topology.num_vertices) == (2, 3)
    assert set(topology.bandwidth) == {UNKNOWN_KIND.bandwidth}
    mesh = SimpleNamespace(devices=np.asarray(devices))
    with pytest.warns(AssumptionWarning) as seen:
        Topology.from_mesh(mesh)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Topology.from_devices(devices, alpha=1e-6, bandwidth=1e9)


@pytest.mark.parametrize("given", [[1, 2], [object()], ["ab"]])
def test_what_is_no_device_is_refused(given):
    with pytest.raises(TopologyError, match="a device has a device_kind"):
        Topology.from_devices(given)


def test_what_is_no_mesh_is_refused():
    with pytest.raises(TopologyError, match=r"takes a jax.sharding.Mesh, got 3"):
        Topology.from_mesh(3)


def test_one_device_is_a_network_without_links():
    assert Topology.from_devices([Gpu(0)]).num_links == 0


# ---------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("TPU v2", 62e9),
        ("TPU v3", 82e9),
        ("TPU v4", 50e9),
        ("TPU v5", 100e9),
        ("TPU v5p", 100e9),
        ("TPU v5 lite", 50e9),
        ("TPU v5e", 50e9),
        ("TPU v6 lite", 100e9),
        ("TPU7x", 100e9),
        ("Tesla V100-SXM2-16GB", 150e9),
        ("Tesla V100-PCIE-16GB", 15.75e9),
        ("Tesla T4", 15.75e9),
        ("NVIDIA A100-SXM4-40GB", 300e9),
        ("NVIDIA A100 80GB PCIe", 31.5e9),
        ("NVIDIA A10G", 31.5e9),
        ("NVIDIA L4", 31.5e9),
        ("NVIDIA L40S", 31.5e9),
        ("NVIDIA GeForce RTX 4090", 31.5e9),
        ("NVIDIA RTX 6000 Ada Generation", 31.5e9),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 63e9),
        ("NVIDIA H100 80GB HBM3", 450e9),
        ("NVIDIA H100 PCIe", 63e9),
        ("NVIDIA H20", 450e9),
        ("NVIDIA H800", 200e9),
        ("NVIDIA H200", 450e9),
        ("NVIDIA GH200 480GB", 450e9),
        ("NVIDIA B200", 900e9),
        ("NVIDIA B300 SXM6 AC", 900e9),
        ("NVIDIA GB200", 900e9),
        ("NVIDIA GB10", 25e9),
        ("AMD Instinct MI250X", 350e9),
        ("AMD Instinct MI300X", 64e9),
        ("AMD Instinct MI355X", 76.8e9),
        ("Apple M4 Max", 5e9),
        ("cpu", 10e9),
        ("quantum", UNKNOWN_KIND.bandwidth),
        ("A1000", UNKNOWN_KIND.bandwidth),
    ],
)
def test_kinds_are_recognised(text, bandwidth):
    kind = kind_of(SimpleNamespace(device_kind=text))
    assert kind.bandwidth == bandwidth
    assert (kind is UNKNOWN_KIND) == (text in ("quantum", "A1000"))


def test_every_kind_has_a_source_and_is_reached():
    for kind in DEVICE_KINDS:
        assert kind.source
        assert kind.wiring in ("grid", "switch", "mesh")
        assert kind.match == " ".join(kind.match.split()).lower()
        assert math.isfinite(kind.alpha)
        assert kind_of(SimpleNamespace(device_kind=kind.match)) is kind
    assert len({words_of(kind.match) for kind in DEVICE_KINDS}) == len(DEVICE_KINDS)


@pytest.mark.parametrize(
    ("devices", "more", "match"),
    [
        ([], {}, "at least one device, got none"),
        ([Gpu(0), Gpu(0, "cpu")], {}, r"of one kind, got \['NVIDIA H100 80GB HBM3', 'cpu'\]"),
        ([Gpu(0), Tpu((0,))], {}, "of one kind"),
        ([Gpu(0)] * 2, {"alpha": -1.0}, "alpha must be .* got -1.0"),
        ([Gpu(0)] * 2, {"bandwidth": 0}, "bandwidth must be .* got 0"),
        ([Gpu(0)] * 2, {"bandwidth": math.nan}, "bandwidth must be .* got nan"),
        (box(2, 2), {"alpha": math.inf}, "alpha must be .* got inf"),
    ],
)
def test_bad_devices_are_refused(devices, more, match):
    with pytest.raises(TopologyError, match=match):
        Topology.from_devices(devices, **more)


# ---------------------------------------------------------------------- meshes


def test_a_mesh_of_stand_ins():
    devices = np.asarray([*box(2, 3, 3), None])[:-1].reshape(3, 6)
    mesh = SimpleNamespace(devices=devices[:, ::-1])
    expected = Topology.from_devices(list(devices[:, ::-1].flat))
    assert Topology.from_mesh(mesh) == expected
    slow = Topology.from_mesh(mesh, alpha=1.0, bandwidth=2.0, wrap=(False, True, True))
    assert set(slow.alpha) == {1.0}
    assert slow.num_links == torus(2, 3, 3).num_links


def test_the_devices_that_are_here():
    jax = pytest.importorskip("jax")
    devices = jax.devices("cpu")
    topology = Topology.from_devices(devices)
    assert topology.num_ranks == len(devices)
    assert nx.number_strongly_connected_components(topology.to_networkx()) == 1
    count = len(devices) // 2 * 2 or 1
    shape = (2, count // 2) if count > 1 else (1, 1)
    order = random.Random(0).sample(devices, count)
    mesh = jax.sharding.Mesh(np.asarray(order).reshape(shape), ("a", "b"))
    by_mesh = Topology.from_mesh(mesh, bandwidth=3e9)
    assert by_mesh == Topology.from_devices(order, bandwidth=3e9)
    assert by_mesh.num_ranks == count


# ---------------------------------------------------------------------- boxes inside a slice


@pytest.mark.parametrize(
    ("whole", "part", "at", "wrap"),
    [
        ((4, 4), (2, 4), (0, 0), (False, True)),
        ((4, 4), (2, 4), (1, 0), (False, True)),
        ((4, 4), (3, 2), (1, 1), (False, False)),
        ((8, 4, 4), (4, 4, 1), (2, 0, 3), (False, True, False)),
        ((4, 4), (4, 4), (0, 0), (True, True)),
    ],
)
def test_a_box_inside_a_slice_closes_where_it_spans_it(whole, part, at, wrap):
    devices = box(*part, at=at)
    topology = Topology.from_devices(devices, within=box(*whole), alpha=0.0, bandwidth=1.0)
    assert topology == grid(part, wrap, alpha=0.0, bandwidth=1.0)
    assert topology.grid == Grid(part, wrap)
    # Its links are those of the slice between its members.
    slice_ = Topology.from_devices(box(*whole), alpha=0.0, bandwidth=1.0)
    rank = {device.coords: r for r, device in enumerate(devices)}
    member = [rank.get(device.coords) for device in box(*whole)]
    between = {
        (member[u], member[v])
        for u, v in pairs(slice_)
        if member[u] is not None and member[v] is not None
    }
    assert set(pairs(topology)) == between


def test_a_box_may_go_round_the_end_of_a_closed_dimension():
    devices = [Tpu((x % 4, y)) for x in (3, 4, 5) for y in range(2)]
    around = Topology.from_devices(devices, within=box(4, 2))
    assert around == Topology.from_devices(box(3, 2), within=box(4, 2))
    assert around.grid == Grid((3, 2), (False, False))
    with pytest.raises(TopologyError, match="do not fill a grid"):
        Topology.from_devices(devices, within=box(4, 2), wrap=(False, False))


def test_the_slice_is_the_clients_unless_given():
    class Known(SimpleNamespace):
        coords: tuple[int, ...]

    devices = [Known(coords=(x, y), device_kind="TPU v5p") for x in range(8) for y in range(4)]
    for device in devices:
        device.client = SimpleNamespace(devices=lambda: devices)
    half = Topology.from_devices(devices[:16])
    assert half.grid == Grid((4, 4), (False, True))
    assert Topology.from_devices(devices).grid == Grid((8, 4), (True, True))
    assert Topology.from_devices(devices[:16], within=devices[:16]).grid == Grid(
        (4, 4), (True,) * 2
    )
    wrapped = Topology.from_devices(devices[:16], wrap=(True, False))
    assert wrapped.grid == Grid((4, 4), (False, False))


def test_first_cores_of_a_slice_of_two_cores_a_chip():
    whole = [dataclasses.replace(d, core_on_chip=c) for d in box(2, 2, 1) for c in (0, 1)]
    first = Topology.from_devices(whole[::2], within=whole)
    assert first == Topology.from_devices(box(2, 2, 1))
    assert first.grid == Grid((2, 2, 1, 1), (False,) * 4)


def test_a_slice_without_its_devices_is_refused():
    with pytest.raises(TopologyError, match="do not hold all devices"):
        Topology.from_devices(box(2, 4), within=box(2, 2))
    with pytest.raises(TopologyError, match="do not hold all devices"):
        Topology.from_devices(box(2, 4), within=box(2, 4, 1))


@given(st.permutations(range(8)))
def test_permuted_devices_know_their_places(order):
    devices = box(2, 4)
    topology = Topology.from_devices([devices[i] for i in order])
    assert topology.placement is not None
    assert topology.placement.grid == Grid((2, 4), (False, True))
    assert [order[rank] for rank in topology.placement.ranks] == list(range(8))
    in_order = topology.relabel(order)  # rank r is the device at place order[r]
    assert in_order == Topology.from_devices(devices)
    assert in_order.grid == Grid((2, 4), (False, True))
