"""Mutants of every kind of file: ``python -m tests.io.mutants [--count N] [KIND ...]``.

Each ends in a documented error of one line, or in an object that can be used. A line per kind says
how many were read, and the most seconds, memory and characters of a message that one took.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.io.kinds import Kind, kinds

# What a mutant may take, and say.
MOST_SECONDS, MOST_MEGABYTES, MOST_CHARACTERS = 1.0, 500.0, 300


@dataclasses.dataclass
class Outcome:
    """What became of the mutants of a kind.

    Attributes:
        read: how many were taken.
        wrong: a line for each that ended otherwise, with its seed.
        seconds: seconds of the processor, for the slowest one.
        megabytes: by which memory grew for all of them.
        characters: number of characters of the longest message, without the name of the file.
    """

    read: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    megabytes: float = 0.0
    characters: int = 0

    @property
    def takes_too_much(self) -> bool:
        """Whether one took more time, or all of them more memory, than a mutant may."""
        return self.seconds > MOST_SECONDS or self.megabytes > MOST_MEGABYTES

    def __str__(self) -> str:
        return (
            f"{self.read:6} read  {len(self.wrong):4} wrong  {self.seconds:8.4f} s  "
            f"{self.megabytes:6.1f} MB  {self.characters:4} characters"
        )


def try_mutants(kind: Kind, count: int, scratch: Path) -> Outcome:
    """Read mutants of a kind, of seeds 0 to ``count - 1``."""
    outcome = Outcome()
    for files in kind.sound:  # also compiles what is compiled at the first call
        kind.use(_written(files, scratch))
    before = _peak()
    for seed in range(count):
        path = _written(kind.mutant(random.Random(seed)), scratch)
        start = time.process_time()
        try:
            kind.use(path)
            outcome.read += 1
        except kind.refused as error:
            message = str(error).replace(str(scratch), "")
            outcome.characters = max(outcome.characters, len(message))
            if len(message) > MOST_CHARACTERS or "\n" in message:
                outcome.wrong.append(f"seed {seed}: a message of {len(message)}: {message[:400]!r}")
        except Exception as error:
            outcome.wrong.append(f"seed {seed}: {type(error).__name__}: {str(error)[:200]}")
        outcome.seconds = max(outcome.seconds, time.process_time() - start)
    outcome.megabytes = _peak() - before
    return outcome


def _written(files: dict[str, bytes], scratch: Path) -> Path:
    folder = scratch / "mutant"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / next(iter(files))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str]) -> int:
    """Try kinds by name, all of them by default; whether something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.io.mutants")
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    is_wrong = False
    with tempfile.TemporaryDirectory() as scratch:
        for name, kind in kinds(Path(scratch)).items():
            if name in (given.kinds or [name]):
                outcome = try_mutants(kind, given.count, Path(scratch))
                print(f"{name:16} {given.count:6} mutants {outcome}", flush=True)
                print("".join(f"    {line}\n" for line in outcome.wrong[:20]), end="", flush=True)
                is_wrong |= bool(outcome.wrong) or outcome.takes_too_much
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
