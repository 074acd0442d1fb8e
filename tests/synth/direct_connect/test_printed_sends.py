"""Sends of the schedules that the dissertation draws: Figs. 3.1, 3.2, 3.4, 3.5 and A.6."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from jaxcoll.bounds.moore import Cost, cost
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect.expansions import DegreeExpansion, LineGraph, bfb_all_gather
from jaxcoll.topologies import generative as gen
from jaxcoll.topologies import ring
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

Send = tuple[int, int, int, int]  # step from 1, owner, from, to


def chunks_of(schedule: Schedule) -> dict[Send, set[int]]:
    """Which chunks of an owner's shard cross a link in a step."""
    parts = schedule.collective.chunks_per_shard
    found: dict[Send, set[int]] = {}
    columns = (schedule.step + 1, schedule.chunk // parts, schedule.src, schedule.dst)
    for *where, chunk in zip(*columns, schedule.chunk % parts, strict=True):
        step, owner, src, dst = map(int, where)
        found.setdefault((step, owner, src, dst), set()).add(int(chunk))
    return found


def test_figure_3_1():
    """In step 1 every rank sends its shard to both neighbours, in step 2 they send on a half."""
    schedule = bfb_all_gather(gen.complete_bipartite(2))
    verify(schedule)
    found = chunks_of(schedule)
    a, b, c, d = range(4)
    of_a = {send: chunks for send, chunks in found.items() if send[1] == a}
    assert set(of_a) == {(1, a, a, c), (1, a, a, d), (2, a, c, b), (2, a, d, b)}
    assert of_a[1, a, a, c] == of_a[1, a, a, d] == {0, 1}
    assert sorted(map(sorted, (of_a[2, a, c, b], of_a[2, a, d, b]))) == [[0], [1]]
    assert len(found) == 4 * len(of_a)


def test_figure_3_2():
    """The broadcast paths of rank ca of L(K2,2), made of those of rank a of K2,2."""
    base = gen.complete_bipartite(2)
    gather = bfb_all_gather(base)
    halves = chunks_of(gather)
    digraph, schedule = LineGraph().all_gather(base, gather)
    verify(schedule)
    arcs = [f"{'abcd'[u]}{'abcd'[v]}" for u, v in zip(base.tails, base.heads, strict=True)]
    assert digraph.size == 8
    found = {
        (step, arcs[src], arcs[dst]): chunks
        for (step, owner, src, dst), chunks in chunks_of(schedule).items()
        if arcs[owner] == "ca"
    }
    whole, a, b, c, d = {0, 1}, *range(4)
    by_c, by_d = halves[2, a, c, b], halves[2, a, d, b]
    assert found == {
        (1, "ca", "ac"): whole,
        (1, "ca", "ad"): whole,
        (2, "ac", "cb"): whole,
        (2, "ad", "da"): whole,
        (2, "ad", "db"): whole,
        (3, "cb", "bc"): by_c,
        (3, "cb", "bd"): by_c,
        (3, "db", "bc"): by_d,
        (3, "db", "bd"): by_d,
    }
    assert by_c | by_d == whole


def test_figure_3_4():
    """Data of a_i stays among the i-th copies but for its last hop; copies of a get halves."""
    ring = gen.unidirectional_ring(1, 4)
    digraph, schedule = DegreeExpansion(2).all_gather(ring, bfb_all_gather(ring))
    verify(schedule)
    assert (digraph.size, digraph.degree, cost(schedule)) == (8, 2, Cost(4, Fraction(7, 8)))
    found, whole = chunks_of(schedule), set(range(schedule.collective.chunks_per_shard))
    for owner in range(8):  # a1, a2, b1, b2, ...
        place, copy = divmod(owner, 2)
        at = [[2 * ((place + hops) % 4) + j for j in range(2)] for hops in range(4)]
        paths = {(t, owner, at[t - 1][copy], at[t][j]) for t in (1, 2, 3) for j in range(2)}
        assert all(found.pop(send) == whole for send in paths)
        halves = [found.pop((4, owner, last, at[0][1 - copy])) for last in at[3]]
        assert halves[0] | halves[1] == whole
        assert len(halves[0]) == len(halves[1]) == len(whole) // 2
    assert not found


def test_figure_3_5():
    """Of three thirds u2 gets two over each link; u1 gets a shard over each of its two."""
    v1, v2, w1, w2, w3, u1, u2 = range(7)
    arcs = [(v1, w1), (v1, w2), (v2, w2), (v2, w3), (w1, u1), (w2, u1)]
    arcs += [(w, u2) for w in (w1, w2, w3)] + [(u, v) for u in (u1, u2) for v in (v1, v2)]
    ends = np.asarray(sorted(arcs))
    count = len(arcs)
    network = Topology(7, ends[:, 0], ends[:, 1], np.full(count, 1e-6), np.full(count, 1e9))
    schedule = Bfb().synthesize(network, Collective("all_gather", 7, 3))
    verify(schedule)
    into = {
        send: len(chunks)
        for send, chunks in chunks_of(schedule).items()
        if send[0] == 2 and send[3] in (u1, u2)
    }
    assert into == {
        (2, v1, w1, u1): 3,
        (2, v2, w2, u1): 3,
        (2, v1, w1, u2): 2,
        (2, v1, w2, u2): 1,
        (2, v2, w2, u2): 1,
        (2, v2, w3, u2): 2,
    }


@pytest.mark.parametrize("n", [3, 4, 5, 6, 9, 10])
def test_figure_a_6(n):
    """Whole shards both ways; on even rings the opposite rank gets a half from each side."""
    schedule = Bfb().synthesize(ring(n), Collective("all_gather", n, 2))
    verify(schedule)
    found, whole = chunks_of(schedule), {0, 1}
    near = (n - 1) // 2
    expected = {
        (step, r, (r + way * (step - 1)) % n, (r + way * step) % n)
        for r in range(n)
        for step in range(1, near + 1)
        for way in (1, -1)
    }
    assert all(found.pop(send) == whole for send in expected)
    for r in range(n) if n % 2 == 0 else ():
        opposite = (r + n // 2) % n
        sides = [found.pop((n // 2, r, (opposite + way) % n, opposite)) for way in (1, -1)]
        assert sorted(map(sorted, sides)) == [[0], [1]]
    assert not found
