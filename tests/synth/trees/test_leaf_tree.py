"""Leaf trees: plans end when the simulator says, and well before those of plainer trees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import EarliestTree, synthesize
from jaxcoll.synth.building.circles import leaf_of_rank
from jaxcoll.synth.trees.leaf_tree import leaf_tree
from tests.synth.trees.leaves import below_one_spine


@given(st.lists(st.integers(1, 6), min_size=2, max_size=9).filter(lambda s: max(s) > 1), st.data())
def test_below_leaves_of_any_sizes_the_root_reaches_all_sooner_than_alone(sizes, data):
    topology = below_one_spine(sizes)
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    nbytes = data.draw(st.sampled_from([2**10, 2**14, 2**18]))
    tree = synthesize(topology, "broadcast", EarliestTree(nbytes=nbytes), root=root)
    alone = synthesize(topology, "broadcast", "direct", root=root, chunks=1)
    assert simulate(tree, nbytes).time <= 1.01 * simulate(alone, nbytes).time


@given(st.integers(2, 4), st.integers(2, 3), st.data())
def test_a_rank_is_served_once_by_one_that_has_the_data(arity, levels, data):
    topology = topologies.fat_tree(arity, levels)
    leaf = leaf_of_rank(topology)
    assert leaf is not None
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    src, dst = leaf_tree(topology, leaf, root, data.draw(st.sampled_from([1.0, 1e3, 1e5])))
    assert sorted([root, *dst.tolist()]) == list(range(topology.num_ranks))
    has = {root}
    for u, v in zip(src.tolist(), dst.tolist(), strict=True):
        assert u in has
        has.add(v)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("topology", "most"),
    [(topologies.fat_tree(4, 4), 1.14), (topologies.fat_tree(4, 4).without(ranks=[7]), 1.14),
     (topologies.leaf_spine(8, 32, 8, oversubscription=3), 1.25)],
    ids=["fat tree", "without a rank", "leaf-spine"],
)  # fmt: skip
def test_little_data_are_near_the_bound(topology, kind, most):
    """By a rank that sends to everyone they took 2 times the bound; by other trees, 1.6 times."""
    schedule = synthesize(topology, kind, EarliestTree(), nbytes=1024)
    assert simulate(schedule, 1024).time <= most * bound(topology, kind, 1024).time


def test_helpers_are_worth_their_time():
    """Of 1,024 ranks one alone takes 26 us, with a rank of each leaf first 10; the bound is 6."""
    topology = topologies.fat_tree(4, 5)
    schedule = synthesize(topology, "broadcast", EarliestTree(), nbytes=1024)
    assert simulate(schedule, 1024).time < 7.7e-6
