"""Blink: Edmonds' rate from one root, with counted flows as the oracle; pieces that follow."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings

from jaxcoll.bounds import lower_bounds
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Blink, ForestColl
from jaxcoll.topologies import dgx1, dgx_a100, hypercube, mi250, nvswitch_hosts, torus
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tests import strategies
from tests.synth.forestcoll.networks import random_switched

GB = 10**9


def slowest_flow(topology: Topology, root: int) -> int:
    """Bytes a second: the least of the maximum flows from the root to the other ranks."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_vertices))
    for u, v, b in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
        before = graph.get_edge_data(int(u), int(v), {"capacity": 0})["capacity"]
        graph.add_edge(int(u), int(v), capacity=before + b)
    others = (v for v in range(topology.num_ranks) if v != root)
    return min(nx.maximum_flow_value(graph, root, v) for v in others)


def certificate(topology: Topology, kind: str, chunks: int = 64, **fields) -> dict[str, Any]:
    collective = Collective(kind, topology.num_ranks, chunks)
    return dict(Blink(**fields).synthesize(topology, collective).provenance.certificate)


@settings(max_examples=40)
@given(random_switched())
def test_a_broadcast_is_as_fast_as_edmonds_allows(topology):
    said = certificate(topology, "broadcast", 64)
    assert Fraction(said["optimum"]) == 1 / Fraction(slowest_flow(topology, 0))


@pytest.mark.parametrize(
    "topology",
    [dgx1(), torus(3, 3), hypercube(3), dgx_a100(2), mi250(2, ranks=8)],
    ids=lambda t: t.name,
)
@pytest.mark.parametrize("kind", ["broadcast", "all_reduce"])
def test_time_approaches_what_the_certificate_says(topology, kind):
    n = topology.num_ranks
    collective = Collective(kind, n, 384 if kind == "all_reduce" else 384 * n)
    schedule = Blink().synthesize(topology, collective)
    verify(schedule)
    key = "seconds per byte" if kind == "all_reduce" else "seconds per byte of shard"
    steady = GB * Fraction(str(schedule.provenance.certificate[key]))
    assert steady <= simulate(schedule, GB).exact_time <= steady * Fraction(112, 100)


def test_trees_of_dgx1_are_as_many_as_its_lanes():
    said = certificate(dgx1(), "all_reduce", 3)
    # Six trees of 25 GB/s down, and as many up: over a link with a tree of each, half as fast.
    assert said["broadcast"]["k"] == 6
    assert Fraction(said["broadcast"]["optimum"]) == Fraction(1, 150 * GB)
    assert Fraction(said["seconds per byte"]) == Fraction(1, 75 * GB)


@pytest.mark.parametrize("topology", [dgx_a100(2), mi250(2, ranks=8)], ids=lambda t: t.name)
def test_one_root_is_slower_than_a_forest_and_preset_links_slower_still(topology):
    times = []
    for synthesizer in (ForestColl(), Blink(), Blink(degree=2), Blink(degree=1)):
        collective = Collective("all_reduce", topology.num_ranks, 13 * 32)
        schedule = synthesizer.synthesize(topology, collective)
        verify(schedule)
        times.append(simulate(schedule, GB).time)
        assert all(times[-1] >= bound.time for bound in lower_bounds(topology, collective, GB))
    assert times == sorted(times)
    assert times[1] > 1.3 * times[0]
    assert times[2] > 4 * times[1]


def test_the_quickest_root_is_taken_unless_one_is_given():
    # 0 to 1 to 2 at 1 and 2 GB/s, and back at 5: both ends broadcast and reduce at 1 and 5, the
    # middle at 1 and 2.
    topology = Topology(3, [0, 1, 1, 2], [1, 2, 0, 1], [0] * 4, [1e9, 2e9, 5e9, 5e9])  # type: ignore[arg-type]
    said = certificate(topology, "all_reduce")
    assert said["broadcast"]["root"] == said["reduce"]["root"] == 0
    assert Fraction(said["broadcast"]["optimum"]) == Fraction(1, GB)
    assert Fraction(said["reduce"]["optimum"]) == Fraction(1, 5 * GB)
    middle = certificate(topology, "all_reduce", root=1)
    assert middle["broadcast"]["root"] == middle["reduce"]["root"] == 1
    assert Fraction(middle["broadcast"]["optimum"]) == Fraction(1, 2 * GB)


@settings(max_examples=20)
@given(strategies.topologies(max_ranks=7, switches=True))
def test_pieces_do_not_change_what_is_carried(topology):
    n = topology.num_ranks
    for pieces in (1, 3):
        collective = Collective("all_reduce", n, 6, (tuple(range(n))[::-1],))
        verify(Blink(degree=1, pieces=pieces).synthesize(topology, collective))


def test_what_it_is_not_defined_for_is_refused_by_name():
    topology = torus(2, 3)
    with pytest.raises(CollectiveError, match="blink is not defined for all_gather; it offers"):
        Blink().synthesize(topology, Collective("all_gather", 6))
    with pytest.raises(CollectiveError, match="blink is defined for one group of all 6 ranks"):
        Blink().synthesize(topology, Collective("all_reduce", 6, 1, ((0, 1, 2), (3, 4, 5))))
    with pytest.raises(CollectiveError, match="root 6 is not a rank"):
        Blink(root=6).synthesize(topology, Collective("all_reduce", 6))
    for fields in ({"root": -1}, {"degree": 0}, {"k": 1.5}, {"pieces": 0}):
        with pytest.raises(CollectiveError, match=next(iter(fields))):
            Blink(**fields)  # type: ignore[arg-type]
    lopsided = Topology(2, [0, 2, 1, 2], [2, 1, 2, 0], [0] * 4, [1, 2, 3, 4], 3)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="B/s more"):
        Blink().synthesize(lopsided, Collective("all_reduce", 2))
    # Preset links need no balance.
    verify(Blink(degree=1).synthesize(lopsided, Collective("all_reduce", 2)))


def test_boxes_of_unequal_sizes():
    topology = nvswitch_hosts((3, 2), inside=4e9, network=1e9)
    verify(Blink().synthesize(topology, Collective("all_reduce", 5, 4)))
