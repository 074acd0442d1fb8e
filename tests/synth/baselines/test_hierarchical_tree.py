"""The hierarchical tree beside NCCL's own rule for trees over hosts, and its load on links."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.simulation import simulate, steady_seconds
from jaxcoll.synth import DoubleBinaryTree, HierarchicalTree, synthesize
from jaxcoll.synth.baselines.hierarchical_tree import hierarchical_trees
from jaxcoll.synth.building.circles import ranks_per_host


def btree(n: int, rank: int) -> tuple[int, int]:
    """NCCL's ``ncclGetBtree``: the parent of a rank, and which child of it the rank is."""
    bit = 1
    while bit < n and not bit & rank:
        bit <<= 1
    if rank == 0:
        return -1, 0
    up = (rank ^ bit) | (bit << 1)
    if up >= n:
        up = rank ^ bit
    return up, int(rank > up)


def dtree(n: int, rank: int) -> list[tuple[int, int]]:
    """NCCL's ``ncclGetDtree``: the same in both trees."""
    first = btree(n, rank)
    if n % 2:
        up, kind = btree(n, (rank - 1) % n)
        return [first, ((up + 1) % n if up >= 0 else -1, kind)]
    up, kind = btree(n, n - 1 - rank)
    return [first, (n - 1 - up if up >= 0 else -1, kind)]


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 27])
def test_trees_join_hosts_as_nccl_does(hosts):
    chains = ((0, 1, 2), (2, 0, 1))
    trees = hierarchical_trees(hosts, chains)
    assert len(trees) == 2 * len(chains)
    for t in range(2):
        for chain, tree in zip(chains, trees[2 * t : 2 * t + 2], strict=True):
            for host in range(hosts):
                up, kind = dtree(hosts, host)[t]
                # treeToChild0 is the second rank of the chain, treeToChild1 its head.
                above = -1 if up < 0 else 3 * up + (chain[0] if kind else chain[1])
                assert tree.parent[3 * host + chain[0]] == above
                for one, next_ in itertools.pairwise(chain):
                    assert tree.parent[3 * host + next_] == 3 * host + one


def test_two_hosts_are_bound_by_their_chains():
    """Sums and results of 7/8 of the data leave each rank by its NVLinks; 1/8 by its port."""
    topology = topologies.dgx_a100(2)
    schedule = synthesize(topology, "all_reduce", HierarchicalTree(), chunks=1)
    assert steady_seconds(schedule) == Fraction(2 * 7, 8) / 300_000_000_000
    steps, arrival = (
        synthesize(topology, "all_reduce", HierarchicalTree(pieces=16, nbytes=nbytes), chunks=16)
        for nbytes in (None, 2**30)
    )
    assert steady_seconds(steps) == steady_seconds(arrival) == steady_seconds(schedule)
    # Links that serve what comes first do not wait for trees that are late.
    slow, fast = (simulate(each, 2**30).time for each in (steps, arrival))
    assert float(steady_seconds(schedule)) * 2**30 < fast < 0.75 * slow
    assert steps.num_steps < arrival.num_steps


def test_four_hosts_are_bound_by_their_ports():
    """A host inside a tree sends one sum up and two results down; in the other it is a leaf."""
    schedule = synthesize(topologies.dgx_a100(4), "all_reduce", HierarchicalTree(), chunks=1)
    assert steady_seconds(schedule) >= Fraction(4, 16) / 25_000_000_000
    blind = synthesize(topologies.dgx_a100(4), "all_reduce", DoubleBinaryTree(), chunks=1)
    assert steady_seconds(schedule) < steady_seconds(blind)


@pytest.mark.parametrize(
    ("topology", "inner"),
    [
        (topologies.dgx_a100(2), 8),
        (topologies.dgx_h100(3), 8),
        (topologies.mi250(2, ranks=8), 8),
        (topologies.fully_connected(6), 6),
        (topologies.torus(2, 3), 3),
        (topologies.ring(1), 1),
        # The fast links join the first and the last dimension, whose ranks are not consecutive.
        (topologies.mesh(2, 3, 2, bandwidth=(4e9, 1e9, 4e9)), 2),
        (topologies.mesh(2, 3, bandwidth=(1e9, 4e9)), 3),
    ],
    ids=str,
)
def test_hosts_are_read_off_the_links(topology, inner):
    assert ranks_per_host(topology, "it") == inner
    given, read = HierarchicalTree(inner), HierarchicalTree()
    assert synthesize(topology, "all_reduce", given) == synthesize(topology, "all_reduce", read)


def test_hosts_of_one_rank_are_the_double_binary_tree():
    topology = topologies.ring(9)
    one = synthesize(topology, "all_reduce", HierarchicalTree(inner=1, pieces=3), chunks=2)
    other = synthesize(topology, "all_reduce", DoubleBinaryTree(pieces=3), chunks=2)
    assert one == other


def test_chains_say_how_large_hosts_are():
    topology = topologies.mi250(2)
    chain = tuple(int(x) for x in np.random.default_rng(0).permutation(16))
    given = HierarchicalTree(chains=(chain,))
    schedule = synthesize(topology, "all_reduce", given)
    assert schedule == synthesize(
        topology, "all_reduce", HierarchicalTree(inner=16, chains=(chain,))
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inner": 0}, "inner must be an integer of at least 1"),
        ({"pieces": 0}, "pieces must be an integer of at least 1"),
        ({"nbytes": 0}, "nbytes must be a finite number above 0"),
        ({"chains": ((0, 2),)}, r"orders the indices 0\.\.1"),
        ({"chains": ((0, 1), (0, 1, 2))}, r"orders the indices 0\.\.1"),
        ({"chains": ()}, "at least one chain"),
        ({"chains": ((),)}, "a chain orders"),
        ({"chains": "01"}, "chains must be a sequence"),
        ({"chains": (3,)}, "a chain must be a sequence"),
    ],
)
def test_what_is_no_tree_is_refused(fields, message):
    with pytest.raises(CollectiveError, match=message):
        HierarchicalTree(**fields)


def test_hosts_that_do_not_fit_are_refused():
    with pytest.raises(CollectiveError, match="hosts of 4 ranks, which does not divide 6"):
        synthesize(topologies.ring(6), "all_reduce", HierarchicalTree(4))
    with pytest.raises(CollectiveError, match="chains have 2 ranks, but hosts have 3"):
        synthesize(topologies.ring(6), "all_reduce", HierarchicalTree(inner=3, chains=((0, 1),)))
    with pytest.raises(TopologyError, match=r"hierarchical_tree needs .* symmetric dimensions"):
        synthesize(
            topologies.dragonfly(4, 5, bandwidth=(1e9, 1e9)), "all_reduce", HierarchicalTree()
        )
