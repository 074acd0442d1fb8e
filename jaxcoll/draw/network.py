"""Drawings of networks, and of the path of a chunk through them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Patch

from jaxcoll.draw.layout import RADIUS, bows, layout, middle_of
from jaxcoll.draw.style import FAINT, INK, label_of
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


def draw_topology(
    topology: Topology, schedule: Schedule | None = None, chunk: int | None = None
) -> Figure:
    """The network; with a schedule, the sends of one chunk, coloured by step.

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
    checks.instance(topology, Topology, "topology", ScheduleError)
    checks.optional(schedule, checks.instance, Schedule, "schedule", ScheduleError)
    chunk = checks.optional(chunk, checks.integer, "chunk", ScheduleError)
    if schedule is None and chunk is not None:
        raise ScheduleError(f"chunk {chunk} needs the schedule it belongs to; none is given")
    if schedule is not None:
        if schedule.topology != topology:
            raise ScheduleError(f"{schedule} runs on another network than {topology}")
        chunk = 0 if chunk is None else chunk
        if not 0 <= chunk < schedule.collective.num_chunks:
            raise ScheduleError(
                f"chunk must be 0..{schedule.collective.num_chunks - 1}, got {chunk}", chunk=chunk
            )
    place = layout(topology)
    bow = bows(topology, place)
    span = np.ptp(place, axis=0)
    figure = Figure(figsize=_size(span, schedule is not None), layout="constrained")
    axes = figure.add_subplot()
    title = topology.name or repr(topology)
    owner = -1
    if schedule is not None and chunk is not None:
        owner = int(schedule.collective.owner[chunk])
        title = f"{label_of(schedule)} on {title}: chunk {chunk}, step by step"
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
            x, y = middle_of(topology, place, bow, link)
            axes.text(
                x,
                y,
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
