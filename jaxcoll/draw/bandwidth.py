"""Bandwidth against size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxcoll.draw.style import FAINT, INK, MARKERS, PALETTE, PAPER, format_bytes
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks


def draw_algbw(
    nbytes: Sequence[float],
    algbw: Mapping[str, Sequence[float]],
    bound: Sequence[float] | None = None,
) -> Figure:
    """Algorithm bandwidth against size, a line for each name; with a bound, the percent of it too.

    Args:
        nbytes: sizes of the buffer in bytes.
        algbw: bytes per second at each size, by name.
        bound: bytes per second at each size that nothing can beat.

    Raises:
        ScheduleError: a line with another number of values than there are sizes.
    """
    checks.instance(algbw, Mapping, "algbw", ScheduleError)
    size = _numbers(nbytes, "nbytes")
    reached = {str(name): _numbers(values, str(name)) for name, values in algbw.items()}
    least = None if bound is None else _numbers(bound, "bound")
    for name, values in [*reached.items(), *([] if least is None else [("bound", least)])]:
        if len(values) != len(size):
            raise ScheduleError(f"{name} has {len(values)} values for {len(size)} sizes")
    figure = Figure(figsize=(6.6, 6.0 if least is not None else 3.8), layout="constrained")
    panels = figure.subplots(
        1 if least is None else 2,
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[1] if least is None else [3, 2],
    )[:, 0]
    _draw_lines(panels, size, reached, least)
    _label_axes(panels, size)
    return figure


def _draw_lines(
    panels: np.ndarray, size: np.ndarray, reached: Mapping[str, np.ndarray], least
) -> None:
    """One line per name in the first panel; with a bound, its percent in the second."""
    for i, (name, values) in enumerate(reached.items()):
        style = {
            "color": PALETTE[i % len(PALETTE)],
            "marker": MARKERS[i % len(MARKERS)],
            "markersize": 5.5,
            "linewidth": 1.8,
            "linestyle": "-" if i < len(PALETTE) else "--",
            "label": name,
        }
        panels[0].plot(size, values / 1e9, **style)
        if least is not None:
            panels[1].plot(size, 100 * values / least, **style)
    if least is not None:
        panels[0].plot(size, least / 1e9, color=INK, linewidth=1.4, linestyle=":", label="bound")
        panels[1].axhline(100, color=INK, linewidth=1.4, linestyle=":")
        panels[1].set_ylim(0, 108)
        panels[1].set_ylabel("percent of the bound", color=INK)


def _label_axes(panels: np.ndarray, size: np.ndarray) -> None:
    panels[0].set_xscale("log", base=2)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("algbw (GB/s)", color=INK)
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panels[0].legend(frameon=False, labelcolor=INK)
    panels[-1].set_xlabel("buffer of a rank", color=INK)
    panels[-1].set_xticks(
        size, [format_bytes(x) for x in size], rotation=0 if len(size) < 9 else 45
    )
    for axes in panels:
        axes.grid(color=PAPER, linewidth=1.2)
        axes.set_axisbelow(True)
        axes.minorticks_off()
        axes.tick_params(colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)


def _numbers(values: Sequence[float], what: str) -> np.ndarray:
    """Sizes or bandwidths, each at least 0."""
    given = checks.sequence(values, what, ScheduleError)
    return np.asarray(
        [float(checks.nonnegative(x, f"{what}[{i}]", ScheduleError)) for i, x in enumerate(given)]
    )
