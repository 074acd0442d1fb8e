"""Searches for plans: how long they take, and how far from the best they may be.

Under a limit ``Auto`` stands beside the exact search and coordinate descent alone, which take the
time that ``Auto`` may take: that is the way in which limits were searched before.

``plan_search`` holds CPU seconds and gaps of traces, searches, limits and refusals against their
targets.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from experiments.models import Model, load_model
from experiments.models.scripts import unet
from experiments.timing import cpu_timed, report
from jaxcoll import topologies
from tensorstate import (
    BASELINES,
    AlphaBetaCosts,
    Auto,
    CoordinateDescent,
    Graph,
    MeshShape,
    Milp,
    Plan,
    PlanError,
    search,
    solve_baseline,
    trace,
)
from tensorstate.ir.graph import LoopForm
from tensorstate.report.parallelism import parallelism_name
from tensorstate.solver.base import Solver

# The mesh, and bytes per second of a device along every axis: NVLink within a host, a network
# adapter a device between hosts.
MESHES: dict[str, tuple[dict[str, int], tuple[float, ...]]] = {
    "1-D": ({"data": 8}, (200e9,)),
    "2x4": ({"data": 2, "model": 4}, (25e9, 200e9)),
    "2-D": ({"data": 4, "model": 8}, (25e9, 200e9)),
    "3-D": ({"pod": 4, "data": 4, "model": 8}, (12.5e9, 25e9, 200e9)),
}
ALPHA = 5e-6
# Of the memory that the plan without a limit takes.
LIMIT = 0.6

# To take less memory; and how loops are traced: in pairs where operators are recomputed.
FORMS: tuple[LoopForm, ...] = ("keep", "pair")
WAYS: dict[str, dict[str, Any]] = {
    "recompute": {"recompute": True},
    "microbatches": {"microbatches": "auto"},
}

# A decoder of 7.5 billion parameters.
DECODER: dict[str, Any] = {
    "layers": 24,
    "hidden": 16384,
    "num_kv_heads": 32,
    "sequence_length": 2048,
    "batch": 16,
    "scan": False,
}


def main(argv: Sequence[str]) -> None:
    """Prints and writes a row for every model and mesh."""
    parser = argparse.ArgumentParser(prog="tensorstate")
    names = ["gpt", "moe", "decoder", "llama_3_1_8b", "llama_3_405b"]
    parser.add_argument("--models", nargs="+", default=names)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--layers", type=int, help="of models of small sizes", default=32)
    parser.add_argument("--seconds", type=float, help="of a search under a limit", default=60.0)
    options = parser.parse_args(argv)
    report("tensorstate", _rows(options))


def _rows(options: argparse.Namespace) -> Iterator[Mapping[str, Any]]:
    for name in options.models:
        changed = {"layers": options.layers} if name in ("gpt", "llama") else {}
        if name == "decoder":
            model = load_model("llama_3_1_8b", **DECODER)
        else:
            model = load_model(name, **changed)
        graph, traced = cpu_timed(lambda: trace(model.step, model.abstract_args))  # noqa: B023
        for mesh in options.meshes:
            yield from measure(name, graph, traced, mesh, options.seconds)


def measure(
    model: str, graph: Graph, traced: float, mesh: str, seconds: float
) -> Iterator[Mapping[str, Any]]:
    """Without a memory limit, and with one: by recompute, or in microbatches."""
    asked = _on(mesh)
    named = {
        "model": model,
        "mesh": mesh,
        "operators": len(graph.operators),
        "classes": len(graph.node_classes),
        "trace CPU s": traced,
    }
    free, spent = cpu_timed(lambda: search(graph, memory_limit=math.inf, **asked))
    yield {**named, "limit": "none", "solver": "auto", **_columns(free, spent)}
    limit = LIMIT * free.cost.memory.peak
    solvers: dict[str, Solver] = {
        "auto": Auto(time_limit=seconds),
        "exact alone": Milp(time_limit=seconds),
        "descent alone": CoordinateDescent(time_limit=seconds),
    }
    for solver_name, solver in solvers.items():
        for how, options in WAYS.items() if solver_name == "auto" else [*WAYS.items()][:1]:
            row = {**named, "limit": f"{LIMIT:.0%}, {how}", "solver": solver_name}
            asked |= {"memory_limit": limit, "solver": solver}
            plan, spent = cpu_timed(lambda: _found(lambda: search(graph, **asked, **options)))  # noqa: B023
            if isinstance(plan, PlanError):
                print(f"{model} on {mesh}, {how}, {solver_name}: {plan}")
            yield {**row, **_columns(plan, spent)}


def _on(mesh: str) -> dict[str, Any]:
    """Arguments of ``search`` for H100s on a mesh."""
    sizes, bandwidth = MESHES[mesh]
    costs = AlphaBetaCosts(MeshShape.of(sizes), (ALPHA,) * len(sizes), bandwidth)
    return {"mesh": sizes, "network": costs, "hardware": "H100"}


def _found(ask: Callable[[], Plan]) -> Plan | PlanError:
    """The plan of a search, or why it has none."""
    try:
        return ask()
    except PlanError as error:
        return error


def _columns(plan: Plan | PlanError, cpu_seconds: float) -> Mapping[str, Any]:
    """The plan, if there is one, and the processor's seconds."""
    found = None if isinstance(plan, PlanError) else plan.result
    return {
        "search CPU s": cpu_seconds,
        "search s": None if found is None else found.seconds,
        "method": "nothing fits" if found is None else found.method,
        "microbatches": None if isinstance(plan, PlanError) else plan.microbatches,
        "gap %": None if found is None else 100 * min(1.0, found.gap),
        "step ms": None if found is None else 1e3 * found.cost.serial_seconds,
        "communication ms": None if found is None else 1e3 * found.cost.communication,
        "memory GB": None if found is None else found.cost.memory.peak / 1e9,
    }


# Models whose free searches have a target: of a step on CPU devices, and of published sizes.
MODELS = (
    "mlp", "vgg", "gpt", "gpt_scan", "llama", "moe", "vit",
    "vgg_19", "phi_2", "llama_3_1_8b", "yi_1_5_34b", "llama_3_405b",
)  # fmt: skip

# Layers of the decoder whose trace and free search have targets, and of a small one.
LAYERS, SMALL = 32, 2

Row = Mapping[str, Any]


def plan_search(argv: Sequence[str]) -> None:
    """Searches against their targets: CPU seconds and gaps of traces, searches, limits, refusals.

    Prints each row when it is made: a question, its target, and the measured figures.
    """
    parser = argparse.ArgumentParser(prog="plan_search")
    parser.add_argument("--layers", type=int, help="of the decoders, instead of 24 and 32")
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    options = parser.parse_args(argv)
    report("plan_search", rows(options.only, options.layers))


def rows(names: Sequence[str], layers: int | None = None) -> Iterator[Row]:
    """The rows of some questions.

    Args:
        names: names in ``QUESTIONS``.
        layers: number of layers of the decoders.
    """
    for name in names:
        for row in QUESTIONS[name](layers):
            yield {"question": name, **row}


def _network(mesh: str) -> dict[str, Any]:
    """Arguments of ``search``: gaps have targets for the sum alone, whose bound is tight."""
    return {**_on(mesh), "objective": "sum"}


def _model(layers: int) -> Model:
    return load_model("llama_3_1_8b", **{**DECODER, "layers": layers})


def _decoder(layers: int) -> Graph:
    model = _model(layers)
    return trace(model.step, model.abstract_args)


def _row(ask: Callable[[], Plan], target: str) -> Row:
    """CPU seconds and the plan of a search, or why it has none."""
    plan, spent = cpu_timed(lambda: _found(ask))
    row = {"target": target, "CPU s": spent}
    if isinstance(plan, PlanError):
        return {**row, "found": str(plan).partition(":")[0]}
    return {
        **row,
        "gap %": 100 * min(1.0, plan.gap),
        "step ms": 1e3 * plan.cost.serial_seconds,
        "memory GB": plan.cost.memory.peak / 1e9,
        "collectives": sum(plan.cost.count_by_collective.values()),
        "lines": len(str(plan).splitlines()),
        "found": plan.result.method,
    }


def _traced(layers: int | None) -> Iterator[Row]:
    """The trace, beside that of JAX alone, of models that share nothing; both after a small one."""
    _decoder(SMALL)
    traces = {"JAX alone": lambda model: jax.make_jaxpr(model.step)(*model.abstract_args),
              "trace": lambda model: trace(model.step, model.abstract_args)}  # fmt: skip
    for name, traced in traces.items():
        model = _model(layers or LAYERS)
        _, spent = cpu_timed(lambda: traced(model))  # noqa: B023
        yield {"target": "3 CPU s" * (name == "trace"), "CPU s": spent, "found": name}


def _free(layers: int | None) -> Iterator[Row]:
    graph = _decoder(layers or LAYERS)
    for objective in ("sum", "overlap"):
        asked = {**_network("2x4"), "memory_limit": math.inf, "objective": objective}
        row = _row(lambda: search(graph, **asked), "4 CPU s")  # noqa: B023
        yield {"objective": objective, **row}


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
    asked |= {"memory_limit": limit, "recompute": True, "solver": Auto(time_limit=120)}
    yield _row(lambda: search(graph, **asked), "gap 10 %")


def _small_limits(_layers: int | None) -> Iterator[Row]:
    models = {name: load_model(name) for name in ("moe", "vgg")}
    graphs = {name: trace(model.step, model.abstract_args) for name, model in models.items()}
    script = unet()
    graphs["unet"] = trace(script.step, script.init())
    for name, graph in graphs.items():
        asked = {**_network("2x4"), "hardware": "CPU"}
        limit = 0.6 * search(graph, memory_limit=math.inf, **asked).cost.memory.peak
        solver = Auto(time_limit=20)
        found = _row(
            lambda: search(graph, memory_limit=limit, recompute=True, solver=solver, **asked),  # noqa: B023
            "20 CPU s",
        )
        yield {"model": name, **found}


def _models(_layers: int | None) -> Iterator[Row]:
    """Free searches of the models of ``configs``, beside the fastest named strategy."""
    for name in MODELS:
        model = load_model(name)
        graph = trace(model.step, model.abstract_args)
        asked = {**_on("2x4"), "memory_limit": math.inf}
        plan, spent = cpu_timed(lambda: search(graph, **asked))  # noqa: B023
        scheduled = _scheduled(plan)
        named = {
            baseline: solve_baseline(plan.problem, baseline).timeline.seconds
            for baseline in ("fsdp", "ddp", "zero1", "megatron", "fsdp + megatron-sp")
        }
        best = min(named, key=lambda each: named[each])
        yield {
            "model": name,
            "target": "4 CPU s",
            "CPU s": spent,
            **scheduled,
            "lines": len(str(plan).splitlines()),
            "named": best,
            "ratio": 1e3 * named[best] / scheduled["step ms"],
        }


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
    _, spent = cpu_timed(lambda: plan.compare(*names))
    yield {"target": "10 CPU s", "CPU s": spent, "found": f"{len(names)} names"}


def _mesh(layers: int | None) -> Iterator[Row]:
    model = load_model("llama_3_1_8b", **{**DECODER, "layers": layers or SMALL, "batch": 64})
    graph = trace(model.step, model.abstract_args)
    topology = topologies.dgx_h100(8)
    asked: dict[str, Any] = {
        "topology": topology, "hardware": "H100", "memory_limit": math.inf, "objective": "sum",
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
        asked = {**_network("2x4"), "memory_limit": math.inf, "objective": objective}
        plan, spent = cpu_timed(lambda: search(graph, **asked))  # noqa: B023
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


# Seconds of short searches, and the axes of their meshes.
SHORT, AXES = (2, 5, 10), {"a": 2, "b": 2, "c": 2}
SHORT_WAYS: Sequence[dict[str, Any]] = ({}, *WAYS.values(), {"microbatches": (1, 2, 4)})


def _time_limits(_layers: int | None) -> Iterator[Row]:
    """Short searches on one to three axes, under a limit in several ways: the longest of them."""
    for name in ("gpt", "llama", "vgg"):
        model = load_model(name)
        # The time limit does not include the trace.
        graphs = {loops: trace(model.step, model.abstract_args, loops=loops) for loops in FORMS}
        for count in range(1, len(AXES) + 1):
            sizes = dict([*AXES.items()][:count])
            costs = AlphaBetaCosts(MeshShape.of(sizes), (ALPHA,) * count, (25e9,) * count)
            asked: dict[str, Any] = {"mesh": sizes, "network": costs, "hardware": "H100"}
            free = search(
                graphs["keep"], memory_limit=math.inf, solver=Auto(time_limit=20), **asked
            )
            asked["memory_limit"] = LIMIT * free.cost.memory.peak
            for seconds in SHORT:
                asked["solver"] = Auto(time_limit=seconds)
                ends, plans = [time.perf_counter()], 0
                for way in SHORT_WAYS:
                    graph = graphs["pair" if "recompute" in way else "keep"]
                    plans += isinstance(_found(lambda: search(graph, **asked, **way)), Plan)  # noqa: B023
                    ends.append(time.perf_counter())
                yield {
                    "model": name,
                    "axes": count,
                    "limit s": seconds,
                    "target": "1.1 x the limit",
                    "ratio": float(np.diff(ends).max()) / seconds,
                    "found": f"{plans} of {len(SHORT_WAYS)} plans",
                }


QUESTIONS: Mapping[str, Callable[[int | None], Iterator[Row]]] = {
    "trace": _traced,
    "free": _free,
    "recompute": _recompute,
    "three axes": _three_axes,
    "small limits": _small_limits,
    "time limits": _time_limits,
    "models": _models,
    "refused": _refused,
    "compare": _compared,
    "mesh": _mesh,
    "overlap": _overlap,
}
