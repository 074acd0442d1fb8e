"""Balanced trees: sound, or none and the exact way follows, on degraded and random networks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import optimum
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.routed_trees import as_flow
from jaxcoll.synth.forestcoll.shortcuts import balanced_packing, balancing, packed
from jaxcoll.synth.forestcoll.shortcuts.alternating_paths import Arcs
from jaxcoll.synth.forestcoll.shortcuts.balancing import Packed, arcs_of, balanced_trees
from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topology import Topology
from tests.synth.forestcoll.networks import random_switched


def without(topology: Topology, *pairs: tuple[int, int]) -> Topology:
    """The links as a plain list, those of some pairs of ranks left out both ways."""
    gone = {*pairs, *((v, u) for u, v in pairs)}
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    keep = [e for e, pair in enumerate(ends) if pair not in gone]
    return Topology(
        topology.num_ranks,
        topology.src[keep],
        topology.dst[keep],
        topology.alpha[keep],
        [topology.exact_bandwidth[e] for e in keep],  # type: ignore[arg-type]
        name=f"{topology.name} as a list",
    )


def columns(topology: Topology) -> tuple[Arcs, tuple[int, ...]]:
    scaling = optimum(topology).scaling
    pairs = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    return arcs_of(topology.num_ranks, dict(zip(pairs, scaling.capacity, strict=True))), (
        scaling.trees
    )


def count(arcs: Arcs, trees: tuple[int, ...], packed: Packed) -> None:
    """Follow every rank of every tree to its root, and count what each arc carries."""
    load, total = np.zeros(len(arcs.tail), np.int64), np.zeros(len(trees), np.int64)
    for root, weight, arc in zip(packed.root, packed.weight, packed.arc, strict=True):
        total[root] += weight
        for v in range(len(trees)):
            u, steps = v, 0
            while u != root:
                assert arcs.head[arc[u]] == u
                u, steps = arcs.tail[arc[u]], steps + 1
                assert steps < len(trees)
            if v != root:
                load[arc[v]] += weight
    assert tuple(total) == trees
    assert (load <= arcs.capacity).all()


def two_rings(ranks: int) -> Topology:
    """Two rings that two pairs of links join: any trees cross the cut between them twice."""
    around = [(r + u, r + (u + 1) % ranks, 2) for r in (0, ranks) for u in range(ranks)]
    across = [(u, u + ranks, 1) for u in (0, ranks // 2)]
    src, dst, bandwidth = zip(*around, *across, strict=True)
    both = np.asarray(src + dst), np.asarray(dst + src)
    return Topology(2 * ranks, *both, np.zeros(2 * len(src)), np.asarray(bandwidth + bandwidth))


@pytest.mark.parametrize(
    "topology",
    [
        without(hypercube(5)),
        without(torus(4, 6), (0, 1)),
        without(torus(3, 3, 3), (0, 1), (5, 8)),
    ],
    ids=lambda t: t.name,
)
def test_trees_are_balanced(topology):
    arcs, trees = columns(topology)
    packed = balanced_trees(arcs, trees)
    assert packed is not None
    count(arcs, trees, packed)


@given(
    random_switched(max_ranks=12),
    st.lists(st.integers(0, 3), min_size=12, max_size=12).filter(lambda some: some[0]),
    st.sampled_from((0, 1, 4, 32)),
    st.sampled_from((1, 2, 16)),
)
def test_trees_are_sound_or_none_wherever_the_search_ends(topology, weights, steps, parts):
    n = topology.num_ranks
    scaling = optimum(topology, weights[:n]).scaling
    arcs = arcs_of(n, remove_switches(topology, scaling).capacity())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balancing, "_STEPS", steps)
        patch.setattr(balancing, "_PARTS", parts)
        packed = balanced_trees(arcs, scaling.trees)
    if packed is not None:
        count(arcs, scaling.trees, packed)


@given(random_switched(max_ranks=12))
def test_forests_are_optimal_whether_balanced_or_not(topology):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balanced_packing, "_SEVERAL", 0)
        scaling = optimum(topology).scaling
        flow = as_flow(topology, scaling, packed(topology, scaling))
    assert flow.check_load() == optimum(topology).inverse


def test_a_search_without_steps_left_gives_up(monkeypatch):
    arcs, trees = columns(without(hypercube(5)))
    monkeypatch.setattr(balancing, "_STEPS", 0)
    assert balanced_trees(arcs, trees) is None


def test_a_search_without_rows_left_gives_up(monkeypatch):
    arcs, trees = columns(without(hypercube(5)))
    monkeypatch.setattr(balancing, "_PARTS", 1)
    assert balanced_trees(arcs, trees) is None


def test_trees_across_a_tight_cut_are_packed_exactly_instead():
    topology = two_rings(33)
    assert balanced_trees(*columns(topology)) is None
    flow = forest(topology)
    assert flow.check_load() == optimum(topology).inverse == Fraction(33, 2)


def test_sums_beyond_64_bits_are_left_to_the_exact_way():
    arcs, trees = columns(torus(3, 3))
    many = arcs._replace(capacity=arcs.capacity * 2**55)
    assert balanced_trees(many, tuple(t * 2**55 for t in trees)) is None


@pytest.mark.parametrize(
    ("topology", "height"),
    [(without(hypercube(7)), 7), (without(torus(8, 9), (0, 1)), 8)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_forests_of_lists_of_links(topology, height):
    flow = forest(topology)
    assert flow.check_load() == optimum(topology).inverse
    assert flow.height == height
