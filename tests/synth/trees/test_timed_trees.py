"""Timed trees: each chunk has a tree of its own, planned from the last chunk to the first."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics.compiled import interpreted
from jaxcoll.simulation import simulate
from jaxcoll.synth import TimedTrees, synthesize
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.list_scheduling import link_ticks
from jaxcoll.synth.trees.timed_trees import _planned, _Request
from jaxcoll.topology import Topology
from tests import strategies

MIB = 2**20


def over_bound(topology: Topology, nbytes: int, chunks: int, kind: str = "broadcast") -> float:
    schedule = synthesize(topology, kind, TimedTrees(nbytes=nbytes), chunks=chunks)
    return simulate(schedule, nbytes).time / bound(topology, kind, nbytes).time


@given(strategies.topologies(2, 12), st.integers(1, 12), st.data())
def test_no_two_sends_share_a_slot_and_each_leaves_after_its_chunk_came(topology, chunks, data):
    root = data.draw(st.integers(0, topology.num_ranks - 1))
    nbytes = Fraction(data.draw(st.sampled_from([10**3, 10**6])))
    what = Collective("broadcast", topology.num_ranks, chunks, root=root)
    busy, delay = link_ticks(topology, what, nbytes, chunks * topology.num_ranks)
    link, start, end = _planned(_Request.of(topology, root, busy, delay), chunks, 1.0)
    arrived = np.full((chunks, topology.num_ranks), -1)
    arrived[:, root] = 0
    for chunk in range(chunks):
        for e, begin in zip(link[chunk].tolist(), start[chunk].tolist(), strict=True):
            assert 0 <= arrived[chunk, topology.src[e]] <= begin
            assert arrived[chunk, topology.dst[e]] == -1
            arrived[chunk, topology.dst[e]] = begin + delay[e]
    assert (arrived >= 0).all()
    for e in range(topology.num_links):
        assert (np.diff(np.sort(start[link == e])) >= busy[e]).all()
    assert arrived.max() <= end


def test_the_example_of_four_ranks():
    """Each chunk goes round half of the ring, and to its last rank in the root's second slots."""
    ring = topologies.ring(4)
    schedule = synthesize(ring, "broadcast", TimedTrees(nbytes=MIB), chunks=2)
    sent = zip(schedule.chunk.tolist(), schedule.src.tolist(), schedule.dst.tolist(), strict=True)
    assert set(sent) == {(0, 0, 1), (0, 1, 2), (0, 0, 3), (1, 0, 3), (1, 3, 2), (1, 0, 1)}
    seconds = simulate(schedule, MIB).time
    assert seconds == pytest.approx(2 * (5e-7 + MIB / 2 / 50e9))


TORI = {
    "torus 16x16": topologies.torus(16, 16),
    "torus 8x32": topologies.torus(8, 32),
    "torus 4x8x8": topologies.torus(4, 8, 8),
    "mesh 12x12": topologies.mesh(12, 12),
    "without a wire": topologies.torus(16, 16).without(links=[(128, 129), (129, 128)]),
    "without a rank": topologies.torus(4, 8, 8).without(ranks=[77]),
    "with a slow wire": topologies.torus(8, 32).scaled(
        {(128, 129): Fraction(1, 5), (129, 128): Fraction(1, 5)}
    ),
}


@pytest.mark.parametrize("name", TORI)
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_a_mebibyte_takes_little_more_than_the_bound(name, kind):
    """Trees that fill all links took 1.25 to 1.37 times the bound of whole tori."""
    assert over_bound(TORI[name], MIB, 1024, kind) <= 1.08


def test_far_more_chunks_than_latencies_fit_into_a_longer_timetable():
    """A rank behind a slow link has its last chunk long after the last one left the root."""
    slow = {(254, 255): Fraction(1, 40), (239, 255): Fraction(1, 40)}
    mesh = topologies.mesh(16, 16).scaled(slow)
    assert over_bound(mesh, MIB, 256) <= 1.15


def test_interpreted_kernels_plan_the_same():
    torus = topologies.torus(3, 4)
    compiled = synthesize(torus, "broadcast", TimedTrees(), chunks=6)
    with interpreted():
        again = synthesize(torus, "broadcast", TimedTrees(), chunks=6)
    assert np.array_equal(compiled.edge, again.edge)
    assert np.array_equal(compiled.step, again.step)


def test_the_default_tries_them_where_many_ranks_wait_for_latencies():
    problem = Problem(TORI["torus 16x16"], Collective("broadcast", 256))
    assert TimedTrees(nbytes=MIB).may_win(problem)
    assert not TimedTrees(nbytes=2**30).may_win(problem)
    small = topologies.torus(8, 8)
    assert not TimedTrees(nbytes=MIB).may_win(Problem(small, Collective("broadcast", 64)))
    hosts = topologies.dgx_h100(16)
    assert not TimedTrees(nbytes=MIB).may_win(Problem(hosts, Collective("broadcast", 128)))


def test_refusals():
    with pytest.raises(TopologyError, match="timed_trees knows no switches"):
        synthesize(topologies.switch(4), "broadcast", TimedTrees())
    with pytest.raises(CollectiveError, match="defined for all ranks at once"):
        synthesize(topologies.torus(4), "broadcast", TimedTrees(), groups=[[0, 1], [2, 3]])
    with pytest.raises(CollectiveError, match="nbytes"):
        TimedTrees(nbytes=0)
