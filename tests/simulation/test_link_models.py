"""Link models: laws that restate the two rows, against a slow replay, and what no law may say."""

from __future__ import annotations

import dataclasses
import sys
import types
from fractions import Fraction
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import simulate, topologies
from jaxcoll.errors import CollectiveError, FormatError, ScheduleError
from jaxcoll.numerics.compiled import COMPILED_AT_ONCE, interpreted, kernel
from jaxcoll.simulation import (
    ASTRA,
    MODELS,
    TACOS,
    LinkModel,
    Message,
    link_model,
    link_models,
    simulate_messages,
)
from jaxcoll.simulation.timeline import Clock
from jaxcoll.synth import Portfolio
from tests.simulation.replay import replay
from tests.simulation.test_messages import traffic
from tests.simulation.test_schedules import hops
from tests.strategies import families, grids, schedules
from tests.strategies import topologies as networks

NETWORKS = networks(max_ranks=6, switches=True, exact=True) | grids(9) | families(7)
SIZES = st.sampled_from([1, 1000, 2**20, Fraction(10**9, 7)])
TORUS, HOSTS = topologies.torus(3, 3), topologies.dgx_h100(2)
OF_TORUS = jc.synthesize(TORUS, "all_reduce", "multitree", chunks=2)
ROUTED = jc.synthesize(HOSTS, "all_gather", "direct", chunks=1)


def as_astra(link, nbytes, serial, alpha, ready, start):
    return serial, serial + alpha


def as_tacos(link, nbytes, serial, alpha, ready, start):
    return serial + alpha, serial + alpha


def congested(link, nbytes, serial, alpha, ready, start):
    """A third of the time that a message has waited, at most twice its own, is lost."""
    busy = serial + min((start - ready) // 3, 2 * serial)
    return busy, busy + alpha


def doubled(topology):
    return topology.scaled(dict.fromkeys(range(topology.num_links), 2))


RESTATED = {
    "astra": LinkModel("as astra", law=as_astra, ties_as_pushed=True),
    "tacos": LinkModel("as tacos", law=as_tacos),
}
CONGESTED = LinkModel("congested", law=congested)


# ---------------------------------------------------------------------- laws against oracles


@settings(max_examples=80)
@given(schedules(networks=NETWORKS), SIZES, st.sampled_from(MODELS))
def test_a_law_that_restates_a_model_gives_its_times(schedule, nbytes, name):
    with interpreted():
        known, restated = (
            simulate(schedule, nbytes, name),
            simulate(schedule, nbytes, RESTATED[name]),
        )
    assume(known.clock.is_exact and restated.clock.is_exact)
    assert hops(restated) == hops(known)
    assert restated.exact_time == known.exact_time
    assert restated.model == f"as {name}"


@settings(max_examples=80)
@given(traffic(), st.sampled_from(MODELS))
def test_so_it_does_for_messages(case, name):
    with interpreted():
        known = simulate_messages(*case, model=name)
        restated = simulate_messages(*case, model=RESTATED[name])
    for times in ("start", "end"):
        first, second = (getattr(each, times) * each.clock.tick for each in (known, restated))
        assert list(first) == list(second)


@settings(max_examples=80)
@given(schedules(networks=NETWORKS), SIZES)
def test_congestion_equals_the_slow_replay(schedule, nbytes):
    with interpreted():
        timeline = simulate(schedule, nbytes, CONGESTED)
    assume(timeline.clock.is_exact)
    tick = timeline.clock.tick

    def law(link, size, *seconds):
        return tuple(t * tick for t in congested(link, float(size), *(s // tick for s in seconds)))

    assert hops(timeline) == replay(schedule, nbytes, law)
    assert timeline.exact_time >= simulate(schedule, nbytes).exact_time


@pytest.mark.parametrize("schedule", [OF_TORUS, ROUTED], ids=["torus", "hosts"])
def test_a_law_is_asked_once_for_each_hop_in_the_order_of_service(schedule):
    asked = []

    def noted(link, nbytes, serial, alpha, ready, start):
        asked.append((int(link), float(nbytes), int(ready), int(start)))
        return congested(link, nbytes, serial, alpha, ready, start)

    with interpreted():
        timeline = simulate(schedule, 10**6, LinkModel("noted", law=noted))
    served = sorted(zip(timeline.hop_link.tolist(), timeline.hop_start.tolist(), strict=True))
    assert sorted((link, start) for link, _, _, start in asked) == served
    for link in range(schedule.topology.num_links):
        starts = [start for at, _, _, start in asked if at == link]
        assert starts == sorted(starts)
    assert all(ready <= start for _, _, ready, start in asked)
    assert any(ready < start for _, _, ready, start in asked)
    # The message came to a link inside its path when it had left the one before.
    arrival = timeline.hop_start + timeline.hop_delay
    inside = np.ones(len(arrival), bool)
    inside[timeline.hop_ptr[:-1]] = False
    came = {(link, start): ready for link, _, ready, start in asked}
    for h in np.flatnonzero(inside):
        assert came[int(timeline.hop_link[h]), int(timeline.hop_start[h])] == arrival[h - 1]


def test_messages_tell_a_law_when_they_came():
    """Of two of 1 s the second comes at 0.25 s and waits for 0.75 s, whatever the rule for ties."""
    ring = topologies.ring(4, alpha=0.0, bandwidth=1e6)
    messages = [Message((0, 1), 1e6), Message((0, 1), 1e6, release=0.25)]
    for pushed in (False, True):
        model = LinkModel("congested", law=congested, ties_as_pushed=pushed)
        with interpreted():
            times = simulate_messages(ring, messages, model=model)
        assert (times.end * float(times.clock.tick)).tolist() == pytest.approx([1, 2.25], 1e-3)


def test_compiled_and_interpreted_are_equal(monkeypatch):
    monkeypatch.setenv(COMPILED_AT_ONCE, "1")
    with interpreted():
        slow = simulate(ROUTED, 10**7, CONGESTED)
    fast = simulate(ROUTED, 10**7, CONGESTED)
    assert hops(fast) == hops(slow)
    # Nothing of a law is kept on disk, under the name of a loop that knows none.
    assert simulate(ROUTED, 10**7).exact_time < fast.exact_time
    _, compiled, seconds = CONGESTED.loops._run_routed.uses()
    assert compiled
    assert not seconds


@pytest.mark.slow
@pytest.mark.parametrize("pushed", [False, True])
def test_so_they_are_for_messages(monkeypatch, pushed):
    monkeypatch.setenv(COMPILED_AT_ONCE, "1")
    model = LinkModel("mine", law=numba.njit(congested), ties_as_pushed=pushed)
    rng = np.random.default_rng(5)
    messages = [
        Message(
            (int(a), 8, int(b)), int(size), release=int(late) * 1e-7, after=(i // 2,) if i else ()
        )
        for i, (a, b, size, late) in enumerate(
            rng.integers([0, 4, 1, 0], [4, 8, 10**6, 9], (300, 4))
        )
    ]
    fast = simulate_messages(topologies.switch(8), messages, model=model)
    with interpreted():
        slow = simulate_messages(topologies.switch(8), messages, model=model)
    assert (fast.start == slow.start).all()
    assert (fast.end == slow.end).all()
    assert fast.time > simulate_messages(topologies.switch(8), messages).time


@pytest.mark.parametrize("wrap", [numba.njit, kernel()])
def test_a_law_may_be_compiled_already(wrap):
    with interpreted():
        run = simulate(OF_TORUS, 1e6, LinkModel("mine", law=wrap(congested)))
        assert run.exact_time == simulate(OF_TORUS, 1e6, CONGESTED).exact_time


def test_laws_of_one_source_and_other_values_are_others():
    def losing(parts):
        def law(link, nbytes, serial, alpha, ready, start):
            busy = serial + (start - ready) // parts
            return busy, busy + alpha

        return LinkModel("losing", law=law)

    few, many = losing(100), losing(2)
    with interpreted():
        assert simulate(OF_TORUS, 1e6, few).time < simulate(OF_TORUS, 1e6, many).time
    assert few.digest != many.digest
    assert losing(2).digest == many.digest


# ---------------------------------------------------------------------- what no law may say


def said(law, **fields):
    with interpreted():
        simulate(OF_TORUS, 10**6, LinkModel("mine", law=law, **fields))


@pytest.mark.parametrize(
    ("law", "match"),
    [
        (lambda k, n, s, a, r, t: (s - 1, s + a), "message 0 has link .* bytes / bandwidth alone"),
        (lambda k, n, s, a, r, t: (-5, s + a), "busy for -5 ticks"),
        (lambda k, n, s, a, r, t: (s, s + a - 1), "bytes / bandwidth and alpha alone"),
        (lambda k, n, s, a, r, t: (s, 2**62), r"from tick 0 on; a run has 2\*\*62 ticks"),
        (lambda k, n, s, a, r, t: (2**61, s + a), r"a run has 2\*\*62 ticks"),
        (lambda k, n, s, a, r, t: (s, (9 * s if r == t else s) + a), "no message may overtake"),
        (lambda k, n, s, a, r, t: (1.5 * s, s + a), "TypeError.*return two integers"),
        (lambda k, n, s, a, r, t: s, "return two integers"),
        (lambda k: (k, k), "it must take \\(link, nbytes, serial, alpha, ready, start\\)"),
        (lambda k, n, s, a, r, t: (s, 2**70), "OverflowError"),
        (lambda k, n, s, a, r, t: (s, {}[k]), "KeyError"),
    ],
)
def test_what_no_law_may_say(law, match):
    with pytest.raises(ScheduleError, match=match) as refused:
        said(law)
    assert "'mine'" in str(refused.value)


def test_a_compiled_law_is_refused_alike(monkeypatch):
    monkeypatch.setenv(COMPILED_AT_ONCE, "1")

    def halves(link, nbytes, serial, alpha, ready, start):
        return serial * 1.5, serial + alpha

    with pytest.raises(ScheduleError, match=r"'mine' failed, .*return two integers"):
        simulate(OF_TORUS, 10**6, LinkModel("mine", law=halves))


def test_a_law_may_keep_a_link_busy_after_the_arrival():
    """The least that is refused is what bounds count on, not more."""
    with interpreted():
        run = simulate(
            OF_TORUS, 1e6, LinkModel("resting", law=lambda k, n, s, a, r, t: (9 * s, s + a))
        )
    assert run.time > simulate(OF_TORUS, 1e6).time


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""}, {"name": 3}, {"name": "a\nb"}, {"name": "x" * 61}, {"law": 3},
        {"law": "astra"}, {"law": len}, {"network": doubled}, {"law": as_astra, "network": 3},
        {"law": as_astra, "alpha_occupies": True}, {"ties_as_pushed": 1}, {"alpha_occupies": None},
    ],
)  # fmt: skip
def test_models_that_are_none(fields):
    with pytest.raises(ScheduleError):
        LinkModel(**{"name": "mine", **fields})


def test_a_row_of_the_library_may_have_a_law(monkeypatch):
    """The recipe of CONTRIBUTING.md: a row beside the others, read as the module is imported."""
    source = Path(link_models.__file__).read_text(encoding="utf-8")
    row = 'LATE = LinkModel("late", law=lambda *times: times[2:4])\n'
    before, rows, after = source.partition("LINK_MODELS: Mapping")
    copy = types.ModuleType("jaxcoll.simulation.link_models_with_a_row")
    monkeypatch.setitem(sys.modules, copy.__name__, copy)
    exec(compile(before + row + rows + after, copy.__name__, "exec"), copy.__dict__)
    assert copy.LATE.name == "late"


def test_the_lookup():
    assert link_model("astra") is ASTRA
    assert link_model(CONGESTED) is CONGESTED
    assert link_model(dataclasses.replace(TACOS)) == TACOS
    assert str(TACOS) == TACOS.digest == "tacos"
    with pytest.raises(ScheduleError, match="model must be one of astra, tacos, got 'exact'"):
        link_model("exact")
    with pytest.raises(CollectiveError, match="already the name of another model"):
        link_model(LinkModel("tacos", law=as_tacos), CollectiveError)


# ---------------------------------------------------------------------- bounds


@settings(max_examples=40)
@given(schedules(networks=networks(max_ranks=5, switches=True) | grids(6)), SIZES, st.booleans())
def test_no_run_beats_the_bound_of_its_model(schedule, nbytes, is_compressed):
    def shrunk(link, nbytes, serial, alpha, ready, start):
        busy = -(-serial // 2) + (start - ready) // 5
        return busy, busy + alpha

    model = LinkModel("shrunk", law=shrunk, network=doubled) if is_compressed else CONGESTED
    network = model.bounded_by(schedule.topology.forwarding_only())
    with interpreted():
        run = simulate(schedule, nbytes, model)
    assert jc.bound(network, schedule.collective, nbytes).time <= run.time * (1 + 1e-9)


def test_a_law_is_held_to_the_network_that_it_states():
    def halved(link, nbytes, serial, alpha, ready, start):
        return -(-serial // 2), -(-serial // 2) + alpha

    def third(link, nbytes, serial, alpha, ready, start):
        return -(-serial // 3), -(-serial // 3) + alpha

    with pytest.raises(ScheduleError, match="state a network="):
        said(halved)
    said(halved, network=doubled)
    with pytest.raises(ScheduleError, match="the link of its network= takes"):
        said(third, network=doubled)
    with pytest.raises(ScheduleError, match=r"must return .* with other speeds"):
        said(halved, network=lambda topology: topologies.ring(9))
    with pytest.raises(ScheduleError, match="must return a Topology"):
        said(halved, network=lambda topology: None)
    half = LinkModel("halved", law=halved, network=doubled)
    with interpreted():
        rows = list(jc.compare(TORUS, "all_gather", [1e6], synthesizers=["bucket"], model=half))
    least = jc.bound(doubled(TORUS), "all_gather", 1e6).time
    assert rows[0].bound_seconds == least
    assert least < jc.bound(TORUS, "all_gather", 1e6).time


# ---------------------------------------------------------------------- through the library


def test_auto_is_fast_by_a_law():
    names = ("ring", "bucket", "direct")
    with interpreted():
        made = jc.synthesize(
            TORUS, "all_reduce", Portfolio(names=names), model=CONGESTED, nbytes=1e6
        )
        claims = made.provenance.certificate
        assert claims["model"] == "congested"
        assert claims["time"] == simulate(made, 1e6, CONGESTED).time
        for name in names:
            other = jc.synthesize(TORUS, "all_reduce", name, model=CONGESTED, nbytes=1e6)
            best = simulate(other, 1e6, CONGESTED).time
            assert float(str(claims["time"])) <= best * 1.011
    assert jc.io.json.loads(jc.io.json.dumps(made)) == made
    with pytest.raises(CollectiveError, match="model must be one of astra, tacos"):
        jc.synthesize(TORUS, "all_reduce", "ring", model="exact")


def test_auto_knows_that_a_law_tells_links_apart():
    """Rows of a torus are copies of one another, but for a law that knows a worn link of one."""
    worn = int(np.flatnonzero((TORUS.src == 8) & (TORUS.dst == 7))[0])

    def law(link, nbytes, serial, alpha, ready, start):
        busy = 8 * serial if link == worn else serial
        return busy, busy + alpha

    model, rows = LinkModel("worn", law=law), [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    by = Portfolio(nbytes=1e6, model=model, names=("ring", "direct"))
    with interpreted():
        made = by.synthesize(TORUS, jc.Collective("all_gather", 9, groups=rows))  # type: ignore[arg-type]
        assert made.provenance.certificate["time"] == simulate(made, 1e6, model).time


def test_compare_by_a_law(tmp_path):
    names, path = ["ring", "bucket"], tmp_path / "table.csv"
    options = {"synthesizers": names, "path": path}
    with interpreted():
        rows = list(jc.compare(TORUS, "all_reduce", [1e6], model=CONGESTED, **options))
        for row in rows:
            made = jc.synthesize(TORUS, "all_reduce", row.synthesizer, nbytes=1e6, model=CONGESTED)
            assert row.seconds == simulate(made, 1e6, CONGESTED).time
            assert (row.percent_of_bound or 101) <= 100
        again = list(jc.compare(TORUS, "all_reduce", [1e6], model=CONGESTED, **options))
        assert again == rows
        with pytest.raises(FormatError):
            list(jc.compare(TORUS, "all_reduce", [1e6], **options))


def test_a_page_names_its_model():
    with interpreted():
        page = jc.pages.schedule(OF_TORUS, 1e6, model=CONGESTED)
        time = simulate(OF_TORUS, 1e6, CONGESTED).time
    assert "<dt>link model</dt><dd>congested</dd>" in page
    assert f"<dd>{time * 1e6:.5g} µs</dd>" in page


def test_trees_in_the_network_by_a_law():
    star = topologies.switch(4).with_in_network(True, True)
    tree = jc.simulation.NetworkTree.shortest(star, 4)
    with interpreted():
        times = {
            name: jc.simulation.simulate_in_network(
                star, "all_reduce", [tree], 1e6, pieces=3, model=name
            ).time
            for name in ("tacos", RESTATED["tacos"], CONGESTED)
        }
    assert times["tacos"] == times[RESTATED["tacos"]]
    assert (
        times[CONGESTED]
        > jc.simulation.simulate_in_network(star, "all_reduce", [tree], 1e6, pieces=3).time
    )


def test_a_law_has_finer_ticks_and_a_longer_run_where_there_is_room():
    times = [Fraction(1, 3), Fraction(1, 2)]
    plain, roomy = (Clock.for_durations(times, Fraction(5), room) for room in (1, 1024))
    assert (plain.tick, roomy.tick) == (Fraction(1, 6), Fraction(1, 6 * 1024))
    for total in (2**40, 2**45, 2**50, 2**51):
        clock = Clock.for_durations(times, Fraction(total), 1024)
        assert 2**59 < 1024 * total / clock.tick < 2**62 or clock.tick == Fraction(1, 6 * 1024)
        assert clock.is_exact == (6 * 1024 * total < 2**62)
    # Of floats of bandwidths that no common tick holds, the run has its room all the same.
    assert Clock.for_durations([Fraction(1, 2**70)], Fraction(1), 1024).tick >= Fraction(1, 2**52)


def test_a_model_is_a_value():
    assert dataclasses.replace(CONGESTED) == CONGESTED
    assert hash(dataclasses.replace(CONGESTED)) == hash(CONGESTED)
    assert RESTATED["astra"] != CONGESTED


@pytest.mark.slow
def test_workers_know_a_law():
    """It goes to other processes by its name, as functions do."""
    with jc.executors.processes(1) as executor:
        rows = jc.compare(
            TORUS, "all_reduce", [1e6], synthesizers=["ring"], model=CONGESTED, executor=executor
        )
        assert [row.seconds for row in rows] == [
            row.seconds
            for row in jc.compare(
                TORUS, "all_reduce", [1e6], synthesizers=["ring"], model=CONGESTED
            )
        ]
