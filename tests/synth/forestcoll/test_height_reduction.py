"""Reparented trees: still trees, from the same roots, in the same capacity, and no higher."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from jaxcoll.bounds.throughput import optimum
from jaxcoll.synth.forestcoll import tree_packing
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.spanning import Trees, reparent
from jaxcoll.topologies import dgx1, mi250
from jaxcoll.topology import Topology
from tests.synth.forestcoll.networks import random_switched


def load_and_heights(trees: Trees) -> tuple[Counter, Counter, list[int]]:
    """Trees on each pair, trees of each root, and heights; every tree followed by hand."""
    load, roots, heights = Counter(), Counter(), []
    for i, weight in enumerate(trees.weight.tolist()):
        depth = {int(trees.root[i]): 0}
        assert (trees.vertex[i, 0], trees.parent[i, 0]) == (trees.root[i], -1)
        for u, v in zip(trees.parent[i, 1:].tolist(), trees.vertex[i, 1:].tolist(), strict=True):
            assert v not in depth
            depth[v] = depth[u] + 1  # its parent stands before it
            load[u, v] += weight
        assert len(depth) == trees.vertex.shape[1]
        roots[int(trees.root[i])] += weight
        heights.append(max(depth.values()))
    return load, roots, heights


def packed(topology: Topology, order: int) -> tuple[dict, np.ndarray, Trees]:
    scaling, n = optimum(topology).scaling, topology.num_ranks
    capacity = remove_switches(topology, scaling).capacity()
    spare = np.zeros((n, n), np.int64)
    for pair, amount in capacity.items():
        spare[pair] = amount
    neighbour = list(tree_packing._neighbours(spare))[order]
    asked = np.asarray(scaling.trees, np.int64)
    return capacity, spare, Trees(*tree_packing._pack(spare, np.arange(n), asked, neighbour))


def check(topology: Topology, order: int = 0) -> tuple[list[int], list[int]]:
    capacity, spare, trees = packed(topology, order)
    before, roots, high = load_and_heights(trees)
    assert all(before[pair] + spare[pair] == amount for pair, amount in capacity.items())
    kept = spare.copy()
    lower, heights = reparent(spare, trees)
    assert np.array_equal(spare, kept)
    load, same, low = load_and_heights(lower)
    assert low == heights.tolist()
    assert same == roots
    assert all(load[pair] <= capacity[pair] for pair in load)
    assert max(low) <= max(high)
    return high, low


@given(random_switched())
def test_trees_stay_trees_in_their_capacity(topology):
    check(topology)


@pytest.mark.parametrize("order", range(5))
def test_trees_of_dgx1_become_as_low_as_it_is_wide(order):
    high, low = check(dgx1(), order)
    assert max(high) > max(low) == 2


def test_trades_part_batches_of_like_trees():
    high, low = check(mi250(2))
    assert max(low) < max(high)
    assert len(low) > len(high)


def test_capacity_to_spare_is_used_up():
    # Two chains of four, and room for one more tree from the first rank to each of the last two.
    spare = np.zeros((4, 4), np.int64)
    spare[0, 2] = spare[0, 3] = 1
    chain = Trees(
        np.asarray([0]), np.asarray([2]), np.asarray([[0, 1, 2, 3]]), np.asarray([[-1, 0, 1, 2]])
    )
    lower, heights = reparent(spare, chain)
    load, roots, low = load_and_heights(lower)
    assert roots == {0: 2}
    assert low == heights.tolist() == [2, 2]
    assert load == {(0, 1): 2, (0, 2): 1, (0, 3): 1, (1, 2): 1, (2, 3): 1}
