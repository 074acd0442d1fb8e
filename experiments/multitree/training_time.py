"""Training time of seven networks on MultiTree's torus (Fig. 11), and what ways of overlap hide."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from experiments.config import StudyConfig, one_of
from experiments.multitree.allreduces import LABELS, algorithms, torus
from experiments.plots import stacked_bars
from experiments.study import ConfigError, Rows, publish
from experiments.workloads import (
    Overlap,
    Workload,
    iteration,
    load_accelerator,
    load_model,
    workload,
)
from experiments.workloads import training_time as shared
from experiments.workloads.models import known_models

SHOWN = ("ring", "double_binary_tree", "ring_2d", "multitree", "multitree_msg")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Models on a torus, data parallel.

    Attributes:
        sides: of the torus; the first even.
        models: names in ``configs/workload``.
        accelerator: a name in ``configs/accelerator``.
        batch_per_rank: of every rank.
        element_bytes: bytes of a gradient.
    """

    sides: tuple[int, ...]
    models: tuple[str, ...]
    accelerator: str
    batch_per_rank: int
    element_bytes: int

    def __post_init__(self) -> None:
        if len(self.sides) != 2 or min(self.sides) < 2 or self.sides[0] % 2:
            raise ConfigError(f"sides are two, of at least 2, the first even; got {self.sides}")
        if not self.models:
            raise ConfigError("models must name at least one")
        for model in self.models:
            one_of("models", model, known_models())

    def workloads(self) -> dict[str, Workload]:
        """The workload of every model, by the name in its table."""
        accelerator = load_accelerator(self.accelerator)
        models = [load_model(name) for name in self.models]
        return {
            model.name: workload(
                model,
                accelerator,
                batch_per_rank=self.batch_per_rank,
                element_bytes=self.element_bytes,
                ranks=math.prod(self.sides),
            )
            for model in models
        }


@dataclasses.dataclass(frozen=True)
class TrainingTime(StudyConfig):
    """The figure.

    Attributes:
        title: of the table.
        setting: the workloads that are trained.
        overlap: which all-reduces run beside compute.
        claims: the paper's numbers; models by the names in their tables.
    """

    title: str
    setting: Setting
    overlap: Overlap
    claims: tuple[shared.PaperPick, ...]

    def __post_init__(self) -> None:
        for claim in self.claims:
            one_of("claims.of", claim.of, SHOWN)
            one_of("claims.over", claim.over, ("", *SHOWN))


def training_time(config: TrainingTime) -> list[dict[str, Any]]:
    """A row for each network and algorithm, and one for each number that the paper prints."""
    topology = torus(*config.setting.sides)
    defined = algorithms(topology)
    times = {name: {"all": defined[name]} for name in SHOWN}
    runs = shared.run_all(config.setting.workloads(), times, config.overlap)
    rows = shared.rows(runs, LABELS, "ring")
    rows += [claim.row(runs, LABELS) for claim in config.claims]
    figure = shared.draw(runs, LABELS, "ring")
    publish(config.title, rows, config.results, figure=figure, notes=config.notes)
    return rows


# ----------------------------------------- how much of the all-reduces several ways of overlap hide


@dataclasses.dataclass(frozen=True)
class Overlaps(StudyConfig):
    """The study; the paper has none of it but the two ways of its Fig. 11.

    Attributes:
        setting: the workloads that are trained.
        algorithm: of the all-reduces, one of those in Fig. 11.
        overlaps: ways to overlap, by name.
    """

    setting: Setting
    algorithm: str
    overlaps: Mapping[str, Overlap]

    def __post_init__(self) -> None:
        one_of("algorithm", self.algorithm, SHOWN)
        if not self.overlaps:
            raise ConfigError("overlaps must name at least one")


def overlaps(config: Overlaps) -> list[dict[str, Any]]:
    """A row for each model, with its compute and the length of an iteration, all ms."""
    topology = torus(*config.setting.sides)
    times = {"all": algorithms(topology)[config.algorithm]}
    rows, bars = Rows(), {}
    for model, work in config.setting.workloads().items():
        runs = {name: iteration(work, times, way) for name, way in config.overlaps.items()}
        row: dict[str, Any] = {
            "model": model,
            "MB of gradients": work.gradient_bytes / 1e6,
            "compute ms": 1e3 * float(work.compute),
        }
        rows.append(row | {name: 1e3 * float(run.total) for name, run in runs.items()})
        bars[model] = {
            name: {
                "compute": 1.0,
                "waits for gradients": float(run.exposed / run.compute),
            }
            for name, run in runs.items()
        }
    figure = stacked_bars(
        bars, parts=["compute", "waits for gradients"], label="time of an iteration over compute"
    )
    label = LABELS[config.algorithm]
    title = f"An iteration in ms with {label} on {topology.name}, by what overlaps"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
