"""Heat maps of the load of every link in every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm
from matplotlib.figure import Figure

from jaxcoll.collective import common_parts
from jaxcoll.draw.style import INK, PAPER, label_of
from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule

MOST_LABELS = 64  # links with names beside a heat map; more would not be readable


def draw_heatmap(*schedules: Schedule, labels: Sequence[str] = ()) -> Figure:
    """The load of every link in every step, schedules side by side on one colour scale.

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
    for i, schedule in enumerate(schedules):
        checks.instance(schedule, Schedule, f"schedules[{i}]", ScheduleError)
    labels = [str(label) for label in checks.members(labels, "labels", ScheduleError)]
    topology = schedules[0].topology
    if any(schedule.topology != topology for schedule in schedules):
        raise ScheduleError("schedules side by side must run on the same network")
    if labels and len(labels) != len(schedules):
        raise ScheduleError(f"{len(schedules)} schedules need as many labels, got {len(labels)}")
    labels = labels or [label_of(schedule) for schedule in schedules]
    loads = [link_loads(schedule) for schedule in schedules]
    steps = [max(schedule.num_steps, 1) for schedule in schedules]
    low, high = _range(loads)
    cells = ListedColormap(colormaps["cividis_r"](np.linspace(0.12, 1.0, 256)))
    norm = LogNorm(low, max(high, 1.01 * low))

    width = float(np.clip(1.8 * len(schedules) + 0.26 * sum(steps), 4.5, 14.0)) + 1.2
    height = float(np.clip(1.3 + 0.17 * topology.num_links, 3.0, 9.0))
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(
        1, len(schedules), sharey=True, squeeze=False, width_ratios=[s + 2 for s in steps]
    )[0]
    for axes, load, label in zip(panels, loads, labels, strict=True):
        _draw_loads(axes, load, label, norm, cells)
    if topology.num_links <= MOST_LABELS:
        names = [topology.link_name(link).replace("->", "→") for link in range(topology.num_links)]
        panels[0].set_yticks(np.arange(topology.num_links) + 0.5, names)
    panels[0].set_ylabel("link", color=INK)
    panels[0].invert_yaxis()
    bar = figure.colorbar(ScalarMappable(norm, cells), ax=list(panels), pad=0.02, aspect=30)
    bar.set_label("share of the buffer on the link (%)", color=INK)
    ticks = np.unique(np.geomspace(low, high, 4))
    bar.set_ticks(list(ticks), labels=[f"{tick:.2g}" for tick in ticks])
    bar.minorticks_off()
    bar.outline.set_visible(False)
    return figure


def _draw_loads(axes: Axes, load: np.ndarray, label: str, norm: LogNorm, cells: Colormap) -> None:
    if load.size:
        gap = 0.6 if load.size < 4000 else 0.0
        shown = np.ma.masked_equal(load, 0.0)
        axes.pcolormesh(shown, cmap=cells, norm=norm, edgecolors="white", linewidth=gap)
    steps = load.shape[1]
    busy = 100.0 * np.count_nonzero(load) / max(load.size, 1)
    title = f"{label}\n{steps} steps, {busy:.0f} % of links busy in a step"
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_facecolor(PAPER)
    axes.set_xlabel("step", color=INK)
    at = np.arange(0, steps, 1 + steps // 17)
    axes.set_xticks(at + 0.5, at.astype(str))
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.spines[:].set_visible(False)


def _range(loads: Sequence[np.ndarray]) -> tuple[float, float]:
    """The least and the largest load there is; idle links do not count."""
    loads = [load[load > 0] for load in loads if (load > 0).any()]
    if not loads:
        return 1.0, 1.0
    return min(float(load.min()) for load in loads), max(float(load.max()) for load in loads)


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
