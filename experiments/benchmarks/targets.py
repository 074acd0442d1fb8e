"""Schedules compiled for TPU slices and H100 hosts that are not here, beside jax.lax.

Needs the compilers, which ``scripts/bench targets`` installs. Nothing is timed but compilation:
the figures are what the compiled programs would do.

``degraded_compiled`` compiles an all_reduce for a slice less a link.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.timing import report
from jaxcoll import aot, execute, topologies
from jaxcoll.collective import Collective
from jaxcoll.kinds import kind_of, names_in
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Bucket, synthesize
from jaxcoll.topology import Topology

LINES, TRAILING = 3072, (8, 128)  # of a shard: 12 MiB of float32, in whole tiles
# By function of ``jax.lax``: those of shards, which no rank sends to one other alone.
KINDS = {name: kind for kind, name in names_in("lax").items() if kind_of(kind).is_sharded}
LAYERS, WIDTH, BATCH = 6, 1024, 4096  # of the train step; the batch is a rank's
# Of the step with many buckets: 16 gradients of 4 MiB, with one gradient per bucket.
BUCKETS, BUCKET_BATCH = 16, 512
MANY_BUCKETS = "train step, 16 buckets"


def print_rows(name: str, only: str | None = None) -> None:
    """Print the rows of a target, named as ``scripts/bench targets`` names it."""
    target = aot.target(name.removesuffix(" closed"), wrap=True if "closed" in name else None)
    topology = network(target)
    for function in (*KINDS, "train step", MANY_BUCKETS):
        if only not in (None, function):
            continue
        if function in KINDS:
            rows = collective_rows(target, topology, function)
        elif function == MANY_BUCKETS:
            # One target will do, since it takes the compiler minutes.
            rows = bucket_rows(target, topology) if name.startswith("v5e") else iter(())
        else:
            rows = training_rows(target, topology)
        for row in rows:
            print(json.dumps({"target": name, **row}), flush=True)


def network(target: aot.Target) -> Topology:
    """The network that schedules are made for; of GPUs behind switches a torus laid over them."""
    n = len(target.devices)
    if target.platform == "tpu":
        return target.topology
    return topologies.torus(4, 4, n // 16) if n > 16 else topologies.torus(2, 2, n // 4)


# ---------------------------------------------------------------------- collectives


def collective_rows(
    target: aot.Target, topology: Topology, function: str
) -> Iterator[dict[str, Any]]:
    """Rows of one collective, in several ways."""
    native, axes = getattr(lax, function), tuple("abc"[: len(target.sides)])
    ways: dict[str, tuple[Mesh, Callable, Schedule | None]] = {}
    mesh = target.mesh(*axes)
    ways["lax, all axes at once"] = (mesh, lambda x: bound(native, function)(x, axes), None)
    ways["lax, axis by axis"] = (mesh, lambda x: by_axis(native, function, axes, x), None)
    kind, n = KINDS[function], topology.num_ranks
    for synthesizer, chunks in (("tacos", 1), ("bucket", Bucket.granularity(topology))):
        schedule = synthesize(topology, Collective(kind, n, chunks), synthesizer)
        for lowering in ("ssa", "scan") if target.platform == "gpu" else ("ssa", "scan", "pallas"):

            def ours(x, schedule=schedule, lowering=lowering):
                own = bound(getattr(execute, function), function)
                return own(x, "i", schedule=schedule, lowering=lowering)

            ways[f"{synthesizer}, {lowering}"] = (target.mesh(), ours, schedule)
    for name, (mesh, body, schedule) in ways.items():
        row = {"function": function, "how": name, **compiled_row(mesh, body, function, schedule)}
        if name.endswith("pallas"):
            # Its messages are inside the kernel, where HLO does not show them.
            for column in ("permutes", "launches", "in flight", "sent"):
                del row[column]
        yield row


def bound(call: Callable, function: str) -> Callable:
    """A collective on the leading dimension."""
    if function == "psum":
        return call
    return lambda x, axis, **options: call(x, axis, tiled=True, **options)


def by_axis(native: Callable, function: str, axes: tuple[str, ...], x: jax.Array) -> jax.Array:
    """A collective along one axis of the mesh after another."""
    for axis in reversed(axes) if function == "all_gather" else axes:
        x = bound(native, function)(x, axis)
    return x


def compiled_row(
    mesh: Mesh, body: Callable, function: str, schedule: Schedule | None
) -> dict[str, Any]:
    """Figures of one program."""
    n = mesh.size
    lines = n * LINES if function == "all_gather" else n * n * LINES
    spec = P(mesh.axis_names)
    options = {} if schedule is None else jc.compiler_options(mesh, schedule)
    start = time.perf_counter()
    compiled = aot.compile_for(
        mesh,
        # An intermediate, as gradients are: a parameter could not be overwritten.
        lambda x: body(x * 2),
        [jax.ShapeDtypeStruct((lines, *TRAILING), jnp.float32)],
        [spec],
        P() if function == "psum" else spec,
        options=options,
        check_vma=False,
    )
    seconds = time.perf_counter() - start
    summary = aot.summarize(compiled)
    buffer = 4 * n * LINES * TRAILING[0] * TRAILING[1]
    return {
        "permutes": summary.permutes,
        "launches": summary.launches,
        "XLA's own": described(summary.native),
        "in flight": summary.in_flight,
        "sent": summary.wire_bytes / buffer,
        "temp": summary.temp_bytes / buffer,
        "copies": summary.copies_of(buffer),
        "compile s": round(seconds, 1),
    }


def described(native: Mapping[str, int]) -> str:
    """Opcodes and how often each runs."""
    return ", ".join(f"{count} {name}" for name, count in native.items())


# ---------------------------------------------------------------------- training


def training_rows(target: aot.Target, topology: Topology) -> Iterator[dict[str, Any]]:
    """Rows of a train step of a stack of dense layers, its gradients summed in several ways."""
    collective = Collective("all_reduce", topology.num_ranks)
    schedule = synthesize(topology, collective, "bucket")
    ways = {
        "lax.psum": (lambda g: lax.psum(g, "i"), 0),
        "jc.psum": (lambda g: jc.psum(g, "i", schedule=schedule), 1),
        "jc.optax.overlap": (None, LAYERS),
    }
    for name, (reduce, at_once) in ways.items():
        options = jc.compiler_options(target.mesh(), *[schedule] * at_once) if at_once else None
        step = train_step(reduce, schedule)
        figures = training_figures(target, step, (LAYERS, BATCH), options, donate=True)
        yield {"function": "train step", "how": name, **figures}


def bucket_rows(target: aot.Target, topology: Topology) -> Iterator[dict[str, Any]]:
    """Rows of gradients averaged in many buckets: with and without a limit on those in flight."""
    collective = Collective("all_reduce", topology.num_ranks)
    schedule = synthesize(topology, collective, "bucket")
    options = jc.compiler_options(target.mesh(), schedule)
    ways: dict[str, tuple[Callable, dict | None]] = {
        "lax.pmean": (lambda g: lax.pmean(g, "i"), None)
    }
    for window in (0, jc.optax.WINDOW):
        reduction = jc.optax.all_reduce_gradients(
            "i", schedule=schedule, bucket_bytes=4 * WIDTH * WIDTH, window=window
        )

        def reduce(g, reduction=reduction):
            return reduction.update(g, reduction.init(g))[0]

        ways[f"window={window}" if window else "window=0, no limit"] = (reduce, options)
    for name, (reduce, chosen) in ways.items():
        figures = training_figures(target, gradients(reduce), (BUCKETS, BUCKET_BATCH), chosen)
        yield {"function": MANY_BUCKETS, "how": name, **figures}


def training_figures(
    target: aot.Target,
    step: Callable,
    sizes: tuple[int, int],
    options: dict[str, Any] | None,
    donate: bool = False,
) -> dict[str, Any]:
    """Figures of one training step; ``sizes`` are its layers and a rank's batch."""
    start = time.perf_counter()
    mesh = target.mesh()
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("i"), P("i")), out_specs=P(), check_vma=False
    )
    jitted = jax.jit(mapped, donate_argnums=0 if donate else ())
    compiled = jitted.lower(*arguments(mesh, *sizes)).compile(options)
    summary = aot.summarize(compiled)
    return {
        "permutes": summary.permutes,
        "launches": summary.launches,
        "XLA's own": described(summary.native),
        "in flight": summary.in_flight,
        "products": summary.matmuls,
        "covered": summary.covered_matmuls,
        "temp MiB": round(summary.temp_bytes / 2**20, 1),
        "results MiB": round(summary.output_bytes / 2**20, 1),
        "compile s": round(time.perf_counter() - start, 1),
    }


def layer(w: jax.Array, x: jax.Array) -> jax.Array:
    """One dense layer."""
    return jnp.tanh(x @ w)


def loss(x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error."""
    return ((x - y) ** 2).mean()


def forward(params: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """The loss of all layers."""
    for w in params:
        x = layer(w, x)
    return loss(x, y)


def gradients(reduce: Callable) -> Callable:
    """The gradients of a step alone, reduced."""
    return lambda params, x, y: reduce(jax.grad(forward)(params, x, y))


def train_step(reduce: Callable | None, schedule: Schedule) -> Callable:
    """One step of gradient descent; without ``reduce``, sums advance with the backward pass."""

    def step(params, x, y):
        if reduce is None:
            layers = [layer] * LAYERS
            grad = jc.optax.overlap(layers, loss, "i", schedule=schedule, mean=False)
            total = grad(params, x, y)[1]
        else:
            total = gradients(reduce)(params, x, y)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, total)

    return step


def arguments(mesh: Mesh, layers: int, batch: int) -> tuple:
    """Abstract parameters, inputs and targets of a train step."""

    def array(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    data = array((mesh.size * batch, WIDTH), P("i"))
    return [array((WIDTH, WIDTH), P()) for _ in range(layers)], data, data


# ---------------------------------------------------------------------- the benchmark


TARGETS = ("v5p:4x4x4", "v5e:4x4 closed", "v4:2x2x2", "h100:8", "h100:16x8")


def main(argv: Sequence[str]) -> int:
    """Prints and writes both tables; 1 if a target could not be compiled for."""
    parser = argparse.ArgumentParser(prog="targets", description=__doc__)
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="NAME", help=f"{TARGETS}")
    options = parser.parse_args(argv)
    rows, failed = [], 0
    for name in options.targets:
        platform = "gpu" if name.startswith(aot.GPUS) else "tpu"
        if not aot.is_available(platform):
            print(f"{name}: its compiler is not installed", file=sys.stderr)
            failed = 1
            continue
        found, why = compiled_for(name)
        rows += found
        if why:
            print(f"{name}: compilation ended early; {why}", file=sys.stderr)
            failed = 1
    training = [row for row in rows if row["function"].startswith("train step")]
    report("targets", [row for row in rows if row not in training])
    print("sent, temp: parts of the gathered or summed buffer; sent is what a device hands over.")
    report("targets-training", training)
    print("covered: matrix products that run while a permute is in flight.")
    return failed


def compiled_for(name: str, *only: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a target, from a process of its own, and why it failed if it did.

    All of them, or those of one function.

    A compiler may end its process, and the two kinds of them need other settings.
    """
    done = subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.targets", name, *only],
        env={**os.environ, **aot.ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return rows, "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


SLICE, CHUNKS = "v5p:4x4x4", (1, 2, 4)  # chunks per shard of 64 shards


def measure(target: aot.Target, name: str, schedule: jc.Schedule, mebibytes: int) -> dict[str, Any]:
    """The row of a schedule."""
    mesh, n = target.mesh(), len(target.devices)
    # Chunks in lines of 128, as TPUs keep them.
    x = jax.ShapeDtypeStruct((n * mebibytes * 2**18 // 128, 128), jnp.float32)
    total = functools.partial(jc.psum, axis_name="i", schedule=schedule, lowering="scan")
    options = jc.compiler_options(mesh, schedule)
    started = process_time()
    compiled = aot.compile_for(mesh, total, [x], [P("i")], P(), options=options)
    spent = process_time() - started
    summary = aot.summarize(compiled)
    return {
        "schedule": name,
        "chunks": schedule.collective.num_chunks,
        "steps": schedule.num_steps,
        "permutes": summary.permutes,
        "in flight": summary.in_flight,
        "temporary": summary.temp_ratio,
        "compile CPU s": spent,
    }


def degraded_compiled(argv: Sequence[str]) -> None:
    """An all_reduce on v5p 4x4x4 less a link, compiled: permutes in flight, memory, compile time.

    Joint trees of 64 to 256 chunks beside the ring of the whole slice, as one loop (``scan``).
    Nothing runs: it needs the TPU compiler, which ``scripts/bench`` installs for ``targets``.
    Temporary memory is in multiples of a rank's buffer, compile time in CPU seconds (the median of
    several, the rows alternating, after one that is not counted) and in multiples of the ring's.
    """
    parser = argparse.ArgumentParser(
        prog="degraded_compiled", description=degraded_compiled.__doc__
    )
    parser.add_argument("--mebibytes", type=int, default=64, help="of a rank (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="compilations (%(default)s)")
    options = parser.parse_args(argv)
    target = aot.target(SLICE)
    whole = target.topology
    u, v = int(whole.src[0]), int(whole.dst[0])
    left = whole.without([(u, v), (v, u)])
    schedules = {"ring, whole": jc.synthesize(whole, "all_reduce", "ring", chunks=1)}
    for count in CHUNKS:
        nbytes = options.mebibytes * 2**20
        made = jc.synthesize(left, "all_reduce", "joint_trees", chunks=count, nbytes=nbytes)
        schedules[f"joint trees x{count}"] = made
    measured = [
        [measure(target, name, each, options.mebibytes) for name, each in schedules.items()]
        for _ in range(1 + options.repeat)
    ]
    rows = measured[-1]
    for i, row in enumerate(rows):
        row["compile CPU s"] = median(turn[i]["compile CPU s"] for turn in measured[1:])
    ring = rows[0]["compile CPU s"]
    report("degraded_compiled", [{**row, "/ ring": row["compile CPU s"] / ring} for row in rows])


if __name__ == "__main__":
    print_rows(*sys.argv[1:])
