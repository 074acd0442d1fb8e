"""The figures of studies: lines in panels, points, grouped bars and stacked bars.

A study gives values by title and name, and this file decides how they look. Values that a paper
prints have the name of ours with ``, paper`` behind it; they are drawn in the same colour, but with
hollow marks. Limits (``LIMITS``) are dotted black lines. So one legend of names explains every
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxcoll.draw import format_bytes
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE, PAPER

Curve = Mapping[Any, float]  # from x to y

PRINTED = ", paper"  # the end of the name of values that a paper prints
LIMITS = ("least", "bound", "ideal", "optimum", "square of ranks")


def panels(
    curves: Mapping[str, Mapping[str, Curve]],
    *,
    label_x: str,
    label_y: str,
    columns: int = 2,
    in_bytes: bool = True,
    written: Callable[[float], str] = format_bytes,
    log_x: bool = True,
    log_y: bool | Collection[str] = False,
) -> Figure:
    """A panel for each title, with a line for each name.

    Args:
        curves: title to name to {x: y}.
        label_x, label_y: labels of the axes, for all panels together.
        columns: panels side by side.
        in_bytes: whether x is a size in bytes; otherwise it is a plain number.
        written: writes a size in bytes at a tick of the x axis.
        log_x: whether x is on a logarithmic scale; then every value has a mark.
        log_y: whether y is on a logarithmic scale; or the titles of the panels in which it is.
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
            style = _style(name, names, marked=log_x)
            (shown[name],) = axes.plot(list(curve), list(curve.values()), **style)
        if log_x:
            sizes = sorted({x for curve in lines.values() for x in curve})
            # A panel is too narrow for more than five labels.
            ticks = sizes[:: max(1, -(-len(sizes) // 5))]
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [written(x) if in_bytes else f"{x:g}" for x in ticks])
        if log_y if isinstance(log_y, bool) else title in log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=10, color=INK)
        _plain(axes)
    figure.supxlabel(label_x, fontsize=10, color=INK)
    figure.supylabel(label_y, fontsize=10, color=INK)
    _legend(figure, shown, names)
    return figure


def _style(name: str, names: Sequence[str], *, marked: bool) -> dict[str, Any]:
    """How the line of a name looks beside the lines of all these names."""
    if name in LIMITS:
        return {"color": INK, "linestyle": ":"}
    ours = [each.removesuffix(PRINTED) for each in names if each not in LIMITS]
    i = list(dict.fromkeys(ours)).index(name.removesuffix(PRINTED))
    color, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
    if name.endswith(PRINTED):
        return {"color": color, "marker": marker, "markerfacecolor": "white", "linestyle": ""}
    # On a linear axis every number of ranks has a value, and marks would hide the line.
    more = {"marker": marker, "markersize": 4.5, "linewidth": 1.6} if marked else {"linewidth": 1.0}
    return {"color": color, **more}


def scatter(
    points: Mapping[str, Sequence[tuple[float, float]]], *, label_x: str, label_y: str
) -> Figure:
    """Points by name on two equal logarithmic axes, with the line of equal values."""
    figure = Figure(figsize=(5.4, 5.4), layout="constrained")
    axes = figure.subplots()
    shown = {}
    for i, (name, pairs) in enumerate(points.items()):
        xs, ys = zip(*pairs, strict=True) if pairs else ((), ())
        style = {"color": PALETTE[i], "marker": MARKERS[i], "s": 16, "alpha": 0.7, "linewidths": 0}
        shown[name] = axes.scatter(xs, ys, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = [value for pairs in points.values() for pair in pairs for value in pair]
    if ends:
        low, high = min(ends) / 1.3, max(ends) * 1.3
        axes.plot([low, high], [low, high], color=INK, linewidth=0.6, zorder=0)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_xlabel(label_x, color=INK)
    axes.set_ylabel(label_y, color=INK)
    _legend(figure, shown, list(points))
    _plain(axes)
    return figure


def grouped_bars(
    bars: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    label: str,
    log: bool = False,
    level: float | None = None,
) -> Figure:
    """A panel for each title, with groups of bars; each group has a bar for each name.

    Args:
        bars: title to group to {name: height}; a group may lack a name.
        label: the label of the heights.
        log: whether heights are on a logarithmic scale.
        level: the height of a line across all bars, if there is to be one.
    """
    names = list(dict.fromkeys(n for g in bars.values() for heights in g.values() for n in heights))
    width = 0.8 / len(names)
    # In inches: enough for a title, and for every bar.
    widths = [max(1.6, 0.13 * len(groups) * len(names)) for groups in bars.values()]
    figure = Figure(figsize=(1.5 + sum(widths), 3.8), layout="constrained")
    grid = figure.subplots(1, len(bars), squeeze=False, width_ratios=widths)[0]
    shown = {}
    for axes, (title, groups) in zip(grid, bars.items(), strict=True):
        for i, name in enumerate(names):
            at = [x for x, heights in enumerate(groups.values()) if name in heights]
            tall = [heights[name] for heights in groups.values() if name in heights]
            places = [x + (i + 0.5) * width - 0.4 for x in at]
            shown[name] = axes.bar(places, tall, width, color=PALETTE[i % len(PALETTE)])
        if level is not None:
            axes.axhline(level, color=INK, linewidth=0.5)
        if log:
            axes.set_yscale("log")
        # Longer names of groups would run into one another.
        turned = 90 if max(map(len, groups), default=0) > 16 else 0
        axes.set_xticks(range(len(groups)), list(groups), rotation=turned)
        axes.set_title(title, fontsize=10, color=INK)
        _plain(axes)
    grid[0].set_ylabel(label, color=INK)
    _legend(figure, shown, names)
    return figure


def stacked_bars(
    bars: Mapping[str, Mapping[str, Mapping[str, float]]], *, parts: Sequence[str], label: str
) -> Figure:
    """Groups of bars, a bar for each name, in which the heights of parts are stacked.

    Args:
        bars: group to name to {part: height}.
        parts: the parts from the lowest to the highest; the legend leaves out those of no bar.
        label: the label of the heights.
    """
    count = sum(len(group) + 1 for group in bars.values())
    figure = Figure(figsize=(max(6.0, 0.26 * count + 1.0), 4.4), layout="constrained")
    axes = figure.subplots()
    # A free place separates one group from the next.
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
    """The legend of colours, above the figure; a single line without a name needs none."""
    if list(names) != [""]:
        figure.legend(
            [shown[name] for name in names],
            names,
            loc="outside upper center",
            # A name with its mark takes about an inch and a half; a wider row would be cut off.
            ncols=max(1, min(len(names), int(figure.get_figwidth() / 1.5))),
            fontsize=8,
            frameon=False,
            labelcolor=INK,
        )


def _plain(axes: Axes) -> None:
    """A light grid, no frame, and no marks but those at labels."""
    axes.grid(color=PAPER, linewidth=1.2)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
