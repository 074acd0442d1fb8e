"""Cayley digraphs of dihedral groups and other semidirect products of two cyclic groups."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from jaxcoll.bounds.moore import Cost, moore_steps
from jaxcoll.errors import TopologyError
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies import generative as gen
from jaxcoll.topologies.generative.cayley_digraphs import (
    SemidirectProduct,
    cayley_sets,
    groups,
    multipliers,
)

# The sets whose digraphs have up to so many vertices are checked one by one.
SMALL = 40


@pytest.mark.parametrize(("m", "k", "r"), [(8, 2, 7), (7, 3, 2), (5, 4, 2), (6, 2, 1), (1, 9, 0)])
def test_products_are_those_of_a_group(m: int, k: int, r: int):
    group = SemidirectProduct(m, k, r)
    every = np.arange(group.size)
    table = group.times(every[:, None], every)
    assert (np.sort(table, axis=0) == every[:, None]).all()
    assert (np.sort(table, axis=1) == every).all()
    assert (table[0] == every).all()
    assert (table[:, 0] == every).all()
    assert (table[every, group.inverse(every)] == 0).all()
    for a, b in itertools.product(every, repeat=2):
        assert (table[table[a, b]] == table[a][table[b]]).all()
    for images in group.automorphisms(every):
        for image in images:
            assert (np.sort(image) == every).all()
            assert (image[table] == table[image[:, None], image]).all()


def test_dihedral_products_are_symmetries_of_a_polygon():
    """Rotation by a maps corner c to c + a; the reflection, applied first, maps c to -c."""
    m = 7
    group, corners = SemidirectProduct(m, 2, m - 1), np.arange(m)

    def moved(element: int) -> np.ndarray:
        a, x = divmod(element, 2)
        return (a + (-corners if x else corners)) % m

    for left, right in itertools.product(range(2 * m), repeat=2):
        product = int(group.times(left, right))
        assert (moved(product) == moved(left)[moved(right)]).all()


@pytest.mark.parametrize("size", [6, 8, 12, 16, 18, 21])
def test_groups_are_as_many_as_have_different_orders_of_elements(size: int):
    """Every group listed exists; the dihedral and the cyclic group are among them."""
    found = groups(size)
    assert {(g.m, g.k) for g in found} >= {(size, 1)}
    assert all(g.size == size and g.r in multipliers(g.m, g.k) for g in found)
    if size % 2 == 0:
        assert any((g.m, g.k, g.r) == (size // 2, 2, size // 2 - 1) for g in found)


def test_the_dihedral_digraph_of_16_vertices_reaches_all_in_two_steps():
    """T_L 2 of 16 vertices of degree 4, as Pi(4,16), at T_B 1 in the place of 5/4; f = 3/20."""
    digraph = gen.dihedral(8, [(0, 1), (1, 0), (3, 1), (6, 0)])
    assert digraph.vertex_transitive
    assert gen.is_reverse_symmetric(digraph)
    assert bfb_cost(digraph) == Cost(2, Fraction(1))
    assert digraph_flow(16, digraph.tails, digraph.heads).lower == Fraction(3, 20)
    assert bfb_cost(gen.generalized_kautz(4, 16)) == Cost(2, Fraction(5, 4))


@pytest.mark.parametrize("rotations", [3, 4, 9, 32])
def test_a_rotation_and_a_reflection_make_a_prism_of_one_way_rings(rotations: int):
    digraph = gen.dihedral(rotations, [(1, 0), (0, 1)])
    assert (digraph.size, digraph.degree) == (2 * rotations, 2)
    assert digraph.is_simple
    assert digraph.vertex_transitive
    assert digraph.reversal is not None
    # Rotating by a or -a, reflections around the second: at most half way and two steps more.
    assert digraph.diameter == rotations // 2 + 1


def test_of_abelian_groups_they_are_circulants():
    one = gen.cayley(15, 1, 1, [1, 4, 11, 14])
    two = gen.circulant(15, (1, 4))
    assert np.array_equal(one.heads, two.heads)
    assert one.is_undirected


def test_packaged_sets_are_what_they_are_said_to_be():
    cells = cayley_sets()
    assert {degree for _, degree in cells} == {2, 3, 4, 6, 8}
    for (size, degree), sets in cells.items():
        for found in sets:
            m, k, r, connections = found.arguments
            assert len(set(connections)) == degree
            assert found.steps >= moore_steps(size, degree)
            assert found.bandwidth >= Fraction(size - 1, size)
            if size <= SMALL:
                digraph = gen.cayley(m, k, r, connections)
                assert bfb_cost(digraph) == Cost(found.steps, found.bandwidth)
                assert digraph.is_undirected == found.both_ways
                assert digraph.reversal is not None
                assert digraph.is_simple
                assert digraph.vertex_transitive


def test_the_family_has_the_packaged_sets():
    family = gen.family("Cayley")
    assert family.member(16, 4).diameter == 2
    with pytest.raises(TopologyError, match="nearest size is 1024"):
        family.member(1030, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gen.cayley(8, 2, 3, [1, 16]), "at most 15"),
        (lambda: gen.cayley(8, 3, 7, [1, 2]), r"r\^3 = 1 modulo 8; the nearest that does is 1"),
        (lambda: gen.cayley(7, 3, 6, [1, 2]), r"r\^3 = 1 modulo 7; the nearest that does is 4"),
        (lambda: gen.cayley(2**20, 2**20, 1, [1]), "take a smaller network"),
        (lambda: gen.cayley(8, 2, 8, [1, 2]), "r must be"),
        (lambda: gen.cayley(1, 1, 0, [1]), "two elements"),
        (lambda: gen.cayley(8, 2, 7, []), "needs one connection"),
        (lambda: gen.cayley(8, 2, 7, [0, 1]), "at least 1"),
        (lambda: gen.cayley(8, 2, 7, [4, 1]), "generate 8 of 16"),
        (lambda: gen.dihedral(1, [(0, 1)]), "rotations"),
        (lambda: gen.dihedral(8, [(0, 2)]), "a reflection"),
        (lambda: gen.dihedral(8, cast(Any, [(0, 1, 1)])), "pair"),
        (lambda: gen.dihedral(8, [(8, 1)]), "a rotation"),
    ],
)
def test_bad_input_is_refused(make, message: str):
    with pytest.raises(TopologyError, match=message):
        make()
