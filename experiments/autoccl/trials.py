"""Collectives timed for the measured studies: on devices of this process, or of several processes.

A setting is a collective, its bytes, and a matrix product that every rank computes meanwhile (Sec.
3.2 and 6.2 of the paper: GEMM, then a sigmoid). The study's YAML names the configurations to choose
from. They are few, since each is compiled.

``python -m experiments.autoccl.trials PORT JOB PROCESS`` is one of several processes, which sockets
connect; the first one prints the times. Every program runs once per round in all processes, in a
new order each round, and its time is that of the slowest process.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from experiments.autoccl.searches import global_configuration
from experiments.config import StudyConfig
from experiments.limits import above, at_least, one_of
from experiments.study import CheckError, ConfigError
from jaxcoll.tune import Config as Configuration
from jaxcoll.tune import Parameter, Space, Subspace
from jaxcoll.tune.trial import COLLECTIVES, Program, Trial

DEFAULT = Configuration({"algorithm": "default", "lowering": "auto", "parts": 1})
NATIVE = DEFAULT.replace(algorithm="native")

Product = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class OnDevices(StudyConfig):
    """A study that runs on virtual CPU devices."""

    ranks: int

    @property
    def devices(self) -> tuple[str, int]:
        """Platform and number of the devices to run on."""
        return "cpu", self.ranks


@dataclasses.dataclass(frozen=True)
class SpaceConfig:
    """The configurations that a study chooses from, beside the default and ``jax.lax``."""

    implementations: tuple[str, ...]  # an algorithm and a lowering each, separated by a blank
    chunks: tuple[int, ...]  # per shard
    # Numbers of equal parts of the operand that are collectives of their own
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in self.implementations:
            if len(name.split()) != 2:
                raise ConfigError(
                    f"space.implementations must be an algorithm and a lowering each, got {name!r}"
                )
        if self.parts[:1] != (1,):
            raise ConfigError(f"space.parts must begin with 1, the default, got {self.parts}")

    def space(self) -> Space:
        """The same space for every task, so that one configuration can run all of them."""
        parts = Parameter("parts", self.parts, "resource")
        chunks = Parameter("chunks", self.chunks, "resource")
        unscheduled = [Subspace(_implementation(c), (parts,)) for c in (DEFAULT, NATIVE)]
        names = (name.split() for name in self.implementations)
        scheduled = [
            Subspace(Configuration({"algorithm": a, "lowering": b}), (chunks, parts))
            for a, b in names
        ]
        return Space((*unscheduled, *scheduled), DEFAULT)


def _implementation(config: Configuration) -> Configuration:
    return Configuration({name: config[name] for name in ("algorithm", "lowering")})


@dataclasses.dataclass(frozen=True)
class Setting:
    """A collective to be timed, and the product beside it."""

    collective: str  # one of ``COLLECTIVES``
    mebibytes: float  # of the larger of a rank's input and output
    # m, k and n of the matrix product beside; empty where the collective runs alone
    product: Product = ()

    def __post_init__(self) -> None:
        one_of("collective", self.collective, COLLECTIVES)
        above("mebibytes", self.mebibytes, 0)
        check_product(self.product)

    @property
    def nbytes(self) -> int:
        """Bytes, as the paper counts a message."""
        return round(self.mebibytes * 2**20)

    def trial(self, mesh: Mesh, seed: int) -> Trial:
        """The collective and the product on every device of a mesh with the axis "x"."""
        beside = product(*self.product) if self.product else None
        return Trial(self.collective, self.nbytes, mesh, "x", seed=seed, beside=beside)


def check_product(sides: Product) -> None:
    """Refuses what are not m, k and n, with a ``ConfigError``."""
    if len(sides) not in (0, 3):
        raise ConfigError(f"a product must have the sides m, k and n, or none, got {sides}")
    for side in sides:
        at_least("a side of a product", side, 1)


def product(m: int, k: int, n: int) -> Callable[[jax.Array], jax.Array]:
    """The sigmoid of an m x k by k x n product per rank, summed over n to keep results small."""

    def run(x: jax.Array) -> jax.Array:
        # Factors depend on the operand: the compiler would multiply constants itself.
        first = x.reshape(-1)[0]
        factors = [
            jnp.sin(first + lax.iota(jnp.float32, rows * columns)).reshape(rows, columns)
            for rows, columns in ((m, k), (k, n))
        ]
        return jax.nn.sigmoid(factors[0] @ factors[1]).sum(axis=1)

    return run


def product_alone(trial: Trial, sides: Product) -> Program:
    """The program of the product without the collective."""
    spec = PartitionSpec(trial.axis)
    mapped = jax.shard_map(product(*sides), mesh=trial.mesh, in_specs=spec, out_specs=spec)
    run = jax.jit(mapped).lower(trial.operand).compile()
    return Program(Configuration({"algorithm": "none"}), run, 0.0)


def mesh_of(ranks: int) -> Mesh:
    """The first devices, along an axis "x".

    Raises:
        ConfigError: JAX has fewer devices.
    """
    devices = jax.devices()
    if len(devices) < ranks:
        raise ConfigError(f"ranks={ranks} needs as many devices, got {len(devices)}")
    return Mesh(np.array(devices[:ranks]), ("x",))


def checked(trial: Trial, configs: Sequence[Configuration]) -> list[Program]:
    """The compiled programs, each compared with ``jax.lax``."""
    return [trial.checked(config) for config in configs]


def afnfa(
    space: Space, trials: Mapping[str, Trial], share: float, rounds: int, seed: int
) -> Configuration:
    """AFNFA's one configuration for all tasks, from a sample of each without computation.

    Args:
        trials: by any name of their tasks.
        share: the share of the space that is sampled per task, two configurations at least.
        rounds: in which a sample is timed.
    """
    rng, points = np.random.default_rng(seed), list(space.configs())
    count = max(2, round(share * len(points)))
    measured = {}
    for name, trial in trials.items():
        sample = [points[i] for i in rng.choice(len(points), count, replace=False)]
        seconds = np.median(trial.seconds(checked(trial, sample), rounds), axis=0)
        measured[name] = list(zip(sample, map(float, seconds), strict=True))
    return global_configuration(space, measured, seed=seed)


def gbps(nbytes: int, seconds: float) -> float | None:
    """Bandwidth in GB/s of the message; None where the collective took no time of its own."""
    return None if seconds <= 0 else nbytes / seconds / 1e9


def over(times: np.ndarray, baseline: np.ndarray) -> float:
    """How many times faster than the baseline: the median of the ratios of the same rounds."""
    return float(np.median(baseline / times))


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
        # All processes run the same program at the same time, so the order is a function of the
        # round alone.
        for j in np.roll(np.arange(len(programs)), i).tolist():
            started = time.perf_counter()
            jax.block_until_ready(programs[j].run(trial.operand))
            times[i, j] = time.perf_counter() - started
    if jax.process_count() > 1:
        # A collective ends when its last rank does.
        times = np.asarray(multihost_utils.process_allgather(times)).max(axis=0)
    return times


# ---------------------------------------------------------------------- processes


def _in_processes(job: Mapping[str, Any], processes: int, ranks: int) -> list[Any]:
    # Those of this process are for all ranks in one; a child has its share.
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks // processes}"
    environment["JAX_PLATFORMS"] = "cpu"
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
    )
    command = [sys.executable, "-m", "experiments.autoccl.trials", str(free_port())]
    command.append(json.dumps(job))
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


def free_port() -> int:
    """A port of this machine that nothing listens on, for processes that are to join at it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def join(port: int, processes: int, process: int) -> None:
    """Make this process one of several whose CPU devices are connected by sockets (gloo)."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _worker(port: str, job: Mapping[str, Any], process: int) -> None:
    """One of the processes."""
    join(int(port), job["processes"], process)
    settings = [
        Setting(s["collective"], s["mebibytes"], tuple(s["product"])) for s in job["settings"]
    ]
    configs = [Configuration.from_json(c) for c in job["configs"]]
    found = [_times(s, configs, job["rounds"], job["ranks"], job["seed"]) for s in settings]
    if process == 0:
        print(_MARK + json.dumps([times.tolist() for times in found]), flush=True)


if __name__ == "__main__":
    _worker(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))
