"""Code in other processes: its output, files that it is writing, and values on their way there."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

from jaxcoll import aot

ROOT = Path(__file__).parents[1]


def printed_elsewhere(code: str) -> set[str]:
    """The distinct outputs of the code in two processes with other hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }


def compiled_elsewhere(worker: Path, *arguments: str) -> list[dict]:
    """The rows that a script prints where compilers of machines that are not here can run."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment.update(aot.ENVIRONMENT)
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, str(worker), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def writing_elsewhere(code: str, path: Path) -> Iterator[subprocess.Popen]:
    """A process in the middle of writing a path, its argument; killed in the end.

    Args:
        code: prints "writing" when it has begun.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        yield child
    finally:
        child.kill()
        child.communicate()


class Pickling(Executor):
    """An executor without a process: functions, jobs and results are pickled all the same.

    Attributes:
        jobs: how many it was given.
    """

    def __init__(self):
        self.jobs = 0

    def submit(self, fn, /, *args, **kwargs):
        self.jobs += 1
        copy, given, named = pickle.loads(pickle.dumps((fn, args, kwargs)))  # noqa: S301
        future: Future = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(copy(*given, **named))))  # noqa: S301
        except Exception as error:
            future.set_exception(error)
        return future
