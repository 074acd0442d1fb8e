"""Rows measured on CPU devices, each number of devices in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# So that times of long buffers are not those of page faults (docs/execution.md).
_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "40000000000",
    "MALLOC_ARENA_MAX": "1",
}
_ROW = "row: "
RANKS = (2, 4, 8, 16)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The arguments that ``in_processes`` gives to a benchmark and its processes."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def in_processes(
    name: str, ranks: Iterable[int], arguments: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The rows that a benchmark prints by ``with_devices``, one process per number of devices.

    Args:
        name: of the benchmark, which takes ``--child`` and ``--ranks``.
        arguments: further ones.

    Raises:
        subprocess.CalledProcessError: a process fails.
    """
    for count in ranks:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
        command = [sys.executable, "-m", "experiments.benchmarks", name, "--child"]
        command += ["--ranks", str(count), *arguments]
        environment = {**os.environ, **_MALLOC, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
            for line in run.stdout or ():
                if line.startswith(_ROW):
                    row = json.loads(line.removeprefix(_ROW))
                    print(row, flush=True)
                    yield row
            if run.wait():
                raise subprocess.CalledProcessError(run.returncode, command)


def with_devices(ranks: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the rows for the process that ``in_processes`` began.

    Raises:
        RuntimeError: this process has another number of devices.
    """
    import jax

    if len(jax.devices()) != ranks:
        raise RuntimeError(f"expected {ranks} devices, got {len(jax.devices())}")
    for row in rows:
        print(_ROW + json.dumps(row), flush=True)
