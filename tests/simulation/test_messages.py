"""Any traffic: closed forms, and schedules written out as messages."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Topology, bound, simulate, synthesize, topologies
from jaxcoll.bounds import optimum
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.io import json
from jaxcoll.paths import shortest_routes
from jaxcoll.simulation import MODELS, Message, simulate_messages
from tests.simulation.event_queue import arrivals
from tests.strategies import grids, schedules

RING = topologies.ring(4)  # 0.5 us and 50 GB/s per link


def test_messages_share_a_link_first_come_first_served():
    times = simulate_messages(
        RING,
        [
            Message((0, 1), 50_000),  # 1 us
            Message((0, 1), 50_000, release=0.25e-6),
            Message((0, 1), 50_000, release=0.125e-6),
        ],
    )
    assert times.clock.is_exact
    start = [int(t) * times.clock.tick for t in times.start]
    assert start == [0, Fraction(2, 10**6), Fraction(1, 10**6)]


def test_messages_wait_for_others_and_are_forwarded():
    messages = [Message((0, 1, 2), 50_000), Message((2, 3), 100_000, after=(0,))]
    for model in MODELS:
        assert simulate_messages(RING, messages, model=model).time == pytest.approx(5.5e-6)


def test_ties_are_served_in_the_order_listed():
    times = simulate_messages(RING, [Message((0, 1), 1000), Message((0, 1), 1000)])
    assert times.start[0] < times.start[1]


def test_the_fastest_of_parallel_links_is_taken():
    topology = type(RING)(2, [0, 0, 1], [1, 1, 0], [0.0] * 3, [1e9, 4e9, 1e9])  # type: ignore[arg-type]
    assert simulate_messages(topology, [Message((0, 1), 4e9)]).time == pytest.approx(1)


@given(schedules(kinds=("broadcast", "scatter"), networks=grids(9), grouped=False), st.data())
def test_schedules_written_out_as_messages_take_no_longer(schedule, data):
    """Without the order on links a run may differ, but a lone message per link and step cannot."""
    model = data.draw(st.sampled_from(MODELS))
    sizes = schedule.collective.chunk_bytes(10**6)
    messages, index = [], {}
    for m, (first, last) in enumerate(
        zip(schedule.message_ptr[:-1], schedule.message_ptr[1:], strict=True)
    ):
        src, dst = int(schedule.src[first]), int(schedule.dst[first])
        chunks = [int(c) for c in schedule.chunk[first:last]]
        after = tuple(sorted({index[src, c] for c in chunks if (src, c) in index}))
        messages.append(Message((src, dst), sum(sizes[c] for c in chunks), after=after))
        index.update({(dst, c): m for c in chunks})
    times = simulate_messages(schedule.topology, messages, model=model)
    timeline = simulate(schedule, 10**6, model)
    if len({m.route for m in messages}) == len(messages):
        assert times.exact_time == timeline.exact_time
    assert times.time > 0 or not messages


@st.composite
def traffic(draw):
    """A network of few speeds, so that many messages meet, and routes along its links."""
    n = draw(st.integers(2, 5))
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    links = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=12, unique=True))
    alpha = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=12, max_size=12))
    speed = draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=12, max_size=12))
    topology = Topology(
        n,
        [u for u, _ in links],  # type: ignore[arg-type]
        [v for _, v in links],  # type: ignore[arg-type]
        alpha[: len(links)],  # type: ignore[arg-type]
        speed[: len(links)],  # type: ignore[arg-type]
        allow_unreachable=True,
    )
    messages = []
    for i in range(draw(st.integers(1, 12))):
        route = list(draw(st.sampled_from(links)))
        for _ in range(draw(st.integers(0, 3))):
            onward = [v for u, v in links if u == route[-1]]
            if onward:
                route.append(draw(st.sampled_from(onward)))
        after = draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []
        size, release = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 0, 1, 2]))
        messages.append(Message(tuple(route), size, release=release, after=tuple(after)))
    return topology, messages


@given(traffic())
def test_messages_are_served_in_the_order_of_an_event_queue(case):
    topology, messages = case
    times = simulate_messages(topology, messages, model="astra")
    assert [int(t) * times.clock.tick for t in times.end] == arrivals(topology, messages)


def test_simultaneous_arrivals_are_served_in_the_order_they_were_pushed():
    """Message 1 starts first, as message 0 is in a queue; both are at vertex 2 after 3 s."""
    topology = Topology(
        4,
        [0, 1, 2],  # type: ignore[arg-type]
        [2, 2, 3],  # type: ignore[arg-type]
        [0.0, 2.0, 0.0],  # type: ignore[arg-type]
        [1.0, 1.0, 1.0],  # type: ignore[arg-type]
        allow_unreachable=True,
    )
    messages = [Message((0, 2, 3), 1, after=(2,)), Message((1, 2, 3), 1), Message((0, 2), 2)]
    ends = {model: simulate_messages(topology, messages, model=model).end for model in MODELS}
    assert ends["astra"][1] < ends["astra"][0]
    assert ends["tacos"][0] < ends["tacos"][1]


def test_ranks_need_not_reach_each_other_for_traffic_only():
    one_way = {"src": [0], "dst": [1], "alpha": [1e-6], "bandwidth": [1e9]}
    with pytest.raises(TopologyError, match="no path from rank 1 to rank 0"):
        Topology(2, **one_way)
    topology = Topology(2, **one_way, allow_unreachable=True)
    assert simulate_messages(topology, [Message((0, 1), 1000)]).time == pytest.approx(2e-6)
    for refused in (
        lambda: synthesize(topology, "all_gather"),
        lambda: bound(topology, "all_gather", 1000),
        lambda: optimum(topology),
        lambda: json.dumps(topology),
        lambda: shortest_routes(topology, np.asarray([1]), np.asarray([0])),
    ):
        with pytest.raises(TopologyError, match="no path from rank 1 to rank 0"):
            refused()


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([Message((0, 2), 1)], "no link 0->2"),
        ([Message((0, 1), 1, after=(3,))], "message 3"),
        ([Message((0, 1), 1, after=(0,))], "wait for each other"),
        ([Message((0, 1), 1, after=(1,)), Message((1, 2), 1, after=(0,))], "wait for each other"),
    ],
)
def test_bad_traffic_is_refused(messages, text):
    with pytest.raises(ScheduleError, match=text):
        simulate_messages(RING, messages)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"route": (0,)}, "at least two vertices"),
        ({"route": "01"}, "route must be a sequence"),
        ({"nbytes": 0}, "nbytes"),
        ({"nbytes": True}, "nbytes"),
        ({"release": -1}, "release"),
        ({"release": float("nan")}, "release"),
        ({"after": ("a",)}, r"after\[0\] must be an integer"),
        ({"after": (-1,)}, r"after\[0\] must be an integer of at least 0"),
    ],
)
def test_bad_messages_are_refused_when_made(fields, text):
    with pytest.raises(ScheduleError, match=text):
        Message(**{"route": (0, 1), "nbytes": 1, **fields})


def test_no_traffic_takes_no_time():
    assert simulate_messages(RING, []).time == 0
