"""Forests: every one counted link by link, in plain Python; optimal on every network; low."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import fixed_k, optimum
from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topologies import dgx1, dgx_a100, dgx_h100, hypercube, mesh, mi250, ring, torus
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from tests import strategies
from tests.synth.forestcoll.networks import SWITCHED, random_switched

DIRECT = [dgx1(), torus(4, 4), torus(3, 4), torus(3, 3, 3), hypercube(4), mesh(3, 4), ring(2)]


def count(flow: TreeFlow) -> Fraction:
    """Seconds per byte of shard, by following every tree by hand."""
    topology, n = flow.topology, flow.topology.num_ranks
    load: Counter[int] = Counter()
    trees: Counter[int] = Counter()
    for i, (root, weight) in enumerate(zip(flow.root.tolist(), flow.weight.tolist(), strict=True)):
        reached = {root}
        for e in flow.edge[flow.tree_ptr[i] : flow.tree_ptr[i + 1]].tolist():
            at = int(flow.edges.src[e])
            assert at in reached
            for link in flow.edges.path(e):
                assert topology.src[link] == at
                at = int(topology.dst[link])
                load[link] += weight
            assert at not in reached
            reached.add(at)
        assert reached == set(range(n))
        trees[root] += weight
    assert tuple(trees[r] for r in range(n)) == flow.shard
    return max(Fraction(x, flow.k) / topology.exact_bandwidth[link] for link, x in load.items())


@pytest.mark.parametrize("guess", [True, False])
@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(t, marks=[pytest.mark.slow] * (t.name == "MI250 16+16+16"))
        for t in [*SWITCHED, *DIRECT]
    ],
    ids=lambda t: t.name,
)
def test_forests_are_optimal(topology, guess):
    best = optimum(topology)
    flow = forest(topology, guess=guess)
    assert flow.k == best.k
    assert count(flow) == flow.check_load() == best.inverse


@given(random_switched(), st.booleans(), st.data())
def test_forests_of_random_networks_are_optimal(topology, guess, data):
    n = topology.num_ranks
    weights = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=n, max_size=n).filter(any))
    flow = forest(topology, weights, guess=guess)
    assert count(flow) == optimum(topology, weights).inverse


@given(random_switched(), st.integers(1, 5))
def test_fixed_numbers_of_trees_on_random_networks(topology, k):
    flow = forest(topology, k=k)
    scaling = fixed_k(topology, k)
    assert count(flow) == flow.inverse <= scaling.inverse


@settings(max_examples=40)
@given(strategies.topologies(max_ranks=16, exact=True))
def test_direct_networks_need_no_balance(topology):
    assert count(forest(topology)) == optimum(topology).inverse


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("topology", [mi250(2, ranks=8), dgx_a100(2), torus(4, 4)], ids=str)
def test_fixed_numbers_of_trees(topology, k):
    flow = forest(topology, k=k)
    assert (flow.k, set(flow.shard)) == (k, {k})
    assert count(flow) == fixed_k(topology, k).inverse


@pytest.mark.parametrize(
    ("topology", "height"),
    [
        *((dgx_a100(hosts), 2) for hosts in (1, 2, 3, 4, 5, 8)),
        *((dgx_h100(hosts), 2) for hosts in (2, 3, 4, 5, 8)),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_trees_of_boxes_are_two_high(topology, height):
    assert forest(topology).height <= height


@pytest.mark.parametrize(
    ("topology", "height"),
    [(mi250(1), 7), (mi250(2), 8), (mi250(2, ranks=8), 6), (dgx1(), 2), (mesh(5, 5), 8)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_packed_trees_are_low(topology, height):
    assert forest(topology).height <= height


def test_a_broadcast():
    topology = mi250(2, ranks=8)
    flow = forest(topology, [0, 0, 1] + [0] * 13)
    assert set(flow.root.tolist()) == {2}
    # Everything that leaves or enters some rank is used.
    assert count(flow) == Fraction(1, 10**9 * 8 * 16)


def test_the_way_taken_is_said():
    assert forest(dgx_a100(2)).certificate["switches"] == "spread, spread, spread"
    assert forest(dgx_a100(2), guess=False).certificate["switches"] == "split, split, split"
    assert forest(torus(3, 3)).certificate["switches"] == "none"


def test_the_check_that_passed_is_said():
    said = str(forest(dgx_a100(2)).certificate["counted"])
    assert "no link over its bandwidth at 3/65000000000 s per byte of shard" in said
    assert said == forest(dgx_a100(2), k=13).certificate["counted"]


def test_too_much_or_too_little_to_pack_is_refused():
    with pytest.raises(TopologyError, match="fewer trees than asked for"):
        pack_trees(3, {(0, 1): 1, (1, 2): 1, (2, 0): 1}, (1, 1, 1))
    with pytest.raises(TopologyError, match="round the bandwidths"):
        pack_trees(2, {(0, 1): 2**61, (1, 0): 2**61}, (2**61, 2**61))


def test_equal_calls_give_equal_trees():
    topology = SWITCHED[-3]
    one, two = forest(topology), forest(topology)
    for name in ("root", "weight", "edge", "tree_ptr"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert one.edges.same_as(two.edges)


def test_ranks_alone():
    with pytest.raises(TopologyError, match="nothing to gather"):
        forest(Topology(1, [], [], [], []))  # type: ignore[arg-type]
