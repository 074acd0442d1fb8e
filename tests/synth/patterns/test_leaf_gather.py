"""Leaf gather: a shard enters a leaf once, and the ranks of a leaf carry equally many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.simulation import simulate
from jaxcoll.synth import RailGather, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.circles import leaf_of_rank, leaves_of
from jaxcoll.synth.patterns.leaf_gather import gather_below
from tests.synth.leaves import below_one_spine

_SIZES = st.lists(st.integers(1, 5), min_size=2, max_size=7).filter(lambda s: len(set(s)) > 1)


@settings(max_examples=50)
@given(_SIZES, st.integers(1, 2), st.integers(1, 9))
def test_a_shard_enters_a_leaf_once_and_ranks_take_turns(sizes, chunks, parts):
    topology = below_one_spine(sizes)
    n, leaf = topology.num_ranks, leaf_of_rank(topology)
    assert leaf is not None
    schedule = synthesize(topology, "all_gather", RailGather(parts), chunks=chunks)
    assert schedule.num_sends == n * (n - 1) * chunks
    between = leaf[schedule.src] != leaf[schedule.dst]
    assert between.sum() == n * (len(sizes) - 1) * chunks
    enters = np.bincount(schedule.dst[between], minlength=n)
    for ranks in leaves_of(topology):
        assert enters[ranks].max() - enters[ranks].min() <= chunks
    assert schedule.num_steps <= 1 + parts


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 9))
def test_below_equal_leaves_it_is_the_gather_along_rails(count, inner, parts):
    found = gather_below([*np.arange(count * inner).reshape(count, inner)], parts)
    topology = below_one_spine([inner] * count)
    rails = synthesize(topology, "all_gather", RailGather(parts), chunks=1)
    step = np.unique(found.step, return_inverse=True)[1]  # schedules have no empty steps
    sends = zip(step, found.src[found.edge], found.dst[found.edge], found.owner, strict=True)
    there = zip(rails.step, rails.src, rails.dst, rails.collective.owner[rails.chunk], strict=True)
    assert sorted(sends) == sorted(there)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_without_a_rank_a_fat_tree_is_near_the_bound(kind):
    """With every rank as a host of its own it took 1.43 times the bound."""
    topology = topologies.fat_tree(4, 4).without(ranks=[130])
    schedule = synthesize(topology, kind, RailGather(), nbytes=2**26)
    assert simulate(schedule, 2**26).time <= 1.08 * bound(topology, kind, 2**26).time


def test_the_default_tries_it_first():
    topology = topologies.fat_tree(4, 4).without(ranks=[130])
    assert RailGather().leads(Problem(topology, Collective("all_gather", 255)))
