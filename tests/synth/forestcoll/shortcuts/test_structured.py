"""Forests of known forms of networks: optimal, low, fast at 1024 ranks; others are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from jaxcoll.bounds.throughput import check_balanced, fixed_k, optimum
from jaxcoll.paths import hop_distances
from jaxcoll.synth.forestcoll import shortcuts
from jaxcoll.synth.forestcoll.shortcuts.grid_trees import moved_trees
from jaxcoll.synth.forestcoll.shortcuts.rail_trees import find_hosts, inner_scaling
from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.topologies import (
    dgx_a100,
    dgx_h100,
    hypercube,
    mesh,
    mi250,
    nvswitch_hosts,
    ring,
    switch,
    torus,
)
from jaxcoll.topology import Topology
from tests import strategies
from tests.synth.forestcoll.test_forest import count

MOVED = "moved from rank 0"
RAILS = "hosts on rails"


def rails(hosts: int, places: int, inside: float, network: float) -> Topology:
    """Hosts around a switch each, and a switch for all ranks of one place: nothing joins rails."""
    n = hosts * places
    rank = np.arange(n)
    hubs = [n + rank // places, n + hosts + rank % places]
    src, dst = np.concatenate([rank, rank]), np.concatenate(hubs)
    bandwidth = np.repeat([inside, network], n)
    return Topology(
        n,
        np.concatenate([src, dst]),
        np.concatenate([dst, src]),
        np.zeros(4 * n),
        np.tile(bandwidth, 2),
        num_vertices=n + hosts + places,
        name=f"rails {hosts}x{places}",
    )


@pytest.mark.parametrize(
    "topology",
    [
        *(torus(*sides) for sides in ((4, 4), (3, 5), (4, 2, 3), (1, 6), (2, 2), (5,), (4, 4, 4))),
        *(hypercube(d) for d in (1, 3, 5)),
        torus(4, 4, bandwidth=(50e9, 75e9)),
        torus(8, 8),
    ],
    ids=lambda t: t.name,
)
def test_closed_boxes_get_trees_as_high_as_the_network_is_wide(topology):
    flow = forest(topology)
    assert flow.certificate["trees"] == MOVED
    assert flow.height == hop_distances(topology).max()
    assert count(flow) == optimum(topology).inverse


@settings(max_examples=60)
@given(strategies.grids(max_ranks=30))
def test_all_grids_are_optimal(topology):
    if topology.num_ranks > 1:
        flow = forest(topology)
        assert count(flow) == optimum(topology).inverse
        closed = all(
            w or s <= 2 for s, w in zip(topology.grid.shape, topology.grid.wrap, strict=True)
        )  # type: ignore[union-attr]
        assert closed or flow.certificate["trees"] == "packed"


@pytest.mark.parametrize(
    ("topology", "height"),
    [
        *((dgx_a100(hosts), 2) for hosts in (3, 4, 6)),
        *((dgx_h100(hosts), 2) for hosts in (5, 6)),
        (mi250(4), 9),
        (mi250(4, ranks=8), 6),
        (switch(7), 1),
        (rails(5, 3, 8e9, 2e9), 2),
        (rails(2, 4, 90e9, 1e9), 2),
        (nvswitch_hosts((3,) * 5, inside=9e9, network=1e9), 2),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_boxes_are_entered_by_rails(topology, height):
    flow = forest(topology)
    assert flow.certificate["trees"] == RAILS
    assert flow.height <= height
    assert count(flow) == optimum(topology).inverse


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fixed_numbers_of_trees_too(k):
    for topology, way in ((mi250(4, ranks=8), RAILS), (torus(4, 4), MOVED)):
        flow = forest(topology, k=k)
        assert flow.certificate["trees"] == way
        assert count(flow) == fixed_k(topology, k).inverse


@pytest.mark.parametrize(
    ("topology", "height"),
    [
        (dgx_a100(128), 2),
        (mi250(64), 6),
        pytest.param(dgx_h100(128), 2, marks=pytest.mark.slow),
        pytest.param(torus(32, 32), 32, marks=pytest.mark.slow),
        pytest.param(torus(16, 16, 4), 18, marks=pytest.mark.slow),
        pytest.param(hypercube(10), 10, marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
@pytest.mark.in_every_run("A100 x128-2")
def test_1024_ranks(topology, height):
    flow = forest(topology)
    assert flow.height <= height
    assert flow.check_load() == optimum(topology).inverse


@pytest.mark.parametrize(
    "topology",
    [
        ring(4, bidirectional=False),
        mesh(3, 3),
        nvswitch_hosts((4, 3), inside=9e9, network=1e9),
        nvswitch_hosts((4, 4), inside=(9e9, 7e9), network=1e9),
        nvswitch_hosts((2, 2), inside=1e9, network=9e9),
        dgx_a100(2),
    ],
    ids=lambda t: t.name,
)
def test_networks_of_other_forms_are_packed(topology):
    flow = forest(topology)
    assert flow.certificate["trees"] == "packed"
    assert count(flow) == optimum(topology).inverse


def test_boxes_are_found():
    topology = rails(3, 2, 8e9, 2e9)
    scaling = optimum(topology).scaling
    ways = list(find_hosts(topology, scaling))
    tables = sorted(hosts.ranks.tolist() for hosts in ways)
    # Three hosts of two, or two rails of three.
    assert tables == [[[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]]]
    hosts = next(b for b in ways if b.ranks.shape == (3, 2))
    inner = inner_scaling(hosts, scaling)
    assert inner is not None
    assert inner.trees == (3 * scaling.k,) * 2


def test_hosts_that_are_unbalanced_alone_are_not_split(monkeypatch):
    """Two ranks at a switch, and both at a spine: one lets in more from there, the other less."""
    links = []
    for first, second, inside in ((0, 1, 4), (2, 3, 5)):
        links += [(first, inside, 4), (inside, first, 5), (first, 6, 5), (6, first, 4)]
        links += [(second, inside, 5), (inside, second, 4), (second, 6, 4), (6, second, 5)]
    columns = np.asarray(links).T
    topology = Topology(4, columns[0], columns[1], np.zeros(16), 1e9 * columns[2], num_vertices=7)
    split = []

    def noted(part, scaling):
        split.append(part.num_ranks)
        check_balanced(part)  # Theorem 26 is about no other networks
        return paired_switches(part, scaling)

    paired_switches = shortcuts.paired_switches
    monkeypatch.setattr(shortcuts, "paired_switches", noted)
    flow = forest(topology)
    assert split == [4]
    assert count(flow) == optimum(topology).inverse


def test_uneven_shards_are_packed():
    topology = torus(3, 3)
    weights = [2] + [1] * 8
    assert moved_trees(topology, optimum(topology, weights).scaling) is None
    assert count(forest(topology, weights)) == optimum(topology, weights).inverse


def test_a_torus_whose_numbering_is_not_its_grid_is_not_taken_for_one():
    topology = torus(3, 3)
    scrambled = topology.relabel(np.random.default_rng(0).permutation(9))
    flow = forest(scrambled)
    assert flow.certificate["trees"] == "packed"
    assert count(flow) == optimum(topology).inverse
