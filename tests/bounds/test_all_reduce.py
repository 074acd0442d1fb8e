"""The all_reduce program in rows against the printed one, solved by another solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll.bounds.all_reduce import all_reduce_bound
from jaxcoll.topologies import dgx1, hypercube, mesh, nvswitch_hosts, ring, star, switch
from jaxcoll.topology import Topology
from tests.bounds.all_reduce_by_cvxpy import most_bytes_per_second

# Of the oracle, an interior-point method.
NEAR = 1e-5


@pytest.mark.parametrize(
    "topology",
    [
        ring(4),
        mesh(2, 3),
        mesh(3, 3),
        star(5),
        hypercube(3),
        dgx1(),
        switch(3),
        nvswitch_hosts((3, 2), inside=4e9, network=1e9),
    ],
    ids=lambda t: t.name,
)
def test_the_bound_is_the_optimum_of_the_printed_program(topology):
    found = all_reduce_bound(topology)
    assert found.is_exact
    assert float(found.seconds) == pytest.approx(1 / most_bytes_per_second(topology), rel=NEAR)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Up to 5 ranks and 2 switches, joined in a circle and at random, equally fast both ways."""
    ranks = draw(st.integers(2, 5))
    vertices = ranks + draw(st.integers(0, 2))
    pairs = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    chords = draw(st.lists(pairs.filter(lambda p: p[0] != p[1]), max_size=5))
    circle = [(v, (v + 1) % vertices) for v in range(vertices)]
    joined = sorted({(min(pair), max(pair)) for pair in [*circle, *chords]})
    speeds = draw(st.lists(st.integers(1, 8), min_size=len(joined), max_size=len(joined)))
    ends = [*joined, *((v, u) for u, v in joined)]
    bandwidth = [speed * 1e9 for speed in speeds] * 2
    src, dst = np.array(ends).T
    alpha = np.full(len(ends), 1e-6)
    return Topology(ranks, src, dst, alpha, np.array(bandwidth), num_vertices=vertices)


@settings(max_examples=25)
@given(networks())
def test_what_is_proved_and_what_is_reached_lie_around_the_optimum(topology):
    found, best = all_reduce_bound(topology), 1 / most_bytes_per_second(topology)
    assert float(found.seconds) <= best * (1 + NEAR)
    assert found.reached is None or float(found.reached) >= best * (1 - NEAR)
    # Fractions of small denominators prove all of it where speeds are of few values.
    assert float(found.seconds) >= best * (1 - 1e-3)
