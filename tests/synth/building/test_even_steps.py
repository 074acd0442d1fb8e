"""Steps of equal time: the same sends, sound, within their span, and faster where ranks wait."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import Collective, Topology, simulate, synthesize, topologies, verify
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import ROUNDS, STEPS
from jaxcoll.synth import Tacos
from jaxcoll.synth.building import even_steps
from jaxcoll.synth.building.even_steps import in_even_steps, with_even_steps
from tests.reference import Send, schedule_of
from tests.strategies import schedules

IN_STEPS = ExecutionCosts("tpu", 0, 0, 0, 0, order=STEPS)
IN_ROUNDS = dataclasses.replace(IN_STEPS, order=ROUNDS)


@settings(max_examples=60)
@given(schedules(), st.sampled_from((0.3, 1.0, 2.5, 100.0)), st.sampled_from((IN_STEPS, IN_ROUNDS)))
def test_the_same_sends_in_other_steps_are_a_schedule(schedule, part, costs):
    nbytes = 10**6
    if not schedule.num_sends:
        assert with_even_steps(schedule, nbytes, costs) is schedule
        return
    by_links = simulate(schedule, nbytes)
    longest = max(map(float, schedule.collective.chunk_bytes(nbytes)))
    span = part * longest / float(schedule.topology.bandwidth.min())
    made = in_even_steps(by_links, span)
    verify(made)
    assert sends_of(made) == sends_of(schedule)
    for (_, _), chunks in loads(made, nbytes).items():
        assert sum(chunks) <= span * (1 + 1e-6) or len(chunks) == 1
    fastest = with_even_steps(schedule, nbytes, costs)
    times = [simulate(each, nbytes, execution=costs).exact_time for each in (fastest, schedule)]
    assert times[0] <= times[1]
    assert with_even_steps(schedule, nbytes, costs, by_links.time) is schedule


def sends_of(schedule):
    """All sends, in any order: where from, where to, over which links, of what."""
    edges = schedule.edges
    columns = (schedule.edge.tolist(), schedule.chunk.tolist(), schedule.reduce.tolist())
    return sorted((edges.path(e), chunk, reduce) for e, chunk, reduce in zip(*columns, strict=True))


def loads(schedule, nbytes):
    """The seconds of each chunk by step and link."""
    size = [float(each) for each in schedule.collective.chunk_bytes(nbytes)]
    found: dict[tuple[int, int], list[float]] = {}
    columns = (schedule.step.tolist(), schedule.edge.tolist(), schedule.chunk.tolist())
    for step, edge, chunk in zip(*columns, strict=True):
        for link in schedule.edges.path(edge):
            seconds = size[chunk] / float(schedule.topology.bandwidth[link])
            found.setdefault((step, link), []).append(seconds)
    return found


def test_a_fast_link_carries_four_chunks_while_a_slow_one_carries_one():
    links = [(0, 1, 4.0), (0, 2, 1.0), (1, 0, 4.0), (2, 0, 4.0)]
    src, dst, bandwidth = zip(*links, strict=True)
    star = Topology(3, src, dst, [0.0] * 4, bandwidth)  # type: ignore[arg-type]
    what, nbytes = Collective("scatter", 3, 4), 48.0  # chunks of 4 bytes
    owned = [np.flatnonzero(what.owner == rank).tolist() for rank in range(3)]
    # First all that rank 1 gets in steps of 1 s, then all of rank 2, in steps of 4 s.
    sends = [Send(k, (0,), chunk, False) for k, chunk in enumerate(owned[1])]
    sends += [Send(4 + k, (1,), chunk, False) for k, chunk in enumerate(owned[2])]
    schedule = schedule_of(star, what, sends)
    assert simulate(schedule, nbytes, execution=IN_STEPS).time == pytest.approx(4 * 1 + 4 * 4)
    even = in_even_steps(simulate(schedule, nbytes), 4.0)
    assert [np.count_nonzero(even.step == k) for k in range(4)] == [5, 1, 1, 1]
    assert simulate(even, nbytes, execution=IN_STEPS).time == pytest.approx(4 * 4)


SLOW = topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9).scaled({(0, 1): 0.2, (1, 0): 0.2})
MESH = topologies.mesh(4, 4, alpha=(1e-6, 1e-6), bandwidth=(16e9, 73e9))


@pytest.mark.parametrize(
    ("topology", "kind", "name", "before", "after"),
    [
        (SLOW, "all_gather", "tacos", 1.9, 1.15),
        (SLOW, "all_gather", "forestcoll", 2.3, 1.15),
        (MESH, "all_gather", "tacos", 2.1, 1.09),
        (MESH, "all_gather", "forestcoll", 1.7, 1.09),
        (SLOW, "all_to_all", "min_congestion", 1.9, 1.15),
    ],
)
def test_searches_and_streams_are_fast_in_steps(topology, kind, name, before, after):
    """With eight chunks; in their own steps they take ``before`` times the bound or more."""
    nbytes = 100e6
    least = jc.bound(topology, kind, nbytes, execution=IN_STEPS).time
    for execution, check in ((None, lambda t: t >= before), (IN_STEPS, lambda t: t <= after)):
        made = synthesize(topology, kind, name, chunks=8, nbytes=nbytes, execution=execution)
        assert check(simulate(made, nbytes, execution=IN_STEPS).time / least)


def test_permutes_of_an_all_to_all_gain_too():
    hosts = topologies.dgx_h100(2)
    alone, in_rounds = (
        synthesize(hosts, "all_to_all", "min_congestion", nbytes=1e8, execution=execution)
        for execution in (None, IN_ROUNDS)
    )
    times = [simulate(each, 1e8, execution=IN_ROUNDS).time for each in (in_rounds, alone)]
    assert times[0] < 0.7 * times[1]


def test_schedules_of_many_sends_are_left_as_they_are(monkeypatch):
    schedule = synthesize(SLOW, "all_gather", Tacos(attempts=1), chunks=8)
    monkeypatch.setattr(even_steps, "MOST_SENDS", schedule.num_sends - 1)
    assert with_even_steps(schedule, 1e8, IN_STEPS) is schedule
    monkeypatch.undo()
    assert not np.array_equal(with_even_steps(schedule, 1e8, IN_STEPS).step, schedule.step)
