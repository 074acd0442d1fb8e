"""MultiTree, Fig. 11: training time of seven networks on a torus, without and with overlap."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from experiments.config import one_of
from experiments.errors import ConfigError
from experiments.multitree.networks import LABELS, algorithms, torus
from experiments.study import publish
from experiments.workloads import Overlap, Workload, load_accelerator, load_model, workload
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
class Config:
    """The figure.

    Attributes:
        title: of the table.
        size: the preset, "ci" or "paper".
        setting: the workloads that are trained.
        overlap: which all-reduces run beside compute.
        claims: the paper's numbers; models by the names in their tables.
        notes: differences from the paper.
        results: folder to write to.
    """

    title: str
    size: str
    setting: Setting
    overlap: Overlap
    claims: tuple[shared.PaperPick, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        for claim in self.claims:
            one_of("claims.of", claim.of, SHOWN)
            one_of("claims.over", claim.over, ("", *SHOWN))


def run(config: Config) -> list[dict[str, Any]]:
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
