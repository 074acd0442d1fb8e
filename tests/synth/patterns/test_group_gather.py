"""Group gather: a shard enters every group of a dragonfly once, over a link to that group."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import bound, simulate, synthesize, topologies, verify
from jaxcoll.errors import TopologyError
from jaxcoll.synth import RailGather
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.patterns.group_gather import Groups
from jaxcoll.topologies import dragonfly
from jaxcoll.topology import Topology


@st.composite
def damaged(draw) -> tuple[Topology, np.ndarray]:
    """A dragonfly without a few links and ranks, renumbered; and the group of each rank."""
    groups, routers = draw(st.integers(6, 8)), draw(st.integers(5, 6))
    whole = dragonfly(groups, routers)
    lost = draw(st.sets(st.integers(0, whole.num_ranks - 1), max_size=1))
    touches = np.isin(whole.src, list(lost)) | np.isin(whole.dst, list(lost))
    links = st.sampled_from(np.flatnonzero(~touches).tolist())
    left = whole.without(links=draw(st.sets(links, max_size=2)), ranks=lost)
    of_rank = np.array([r // routers for r in range(whole.num_ranks) if r not in lost])
    image = np.array(draw(st.permutations(range(left.num_ranks))))
    renumbered = np.empty_like(of_rank)
    renumbered[image] = of_rank
    return left.relabel(image), renumbered


@given(damaged(), st.integers(1, 2), st.integers(1, 9))
def test_a_shard_enters_every_group_once(network, chunks, parts):
    topology, of_rank = network
    schedule = synthesize(topology, "all_gather", RailGather(parts), chunks=chunks)
    n = topology.num_ranks
    assert schedule.num_sends == n * (n - 1) * chunks
    src, dst = of_rank[schedule.src], of_rank[schedule.dst]
    enters = np.stack([schedule.chunk, dst])[:, src != dst]
    assert len(np.unique(enters, axis=1).T) == enters.shape[1]


@given(damaged())
def test_groups_are_found_whatever_their_ranks_are_called(network):
    topology, of_rank = network
    groups = Groups.of(topology)
    assert groups is not None
    together = of_rank[:, None] == of_rank
    assert np.array_equal(groups.of_rank[:, None] == groups.of_rank, together)
    for number, size in enumerate(groups.sizes.tolist()):
        assert sorted(groups.place[groups.of_rank == number].tolist()) == list(range(size))
    between = {
        (u, v)
        for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        if of_rank[u] != of_rank[v]
    }
    listed = list(zip(groups.src.tolist(), groups.dst.tolist(), strict=True))
    assert set(listed) == between
    assert len(listed) == len(between)
    for a, b in np.ndindex(*groups.count.shape):
        for i in range(groups.ptr[a, b], groups.ptr[a, b] + groups.count[a, b]):
            assert (groups.of_rank[groups.src[i]], groups.of_rank[groups.dst[i]]) == (a, b)


@pytest.mark.parametrize(
    "topology",
    [
        topologies.torus(4, 4),
        topologies.torus(3, 3, 3),
        topologies.torus(3, 9),
        topologies.hypercube(5),
        topologies.fully_connected(16),
        topologies.dgx_h100(4),
        topologies.multi_rail(4, 4),
        topologies.ring(12),
        Topology.from_networkx(nx.random_regular_graph(4, 40, 0), alpha=0, bandwidth=1e9),
        # Groups in a circle: from most of them no link leads to most others.
        Topology.from_networkx(nx.connected_caveman_graph(8, 5), alpha=0, bandwidth=1e9),
    ],
    ids=str,
)
def test_other_networks_are_no_dragonflies(topology):
    assert Groups.of(topology) is None


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("size", [2**10, 2**26, 2**30])
def test_it_is_near_the_bound_at_every_size(kind, size):
    topology = dragonfly(16, 16)
    schedule = synthesize(topology, kind, RailGather(), chunks=1)
    assert simulate(schedule, size).time <= 1.05 * bound(topology, kind, size).time


def test_more_groups_than_routers_have_several_links_at_some_and_fewer_have_several_to_each_other():
    for groups, routers in ((9, 4), (3, 6)):
        topology = dragonfly(groups, routers)
        verify(synthesize(topology, "all_reduce", RailGather(), chunks=1))
    two = np.stack([dragonfly(4, 5).src, dragonfly(4, 5).dst])
    # Each group has a second link to the next one.
    more = np.array([[g * 5 + 4, (g + 1) % 4 * 5 + 3] for g in range(4)]).T
    src, dst = np.concatenate([two, more], axis=1)
    topology = Topology(20, src, dst, [0.0] * len(src), [1e9] * len(src))  # type: ignore[arg-type]
    schedule = synthesize(topology, "all_gather", RailGather(), chunks=1)
    load = np.bincount(schedule.edge, minlength=len(schedule.edges))
    edges = schedule.edges
    for u, v in more.T.tolist():
        on = int(np.flatnonzero((edges.src == u) & (edges.dst == v))[0])
        assert load[on] in (2, 3)  # of the five shards of its group


def test_groups_that_no_third_one_joins_are_left_to_others():
    """From group 0 links lead to group 4 alone, and none from there to group 1."""
    whole = dragonfly(5, 4)
    group = np.arange(20) // 4
    gone = [(0, 1), (0, 2), (0, 3), (4, 1)]
    links = [
        i for i in range(whole.num_links) if (group[whole.src[i]], group[whole.dst[i]]) in gone
    ]
    assert Groups.of(whole.without(links=links[:3])) is not None
    assert Groups.of(whole.without(links=links)) is None


def test_the_default_takes_it_first():
    topology = dragonfly(16, 16)
    schedule = synthesize(topology, "all_gather", nbytes=2**30)
    table = str(schedule.provenance.certificate["table"])
    assert table.startswith("({'candidate': 'RailGather(")
    assert chosen_by_auto(schedule)
    with pytest.raises(TopologyError, match="inner="):
        synthesize(topology, "all_gather", RailGather(inner=15))
