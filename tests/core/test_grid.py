"""Grids and placements of ranks: coordinates, neighbours, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from jaxcoll import Topology
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid, Placement
from jaxcoll.topologies import torus
from tests import strategies


@given(strategies.grids())
def test_grid_neighbours_are_one_apart(topology):
    box = topology.grid
    coordinates = box.coordinates()
    assert coordinates.shape == (box.size, len(box.shape))
    np.testing.assert_array_equal(
        np.ravel_multi_index(tuple(coordinates.T), box.shape), np.arange(box.size)
    )
    for dimension, side in enumerate(box.shape):
        pairs = {tuple(pair) for pair in box.neighbour_pairs(dimension).tolist()}
        expected = set()
        for rank in range(box.size):
            for by in (-1, 1):
                moved = coordinates[rank].copy()
                moved[dimension] += by
                if box.wrap[dimension]:
                    moved[dimension] %= side
                if 0 <= moved[dimension] < side:
                    expected.add((rank, int(np.ravel_multi_index(tuple(moved), box.shape))))
        assert pairs == expected
        assert len(pairs) == len(box.neighbour_pairs(dimension))
        turned = coordinates.copy()
        turned[:, dimension] = (turned[:, dimension] + 2) % side
        np.testing.assert_array_equal(
            box.translation(dimension, 2), np.ravel_multi_index(tuple(turned.T), box.shape)
        )


def test_grid_facts():
    assert Grid((2, 3, 1), (True, True, True)).wrap == (False, True, False)
    assert torus(2, 3).grid == Grid((2, 3), (False, True))


@pytest.mark.parametrize(
    ("shape", "wrap", "match"),
    [
        ((), (), r"got shape \(\)"),
        ((2, 0), (True, True), r"got shape \(2, 0\)"),
        ((2, -1), (True, True), r"got shape \(2, -1\)"),
        ((2, 2), (True,), r"\(2, 2\) has 2, got 1"),
    ],
)
def test_bad_grids_are_refused(shape, wrap, match):
    with pytest.raises(TopologyError, match=match):
        Grid(shape, wrap)


def test_a_relabelled_grid_keeps_its_places():
    topology = torus(2, 3)
    image = [3, 0, 5, 1, 4, 2]
    moved = topology.relabel(image)
    assert moved.grid is None
    assert moved.placement == Placement(Grid((2, 3), (True, True)), tuple(image))
    back = moved.relabel(np.argsort(image))
    assert back == topology
    assert back.grid == topology.grid
    assert moved.transpose().placement == moved.placement
    assert torus(2, 3).placement == Placement(Grid((2, 3), (True, True)), tuple(range(6)))


@pytest.mark.parametrize(
    ("described", "match"),
    [
        ({"grid": Grid((2, 2), (True, True))}, r"shape \(2, 2\) has 4 ranks, the network has 6"),
        ({"grid": Grid((10**9, 10**9), (False, False))}, "the network has 6"),
        (
            {
                "grid": Grid((2, 3), (True, True)),
                "placement": Placement(Grid((2, 3), (True, True)), (1, 0, 2, 3, 4, 5)),
            },
            "a grid or a placement, not two different ones",
        ),
    ],
)
def test_places_that_do_not_fit_are_refused(described, match):
    wires = torus(2, 3)
    columns = (wires.src, wires.dst, wires.alpha, wires.bandwidth)
    with pytest.raises(TopologyError, match=match):
        Topology(6, *columns, **described)


@pytest.mark.parametrize("ranks", [(0, 1), (0, 0, 1, 2), (1, 2, 3, 4)])
def test_a_placement_needs_every_rank_once(ranks):
    with pytest.raises(TopologyError, match="one rank for each of the 4 places"):
        Placement(Grid((2, 2), (False, False)), ranks)
