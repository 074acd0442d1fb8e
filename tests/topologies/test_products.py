"""Products of networks: Cartesian, with the grids, symmetries and bandwidths of their factors."""

from __future__ import annotations

import math
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Topology
from jaxcoll.grid import Grid
from jaxcoll.topologies import (
    dgx1,
    fully_connected,
    hypercube,
    mesh,
    product,
    ring,
    star,
    switch,
    torus,
)
from tests.topologies.measures import diameter, orbit

FACTORS = st.sampled_from(
    [
        ring(1),
        ring(2),
        ring(3),
        ring(4, bidirectional=False),
        fully_connected(3),
        switch(3),
        switch(4, degree=2),
        mesh(2),
        mesh(3),
        star(3),
        torus(2, 3),
        dgx1(),
    ]
)


def graph(topology: Topology) -> nx.Graph:
    return nx.MultiDiGraph(topology.to_networkx())


@given(st.lists(FACTORS.filter(lambda t: t.is_direct), min_size=1, max_size=3))
def test_products_of_direct_networks_are_cartesian_products(factors):
    topology = product(*factors)
    reference = nx.MultiDiGraph(factors[0].to_networkx())
    for factor in factors[1:]:
        reference = nx.cartesian_product(reference, nx.MultiDiGraph(factor.to_networkx()))
        reference = nx.relabel_nodes(
            reference, {(u, v): u * factor.num_ranks + v for u, v in reference.nodes}
        )
    assert sorted(nx.to_edgelist(graph(topology))) == sorted(nx.to_edgelist(reference))


@given(st.lists(FACTORS, min_size=1, max_size=3))
def test_products_keep_what_their_factors_have(factors):
    topology = product(*factors)
    n = math.prod(f.num_ranks for f in factors)
    assert topology.num_ranks == n
    assert topology.num_links == sum(n // f.num_ranks * f.num_links for f in factors)
    extra = sum(n // f.num_ranks * (f.num_vertices - f.num_ranks) for f in factors)
    assert topology.num_vertices == n + extra
    assert diameter(topology) == sum(diameter(f) for f in factors)
    assert len(topology.generators) == sum(len(f.generators) for f in factors)
    places = math.prod(len(orbit(f)) for f in factors)
    assert len(orbit(topology)) >= places
    out = topology.out_bandwidth()[:n].reshape([f.num_ranks for f in factors])
    for place in np.ndindex(out.shape):
        rates = (f.out_bandwidth()[p] for f, p in zip(factors, place, strict=True))
        assert out[place] == pytest.approx(sum(rates))


def test_products_of_rings_are_tori():
    speeds = {"alpha": (1e-6, 2e-6, 3e-6), "bandwidth": (1e9, 2e9, 3e9)}
    lines = [
        ring(side, alpha=a, bandwidth=b)
        for side, a, b in zip((3, 4, 2), speeds["alpha"], speeds["bandwidth"], strict=True)
    ]
    expected = torus(3, 4, 2, **speeds)
    assert product(*lines) == expected
    assert product(*lines).grid == expected.grid
    assert set(product(*lines).generators) == set(expected.generators)
    assert product(*[ring(2)] * 4) == hypercube(4)
    assert product(mesh(3), mesh(2)) == mesh(3, 2)
    assert product(torus(2, 3)) == torus(2, 3)


def test_grids_of_products():
    assert product(ring(4), fully_connected(5)).grid == Grid((4, 5), (True, True))
    assert product(mesh(3), ring(2)).grid == Grid((3, 2), (False, False))
    assert product(torus(2, 3), mesh(4)).grid == Grid((2, 3, 4), (False, True, False))
    assert product(ring(4), switch(3)).grid is None
    assert product(ring(4, bidirectional=False)).grid is None
    assert product(switch(5, degree=2)).grid is None
    assert product(switch(5, degree=4)).grid == Grid((5,), (True,))


def test_products_keep_exact_bandwidths():
    topology = product(ring(2), switch(4, degree=3, bandwidth=10))
    assert set(topology.exact_bandwidth) == {Fraction(50 * 10**9), Fraction(10, 3)}
