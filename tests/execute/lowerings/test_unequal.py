"""Programs for blocks of unequal sizes, run in NumPy: every row arrives, nothing else is sent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcoll import Collective, synthesize, topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.execute.lowerings.rounds import Round, split_long_steps
from jaxcoll.execute.lowerings.unequal import Unequal, cut, unequal_program

RANKS = 4
SHARES = np.array([[0, 7, 1, 2], [3, 1, 0, 0], [2, 2, 0, 9], [5, 0, 1, 0]])


def schedules():
    """Direct and by way of others, whole and in chunks, of equal and of unequal shares, grouped."""
    ring, star = topologies.ring(RANKS), topologies.star(RANKS)
    pairs = Collective("all_to_all", RANKS, groups=((0, 2), (3, 1)))
    yield synthesize(star, "all_to_all", "direct")
    yield synthesize(ring, "all_to_all", "min_congestion", chunks=3)
    yield synthesize(ring, pairs, "min_congestion")
    for network in (ring, star):
        yield synthesize(network, Collective("all_to_all", RANKS, shares=SHARES), "open_shop")


SCHEDULES = tuple(schedules())


def amounts_of(schedule, draw) -> PairRows:
    """Rows for those pairs for which a schedule has chunks."""
    what = schedule.collective
    rows = np.zeros((RANKS, RANKS), np.int64)
    for s, d in set(zip(what.owner.tolist(), what.target.tolist(), strict=True)):
        rows[s, d] = 0 if s == d else draw(st.integers(0, 9))
    return PairRows(rows)


def replayed(program) -> tuple[np.ndarray, int]:
    """The rows of the results, each as (source, number among what that sends), and rows sent."""
    inputs, outputs = program.input_rows(), program.output_rows()
    buffer = np.full((RANKS, program.num_rows, 2), -1)
    for rank in range(RANKS):
        for number, row in enumerate(inputs[rank]):
            if row >= 0:
                buffer[rank, row] = rank, number
    sent = 0
    for rounds in program.steps:
        before = buffer.copy()
        for round_ in rounds:
            sent += len(round_.pairs) * round_.size
            assert max(np.bincount(np.ravel(round_.pairs).reshape(-1, 2)[:, 0])) == 1
            for u, v in round_.pairs:
                has = round_.send[u] >= 0
                buffer[v, round_.recv[v][has]] = before[u, round_.send[u][has]]
    result = np.full((RANKS, program.outputs, 2), -1)
    for rank in range(RANKS):
        has = outputs[rank] >= 0
        result[rank, has] = buffer[rank, outputs[rank][has]]
    return result, sent


def wanted(pairs: PairRows) -> np.ndarray:
    result = np.full((RANKS, pairs.outputs, 2), -1)
    for s, d in itertools.product(range(RANKS), repeat=2):
        for i in range(pairs.amounts[s, d]):
            result[d, pairs.got_at[s, d] + i] = s, pairs.sent_from[s, d] + i
    return result


@settings(max_examples=60, deadline=None)
@given(data=st.data(), schedule=st.sampled_from(SCHEDULES), spare=st.integers(0, 12))
def test_all_rows_arrive(data, schedule, spare):
    pairs = amounts_of(schedule, data.draw)
    runs = Unequal(schedule, pairs, spare)
    for each, rows in ((runs, pairs), (runs.reverse(), pairs.transposed())):
        program = each.program
        result, sent = replayed(program)
        assert program.pairs is not None
        np.testing.assert_array_equal(program.pairs.amounts, rows.amounts)
        np.testing.assert_array_equal(result, wanted(program.pairs))
        np.testing.assert_array_equal(replayed(split_long_steps(program))[0], result)
        assert len(program.steps) <= schedule.num_steps
        if spare == 0 and program.is_direct:
            assert sent == pairs.amounts.sum()


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_rows_that_nobody_forwards_are_placed_by_rounds(data):
    """All messages of a round lie in the same rows, and come back to where they were."""
    runs = Unequal(SCHEDULES[0], amounts_of(SCHEDULES[0], data.draw))
    program, back = runs.program, runs.reverse().program
    assert program.is_direct
    assert program.pairs is not None
    assert back.pairs is not None
    assert program.inputs == program.outputs == back.inputs <= runs.pairs.amounts.max() * 3
    np.testing.assert_array_equal(back.pairs.got_at, program.pairs.sent_from.T)
    np.testing.assert_array_equal(back.pairs.sent_from, program.pairs.got_at.T)
    for r in (r for rounds in program.steps for r in rounds):
        assert len({int(r.send[u, 0]) for u, _ in r.pairs}) == 1
        assert {int(r.recv[v, 0]) for _, v in r.pairs} == {int(r.send.max(0)[0]) - program.outputs}
    assert runs.reverse().reverse() == runs


def test_pairs_without_rows_have_no_messages():
    rows = np.zeros((RANKS, RANKS), np.int64)
    rows[1, 2] = 5
    program = unequal_program(SCHEDULES[0], PairRows(rows))
    assert [r.pairs for rounds in program.steps for r in rounds] == [((1, 2),)]
    assert (program.inputs, program.outputs) == (5, 5)


def test_a_schedule_without_chunks_for_a_pair_is_refused():
    rows = np.zeros((RANKS, RANKS), np.int64)
    rows[1, 2] = 5  # SHARES has 0 there
    with pytest.raises(ScheduleError, match="no chunks for 1->2, which have rows"):
        unequal_program(SCHEDULES[3], PairRows(rows))


def test_rows_beyond_32_bits_are_refused():
    with pytest.raises(CollectiveError, match="32-bit offsets"):
        PairRows(np.array([[0, 2**30], [0, 0]]))


def padded(lengths, ends, spare) -> int:
    """Rows of messages that are cut at some ends, with padding, and the price of the parts."""
    total = 0
    for first, end in itertools.pairwise((0, *ends)):
        total += sum(end - first for length in lengths if length > first) + spare
    return total


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    spare=st.integers(0, 15),
)
def test_rounds_are_cut_as_is_best(lengths, spare):
    n, most = len(lengths), max(lengths)
    send = np.full((2 * n, most), -1, np.int32)
    for rank, length in enumerate(lengths):
        send[rank, :length] = np.arange(length)
    recv = np.roll(send, n, axis=0)
    pairs = tuple((rank, rank + n) for rank in range(n))
    parts = cut(Round(pairs, send, recv, np.zeros(send.shape, bool)), spare)
    here = sum(len(part.pairs) * part.size + spare for part in parts)
    ends = sorted(set(lengths))
    least = min(
        padded(lengths, (*some, most), spare)
        for count in range(len(ends))
        for some in itertools.combinations(ends[:-1], count)
    )
    assert here == least
    np.testing.assert_array_equal(np.hstack([part.send for part in parts]), send)
