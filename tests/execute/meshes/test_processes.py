"""Several processes, connected by gloo on the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def start(processes: int, devices: int, what: str) -> list[str]:
    """Run the worker in some processes; what each printed last."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["PYTHONPATH"] = str(ROOT)
    arguments = [
        [sys.executable, str(Path(__file__).with_name("worker.py"))]
        + [str(value) for value in (port, processes, process, devices, what)]
        for process in range(processes)
    ]
    started = [
        subprocess.Popen(a, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for a in arguments
    ]
    try:
        return [process.communicate(timeout=250)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.parametrize(
    ("processes", "devices"),
    [(2, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((2, 4), (4, 2)))],
)
def test_every_collective(processes, devices):
    for said in start(processes, devices, "same"):
        assert said.rstrip().endswith("OK"), said


def test_different_schedules_are_an_error_everywhere_and_what_follows_runs():
    for said in start(2, 2, "differ"):
        assert said.count("processes are about to run different schedules") == 2, said
        assert said.rstrip().endswith("OK"), said


def test_different_schedules_on_some_of_the_devices():
    *members, other = start(3, 2, "some")
    for said in members:
        assert said.count("processes are about to run different schedules") == 1, said
        assert said.rstrip().endswith("OK"), said
    assert other.rstrip().endswith("OK"), other


def test_tracing_and_compiling_wait_for_nobody():
    # A process that waited would do so for longer than the test may take.
    for said in start(2, 2, "alone"):
        assert said.rstrip().endswith("OK"), said
