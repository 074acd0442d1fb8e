"""Balanced trees: counted by hand on degraded and random networks."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll.synth.forestcoll.balancing import balanced_trees
from jaxcoll.synth.forestcoll.spanning import Arcs, Packed, arcs_of
from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.throughput import optimum
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topology import Topology


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


@pytest.mark.parametrize(
    ("topology", "height"),
    [(without(hypercube(7)), 7), (without(torus(8, 9), (0, 1)), 8)],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_forests_of_lists_of_links(topology, height):
    flow = forest(topology)
    assert flow.check_load() == optimum(topology).inverse
    assert flow.height == height
