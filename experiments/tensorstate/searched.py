"""Plans of models on meshes of growing size: the baselines that an unrestricted search finds again.

Two studies of the same searches: the plans found, beside the baselines, and the seconds of a
search by the depth of a model and the number of mesh axes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.figures import panels
from experiments.limits import Count, Filled, NotNegative, Positive, among
from experiments.models import load_model
from experiments.study import ConfigError, Rows
from tensorstate import (
    HARDWARE,
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
from tensorstate.problem.problem import Problem
from tensorstate.report.parallelism import parallelism_name
from tensorstate.solver.auto import MAX_EXACT_AXES
from tensorstate.solver.formulation import Formulation


@dataclasses.dataclass(frozen=True)
class AxisConfig:
    """An axis of a device mesh, with separate links for the axis."""

    name: str  # of the axis
    devices: Count  # number of devices along the axis
    alpha_us: NotNegative  # latency of a collective's step in microseconds
    bandwidth_gbps: Positive  # of a device along the axis, in GB/s


def sizes_of(axes: Sequence[AxisConfig]) -> dict[str, int]:
    """Devices along every axis, by its name.

    Raises:
        ConfigError: no axes, or two of one name.
    """
    sizes = {axis.name: axis.devices for axis in axes}
    if not sizes or len(sizes) < len(axes):
        raise ConfigError(f"axes must have distinct names, got {[axis.name for axis in axes]}")
    return sizes


def rings(axes: Sequence[AxisConfig]) -> AlphaBetaCosts:
    """The costs of ring collectives along the axes."""
    return AlphaBetaCosts(
        MeshShape.of(sizes_of(axes)),
        tuple(1e-6 * axis.alpha_us for axis in axes),
        tuple(1e9 * axis.bandwidth_gbps for axis in axes),
    )


# ------------------------------------------------------------ baselines that the search finds again


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model to search."""

    name: str  # in ``configs/model``
    fields: Mapping[str, int]  # overrides of its fields
    batches: tuple[int, ...]  # global batches, in sequences per step

    @property
    def label(self) -> str:
        """``llama, width 64``."""
        return ", ".join([self.name, *(f"{k} {v}" for k, v in self.fields.items())])


@dataclasses.dataclass(frozen=True)
class Rediscovery(StudyConfig):
    """The sweep."""

    models: Filled[tuple[ModelConfig, ...]]
    axes: tuple[AxisConfig, ...]
    # Memory limits, as fractions of the memory of the plan without a limit
    memory_shares: tuple[Positive, ...]
    # Baselines to compare with (see ``tensorstate.problem.baselines``)
    families: Filled[tuple[str, ...]]
    hardware: Annotated[str, among(HARDWARE)]  # a name in ``tensorstate.HARDWARE``
    gap: NotNegative  # relative gap at which a search may stop
    time_limit: Positive  # seconds per search

    def __post_init__(self) -> None:
        sizes_of(self.axes)


def rediscovery(config: Rediscovery) -> list[dict[str, Any]]:
    """A row for each model, batch and memory limit."""
    rows = Rows()
    for model in config.models:
        for batch in model.batches:
            traced = load_model(model.name, **{**model.fields, "batch": batch})
            graph = trace(traced.step, traced.abstract_args, loops="unroll")
            rows += _row_for_each_limit(config, {"model": model.label, "batch": batch}, graph)
    title = "Named strategies found again, by batch, model and memory"
    return config.publish(title, rows, figure=_figure(rows, config.families))


def _row_for_each_limit(
    config: Rediscovery, start: dict[str, Any], graph: Graph
) -> Iterator[dict[str, Any]]:
    # Limits are shares of the memory that the best plan without any takes, so that they bind in
    # every row.
    unlimited = _search(config, graph, None)
    baselines = {name: solve_baseline(unlimited.problem, name) for name in config.families}
    yield {**start, "limit GB": None, **_columns(unlimited, baselines)}
    for share in config.memory_shares:
        limit = share * unlimited.cost.memory.peak
        row = {**start, "limit GB": limit / 1e9}
        try:
            row |= _columns(_search(config, graph, limit), baselines)
        except PlanError as error:
            row |= {"found": str(error).partition(",")[0]}
        yield row


def _search(config: Rediscovery, graph: Graph, limit: float | None) -> Plan:
    return search(
        graph,
        mesh=sizes_of(config.axes),
        network=rings(config.axes),
        hardware=config.hardware,
        memory_limit=math.inf if limit is None else limit,  # not the device's own
        recompute=limit is not None,
        objective="sum",
        solver=Auto(gap=config.gap, time_limit=config.time_limit),
    )


def _columns(plan: Plan, baselines: Mapping[str, Plan]) -> dict[str, Any]:
    """The plan, and times of baselines divided by its time."""
    cost, limit = plan.cost, plan.memory_limit
    ratios = {
        name: baseline.cost.serial_seconds / cost.serial_seconds
        if baseline.cost.memory.fits(limit)
        else None
        for name, baseline in baselines.items()
    }
    return {
        "found": parallelism_name(plan.problem, plan.decisions, cost),
        "ms": 1e3 * cost.serial_seconds,
        "communication ms": 1e3 * cost.communication,
        "GB": cost.memory.peak / 1e9,
        "gap %": 100 * plan.gap,
        **ratios,
    }


def _figure(rows: Sequence[dict[str, Any]], families: Sequence[str]) -> Figure:
    """Times of baselines without a memory limit, divided by the search's, against the batch."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["limit GB"] is None:
            for name in families:
                curves.setdefault(row["model"], {}).setdefault(name, {})[row["batch"]] = row[name]
    label = "time / time of the search's plan"
    return panels(curves, label_x="sequences per step", label_y=label, in_bytes=False)


# ---------------------------------------------------------------------- seconds of searches


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """A mesh, and the depths of the models that are searched on it."""

    axes: tuple[AxisConfig, ...]
    layers: tuple[int, ...]  # numbers of layers, smallest first

    def __post_init__(self) -> None:
        sizes_of(self.axes)
        if not self.layers or sorted(set(self.layers)) != list(self.layers):
            raise ConfigError(f"layers must increase, got {self.layers}")

    @property
    def name(self) -> str:
        """``4 x 8``."""
        return " x ".join(str(axis.devices) for axis in self.axes)


@dataclasses.dataclass(frozen=True)
class SearchTime(StudyConfig):
    """The study."""

    model: str  # in ``configs/model``; it must have ``layers``
    batch: Count  # global batch, in sequences per step
    meshes: Filled[tuple[MeshConfig, ...]]
    hardware: Annotated[str, among(HARDWARE)]  # a name in ``tensorstate.HARDWARE``
    gap: NotNegative  # relative gap at which a search may stop
    time_limit: Positive  # seconds per search


def search_time(config: SearchTime) -> list[dict[str, Any]]:
    """A row for each mesh and depth."""
    graphs = {n: _traced(config, n) for mesh in config.meshes for n in mesh.layers}
    rows = Rows(
        _measured(config, mesh, layers, *graphs[layers])
        for mesh in config.meshes
        for layers in mesh.layers
    )
    title = "Search time against depth and axes of the mesh"
    return config.publish(title, rows, figure=_draw_seconds(rows))


def _traced(config: SearchTime, layers: int) -> tuple[Graph, float]:
    """The graph, and the seconds that tracing took."""
    model = load_model(config.model, layers=layers, batch=config.batch)
    start = time.perf_counter()
    graph = trace(model.step, model.abstract_args, loops="unroll")
    return graph, time.perf_counter() - start


def _measured(
    config: SearchTime, mesh: MeshConfig, layers: int, graph: Graph, traced: float
) -> dict[str, Any]:
    network, hardware = rings(mesh.axes), HARDWARE[config.hardware]
    row = {
        "mesh": mesh.name,
        "layers": layers,
        "operators": len(graph.operators),
        "classes": len(graph.node_classes),
        **_program(Problem(graph, network, hardware)),
        "trace s": traced,
    }
    try:
        plan = search(
            graph,
            mesh=sizes_of(mesh.axes),
            network=network,
            hardware=hardware,
            objective="sum",
            solver=Auto(gap=config.gap, time_limit=config.time_limit),
        )
    except PlanError:
        return {**row, "search s": None, "method": f"none in {config.time_limit:g} s"}
    return {
        **row,
        "search s": plan.result.seconds,
        "method": plan.result.method,
        "gap %": 100 * plan.gap if math.isfinite(plan.gap) else None,
        "step ms": 1e3 * plan.cost.serial_seconds,
    }


def _program(problem: Problem) -> dict[str, int | None]:
    """The size of the linear program, or ``None`` on meshes that are searched axis by axis."""
    if len(problem.mesh.sizes) > MAX_EXACT_AXES:
        return {"variables": None, "constraints": None}
    program = Formulation(problem, [strategies.all for strategies in problem.strategies]).program
    return {"variables": program.num_variables, "constraints": program.num_rows}


def _draw_seconds(rows: Sequence[dict[str, Any]]) -> Figure:
    lines: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["search s"] is not None:
            lines.setdefault(f"search on {row['mesh']}", {})[row["layers"]] = row["search s"]
        lines.setdefault("to trace", {})[row["layers"]] = row["trace s"]
    return panels(
        {"": lines}, label_x="layers", label_y="seconds", columns=1, in_bytes=False, log_y=True
    )
