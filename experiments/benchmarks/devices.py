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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.study import printed
from experiments.timing import compare, report, write
from jaxcoll import execute, topologies
from jaxcoll.execute.choice import derived
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_costs import costs_of
from jaxcoll.synth import Bucket, Ring, Synthesizer, synthesize
from jaxcoll.topology import Topology

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
    rows: list[dict[str, Any]] = []
    for row in printed(in_processes("defaults_on_devices", options.ranks, arguments)):
        rows.append(row)
        write("defaults_on_devices", rows)
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
    step = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.jit(step).lower(x).compile()


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
    rows: list[dict[str, Any]] = [_costs_row("shipped", costs_of("cpu"))]
    for row in printed(
        in_processes("execution_costs", options.ranks, ["--repeat", str(options.repeat)])
    ):
        rows.append(row)
        write("execution_costs", rows)
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


def _costs_row(label: str, costs: jc.ExecutionCosts | None) -> dict[str, Any]:
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


KINDS = {"all_gather": "all_gather", "psum_scatter": "reduce_scatter", "psum": "all_reduce"}
EXECUTED_SIZES = (1e3, 1e5, 1e6, 1.6e7, 6.4e7)
# Each synthesizer with its best number of chunks per shard where rounds dominate the cost.
CANDIDATES: dict[str, Synthesizer] = {
    "ring": Ring(bidirectional=False),
    "ring both ways": Ring(),
    "bucket": Bucket(),
}


def execution(argv: Sequence[str]) -> None:
    """Schedules executed on CPU devices, beside ``jax.lax`` and a ring of permutes by hand."""
    parser = argparse.ArgumentParser(prog="execution")
    parser.add_argument("--ranks", type=int, default=8, choices=(8, 16))
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=EXECUTED_SIZES, help="bytes of a buffer"
    )
    parser.add_argument("--repeat", type=int, default=60, help="calls of each at the smallest size")
    options = parser.parse_args(argv)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.ranks)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    cases = list(itertools.product(networks(options.ranks), KINDS, map(int, options.sizes)))
    repeats = {nbytes: max(5, int(options.repeat / max(1, nbytes / 1e6))) for *_, nbytes in cases}
    report("execution", (time_row(mesh, *case, repeats[case[-1]]) for case in cases))
    report("execution-scan", (scan_row(mesh, chunks) for chunks in (8, 138)))


def networks(ranks: int) -> list[Topology]:
    """The networks whose schedules are run."""
    torus = topologies.torus(ranks // 4, 4)
    return [topologies.ring(ranks), torus, topologies.hypercube(ranks.bit_length() - 1)]


# ---------------------------------------------------------------------- times


def time_row(
    mesh: Mesh, network: Topology, function: str, nbytes: int, repeat: int
) -> dict[str, Any]:
    """Times of one function at one size, as multiples of ``jax.lax``'s.

    Args:
        nbytes: of the larger of a rank's input and output, in float32.
    """
    n = network.num_ranks
    shard = max(1, round(nbytes / 4 / n))
    length, buffer = (shard if function == "all_gather" else n * shard), 4 * n * shard
    sharding = NamedSharding(mesh, P("x"))
    values = np.random.default_rng(0).integers(0, 5, n * length).astype(np.float32)
    x = jax.device_put(values, sharding)
    schedules = dict(schedules_of(network, KINDS[function]))
    bodies = {
        "lax": lambda v: BODIES[function](lax)(v),
        "hand": lambda v: HAND[function](v, n),
        "default": lambda v: BODIES[function](execute)(v),
        **{
            name: lambda v, s=schedule: BODIES[function](execute, schedule=s)(v)
            for name, schedule in schedules.items()
        },
    }
    run = {name: _jitted(body, mesh) for name, body in bodies.items()}
    expected = np.asarray(run["lax"](x))
    for name, call in run.items():
        if not np.array_equal(np.asarray(call(x)), expected):
            raise AssertionError(f"{name} {function} of {nbytes} bytes differs from lax")
    times = compare({name: lambda c=call: c(x) for name, call in run.items()}, repeat)
    base = times["lax"].median
    best = min(schedules, key=lambda name: times[name].median)
    memory = run[best].lower(x).compile().memory_analysis()
    return {
        "network": network.name,
        "function": function,
        "bytes": buffer,
        "lax": times["lax"],
        "hand": times["hand"].median / base,
        "default": times["default"].median / base,
        **{name: times[name].median / base for name in schedules},
        "best": best,
        "permutes": permute_program(schedules[best]).num_permutes,
        "hand / best": times["hand"].median / times[best].median,
        "temp / buffer": memory.temp_size_in_bytes / buffer if memory else None,
    }


def schedules_of(network: Topology, kind: str) -> Iterator[tuple[str, Schedule]]:
    """The schedules of a collective that are tried on a network."""
    for name, synthesizer in CANDIDATES.items():
        yield name, derived(synthesize(network, "all_gather", synthesizer, chunks=1), kind)


BODIES = {
    "all_gather": lambda m, **k: lambda v: m.all_gather(v, "x", tiled=True, **k),
    "psum_scatter": lambda m, **k: lambda v: m.psum_scatter(v, "x", tiled=True, **k),
    "psum": lambda m, **k: lambda v: m.psum(v, "x", **k),
}


# ---------------------------------------------------------------------- the baseline


def hand_all_gather(x: jax.Array, n: int) -> jax.Array:
    """A one-way ring, as one writes it without a library."""
    rank, size = lax.axis_index("x"), x.shape[0]
    around = [(r, (r + 1) % n) for r in range(n)]
    out = lax.dynamic_update_slice(jnp.zeros(n * size, x.dtype), x, (rank * size,))
    for t in range(1, n):
        x = lax.ppermute(x, "x", around)
        out = lax.dynamic_update_slice(out, x, ((rank - t) % n * size,))
    return out


def hand_psum_scatter(x: jax.Array, n: int) -> jax.Array:
    """The same for a sum of which each rank keeps its part."""
    rank, size = lax.axis_index("x"), x.shape[0] // n
    around = [(r, (r + 1) % n) for r in range(n)]

    def part(t):
        return lax.dynamic_slice(x, ((rank - 1 - t) % n * size,), (size,))

    total = part(0)
    for t in range(1, n):
        total = lax.ppermute(total, "x", around) + part(t)
    return total


HAND = {
    "all_gather": hand_all_gather,
    "psum_scatter": hand_psum_scatter,
    "psum": lambda x, n: hand_all_gather(hand_psum_scatter(x, n), n),
}


# ---------------------------------------------------------------------- compile time


def scan_row(mesh: Mesh, chunks: int) -> dict[str, Any]:
    """How long the scan lowering of a ring with many chunks takes to compile."""
    n = mesh.size
    schedule = synthesize(topologies.ring(n), "all_gather", "tacos", chunks=chunks)
    call = _jitted(
        lambda v: execute.all_gather(v, "x", tiled=True, schedule=schedule, lowering="scan"), mesh
    )
    x = jnp.zeros(n * chunks * 64, jnp.float32)
    started = time.perf_counter()
    lowered = call.lower(x)
    text = lowered.as_text()
    traced = time.perf_counter()
    lowered.compile()
    return {
        "schedule": repr(schedule),
        "permutes executed": permute_program(schedule).num_permutes,
        "permutes in the program": text.count("collective_permute"),
        "lines": len(text.splitlines()),
        "lower s": traced - started,
        "compile s": time.perf_counter() - traced,
    }
