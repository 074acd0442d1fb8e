"""The player without XLA, under sanitizers, and with ranks that are late by chance."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxcoll.execute.links.program import tables
from jaxcoll.execute.lowerings.rounds import PermuteProgram
from tests.execute.lowerings.player import (
    WIDTH,
    compiled,
    drawn,
    is_compiled,
    mpi_of_one_rank,
    played,
    wild,
)

pytestmark = pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")


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


def check(folder: Path, count: int, *options: str) -> None:
    file = folder / "programs"
    written([*drawn(count), *(wild(random.Random(k)) for k in range(count))], file)
    # Pieces of messages by MPI end anywhere in headers and rows.
    player = compiled(folder, *options, "-DJAXCOLL_PIECE_BYTES=29")
    for libraries, said in (((), ""), ((mpi_of_one_rank(folder, *options),), "finalized\n")):
        done = subprocess.run(
            [player, file, *libraries],
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_programs_of_any_schedule_over_sockets_and_by_mpi(tmp_path):
    check(tmp_path, 30, "-O0")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 10,000 programs, which take minutes to make
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_under_a_sanitizer(sanitizer, tmp_path):
    check(tmp_path, 5000, "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
