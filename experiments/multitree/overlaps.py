"""How much of the all-reduces several ways of overlap hide, on MultiTree's torus."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.config import one_of
from experiments.errors import ConfigError
from experiments.multitree.networks import LABELS, algorithms, torus
from experiments.multitree.training_time import SHOWN, Setting
from experiments.plots import stacked_bars
from experiments.study import publish
from experiments.workloads import Overlap, iteration


@dataclasses.dataclass(frozen=True)
class Config:
    """The study; the paper has none of it but the two ways of its Fig. 11.

    Attributes:
        size: the preset, "ci" or "paper".
        setting: the workloads that are trained.
        algorithm: of the all-reduces, one of those in Fig. 11.
        overlaps: ways to overlap, by name.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    setting: Setting
    algorithm: str
    overlaps: Mapping[str, Overlap]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        one_of("algorithm", self.algorithm, SHOWN)
        if not self.overlaps:
            raise ConfigError("overlaps must name at least one")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each model, with its compute and the length of an iteration, all ms."""
    topology = torus(*config.setting.sides)
    times = {"all": algorithms(topology)[config.algorithm]}
    rows, bars = [], {}
    for model, work in config.setting.workloads().items():
        runs = {name: iteration(work, times, way) for name, way in config.overlaps.items()}
        row: dict[str, Any] = {
            "model": model,
            "MB of gradients": work.gradient_bytes / 1e6,
            "compute ms": 1e3 * float(work.compute),
        }
        rows.append(row | {name: 1e3 * float(run.total) for name, run in runs.items()})
        bars[model] = {
            name: {"compute": 1.0, "waits for gradients": float(run.exposed / run.compute)}
            for name, run in runs.items()
        }
    figure = stacked_bars(
        bars, parts=["compute", "waits for gradients"], label="time of an iteration over compute"
    )
    label = LABELS[config.algorithm]
    title = f"An iteration in ms with {label} on {topology.name}, by what overlaps"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
