"""Spread routes: equal ways share the load, and networks without equal ways keep the shortest."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.paths import shortest_routes
from jaxcoll.synth.routing.spread_routes import spread_routes


def _all_pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.divmod(np.arange(ranks * ranks), ranks)
    return src[src != dst], dst[src != dst]


def _busiest(topology, edges) -> float:
    """Seconds of the link that takes longest, if each edge carries a byte."""
    crossings = np.bincount(edges.path_link, minlength=topology.num_links)
    return float((crossings / topology.bandwidth).max())


@pytest.mark.parametrize(
    "topology",
    [topologies.fat_tree(4, 3), topologies.fat_tree(2, 6), topologies.leaf_spine(8, 8, 4)],
    ids=str,
)
def test_on_full_fat_trees_no_switch_is_busier_than_a_rank(topology):
    """All pairs: a rank's link carries n - 1 messages, and no link between switches is busier."""
    n = topology.num_ranks
    src, dst = _all_pairs(n)
    ones = np.ones(len(src), np.int64)
    shortest = shortest_routes(topology, src, dst)
    found = spread_routes(topology, src, dst, ones, Fraction(2**20, n))
    found.check(topology)
    assert (found.hops == shortest.hops).all()
    rank_takes = (n - 1) / topology.bandwidth[topology.src < n].max()
    assert _busiest(topology, found) == rank_takes
    assert _busiest(topology, shortest) > 1.4 * rank_takes


@pytest.mark.parametrize(
    "topology",
    [topologies.multi_rail(4, 8), topologies.dgx_h100(4), topologies.torus(4, 4)],
    ids=str,
)
def test_where_no_switch_is_crowded_routes_are_the_shortest(topology):
    src, dst = _all_pairs(topology.num_ranks)
    ones = np.ones(len(src), np.int64)
    found = spread_routes(topology, src, dst, ones, Fraction(2**16))
    assert found.same_as(shortest_routes(topology, src, dst))


@settings(max_examples=30)
@given(st.data())
def test_routes_join_their_pairs_whatever_the_weights(data):
    topology = topologies.fat_tree(2, data.draw(st.integers(1, 5)))
    rank = st.integers(0, topology.num_ranks - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank).filter(lambda p: p[0] != p[1]), min_size=1))
    src, dst = (np.asarray(ranks) for ranks in zip(*sorted(set(pairs)), strict=True))
    weight = np.asarray(
        data.draw(st.lists(st.integers(1, 99), min_size=len(src), max_size=len(src)))
    )
    found = spread_routes(topology, src, dst, weight, Fraction(2**20))
    found.check(topology)
    assert (found.src == src).all()
    assert (found.dst == dst).all()
