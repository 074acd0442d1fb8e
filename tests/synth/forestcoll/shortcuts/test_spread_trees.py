"""Trees of one root, spread layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll import topologies
from jaxcoll.bounds.throughput import optimum
from jaxcoll.synth.forestcoll.shortcuts.spread_trees import spread_trees
from jaxcoll.synth.forestcoll.stages import forest


@pytest.mark.parametrize("root", [0, 7, 80])
def test_trees_of_a_dragonfly_are_low_and_as_fast_as_any(root):
    topology = topologies.dragonfly(9, 9)
    weights = [int(rank == root) for rank in range(topology.num_ranks)]
    flow = forest(topology, weights)
    assert flow.check_load() == optimum(topology, weights).inverse
    assert flow.height <= 6  # to a router, its group, another group, inside it, a third group


def test_no_pair_carries_more_than_its_capacity():
    n, each = 6, 2
    capacity = {(u, v): each for u in range(n) for v in range(n) if u != v}
    trees = spread_trees(n, capacity, 2, each * (n - 1))
    assert trees is not None
    over = trees.over()
    assert (over[:, 2] == -1).all()
    assert (np.delete(over, 2, axis=1) >= 0).all()
    used = np.zeros((n, n), int)
    for v in range(n):
        used[:, v] = np.bincount(over[over[:, v] >= 0, v], minlength=n)
    assert used.max() <= each


def test_where_a_rank_is_left_without_a_tree_there_are_none():
    line = {(u, u + 1): 1 for u in range(3)}
    assert spread_trees(4, line, 0, 2) is None
