"""Times: predicted ones over measured ones, and curves of them over sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE, format_bytes
from jaxcoll.errors import FormatError
from jaxcoll.numerics import checks

_COLUMNS = 4  # panels side by side
_NEAR = 0.25  # half the width of the band, as a share of the measured time


def draw_predictions(points: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Predicted times over measured ones, a panel for each name, all on the same scales.

    A prediction on the line is right; one inside the band is wrong by at most a quarter.

    Args:
        points: seconds by name: as measured, and as predicted.

    Raises:
        FormatError: no points, or a time that is not above 0.
    """
    named = _named(points, "points")
    count = min(len(named), _COLUMNS)
    figure = Figure(
        figsize=(1 + 2.5 * count, 0.6 + 2.4 * -(-len(named) // count)), layout="constrained"
    )
    grid = figure.subplots(-(-len(named) // count), count, sharex=True, sharey=True, squeeze=False)
    times = [time for pairs in named.values() for pair in pairs for time in pair]
    low, high = min(times) / 1.5, max(times) * 1.5
    panels = grid.ravel().tolist()
    for axes, (name, pairs) in zip(panels, named.items(), strict=False):
        axes.fill_between(
            (low, high), ((1 - _NEAR) * low, (1 - _NEAR) * high),
            ((1 + _NEAR) * low, (1 + _NEAR) * high), color=FAINT, alpha=0.5, linewidth=0,
        )  # fmt: skip
        axes.plot((low, high), (low, high), color=INK, linewidth=0.6)
        axes.scatter(*zip(*pairs, strict=True), s=5, color=PALETTE[0], alpha=0.6, linewidths=0)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        axes.set_title(f"{name}, {len(pairs)}", fontsize=9, color=INK)
        _plain(axes)
    # Below the last panel of each column, whichever row it is in.
    for axes in panels[max(0, len(named) - count) : len(named)]:
        axes.tick_params(labelbottom=True)
    for axes in panels[len(named) :]:
        axes.set_axis_off()
    figure.supxlabel("measured (s)", fontsize=10, color=INK)
    figure.supylabel("predicted (s)", fontsize=10, color=INK)
    return figure


def draw_times(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Seconds over bytes, a curve for each name, on logarithmic axes.

    Args:
        curves: bytes and seconds by name.

    Raises:
        FormatError: no curves, or a size or time that is not above 0.
    """
    named = _named(curves, "curves")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (name, rows) in enumerate(named.items()):
        color, marker = PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]
        axes.plot(*zip(*sorted(rows), strict=True), label=name, color=color, marker=marker, ms=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: format_bytes(nbytes)))
    axes.set_xlabel("bytes of a rank's buffer", color=INK)
    axes.set_ylabel("seconds", color=INK)
    axes.legend(frameon=False, fontsize=9)
    _plain(axes)
    return figure


def _named(given: object, what: str) -> dict[str, list[tuple[float, float]]]:
    """Pairs of numbers above 0 by name, those without any left out."""
    found = {}
    for name, pairs in checks.instance(given, Mapping, what, FormatError).items():
        rows = []
        for pair in checks.members(pairs, f"{what} of {name}", FormatError):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise FormatError(f"{what} of {name} must be pairs of numbers, got {pair!r}")
            for each in pair:
                checks.positive(each, f"a number of {name}", FormatError)
            rows.append((float(pair[0]), float(pair[1])))
        if rows:
            found[str(name)] = rows
    if not found:
        raise FormatError(f"there are no {what} to draw")
    return found


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
