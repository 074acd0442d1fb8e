"""Times of collectives among devices of this process, or of several that sockets connect.

``python -m experiments.autoccl.sockets PORT JOB PROCESS`` is one of these processes; the first one
prints the times. Every program runs once per round in all processes, each round in another order,
and counts as long as the slowest process took.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments.autoccl.trials import Setting, checked, mesh_of
from experiments.errors import CheckError
from jaxcoll.tune import Config as Configuration

ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 1200
_MARK = "times: "  # gloo writes to standard output too


def measure(
    settings: Sequence[Setting],
    configs: Sequence[Configuration],
    rounds: int,
    ranks: int,
    processes: int,
    seed: int,
) -> list[np.ndarray]:
    """Seconds of every setting: a row per round, a column per configuration.

    Raises:
        CheckError: a process failed.
    """
    if processes == 1:
        return [_times(setting, configs, rounds, ranks, seed) for setting in settings]
    job = {
        "settings": [dataclasses.asdict(setting) for setting in settings],
        "configs": [config.to_json() for config in configs],
        "rounds": rounds,
        "ranks": ranks,
        "processes": processes,
        "seed": seed,
    }
    return [np.array(times) for times in _in_processes(job, processes, ranks)]


def _times(
    setting: Setting, configs: Sequence[Configuration], rounds: int, ranks: int, seed: int
) -> np.ndarray:
    """Seconds of one setting in the calling processes, which all run the same."""
    trial = setting.trial(mesh_of(ranks), seed)
    programs = checked(trial, configs)
    times = np.empty((rounds, len(programs)))
    for i in (-1, *range(rounds)):  # the first round is overwritten by the last
        for j in np.roll(np.arange(len(programs)), i).tolist():
            started = time.perf_counter()
            jax.block_until_ready(programs[j].run(trial.operand))
            times[i, j] = time.perf_counter() - started
    if jax.process_count() > 1:
        times = np.asarray(multihost_utils.process_allgather(times)).max(axis=0)
    return times


# ---------------------------------------------------------------------- processes


def _in_processes(job: Mapping[str, Any], processes: int, ranks: int) -> list[Any]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks // processes}"
    environment["JAX_PLATFORMS"] = "cpu"
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
    )
    command = [sys.executable, "-m", "experiments.autoccl.sockets", str(port), json.dumps(job)]
    with contextlib.ExitStack() as stack:
        # Files never fill, as pipes that nobody reads do.
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]
        started = [
            subprocess.Popen(
                [*command, str(i)], env=environment, stdout=output, stderr=subprocess.STDOUT
            )
            for i, output in enumerate(outputs)
        ]
        try:
            for process in started:
                process.wait(_TIMEOUT_SECONDS)
        finally:
            for process in started:
                process.kill()
                process.wait()
        printed = [_content(output) for output in outputs]
    for process, text in zip(started, printed, strict=True):
        if process.returncode:
            raise CheckError(f"a process that measures sockets failed: {text[-2000:]}")
    found = next(line for line in printed[0].splitlines() if line.startswith(_MARK))
    return json.loads(found.removeprefix(_MARK))


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _worker(port: str, job: Mapping[str, Any], process: int) -> None:
    """One of the processes."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", job["processes"], process)
    settings = [
        Setting(s["collective"], s["mebibytes"], tuple(s["product"])) for s in job["settings"]
    ]
    configs = [Configuration.from_json(c) for c in job["configs"]]
    found = [_times(s, configs, job["rounds"], job["ranks"], job["seed"]) for s in settings]
    if process == 0:
        print(_MARK + json.dumps([times.tolist() for times in found]), flush=True)


if __name__ == "__main__":
    _worker(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
