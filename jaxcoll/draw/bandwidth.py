"""Heat maps of links by step or over time, curves of bandwidth, and the colours of all drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from jaxcoll.collective import common_parts
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.timeline import Timeline

# Okabe and Ito's palette without its yellow, which is too pale for lines: distinct to all eyes.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#22272e"
FAINT = "#c3c9d1"
PAPER = "#f3f5f7"
MISSING = "#b3261e"  # lost parts of a network
# Light is idle and dark is busy, in grey too; without the ends, which look white and black.
LOADS = ListedColormap(colormaps["magma_r"](np.linspace(0.15, 0.82, 256)))


def label_of(schedule: Schedule) -> str:
    """The schedule's synthesizer, or else its collective."""
    return schedule.provenance.synthesizer or schedule.collective.kind


def format_bytes(nbytes: float) -> str:
    """``1024`` as ``1 KiB``: three digits and the largest unit that fits."""
    nbytes = float(checks.nonnegative(nbytes, "nbytes", ScheduleError))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return ""


MOST_LABELS = 64  # links with names beside a heat map; more would not be readable
_INTERVALS = 120  # that a run's time is cut into


def draw_heatmap(*runs: Schedule | Timeline, labels: Sequence[str] = ()) -> Figure:
    """Every link by step, or over time, for schedules side by side on one colour scale.

    Of a schedule, a cell is the share of a rank's buffer, in percent, that crosses a link in a
    step. Of a timeline, it is the percentage of an interval in which the link is occupied, and
    all panels have the same scale of time. An empty cell is an idle link; a send over a path of
    several links counts on each of them. Above each map stands the mean of its columns, beside
    it that of its rows.

    Args:
        runs: one or more schedules, or one or more timelines, all on the same network.
        labels: a title for each; the synthesizers' names when omitted.

    Raises:
        ScheduleError: nothing, schedules mixed with timelines, different networks, or another
            number of labels.
    """
    if not runs:
        raise ScheduleError("draw_heatmap needs at least one schedule")
    kind = Timeline if isinstance(runs[0], Timeline) else Schedule
    for i, run in enumerate(runs):
        checks.instance(run, kind, f"runs[{i}]", ScheduleError)
    labels = [str(label) for label in checks.members(labels, "labels", ScheduleError)]
    schedules = [run.schedule if isinstance(run, Timeline) else run for run in runs]
    topology = schedules[0].topology
    if any(not schedule.topology.has_links_of(topology) for schedule in schedules):
        raise ScheduleError("schedules side by side must run on the same network")
    if labels and len(labels) != len(runs):
        raise ScheduleError(f"{len(runs)} schedules need as many labels, got {len(labels)}")
    labels = labels or [label_of(schedule) for schedule in schedules]
    loads, widths, titles = _steps(schedules) if kind is Schedule else _intervals(runs)
    most = max((float(load.max(initial=0.0)) for load in loads), default=0.0)
    norm = Normalize(0.0, 100.0 if kind is Timeline else most or 1.0)
    figure, panels = _panels(topology.num_links, widths)
    for (axes, above, beside), load, label, title, width in zip(
        panels, loads, labels, titles, widths, strict=True
    ):
        _draw_loads(axes, load, norm, width if kind is Timeline else load.shape[1])
        _draw_means(above, beside, load, axes)
        above.set_title(f"{label}\n{title}", fontsize=10, color=INK)
        axes.set_xlabel("time (µs)" if kind is Timeline else "step", color=INK)
    if topology.num_links <= MOST_LABELS:
        names = [topology.link_name(link).replace("->", "→") for link in range(topology.num_links)]
        panels[0][0].set_yticks(np.arange(topology.num_links) + 0.5, names)
    panels[0][0].set_ylabel("link", color=INK)
    panels[0][0].invert_yaxis()
    bar = figure.colorbar(
        ScalarMappable(norm, LOADS), ax=[p for panel in panels for p in panel],
        pad=0.02, aspect=30,
    )  # fmt: skip
    share = "time that the link is occupied"
    share = share if kind is Timeline else "share of the buffer on the link"
    bar.set_label(f"{share} (%)", color=INK)
    bar.outline.set_visible(False)
    return figure


def _steps(schedules: Sequence[Schedule]) -> tuple[list[np.ndarray], list[float], list[str]]:
    """Per schedule its loads, its width in steps and its facts."""
    loads = [link_loads(schedule) for schedule in schedules]
    titles = []
    for load in loads:
        busy = 100.0 * np.count_nonzero(load) / max(load.size, 1)
        titles.append(f"{load.shape[1]} steps, {busy:.0f} % of links busy in a step")
    return loads, [max(load.shape[1], 1) for load in loads], titles


def _intervals(runs: Sequence) -> tuple[list[np.ndarray], list[float], list[str]]:
    """Per timeline its occupancy in percent, its width in microseconds and its facts."""
    longest = max(run.time for run in runs)
    loads, widths, titles = [], [], []
    for run in runs:
        share = run.time / longest if longest else 1.0
        # As many intervals as its share of the longest run's time, so that a cell is as long
        # everywhere.
        loads.append(100.0 * run.utilization(max(round(_INTERVALS * share), 4)))
        widths.append(max(run.time * 1e6, 1e-6))
        titles.append(
            f"{run.time * 1e6:.4g} µs, {run.algbw / 1e9:.4g} GB/s; "
            f"links busy {100 * run.mean_utilization():.0f} % of the time"
        )
    return loads, widths, titles


def _panels(num_links: int, widths: Sequence[float]) -> tuple[Figure, list[tuple[Axes, ...]]]:
    """A figure of maps as wide as ``widths``, each with an axes above and one beside it."""
    count = len(widths)
    width = float(np.clip(3.0 * count + 0.24 * sum(min(w, 40.0) for w in widths), 5.5, 14.0)) + 1.2
    height = float(np.clip(1.9 + 0.17 * num_links, 3.4, 9.0))
    figure = Figure(figsize=(width, height), layout="constrained")
    total = sum(widths)
    ratios = [r for w in widths for r in (max(w / total, 0.5 / count), 0.12 / count)]
    grid = figure.add_gridspec(
        2, 2 * count, width_ratios=ratios, height_ratios=[0.09, 1.0], wspace=0.01, hspace=0.01
    )
    maps: list[Axes] = []
    for i in range(count):
        maps.append(figure.add_subplot(grid[1, 2 * i], sharey=maps[0] if maps else None))
    for axes in maps[1:]:
        axes.tick_params(labelleft=False)
    return figure, [
        (
            axes,
            figure.add_subplot(grid[0, 2 * i], sharex=axes),
            figure.add_subplot(grid[1, 2 * i + 1], sharey=axes),
        )
        for i, axes in enumerate(maps)
    ]


def _draw_loads(axes: Axes, load: np.ndarray, norm: Normalize, width: float) -> None:
    links, cells = load.shape
    if load.size:
        # Lines between cells are of help while these are wider than the lines.
        gap = 0.6 if load.size < 4000 and width == cells else 0.0
        # An idle link is empty: the palest colour would look like a little load.
        shown = np.ma.masked_equal(load, 0.0)
        edges = np.linspace(0.0, width, cells + 1)
        axes.pcolormesh(
            edges, np.arange(links + 1), shown, cmap=LOADS, norm=norm, edgecolors="white",
            linewidth=gap, rasterized=load.size > 10_000,
        )  # fmt: skip
    if width == cells:
        at = np.arange(0, cells, 1 + cells // 17)
        axes.set_xticks(at + 0.5, at.astype(str))
    axes.set_facecolor(PAPER)
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.spines[:].set_visible(False)


def _draw_means(above: Axes, beside: Axes, load: np.ndarray, axes: Axes) -> None:
    """Bars of the means: they show what a map of equal cells hides."""
    if load.size:
        low, high = axes.get_xlim()
        wide = (high - low) / load.shape[1]
        above.bar(
            low + wide * (np.arange(load.shape[1]) + 0.5), load.mean(axis=0),
            width=0.85 * wide, color=FAINT,
        )  # fmt: skip
        beside.barh(np.arange(len(load)) + 0.5, load.mean(axis=1), height=0.8, color=FAINT)
    for small in (above, beside):
        small.tick_params(length=0, labelbottom=False, labelleft=False, bottom=False, left=False)
        small.spines[:].set_visible(False)
    above.set_ylim(0)
    beside.set_xlim(0)


def link_loads(schedule: Schedule) -> np.ndarray:
    """Percent of a rank's buffer that crosses each link in each step, of shape (links, steps)."""
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    weight, total = common_parts(schedule.collective)
    loads = np.zeros((schedule.topology.num_links, schedule.num_steps))
    hops = schedule.edges.hops[schedule.edge]
    first = np.repeat(schedule.edges.path_ptr[schedule.edge], hops)
    nth = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    link = schedule.edges.path_link[first + nth]
    share = 100.0 * weight[schedule.chunk] / total
    np.add.at(loads, (link, np.repeat(schedule.step, hops)), np.repeat(share, hops))
    return loads


def draw_algbw(
    nbytes: Sequence[float],
    algbw: Mapping[str, Sequence[float]],
    bound: Sequence[float] | None = None,
) -> Figure:
    """Algorithm bandwidth against size, a line for each name; with a bound, the percent of it too.

    Args:
        nbytes: sizes of the buffer in bytes.
        algbw: bytes per second at each size, by name.
        bound: bytes per second at each size that no schedule can beat.

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
    # Sizes are powers of two, bandwidths rise by orders of magnitude until the links are full.
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
