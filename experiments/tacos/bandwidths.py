"""Bandwidth of all-reduces, by network, algorithm and size (Fig. 2a, 2b, 15a, 16a, 17a, 17b)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study import Row, publish
from experiments.tacos.claims import out_of_reach, overtaken
from experiments.tacos.comparison import Comparison
from experiments.tacos.measure import Run, format_size
from jaxcoll.draw.style import FAINT, INK, MARKERS, PALETTE

Config = Comparison

# From this ratio of bandwidths on, the axis is logarithmic.
_DECADES = 30


def run(config: Comparison) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    runs, refused = config.measure()
    rows = [row(each) for each in runs]
    rows += [claim.row(runs) for claim in config.claims]
    publish(
        config.title,
        rows,
        config.results,
        figure=draw(runs, config.nbytes),
        notes=config.notes,
        remarks=[*config.footnotes(), *refused, *out_of_reach(runs), *overtaken(runs)],
    )
    return rows


def row(run: Run) -> Row:
    """One measurement."""
    return {
        "network": run.network,
        "size": format_size(run.nbytes),
        "algorithm": run.algorithm,
        "chunks": run.chunks,
        "us": run.time * 1e6,
        "GB/s": run.timeline.algbw / 1e9,
        "% of ideal": run.of_ideal,
        "% of ideal by load": run.of_ideal_by_load,
        **({"auto took": run.chosen} if run.chosen else {}),
    }


def draw(runs: Sequence[Run], sizes: Sequence[int]) -> Figure:
    """Bars by network where there is one size, otherwise lines over sizes, a panel a network."""
    networks = list(dict.fromkeys(run.network for run in runs))
    algorithms = list(dict.fromkeys(run.algorithm for run in runs))
    if len(sizes) == 1:
        figure = Figure(figsize=(2.0 + 1.9 * len(networks), 4.0), layout="constrained")
        axes = figure.subplots()
        _draw_bars(axes, runs, networks, algorithms)
        axes.set_ylabel(f"all_reduce of {format_size(sizes[0])}, algbw (GB/s)", color=INK)
        axes.legend(frameon=False, labelcolor=INK, fontsize=8, ncols=2)
        return figure
    figure = Figure(figsize=(1.4 + 3.9 * len(networks), 4.2), layout="constrained")
    panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
    for axes, network in zip(panels, networks, strict=True):
        _draw_lines(axes, [run for run in runs if run.network == network], algorithms, sizes)
        axes.set_title(network, fontsize=10, color=INK)
    reached = [run.timeline.algbw for run in runs]
    if max(reached) > _DECADES * min(reached):
        panels[0].set_yscale("log")  # for all, as they share it
    else:
        panels[0].set_ylim(0)
    panels[0].set_ylabel("all_reduce, algbw (GB/s)", color=INK)
    panels[0].legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure


def _draw_bars(
    axes: Axes, runs: Sequence[Run], networks: Sequence[str], algorithms: Sequence[str]
) -> None:
    width = 0.8 / len(algorithms)
    for i, algorithm in enumerate(algorithms):
        mine = [run for run in runs if run.algorithm == algorithm]
        at = [networks.index(run.network) + (i + 0.5) * width - 0.4 for run in mine]
        height = [run.timeline.algbw / 1e9 for run in mine]
        hatch = "//" if i >= len(PALETTE) else None
        axes.bar(at, height, width, color=PALETTE[i % len(PALETTE)], label=algorithm, hatch=hatch)
    for place, network in enumerate(networks):
        best = next(run for run in runs if run.network == network)
        level = best.nbytes / best.ideal / 1e9
        label = "ideal" if place == 0 else ""
        axes.hlines(level, place - 0.45, place + 0.45, color=INK, linestyle=":", label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(networks)), networks)
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_lines(
    axes: Axes, runs: Sequence[Run], algorithms: Sequence[str], sizes: Sequence[int]
) -> None:
    for i, algorithm in enumerate(algorithms):
        mine = [run for run in runs if run.algorithm == algorithm]
        axes.plot(
            [run.nbytes for run in mine],
            [run.timeline.algbw / 1e9 for run in mine],
            color=PALETTE[i % len(PALETTE)],
            marker=MARKERS[i % len(MARKERS)],
            linestyle="-" if i < len(PALETTE) else "--",
            label=algorithm,
        )
    least = {run.nbytes: run.nbytes / run.ideal / 1e9 for run in runs}
    axes.plot(list(least), list(least.values()), color=INK, linestyle=":", label="ideal")
    axes.set_xscale("log")
    axes.set_xticks(np.asarray(sizes), [format_size(size) for size in sizes], fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("buffer of a rank", color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
