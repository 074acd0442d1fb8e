"""Plans out of the library: bytes, network time and memory of each way to run one, by the HLO."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.report import report
from experiments.models import Model, load_model
from jaxcoll import topologies
from tensorstate import Auto, Plan, lax_collectives, search, trace
from tensorstate.execution.sharded_step import abstract_args
from tensorstate.report.hlo_check import network_seconds, read_hlo

MODELS = ("mlp", "gpt", "gpt_scan", "llama", "moe", "vgg", "vit")
MESHES = {"8": {"data": 8}, "2x4": {"data": 2, "model": 4}, "2x2x2": {"a": 2, "b": 2, "c": 2}}
STEPS = 10


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every model, mesh and way."""
    parser = argparse.ArgumentParser(prog="plan_routes")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--meshes", nargs="+", default=["8", "2x4"], choices=list(MESHES))
    options = parser.parse_args(argv)
    jax.config.update("jax_num_cpu_devices", 8)
    report("plan_routes", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    for name in options.models:
        model = load_model(name)
        graph = trace(model.step, model.abstract_args)
        for mesh in options.meshes:
            sizes = MESHES[mesh]
            network = topologies.torus(*sizes.values(), alpha=0.5e-6, bandwidth=50e9)
            solver = Auto(gap=0.05, time_limit=60)
            plan = search(graph, mesh=sizes, topology=network, hardware="CPU", solver=solver)
            yield from measure(model, plan, {"model": name, "mesh": mesh})


def measure(model: Model, plan: Plan, labels: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A row for each way to run a plan, relative to the plan; memory relative to the runner's.

    "time, scatters formed" prices as reduce-scatters those all-reduces that XLA for GPU and TPU
    makes reduce-scatters of, and XLA for CPU does not: as many bytes per axis as the plan has.
    """
    devices = plan.make_mesh()
    runner = plan.apply(devices, lax_collectives)
    ways: dict[str, Callable[..., Any]] = {
        "runner": runner.jit(donate=False),
        "constrain": plan.constrain(mesh=devices).jit(donate=False),
        "shardings only": jax.jit(
            model.step, in_shardings=runner.in_shardings, out_shardings=runner.out_shardings
        ),
    }
    args = jax.device_put(jax.device_get(model.init(0)), runner.in_shardings)
    expected = losses(jax.jit(model.step), model.init(0))
    planned = sum(plan.cost.bytes_by_collective.values())
    memory = None
    for way, run in ways.items():
        found = plan.check(mesh=devices, step=run)  # pyright: ignore[reportArgumentType]
        memory = memory or found.compiled_temporaries
        yield {
            **labels,
            "way": way,
            "bytes": sum(row.compiled_bytes for row in found.rows) / max(1, planned),
            "network time": found.compiled_seconds / max(1e-30, found.predicted_seconds),
            "time, scatters formed": formed(plan, run) / max(1e-30, found.predicted_seconds),
            "memory": found.compiled_temporaries / max(1, memory),
            "loss differs by": float(np.max(np.abs(losses(run, args) / expected - 1))),
        }


def losses(run: Callable[..., Any], args: Sequence[Any]) -> np.ndarray:
    """The losses of some steps: the new values of arguments come first in the results."""
    state, rest, found = args[:2], args[2:], []
    for _ in range(STEPS):
        *state, loss = run(*state, *rest)
        found.append(float(loss))
    return np.asarray(found)


def formed(plan: Plan, run: Any) -> float:
    """Network seconds of a compiled step, with the plan's reduce-scatters formed."""
    text = run.lower(*abstract_args(plan.graph)).compile().as_text()
    compiled = read_hlo(text, plan.problem.mesh).collectives
    left: dict[int, int] = defaultdict(int)
    for (kind, axis), nbytes in plan.cost.bytes_by_collective.items():
        left[axis] += nbytes if kind == "reduce_scatter" else 0
    for one in compiled:
        if one.kind == "reduce_scatter" and one.axes is not None:
            left[one.axes[0]] -= one.nbytes * one.times
    collectives = []
    for one in compiled:
        taken, nbytes = {}, one.nbytes * one.times
        for axis in one.axes or ():  # along several axes: within the parts of the first
            taken[axis], nbytes = nbytes, nbytes // plan.problem.mesh.sizes[axis]
        if one.kind == "all_reduce" and taken and all(left[a] >= n for a, n in taken.items()):
            for axis, n in taken.items():
                left[axis] -= n
            collectives.append(one._replace(kind="reduce_scatter"))
        else:
            collectives.append(one)
    return network_seconds(collectives, plan.problem.network)
