"""NCCL's rings: fast on hosts, every port in use, pieces following one another."""

from __future__ import annotations

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.errors import CollectiveError
from jaxcoll.synth import NcclRing, Ring
from tests.synth.loads import link_loads

GIB = 2**30


def algbw(topology, kind, synthesizer, nbytes=GIB):
    schedule = jc.synthesize(topology, kind, synthesizer, nbytes=nbytes)
    return nbytes / jc.simulate(schedule, nbytes).time / 1e9


def test_rings_on_two_h100_hosts_are_as_fast_as_their_ports_let_them():
    """30 of 32 shards through each port of 50 GB/s: 213 GB/s, less the start of the pipeline."""
    topology = topologies.dgx_h100(2)
    assert algbw(topology, "all_reduce", "ring") > 115
    assert algbw(topology, "all_reduce", Ring(order="ranks")) < 50
    assert 200 < algbw(topology, "all_reduce", "nccl_ring") < 50 * 8 / 2 * 16 / 15


@pytest.mark.parametrize("make", [topologies.dgx_h100, topologies.mi250], ids=["H100", "MI250"])
def test_every_port_carries_the_same(make):
    topology = make(2)
    chunks = NcclRing().granularity(topology, jc.Collective("all_gather", topology.num_ranks))
    schedule = jc.synthesize(topology, "all_gather", NcclRing(), chunks=chunks)
    network = topology.num_vertices - 1
    ports = (topology.src == network) | (topology.dst == network)
    assert len(set(np.asarray(link_loads(schedule))[ports])) == 1


def test_a_channel_each_way_round_every_circle_of_links():
    topology = topologies.dgx1()
    schedule = jc.synthesize(topology, "all_gather", NcclRing(), chunks=6)
    assert set(link_loads(schedule)) == {7}  # a chunk from each of seven others


def test_a_broadcast_is_a_pipeline_round_every_channel():
    topology = topologies.ring(5)
    schedule = jc.synthesize(topology, "broadcast", NcclRing(), chunks=8, root=2)
    assert schedule.num_steps == (5 - 1) + (4 - 1)
    assert schedule.num_sends == 8 * 4


def test_pieces_are_checked():
    with pytest.raises(CollectiveError, match="pieces must be an integer of at least 1"):
        NcclRing(pieces=0)


def test_parallel_links_carry_a_channel_each():
    topology = topologies.dgx1()
    schedule = jc.synthesize(topology, "broadcast", NcclRing(), chunks=6, root=3)
    assert set(link_loads(schedule)) <= {0, 1}
