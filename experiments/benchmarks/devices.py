"""What CPU devices run: defaults and schedules beside ``jax.lax``, and costs beside predictions.

``defaults_on_devices`` and ``execution_costs`` need numbers of devices that JAX fixes when it
starts, so each number of ranks is a process of its own, which prints its rows as lines of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.timing import compare, kept, report
from jaxcoll.simulation.execution_costs import costs_of

# So that times of long buffers are not those of page faults (docs/execution.md).
_MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "40000000000",
    "MALLOC_ARENA_MAX": "1",
}
_ROW = "row: "
RANKS = (2, 4, 8, 16)


def use_cpu(count: int) -> None:
    """So many virtual CPU devices are JAX's, whatever the machine has; before its first use."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


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
        name: the name of the benchmark, which takes ``--child`` and ``--ranks``.
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
                    yield json.loads(line.removeprefix(_ROW))
            if run.wait():
                raise subprocess.CalledProcessError(run.returncode, command)


def with_devices(ranks: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the rows for the process that ``in_processes`` began.

    Raises:
        RuntimeError: this process has another number of devices.
    """
    if len(jax.devices()) != ranks:
        raise RuntimeError(f"expected {ranks} devices, got {len(jax.devices())}")
    for row in rows:
        print(_ROW + json.dumps(row), flush=True)


SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
FUNCTIONS: dict[str, Callable] = {
    "psum": lambda m, v: m.psum(v, "x"),
    "pmean": lambda m, v: m.pmean(v, "x"),
    "all_gather": lambda m, v: m.all_gather(v, "x", tiled=True),
    "psum_scatter": lambda m, v: m.psum_scatter(v, "x", tiled=True),
    "all_to_all": lambda m, v: m.all_to_all(v, "x", 0, 0, tiled=True),
}
README_BYTES = 256 << 10


def defaults_on_devices(argv: Sequence[str]) -> None:
    """The default of ``jc.psum`` and the others on CPU devices, beside ``jax.lax`` itself.

    2, 4, 8 and 16 devices, each number in a process of its own; sizes are those of the larger of a
    rank's input and output. Both programs are called in turn; the ratio is that of their medians,
    and ``same program`` says whether they are compiled to the same operations. Then README's torus:
    ``schedule="auto"``, "bucket" and the default at 256 KiB.
    """
    parser = parser_of("defaults_on_devices")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeat", type=int, default=41, help="calls of each up to 1 MiB")
    options = parser.parse_args(argv)
    if options.child:
        mesh = Mesh(np.asarray(jax.devices()), ("x",))
        with_devices(options.ranks[0], defaults_rows(mesh, options.sizes, options.repeat))
        return
    arguments = ["--repeat", str(options.repeat), "--sizes", *map(str, options.sizes)]
    rows = kept(
        "defaults_on_devices", in_processes("defaults_on_devices", options.ranks, arguments)
    )
    report("defaults_on_devices", rows)
    worst = max(row["ratio"] for row in rows if row["runs"] == "default")
    print(f"default / lax: at most {worst:.3f}")


def defaults_rows(mesh: Mesh, sizes: Sequence[int], repeat: int) -> Iterator[dict[str, Any]]:
    """The rows of a mesh."""
    for nbytes in sizes:
        for name, call in FUNCTIONS.items():
            x = _operand(mesh, nbytes, mesh.size if name == "all_gather" else 1)
            programs = {
                "lax": _compiled(lambda v, c=call: c(lax, v), mesh, x),
                "default": _compiled(lambda v, c=call: c(jc, v), mesh, x),
            }
            # Of long buffers fewer calls say as much.
            calls = max(7, min(repeat, repeat * (4 << 20) // nbytes))
            yield from _rows(name, nbytes, programs, x, mesh, calls)
    if mesh.size == 8:
        x = _operand(mesh, README_BYTES, 1)
        torus = jc.topologies.torus(2, 4, alpha=1e-6, bandwidth=50e9)
        programs = {"lax": _compiled(lambda v: lax.psum(v, "x"), mesh, x)}
        with jc.use_topology(torus):
            for choice in (None, "auto", "bucket"):
                body = lambda v, s=choice: jc.psum(v, "x", schedule=s)  # noqa: E731
                programs[choice or "default"] = _compiled(body, mesh, x)
        yield from _rows("psum, README's torus", README_BYTES, programs, x, mesh, repeat)


def _rows(
    name: str, nbytes: int, programs: dict[str, Any], x, mesh: Mesh, repeat: int
) -> Iterator[dict[str, Any]]:
    times = compare({which: lambda p=p: p(x) for which, p in programs.items()}, repeat)
    for which, program in programs.items():
        if which == "lax":
            continue
        yield {
            "ranks": mesh.size,
            "function": name,
            "bytes": nbytes,
            "runs": which,
            "lax ms": 1e3 * times["lax"].median,
            "ms": 1e3 * times[which].median,
            "ratio": times[which].median / times["lax"].median,
            "same program": _operations(program) == _operations(programs["lax"]),
            "permutes": program.as_text().count(" collective-permute("),
        }


def _operations(program) -> list[str]:
    """The operations of a compiled program, without their places in the source."""
    lines = (line for line in program.as_text().splitlines() if " = " in line)
    return [re.sub(r", metadata=\{[^}]*\}", "", line) for line in lines]


def _operand(mesh: Mesh, nbytes: int, cut: int) -> jax.Array:
    n = mesh.size
    length = max(n, nbytes // 4 // cut // n * n)
    return jax.device_put(np.ones(n * length, np.float32), NamedSharding(mesh, P("x")))


def _compiled(body: Callable, mesh: Mesh, x: jax.Array):
    return _jitted(body, mesh).lower(x).compile()


COST_SIZES = (1 << 10, 256 << 10, 4 << 20)
SCHEDULES = ("bucket", "ring", "rhd", "bfb")


def execution_costs(argv: Sequence[str]) -> None:
    """Execution costs of CPU devices, measured, and schedules whose times they predict.

    ``jc.measure_execution`` on 2, 4, 8 and 16 devices, each number in a process of its own, beside
    the costs that are shipped; then schedules that took no part in the measurement, predicted by
    the shipped costs and timed.
    """
    parser = parser_of("execution_costs")
    parser.add_argument("--repeat", type=int, default=20, help="calls of each schedule")
    options = parser.parse_args(argv)
    if options.child:
        mesh = Mesh(np.asarray(jax.devices()), ("x",))
        with_devices(options.ranks[0], costs_rows(mesh, COST_SIZES, options.repeat))
        return
    measured = in_processes("execution_costs", options.ranks, ["--repeat", str(options.repeat)])
    shipped = _costs_row("shipped", costs_of("cpu"))
    rows = kept("execution_costs", itertools.chain([shipped], measured))
    report("execution_costs", [row for row in rows if "permute us" in row])
    report("execution_costs-predicted", [row for row in rows if "predicted" in row])


def costs_rows(mesh: Mesh, sizes: Sequence[int], repeat: int) -> Iterator[dict[str, Any]]:
    """The rows of a mesh."""
    n = mesh.size
    yield _costs_row(f"{n} devices", jc.measure_execution(mesh))
    sharding = NamedSharding(mesh, P("x"))
    network = jc.topologies.torus(2, n // 2) if n > 2 else jc.topologies.ring(2)
    for nbytes in sizes:
        x = jax.device_put(np.ones(n * nbytes // 4, np.float32), sharding)
        # A call that does nothing has the dispatch in it, which costs are not to predict.
        calls = {"nothing": _jitted(lambda v: v + 1, mesh)}
        predicted = {}
        for name in SCHEDULES:
            try:
                schedule = jc.synthesize(network, "all_reduce", name, chunks=1)
            except jc.JaxcollError:
                continue
            calls[name] = _jitted(lambda v, s=schedule: jc.psum(v, "x", schedule=s), mesh)
            costs = costs_of("cpu")
            predicted[name] = float(costs.seconds(schedule, nbytes)) if costs else 0.0
        times = compare({name: lambda c=call, v=x: c(v) for name, call in calls.items()}, repeat)
        for name, seconds in predicted.items():
            taken = max(times[name].median - times["nothing"].median, 1e-9)
            yield {
                "ranks": n,
                "schedule": name,
                "bytes": nbytes,
                "predicted": seconds,
                "measured": taken,
                "ratio": seconds / taken,
            }


def _costs_row(label: str, costs: jc.simulation.ExecutionCosts | None) -> dict[str, Any]:
    given = {} if costs is None else dataclasses.asdict(costs)
    row: dict[str, Any] = {"costs per rank": label}
    row |= {f"{name} us": 1e6 * given[name] for name in ("permute", "step")}
    row |= {f"{name} ns/B": 1e9 * given[name] for name in ("copied", "added", "swapped")}
    for cost in given["native"]:
        row[f"{cost['kind']} us"] = 1e6 * cost["seconds"]
        row[f"{cost['kind']} ns/B"] = 1e9 * cost["per_byte"]
    return row


def _jitted(body, mesh: Mesh):
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    )
