"""Between processes messages go where IP forwards them, packet by packet."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.paths import Edges, forwarded_routes, next_hops
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import costs_of
from jaxcoll.topology import Topology
from tests import strategies

MACHINE = costs_of("links")
assert MACHINE is not None
FREE = dataclasses.replace(MACHINE, permute=0, copied=0, added=0, swapped=0)


def all_pairs(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    return np.nonzero(~np.eye(topology.num_ranks, dtype=bool))


@given(strategies.topologies(2, 9, switches=True, parallel=True, homogeneous=False))
def test_routes_are_the_fewest_links_and_every_rest_of_one_is_one(topology):
    src, dst = all_pairs(topology)
    graph = nx.DiGraph(list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)))
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    routes, following = forwarded_routes(topology, src, dst), next_hops(topology)
    routes.check(topology)
    for e, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        assert len(routes.path(e)) == distance[a][b]
        at = a
        for link in routes.path(e):
            assert topology.dst[link] == following[at][b]
            at = int(topology.dst[link])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(1, 1000),
)
def test_a_message_takes_the_time_of_its_slowest_link(links, nbytes):
    count = len(links)
    line = Topology(
        count + 1, np.arange(count), np.arange(1, count + 1),
        np.array([float(alpha) for _, alpha in links]),
        np.array([float(speed) for speed, _ in links]), allow_unreachable=True,
    )  # fmt: skip
    collective = Collective("broadcast", count + 1, 1, root=0)
    edges = Edges.from_paths(line, [range(count)])
    whole = Schedule.from_sends(line, collective, [0], [0], [0], edges=edges)
    slowest = min(Fraction(speed) for speed, _ in links)
    taken = simulate(whole, nbytes, execution=FREE).exact_time
    assert taken == nbytes / slowest + sum(alpha for _, alpha in links)
    stored = simulate(whole, nbytes).exact_time
    assert stored == sum(Fraction(nbytes, speed) + alpha for speed, alpha in links)


@given(strategies.topologies(2, 7, switches=True, homogeneous=False), st.randoms())
def test_what_is_sent_stays_the_same(topology, random):
    src, dst = all_pairs(topology)
    shortest = forwarded_routes(topology, src, dst)
    other = topology.relabel(random.sample(range(topology.num_ranks), topology.num_ranks))
    pairs = forwarded_routes(other, src, dst)
    sends = np.arange(len(src))
    collective = Collective("all_gather", topology.num_ranks, 1)
    for network, edges in ((topology, shortest), (other, pairs)):
        schedule = Schedule.from_sends(network, collective, sends % 3, sends, src, edges=edges)
        assert FREE.as_sent(schedule) == schedule


def test_a_slow_cable_is_not_gone_around():
    """IP counts links: 0 to 5 of a torus goes by 1 where its cable is slow, too."""
    torus = topologies.torus(2, 4, alpha=0, bandwidth=100)
    slow = torus.scaled({(0, 1): Fraction(1, 5), (1, 0): Fraction(1, 5)})
    pairs = zip(slow.src.tolist(), slow.dst.tolist(), strict=True)
    link = {pair: k for k, pair in enumerate(pairs)}
    edges = Edges.from_paths(slow, [[link[0, 4], link[4, 5]]])
    collective = Collective("broadcast", 8, 1, root=0)
    schedule = Schedule.from_sends(slow, collective, [0], [0], [0], edges=edges)
    sent = FREE.as_sent(schedule)
    assert sent.edges.path(0) == (link[0, 1], link[1, 5])
    assert simulate(schedule, 100, execution=FREE).exact_time == 5
    assert simulate(schedule, 100).exact_time == 2


def test_messages_of_several_ways_between_two_ranks_are_one_message_on_the_way_of_ip():
    """Two switches join two ranks; one chunk goes through each, and a third by the first again."""
    links = [(u, v) for m in (2, 3) for r in (0, 1) for u, v in ((r, m), (m, r))]
    src, dst = zip(*links, strict=True)
    pair = Topology(2, src, dst, [0] * 8, [100] * 8, num_vertices=4)  # type: ignore[arg-type]
    link = {
        ends: k for k, ends in enumerate(zip(pair.src.tolist(), pair.dst.tolist(), strict=True))
    }
    edges = Edges.from_paths(pair, [[link[0, m], link[m, 1]] for m in (2, 3)])
    chunks, ways = [0, 1, 2], [0, 1, 0]
    schedule = Schedule.from_sends(
        pair, Collective("broadcast", 2, 3, root=0), [0] * 3, ways, chunks, edges=edges
    )
    sent = FREE.as_sent(schedule)
    assert sent.num_messages == 1
    assert sorted(sent.chunk.tolist()) == chunks
    assert sent.edges.path(int(sent.edge[0])) == (link[0, 2], link[2, 1])
    assert simulate(schedule, 300, execution=FREE).time == pytest.approx(3)


@pytest.mark.parametrize("machine", ["cpu", "gpu", "tpu"])
def test_devices_send_as_schedules_say(machine):
    costs = costs_of(machine)
    assert costs is not None
    assert not costs.is_forwarded
