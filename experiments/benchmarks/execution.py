"""Schedules executed on CPU devices, beside ``jax.lax`` and a ring of permutes written by hand."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.benchmarks.report import report
from experiments.timing import compare
from jaxcoll import execute, topologies
from jaxcoll.execute.choice.selection import derived
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Bucket, Ring, Synthesizer, synthesize
from jaxcoll.topology import Topology

KINDS = {"all_gather": "all_gather", "psum_scatter": "reduce_scatter", "psum": "all_reduce"}
SIZES = (1e3, 1e5, 1e6, 1.6e7, 6.4e7)
# Each synthesizer with its best number of chunks per shard where rounds dominate the cost.
CANDIDATES: dict[str, Synthesizer] = {
    "ring": Ring(bidirectional=False),
    "ring both ways": Ring(),
    "bucket": Bucket(),
}


def main(argv: Sequence[str]) -> None:
    """Prints and writes both tables."""
    parser = argparse.ArgumentParser(prog="execution")
    parser.add_argument("--ranks", type=int, default=8, choices=(8, 16))
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="bytes of a buffer")
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


def _jitted(body: Callable, mesh: Mesh):
    inner = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.jit(inner)


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
