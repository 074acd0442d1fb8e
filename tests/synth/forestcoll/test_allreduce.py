"""The all_reduce program against closed forms, and against what two phases take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.allreduce import all_reduce_bound
from jaxcoll.throughput import bottleneck
from jaxcoll.topologies import dgx1, dgx_a100, hypercube, nvswitch_boxes, ring, star, switch, torus
from tests import strategies


@pytest.mark.parametrize(
    "topology",
    [
        ring(5, bandwidth=3e9),
        torus(3, 3),
        hypercube(3),
        dgx1(),
        switch(4),
        nvswitch_boxes((2, 2), inside=8e9, network=1e9),
        nvswitch_boxes((4, 4), inside=300e9, network=25e9),
    ],
    ids=lambda t: t.name,
)
def test_two_phases_reach_it_where_ranks_are_equal(topology):
    found = all_reduce_bound(topology)
    assert found.two_phases_reach_it
    assert found.seconds == pytest.approx(float(found.two_phases), rel=1e-6)
    assert float(found.roots.sum()) == pytest.approx(1 / found.seconds)


@pytest.mark.slow
def test_two_phases_reach_it_on_a100_boxes():
    assert all_reduce_bound(dgx_a100(2)).two_phases_reach_it


def test_a_star_is_best_summed_in_the_middle():
    found = all_reduce_bound(star(5, bandwidth=1e9))
    assert found.seconds == pytest.approx(1e-9, rel=1e-6)
    assert float(found.two_phases) == pytest.approx(1.6e-9)
    assert not found.two_phases_reach_it
    np.testing.assert_allclose(found.roots[1:], 0.0, atol=1.0)


@settings(max_examples=15)
@given(strategies.topologies(max_ranks=5, switches=True))
def test_it_is_between_a_broadcast_and_two_phases(topology):
    found = all_reduce_bound(topology)
    one = [1] + [0] * (topology.num_ranks - 1)
    # All data must leave, and reach, every set of ranks.
    least = max(bottleneck(topology, one).inverse, bottleneck(topology.transpose(), one).inverse)
    assert float(least) * (1 - 1e-6) <= found.seconds
    if topology.is_direct:
        assert found.seconds <= float(found.two_phases) * (1 + 1e-6)


def test_one_rank_is_refused():
    with pytest.raises(TopologyError, match="nothing to reduce"):
        all_reduce_bound(ring(1))
