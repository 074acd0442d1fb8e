"""Columns of our numbers beside those that the dissertation prints, and figures of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.config import above
from experiments.errors import ConfigError
from jaxcoll.draw.style import FAINT, INK, MARKERS, PALETTE


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
