"""Trees of one root that share links: chunks are served by urgency, with latencies in it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import simulate, topologies, verify
from jaxcoll.bounds import bound
from jaxcoll.synth import ForestColl, synthesize
from jaxcoll.synth.building.urgent_trees import most_urgent_first
from jaxcoll.synth.forestcoll import forest
from jaxcoll.topology import Topology


def beside_a_slow_wire(topology: Topology, at: int, part: Fraction) -> Topology:
    """A network with one wire of a rank at a part of its speed, both ways."""
    there = int(topology.dst[np.flatnonzero(topology.src == at)[0]])
    return topology.scaled({(at, there): part, (there, at): part})


@settings(max_examples=15)
@given(
    st.sampled_from([(3, 23), (6, 12), (3, 5, 5)]),
    st.integers(0, 68),
    st.sampled_from([Fraction(1, 5), Fraction(1, 3), Fraction(1, 2)]),
    st.sampled_from(["broadcast", "reduce"]),
)
def test_beside_a_slow_wire_more_chunks_take_no_longer(shape, at, part, kind):
    network = beside_a_slow_wire(topologies.torus(*shape), at, part)
    weights = [int(rank == 0) for rank in range(network.num_ranks)]
    few, nbytes, seconds = 32 * forest(network, weights).k, 2**23, []
    for chunks in (few, 2 * few):
        schedule = synthesize(network, kind, ForestColl(), chunks=chunks, nbytes=nbytes)
        verify(schedule)
        seconds.append(simulate(schedule, nbytes).time)
    assert seconds[1] <= 1.01 * seconds[0]


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_beside_a_slow_wire_much_data_takes_little_more_than_the_bound(kind):
    """In the order of the stream it takes 1.2 times the bound with the best number of chunks."""
    network = beside_a_slow_wire(topologies.torus(16, 16), 128, Fraction(1, 5))
    schedule = synthesize(network, kind, ForestColl(), chunks=2048, nbytes=2**26)
    assert simulate(schedule, 2**26).time <= 1.06 * bound(network, kind, 2**26).time


@given(st.integers(0, 15), st.integers(1, 3), st.sampled_from([0.1, 0.5, 2.0]))
def test_trees_that_stand_for_several_carry_their_share(root, pieces, pace):
    network = topologies.dragonfly(4, 4)
    flow = forest(network, [int(rank == root) for rank in range(16)])
    collective = flow.collective(pieces)
    schedule = most_urgent_first(flow, collective, Fraction(2**20), pace)
    verify(schedule)
    assert schedule.num_sends == 15 * collective.chunks_per_shard
