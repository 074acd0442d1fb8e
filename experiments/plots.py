"""Figures that several studies share: curves over size in panels, and stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxcoll.draw import format_bytes
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE, PAPER

Curve = Mapping[int, float]


def panels(
    curves: Mapping[str, Mapping[str, Curve]],
    *,
    label_x: str,
    label_y: str,
    columns: int = 2,
    in_bytes: bool = True,
    log_y: bool = False,
) -> Figure:
    """A panel for each title, with a line for each name: values over sizes.

    Args:
        curves: title to name to {x: y}.
        in_bytes: whether x are sizes in bytes.
        log_y: whether y is on a logarithmic scale.
    """
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(3.9 * columns, 2.6 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    names = list(dict.fromkeys(name for lines in curves.values() for name in lines))
    shown = {}
    for axes in grid.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (title, lines) in zip(grid.flat, curves.items(), strict=False):
        for name, curve in lines.items():
            i = names.index(name)
            (shown[name],) = axes.plot(
                list(curve),
                list(curve.values()),
                color=PALETTE[i % len(PALETTE)],
                marker=MARKERS[i % len(MARKERS)],
                markersize=4.5,
                linewidth=1.6,
            )
        sizes = sorted({x for curve in lines.values() for x in curve})
        axes.set_xscale("log", base=2)
        ticks = sizes[:: max(1, -(-len(sizes) // 5))]
        axes.set_xticks(ticks, [format_bytes(x) if in_bytes else f"{x:g}" for x in ticks])
        if log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=10, color=INK)
        _plain(axes)
    figure.supxlabel(label_x, fontsize=10, color=INK)
    figure.supylabel(label_y, fontsize=10, color=INK)
    _legend(figure, shown, names)
    return figure


def stacked_bars(
    bars: Mapping[str, Mapping[str, Mapping[str, float]]], *, parts: Sequence[str], label: str
) -> Figure:
    """For each group, a bar a name, stacked of parts.

    Args:
        bars: group to name to {part: height}.
        parts: lowest first; those that no bar has are not shown.
        label: of the heights.
    """
    count = sum(len(group) + 1 for group in bars.values())
    figure = Figure(figsize=(max(6.0, 0.26 * count + 1.0), 4.4), layout="constrained")
    axes = figure.subplots()
    place, ticks, names, shown = 0, [], [], {}
    for group, heights in bars.items():
        start = place
        for name, stack in heights.items():
            below = 0.0
            for i, part in enumerate(parts):
                height = stack.get(part, 0.0)
                if height:
                    bar = axes.bar(place, height, 0.8, below, color=PALETTE[i % len(PALETTE)])
                    shown[part] = bar
                below += height
            ticks.append(place)
            names.append(name)
            place += 1
        axes.annotate(
            group,
            (float(np.mean([start, place - 1])), 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=9,
            color=INK,
        )
        place += 1
    axes.set_xticks(ticks, names, rotation=90, fontsize=8)
    axes.set_ylabel(label, color=INK)
    _legend(figure, shown, [part for part in parts if part in shown])
    _plain(axes)
    return figure


def _legend(figure: Figure, shown: Mapping[str, Any], names: Sequence[str]) -> None:
    """What each colour stands for, in a row above the figure."""
    figure.legend(
        [shown[name] for name in names],
        names,
        loc="outside upper center",
        ncols=len(names),
        frameon=False,
        labelcolor=INK,
    )


def _plain(axes) -> None:
    axes.grid(color=PAPER, linewidth=1.2)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
