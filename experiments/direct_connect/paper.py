"""The dissertation's printed numbers beside ours, its cost model, and its baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.config import above, at_least
from experiments.errors import ConfigError
from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of a printed table.

    Attributes:
        topology: its first column, in the notation of Tables 3.3 and A.3.
        printed: numbers above 0, by column.
    """

    topology: str
    printed: Mapping[str, float]

    def __post_init__(self) -> None:
        for column, value in self.printed.items():
            above(f"printed.{column} of {self.topology}", value, 0)

    def beside(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Each of our columns, and the paper's next to it where the paper has one.

        Raises:
            ConfigError: a printed column that we have none for.
        """
        unknown = [column for column in self.printed if column not in ours]
        if unknown:
            raise ConfigError(
                f"printed of {self.topology} has {unknown[0]!r}; known: {', '.join(ours)}"
            )
        row = {}
        for column, value in ours.items():
            row[column] = value
            if column in self.printed:
                row[f"paper {column}"] = self.printed[column]
        return row


def plain_axes(axes: Axes, label_x: str, label_y: str) -> None:
    """Labels and a faint grid, as all figures have."""
    axes.set_xlabel(label_x, color=INK)
    axes.set_ylabel(label_y, color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def ours_beside_theirs(
    rows: Sequence[Mapping[str, Any]], column: str, label: str, *, log: bool = False
) -> Figure:
    """A column of a table as points, and the paper's as crosses; a place for each row."""
    shown = [row for row in rows if row.get(column) is not None]
    figure = Figure(figsize=(max(5.0, 0.3 * len(shown) + 1.5), 4.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        range(len(shown)),
        [row[column] for row in shown],
        color=PALETTE[0],
        marker=MARKERS[0],
        linestyle="",
        label="ours",
    )
    printed = [i for i, row in enumerate(shown) if row.get(f"paper {column}") is not None]
    axes.plot(
        printed,
        [shown[i][f"paper {column}"] for i in printed],
        "x",
        color=PALETTE[1],
        markersize=9,
        label="paper",
    )
    axes.set_xticks(range(len(shown)), [row["topology"] for row in shown], rotation=90, fontsize=7)
    if log:
        axes.set_yscale("log")
    plain_axes(axes, "", label)
    axes.legend(frameon=False, labelcolor=INK)
    return figure


# ---------------------------- times of all_reduces on the paper's baselines (Secs. 3.8.2 and A.1.2)


MIB = 2**20  # 1 MB of the paper


@dataclasses.dataclass(frozen=True)
class Machine:
    """Constants of the cost model.

    Attributes:
        alpha_us: microseconds a step.
        constant_us: microseconds a collective.
        bandwidth_gbit: B, Gbit/s of all links of a rank together.
    """

    alpha_us: float
    constant_us: float
    bandwidth_gbit: float

    def __post_init__(self) -> None:
        at_least("machine.alpha_us", self.alpha_us, 0)
        at_least("machine.constant_us", self.constant_us, 0)
        above("machine.bandwidth_gbit", self.bandwidth_gbit, 0)

    def buffer_us(self, nbytes: float) -> float:
        """M/B in microseconds."""
        return nbytes * 8e-3 / self.bandwidth_gbit

    def time_us(self, cost: Cost, nbytes: float, phases: int = 2) -> float:
        """An all_reduce, by all_gathers of a cost; or one phase of it."""
        moved = float(cost.inverse_bandwidth) * self.buffer_us(nbytes)
        return phases * (cost.steps * self.alpha_us + moved) + self.constant_us


def shifted_ring(n: int) -> Cost:
    """Two rings, both ways, each with a part of the data: n - 1 steps."""
    return Cost(n - 1, bandwidth_optimum(n))


def shifted_bfb_ring(n: int) -> Cost:
    """The same rings by BFB: floor(n / 2) steps."""
    return Cost(n // 2, bandwidth_optimum(n))


def traditional_torus(side: int) -> Cost:
    """A square torus, a ring for each dimension: 2 (side - 1) steps."""
    return Cost(2 * (side - 1), bandwidth_optimum(side * side))


def double_tree_us(
    machine: Machine, n: int, nbytes: float, *, at_once: bool, phases: int = 2
) -> float:
    """Double binary trees, half of the data each, with the best number of pieces.

    A piece descends floor(log2 n) levels, of one step where a rank sends to both children at once
    and of two where it does not; then a piece arrives every step. Links carry half of the data at
    B/4. Pieces are powers of two: so the paper's 1434 us at 1024 ranks, of two steps a level.
    """
    height = (n.bit_length() - 1) * (1 if at_once else 2)
    moved = 2 * machine.buffer_us(nbytes)
    best = min(
        (height + pieces - 1) * (machine.alpha_us + moved / pieces)
        for pieces in (2**i for i in range(15))
    )
    return phases * best + machine.constant_us
