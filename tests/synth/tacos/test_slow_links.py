"""Slow-link avoidance: the ranks that count, and its gain on 3D-RFS."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth.tacos import Tacos
from jaxcoll.synth.tacos.rules import faster_ranks
from jaxcoll.synth.tacos.state import Network
from jaxcoll.topologies import mesh, ring_fc_switch
from jaxcoll.verifier import verify
from tests import strategies


@given(strategies.topologies(max_ranks=10), st.data())
def test_faster_ranks_are_those_with_a_shorter_way(topology, data):
    costs = data.draw(st.lists(st.integers(1, 30), min_size=topology.num_links))
    cost = np.asarray(costs[: topology.num_links], np.int64)
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), cost.tolist(), strict=True))
    graph = nx.DiGraph()
    for u, v, c in sorted(ends, key=lambda link: -link[2]):  # of parallel links, the fastest
        graph.add_edge(v, u, weight=c)
    first, last, rank = faster_ranks(Network.of(topology), cost)
    for link, (_, v, c) in enumerate(ends):
        way = nx.single_source_dijkstra_path_length(graph, v)
        slow = c > 2 * min(other for _, w, other in ends if w == v)
        expected = {u for u, length in way.items() if 0 < length < c} if slow else set()
        found = rank[first[link] : last[link]].tolist()
        assert set(found) == expected
        assert len(found) == len(expected)


def test_at_most_so_many_ranks_count():
    """A clique of fast links would give a slow one into it more ranks than are worth reading."""
    topology = mesh(100, 2)
    cost = np.where(abs(topology.src - topology.dst) == 1, 10**4, 1)
    cost[topology.src % 2 == 1] = 1
    first, last, _ = faster_ranks(Network.of(topology), cost.astype(np.int64))
    assert (last - first).max() == 64


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_every_chunk_enters_a_box_once(degree):
    """Four boxes of four ranks: what one rank of a box has, the others do not fetch again."""
    tacos = Tacos("patient", attempts=1, nbytes=1e9, degree=degree)
    for chunks in (1, 4):
        collective = Collective("all_gather", 16, chunks)
        schedule = tacos.synthesize(ring_fc_switch(2, 2, 4), collective, 0)
        verify(schedule)
        entering = schedule.src // 4 != schedule.dst // 4
        arrived = np.stack([schedule.dst[entering] // 4, schedule.chunk[entering]])
        assert entering.sum() == np.unique(arrived, axis=1).shape[1] == 3 * 16 * chunks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.in_every_run("0")
def test_128_ranks_of_3d_rfs_are_within_a_quarter_of_the_bound(seed):
    topology, collective = ring_fc_switch(2, 4, 16), Collective("all_reduce", 128, 4)
    tacos = Tacos("patient", attempts=1, nbytes=1e9, degree=4)
    schedule = tacos.synthesize(topology, collective, seed)
    verify(schedule)
    for model in ("tacos", "astra"):
        time = simulate(schedule, 10**9, model).time
        assert time <= 1.25 * bound(topology, collective, 10**9).time
