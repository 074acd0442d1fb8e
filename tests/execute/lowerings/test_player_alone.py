"""The player without XLA, under sanitizers, and with ranks that are late by chance."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcoll.execute.links import build
from jaxcoll.execute.links.program import tables
from jaxcoll.execute.lowerings.rounds import PermuteProgram, permute_program
from tests.execute.lowerings.player import is_compiled
from tests.strategies import schedules

pytestmark = pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")

DRIVER = Path(__file__).with_name("player_driver.cc")
WITHOUT_XLA = Path(__file__).with_name("without_xla")
WIDTH = 3  # numbers in a row


def compiled(folder: Path, *options: str) -> Path:
    program = folder / "driver"
    command = [
        *shlex.split(os.environ.get("CXX", "c++")), "-std=c++20", "-pthread", *options,
        "-isystem", str(WITHOUT_XLA), "-I", str(Path(build.__file__).parent),
        str(DRIVER), "-o", str(program),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


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


def written(programs: list[PermuteProgram], path: Path) -> None:
    parts: list[np.ndarray] = [np.array([len(programs)])]
    for k, program in enumerate(programs):
        n, inputs = program.num_ranks, program.input_rows().shape[1]
        x = np.random.default_rng(k).integers(-1000, 1000, (n, inputs, WIDTH))
        expected = played(program, x)
        parts.append(np.array([n]))
        for rank, table in enumerate(tables(program)):
            for numbers in (table, x[rank].ravel(), expected[rank].ravel()):
                parts += [np.array([len(numbers)]), numbers]
    path.write_bytes(np.concatenate(parts).astype(np.int32).tobytes())


def drawn(count: int) -> list[PermuteProgram]:
    """Programs of sound schedules of any kind, group and network."""
    found: list[PermuteProgram] = []

    @settings(
        max_examples=count, database=None, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(st.lists(schedules(), min_size=1, max_size=1))
    def collect(some):
        found.extend(permute_program(schedule) for schedule in some)

    collect()
    return found


def check(folder: Path, count: int, *options: str) -> None:
    file = folder / "programs"
    written(drawn(count), file)
    done = subprocess.run(
        [compiled(folder, *options), file],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_programs_of_any_schedule(tmp_path):
    check(tmp_path, 40, "-O0")


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_a_sanitizer(sanitizer, tmp_path):
    check(tmp_path, 5000, "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
