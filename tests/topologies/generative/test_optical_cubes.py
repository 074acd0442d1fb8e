"""Rewired TPU slices: tori and twisted tori among them, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.generative import optical_cubes, torus, twisted_torus

LINE = np.stack([np.zeros((4, 4), int), np.zeros((4, 4), int), np.ones((4, 4), int)])


def profile(digraph) -> list[int]:
    return np.bincount(digraph.distances([0])[0]).tolist()


@pytest.mark.parametrize("cubes", [2, 3])
def test_a_line_of_cubes_is_a_torus(cubes: int):
    """By renaming: cube c at place z is 4c + z in the last dimension."""
    found = optical_cubes(cubes, LINE)
    c, x, y, z = np.unravel_index(np.arange(found.size), (cubes, 4, 4, 4))
    image = np.ravel_multi_index((x, y, 4 * c + z), (4, 4, 4 * cubes))
    expected = torus(4, 4, 4 * cubes)
    arcs = sorted(zip(image[found.tails].tolist(), image[found.heads].tolist(), strict=True))
    assert arcs == sorted(zip(expected.tails.tolist(), expected.heads.tolist(), strict=True))


def test_shifts_of_one_everywhere_twist_two_cubes():
    found = optical_cubes(2, np.ones((3, 4, 4), int))
    c, x, y, z = np.unravel_index(np.arange(found.size), (2, 4, 4, 4))
    image = np.ravel_multi_index((x, y, 4 * c + z), (4, 4, 8))
    expected = twisted_torus(4, 4, 8)
    arcs = sorted(zip(image[found.tails].tolist(), image[found.heads].tolist(), strict=True))
    assert arcs == sorted(zip(expected.tails.tolist(), expected.heads.tolist(), strict=True))


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(0, 2**16))
def test_cubes_are_joined_both_ways_and_equal(cubes: int, seed: int):
    shifts = np.random.default_rng(seed).integers(0, cubes, (3, 4, 4))
    shifts[2, 0, 0] = 1
    found = optical_cubes(cubes, shifts)
    assert (found.size, found.degree) == (64 * cubes, 6)
    assert found.is_undirected
    assert not found.self_loops
    assert found.num_orbits == 64


@pytest.mark.parametrize(
    ("cubes", "shifts", "message"),
    [
        (0, LINE, "cubes"),
        (2, np.zeros((3, 4, 4), int), "reach"),
        (4, 2 * LINE, "reach"),
        (2, 2 * LINE, "0..1"),
        (2, -LINE, "0..1"),
        (2, LINE[0], "shape"),
        (2, LINE * 0.5, "integers"),
    ],
)
def test_bad_input_is_refused(cubes, shifts, message: str):
    with pytest.raises(TopologyError, match=message):
        optical_cubes(cubes, shifts)
