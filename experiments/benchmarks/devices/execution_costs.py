"""Execution costs of CPU devices, measured, and schedules whose times they predict.

``jc.measure_execution`` on 2, 4, 8 and 16 devices, each number in a process of its own, beside the
costs that are shipped; then schedules that took no part in the measurement, predicted by the
shipped costs and timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from experiments.benchmarks.devices.on_cpu_devices import in_processes, parser_of, with_devices
from experiments.benchmarks.report import report, write
from experiments.study import printed
from experiments.timing import compare
from jaxcoll.simulation.execution_costs import costs_of

SIZES = (1 << 10, 256 << 10, 4 << 20)
SCHEDULES = ("bucket", "ring", "rhd", "bfb")


def main(argv: Sequence[str]) -> None:
    """Prints and writes both tables."""
    parser = parser_of("execution_costs")
    parser.add_argument("--repeat", type=int, default=20, help="calls of each schedule")
    options = parser.parse_args(argv)
    if options.child:
        mesh = Mesh(np.asarray(jax.devices()), ("x",))
        with_devices(options.ranks[0], measured(mesh, SIZES, options.repeat))
        return
    rows: list[dict[str, Any]] = [_costs_row("shipped", costs_of("cpu"))]
    for row in printed(
        in_processes("execution_costs", options.ranks, ["--repeat", str(options.repeat)])
    ):
        rows.append(row)
        write("execution_costs", rows)
    report("execution_costs", [row for row in rows if "permute us" in row])
    report("execution_costs-predicted", [row for row in rows if "predicted" in row])


def measured(mesh: Mesh, sizes: Sequence[int], repeat: int) -> Iterator[dict[str, Any]]:
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
