"""Exchange: a chunk is sent once per dimension, and torus links carry no more than they must."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.errors import TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import Exchange, synthesize
from tests.synth.loads import link_loads

SIDES = st.lists(st.integers(2, 6), min_size=1, max_size=3)


def exchange(topology, chunks=1):
    return synthesize(topology, "all_to_all", Exchange(), chunks=chunks)


@given(SIDES, st.integers(1, 3))
def test_a_chunk_is_sent_once_for_each_coordinate_that_changes(sides, chunks):
    schedule = exchange(topologies.torus(*sides), chunks)
    grid = np.indices(sides).reshape(len(sides), -1)
    n = math.prod(sides)
    differ = (grid[:, :, None] != grid[:, None, :]).sum(axis=0)
    sent = np.bincount(schedule.chunk, minlength=n * n * chunks)
    assert (sent == np.repeat(differ.ravel(), chunks)).all()


@pytest.mark.parametrize("sides", [(4, 4), (4, 8), (8, 6), (4, 4, 8)])
def test_links_of_a_torus_carry_what_an_exchange_along_its_rings_must(sides):
    """Along a ring of k every chunk takes the shorter way, and the links share them evenly."""
    n, topology = math.prod(sides), topologies.torus(*sides)
    grid = np.indices(sides).reshape(len(sides), -1)
    loads = np.asarray(link_loads(exchange(topology)))
    for dim, side in enumerate(sides):
        along = grid[dim, topology.src] != grid[dim, topology.dst]
        assert loads[along].sum() == n * n // side * sum(min(d, side - d) for d in range(side))
        # Which way chunks to the opposite go is dealt; the fullest link is near the mean.
        assert loads[along].max() <= 1.3 * loads[along].mean()


def test_the_longest_dimension_of_a_torus_is_always_at_work():
    """As much crosses the middle of its longest rings as must, and hardly any time is lost."""
    topology = topologies.torus(8, 16, alpha=0.0, bandwidth=1e9)
    nbytes = 128e6
    least = 16 / 8 * nbytes / 1e9
    assert simulate(exchange(topology), nbytes).time <= 1.02 * least


@pytest.mark.parametrize("hosts", [4, 6])
def test_on_rails_it_keeps_to_rails_and_hosts(hosts):
    topology = topologies.multi_rail(hosts, 3)
    schedule = exchange(topology)
    same_host = schedule.src // 3 == schedule.dst // 3
    assert (same_host | (schedule.src % 3 == schedule.dst % 3)).all()


def test_parallel_ways_along_a_line_that_does_not_close():
    schedule = exchange(topologies.mesh(5))
    assert max(schedule.edges.hops) == 4


def test_networks_that_are_no_grids_are_refused():
    with pytest.raises(TopologyError, match="exchange needs a network of symmetric dimensions"):
        exchange(topologies.dgx1())
