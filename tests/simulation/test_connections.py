"""Processes whose connections share links fairly, held against a replay with fractions."""

from __future__ import annotations

import collections
import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.execute.links.program import operations, tables
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import shipped_costs
from tests import strategies


def replay(schedule, nbytes: int) -> Fraction:
    """The time of the last arrival, by fair shares of every event, apart from charges.

    A connection is what one rank sends another; a message is what it sends in a step.
    """
    edges, topology = schedule.edges, schedule.topology
    size = schedule.collective.chunk_bytes(nbytes)
    sends = list(
        zip(
            *(getattr(schedule, name).tolist() for name in ("step", "src", "dst", "chunk", "edge")),
            strict=True,
        )
    )
    arrivals, departures = collections.defaultdict(list), collections.defaultdict(list)
    length = collections.Counter((t, e) for t, _, _, _, e in sends)
    for i, (t, u, v, chunk, e) in enumerate(sends):
        arrivals[v, chunk].append((t, i))
        departures[u, chunk].append((t, -length[t, e]))
    never = (schedule.num_steps, 0)

    def urgency(i: int) -> tuple[tuple[int, int], int]:
        t, _, v, chunk, _ = sends[i]
        return min((each for each in departures[v, chunk] if each[0] > t), default=never), chunk

    queues: dict[int, list[list[int]]] = collections.defaultdict(list)
    for t, e in sorted(length):
        rows = [i for i, send in enumerate(sends) if (send[0], send[4]) == (t, e)]
        queues[e].append(sorted(rows, key=urgency))
    arrived: set[int] = set()
    under_way: dict[int, Fraction] = {}  # bytes left of a connection's present row
    due: dict[int, Fraction] = {}
    now = Fraction(0)

    def is_ready(rows: list[int]) -> bool:
        return all(
            i in arrived
            for row in rows
            for t, i in arrivals[sends[row][1], sends[row][3]]
            if t < sends[row][0]
        )

    begun: set[int] = set()
    while True:
        for e, messages in queues.items():
            if e not in under_way and messages and (e in begun or is_ready(messages[0])):
                begun.add(e)
                under_way[e] = Fraction(size[sends[messages[0][0]][3]])
        if not under_way and not due:
            return now
        room = dict(enumerate(topology.exact_bandwidth))
        rate: dict[int, Fraction] = {}
        while len(rate) < len(under_way):
            users = collections.Counter(
                link for e in under_way if e not in rate for link in edges.path(e)
            )
            link = min(users, key=lambda each: room[each] / users[each])
            fair = room[link] / users[link]
            for e in under_way:
                if e not in rate and link in edges.path(e):
                    rate[e] = fair
                    for each in edges.path(e):
                        room[each] -= fair
        times = [left / rate[e] for e, left in under_way.items()] + [
            at - now for at in due.values()
        ]
        ahead = min(times)
        now += ahead
        for e in list(under_way):
            under_way[e] -= rate[e] * ahead
            if under_way[e] == 0:
                del under_way[e]
                row = queues[e][0].pop(0)
                due[row] = now + sum(
                    (Fraction(float(topology.alpha[link])) for link in edges.path(e)), Fraction(0)
                )
                if not queues[e][0]:
                    queues[e].pop(0)
                    begun.discard(e)
        for row in [row for row, at in due.items() if at <= now]:
            del due[row]
            arrived.add(row)


def links_alone(schedule, nbytes: int) -> float:
    run = simulate(schedule, nbytes, execution="links")
    return float(run.exact_time - run.charge)


@settings(max_examples=60)
@given(strategies.schedules(networks=strategies.topologies(2, 6, switches=True, parallel=False)))
def test_times_are_those_of_a_replay(schedule):
    sent = shipped_costs("cpu", 8, has_links=True).as_sent(schedule)
    if not sent.num_sends:
        return
    assert links_alone(schedule, 2**20) == pytest.approx(float(replay(sent, 2**20)), rel=1e-6)


def test_connections_share_a_cable():
    """Two messages through a switch at once arrive together, after the time of both."""
    topology = topologies.switch(3, alpha=0, bandwidth=1e6)
    schedule = jc.synthesize(topology, "broadcast", synthesizer="direct")
    run = simulate(schedule, 10**6, execution="links")
    assert run.hop_start.max() == 0
    assert links_alone(schedule, 10**6) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("kind", "maker", "part"),
    [
        # Half of the first ring's message is what the second ring's waits for.
        ("reduce_scatter", "ring_2d", Fraction(2, 3)),
        # Of the five chunks in a message of the second step one goes on in a message of eight, and
        # two in messages of two.
        ("all_gather", "bucket", Fraction(2 + 1 + 8, 2 + 5 + 8)),
    ],
)
def test_chunks_that_are_sent_on_soonest_go_first(kind, maker, part):
    torus = topologies.torus(2, 4, alpha=0, bandwidth=1e6)
    schedule = jc.synthesize(torus, kind, chunks=4, synthesizer=maker)
    by_message = float(simulate(schedule, 8 * 10**6).time)
    assert links_alone(schedule, 8 * 10**6) == pytest.approx(by_message * float(part))


@given(strategies.schedules(networks=strategies.topologies(2, 6, switches=True)))
def test_sender_and_receiver_agree_on_the_order_of_rows(schedule):
    """The i-th row of a message that leaves is the one that arrives as its i-th."""
    program = permute_program(schedule)
    pairs = {
        (int(t), int(u), int(v), int(a), int(b))
        for t, u, v, a, b, _ in zip(*operations(program), strict=True)
    }
    leaving, arriving = {}, {}
    for rank, table in enumerate(tables(program)):
        numbers = iter(table.tolist())
        _, _, into, out = (next(numbers) for _ in range(4))
        for _ in range(into + out):
            next(numbers)
        for found in (leaving, arriving):
            for _ in range(next(numbers)):
                peer = next(numbers)
                for _ in range(next(numbers)):
                    step, rows = next(numbers), next(numbers)
                    listed = list(itertools.islice(numbers, 4 * rows))[::4]
                    ends = (rank, peer) if found is leaving else (peer, rank)
                    found[step, *ends] = listed
    assert leaving.keys() == arriving.keys()
    together = {
        (*key, a, b) for key in leaving for a, b in zip(leaving[key], arriving[key], strict=True)
    }
    assert together == pairs
