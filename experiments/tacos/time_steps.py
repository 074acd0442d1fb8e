"""All-gathers of TACOS laid out over time, span by span (Fig. 10 and 14)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least
from experiments.errors import ConfigError
from experiments.study import Row, Rows, publish
from experiments.tacos.measure import NetworkConfig
from jaxcoll.bounds import step_bound
from jaxcoll.draw.bandwidth import FAINT, INK, PALETTE
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Tacos, synthesize

# Chunks are numbered on drawings of at most so many links.
_MOST_NUMBERED = 24


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """All-gathers with one chunk per rank.

    Attributes:
        title: the figure of the paper.
        networks: by name.
        paper: time spans that the paper says a network takes.
        seed: of everything random.
    """

    title: str
    networks: Mapping[str, NetworkConfig]
    paper: Mapping[str, int]
    seed: int

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0)
        unknown = {*self.paper} - {*self.networks}
        if not self.networks or unknown:
            raise ConfigError(f"paper names no network of this study: {', '.join(unknown)}")


def run(config: Config) -> list[Row]:
    """Synthesizes, prints and publishes; returns the rows."""
    schedules = {
        name: synthesize(network.build(), "all_gather", Tacos(), chunks=1, seed=config.seed)
        for name, network in config.networks.items()
    }
    rows = Rows(row(name, schedule, config.paper) for name, schedule in schedules.items())
    publish(config.title, rows, config.results, figure=draw(schedules), notes=config.notes)
    return rows


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
