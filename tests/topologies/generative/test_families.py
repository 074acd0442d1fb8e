"""The rows of Tables A.2 and A.3, column by column, and the families that stand beside them.

Numbers are those of "Accelerating Collective Communication for Distributed Machine Learning"
(dissertation), Appendix A.8; (T_L, T_B) of breadth-first schedules are exact flows of ``bfb_cost``.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from jaxcoll.bounds.moore import bidirectional_moore_steps, moore_bound, moore_steps
from jaxcoll.errors import TopologyError
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies import generative as gen
from jaxcoll.topologies.generative.distance_regular_graphs import (
    TABLE_A2_SIZES,
    Field,
    affine_plane_minus_class,
    crown,
    distance_graph,
    doubled_odd_graph,
    generalized_hexagon,
    generalized_quadrangle,
    johnson,
    odd_graph,
    projective_plane,
    undirected_line_graph,
)
from jaxcoll.topologies.generative.tori import theorem_22_offset

# Table A.2: N, T_L, T_L*, T_L**.
TABLE_A2 = [
    (6, 2, 2, 2),
    (9, 2, 2, 2),
    (10, 3, 2, 2),
    (14, 3, 2, 2),
    (15, 3, 2, 2),
    (16, 4, 2, 2),
    (21, 3, 2, 3),
    (26, 3, 3, 3),
    (32, 4, 3, 3),
    (35, 3, 3, 3),
    (45, 4, 3, 3),
    (70, 7, 3, 4),
    (80, 4, 3, 4),
    (189, 6, 4, 5),
    (728, 6, 5, 6),
]


def is_bandwidth_optimal(digraph) -> bool:
    return bfb_cost(digraph).inverse_bandwidth == Fraction(digraph.size - 1, digraph.size)


@pytest.mark.parametrize(("n", "steps", "moore", "both_ways"), TABLE_A2)
def test_table_a2(n, steps, moore, both_ways):
    digraph = gen.distance_regular(4, n)
    assert (digraph.size, digraph.degree) == (n, 4)
    assert digraph.is_simple
    assert digraph.is_undirected
    assert bfb_cost(digraph).steps == digraph.diameter == steps
    assert moore_steps(n, 4) == moore
    assert bidirectional_moore_steps(n, 4) == both_ways
    assert is_bandwidth_optimal(digraph)
    if n < 100:
        assert nx.is_distance_regular(nx.Graph(digraph.to_networkx()))


def test_distance_regular_graphs_of_other_degrees():
    made = [
        projective_plane(4),
        affine_plane_minus_class(3),
        generalized_quadrangle(4),
        johnson(6, 3),
        odd_graph(3),
        doubled_odd_graph(3),
        crown(5),
        undirected_line_graph(odd_graph(3), "line graph"),
    ]
    for digraph in made:
        assert nx.is_distance_regular(nx.Graph(digraph.to_networkx())), digraph
        assert is_bandwidth_optimal(digraph), digraph
    assert [digraph.size for digraph in made] == [42, 18, 170, 20, 10, 20, 12, 15]
    cages = [(generalized_quadrangle(2), 8), (generalized_hexagon(2), 12), (projective_plane(2), 6)]
    assert all(nx.girth(nx.Graph(graph.to_networkx())) == girth for graph, girth in cages)


@pytest.mark.parametrize("q", [2, 3, 4, 5, 8, 9, 16, 25])
def test_fields(q):
    field = Field.of_order(q)
    pairs = itertools.product(range(q), repeat=2)
    assert all(field.add[x, y] == field.add[y, x] for x, y in pairs)
    assert (field.add[np.arange(q), field.negative] == 0).all()
    for x, y, z in itertools.product(range(q), repeat=3) if q < 10 else ():
        product = field.multiply[field.multiply[x, y], z]
        assert product == field.multiply[x, field.multiply[y, z]]
        left = field.multiply[x, field.add[y, z]]
        assert left == field.add[field.multiply[x, y], field.multiply[x, z]]
    assert (np.sort(field.multiply[1:], axis=1) == np.arange(q)).all()


# Table A.3. A row: digraph, degree, size, T_L of the best breadth-first schedule, and whether it is
# reverse-symmetric, bandwidth-optimal and Moore-optimal, with self-loops, with parallel arcs.
TABLE_A3 = [
    *[(gen.complete(m), m - 1, m, 1, True, True, True, False, False) for m in (2, 5, 9)],
    *[(gen.complete_bipartite(d), d, 2 * d, 2, True, True, True, False, False) for d in (2, 4, 7)],
    *[
        (gen.hamming(n, q), n * (q - 1), q**n, n, True, True, None, False, False)
        for n, q in ((2, 3), (3, 2), (2, 5), (4, 3))
    ],
    *[
        (gen.kautz(d, n), d, d**n * (d + 1), n + 1, True, n == 0, True, False, False)
        for d, n in ((2, 0), (2, 1), (2, 3), (3, 2), (4, 1))
    ],
    *[
        (gen.generalized_kautz(d, m), d, m, None, False, m == d + 1, None, m % (d + 1) != 0, False)
        for d, m in ((2, 7), (2, 10), (3, 50), (4, 23))
    ],
    (gen.generalized_kautz(4, 5), 4, 5, 1, True, True, True, False, False),
    *[
        (gen.circulant(m, offsets), 2 * len(offsets), m, None, True, True, None, False, False)
        for m, offsets in ((16, (3, 4)), (12, (2, 3)), (13, (1, 5)), (15, (1, 2, 3)))
    ],
    *[(gen.dense_circulant(d), d, d + 2, 2, True, True, True, False, False) for d in (2, 4, 5)],
    *[
        (gen.bidirectional_ring(d, m), d, m, m // 2, True, True, None, False, d > 2)
        for d, m in ((2, 3), (2, 8), (4, 5), (6, 7))
    ],
    *[
        (gen.unidirectional_ring(d, m), d, m, m - 1, True, True, None, False, d > 1)
        for d, m in ((1, 4), (2, 5), (3, 3))
    ],
    *[
        (gen.de_bruijn(d, n), d, d**n, n, True, False, True, True, False)
        for d, n in ((2, 3), (4, 1), (3, 2), (4, 4))
    ],
    (gen.diamond(), 2, 8, 3, False, None, True, False, False),
    # T_L of the bandwidth-optimal schedule is in test_searched.py; that of BFB is the diameter.
    (gen.modified_de_bruijn(2, 3), 2, 8, 3, True, None, None, False, False),
    (gen.modified_de_bruijn(2, 4), 2, 16, 4, False, None, None, False, False),
    (gen.modified_de_bruijn(3, 2), 3, 9, 3, False, None, None, False, False),
    (gen.modified_de_bruijn(4, 2), 4, 16, 3, False, None, None, False, False),
]


@pytest.mark.parametrize("row", TABLE_A3, ids=lambda row: row[0].name)
def test_table_a3(row):
    digraph, degree, size, steps, reverse, bandwidth, moore, loops, parallel = row
    assert (digraph.degree, digraph.size) == (degree, size)
    found = bfb_cost(digraph)
    assert steps in (None, found.steps)
    assert gen.is_reverse_symmetric(digraph) == reverse
    assert bandwidth in (None, is_bandwidth_optimal(digraph))
    assert moore in (None, found.steps == moore_steps(size, degree))
    assert bool(digraph.self_loops) == loops
    assert digraph.has_parallel_arcs == parallel


def test_de_bruijn_of_one_letter_counts_its_self_loops():
    # Table A.3 calls n <= 1 bandwidth-optimal; with self-loops in d, T_B of DBJ(4,1) is 1, not 3/4.
    assert bfb_cost(gen.de_bruijn(4, 1)).inverse_bandwidth == 1


def test_generalized_kautz_graphs_are_kautz_graphs_at_their_sizes():
    for d, n in ((2, 1), (2, 2), (3, 1)):
        general = gen.generalized_kautz(d, d**n * (d + 1)).to_networkx()
        assert nx.is_isomorphic(general, gen.kautz(d, n).to_networkx())


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
def test_theorem_21(degree):
    sizes = [*range(degree + 1, 60), 200, 341, 500]
    for m in sizes:
        digraph = gen.generalized_kautz(degree, m)
        assert m > moore_bound(degree, digraph.diameter - 2) if digraph.diameter > 1 else True
        assert digraph.diameter <= moore_steps(m, degree) + 1
        assert bool(digraph.self_loops) == (m % (degree + 1) != 0)


@pytest.mark.parametrize("n", [*range(7, 40), 97, 200, 500])
def test_theorem_22(n):
    m = theorem_22_offset(n)
    assert m == math.ceil((-1 + math.sqrt(2 * n - 1)) / 2)
    digraph = gen.least_diameter_circulant(n)
    assert digraph.diameter == m
    if n < 30:
        pairs = itertools.combinations(range(1, (n + 1) // 2), 2)
        connected = (pair for pair in pairs if math.gcd(n, *pair) == 1)
        assert m == min(gen.circulant(n, pair).diameter for pair in connected)
    assert is_bandwidth_optimal(digraph)


def test_more_degree_by_parallel_arcs():
    twice = gen.least_diameter_circulant(50, 8)
    assert (twice.degree, twice.diameter, twice.has_parallel_arcs) == (8, 5, True)
    assert is_bandwidth_optimal(twice)
    # The two offsets cannot have equally many arcs at degree 6, and T_B is not optimal there.
    assert bfb_cost(gen.least_diameter_circulant(50, 6)).inverse_bandwidth == Fraction(51, 50)


def test_conjecture_1_is_false():
    assert bfb_cost(gen.circulant(15, (1, 4, 5))).inverse_bandwidth == 1


@pytest.mark.parametrize("n", [5, 7, 8, 11, 12, 30])
def test_shifted_rings(n):
    digraph = gen.shifted_ring(n)
    assert digraph.degree == 4
    assert is_bandwidth_optimal(digraph)
    steps = sorted(
        {(int(h) - int(t)) % n for t, h in zip(digraph.tails, digraph.heads, strict=True)}
    )
    assert len(steps) == 4
    assert all(math.gcd(step, n) == 1 for step in steps)


@pytest.mark.parametrize("sides", [(3, 4), (2, 3, 4), (5, 5), (2, 2, 2), (3, 3, 5)])
def test_tori(sides):
    digraph = gen.torus(*sides)
    assert digraph.diameter == sum(side // 2 for side in sides)
    assert digraph.degree == sum(1 if side == 2 else 2 for side in sides)
    assert is_bandwidth_optimal(digraph)
    expected = nx.grid_graph(sides[::-1], periodic=True)
    assert nx.is_isomorphic(nx.Graph(digraph.to_networkx()), expected)


# Diameters of the plain torus of these sides, and of the twisted one (Camara et al., Table 1:
# a x 2a: a; k x k x 2k: 3k/2; k x 2k x 2k: 3k/2).
@pytest.mark.parametrize(
    ("sides", "diameter"),
    [
        ((2, 4), 2),
        ((4, 8), 4),
        ((6, 12), 6),
        ((4, 4, 8), 6),
        ((4, 8, 8), 6),
        ((8, 8, 16), 12),
        ((6, 12, 12), 9),
    ],
)
def test_twisted_tori(sides, diameter):
    digraph = gen.twisted_torus(*sides)
    assert digraph.size == math.prod(sides)
    assert digraph.degree == 2 * len(sides)
    assert digraph.diameter == diameter < sum(side // 2 for side in sides)
    assert digraph.is_undirected
    assert digraph.vertex_transitive
    assert is_bandwidth_optimal(digraph)


@pytest.mark.parametrize("dimensions", [3, 4, 5, 6])
def test_twisted_hypercubes(dimensions):
    digraph = gen.twisted_hypercube(dimensions)
    assert digraph.size == 2**dimensions
    assert digraph.diameter == dimensions - 1
    assert digraph.is_undirected
    assert digraph.is_simple
    # Appendix A.1.1 has it for 3 dimensions; it holds there only.
    assert is_bandwidth_optimal(digraph) == (dimensions == 3)


@pytest.mark.parametrize("n", [2, 3, 7, 8, 31, 64])
def test_double_binary_trees(n):
    digraph = gen.double_binary_tree(n)
    assert digraph.num_arcs - digraph.self_loops == 4 * (n - 1)
    assert digraph.is_undirected
    assert digraph.diameter <= 2 * math.ceil(math.log2(n)) + 1


@pytest.mark.parametrize("name", gen.FAMILIES)
def test_registry_finds_members_of_the_size_and_degree(name):
    family, found = gen.family(name), 0
    for size, degree in itertools.product([*range(2, 36), 42, 64, 80, 126], range(1, 9)):
        for member in family.members(size, degree)[:2]:
            digraph = member.build()
            assert (digraph.size, digraph.degree) == (size, degree), member
            found += 1
    assert found
    assert {member.family.name for member in gen.members(8, 2)} >= {"Diamond", "de Bruijn"}


BAD = [
    (lambda: gen.circulant(12, (2, 4)), "share the divisor 2.*nearest larger n.* is 13"),
    (lambda: gen.circulant(10, (5, 1)), "offset 5 is half of n = 10.*take 4 or 6"),
    (lambda: gen.circulant(10, (10,)), "at most 9"),
    (lambda: gen.circulant(10, ()), "one offset or more"),
    (lambda: gen.generalized_kautz(1, 3), "take 2 vertices, or degree 2 on 3"),
    (lambda: gen.circulant(10, "12"), "must be a sequence"),  # type: ignore[arg-type]
    (lambda: gen.directed_circulant(6, (2, 4)), "share the divisor 2"),
    (lambda: gen.least_diameter_circulant(6), "n above 6, got 6; the nearest is 7"),
    (lambda: gen.least_diameter_circulant(20, 5), "even degree of at least 4, got 5.*4 or 6"),
    (lambda: gen.least_diameter_circulant(20, 2), "even degree of at least 4, got 2.*is 4"),
    (lambda: gen.bidirectional_ring(3, 5), "even degree of at least 2, got 3.*2 or 4"),
    (lambda: gen.bidirectional_ring(2, 2), "n must be an integer of at least 3"),
    (lambda: gen.shifted_ring(12, 3), "nearest shift that visits all is 5"),
    (lambda: gen.shifted_ring(6), "take 5 or 7"),
    (lambda: gen.generalized_kautz(4, 4), "at least 5 vertices.*m = 5, or degree 3"),
    (lambda: gen.generalized_kautz(2, 2**23), "at most 4194304"),
    (lambda: gen.kautz(2, 10**9), "at most 4194304"),
    (lambda: gen.de_bruijn(2, 10**9), "at most 4194304"),
    (lambda: gen.hypercube(10**9), "at most 4194304"),
    (lambda: gen.line_graph(gen.complete(3), 10**9), "at most 4194304"),
    (lambda: gen.de_bruijn(1, 3), "degree must be an integer of at least 2"),
    (lambda: gen.modified_de_bruijn(2, 5), r"the nearest is \(2, 4\)"),
    (lambda: gen.distance_regular(4, 33), r"nearest is DistReg\(4,32\)"),
    (lambda: gen.distance_regular(3, 10), r"no distance-regular graph of degree 3 on 10"),
    (lambda: gen.twisted_torus(4, 4), "the nearest is 2x4"),
    (lambda: gen.twisted_torus(4, 8, 12), "the nearest is 4x8x8"),
    (lambda: gen.twisted_torus(8, 4), "the nearest is 4x8"),
    (lambda: gen.torus(4, 1), "at least 2"),
    (lambda: gen.twisted_hypercube(2), "at least 3"),
    (lambda: gen.double_binary_tree(1), "at least 2"),
    (lambda: projective_plane(6), "nearest orders are 5 and 7"),
    (lambda: generalized_hexagon(4), "the largest is GH"),
    (lambda: johnson(4, 4), "k from 1 to 3"),
    (lambda: undirected_line_graph(gen.kautz(2, 1), "x"), "take line_graph"),
    (lambda: distance_graph(gen.generalized_kautz(2, 7), 2, "x"), "must be undirected"),
    (lambda: gen.cartesian_product(), "one factor or more"),
    (lambda: gen.line_graph("K4"), "must be a Digraph"),  # type: ignore[arg-type]
    (lambda: gen.family("torsu"), "must be one of complete"),
    (lambda: gen.family("Kautz").member(10, 2), "nearest size is 12"),
    (lambda: gen.family("Diamond").member(4_000_000, 2), "none within 4096 vertices of that"),
    (lambda: gen.family("circulant").member(20, 3), "nearest degree is 4"),
    (lambda: gen.find_reversal(gen.generalized_kautz(2, 7)), r"K\(2,1\) of 6 vertices"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_names_the_nearest_possible(make, message):
    with pytest.raises(TopologyError, match=message):
        make()


def test_table_a2_is_complete():
    assert [n for n, *_ in TABLE_A2] == list(TABLE_A2_SIZES)
