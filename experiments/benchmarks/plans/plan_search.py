"""Searches against their targets: CPU seconds and gaps of traces, searches, limits and refusals."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from experiments.benchmarks.report import report
from experiments.benchmarks.tensorstate import ALPHA, DECODER, MESHES, cpu_seconds
from experiments.models import load_model
from jaxcoll import topologies
from tensorstate import (
    BASELINES,
    AlphaBetaCosts,
    Auto,
    Graph,
    MeshShape,
    Plan,
    PlanError,
    search,
    solve_baseline,
    trace,
)
from tensorstate.report.text import parallelism_name

# Layers of the decoder whose trace and free search have targets, and of a small one.
LAYERS, SMALL = 32, 2

Row = Mapping[str, Any]


def main(argv: Sequence[str]) -> None:
    """Prints each row when it is made: a question, its target, and the measured figures."""
    parser = argparse.ArgumentParser(prog="plan_search")
    parser.add_argument("--layers", type=int, help="of the decoders, instead of 24 and 32")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    options = parser.parse_args(argv)
    report("plan_search", rows(options.only, options.layers))


def rows(names: Sequence[str], layers: int | None = None) -> Iterator[Row]:
    """The rows of some questions.

    Args:
        names: of ``QUESTIONS``.
        layers: of the decoders.
    """
    for name in names:
        for row in QUESTIONS[name](layers):
            yield {"question": name, **row}


def _network(mesh: str) -> dict[str, Any]:
    sizes, bandwidth = MESHES[mesh]
    costs = AlphaBetaCosts(MeshShape.of(sizes), (ALPHA,) * len(sizes), bandwidth)
    return {"mesh": sizes, "network": costs, "hardware": "H100"}


def _decoder(layers: int) -> Graph:
    model = load_model("llama_3_1_8b", **{**DECODER, "layers": layers})
    return trace(model.step, model.abstract_args)


def _row(ask: Callable[[], Plan], target: str) -> Row:
    """CPU seconds and the plan of a search, or why it has none."""
    start = cpu_seconds()
    try:
        plan = ask()
    except PlanError as error:
        spent = cpu_seconds() - start
        return {"target": target, "CPU s": spent, "found": str(error).partition(":")[0]}
    spent = cpu_seconds() - start
    return {
        "target": target,
        "CPU s": spent,
        "gap %": 100 * min(1.0, plan.gap),
        "step ms": 1e3 * plan.cost.serial_seconds,
        "memory GB": plan.cost.memory.peak / 1e9,
        "collectives": sum(plan.cost.count_by_collective.values()),
        "lines": len(str(plan).splitlines()),
        "found": plan.result.method,
    }


def _traced(layers: int | None) -> Iterator[Row]:
    start = cpu_seconds()
    _decoder(layers or LAYERS)
    yield {"target": "3 CPU s", "CPU s": cpu_seconds() - start, "found": "trace"}


def _free(layers: int | None) -> Iterator[Row]:
    graph = _decoder(layers or LAYERS)
    yield _row(lambda: search(graph, memory_limit=math.inf, **_network("2x4")), "4 CPU s")


def _recompute(layers: int | None) -> Iterator[Row]:
    """7.5 billion parameters with 24 layers, in the memory of an H100."""
    graph = _decoder(layers or DECODER["layers"])

    def ask() -> Plan:
        return search(graph, memory_limit="80GB", recompute=True, **_network("2x4"))

    yield _row(ask, "20 CPU s, gap 3 %")


def _three_axes(_layers: int | None) -> Iterator[Row]:
    model = load_model("gpt")
    graph = trace(model.step, model.abstract_args)
    sizes = {"a": 2, "b": 2, "c": 2}
    costs = AlphaBetaCosts(MeshShape.of(sizes), (1e-9,) * 3, (12.5e9, 25e9, 50e9))
    asked = {"mesh": sizes, "network": costs, "hardware": "CPU"}
    free = search(graph, memory_limit=math.inf, **asked)
    limit = 0.6 * free.cost.memory.peak
    yield _row(lambda: search(graph, memory_limit=limit, recompute=True, **asked), "gap 10 %")


def _small_limits(_layers: int | None) -> Iterator[Row]:
    for name in ("moe", "vgg"):
        model = load_model(name)
        graph = trace(model.step, model.abstract_args)
        asked = {**_network("2x4"), "hardware": "CPU"}
        limit = 0.6 * search(graph, memory_limit=math.inf, **asked).cost.memory.peak
        solver = Auto(time_limit=20)
        found = _row(
            lambda: search(graph, memory_limit=limit, recompute=True, solver=solver, **asked),  # noqa: B023
            "20 CPU s",
        )
        yield {"model": name, **found}


def _refused(layers: int | None) -> Iterator[Row]:
    """Limits below the arguments, and between them and the least memory of a plan."""
    graph = _decoder(layers or SMALL)
    arguments = sum(graph.tensors[i].nbytes for i in graph.inputs) / 8
    for share in (0.5, 1.2):
        limit = share * arguments
        yield _row(lambda: search(graph, memory_limit=limit, **_network("2x4")), "at once")  # noqa: B023


def _compared(layers: int | None) -> Iterator[Row]:
    graph = _decoder(layers or DECODER["layers"])
    plan = search(graph, memory_limit=math.inf, **_network("2x4"))
    names = [*BASELINES, "fsdp + megatron", "zero1 + megatron-sp"]
    start = cpu_seconds()
    plan.compare(*names)
    yield {"target": "10 CPU s", "CPU s": cpu_seconds() - start, "found": f"{len(names)} names"}


def _mesh(layers: int | None) -> Iterator[Row]:
    model = load_model("llama_3_1_8b", **{**DECODER, "layers": layers or SMALL, "batch": 64})
    graph = trace(model.step, model.abstract_args)
    topology = topologies.dgx_h100(8)
    asked: dict[str, Any] = {
        "topology": topology, "hardware": "H100", "memory_limit": math.inf,
    }  # fmt: skip
    one = _row(lambda: search(graph, mesh={"data": 8, "model": 8}, **asked), "")
    yield one
    chosen = _row(lambda: search(graph, devices=topology.num_ranks, **asked), "5 x one search")
    yield {**chosen, "ratio": chosen["CPU s"] / one["CPU s"]}


def _overlap(layers: int | None) -> Iterator[Row]:
    """Schedules of the plans of both objectives, and of the named strategies that a person takes.

    On two hosts of four H100s tensor parallelism across hosts would show as collectives of
    activations over "data".
    """
    graph = _decoder(layers or DECODER["layers"])
    first = None
    for objective in ("sum", "overlap"):
        asked = {"memory_limit": math.inf, "objective": objective, **_network("2x4")}
        start = cpu_seconds()
        plan = search(graph, **asked)
        spent = cpu_seconds() - start
        first = first or spent
        yield {
            "target": "2 x the sum", "CPU s": spent, "ratio": spent / first, **_scheduled(plan),
        }  # fmt: skip
    for name in ("fsdp", "fsdp + megatron-sp", "ddp + megatron", "zero1"):
        yield {"target": "slower", **_scheduled(solve_baseline(plan.problem, name), name)}  # pyright: ignore


def _scheduled(plan: Plan, name: str | None = None) -> Row:
    timeline, problem = plan.timeline, plan.problem
    return {
        "found": name or parallelism_name(problem, plan.decisions, plan.cost),
        "step ms": 1e3 * timeline.seconds,
        "exposed ms": 1e3 * timeline.exposed_seconds,
        "communication ms": 1e3 * plan.cost.communication,
        "gap %": 100 * min(1.0, plan.gap),
        "memory GB": plan.cost.memory.peak / 1e9,
    }


QUESTIONS: Mapping[str, Callable[[int | None], Iterator[Row]]] = {
    "trace": _traced,
    "free": _free,
    "recompute": _recompute,
    "three axes": _three_axes,
    "small limits": _small_limits,
    "refused": _refused,
    "compare": _compared,
    "mesh": _mesh,
    "overlap": _overlap,
}
