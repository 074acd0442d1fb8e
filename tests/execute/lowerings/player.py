"""The player of the lowering ``links``, compiled where it is not yet, and programs to play."""

from __future__ import annotations

import functools
import os
import random
import shlex
import subprocess
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.execute.links import build, engine
from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round, permute_program
from tests.strategies import schedules

DRIVER = Path(__file__).with_name("player_driver.cc")
WITHOUT_XLA = Path(__file__).with_name("without_xla")
WIDTH = 3  # numbers in a row


def compiled(
    folder: Path, *options: str, driver: Path = DRIVER, headers: Path = WITHOUT_XLA
) -> Path:
    """A program that plays without XLA."""
    program, sources = folder / "driver", Path(build.__file__).parent
    command = [
        *shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-pthread", *options,
        "-isystem", str(headers), "-I", str(sources),
        str(driver), str(sources / "mpi.cc"), "-o", str(program), "-ldl",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


def mpi_of_one_rank(folder: Path, *options: str) -> Path:
    """A library of MPI, of one process, by the standard ABI."""
    library = folder / "libone_rank_mpi.so"
    command = [
        *shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-fPIC", "-shared", *options,
        str(Path(__file__).with_name("one_rank_mpi.cc")), "-o", str(library),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


@functools.cache
def is_compiled() -> bool:
    """Whether the player is here; without a C++ compiler it is not."""
    found = engine.compiled()
    newest = max(source.stat().st_mtime for source in (*build.SOURCES, build.HEADER))
    if isinstance(found, str) or found.stat().st_mtime < newest:
        try:
            build.build(build.SOURCES[0].parent)
        except RuntimeError:
            return False
    return not isinstance(engine.library(), str)


def played(program: PermuteProgram, x: np.ndarray) -> np.ndarray:
    """The results of all ranks, round by round: rows are read before any is written."""
    inputs, outputs = program.input_rows(), program.output_rows()
    rows = np.zeros((len(inputs), program.num_rows + 1, WIDTH), np.int32)  # the last for row -1
    for rank, into in enumerate(inputs):
        rows[rank, into] = x[rank]
    rows[:, -1] = 0
    for rounds in program.steps:
        sent = [(each, rows.copy()) for each in rounds]
        for each, before in sent:
            for u, v in each.pairs:
                for a, b, add in zip(each.send[u], each.recv[v], each.add[v], strict=True):
                    if b >= 0:
                        rows[v, b] = before[u, a] + (rows[v, b] if add else 0)
    return np.stack([rows[rank, of] for rank, of in enumerate(outputs)])


def drawn(count: int) -> list[PermuteProgram]:
    """Programs of sound schedules of any kind, group and network that a call can have."""
    found: list[PermuteProgram] = []

    @settings(
        max_examples=count, database=None, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(st.lists(schedules(), min_size=1, max_size=1))
    def collect(some):
        # JAX has no all_to_all among groups of unlike sizes.
        found.extend(
            permute_program(schedule)
            for schedule in some
            if not schedule.collective.traits.is_pairwise
            or len(set(map(len, schedule.collective.groups))) == 1
        )

    collect()
    return found


def wild(dice: random.Random) -> PermuteProgram:
    """A program of no collective: rows are swapped, replaced while they leave, added twice."""
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
