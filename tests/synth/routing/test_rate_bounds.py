"""Bounds of the all-to-all rate without a linear program, against the program and by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.errors import TopologyError
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.synth.routing.shortest_flow import _loads, kautz_flow_bounds, shortest_flow_bounds
from jaxcoll.topologies import generative as gen
from jaxcoll.topologies.generative import Digraph

MADE = [
    gen.complete(5),
    gen.complete_bipartite(4),
    gen.line_graph(gen.complete_bipartite(3)),
    gen.torus(4, 4),
    gen.torus(3, 5),
    gen.circulant(16, (3, 4)),
    gen.line_graph(gen.circulant(12, (2, 3))),
    gen.diamond(),
    gen.de_bruijn(2, 4),
    gen.generalized_kautz(3, 23),
    gen.unidirectional_ring(2, 9),
    gen.line_graph(gen.bidirectional_ring(2, 9)),
    gen.cartesian_product(gen.unidirectional_ring(1, 4), gen.unidirectional_ring(1, 5)),
    gen.dihedral(8, [(0, 1), (1, 0), (3, 1), (6, 0)]),
    gen.double_binary_tree(12),
]


@pytest.mark.parametrize("digraph", MADE, ids=lambda digraph: digraph.name)
def test_bounds_hold_for_the_rate_of_the_linear_program(digraph: Digraph):
    bounds = shortest_flow_bounds(digraph)
    rate = digraph_flow(digraph.size, digraph.tails, digraph.heads)
    assert bounds.lower <= rate.upper
    assert bounds.upper >= rate.lower
    assert bounds.gap < 0.5


@pytest.mark.parametrize(
    ("digraph", "rate"),
    [
        (gen.torus(4, 4), Fraction(1, 8)),
        (gen.complete_bipartite(4), Fraction(2, 5)),
        (gen.torus(32, 32), Fraction(1, 4096)),
        (gen.unidirectional_ring(1, 9), Fraction(1, 36)),
        (gen.hypercube(5), Fraction(1, 16)),
    ],
)
def test_bounds_meet_where_links_are_of_one_orbit(digraph: Digraph, rate: Fraction):
    bounds = shortest_flow_bounds(digraph)
    assert bounds.lower <= rate <= bounds.upper
    assert bounds.gap < 1e-6
    assert bounds.is_exact or digraph.size > 100  # where paths are so many that units are rounded


@pytest.mark.parametrize(
    ("digraph", "gap"),
    [
        (gen.line_graph(gen.bidirectional_ring(2, 700)), 1e-3),
        (gen.circulant(1401, (1, 3)), 1.0),
    ],
)
def test_long_paths_do_not_vanish(digraph: Digraph, gap: float):
    """Products of the shares of hundreds of links are below the least float."""
    bounds = shortest_flow_bounds(digraph)
    assert 0 < bounds.lower <= bounds.upper
    assert bounds.gap < gap


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(3, 60))
@pytest.mark.slow
def test_kautz_bounds_hold_for_the_rate_of_the_linear_program(degree: int, m: int):
    m = max(m, degree + 1)
    digraph = gen.generalized_kautz(degree, m)
    bounds = kautz_flow_bounds(degree, m)
    total = int(digraph.distances().sum())
    assert bounds.upper == Fraction(digraph.num_arcs - digraph.self_loops, total)
    rate = digraph_flow(m, digraph.tails, digraph.heads)
    assert bounds.lower <= rate.upper
    assert bounds.gap < 1


@settings(max_examples=60)
@given(st.integers(2, 4), st.integers(3, 40), st.integers(1, 6))
def test_kautz_loads_are_those_of_walks_followed_one_by_one(degree: int, m: int, first: int):
    m = max(m, degree + 1)
    longest = next(k for k in range(1, 12) if degree**k >= m)
    first, units = min(first, longest), degree**longest // m
    load, total = _loads(degree, m, first, longest, units)
    walked, lengths = _walked(degree, m, first, longest, units)
    assert total == lengths
    assert (load == walked).all()


def _walked(degree: int, m: int, first: int, longest: int, units: int):
    """Loads of arcs and lengths of walks of ``first`` or more arcs to ranks not reached before.

    Of several walks to a rank those of the least offsets are taken, from ranks of the upper half
    those of the largest.
    """
    load, lengths = np.zeros(m * degree, np.int64), 0
    for x in range(m):
        reached, walks = {x}, [(0, ())]
        for k in range(1, longest + 1):
            start = (-degree) ** (k - 1) * x
            walks = [
                (-degree * offset - a, (*arcs, (degree * (start + offset) + a - 1) % (m * degree)))
                for offset, arcs in walks
                for a in range(1, degree + 1)
            ]
            if k < first:
                continue
            ends: dict[int, list] = {}
            for offset, arcs in sorted(walks, reverse=x >= (m + 1) // 2):
                end = (-degree * start + offset) % m
                if end not in reached:
                    ends.setdefault(end, []).append(arcs)
            copies = units if k == longest else 1
            for found in ends.values():
                assert len(found) >= copies
                for arcs in found[:copies]:
                    np.add.at(load, list(arcs), units // copies)
                lengths += k
            reached |= set(ends)
    return load, lengths


def test_sizes_out_of_range_are_refused():
    with pytest.raises(TopologyError, match="5 to"):
        kautz_flow_bounds(4, 4)
    with pytest.raises(TopologyError, match="degree"):
        kautz_flow_bounds(1, 4)
    with pytest.raises(TopologyError, match="digraph"):
        shortest_flow_bounds(None)  # type: ignore[arg-type]
