"""The dissertation's printed numbers beside ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import grouped_bars
from experiments.limits import above
from experiments.study import ConfigError
from jaxcoll.draw.bandwidth import FAINT, INK


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of a printed table."""

    topology: str  # its first column, in the notation of Tables 3.3 and A.3
    printed: Mapping[str, float]  # numbers above 0, by column

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
                f"printed for {self.topology} names {unknown[0]!r}; known: {', '.join(ours)}"
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
    """A column of a table as bars, each beside the paper's."""
    bars = {
        f"{row['topology']} ({place + 1})": {
            whose: row[each]
            for whose, each in (("ours", column), ("paper", f"paper {column}"))
            if row.get(each) is not None
        }
        for place, row in enumerate(rows)
        if row.get(column) is not None
    }
    return grouped_bars({"": bars}, label=label, log=log)


def half_to_even(value: Fraction) -> float:
    """A fraction as the paper prints it, with three decimals: 21/16 is 1.312."""
    return float(round(value, 3))
