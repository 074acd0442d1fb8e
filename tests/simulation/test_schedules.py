"""The simulator against a slow replay in fractions, closed forms and what must hold of any run."""

from __future__ import annotations

import itertools
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, Topology, simulate, synthesize, topologies
from jaxcoll.errors import ScheduleError
from jaxcoll.paths import shortest_routes
from jaxcoll.simulation import MODELS, kernels
from jaxcoll.simulation.durations import distinct
from tests.simulation.replay import replay
from tests.strategies import families, grids, schedules
from tests.strategies import topologies as networks

GIB = 2**30
models = st.sampled_from(MODELS)


def hops(timeline) -> list[list[tuple]]:
    tick = timeline.clock.tick
    rows = []
    for first, last in zip(timeline.hop_ptr[:-1], timeline.hop_ptr[1:], strict=True):
        rows.append(
            [
                (
                    int(timeline.hop_link[h]),
                    int(timeline.hop_start[h]) * tick,
                    int(timeline.hop_start[h] + timeline.hop_busy[h]) * tick,
                    int(timeline.hop_start[h] + timeline.hop_delay[h]) * tick,
                )
                for h in range(first, last)
            ]
        )
    return rows


@settings(max_examples=120)
@given(
    schedules(networks=networks(max_ranks=7, switches=True, exact=True) | grids(9) | families(7)),
    st.sampled_from([1, 1000, 2**20, Fraction(10**9, 7)]),
    models,
)
def test_equals_the_slow_replay(schedule, nbytes, model):
    timeline = simulate(schedule, nbytes, model)
    if timeline.clock.is_exact:
        assert hops(timeline) == replay(schedule, nbytes, model)
    else:
        end = max((hop[3] for row in replay(schedule, nbytes, model) for hop in row), default=0)
        assert end <= timeline.exact_time <= end * Fraction(10**9 + 1, 10**9)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("network", [topologies.ring(6), topologies.mesh(2, 3)], ids=str)
def test_where_ranks_relay_it_equals_the_slow_replay(network, model):
    """There a link is the first of some messages and within the path of others."""
    for kind in ("all_gather", "all_to_all"):
        schedule = synthesize(network, kind, "direct", chunks=1)
        assert (schedule.edges.hops > 1).any()
        timeline = simulate(schedule, 10**6, model)
        assert timeline.clock.is_exact
        assert hops(timeline) == replay(schedule, 10**6, model)


@given(schedules(), models)
def test_places_of_what_is_sent_give_the_run_of_all_ranks_and_chunks(schedule, model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_MOST_PAIRS", 0)
        patch.setattr(kernels, "_MOST_NUMBERED", 0)
        few = simulate(schedule, 1000, model)
    every = simulate(schedule, 1000, model)
    assert (few.hop_start == every.hop_start).all()


def test_many_pairs_of_a_rank_and_a_chunk_take_the_memory_of_the_sends():
    """2**30 pairs of an all_to_all of 1,024 ranks would be 4 GiB; its sends are some megabytes."""
    ranks, each = 1024, np.arange(1024)
    src, dst = np.repeat(each, ranks), np.tile(each, ranks)
    goes = src != dst
    chunk = np.flatnonzero(goes).astype(np.int32)
    places = kernels.places_of(src[goes], dst[goes], chunk, ranks, ranks * ranks)
    assert places.count == len(chunk) + 1
    assert len(np.unique(places.get)) == len(chunk)
    assert (places.have == len(chunk)).all()


@given(schedules(), models)
def test_links_serve_one_message_at_a_time_and_sends_wait_for_their_chunks(schedule, model):
    timeline = simulate(schedule, 10**6, model)
    busy = sorted(zip(timeline.hop_link, timeline.hop_start, timeline.hop_busy, strict=True))
    for (link, start, length), (next_link, next_start, _) in itertools.pairwise(busy):
        assert link != next_link or start + length <= next_start
    src, dst, step = schedule.src, schedule.dst, schedule.step
    for i in range(schedule.num_sends):
        before = (dst == src[i]) & (schedule.chunk == schedule.chunk[i]) & (step < step[i])
        assert (timeline.end[before] <= timeline.start[i] + 1e-15).all()


@given(schedules(), models, st.integers(1, 7))
def test_utilization_over_time_adds_up_to_the_whole(schedule, model, bins):
    timeline = simulate(schedule, 10**6, model)
    parts = timeline.utilization(bins)
    assert parts.shape == (schedule.topology.num_links, bins)
    np.testing.assert_allclose(parts.mean(axis=1), timeline.utilization(), atol=1e-9)
    assert (parts <= 1 + 1e-9).all()
    assert (parts >= 0).all()


@given(schedules(networks=grids(9)), models)
def test_time_grows_with_bytes_and_scales_without_latency(schedule, model):
    small, large = simulate(schedule, 10**5, model), simulate(schedule, 2 * 10**5, model)
    assert small.exact_time <= large.exact_time
    assert large.exact_time <= 2 * small.exact_time


def ring_all_gather(n: int) -> Schedule:
    topology = topologies.ring(n, bidirectional=False)
    link = np.argsort(topology.src)
    step, rank = np.divmod(np.arange(n * (n - 1)), n)
    return Schedule.from_sends(
        topology, Collective("all_gather", n), step, link[rank], (rank - step) % n
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_ring_is_its_closed_form(n, model):
    schedule = ring_all_gather(n)
    timeline = simulate(schedule, 10**6, model)
    step = Fraction(1, 2 * 10**6) + Fraction(10**6, n) / (50 * 10**9)
    assert timeline.clock.is_exact
    assert timeline.exact_time == (n - 1) * step
    assert timeline.algbw == pytest.approx(1e6 / float((n - 1) * step))
    assert timeline.busbw == pytest.approx(timeline.algbw * (n - 1) / n)


@pytest.mark.parametrize(("model", "expected"), [("astra", 8.5e-6), ("tacos", 10e-6)])
def test_latency_holds_the_link_in_one_model_only(model, expected):
    """Four messages of 2 us in a row on one link, 0.5 us on the way."""
    schedule = Schedule.from_sends(
        topologies.ring(2), Collective("broadcast", 2, 4), [0, 1, 2, 3], [0] * 4, [0, 1, 2, 3]
    )
    assert simulate(schedule, 4e5, model).time == pytest.approx(expected, rel=1e-12)


def test_chunks_that_travel_together_pay_alpha_once():
    topology = topologies.ring(2)
    collective = Collective("broadcast", 2, 4)
    together = Schedule.from_sends(topology, collective, [0] * 4, [0] * 4, [0, 1, 2, 3])
    assert together.num_messages == 1
    assert simulate(together, 4e5, "tacos").time == pytest.approx(8.5e-6)


@pytest.mark.parametrize("model", MODELS)
def test_switch_stores_and_forwards(model):
    """0.5 us and 2 us into the switch, as much out of it."""
    topology = topologies.switch(3)
    edges = shortest_routes(topology, np.asarray([0]), np.asarray([1]))
    schedule = Schedule.from_sends(topology, Collective("broadcast", 3), [0], [0], [0], edges=edges)
    assert simulate(schedule, 1e5, model).time == pytest.approx(5e-6)


# Expected times of the tests of TACOS (C++) v1.3.0, microseconds: sides, alpha us, GiB/s, chunks,
# GiB, time. Each is (steps of the lower bound) x (alpha + chunk / bandwidth), a link being held for
# both; the schedule here is given by its steps alone, so the simulator is what is compared.
PEER = [
    ("mesh", (5, 5), 0.5, 50, 1, 1, 12, 9606.0),
    ("mesh", (10, 10), 1, 100, 2, 1, 99, 5049.0),
    ("mesh", (7, 12), 1, 100, 3, 4, 125, 19966.27),
    ("torus", (3, 3, 3), 0.5, 50, 1, 1, 5, 3706.20),
    ("torus", (3, 4, 5), 0.5, 50, 2, 2, 20, 6676.67),
    ("torus", (4, 2, 3), 0.5, 50, 3, 3, 14, 11673.67),
    ("mesh", (3, 3, 3), 0.5, 50, 1, 1, 9, 6671.17),
    ("mesh", (3, 4, 5), 0.5, 50, 2, 2, 40, 13353.33),
    ("mesh", (4, 2, 3), 0.5, 50, 3, 3, 23, 19178.17),
]


@pytest.mark.parametrize(("family", "sides", "alpha", "speed", "k", "gib", "steps", "us"), PEER)
def test_peer_published_times(family, sides, alpha, speed, k, gib, steps, us):
    from jaxcoll.synth import Tacos

    make = getattr(topologies, family)
    topology = make(*sides, alpha=alpha * 1e-6, bandwidth=speed * GIB)
    schedule = Tacos().synthesize(topology, Collective("all_gather", topology.num_ranks, k))
    assert schedule.num_steps == steps
    assert simulate(schedule, gib * GIB, "tacos").time * 1e6 == pytest.approx(us, rel=1e-5)
    assert simulate(schedule, gib * GIB, "astra").time * 1e6 == pytest.approx(us, rel=0.015)


def test_ticks_are_rounded_up_where_no_tick_is_exact():
    """Bandwidths whose common denominator does not fit 62 bits: late by less than a tick a hop."""
    speeds = [Fraction(10**12 + 39 + 2 * i, 997 + i) for i in range(6)]
    topology = topologies.ring(3)
    topology = type(topology)(
        3,
        topology.src,
        topology.dst,
        topology.alpha,
        speeds,  # type: ignore[arg-type]
    )
    link = {
        (int(u), int(v)): i for i, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    schedule = Schedule.from_sends(
        topology,
        Collective("all_gather", 3),
        [0, 0, 0, 1, 1, 1],
        [link[r, (r + 1) % 3] for r in (0, 1, 2, 0, 1, 2)],
        [0, 1, 2, 2, 0, 1],
    )
    timeline = simulate(schedule, 10**9 + 7)
    exact = max(hop[3] for row in replay(schedule, 10**9 + 7, "astra") for hop in row)
    assert not timeline.clock.is_exact
    assert exact <= timeline.exact_time <= exact + 3 * timeline.clock.tick


@pytest.mark.parametrize("nbytes", [0, -1, float("nan"), float("inf"), "1 MB"])
def test_bytes_are_refused(nbytes):
    with pytest.raises(ScheduleError, match="nbytes"):
        simulate(ring_all_gather(3), nbytes)


def test_unknown_model_is_refused():
    with pytest.raises(ScheduleError, match=r"one of astra, tacos, got 'fluid'"):
        simulate(ring_all_gather(3), 1, "fluid")


def test_nothing_to_do_takes_no_time():
    topology = topologies.ring(1)
    nothing = Schedule.from_sends(topology, Collective("all_reduce", 1), [], [], [])
    timeline = simulate(nothing, 1e6)
    assert timeline.time == 0
    assert timeline.algbw == 0
    assert timeline.mean_utilization() == 0


@pytest.mark.parametrize(("n", "sizes"), [(24, 16), (48, 32)])
def test_many_sizes_on_links_of_many_speeds(n, sizes):
    """More cases of a size and a speed than a byte counts, or than are worth a table of them."""
    src = np.arange(n)
    network = Topology(n, src, (src + 1) % n, np.full(n, 1e-6), 1e9 * (src + 1))
    # In one step rank r sends the first r % sizes + 1 of its chunks, as one message.
    sends = [(r, r * sizes + c) for r in range(n) for c in range(r % sizes + 1)]
    rank, chunk = np.asarray(sends).T
    schedule = Schedule.from_sends(
        network,
        Collective("all_gather", n, sizes),
        np.zeros(len(rank), np.int64),
        rank,
        chunk,
        np.zeros(len(rank), bool),
    )
    one = 1e6 / (n * sizes)
    expected = 1e-6 + one * (rank % sizes + 1) / (1e9 * (rank + 1))
    np.testing.assert_allclose(simulate(schedule, 1e6).end, expected, rtol=1e-9)


def test_few_values_among_many_take_no_table_of_all():
    """A million cases of a size and a speed, of which three occur: their own bytes, not a table."""
    values = np.array([10**6, 3, 10**6, 0])
    tracemalloc.start()
    used, which, counts = distinct(values, 10**6 + 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**5
    assert used.tolist() == [0, 3, 10**6]
    assert used[which].tolist() == values.tolist()
    assert counts.tolist() == [1, 1, 2]
