"""The baselines that an unrestricted search finds again, and the times of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import above, at_least, one_of
from experiments.errors import ConfigError
from experiments.models import load_model
from experiments.study import publish
from experiments.tensorstate.networks import AxisConfig, rings, sizes_of
from jaxcoll.draw.style import MARKERS, PALETTE
from tensorstate import HARDWARE, Auto, Graph, Plan, PlanError, search, solve_baseline, trace
from tensorstate.report.parallelism_names import parallelism_name


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model to search.

    Attributes:
        name: in ``configs/model``.
        fields: overrides of its fields.
        batches: global batches, in sequences per step.
    """

    name: str
    fields: Mapping[str, int]
    batches: tuple[int, ...]

    @property
    def label(self) -> str:
        """``llama, width 64``."""
        return ", ".join([self.name, *(f"{k} {v}" for k, v in self.fields.items())])


@dataclasses.dataclass(frozen=True)
class Config:
    """The sweep.

    Attributes:
        size: "ci" or "paper".
        models: to search.
        axes: of the mesh.
        memory_shares: memory limits, as fractions of the memory of the plan without a limit.
        families: baselines to compare with (see ``tensorstate.problem.baselines``).
        hardware: a name in ``tensorstate.HARDWARE``.
        gap: relative gap at which a search may stop.
        time_limit: seconds per search.
        notes: differences from the paper, and explanations of columns.
        results: folder to write to.
    """

    size: str
    models: tuple[ModelConfig, ...]
    axes: tuple[AxisConfig, ...]
    memory_shares: tuple[float, ...]
    families: tuple[str, ...]
    hardware: str
    gap: float
    time_limit: float
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        one_of("hardware", self.hardware, tuple(HARDWARE))
        sizes_of(self.axes)
        above("time_limit", self.time_limit, 0)
        at_least("gap", self.gap, 0)
        for share in self.memory_shares:
            above("memory_shares", share, 0)
        if not self.models or not self.families:
            raise ConfigError("needs models and families")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each model, batch and memory limit."""
    rows = []
    for model in config.models:
        for batch in model.batches:
            traced = load_model(model.name, **{**model.fields, "batch": batch})
            graph = trace(traced.step, traced.abstract_args)
            rows += _row_for_each_limit(config, {"model": model.label, "batch": batch}, graph)
    title = "Named strategies found again, by batch, model and memory"
    publish(title, rows, config.results, figure=_figure(rows, config.families), notes=config.notes)
    return rows


def _row_for_each_limit(
    config: Config, start: dict[str, Any], graph: Graph
) -> list[dict[str, Any]]:
    unlimited = _search(config, graph, None)
    baselines = {name: solve_baseline(unlimited.problem, name) for name in config.families}
    rows = [{**start, "limit GB": None, **_columns(unlimited, baselines)}]
    for share in config.memory_shares:
        limit = share * unlimited.cost.memory.peak
        row = {**start, "limit GB": limit / 1e9}
        try:
            row |= _columns(_search(config, graph, limit), baselines)
        except PlanError as error:
            row |= {"found": str(error).partition(",")[0]}
        rows.append(row)
    return rows


def _search(config: Config, graph: Graph, limit: float | None) -> Plan:
    return search(
        graph,
        mesh=sizes_of(config.axes),
        network=rings(config.axes),
        hardware=config.hardware,
        memory_limit=limit,
        recompute=limit is not None,
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
    unlimited = [row for row in rows if row["limit GB"] is None]
    models = list(dict.fromkeys(row["model"] for row in unlimited))
    figure = Figure(figsize=(4.2 * len(models), 3.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False, sharey=True)[0]
    for axes, model in zip(panels, models, strict=True):
        of_model = [row for row in unlimited if row["model"] == model]
        batches = [row["batch"] for row in of_model]
        for i, name in enumerate(families):
            style = {"color": PALETTE[i % len(PALETTE)], "marker": MARKERS[i % len(MARKERS)]}
            axes.plot(batches, [row[name] for row in of_model], label=name, **style)
        axes.axhline(1, color="k", linewidth=0.8, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(n) for n in batches])
        axes.set_title(model, fontsize="medium")
        axes.set_xlabel("sequences per step")
    panels[0].set_ylabel("time / time of the search's plan")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
