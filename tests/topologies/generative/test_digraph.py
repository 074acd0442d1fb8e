"""Digraphs, those made of others, and isomorphisms to the transpose, against networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.errors import TopologyError
from jaxcoll.topologies import generative as gen
from jaxcoll.topologies.generative import Digraph
from jaxcoll.topologies.generative.operations import multiply_arcs


@st.composite
def digraphs(draw: st.DrawFn, max_size: int = 7, max_degree: int = 3) -> Digraph:
    """A random connected digraph, a circle and permutations: self-loops, parallel arcs and all."""
    size = draw(st.integers(2, max_size))
    degree = draw(st.integers(1, max_degree))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    order = rng.permutation(size)
    images = [order[(np.argsort(order) + 1) % size]]
    images += [rng.permutation(size) for _ in range(degree - 1)]
    return Digraph(size, degree, np.tile(np.arange(size), degree), np.concatenate(images))


@given(digraphs())
def test_distances_and_facts(digraph):
    graph = digraph.to_networkx()
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    expected = [[lengths[u][v] for v in range(digraph.size)] for u in range(digraph.size)]
    assert digraph.distances().tolist() == expected
    assert digraph.diameter == max(map(max, expected))
    assert digraph.self_loops == nx.number_of_selfloops(graph)
    assert digraph.has_parallel_arcs == (len(set(graph.edges())) < digraph.num_arcs)
    assert digraph.is_undirected == (sorted(graph.edges()) == sorted(graph.reverse().edges()))


@given(digraphs())
def test_topology_has_the_arcs_that_are_no_self_loops(digraph):
    topology = digraph.topology(1e-6, 25e9)
    assert topology.src.tolist() == digraph.tails[digraph.links].tolist()
    assert topology.dst.tolist() == digraph.heads[digraph.links].tolist()
    assert topology.num_links == digraph.num_arcs - digraph.self_loops


@given(digraphs(max_size=6))
def test_line_graph(digraph):
    ours = gen.line_graph(digraph).to_networkx()
    arcs = list(zip(digraph.tails.tolist(), digraph.heads.tolist(), strict=True))
    expected = [(a, b) for a, (_, v) in enumerate(arcs) for b, (u, _) in enumerate(arcs) if u == v]
    assert sorted(ours.edges()) == expected


@given(digraphs(max_size=5), digraphs(max_size=5))
def test_product(first, second):
    ours = gen.cartesian_product(first, second)
    expected = [
        (u * second.size + c, v * second.size + c)
        for u, v in first.to_networkx().edges()
        for c in range(second.size)
    ] + [
        (c * second.size + u, c * second.size + v)
        for u, v in second.to_networkx().edges()
        for c in range(first.size)
    ]
    assert sorted(ours.to_networkx().edges()) == sorted(expected)
    assert ours.diameter == first.diameter + second.diameter


@given(digraphs(max_size=5), st.integers(1, 3))
def test_degree_expansion(digraph, copies):
    if digraph.self_loops:
        with pytest.raises(TopologyError, match="without self-loops"):
            gen.degree_expansion(digraph, copies)
        return
    ours = gen.degree_expansion(digraph, copies)
    expected = [
        (u * copies + i, v * copies + j)
        for u, v in digraph.to_networkx().edges()
        for i in range(copies)
        for j in range(copies)
    ]
    assert sorted(ours.to_networkx().edges()) == sorted(expected)


@settings(max_examples=60)
@given(digraphs(max_size=6))
def test_reverse_symmetry_is_what_networkx_finds(digraph):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(digraph.size))
    for u, v in digraph.to_networkx().edges():
        count = graph[u][v]["arcs"] + 1 if graph.has_edge(u, v) else 1
        graph.add_edge(u, v, arcs=count)
    match = nx.algorithms.isomorphism.categorical_edge_match("arcs", 1)
    expected = nx.is_isomorphic(graph, graph.reverse(), edge_match=match)
    assert gen.is_reverse_symmetric(digraph) == expected
    if not expected:
        with pytest.raises(TopologyError, match="not isomorphic to its transpose"):
            gen.find_reversal(digraph)
        return
    image = gen.find_reversal(digraph)
    moved = sorted(zip(image[digraph.heads], image[digraph.tails], strict=True))
    assert moved == sorted(zip(digraph.tails, digraph.heads, strict=True))


SYMMETRIC = [
    gen.unidirectional_ring(2, 4),
    gen.de_bruijn(3, 2),
    gen.kautz(2, 2),
    gen.dense_circulant(3),
    gen.hamming(2, 3),
]


@pytest.mark.parametrize("base", SYMMETRIC, ids=lambda digraph: digraph.name)
def test_operations_keep_what_is_known_of_symmetry(base):
    made = [
        gen.line_graph(base, 2),
        gen.cartesian_product(base, gen.unidirectional_ring(1, 3)),
        gen.cartesian_power(base, 2),
        gen.bidirectional(base),
        multiply_arcs(base, 2),
        base.transpose(),
    ]
    if not base.self_loops:
        made.append(gen.degree_expansion(base, 2))
    # The constructor refuses a reversal or generator that is none, so being there is enough.
    assert all(digraph.reversal is not None for digraph in made)
    assert all(digraph.generators for digraph in made)
    if base.vertex_transitive:
        assert all(digraph.vertex_transitive for digraph in made[1:])


def test_names_of_line_graphs_count():
    digraph = gen.line_graph(gen.line_graph(gen.circulant(16, {3, 4})))
    assert digraph.name == "L^2(C(16,{3,4}))"
    assert gen.line_graph(digraph, 2).name == "L^4(C(16,{3,4}))"
    ring = gen.unidirectional_ring(1, 3)
    product = gen.cartesian_product(gen.line_graph(ring), gen.line_graph(gen.complete(3)))
    assert product.name == "L(UniRing(1,3)) x L(K3)"
    assert gen.line_graph(product).name == "L(L(UniRing(1,3)) x L(K3))"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, [0, 1, 2], [1, 2]), "one value per arc, got 3 and 2"),
        ((3, 1, [0, 1, 1], [1, 2, 0]), "1 arcs out of it, vertex 1 has 2"),
        ((3, 1, [0, 1, 2], [1, 1, 0]), "1 arcs into it, vertex 1 has 2"),
        ((4, 1, [0, 1, 2, 3], [1, 0, 3, 2]), "2 strongly connected parts"),
        ((3, 1, [0, 1, 3], [1, 2, 0]), "vertices 0..2, got 0..3"),
        ((1, 1, [0], [0]), "size must be an integer of at least 2"),
        ((3, 0, [], []), "degree must be an integer of at least 1"),
        ((3, 1, [0.0, 1.0, 2.0], [1, 2, 0]), "one column of vertex numbers"),
        ((2**23, 1, [0], [0]), "at most 4194304"),
    ],
)
def test_bad_digraphs(arguments, message):
    size, degree, tails, heads = arguments
    with pytest.raises(TopologyError, match=message):
        Digraph(size, degree, np.asarray(tails), np.asarray(heads))


def test_bad_symmetries():
    ring = gen.unidirectional_ring(1, 4)
    columns = (4, 1, ring.tails, ring.heads)
    with pytest.raises(TopologyError, match="onto themselves"):
        Digraph(*columns, generators=((1, 0, 2, 3),))
    with pytest.raises(TopologyError, match="must map every arc"):
        Digraph(*columns, reversal=(0, 1, 2, 3))
    with pytest.raises(TopologyError, match="permutation"):
        Digraph(*columns, reversal=(0, 1, 2, 2))


def test_search_goes_back_on_wrong_choices():
    """Colours do not tell a vertex-transitive digraph from its transpose; only trying does.

    The Cayley digraph of the Frobenius group of order 21 for these two generators is not
    reverse-symmetric. Joined completely with its transpose it is, by exchanging the two, which
    vertex 0 shows only after all images in its own half have failed.
    """

    def product(a, b):
        return (a[0] + 2 ** a[1] * b[0]) % 7, (a[1] + b[1]) % 3

    elements = [(i, j) for i in range(7) for j in range(3)]
    number = {element: v for v, element in enumerate(elements)}
    arcs = [(number[a], number[product(a, s)]) for a in elements for s in ((1, 1), (3, 1), (1, 0))]
    tails, heads = np.asarray(arcs).T
    half = Digraph(21, 3, tails, heads)
    assert not gen.is_reverse_symmetric(half)
    left, right = (end.ravel() for end in np.meshgrid(range(21), range(21, 42), indexing="ij"))
    both = Digraph(
        42,
        24,
        np.concatenate([tails, heads + 21, left, right]),
        np.concatenate([heads, tails + 21, right, left]),
    )
    assert both.reversal is None
    image = gen.find_reversal(both)
    assert (image[:21] >= 21).all()
