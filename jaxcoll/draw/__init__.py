"""Drawings of networks, schedules and bandwidths, as matplotlib figures.

This package needs matplotlib, which the extra ``draw`` installs; nothing else in the library
imports it. No global state of matplotlib is touched: a figure is returned, and the caller saves it.
This module draws networks: as they are, with the load of every link, or with the way of one chunk.
``bandwidth`` draws curves and heat maps, ``times`` predicted and measured times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Patch

from jaxcoll.draw.bandwidth import (
    FAINT,
    INK,
    LOADS,
    MISSING,
    PALETTE,
    PAPER,
    draw_algbw,
    draw_heatmap,
    format_bytes,
    label_of,
    link_loads,
)
from jaxcoll.draw.times import draw_predictions, draw_times
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.pictures.places import RADIUS, bows, curve_middles, host_names, layout, short_names
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

__all__ = [
    "draw_algbw",
    "draw_heatmap",
    "draw_loads",
    "draw_predictions",
    "draw_times",
    "draw_topology",
    "format_bytes",
    "link_loads",
]

_LARGEST = (13.0, 10.0)  # inches of a drawing
_MOST_BADGES = 120  # numbered arrows; with more, the numbers would hide them
_MOST_SPEEDS = 5  # kinds of links that a legend names


def draw_topology(
    topology: Topology, schedule: Schedule | None = None, chunk: int | None = None
) -> Figure:
    """The network; with a schedule, the sends of one chunk, coloured by step.

    Ranks are circles, switches squares. Ranks on a grid stand where their coordinates are, and
    dimensions that wrap around close in arcs; hosts stand in frames around the network that joins
    them; switches without hosts stand in tiers. Lost parts of a network (``Topology.losses``)
    are dashed at their old places. A send is an arrow along the links of its path,
    numbered with its step; one that adds (``reduce``) is dashed.

    Args:
        topology: the network.
        schedule: a schedule of any collective on this network.
        chunk: the chunk to follow; the first when omitted.

    Raises:
        ScheduleError: a schedule for another network, or a chunk it does not have, or a chunk
            without a schedule.
    """
    checks.instance(topology, Topology, "topology", ScheduleError)
    checks.optional(schedule, checks.instance, Schedule, "schedule", ScheduleError)
    chunk = checks.optional(chunk, checks.integer, "chunk", ScheduleError)
    if schedule is None and chunk is not None:
        raise ScheduleError(f"chunk {chunk} needs the schedule it belongs to; none is given")
    if schedule is None:
        sheet = _Sheet(topology)
        sheet.links(*_speed_styles(sheet))
        sheet.finish(topology.name or repr(topology))
        return sheet.figure
    if not schedule.topology.has_links_of(topology):
        raise ScheduleError(f"{schedule} runs on another network than {topology}")
    chunk = 0 if chunk is None else chunk
    if not 0 <= chunk < schedule.collective.num_chunks:
        raise ScheduleError(
            f"chunk must be 0..{schedule.collective.num_chunks - 1}, got {chunk}", chunk=chunk
        )
    sheet = _Sheet(topology, int(schedule.collective.owner[chunk]))
    sheet.links([FAINT] * topology.num_links, np.full(topology.num_links, 0.9))
    _draw_chunk(sheet, schedule, chunk)
    where = topology.name or repr(topology)
    sheet.finish(f"{label_of(schedule)} on {where}: chunk {chunk}, step by step")
    return sheet.figure


def draw_loads(schedule: Schedule) -> Figure:
    """The network with every link coloured by its load, relative to the busiest.

    A link's load is the time that its bytes take on it, without latencies: at 100 % everywhere no
    schedule that sends these bytes could be faster. Links without a send stay grey.

    Raises:
        ScheduleError: not a schedule.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    topology = schedule.topology
    load = link_loads(schedule).sum(axis=1) / topology.bandwidth
    share = 100.0 * load / max(load.max(initial=0.0), 1e-300)
    norm = Normalize(0.0, 100.0)
    sheet = _Sheet(topology)
    colours = [LOADS(norm(s)) if s > 0 else FAINT for s in share.tolist()]
    sheet.links(colours, 0.9 + 2.1 * share / 100.0, order=share)
    bar = sheet.colour_bar(ScalarMappable(norm, LOADS), "load of a link (% of the busiest)")
    bar.outline.set_visible(False)
    busy = share[share > 0]
    sheet.finish(
        f"{schedule.collective.kind} by {label_of(schedule)} on "
        f"{topology.name or repr(topology)}\n{len(busy)} of {len(share)} links used, "
        f"{share.mean() if len(share) else 0:.0f} % on average"
    )
    return sheet.figure


class _Sheet:
    """A figure with the vertices of a network, onto which its links are drawn."""

    def __init__(self, topology: Topology, owner: int = -1) -> None:
        self.topology = topology
        whole = topology.whole
        columns = (whole.src, whole.dst, whole.bandwidth)
        self.whole = layout(whole.num_ranks, whole.num_vertices, *columns, whole.placement)
        self.layout = self.whole.of(topology.whole_vertices)
        self.bow = bows(self.layout, topology.src, topology.dst)
        self.ends = self.layout.ends(topology.src, topology.dst)
        reach = RADIUS + min(np.abs(self.bow).max(initial=0.0), 0.4) + 0.12
        corners = np.concatenate(
            [self.whole.place - reach, self.whole.place + reach, *self.layout.frames]
        )
        self.low, self.high = corners.min(axis=0) - 0.02, corners.max(axis=0) + 0.02
        span = self.high - self.low
        self.inches = float(np.min([1.45, *(_LARGEST / span)]))  # per unit of the layout
        size = np.maximum(span * self.inches, (3.4, 1.2)) + np.array([0.2, 0.75])
        self.figure = Figure(figsize=tuple(size), layout="constrained")
        self.axes = self.figure.add_subplot()
        names = host_names(topology.vertex_names, self.layout.hosts)
        self._draw_frames(names)
        self.vertices = self._draw_vertices(owner)
        self._draw_missing()

    @property
    def scale(self) -> float:
        """1 where there is room for everything, less where the drawing is reduced."""
        return min(self.inches / 1.1, 1.0)

    def links(self, colours: Sequence, widths: np.ndarray, order: np.ndarray | None = None) -> None:
        """Every link as an arrow; those of a higher ``order`` above the others."""
        rank = np.argsort(np.argsort(order)) / len(order) if order is not None else widths * 0
        for link in range(self.topology.num_links):
            arrow = self.arrow(
                link, color=colours[link], linewidth=float(widths[link]), zorder=1 + rank[link]
            )
            arrow.set_gid(f"link {link}")

    def arrow(self, link: int, **style) -> FancyArrowPatch:
        """One link as an arrow, bent as the layout asks."""
        u, v = int(self.topology.src[link]), int(self.topology.dst[link])
        begin, end = self.ends[0][link], self.ends[1][link]
        wide = style["linewidth"] = max(style.get("linewidth", 1.0) * self.scale**0.5, 0.35)
        head = f"head_length={0.25 + 0.09 * wide:.2f},head_width={0.1 + 0.05 * wide:.2f}"
        bend = 2 * self.bow[link] / np.linalg.norm(begin - end)
        patch = FancyArrowPatch(
            tuple(begin),
            tuple(end),
            # The curve's middle lies half as far out as its control point.
            connectionstyle=f"arc3,rad={bend:.6f}",
            arrowstyle=f"-|>,{head}",
            mutation_scale=14 * self.scale**0.5,
            shrinkA=0,
            shrinkB=1,
            patchA=self.vertices[u],
            patchB=self.vertices[v],
            joinstyle="miter",
            **style,
        )
        # Not add_patch, which cuts each arrow at its vertices to widen limits that ``finish`` sets.
        self.axes.add_artist(patch)
        return patch

    def colour_bar(self, of: ScalarMappable, label: str):
        """A colour bar at the right, for which the figure becomes wider."""
        bar = self.figure.colorbar(
            of, ax=self.axes, pad=0.02, shrink=0.75, aspect=22, fraction=0.05
        )
        bar.set_label(label, color=INK)
        bar.ax.tick_params(colors=INK, labelsize=8.5)
        width, height = self.figure.get_size_inches()
        self.figure.set_size_inches(width + 1.0, height)
        return bar

    def finish(self, title: str) -> None:
        """Set the title and the limits, once everything is drawn."""
        self.axes.set_title(title, color=INK)
        self.axes.set_xlim(self.low[0], self.high[0])
        self.axes.set_ylim(self.low[1], self.high[1])
        self.axes.set_aspect("equal")
        self.axes.axis("off")

    def _draw_frames(self, names: Sequence[str]) -> None:
        """The frames of hosts, with their names inside, on the side away from the network."""
        size = max(10.5 * self.scale**0.5, 5)
        is_round = self.layout.is_round
        for (low, high), name in zip(self.layout.frames, names, strict=True):
            middle, size_of = (low + high) / 2, high - low
            frame: Patch = (
                Circle(tuple(middle), size_of[0] / 2)
                if is_round
                else FancyBboxPatch(tuple(low), *size_of, boxstyle="round,pad=0,rounding_size=0.15")
            )
            frame.set(facecolor=PAPER, edgecolor=FAINT, linewidth=0.8, zorder=0, gid=f"host {name}")
            self.axes.add_patch(frame)
            above = is_round or low[1] > 0
            x = middle[0] if is_round else low[0] + 0.2
            y = middle[1] if is_round else high[1] - 0.1 if above else low[1] + 0.1
            self.axes.text(
                x, y, name, color=INK, alpha=0.75, fontsize=size, zorder=0.5,
                va="center" if is_round else "top" if above else "bottom",
                ha="center" if is_round else "left",
            )  # fmt: skip

    def _draw_vertices(self, owner: int) -> list[Patch]:
        """Ranks and switches with their names; the owner of a chunk is filled."""
        drawn: list[Patch] = []
        topology = self.topology
        names = short_names(
            topology.vertex_names, topology.num_ranks, topology.num_vertices, self.layout
        )
        font = min(10.0, 72 * self.inches * RADIUS * 0.95)
        for vertex, (x, y) in enumerate(self.layout.place.tolist()):
            is_rank, text = vertex < topology.num_ranks, names[vertex]
            patch: Patch = Circle((x, y), RADIUS)
            if not is_rank:
                side = 1.5 * RADIUS
                width = max(side, 0.62 * RADIUS * len(text), float(self.layout.width[vertex]))
                patch = FancyBboxPatch(
                    (x - width / 2, y - side / 2), width, side, boxstyle="round,pad=0.04"
                )
            filled = vertex == owner
            patch.set(
                facecolor=INK if filled else "white" if is_rank else "#e3e9f2",
                edgecolor=INK,
                linewidth=max(1.4 * self.scale, 0.5),
                zorder=4,
                gid=f"vertex {vertex}",
            )
            drawn.append(self.axes.add_patch(patch))
            colour = "white" if filled else INK
            self.axes.text(
                x, y, text, ha="center", va="center_baseline", fontsize=font, color=colour,
                zorder=6,
            )  # fmt: skip
        return drawn

    def _draw_missing(self) -> None:
        """Ranks, switches and links that the network has lost, dashed where they were."""
        lost = self.topology.losses
        style = {"edgecolor": MISSING, "linestyle": (0, (2, 1.5)), "linewidth": 1.4}
        for vertex in (*lost.ranks, *lost.switches):
            spot = Circle(tuple(self.whole.place[vertex]), RADIUS, facecolor="none", **style)
            self.axes.add_patch(spot).set(gid=f"missing vertex {vertex}", zorder=4)
        for u, v in dict.fromkeys(tuple(sorted(ends)) for ends in lost.links):
            ends = (np.array([u]), np.array([v]))
            begin, end = (each[0] for each in self.whole.ends(*ends))
            # A link that was bent around other vertices is bent again, in the middle of both ways.
            bend = 2 * bows(self.whole, *ends)[0] / np.linalg.norm(begin - end)
            wire = FancyArrowPatch(
                tuple(begin), tuple(end), arrowstyle="-", shrinkA=10, shrinkB=10,
                connectionstyle=f"arc3,rad={bend:.6f}", **style,
            )  # fmt: skip
            self.axes.add_patch(wire).set(gid=f"missing link {u} {v}", zorder=1.5)


def _speed_styles(sheet: _Sheet) -> tuple[list[str], np.ndarray]:
    """A colour and a width for each kind of link, fastest first, named in a legend."""
    topology = sheet.topology
    kinds, which = topology.speeds
    order = sorted(range(len(kinds)), key=lambda i: (-kinds[i][1], kinds[i][0]))
    at = {kind: i for i, kind in enumerate(order)}
    if not 1 < len(kinds) <= _MOST_SPEEDS:
        return ["#98a3b0"] * topology.num_links, np.full(topology.num_links, 1.0)
    colours = [PALETTE[at[int(i)]] for i in which]
    widths = np.array([1.5 - 0.25 * at[int(i)] for i in which])
    handles = []
    for i, kind in enumerate(order):
        alpha, bandwidth = (float(x) for x in kinds[kind])
        count = int((which == kind).sum())
        label = f"{count} links of {bandwidth / 1e9:.4g} GB/s, {alpha * 1e6:.3g} µs"
        handles.append(Line2D([], [], color=PALETTE[i], linewidth=2, label=label))
    sheet.axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False,
        labelcolor=INK, ncols=2, fontsize=9,
    )  # fmt: skip
    return colours, widths


def _draw_chunk(sheet: _Sheet, schedule: Schedule, chunk: int) -> None:
    """The sends of a chunk as arrows, coloured and numbered by step."""
    topology = schedule.topology
    sends = np.flatnonzero(schedule.chunk == chunk)
    steps = schedule.step[sends]
    used = np.unique(steps).tolist()
    # Without the palest fifth of the colours, which would vanish on white.
    cells = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.8, max(len(used), 1))))
    colour = {step: cells(i) for i, step in enumerate(used)}
    middle = curve_middles(sheet.layout, sheet.bow, topology.src, topology.dst)
    hops = int(schedule.edges.hops[schedule.edge[sends]].sum())
    for send, step in zip(sends.tolist(), steps.tolist(), strict=True):
        for link in schedule.edges.path(int(schedule.edge[send])):
            arrow = sheet.arrow(link, color=colour[step], linewidth=3.0, zorder=3)
            arrow.set_linestyle("--" if schedule.reduce[send] else "-")
            arrow.set_gid(f"send {send} link {link}")
            if hops <= _MOST_BADGES:
                sheet.axes.text(
                    middle[link, 0], middle[link, 1], str(step), ha="center", va="center",
                    fontsize=8.5 * sheet.scale, fontweight="bold", color="white", zorder=5,
                    bbox={"boxstyle": "circle,pad=0.22", "facecolor": colour[step],
                          "linewidth": 0},
                )  # fmt: skip
    if not used:
        return
    norm = BoundaryNorm(np.arange(len(used) + 1) - 0.5, max(len(used), 1))
    bar = sheet.colour_bar(ScalarMappable(norm, cells), "step")
    shown = range(0, len(used), 1 + len(used) // 16)
    bar.set_ticks(list(shown), labels=[str(used[i]) for i in shown])
    bar.minorticks_off()
    bar.outline.set_visible(False)
