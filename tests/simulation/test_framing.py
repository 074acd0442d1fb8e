"""Heads of packets and of messages, against MultiTree's figures."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import simulate, synthesize
from jaxcoll.errors import ScheduleError
from jaxcoll.simulation import MODELS, PACKETS, WHOLE, Framing, Message, simulate_messages
from jaxcoll.synth import MultiTree
from jaxcoll.topologies import mesh, ring, torus
from tests.strategies import schedules


@pytest.mark.parametrize(("payload", "percent"), [(64, 25), (128, 12.5), (256, 6.25)])
def test_heads_cost_what_the_paper_says(payload, percent):
    """Fig. 2: 6 % to 25 % of the bandwidth."""
    framing = Framing(payload)
    nbytes = Fraction(payload * 1000)
    assert framing.on_link(nbytes) == nbytes * (1 + Fraction(percent) / 100)
    assert framing.on_link(Fraction(1, 3)) == Fraction(1, 3) + 16
    assert WHOLE.on_link(nbytes) == nbytes + 16


def test_message_based_flow_control_wins_six_percent():
    """Sec. VI-A: large data, 8x8 Torus of Table III."""
    topology = torus(8, 8, alpha=150e-9, bandwidth=16e9)
    schedule = synthesize(topology, "all_reduce", MultiTree())
    packets, whole, bare = (simulate(schedule, 2**26, framing=f) for f in (PACKETS, WHOLE, None))
    assert packets.time / whole.time == pytest.approx(1.06, abs=0.004)
    assert bare.time < whole.time < bare.time * 1.0001
    assert "Framing(payload=256, head=16)" in repr(packets)
    assert "Framing" not in repr(bare)


def test_a_chain_of_links_by_hand():
    topology = mesh(3, alpha=1e-6, bandwidth=1e9)
    times = simulate_messages(topology, [Message((0, 1, 2), 1000)], framing=Framing(100, 20))
    assert times.exact_time == 2 * (Fraction(1, 10**6) + Fraction(1200, 10**9))
    schedule = synthesize(ring(2, alpha=0, bandwidth=1e9), "all_gather", "ring")
    assert simulate(schedule, 1000, framing=Framing(100, 20)).exact_time == Fraction(600, 10**9)


@given(schedules(), st.sampled_from(MODELS), st.sampled_from([1, 1000, 10**6]))
def test_heads_take_time(schedule, model, nbytes):
    bare = simulate(schedule, nbytes, model).exact_time
    assert simulate(schedule, nbytes, model, Framing(64, 0)).exact_time == bare
    if schedule.num_sends:
        assert simulate(schedule, nbytes, model, PACKETS).exact_time > bare


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Framing(0), "payload must be an integer of at least 1, got 0"),
        (lambda: Framing(2.5), "payload must be an integer"),  # type: ignore[arg-type]
        (lambda: Framing(True), "payload must be an integer"),
        (lambda: Framing(64, -1), "head must be an integer of at least 0, got -1"),
        (lambda: Framing(64, None), "head must be an integer"),  # type: ignore[arg-type]
    ],
)
def test_bad_framings_are_refused(make, match):
    with pytest.raises(ScheduleError, match=match):
        make()
