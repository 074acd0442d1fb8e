"""Forests through switches that copy and add: closed forms, and the same trees as schedules."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcoll import simulate
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.simulation import simulate_multicast
from jaxcoll.simulation.in_network import FOREST_KINDS as KINDS
from jaxcoll.simulation.messages import multicast
from jaxcoll.synth import forest
from jaxcoll.topologies import dgx_h100, ring, switch, torus

BANDWIDTH, ALPHA = 10**9, Fraction(1, 10**6)
NETWORK = switch(5, alpha=1e-6, bandwidth=1e9).with_in_network(True, True)
STAR = forest(NETWORK)
N = 5


def seconds(nbytes, **options) -> Fraction:
    return simulate_multicast(STAR, nbytes, **options).exact_time


def test_a_star_by_hand():
    """Per rank one shard in, four out; the last of four shards to arrive waits for three."""
    shard = 10**6
    part = Fraction(shard, BANDWIDTH)
    assert seconds(N * shard, switches=[5]) == 2 * ALPHA + part + 4 * part
    # Summed in the switch: all five ranks send their four parts, and the sums leave together.
    up = simulate_multicast(STAR, N * shard, [5], kind="reduce_scatter").exact_time
    assert up == 2 * ALPHA + 4 * part + part
    one = forest(switch(2, alpha=1e-6, bandwidth=1e9).with_in_network(True, True))
    down = simulate_multicast(one, 2 * shard, [2], kind="all_reduce").exact_time
    assert down == 2 * (2 * ALPHA + 2 * part)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_without_capable_switches_the_trees_are_those_of_the_schedule(kind):
    """On a ring of one hop per edge both serve the only message that is ready."""
    flow = forest(ring(6))
    schedule = flow.to_schedule(1)
    plain = simulate(schedule, 6e6).exact_time
    for switches in ((), []):
        assert simulate_multicast(flow, 6e6, switches, kind=kind).exact_time == plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_capable_switch_never_slows_a_star(kind, pieces):
    for nbytes in (1e3, 1e6, 1e9):
        without, with_it = (
            seconds(nbytes, switches=s, kind=kind, pieces=pieces) for s in ((), (5,))
        )
        assert with_it <= without


def test_an_all_reduce_in_one_box_takes_one_phase():
    """Up once and down once, full duplex: near 450 GB/s, of which two phases get 4/7 at most."""
    topology = dgx_h100(1)
    flow = forest(topology)
    nbytes = 2**30
    two_phases = 2 * float(flow.inverse) / 8 * nbytes
    fast = simulate_multicast(flow, nbytes, [8], kind="all_reduce", pieces=32, in_flight=2).time
    slow = simulate_multicast(flow, nbytes, kind="all_reduce", pieces=32).time
    assert nbytes / 450e9 < fast < 1.1 * nbytes / 450e9
    assert slow > two_phases > 1.6 * fast


def test_messages_are_the_load_that_is_counted():
    """With one piece in flight per link the busiest link's load bounds the time from below."""
    topology = dgx_h100(2)
    flow = forest(topology)
    capable = [16, 17]
    load = multicast(flow, capable).load
    nbytes = Fraction(10**9)
    shard = nbytes / 16 / flow.k
    least = max(shard * x / b for x, b in zip(load, topology.exact_bandwidth, strict=True))
    time = simulate_multicast(flow, nbytes, capable, pieces=16).exact_time
    assert least < time < least * Fraction(11, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "broadcast"}, "got 'broadcast'"),
        ({"pieces": 0}, "pieces must be an integer of at least 1"),
        ({"in_flight": 0}, "in_flight must be an integer of at least 1"),
        ({"model": "fast"}, "model must be one of"),
    ],
)
def test_what_is_not_timed_is_refused(options, message):
    with pytest.raises(ScheduleError, match=message):
        seconds(1e6, **options)


def test_ranks_and_unequal_shards_are_refused():
    with pytest.raises(TopologyError, match="vertex 0 is not a switch"):
        seconds(1e6, switches=[0])
    with pytest.raises(ScheduleError, match="above 0"):
        seconds(0)
    flow = forest(torus(2, 2), weights=[1, 0, 0, 0])
    with pytest.raises(ScheduleError, match="multicast is timed for all ranks"):
        simulate_multicast(flow, 1e6)


def test_switches_do_no_more_than_the_network_says():
    copying = forest(NETWORK.with_in_network(True))
    adding = forest(NETWORK.with_in_network([], True).transpose())
    for flow, kind, verb in (
        (forest(NETWORK.with_in_network(True).transpose()), "reduce_scatter", "add"),
        (forest(NETWORK.with_in_network([], True)), "all_gather", "copy"),
        (copying, "all_reduce", "copy and add"),
        (forest(switch(5)), "all_gather", "copy"),
    ):
        with pytest.raises(TopologyError, match=f"switch 5.*, which does not {verb}"):
            simulate_multicast(flow, 1e6, [5], kind=kind)
        # True is for those that can, none of which is left.
        plain = simulate_multicast(flow, 1e6, kind=kind).exact_time
        assert simulate_multicast(flow, 1e6, True, kind=kind).exact_time == plain
    assert simulate_multicast(adding, 1e6, True, kind="reduce_scatter").exact_time == (
        simulate_multicast(adding, 1e6, [5], kind="reduce_scatter").exact_time
    )
