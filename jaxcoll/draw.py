"""Drawings of networks, schedules and bandwidths, as matplotlib figures.

Needs matplotlib, which is in the extra ``experiments``. Nothing else in the library imports this
module, and no global state of matplotlib is touched: a figure is returned, the caller saves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.ticker import FuncFormatter

from jaxcoll.collective import common_parts
from jaxcoll.errors import ScheduleError
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

# Okabe and Ito's palette without its yellow, which is too pale for lines: distinct to all eyes.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#22272e"
FAINT = "#c3c9d1"
PAPER = "#f3f5f7"

RADIUS = 0.17  # of a vertex, when neighbours on a grid are 1 apart
MOST_LABELS = 64  # links with names beside a heat map; more would not be readable


# ---------------------------------------------------------------------- networks


def draw_topology(
    topology: Topology, schedule: Schedule | None = None, chunk: int | None = None
) -> Figure:
    """The network; with a schedule, the way of one chunk through it, coloured by step.

    Ranks on a grid stand where their coordinates are, dimensions that wrap around close in arcs;
    ranks of a one-dimensional ring and of networks without a grid stand on a circle. Ranks are
    circles, switches squares. A send is an arrow along the links of its path, numbered with its
    step; one that adds (``reduce``) is dashed.

    Args:
        topology: the network.
        schedule: of any collective on this network.
        chunk: the chunk to follow; the first when omitted.

    Raises:
        ScheduleError: a schedule for another network, or a chunk it does not have, or a chunk
            without a schedule.
    """
    if schedule is None and chunk is not None:
        raise ScheduleError(f"chunk {chunk} needs the schedule it belongs to; none is given")
    if schedule is not None:
        if schedule.topology != topology:
            raise ScheduleError(f"{schedule} runs on another network than {topology}")
        chunk = 0 if chunk is None else int(chunk)
        if not 0 <= chunk < schedule.collective.num_chunks:
            raise ScheduleError(
                f"chunk must be 0..{schedule.collective.num_chunks - 1}, got {chunk}", chunk=chunk
            )
    place = _layout(topology)
    bow = _bows(topology, place)
    span = np.ptp(place, axis=0)
    figure = Figure(figsize=_size(span, schedule is not None), layout="constrained")
    axes = figure.add_subplot()
    title = topology.name or repr(topology)
    owner = -1
    if schedule is not None and chunk is not None:
        owner = int(schedule.collective.owner[chunk])
        title = f"{_label(schedule)} on {title}: chunk {chunk}, step by step"
    drawn = _draw_vertices(axes, topology, place, owner)
    for link in range(topology.num_links):
        arrow = _arrow(topology, place, bow, drawn, link, color=FAINT, linewidth=1.1, zorder=1)
        arrow.set_gid(f"link {link}")
        axes.add_patch(arrow)
    if schedule is not None and chunk is not None:
        _draw_chunk(axes, place, bow, drawn, schedule, chunk)
    axes.set_title(title, color=INK)
    reach = RADIUS + np.abs(bow).max(initial=0.0)
    low, high = place.min(axis=0) - reach - 0.1, place.max(axis=0) + reach + 0.1
    axes.set_xlim(low[0], high[0])
    axes.set_ylim(low[1], high[1])
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


def _draw_chunk(
    axes: Axes,
    place: np.ndarray,
    bow: np.ndarray,
    drawn: Sequence[Patch],
    schedule: Schedule,
    chunk: int,
) -> None:
    topology = schedule.topology
    sends = np.flatnonzero(schedule.chunk == chunk)
    steps = schedule.step[sends]
    used = np.unique(steps)
    color = dict(zip(used.tolist(), _step_colors(len(used)), strict=True))
    for send, step in zip(sends.tolist(), steps.tolist(), strict=True):
        style = "--" if schedule.reduce[send] else "-"
        for link in schedule.edges.path(int(schedule.edge[send])):
            arrow = _arrow(
                topology, place, bow, drawn, link, color=color[step], linewidth=3.0, zorder=3
            )
            arrow.set_linestyle(style)
            arrow.set_gid(f"send {send} link {link}")
            axes.add_patch(arrow)
            axes.text(
                *_middle(topology, place, bow, link),
                str(step),
                ha="center",
                va="center",
                fontsize=8.5,
                fontweight="bold",
                color="white",
                zorder=5,
                bbox={"boxstyle": "circle,pad=0.22", "facecolor": color[step], "linewidth": 0},
            )
    handles = [
        Line2D([], [], color=color[step], linewidth=3, label=f"step {step}")
        for step in used.tolist()
    ]
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        labelcolor=INK,
        ncols=1 + (len(handles) - 1) // 12,
    )


def _draw_vertices(axes: Axes, topology: Topology, place: np.ndarray, owner: int) -> list[Patch]:
    drawn: list[Patch] = []
    for vertex, (x, y) in enumerate(place):
        if vertex < topology.num_ranks:
            patch = Circle((x, y), RADIUS)
        else:
            side = 1.5 * RADIUS
            patch = FancyBboxPatch(
                (x - side / 2, y - side / 2), side, side, boxstyle="round,pad=0.04"
            )
        patch.set(
            facecolor=INK if vertex == owner else "white",
            edgecolor=INK,
            linewidth=1.4,
            zorder=4,
            gid=f"vertex {vertex}",
        )
        drawn.append(axes.add_patch(patch))
        axes.text(
            x,
            y,
            topology.vertex_names[vertex] if topology.vertex_names else str(vertex),
            ha="center",
            va="center",
            fontsize=10,
            color="white" if vertex == owner else INK,
            zorder=6,
        )
    return drawn


def _step_colors(count: int) -> list:
    # Without the palest fifth: it would vanish on white.
    return list(colormaps["viridis"](np.linspace(0.0, 0.8, max(count, 1))))[:count]


def _size(span: np.ndarray, with_legend: bool) -> tuple[float, float]:
    width = float(np.clip(1.45 * (span[0] + 1.0), 3.6, 13.0)) + (1.0 if with_legend else 0.0)
    height = float(np.clip(1.45 * (span[1] + 1.0), 2.6, 11.0)) + 0.4
    return width, height


# ---------------------------------------------------------------------- where things stand


def _layout(topology: Topology) -> np.ndarray:
    """Places of the vertices, float64 of shape (vertices, 2), neighbours about 1 apart."""
    grid = topology.grid
    sides = [] if grid is None else [d for d, side in enumerate(grid.shape) if side > 1]
    if grid is not None and topology.is_direct and 1 <= len(sides) <= 3:
        at = grid.coordinates()[:, sides].astype(float)
        if len(sides) == 2:
            return np.stack([at[:, 1], -at[:, 0]], axis=1)
        if len(sides) == 3:
            depth, row, column = at.T
            return np.stack([1.3 * column + 0.45 * depth, 0.6 * depth - 1.9 * row], axis=1)
        if not grid.wrap[sides[0]]:
            return np.stack([at[:, 0], np.zeros(len(at))], axis=1)
    if topology.is_direct:
        return _circle(topology.num_ranks)
    # Switches find their place among the ranks they join; deterministic.
    layout = nx.kamada_kawai_layout(nx.Graph(topology.to_networkx()), weight=None)
    place = np.array([layout[v] for v in range(topology.num_vertices)])
    src, dst = place[topology.src], place[topology.dst]
    return place / max(np.linalg.norm(src - dst, axis=1).min(), 0.2)


def _circle(count: int) -> np.ndarray:
    if count == 1:
        return np.zeros((1, 2))
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * 0.5 / np.sin(np.pi / count)


def _bows(topology: Topology, place: np.ndarray) -> np.ndarray:
    """How far each link bends to the right of its way, float64 of shape (links,).

    A little everywhere, so that the links of both directions and parallel ones stay apart; far on
    a link that would otherwise run over the vertices between its ends.
    """
    bow = np.full(topology.num_links, 0.045)
    pair = topology.src.astype(np.int64) * topology.num_vertices + topology.dst
    nth = np.arange(topology.num_links) - np.searchsorted(pair, pair)  # of parallel links
    bow += 0.07 * nth
    middle = (place.min(axis=0) + place.max(axis=0)) / 2
    for link in range(topology.num_links):
        a, b = place[topology.src[link]], place[topology.dst[link]]
        if not _runs_over(place, a, b):
            continue
        way = (b - a) / np.linalg.norm(b - a)
        right = np.array([way[1], -way[0]])
        outward = float(np.dot((a + b) / 2 - middle, right))
        # On the axis of symmetry either side will do, but the same one for both directions.
        side = np.sign(outward) if abs(outward) > 1e-9 else np.sign(right[0] + 1e-3 * right[1])
        bow[link] = side * (0.36 + 0.04 * side) + 0.07 * nth[link]
    return bow


def _runs_over(place: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    way = b - a
    along = (place - a) @ way / (way @ way)
    beside = np.linalg.norm(place - a - along[:, None] * way, axis=1)
    return bool(((along > 1e-6) & (along < 1 - 1e-6) & (beside < RADIUS)).any())


def _middle(topology: Topology, place: np.ndarray, bow: np.ndarray, link: int) -> np.ndarray:
    a, b = place[topology.src[link]], place[topology.dst[link]]
    way = (b - a) / np.linalg.norm(b - a)
    return (a + b) / 2 + bow[link] * np.array([way[1], -way[0]])


def _arrow(
    topology: Topology,
    place: np.ndarray,
    bow: np.ndarray,
    drawn: Sequence[Patch],
    link: int,
    **style: object,
) -> FancyArrowPatch:
    u, v = int(topology.src[link]), int(topology.dst[link])
    wide = float(style.get("linewidth", 1.0))  # type: ignore[arg-type]
    head = f"head_length={0.25 + 0.09 * wide:.2f},head_width={0.1 + 0.05 * wide:.2f}"
    return FancyArrowPatch(
        tuple(place[u]),
        tuple(place[v]),
        # The curve's middle lies half as far out as its control point.
        connectionstyle=f"arc3,rad={2 * bow[link] / np.linalg.norm(place[u] - place[v]):.6f}",
        arrowstyle=f"-|>,{head}",
        mutation_scale=14,
        shrinkA=0,
        shrinkB=1,
        patchA=drawn[u],
        patchB=drawn[v],
        joinstyle="miter",
        **style,  # type: ignore[arg-type]
    )


# ---------------------------------------------------------------------- schedules


def draw_heatmap(*schedules: Schedule, labels: Sequence[str] = ()) -> Figure:
    """What every link carries in every step, schedules side by side on one colour scale.

    A cell is the share of a rank's buffer, in percent, that crosses a link in a step; an empty
    one is an idle link. A send over a path of several links counts on each of them.

    Args:
        schedules: one or more, all on the same network.
        labels: a title for each; the synthesizers' names when omitted.

    Raises:
        ScheduleError: no schedule, schedules on different networks, or another number of labels.
    """
    if not schedules:
        raise ScheduleError("draw_heatmap needs at least one schedule")
    topology = schedules[0].topology
    if any(schedule.topology != topology for schedule in schedules):
        raise ScheduleError("schedules side by side must run on the same network")
    if labels and len(labels) != len(schedules):
        raise ScheduleError(f"{len(schedules)} schedules need as many labels, got {len(labels)}")
    labels = labels or [_label(schedule) for schedule in schedules]
    loads = [link_loads(schedule) for schedule in schedules]
    steps = [max(schedule.num_steps, 1) for schedule in schedules]
    positive = np.concatenate([load[load > 0] for load in loads] or [np.ones(1)])
    low, high = (positive.min(), positive.max()) if positive.size else (1.0, 1.0)
    cells = ListedColormap(colormaps["cividis_r"](np.linspace(0.12, 1.0, 256)))
    cells.set_bad(PAPER)
    norm = LogNorm(low, high if high > low else 1.01 * low)

    width = float(np.clip(1.8 * len(schedules) + 0.26 * sum(steps), 4.5, 14.0))
    height = float(np.clip(1.3 + 0.17 * topology.num_links, 3.0, 9.0))
    figure = Figure(figsize=(width + 1.2, height), layout="constrained")
    panels = figure.subplots(
        1, len(schedules), sharey=True, squeeze=False, width_ratios=[s + 2 for s in steps]
    )[0]
    mesh = None
    for axes, schedule, load, label in zip(panels, schedules, loads, labels, strict=True):
        shown = np.ma.masked_equal(load, 0.0)
        mesh = axes.pcolormesh(
            shown,
            cmap=cells,
            norm=norm,
            edgecolors="white",
            linewidth=0.6 if load.size < 4000 else 0,
        )
        busy = 100.0 * np.count_nonzero(load) / max(load.size, 1)
        axes.set_title(
            f"{label}\n{schedule.num_steps} steps, {busy:.0f} % of links busy in a step",
            fontsize=10,
            color=INK,
        )
        axes.set_xlabel("step", color=INK)
        every = 1 + (schedule.num_steps - 1) // 16
        at = np.arange(0, schedule.num_steps, every)
        axes.set_xticks(at + 0.5, at.astype(str))
        axes.tick_params(length=0, labelsize=8, colors=INK)
        axes.spines[:].set_visible(False)
    _name_links(panels[0], topology)
    bar = figure.colorbar(mesh, ax=list(panels), pad=0.02, aspect=30)
    bar.set_label("share of the buffer on the link (%)", color=INK)
    ticks = _nice_ticks(low, high)
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    return figure


def link_loads(schedule: Schedule) -> np.ndarray:
    """Percent of a rank's buffer that crosses each link in each step, of shape (links, steps)."""
    weight, total = common_parts(schedule.collective)
    loads = np.zeros((schedule.topology.num_links, schedule.num_steps))
    hops = schedule.edges.hops[schedule.edge]
    first = np.repeat(schedule.edges.path_ptr[schedule.edge], hops)
    nth = np.arange(hops.sum()) - np.repeat(np.cumsum(hops) - hops, hops)
    link = schedule.edges.path_link[first + nth]
    share = 100.0 * weight[schedule.chunk] / total
    np.add.at(loads, (link, np.repeat(schedule.step, hops)), np.repeat(share, hops))
    return loads


def _name_links(axes: Axes, topology: Topology) -> None:
    if topology.num_links <= MOST_LABELS:
        names = [topology.link_name(link).replace("->", "→") for link in range(topology.num_links)]
        axes.set_yticks(np.arange(topology.num_links) + 0.5, names)
    axes.set_ylabel("link", color=INK)
    axes.invert_yaxis()


def _nice_ticks(low: float, high: float) -> list[float]:
    return sorted({low, high} | {float(x) for x in np.geomspace(low, high, 4)[1:-1]})


def _label(schedule: Schedule) -> str:
    return schedule.provenance.synthesizer or schedule.collective.kind


# ---------------------------------------------------------------------- bandwidth against size


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
    lines = {**algbw, **({} if bound is None else {"bound": bound})}
    for name, values in lines.items():
        if len(values) != len(nbytes):
            raise ScheduleError(f"{name} has {len(values)} values for {len(nbytes)} sizes")
    size = np.asarray(nbytes, float)
    figure = Figure(figsize=(6.6, 6.0 if bound is not None else 3.8), layout="constrained")
    panels = figure.subplots(
        1 if bound is None else 2,
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[1] if bound is None else [3, 2],
    )[:, 0]
    for i, (name, values) in enumerate(algbw.items()):
        style = {
            "color": PALETTE[i % len(PALETTE)],
            "marker": MARKERS[i % len(MARKERS)],
            "markersize": 5.5,
            "linewidth": 1.8,
            "linestyle": "-" if i < len(PALETTE) else "--",
            "label": name,
        }
        panels[0].plot(size, np.asarray(values) / 1e9, **style)
        if bound is not None:
            panels[1].plot(size, 100 * np.asarray(values) / np.asarray(bound), **style)
    if bound is not None:
        panels[0].plot(
            size, np.asarray(bound) / 1e9, color=INK, linewidth=1.4, linestyle=":", label="bound"
        )
        panels[1].axhline(100, color=INK, linewidth=1.4, linestyle=":")
        panels[1].set_ylim(0, 108)
        panels[1].set_ylabel("percent of the bound", color=INK)
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
    return figure


def format_bytes(nbytes: float) -> str:
    """``1024`` as ``1 KiB``: three digits and the largest unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    return ""
