"""ForestColl, Table 4.1: bandwidth of a fixed number of trees per rank on two MI250 hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.forestcoll.printed import GB, PAPER_FIXED_K, fixed_row
from experiments.study import publish
from jaxcoll.bounds.throughput import optimum
from jaxcoll.draw.style import FAINT, INK, PALETTE
from jaxcoll.synth import forest
from jaxcoll.topologies import mi250


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        trees: trees per rank, rising; the optimum's own number is added.
        packed: most trees per rank for which trees are packed and counted, too.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    trees: tuple[int, ...]
    packed: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        if not self.trees or sorted(set(self.trees)) != list(self.trees) or self.trees[0] < 1:
            raise ConfigError(f"trees must rise from 1 or more, got {self.trees}")
        at_least("packed", self.packed, 0)


def run(config: Config) -> list[dict[str, Any]]:
    """One row per number of trees: the bandwidth they can reach, and that of packed trees."""
    topology = mi250(2)
    best = optimum(topology)
    rows = []
    for k in dict.fromkeys([*config.trees, best.k]):
        row = fixed_row(topology, k, PAPER_FIXED_K.get(k))
        if k <= config.packed or k == best.k:
            flow = forest(topology, k=k)
            row["packed GB/s"] = float(topology.num_ranks / flow.check_load() / GB)
            row["height"] = flow.height
        row["% of optimum"] = 100 * row["algbw GB/s"] / float(best.algbw / GB)
        rows.append(row)
    title = "ForestColl, Table 4.1: algbw of a fixed number of trees per rank on two MI250 hosts"
    figure = draw(rows, float(best.algbw / GB))
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def draw(rows: Sequence[Mapping[str, Any]], best: float) -> Figure:
    """Bandwidth against trees per rank, with the optimum and the numbers that the paper prints."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    trees = [row["trees per rank"] for row in rows]
    axes.axhline(best, color=INK, linestyle=":", label="optimum")
    axes.plot(trees, [row["algbw GB/s"] for row in rows], "o-", color=PALETTE[0], label="ours")
    printed = [row for row in rows if row["paper GB/s"] is not None]
    axes.plot(
        [row["trees per rank"] for row in printed],
        [row["paper GB/s"] for row in printed],
        "x",
        color=PALETTE[1],
        markersize=9,
        label="paper",
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(trees, map(str, trees), fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("trees per rank", color=INK)
    axes.set_ylabel("algbw (GB/s)", color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK)
    return figure
