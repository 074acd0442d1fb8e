"""Schedules as GPUs play them, on GPUs that are not there."""

from __future__ import annotations

import random

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.execute.links.queues import queued
from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round, permute_program
from tests.execute.lowerings import nccl
from tests.execute.lowerings.player import WIDTH, drawn, played


def named() -> list[PermuteProgram]:
    """Programs whose rows are read, written and added to by several queues."""
    networks = {
        "torus": jc.topologies.torus(2, 4),
        "hosts": jc.topologies.nvswitch_hosts((2, 4), inside=300e9, network=50e9),
        "cube": jc.topologies.hypercube(3),
    }
    makers = ("rhd", "ring", "tacos", "bfb", "direct", "multitree")
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    found = []
    for network in networks.values():
        for kind in kinds:
            for maker in makers:
                try:
                    schedule = jc.synthesize(network, kind, maker, chunks=2)
                except ValueError:
                    continue
                found.append(permute_program(schedule))
    return found


def wild(dice: random.Random) -> PermuteProgram:
    """A program that is no collective: rows are swapped, replaced while they leave, added twice."""
    n = dice.randrange(2, 6)
    collective = jc.Collective("all_reduce", n, chunks_per_shard=dice.randrange(1, 3))
    count = len(collective_rows := range(n * collective.chunks_per_shard))
    rows = count + dice.randrange(3)
    filled = [set(collective_rows) for _ in range(n)]
    steps = []
    for _ in range(dice.randrange(1, 8)):
        rounds, replaced, added, carried = [], set(), set(), set()
        arrived: list[tuple[int, int]] = []
        for _ in range(dice.randrange(1, 2 * n)):
            u, v = dice.sample(range(n), 2)
            send, recv = np.full((n, 3), -1, np.int32), np.full((n, 3), -1, np.int32)
            add = np.zeros((n, 3), bool)
            for i in range(dice.randrange(1, 4)):
                row, adds = dice.randrange(rows), dice.random() < 0.6
                taken = (v, row) in replaced or (not adds and (v, row) in added)
                if taken or (u, v, row) in carried:
                    continue
                carried.add((u, v, row))
                (added if adds else replaced).add((v, row))
                send[u, i], recv[v, i], add[v, i] = dice.choice(sorted(filled[u])), row, adds
                arrived.append((v, row))
            if (send >= 0).any():
                rounds.append(Round(((u, v),), send, recv, add))
        for rank, row in arrived:
            filled[rank].add(row)
        steps.append(tuple(rounds))
    return PermuteProgram(collective, rows, (n,), tuple(steps))


def check(programs: list[PermuteProgram]) -> None:
    for k, program in enumerate(programs):
        dice = random.Random(k)
        x = np.random.default_rng(k).integers(
            -1000, 1000, (program.num_ranks, program.input_rows().shape[1], WIDTH)
        )
        queues = queued(program, is_ordered=dice.random() < 0.3, most=dice.choice((1, 2, 6)))
        got = nccl.in_any_order(queues, x, dice)
        np.testing.assert_array_equal(got, played(program, x))


def test_programs_of_any_schedule():
    check(drawn(60))


def test_programs_of_synthesizers():
    programs = named()
    assert len(programs) > 40
    check(programs)


def test_programs_that_are_no_collectives():
    check([wild(random.Random(k)) for k in range(400)])


@pytest.mark.slow
def test_many_programs_of_any_schedule():
    check(drawn(2000))
    check([wild(random.Random(k)) for k in range(10_000, 20_000)])
