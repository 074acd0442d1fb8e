"""Families of networks against closed forms and networkx's constructions of the same graphs."""

from __future__ import annotations

import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Topology
from jaxcoll.errors import TopologyError
from jaxcoll.paths import hop_distances
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, star, switch, torus
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH, grid
from tests import strategies
from tests.topologies.measures import orbit

SIDES = st.lists(st.integers(1, 5), min_size=1, max_size=4).filter(lambda s: math.prod(s) <= 120)
SIZES = [1, 2, 3, 4, 7, 12]


def simple(topology: Topology) -> nx.DiGraph:
    graph = topology.to_networkx()
    assert not graph.is_multigraph()
    return graph


def is_same_graph(topology: Topology, other: nx.Graph, number=None) -> bool:
    """Whether the links are those of a networkx graph whose nodes ``number`` turns into ranks."""
    edges = other.to_directed().edges
    expected = {(u, v) if number is None else (number(u), number(v)) for u, v in edges if u != v}
    return set(simple(topology).edges) == expected


def diameter(topology: Topology) -> int:
    return int(hop_distances(topology).max())


# ---------------------------------------------------------------------- grids


@given(SIDES)
def test_mesh(sides):
    topology = mesh(*sides)
    n = math.prod(sides)
    assert topology.num_ranks == n
    assert topology.num_links == sum(2 * (side - 1) * n // side for side in sides)
    assert diameter(topology) == sum(side - 1 for side in sides)
    shape = tuple(sides)
    reference = nx.grid_graph(dim=[range(side) for side in reversed(sides)])
    one = len(sides) == 1
    assert is_same_graph(
        topology, reference, lambda v: int(np.ravel_multi_index((v,) if one else v, shape))
    )


@given(SIDES)
def test_torus(sides):
    topology = torus(*sides)
    n = math.prod(sides)
    # A side of 2 has one link each way, a side of 1 none.
    assert topology.num_links == sum(min(side - 1, 2) * n for side in sides)
    assert diameter(topology) == sum(side // 2 for side in sides)
    degree = sum(min(side - 1, 2) for side in sides)
    graph = simple(topology)
    assert {d for _, d in graph.out_degree} | {d for _, d in graph.in_degree} == {degree}
    shape = tuple(sides)
    reference = nx.grid_graph(dim=[range(side) for side in reversed(sides)], periodic=True)
    one = len(sides) == 1
    assert is_same_graph(
        topology, reference, lambda v: int(np.ravel_multi_index((v,) if one else v, shape))
    )


@given(SIDES, st.data())
def test_grids_with_speeds_by_dimension(sides, data):
    wrap = [data.draw(st.booleans()) for _ in sides]
    alphas = [data.draw(st.sampled_from(strategies.ALPHAS)) for _ in sides]
    bandwidths = [
        data.draw(st.sampled_from(strategies.BANDWIDTHS + strategies.EXACT_BANDWIDTHS))
        for _ in sides
    ]
    topology = grid(sides, wrap, alpha=alphas, bandwidth=bandwidths)
    place = topology.grid.coordinates()  # type: ignore[union-attr]
    for link, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True)):
        (dimension,) = np.flatnonzero(place[u] != place[v])
        assert topology.alpha[link] == alphas[dimension]
        assert topology.exact_bandwidth[link] == bandwidths[dimension]
    as_arrays = grid(sides, np.asarray(wrap), alpha=np.asarray(alphas), bandwidth=bandwidths)  # type: ignore[arg-type]
    assert as_arrays == topology


@pytest.mark.parametrize("n", SIZES)
def test_ring(n):
    topology = ring(n)
    assert topology.num_links == (0 if n == 1 else 2 if n == 2 else 2 * n)
    assert diameter(topology) == n // 2
    assert is_same_graph(topology, nx.cycle_graph(n))
    assert topology == torus(n)


@pytest.mark.parametrize("n", SIZES)
def test_one_way_ring(n):
    topology = ring(n, bidirectional=False)
    assert topology.num_links == (0 if n == 1 else n)
    assert diameter(topology) == n - 1
    if n > 1:
        assert set(simple(topology).edges) == set(nx.cycle_graph(n, nx.DiGraph).edges)
    assert (topology == ring(n)) == (n <= 2)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4, 5])
def test_hypercube(dimensions):
    topology = hypercube(dimensions)
    assert topology.num_ranks == 2**dimensions
    assert topology.num_links == dimensions * 2**dimensions
    assert diameter(topology) == dimensions
    shape = (2,) * dimensions
    reference = nx.hypercube_graph(dimensions)
    number = (lambda v: int(np.ravel_multi_index(v, shape))) if dimensions > 1 else None
    assert is_same_graph(topology, reference, number)
    for u, v in zip(topology.src, topology.dst, strict=True):
        assert int(u ^ v).bit_count() == 1
    assert topology == torus(*shape) == mesh(*shape)


# ---------------------------------------------------------------------- complete, star, switch


@pytest.mark.parametrize("n", SIZES)
def test_fully_connected(n):
    topology = fully_connected(n)
    assert topology.num_links == n * (n - 1)
    assert diameter(topology) == (1 if n > 1 else 0)
    assert is_same_graph(topology, nx.complete_graph(n))


@pytest.mark.parametrize("n", SIZES)
def test_star(n):
    topology = star(n)
    assert topology.num_links == 2 * (n - 1)
    assert diameter(topology) == min(n - 1, 2)
    assert topology.is_direct
    assert is_same_graph(topology, nx.star_graph(n - 1))


@pytest.mark.parametrize("n", SIZES)
def test_switch(n):
    topology = switch(n, alpha=2e-6, bandwidth=3e9)
    assert topology.num_ranks == n
    assert topology.is_direct == (n == 1)
    assert topology.num_links == (2 * n if n > 1 else 0)
    assert diameter(topology) == (2 if n > 1 else 0)
    if n > 1:
        assert is_same_graph(topology, nx.star_graph(n), lambda v: n if v == 0 else v - 1)
        assert set(topology.alpha) == {2e-6}
        assert set(topology.bandwidth) == {3e9}


@pytest.mark.parametrize("n", [n for n in SIZES if n > 1])
def test_unwound_switch(n):
    for degree in range(1, n):
        topology = switch(n, degree=degree, alpha=2e-6, bandwidth=10e9)
        assert topology.is_direct
        expected = nx.circulant_graph(n, range(1, degree + 1), create_using=nx.DiGraph)
        forward = {(i, (i + j) % n) for i in range(n) for j in range(1, degree + 1)}
        assert set(simple(topology).edges) == forward <= set(expected.edges)
        assert diameter(topology) == math.ceil((n - 1) / degree)
        # No bandwidth is lost or won, exactly, and each link has the whole latency.
        assert set(topology.exact_bandwidth) == {Fraction(10 * 10**9, degree)}
        assert set(topology.alpha) == {2e-6}
    assert switch(n, degree=n - 1, bandwidth=n - 1) == fully_connected(n, bandwidth=1)
    assert switch(n, degree=1) == ring(n, bidirectional=False)


# ---------------------------------------------------------------------- all of them

MEMBERS = [
    *(ring(n) for n in SIZES),
    *(ring(n, bidirectional=False) for n in SIZES),
    *(fully_connected(n) for n in SIZES),
    *(star(n) for n in SIZES),
    *(switch(n) for n in SIZES),
    *(switch(n, degree=d) for n in (3, 7) for d in (1, 2)),
    *(hypercube(d) for d in (1, 2, 3, 4)),
    mesh(4, 4),
    mesh(2, 3, 1),
    torus(4, 4),
    torus(2, 5, 3),
    torus(1, 1),
    torus(1, 6, 2),
]


@pytest.mark.parametrize("topology", MEMBERS, ids=str)
def test_members(topology):
    assert topology.name
    assert topology.is_homogeneous
    assert not topology.has_parallel_links
    if topology.num_links and "unwound" not in topology.name:
        assert set(topology.alpha) == {ALPHA}
        assert set(topology.bandwidth) == {BANDWIDTH}
    edges = set(simple(topology).edges)
    for generator in topology.generators:
        assert sorted(generator) == list(range(topology.num_vertices))
        assert list(generator) != sorted(generator)
        assert {(generator[u], generator[v]) for u, v in edges} == edges
        assert {generator[r] for r in range(topology.num_ranks)} == set(range(topology.num_ranks))


@pytest.mark.parametrize(
    "topology",
    [
        ring(7),
        ring(5, bidirectional=False),
        fully_connected(6),
        switch(5),
        switch(7, degree=3),
        hypercube(4),
        torus(4, 3),
        torus(2, 5, 1),
        mesh(2, 2),
    ],
    ids=str,
)
def test_symmetric_families_can_take_any_rank_to_any(topology):
    assert orbit(topology, 0) == set(range(topology.num_ranks))


def test_the_middle_of_a_star_stays():
    assert orbit(star(6), 0) == {0}
    assert orbit(star(6), 1) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ring(0), "0"),
        (lambda: ring(-2, bidirectional=False), "-2"),
        (lambda: ring(2.0), "must be an integer, got 2.0"),  # type: ignore[arg-type]
        (lambda: mesh(), "one or more sides"),
        (lambda: mesh(3, 0), "a side must be an integer of at least 1, got 0"),
        (lambda: mesh((4, 4)), r"must be an integer, got \(4, 4\)"),  # type: ignore[arg-type]
        (lambda: torus(2, "3"), "must be an integer, got '3'"),  # type: ignore[arg-type]
        (lambda: torus(2, 2, alpha=[1e-6]), "alpha needs one value or one for each of 2 .*, got 1"),
        (lambda: torus(2, 2, bandwidth=(1, 2, 3)), "bandwidth needs one value .*, got 3"),
        (lambda: grid((2, 2), (True,)), "wrap needs one value .*, got 1"),
        (lambda: mesh(2, alpha=-1.0), "alpha must be a finite number of at least 0, got -1.0"),
        (lambda: mesh(2, bandwidth=0), "bandwidth must be a finite number above 0, got 0"),
        (lambda: mesh(2, bandwidth=math.nan), "got nan"),
        (lambda: hypercube(0), "dimensions must be an integer of at least 1, got 0"),
        (lambda: hypercube(1.5), "must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: fully_connected(0), "n must be an integer of at least 1, got 0"),
        (lambda: fully_connected(2.5), "must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: star(-1), "n must be an integer of at least 1, got -1"),
        (lambda: star("4"), "must be an integer, got '4'"),  # type: ignore[arg-type]
        (lambda: switch(0), "n must be an integer of at least 1, got 0"),
        (lambda: switch(2.5), "must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: switch(4, degree=0), "degree, .* of at least 1, got 0"),
        (lambda: switch(4, degree=4), "degree, .* of at most 3, got 4"),
        (lambda: switch(4, degree=1.5), "must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: switch(4, bandwidth=-1), "bandwidth must be a finite number above 0, got -1"),
        (lambda: switch(4, degree=2, bandwidth=math.inf), "got inf"),
    ],
)
def test_bad_families_are_refused(make, match):
    with pytest.raises(TopologyError, match=match):
        make()
