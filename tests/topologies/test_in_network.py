"""Switches that copy and add: kept by every network made of another, named, and refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Topology, topologies
from jaxcoll.bounds.throughput import balanced
from jaxcoll.copies import Copies
from jaxcoll.errors import TopologyError
from jaxcoll.io import graph_files, json, nccl_topology, nvidia_smi
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.topologies.switch_tiers import behind_routers
from jaxcoll.topology import rebuilt
from tests import strategies
from tests.io.networks.hosts import DUMPS

NETWORKS = strategies.topologies(max_ranks=6, switches=True, exact=True)


def does(topology: Topology) -> list[tuple[bool, bool]]:
    """Of each switch, whether it copies and whether it adds."""
    able = topology.in_network
    behind = range(topology.num_ranks, topology.num_vertices)
    return [(v in able.copying, v in able.adding) for v in behind]


# Networks of the same switches in the same order, made of one that is given.
SAME = {
    "rebuilt": rebuilt,
    "replaced": lambda t: dataclasses.replace(t, name="another"),
    "relabelled": lambda t: t.relabel(np.roll(range(t.num_ranks), 1)),
    "scaled": lambda t: t.scaled({0: 0.5}),
    "without nothing": lambda t: t.without(),
    "transposed twice": lambda t: t.transpose().transpose(),
    "networkx": lambda t: Topology.from_networkx(t.to_networkx()),
    "JSON": lambda t: json.loads(json.dumps(t)),
    "set again": lambda t: t.forwarding_only().with_in_network(
        t.in_network.copying, t.in_network.adding
    ),
    "a product with one rank": lambda t: topologies.product(topologies.ring(1), t),
}


@pytest.mark.parametrize("name", SAME)
@settings(max_examples=25)
@given(topology=NETWORKS)
def test_networks_made_of_others_keep_it(name, topology):
    assert does(SAME[name](topology)) == does(topology)


@given(NETWORKS)
def test_backwards_a_sum_is_a_copy(topology):
    assert does(topology.transpose()) == [(adds, copies) for copies, adds in does(topology)]


@given(NETWORKS)
def test_schedules_see_the_links_alone(topology):
    plain = topology.forwarding_only()
    assert not plain.in_network
    assert plain.links_digest == plain.digest == topology.links_digest
    assert (plain == topology) == (not topology.in_network)
    assert plain is topology.forwarding_only()


@settings(max_examples=50)
@given(strategies.topologies(max_ranks=3, switches=True), st.integers(2, 3))
def test_products_have_it_in_every_line(topology, side):
    whole = topologies.product(topologies.ring(side), topology)
    assert does(whole) == does(topology) * side
    routers = behind_routers(topology, side)
    assert does(routers) == [(False, False)] * topology.num_ranks + does(topology)
    groups = np.arange(whole.num_ranks).reshape(side, -1).tolist()
    copies = Copies.of(whole, groups)
    # A switch that leads to one rank only is left out.
    if copies is not None and copies.one.num_vertices == topology.num_vertices:
        assert does(copies.one) == does(topology)


def test_copies_whose_switches_do_other_things_are_none():
    rails = topologies.multi_rail(2, 4)
    groups = (tuple(range(4)), tuple(range(4, 8)))
    for able, same in ((("host 0 switch", "host 1 switch"), True), (("host 1 switch",), False)):
        found = Copies.of(rails.with_in_network(able, able), groups)
        assert (found is not None) == same
        assert found is None or does(found.one) == [(True, True)]


def test_what_is_left_keeps_it_under_new_numbers():
    hosts = topologies.dgx_h100(2, sharp=True).with_in_network(["network", "host 1 switch"], [17])
    left = hosts.without(ranks=["host 0"])
    assert left.in_network == InNetwork((8, 9), (8,))
    assert left.forwarding_only().losses.ranks == left.losses.ranks == tuple(range(8))
    assert hosts.without(switches=["network"], ranks=["host 0"]).in_network == InNetwork((8,), (8,))
    lopsided = topologies.nvswitch_hosts((2, 2), inside=3, network=1, nvls=True)
    assert balanced(lopsided).in_network == lopsided.in_network == InNetwork((4, 5), (4, 5))


@pytest.mark.parametrize("form", graph_files.FORMATS)
def test_graph_files_keep_it(form):
    hosts = topologies.dgx_h100(2).with_in_network(["network"], True)
    assert graph_files.loads(graph_files.dumps(hosts, form)) == hosts


def test_files_of_other_networks_are_what_they_were():
    assert "in_network" not in json.dumps(topologies.dgx_a100(1))
    assert "copies" not in topologies.dgx_a100(1).to_networkx().nodes[8]


def test_families_say_it():
    assert does(topologies.dgx_h100(2)) == [(True, True), (True, True), (False, False)]
    assert does(topologies.dgx_h100(2, sharp=True)) == [(True, True)] * 3
    assert topologies.dgx_h100(2, nvls=False) == topologies.dgx_h100(2).forwarding_only()
    assert not topologies.dgx_a100(2).in_network
    assert does(topologies.dgx_a100(2, sharp=True)) == [(False, False)] * 2 + [(True, True)]
    assert does(topologies.dgx_h100(1, sharp=True)) == [(True, True)]


@dataclasses.dataclass(frozen=True)
class Gpu:
    """As much of a JAX device as its network is assumed from."""

    id: int
    device_kind: str
    process_index: int = 0


@pytest.mark.parametrize(
    ("kind", "can"),
    [("NVIDIA H100 80GB HBM3", True), ("NVIDIA B200", True), ("NVIDIA A100-SXM4-80GB", False)],
)
def test_devices_from_hopper_on_have_it(kind, can):
    """NVLink SHARP: NVSwitches of the third generation and newer."""
    found = Topology.from_devices([Gpu(i, kind) for i in range(8)])
    assert does(found) == [(can, can)]


@pytest.mark.parametrize(("gpu", "can"), [("h100", True), ("a100", False)])
def test_tables_of_nvidia_smi_have_it_by_the_gpu(gpu, can):
    rows = tuple(tuple("X" if i == j else "NV18" for j in range(8)) for i in range(8))
    found = nvidia_smi.topology(nvidia_smi.Connections(8, rows, {}), gpu=gpu)
    assert (can, can) in does(found)
    assert bool(found.in_network) == can


@pytest.mark.parametrize(("name", "can"), [("dgx_h100", True), ("dgx_a100", False)])
def test_dumps_of_nccl_have_it_by_the_gpu(name, can):
    found = nccl_topology.topology(nccl_topology.load(DUMPS / f"{name}.xml"), network=50e9)
    assert bool(found.in_network) == can


def test_symmetries_that_keep_it_stay():
    star = topologies.switch(4)
    assert star.with_in_network(True).generators == star.generators
    pair = topologies.product(topologies.ring(2), star)
    assert len(pair.with_in_network([8], [8]).generators) < len(pair.generators)
    with pytest.raises(TopologyError, match="switches that copy"):
        dataclasses.replace(pair, in_network=InNetwork((8,)))


def test_it_is_shown():
    assert "1 switches (1 add)" in repr(topologies.switch(2).with_in_network([], True))
    assert "3 switches (1 copy and add, 2 copy)" in repr(
        topologies.dgx_h100(2).with_in_network(True, ["network"])
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: t.with_in_network([0]), "copying: vertex 0 is not a switch.* are 4..4"),
        (lambda t: t.with_in_network((), [5]), "adding: vertex 5 is not a switch"),
        (lambda t: t.with_in_network(["hub"]), "no switch is called 'hub'; there are no names"),
        (lambda t: t.with_in_network([4.5]), "a switch must be an integer"),
        (lambda t: topologies.ring(3).with_in_network([0]), "switches of this network are none"),
        (lambda t: dataclasses.replace(t, in_network=(4,)), "in_network"),
        (lambda t: topologies.dgx_h100(1, nvls="yes"), "nvls"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_switch_is_refused(make, message):
    with pytest.raises(TopologyError, match=message):
        make(topologies.switch(4))
