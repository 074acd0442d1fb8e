"""Schedules as GPUs play them, on GPUs that are not there."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import build, instructions
from jaxcoll.execute.links.instructions import (
    COMBINE,
    COPY,
    MESSAGES,
    RECORD,
    ZERO,
    Instruction,
    QueuedProgram,
    Replay,
    links_of,
)
from jaxcoll.execute.links.queues import queued
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program
from tests.execute.lowerings import nccl
from tests.execute.lowerings.player import WIDTH, compiled, drawn, is_compiled, played, wild


def named() -> list[PermuteProgram]:
    """Programs whose rows are read, written and added to by several queues."""
    networks = {
        "torus": jc.topologies.torus(2, 4),
        "hosts": jc.topologies.nvswitch_hosts((2, 4), inside=300e9, network=50e9),
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


def check(programs: list[PermuteProgram]) -> None:
    for k, program in enumerate(programs):
        dice = random.Random(k)
        x = np.random.default_rng(k).integers(
            -1000, 1000, (program.num_ranks, program.input_rows().shape[1], WIDTH)
        )
        queues = queued(
            program, is_ordered=dice.random() < 0.3, tried=dice.choice(((1,), (2,), (6,)))
        )
        got = nccl.in_any_order(queues, x, dice)
        np.testing.assert_array_equal(got, played(program, x))


def test_programs_of_any_schedule():
    check(drawn(60))


@pytest.mark.slow
def test_programs_of_synthesizers():
    programs = named()
    assert len(programs) > 30
    check(programs)


def test_programs_that_are_no_collectives():
    check([wild(random.Random(k)) for k in range(400)])


@pytest.mark.slow
def test_many_programs_of_any_schedule():
    check(drawn(2000))
    check([wild(random.Random(k)) for k in range(10_000, 20_000)])


def reached(network, kind: str, maker: str) -> float:
    """The time in queues over that of links which each work by themselves."""
    schedule = jc.synthesize(network, kind, maker)
    links = links_of(schedule, 64e6)
    seconds = Replay(queued(permute_program(schedule), links), links).seconds()
    assert seconds >= float(jc.bound(network, schedule.collective, 64e6).time)
    return seconds / float(jc.simulate(schedule, 64e6).time)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.slow_members("all_gather", "reduce_scatter")
def test_queues_reach_the_time_of_links(kind):
    torus, hosts = jc.topologies.torus(4, 4), jc.topologies.dgx_h100(2)
    rails = jc.topologies.multi_rail(2, 4)
    # Between hosts some messages of a step take longer than others.
    cases = [(torus, "ring", 1.01), (torus, "tacos", 1.01), (torus, "auto", 1.05)]
    for network, maker, most in [*cases, (rails, "ring", 1.02), (hosts, "tacos", 1.25)]:
        assert reached(network, kind, maker) < most, (network, maker)


def asked(program: QueuedProgram) -> list[str]:
    """The calls of NCCL and CUDA that a program means, where rows have 12 bytes, three numbers."""
    lines = []
    for rank, mine in enumerate(program.instructions):
        lines.append(f"rank {rank}")
        for code, queue, numbers in mine:
            if code == MESSAGES:
                of = nccl.transfers(Instruction(code, queue, numbers))
                sent = [
                    f"{'recv' if arrives else 'send'} {queue} {queue} {other} {where} {row} "
                    f"{12 * rows} 0"
                    for arrives, other, where, row, rows in of
                ]
                lines += sent if len(of) == 1 else ["begin", *sent, "end"]
                continue
            scale = {COMBINE: 3, COPY: 12, ZERO: 12}.get(code, 1)
            name = {COMBINE: "combine", COPY: "copy", ZERO: "set", RECORD: "record"}.get(
                code, "wait"
            )
            *places, last = numbers
            said = [*places, *([0] if code == ZERO else []), scale * last]
            lines.append(" ".join(map(str, (name, queue, *said))))
    return lines


@pytest.mark.slow
@pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")
def test_the_player_asks_for_what_the_program_says(tmp_path):
    source = Path(__file__).with_name("gpu_player_driver.cc")
    driver = compiled(tmp_path, "-O0", driver=source, headers=build.headers())
    for program in [*named()[::7], *(wild(random.Random(k)) for k in range(20))]:
        queues = queued(program, tried=(3,))
        file = tmp_path / "program"
        file.write_bytes(queues.numbers.tobytes())
        printed = subprocess.run([driver, file], capture_output=True, text=True, check=True)
        assert printed.stdout.splitlines() == asked(queues)


def test_a_program_that_is_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(instructions, "_MOST_NUMBERS", 100)
    with pytest.raises(CollectiveError, match="numbers as a program for GPUs, at most 100 fit"):
        _ = queued(wild(random.Random(0))).numbers
