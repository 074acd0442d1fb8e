"""All-reduces of many algorithms on many networks, as the paper's figures show them.

Each is one of ``Comparison``, measured in the same way, and its own look at the runs: bandwidth by
size (Fig. 2, 15a, 16a and 17), what every link carries (Fig. 1) and how long it is busy (Fig. 15b),
and how many links are busy over the time of a run (Fig. 16b and 18). ``time_steps`` lays out
all-gathers of TACOS over time, span by span (Fig. 10 and 14).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.config import StudyConfig
from experiments.figures import grouped_bars, panels
from experiments.limits import Natural
from experiments.study import ConfigError, Row, Rows
from experiments.tacos.measure import (
    Comparison,
    NetworkConfig,
    Run,
    format_size,
    out_of_reach,
    overtaken,
)
from jaxcoll.bounds import step_bound
from jaxcoll.draw import link_loads
from jaxcoll.draw.bandwidth import FAINT, INK, PALETTE
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Tacos, synthesize

OURS = "tacos"
BINS = 100  # a run of TACOS
BUSY = 99.0  # percent of the links, from which on all count as busy
# From this ratio of bandwidths on, the axis is logarithmic.
_DECADES = 30


def bandwidths(config: Comparison) -> list[Row]:
    """Bandwidth by network, algorithm and size; returns the rows."""
    return _publish(config, _bandwidth, _draw_bandwidths, overtaken)


def loads(config: Comparison) -> list[Row]:
    """Bytes on every link, when basic algorithms meet networks that are not their own."""
    return _publish(config, _load, lambda runs: _draw_heat(runs, _megabytes, "MB on the link"))


def busy_links(config: Comparison) -> list[Row]:
    """Share of the time that every link is busy, on unequal links."""

    def percent(run: Run) -> np.ndarray:
        return 100 * run.timeline.utilization()

    return _publish(config, _load, lambda runs: _draw_heat(runs, percent, "busy (%)"))


def busy_over_time(config: Comparison) -> list[Row]:
    """Share of the links that are busy, over the time of an all_reduce."""
    return _publish(config, _busy, _draw_busy, overtaken)


def _publish(
    config: Comparison,
    row: Callable[[Run, Sequence[Run]], Row],
    draw: Callable[[Sequence[Run]], Figure],
    faster: Callable[[Sequence[Run]], list[str]] = lambda runs: [],
) -> list[Row]:
    """Measures, prints and publishes; returns the rows.

    Args:
        row: the row of a run, which may be compared with the others.
        draw: the figure of all.
        faster: a remark for each case in which another algorithm is faster than TACOS.
    """
    runs, refused = config.measure()
    rows = [row(run, runs) for run in runs] + [claim.row(runs) for claim in config.claims]
    remarks = [*config.footnotes(), *refused, *out_of_reach(runs), *faster(runs)]
    return config.publish(config.title, rows, figure=draw(runs), remarks=remarks)


# ---------------------------------------------------------------------- bandwidth


def _timed(run: Run) -> dict[str, Any]:
    """The run and its simulated time."""
    return {
        "network": run.network,
        "size": format_size(run.nbytes),
        "algorithm": run.algorithm,
        "chunks": run.chunks,
        "us": run.time * 1e6,
    }


def _bandwidth(run: Run, runs: Sequence[Run]) -> Row:
    return {
        **_timed(run),
        "GB/s": run.timeline.algbw / 1e9,
        "% of ideal": run.of_ideal,
        "% of ideal by load": run.of_ideal_by_load,
        **({"auto took": run.chosen} if run.chosen else {}),
    }


def _draw_bandwidths(runs: Sequence[Run]) -> Figure:
    """Bars by network where there is one size, otherwise lines over sizes, a panel a network."""
    label = "all_reduce, algbw (GB/s)"
    speeds: dict[str, dict[str, dict[int, float]]] = {}
    for run in runs:
        lines = speeds.setdefault(run.network, {})
        lines.setdefault(run.algorithm, {})[run.nbytes] = run.timeline.algbw / 1e9
        lines.setdefault("ideal", {})[run.nbytes] = run.nbytes / run.ideal / 1e9
    if len(sizes := {run.nbytes for run in runs}) == 1:
        bars = {
            network: {name: line[run_size] for name, line in lines.items() for run_size in line}
            for network, lines in speeds.items()
        }
        return grouped_bars({f"{format_size(*sizes)} a rank": bars}, label=label, log=True)
    reached = [run.timeline.algbw for run in runs]
    return panels(
        speeds,
        label_x="buffer of a rank",
        label_y=label,
        columns=min(4, len(speeds)),
        written=format_size,
        log_y=max(reached) > _DECADES * min(reached),
    )


# ---------------------------------------------------------------- links, from source to destination


def _megabytes(run: Run) -> np.ndarray:
    """Megabytes that each link carries, float64 of shape (links,)."""
    return link_loads(run.schedule).sum(axis=1) / 100 * run.nbytes / 1e6


def _load(run: Run, runs: Sequence[Run]) -> Row:
    """How evenly a run loads the links."""
    load = _megabytes(run)
    return {
        "network": run.network,
        "size": format_size(run.nbytes),
        "algorithm": run.algorithm,
        "chunks": run.chunks,
        "busiest link MB": float(load.max()),
        "mean link MB": float(load.mean()),
        "busiest / mean": float(load.max() / load.mean()),
        "idle links %": float(100 * (load == 0).mean()),
        "us": run.time * 1e6,
        "links busy %": 100 * run.timeline.mean_utilization(),
        "% of ideal": run.of_ideal,
    }


def _draw_heat(runs: Sequence[Run], heat: Callable[[Run], np.ndarray], label: str) -> Figure:
    """A panel a run, networks below one another, each on the scale of its hottest link."""
    networks = list(dict.fromkeys(run.network for run in runs))
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    size = (1.2 + 2.3 * len(algorithms), 0.6 + 2.3 * len(networks))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(networks), len(algorithms), squeeze=False)
    for panel in panels.flat:
        panel.axis("off")
    for line, network in zip(panels, networks, strict=True):
        shown = [run for run in runs if run.network == network]
        heats = [heat(run) for run in shown]
        norm = Normalize(0, max(float(each.max()) for each in heats))
        for run, each in zip(shown, heats, strict=True):
            axes = line[algorithms.index(run.algorithm)]
            _draw_links(axes, run, each, norm)
            axes.set_title(f"{network}: {run.algorithm}", fontsize=9, color=INK)
        bar = figure.colorbar(ScalarMappable(norm, "inferno"), ax=list(line), pad=0.01)
        bar.set_label(label, fontsize=8, color=INK)
    return figure


def _draw_links(axes: Axes, run: Run, heat: np.ndarray, norm: Normalize) -> None:
    topology = run.schedule.topology
    total = np.zeros((topology.num_vertices, topology.num_vertices))
    count = np.zeros_like(total)
    np.add.at(total, (topology.src, topology.dst), heat)
    np.add.at(count, (topology.src, topology.dst), 1)
    cells = np.ma.masked_array(total / np.maximum(count, 1), mask=count == 0)
    colors = colormaps["inferno"].with_extremes(bad="#4a4f57")  # no link, unlike an idle one
    axes.axis("on")
    axes.imshow(cells, cmap=colors, norm=norm, interpolation="nearest")
    axes.set_xlabel("destination", fontsize=8, color=INK)
    axes.set_ylabel("source", fontsize=8, color=INK)
    axes.tick_params(labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))


# ---------------------------------------------------------------------- links busy over time


def _busy(run: Run, runs: Sequence[Run]) -> Row:
    """How busy the links are during a run."""
    share = _busy_share(run, BINS)
    ours = next(
        each.time
        for each in runs
        if (each.network, each.nbytes, each.algorithm) == (run.network, run.nbytes, OURS)
    )
    return {
        **_timed(run),
        "times TACOS's": run.time / ours,
        "links busy, mean %": 100 * run.timeline.mean_utilization(),
        "links busy, most %": float(share.max()),
        f"time over {BUSY:g} % busy, %": float(100 * (share >= BUSY).mean()),
        "% of ideal": run.of_ideal,
    }


def _busy_share(run: Run, bins: int) -> np.ndarray:
    """Percent of all links' time that is used, in each of equal intervals; shape (bins,)."""
    return 100 * run.timeline.utilization(bins).mean(axis=0)


def _draw_busy(runs: Sequence[Run]) -> Figure:
    """A panel a network and size; time is in runs of TACOS."""
    cases = list(dict.fromkeys((run.network, run.nbytes) for run in runs))
    figure = Figure(figsize=(1.2 + 3.6 * len(cases), 3.6), layout="constrained")
    panels = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    for axes, case in zip(panels, cases, strict=True):
        shown = [run for run in runs if (run.network, run.nbytes) == case]
        unit = next(run.time for run in shown if run.algorithm == OURS)
        for run in shown:
            bins = math.ceil(BINS * run.time / unit)
            axes.stairs(
                _busy_share(run, bins),
                np.linspace(0, run.time / unit, bins + 1),
                color=PALETTE[algorithms.index(run.algorithm) % len(PALETTE)],
                linewidth=1.6,
                label=run.algorithm,
            )
        axes.set_title(f"{case[0]}, {format_size(case[1])}", fontsize=10, color=INK)
        axes.set_xlabel("time (runs of TACOS)", color=INK)
        axes.set_ylim(0, 105)
        axes.grid(color=FAINT, linewidth=0.5)
    panels[0].set_ylabel("links busy (%)", color=INK)
    panels[-1].legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


# Chunks are numbered on drawings of at most so many links.
_MOST_NUMBERED = 24


@dataclasses.dataclass(frozen=True)
class TimeSteps(StudyConfig):
    """All-gathers with one chunk per rank."""

    title: str
    networks: Mapping[str, NetworkConfig]  # by name
    paper: Mapping[str, int]  # time spans that the paper says a network takes
    seed: Natural

    def __post_init__(self) -> None:
        unknown = {*self.paper} - {*self.networks}
        if not self.networks or unknown:
            raise ConfigError(f"paper names no network of this study: {', '.join(unknown)}")


def time_steps(config: TimeSteps) -> list[Row]:
    """Synthesizes, prints and publishes; returns the rows."""
    schedules = {
        name: synthesize(network.build(), "all_gather", Tacos(), chunks=1, seed=config.seed)
        for name, network in config.networks.items()
    }
    rows = Rows(row(name, schedule, config.paper) for name, schedule in schedules.items())
    return config.publish(config.title, rows, figure=draw(schedules))


def row(name: str, schedule: Schedule, paper: Mapping[str, int]) -> Row:
    """How many time spans a schedule takes and how many links are matched in each."""
    links = schedule.topology.num_links
    matched = np.diff(schedule.step_ptr)
    return {
        "network": name,
        "ranks": schedule.topology.num_ranks,
        "links": links,
        "spans": schedule.num_steps,
        "bound": step_bound(schedule.topology, schedule.collective),
        "paper spans": paper.get(name),
        "links matched in each": ", ".join(map(str, matched.tolist())),
        "matched %": float(100 * matched.sum() / (links * schedule.num_steps)),
    }


def draw(schedules: Mapping[str, Schedule]) -> Figure:
    """Each network expanded in time (Sec. IV-A): ranks over spans, matches coloured by chunk."""
    spans = [schedule.num_steps for schedule in schedules.values()]
    ranks = max(schedule.topology.num_ranks for schedule in schedules.values())
    size = (1.0 + 1.9 * sum(spans) + 0.8 * len(spans), 1.2 + 0.75 * ranks)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(spans), squeeze=False, width_ratios=[s + 0.3 for s in spans])[0]
    for axes, (name, schedule) in zip(panels, schedules.items(), strict=True):
        _draw_expanded(axes, schedule)
        axes.set_title(name, fontsize=10, color=INK)
    panels[0].set_ylabel("rank", color=INK)
    return figure


def _draw_expanded(axes: Axes, schedule: Schedule) -> None:
    topology = schedule.topology
    for span in range(schedule.num_steps):
        for u, v in zip(topology.src, topology.dst, strict=True):
            axes.plot([span, span + 1], [u, v], color=FAINT, linewidth=0.8, zorder=1)
    sends = zip(schedule.step, schedule.src, schedule.dst, schedule.chunk, strict=True)
    for step, u, v, chunk in sends:
        color = PALETTE[chunk % len(PALETTE)]
        style = "-" if chunk < len(PALETTE) else "--"
        axes.plot([step, step + 1], [u, v], color=color, linestyle=style, linewidth=1.8, zorder=2)
        if topology.num_links <= _MOST_NUMBERED:
            _number(axes, step + 0.22, u + 0.22 * (v - u), int(chunk), color)
    ranks = range(topology.num_ranks)
    for span in range(schedule.num_steps + 1):
        axes.scatter([span] * topology.num_ranks, ranks, s=60, c="white", edgecolors=INK, zorder=4)
    axes.set_xticks(
        range(schedule.num_steps + 1), [f"t={t}" for t in range(len(schedule.step_ptr))]
    )
    axes.set_yticks(ranks)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _number(axes: Axes, x: float, y: float, chunk: int, color: str) -> None:
    host = {"boxstyle": "circle,pad=0.15", "facecolor": color, "linewidth": 0}
    axes.text(
        x, y, str(chunk), ha="center", va="center", fontsize=7, color="white", zorder=3, bbox=host
    )
