"""A Flax script with the one added line of the online tuner: its steps, gains and losses.

A VGG with six buckets of gradients is trained on eight virtual CPU devices, in one process or, over
gloo, in several. Runs, one after another: the default; the tuned step; a replay of it, bit by bit,
and all candidates in alternation in that program; the tuned step again, with the table of the
first; a tuner whose candidates are all the default by other names, so that there is none to gain.

Times are of steps that end before the next begins, in units of the default's mean step.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.report import report

_DEVICES = 8


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_training", description=__doc__)
    parser.add_argument("--processes", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--steps", type=int, default=1000, help="of a tuned run (%(default)s)")
    parser.add_argument("--quiet", type=int, default=60, help="steps by the default (%(default)s)")
    parser.add_argument("--second", type=int, default=60, help="of the second run (%(default)s)")
    parser.add_argument("--candidates", type=int, help="per task (those of the tuner)")
    parser.add_argument("--rounds", type=int, default=5, help="of alternation (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="images of a step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", nargs="*", choices=("replay", "second", "none"), default=[])
    parser.add_argument("--join", nargs=2, metavar=("PORT", "PROCESS"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for name in ("steps", "quiet", "second", "candidates", "rounds"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    if options.processes > 1 and options.join is None:
        return start(options.processes, argv)
    connect(options)
    # JAX counts its devices when it is first imported.
    from experiments.benchmarks.training.runs import measure

    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder) / "table.json")
    if options.join is None or options.join[1] == "0":
        report(f"tune_training_{options.processes}", rows)
    return 0


def start(processes: int, argv: Sequence[str]) -> int:
    """Runs the benchmark in several processes; the first of them prints the table."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "experiments.benchmarks", "tune_training", *argv]
    started = [
        subprocess.Popen([*command, "--join", str(port), str(process)])
        for process in range(processes)
    ]
    try:
        return max(process.wait() for process in started)
    finally:
        for process in started:
            process.kill()


def connect(options: argparse.Namespace) -> None:
    """Give this process its share of the devices, and connect it to the others."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    count = _DEVICES // options.processes
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    if options.join is None:
        return
    import jax

    port, process = map(int, options.join)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", options.processes, process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
