"""Tight cuts: found where there are some, and both sides packed into whole trees."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings

from jaxcoll.bounds.throughput import optimum
from jaxcoll.synth.forestcoll import forest, tree_packing
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.shortcuts.tight_cuts import pack_across, tight_cut
from jaxcoll.topologies import fully_connected
from tests.synth.forestcoll.networks import random_switched
from tests.synth.forestcoll.shortcuts.test_balancing import two_rings


def tight_sides(n: int, capacity, trees) -> set[tuple[bool, ...]]:
    """Every side that arcs from the others enter just as often as there are trees, by trial."""
    found = set()
    for side in itertools.product((False, True), repeat=n):
        if 2 <= sum(side) < n:
            entering = sum(c for (u, v), c in capacity.items() if side[v] and not side[u])
            if entering == sum(t for t, x in zip(trees, side, strict=True) if not x):
                found.add(side)
    return found


@settings(max_examples=60)
@given(random_switched(max_ranks=7))
def test_a_cut_is_tight_and_its_trees_fit(topology):
    n, scaling = topology.num_ranks, optimum(topology).scaling
    capacity = remove_switches(topology, scaling).capacity()
    beyond = tight_cut(n, capacity, scaling.trees)
    known = tight_sides(n, capacity, scaling.trees)
    assert (beyond is None) == (not known)
    if beyond is None:
        return
    assert tuple(beyond.tolist()) in known
    trees = pack_across(n, capacity, scaling.trees, tree_packing.pack_trees)
    assert trees is not None
    total, load = [0] * n, dict.fromkeys(capacity, 0)
    for root, weight, vertex, parent in zip(
        trees.root.tolist(), trees.weight.tolist(), trees.vertex, trees.parent, strict=True
    ):
        total[root] += weight
        assert sorted(vertex.tolist()) == list(range(n))
        assert (vertex[0], parent[0]) == (root, -1)
        for i, (v, u) in enumerate(zip(vertex.tolist(), parent.tolist(), strict=True)):
            assert i == 0 or u in vertex[:i]
            if i:
                load[u, v] += weight
    assert tuple(total) == scaling.trees
    assert all(load[pair] <= capacity[pair] for pair in capacity)


def test_two_rings_fall_apart():
    topology = two_rings(40)
    scaling = optimum(topology).scaling
    capacity = remove_switches(topology, scaling).capacity()
    beyond = tight_cut(80, capacity, scaling.trees)
    assert beyond is not None
    assert np.flatnonzero(beyond).tolist() in ([*range(40)], [*range(40, 80)])
    assert forest(topology).check_load() == optimum(topology).inverse


def test_where_every_cut_has_room_there_is_none():
    scaling = optimum(fully_connected(4)).scaling
    capacity = remove_switches(fully_connected(4), scaling).capacity()
    roomy = {pair: 2 * amount for pair, amount in capacity.items()}
    assert tight_cut(4, roomy, scaling.trees) is None
