"""Search time against the depth of a model and the number of mesh axes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import above, at_least, one_of
from experiments.errors import ConfigError
from experiments.models import load_model
from experiments.study import publish
from experiments.tensorstate.networks import AxisConfig, rings, sizes_of
from jaxcoll.draw.style import MARKERS, PALETTE
from tensorstate import HARDWARE, Auto, Graph, PlanError, search, trace
from tensorstate.problem.problem import Problem
from tensorstate.solver.auto import MAX_EXACT_AXES
from tensorstate.solver.formulation import Formulation


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """A mesh, and the depths of the models that are searched on it.

    Attributes:
        axes: of the mesh.
        layers: numbers of layers, smallest first.
    """

    axes: tuple[AxisConfig, ...]
    layers: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes_of(self.axes)
        if not self.layers or sorted(set(self.layers)) != list(self.layers):
            raise ConfigError(f"layers must increase, got {self.layers}")

    @property
    def name(self) -> str:
        """``4 x 8``."""
        return " x ".join(str(axis.devices) for axis in self.axes)


@dataclasses.dataclass(frozen=True)
class Config:
    """The study.

    Attributes:
        size: "ci" or "paper".
        model: in ``configs/model``; it must have ``layers``.
        batch: global batch, in sequences per step.
        meshes: to search on.
        hardware: a name in ``tensorstate.HARDWARE``.
        gap: relative gap at which a search may stop.
        time_limit: seconds per search.
        notes: differences from the paper, and explanations of columns.
        results: folder to write to.
    """

    size: str
    model: str
    batch: int
    meshes: tuple[MeshConfig, ...]
    hardware: str
    gap: float
    time_limit: float
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        one_of("hardware", self.hardware, tuple(HARDWARE))
        at_least("gap", self.gap, 0)
        at_least("batch", self.batch, 1)
        above("time_limit", self.time_limit, 0)
        if not self.meshes:
            raise ConfigError("needs meshes")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each mesh and depth."""
    graphs = {n: _traced(config, n) for mesh in config.meshes for n in mesh.layers}
    rows = [
        _measured(config, mesh, layers, *graphs[layers])
        for mesh in config.meshes
        for layers in mesh.layers
    ]
    title = "Search time against depth and axes of the mesh"
    publish(title, rows, config.results, figure=_figure(rows), notes=config.notes)
    return rows


def _traced(config: Config, layers: int) -> tuple[Graph, float]:
    """The graph, and the seconds that tracing took."""
    model = load_model(config.model, layers=layers, batch=config.batch)
    start = time.perf_counter()
    return trace(model.step, model.abstract_args), time.perf_counter() - start


def _measured(
    config: Config, mesh: MeshConfig, layers: int, graph: Graph, traced: float
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


def _figure(rows: Sequence[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    meshes = list(dict.fromkeys(row["mesh"] for row in rows))
    for mesh, colour, marker in zip(meshes, PALETTE, MARKERS, strict=False):
        solved = [row for row in rows if row["mesh"] == mesh and row["search s"] is not None]
        seconds = [row["search s"] for row in solved]
        axes.plot([r["layers"] for r in solved], seconds, color=colour, marker=marker, label=mesh)
    depths = {row["layers"]: row["trace s"] for row in rows}
    axes.plot(sorted(depths), [depths[n] for n in sorted(depths)], "k--", label="to trace")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sorted(depths), [str(n) for n in sorted(depths)])
    axes.set_xlabel("layers")
    axes.set_ylabel("seconds")
    axes.legend(title="search on a mesh of", frameon=False)
    return figure
