"""Programs: run on rows in NumPy they do what the schedule says, in the fewest rounds."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.lowerings.scan import stages
from jaxcoll.kinds import NAMES
from jaxcoll.numerics.edge_colouring import max_degree
from tests.execute.harness import schedule_of

PAIRS = ((0, 4), (5, 1), (6, 2), (3, 7))
GATHERS = [
    ("ring", "ring", 1),
    ("one-way", "tacos", 1),
    ("torus", "bucket", 4),
    ("mesh", "tacos", 2),
    ("complete", "direct", 1),
    ("star", "hops", 2),
]


def run_on_sets(program, held):
    """Rows hold the contributions as sorted lists, so that one added twice shows."""
    for rounds in program.steps:
        before = [dict(rows) for rows in held]
        for r in rounds:
            assert len({u for u, _ in r.pairs}) == len({v for _, v in r.pairs}) == len(r.pairs)
            for u, v in r.pairs:
                for sent, received, add in zip(r.send[u], r.recv[v], r.add[v], strict=True):
                    assert (sent < 0) == (received < 0)
                    if sent >= 0:
                        old = held[v].get(int(received), []) if add else []
                        held[v][int(received)] = sorted(old + before[u][int(sent)])
    return held


@pytest.mark.parametrize("case", GATHERS)
def test_all_gather_fills_all_rows(case):
    network, synthesizer, chunks = case
    schedule = schedule_of(network, 8, "all_gather", synthesizer, chunks)
    program = permute_program(schedule)
    assert program.num_rows == 8 * chunks
    start = [{r * chunks + j: [r * chunks + j] for j in range(chunks)} for r in range(8)]
    end = run_on_sets(program, start)
    assert end == [{c: [c] for c in range(8 * chunks)}] * 8


@pytest.mark.parametrize("case", GATHERS)
def test_reduce_scatter_adds_every_contribution_once(case):
    network, synthesizer, chunks = case
    schedule = schedule_of(network, 8, "reduce_scatter", synthesizer, chunks)
    end = run_on_sets(
        permute_program(schedule), [{c: [r] for c in range(8 * chunks)} for r in range(8)]
    )
    for rank in range(8):
        for chunk in range(rank * chunks, (rank + 1) * chunks):
            assert end[rank][chunk] == list(range(8))


def test_relays_take_rows_of_their_own():
    # Groups of opposite ranks of a ring: every chunk passes through strangers.
    program = permute_program(schedule_of("ring", 8, "all_gather", "hops", 1, PAIRS))
    assert program.num_rows > 2
    end = run_on_sets(program, [{int(program.group_index[r]): [r]} for r in range(8)])
    for group in PAIRS:
        for rank in group:
            assert [end[rank][row] for row in range(2)] == [[r] for r in group]


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("case", GATHERS)
def test_rounds_are_as_many_as_the_largest_degrees(case, kind):
    network, synthesizer, chunks = case
    if kind not in ("all_gather", "reduce_scatter", "all_reduce", "reduce_to_some"):
        synthesizer = "direct"
    if synthesizer == "hops" and kind in ("all_reduce", "reduce_to_some"):
        pytest.skip("hops are for one phase")
    schedule = schedule_of(network, 8, kind, synthesizer, chunks)
    program = permute_program(schedule)
    degrees = 0
    for first, last in zip(schedule.step_ptr[:-1], schedule.step_ptr[1:], strict=True):
        pairs = np.unique(np.stack([schedule.src[first:last], schedule.dst[first:last]]), axis=1)
        degrees += max_degree(*pairs)
    assert program.num_permutes == degrees


def test_counts_that_are_known():
    assert permute_program(schedule_of("ring", 8, "all_gather", "ring")).num_permutes == 4 + 3
    assert permute_program(schedule_of("complete", 8, "all_gather", "direct")).num_permutes == 7
    assert permute_program(schedule_of("one-way", 8, "all_gather", "tacos")).num_permutes == 7
    assert permute_program(schedule_of("torus", 8, "all_reduce", "bucket")).num_permutes == 4 + 4


def test_symmetric_rounds_are_the_same_on_all_ranks():
    for network in ("ring", "complete"):
        synthesizer = "ring" if network == "ring" else "direct"
        for rounds in permute_program(schedule_of(network, 8, "all_gather", synthesizer)).steps[
            :-1
        ]:
            for r in rounds:
                moved = (r.send[:, 0] - np.arange(8)) % 8
                assert len(r.pairs) == 8
                assert len(set(moved)) == 1


def test_stages_of_scan():
    # A ring sends messages of one size: one stage, with a slot each way round.
    (stage,) = stages(permute_program(schedule_of("ring", 8, "all_gather", "ring")))
    assert len(stage) == 2
    assert all(slot.send.shape == (4, 8, 1) and (slot.recv >= 0).all() for slot in stage)
    # Block sizes of bucket differ from dimension to dimension.
    assert len(stages(permute_program(schedule_of("torus", 8, "all_gather", "bucket")))) > 1
