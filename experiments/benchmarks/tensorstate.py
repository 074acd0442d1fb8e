"""Searches for plans: how long they take, and how far from the best they may be."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.models import load_model
from tensorstate import AlphaBetaCosts, Auto, Graph, MeshShape, PlanError, search, trace

# The mesh, and bytes per second of a device along every axis: NVLink within a host, a network
# adapter a device between hosts.
MESHES: dict[str, tuple[dict[str, int], tuple[float, ...]]] = {
    "1-D": ({"data": 8}, (200e9,)),
    "2-D": ({"data": 4, "model": 8}, (25e9, 200e9)),
    "3-D": ({"pod": 4, "data": 4, "model": 8}, (12.5e9, 25e9, 200e9)),
}
ALPHA = 5e-6
# Of the memory that the plan without a limit takes.
LIMIT = 0.6


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every model and mesh."""
    parser = argparse.ArgumentParser(prog="tensorstate")
    parser.add_argument("--models", nargs="+", default=["gpt", "llama_3_1_8b", "llama_3_405b"])
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--layers", type=int, help="of models of small sizes", default=32)
    options = parser.parse_args(argv)
    report("tensorstate", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    for name in options.models:
        small = name in ("gpt", "llama")
        model = load_model(name, **({"layers": options.layers} if small else {}))
        start = time.process_time()
        graph = trace(model.step, model.abstract_args)
        traced = time.process_time() - start
        for mesh in options.meshes:
            yield from measure(name, graph, traced, mesh)


def measure(model: str, graph: Graph, traced: float, mesh: str) -> list[Mapping[str, Any]]:
    """Without a memory limit, and with one: by recompute, or in microbatches."""
    sizes, bandwidth = MESHES[mesh]
    network = AlphaBetaCosts(MeshShape.of(sizes), (ALPHA,) * len(sizes), bandwidth)
    free = search(graph, mesh=sizes, network=network, hardware="H100")
    limit = LIMIT * free.cost.memory.peak
    plans = {"none": free}
    strategies: dict[str, dict[str, Any]] = {
        "60 %, recompute": {"recompute": True},
        "60 %, microbatches": {"microbatches": "auto"},
    }
    for name, options in strategies.items():
        try:
            plans[name] = search(
                graph,
                mesh=sizes,
                network=network,
                hardware="H100",
                memory_limit=limit,
                solver=Auto(time_limit=300),
                **options,
            )
        except PlanError as error:
            print(f"{model} on {mesh}, {name}: {error}")
    return [
        {
            "model": model,
            "mesh": mesh,
            "limit": name,
            "operators": len(graph.operators),
            "classes": len(graph.node_classes),
            "trace CPU s": traced,
            "search s": plan.result.seconds,
            "method": plan.result.method,
            "microbatches": plan.microbatches,
            "gap %": 100 * min(1.0, plan.gap),
            "step ms": 1e3 * plan.cost.serial_seconds,
            "communication ms": 1e3 * plan.cost.communication,
            "memory GB": plan.cost.memory.peak / 1e9,
        }
        for name, plan in plans.items()
    ]
