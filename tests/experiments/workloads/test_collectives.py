"""Times of collectives: those of the simulator, and what pieces change."""

from __future__ import annotations

from fractions import Fraction

import pytest

import jaxcoll as jc
from experiments.workloads import Simulated, fastest, ideal, in_turn
from experiments.workloads.models import cut_through
from jaxcoll.simulation import PACKETS
from jaxcoll.synth import Ring

BANDWIDTH, ALPHA = 10**9, Fraction(1, 10**6)


def test_a_ring_takes_its_closed_form():
    topology = jc.topologies.ring(5, alpha=1e-6, bandwidth=1e9)
    time = Simulated(topology, Ring(bidirectional=False))
    for nbytes in (5, 1000, 10**6):
        assert time(nbytes) == 8 * (Fraction(nbytes, 5) / BANDWIDTH + ALPHA)


def test_a_size_is_simulated_once(monkeypatch):
    time = Simulated(jc.topologies.ring(4), "ring")
    first = time(4096)
    monkeypatch.setattr(jc, "simulate", None)
    assert time(4096) == first


def test_heads_of_packets_take_time():
    topology = jc.topologies.ring(4, alpha=0.0, bandwidth=1e9)
    ring = Ring(bidirectional=False)
    plain, framed = Simulated(topology, ring), Simulated(topology, ring, framing=PACKETS)
    assert framed(4 * 256) / plain(4 * 256) == Fraction(256 + 16, 256)


@pytest.mark.parametrize("synthesizer", ["ring", "multitree", "hdrm"])
def test_pieces_are_sound_and_hide_the_hops(synthesizer):
    """A switch that cuts through costs less than one that stores; never less than the bound."""
    topology = jc.topologies.bigraph(2, 4, alpha=0.0, bandwidth=1e9)
    whole = Simulated(topology, synthesizer)
    pieces = Simulated(topology, synthesizer, pieces=8)
    jc.verify(pieces.schedule(8))
    assert pieces.schedule(8).num_steps == 8 * whole.schedule(1).num_steps
    assert pieces(2**20) < whole(2**20)
    assert float(pieces(2**20)) >= jc.bound(topology, "all_reduce", 2**20).time


def test_pieces_are_no_smaller_than_a_packet():
    topology = jc.topologies.switch(4, alpha=0.0)
    whole, pieces = (Simulated(topology, "ring", pieces=count) for count in (1, 8))
    assert pieces(4 * 256) == whole(4 * 256)
    assert pieces(4 * 255) == whole(4 * 255)
    assert pieces(4 * 512) < whole(4 * 512)


def test_one_piece_is_the_schedule_itself():
    schedule = jc.synthesize(jc.topologies.ring(4), "all_reduce", "ring")
    assert cut_through(schedule, 1) is schedule


def test_groups_run_at_the_same_time():
    """Rows of a torus are rings of their own."""
    torus = jc.topologies.torus(4, 4, alpha=1e-6, bandwidth=1e9)
    rows = tuple(tuple(range(first, first + 4)) for first in range(0, 16, 4))
    ring = jc.topologies.ring(4, alpha=1e-6, bandwidth=1e9)
    assert Simulated(torus, "ring", groups=rows)(4096) == Simulated(ring, "ring")(4096)


def test_the_quickest_and_one_after_the_other():
    slow, fast = (lambda n: Fraction(2 * n)), (lambda n: Fraction(n + 3))
    assert [fastest([slow, fast])(n) for n in (1, 3, 5)] == [2, 6, 8]
    assert in_turn([slow, fast], [fast])(9) == max(10, 8) + 8


def test_ideal_is_the_papers():
    torus = jc.topologies.torus(4, 4)
    assert ideal(torus)(10**6) == jc.bounds.ideal(torus, "all_reduce", 10**6)
