"""Compiles collectives for one target and prints what the compiler made of each, as JSON.

Arguments: the target's name, "wrap" or "rule" (how a slice closes), and which cases: "few", "rest",
"pallas", "options", "transports", "links" or "ragged". Runs in a process of its own, which has the
compilers on its path; see ``test_targets``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import Collective, Schedule, aot, synthesize, topologies
from jaxcoll.execute.choice import in_force
from jaxcoll.execute.choice.defaults import default_schedule, schedule_of
from jaxcoll.execute.choice.transports import TRANSPORTS
from jaxcoll.execute.lowerings.rounds import permute_program, split_long_steps
from jaxcoll.execute.lowerings.scan import stages
from jaxcoll.kinds import those
from jaxcoll.synth import Bucket
from jaxcoll.tune import tasks_of

ROOTED = those(lambda kind: kind.has_root)

# Elements of a shard: a multiple of the chunks of every schedule, and so many that buffers do not
# fit into the fast memory of a TPU, where they would not count as temporary.
SHARD = 6 * 2**19
LOWERINGS = ("ssa", "scan")
# Trailing dimensions of operands that are not flat.
TRAILING = {"v5p": (1024,), "v5e": (8, 128)}
GATHERS = ("all_gather", "reduce_scatter", "all_reduce")


def main(name: str, wrap: str, which: str) -> None:
    """Compile, and print one line of JSON for each case."""
    target = aot.target(name, wrap=True if wrap == "wrap" else None)
    if which == "options":
        with_and_without_options(target)
        return
    if which == "transports":
        by_transports(target)
        return
    if which == "links":
        by_links(target)
        return
    if which == "ragged":
        ragged(target)
        return
    topology = target.topology
    n = topology.num_ranks
    if target.platform == "gpu":
        # What NCCL makes of the wires is its own; permutes of a torus are what is looked at here.
        topology = topologies.torus(4, 4, n // 16) if n > 16 else topologies.torus(2, 2, n // 4)
    synthesizer = "bucket" if which == "rest" else "tacos"
    for kind in GATHERS:
        chunks = 1
        if synthesizer == "bucket" and target.platform == "tpu":
            chunks = Bucket.granularity(topology)
        schedule = synthesize(topology, Collective(kind, n, chunks), synthesizer)
        lowerings = ("pallas",) if which == "pallas" else LOWERINGS
        if chunks * n > 128:
            lowerings = ("scan",)  # straight-line code would take minutes to compile
        for lowering in lowerings:
            row(target, schedule, synthesizer, lowering)
    if which == "rest":
        # A kind without a dual has no derivative, and no function that runs it.
        for kind in sorted(those(lambda kind: kind.dual is not None) - set(GATHERS)):
            schedule = default_schedule(Collective(kind, n, root=1 if kind in ROOTED else None))
            for lowering in LOWERINGS:
                row(target, schedule, "default", lowering)


def with_and_without_options(target: aot.Target) -> None:
    """Permutes that are written down independent of each other."""
    n = len(target.devices)

    def different(x):
        pairs = [[(r, r ^ (1 << bit)) for r in range(n)] for bit in range((n - 1).bit_length())]
        return sum(lax.ppermute(x + i, "i", p) for i, p in enumerate(pairs))

    def identical(x):
        once = [(r, (r + 1) % n) for r in range(n)]
        return lax.ppermute(x, "i", once) + lax.ppermute(x + 1, "i", once)

    mesh = target.mesh()
    for name, function in (("different", different), ("identical", identical)):
        for options in ({}, jc.compiler_options(mesh)):
            x = [jax.ShapeDtypeStruct((n * SHARD // 1024,), jnp.float32)]
            compiled = aot.compile_for(mesh, function, x, [P("i")], P("i"), options=options)
            summary = aot.summarize(compiled)
            found = {"in_flight": summary.in_flight, "launches": summary.launches}
            print(json.dumps({"function": name, "options": options, **found}), flush=True)


def by_transports(target: aot.Target) -> None:
    """An all_gather by every transport of the target, and two sums of ``jax.lax``."""
    mesh, n = target.mesh(), len(target.devices)
    x = [jax.ShapeDtypeStruct((n * SHARD // 1024, 1024), jnp.float32)]

    def gather(x):
        return jc.all_gather(x * 2, "i", tiled=True)

    def sums(x):
        return lax.psum(x, "i"), lax.psum(x * x, "i")

    mapped = jax.shard_map(gather, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    (task,) = tasks_of(mapped, *x)
    schedule = schedule_of(Collective("all_gather", n), "direct", 1, task.nbytes)
    for transport in TRANSPORTS[target.platform]:
        options = jc.compiler_options(mesh, schedule, transport=transport)
        config = {"algorithm": "direct", "lowering": "ssa", "transport": transport}
        with in_force.choosing(in_force.Fixed({task: config})):
            if transport == "apart":
                compiled = aot.compile_for(mesh, sums, x, [P("i")], P(), options=options)
            else:
                compiled = aot.compile_for(mesh, gather, x, [P("i")], P("i"), options=options)
        found = aot.summarize(compiled)
        fields = {"permutes": found.permutes, "native": found.native, "options": options}
        fields |= {"in_flight": found.in_flight, "launches": found.launches}
        print(json.dumps({"transport": transport, **fields}), flush=True)
    if target.platform == "gpu":
        found = aot.summarize(aot.compile_for(mesh, sums, x, [P("i")], P()))
        print(json.dumps({"transport": "without", "native": found.native}), flush=True)


def by_links(target: aot.Target) -> None:
    """A sum and a gather as one call each."""
    mesh, n = target.mesh(), len(target.devices)
    for kind, shape in (("all_reduce", (n * SHARD,)), ("all_gather", (SHARD // n * n,))):
        schedule = synthesize(target.topology, kind, "tacos")
        x = [jax.ShapeDtypeStruct(shape, jnp.float32)]
        ends = P() if kind == "all_reduce" else P("i")
        made = aot.compile_for(mesh, call(kind, schedule, "links"), x, [P("i")], ends)
        found = aot.summarize(made)
        calls = (made.as_text() or "").count('custom_call_target="jaxcoll_links_gpu"')
        temp = made.memory_analysis().temp_size_in_bytes  # type: ignore[union-attr]
        fields = {"calls": calls, "permutes": found.permutes, "native": found.native}
        print(json.dumps({"kind": kind, "temp_bytes": temp, **fields}), flush=True)


def ragged(target: aot.Target) -> None:
    """Slices of unequal sizes: as jax.lax has it, by a schedule, and checked."""
    mesh, n, rows = target.mesh(), len(target.devices), 256
    most = np.random.default_rng(0).zipf(1.3, (n, n)) % 64
    most[0] = 0
    by_schedule = {"largest": most, "schedule": "direct"}
    cases = {"default": {"check": False}, "direct": {**by_schedule, "check": False}}
    if target.platform == "tpu":  # JAX compiles calls of a host for GPUs only where there is one
        cases["checked"] = by_schedule
    for name, options in cases.items():
        made = aot.compile_for(
            mesh,
            functools.partial(jc.ragged_all_to_all, axis_name="i", **options),
            [jax.ShapeDtypeStruct((n * rows, 1024), jnp.float32)] * 2
            + [jax.ShapeDtypeStruct((n * n,), jnp.int32)] * 4,
            [P("i")] * 6,
            P("i"),
        )
        found = aot.summarize(made)
        text = made.as_text() or ""
        fields = {"permutes": found.permutes, "native": found.native}
        is_ragged = "ragged-all-to-all" in text
        print(json.dumps({"how": name, "is_ragged": is_ragged, **fields}), flush=True)


def row(target: aot.Target, schedule: Schedule, synthesizer: str, lowering: str) -> None:
    """Compile one collective and print what came of it."""
    kind, n = schedule.collective.kind, len(target.devices)
    mesh = target.mesh()
    trailing = TRAILING.get(target.name.partition(":")[0], ())
    lines = SHARD // math.prod(trailing)
    count = n * lines if kind in ("all_gather", "gather") else n * n * lines
    start = time.perf_counter()
    compiled = aot.compile_for(
        mesh,
        call(kind, schedule, lowering),
        [jax.ShapeDtypeStruct((count, *trailing), jnp.float32)],
        [P("i")],
        P() if kind == "all_reduce" else P("i"),
        options=jc.compiler_options(mesh, schedule),
    )
    seconds = time.perf_counter() - start
    summary = aot.summarize(compiled)
    program = permute_program(schedule)
    if target.platform == "tpu":
        program = split_long_steps(program)
    print(
        json.dumps(
            {
                "kind": kind,
                "synthesizer": synthesizer,
                "lowering": lowering,
                "seconds": round(seconds, 2),
                "rounds": [len(rounds) for rounds in program.steps],
                "slots": [len(s) for s in stages(program) for _ in range(len(s[0].send))],
                "buffer_bytes": n * SHARD * 4,
                "sizes": summary.sizes,
                "permutes": summary.permutes,
                "launches": summary.launches,
                "together": summary.together,
                "temp_ratio": summary.temp_ratio,
                "copies": summary.copies_of(n * SHARD * 4),
                **{
                    field.name: getattr(summary, field.name)
                    for field in dataclasses.fields(summary)
                    if field.name not in ("bursts", "copies")
                },
            }
        ),
        flush=True,
    )


def call(kind: str, schedule: Schedule, lowering: str):
    """The function of one rank's array that runs a collective on something computed before."""
    options = {"schedule": schedule, "lowering": lowering}
    n = schedule.collective.num_ranks
    name = {"all_reduce": "psum", "reduce_scatter": "psum_scatter"}.get(kind, kind)
    function = getattr(jc, name)

    def run(x):
        # A parameter could not be written to: the compiler would have to copy it first.
        x = x * 2
        if kind in ROOTED:
            x = x.reshape(n, -1, *x.shape[1:]) if kind == "scatter" else x
            out = function(x, "i", 1, **options)
            return out.reshape(-1, *out.shape[2:]) if kind == "gather" else out
        if kind == "all_to_all":
            return function(x, "i", 0, 0, tiled=True, **options)
        return function(x, "i", **({} if kind == "all_reduce" else {"tiled": True}), **options)

    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
