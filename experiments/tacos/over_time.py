"""Share of the links that are busy, over the time of an all_reduce (Fig. 16b and 18)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.study import Row, publish
from experiments.tacos.claims import out_of_reach, overtaken
from experiments.tacos.comparison import Comparison
from experiments.tacos.measure import Run, format_size
from jaxcoll.draw.style import FAINT, INK, PALETTE

Config = Comparison
OURS = "tacos"
BINS = 100  # a run of TACOS
BUSY = 99.0  # percent of the links, from which on all count as busy


def run(config: Comparison) -> list[Row]:
    """Measures, prints and publishes; returns the rows."""
    runs, refused = config.measure()
    ours = {(run.network, run.nbytes): run.time for run in runs if run.algorithm == OURS}
    rows = [row(run, ours[run.network, run.nbytes]) for run in runs]
    rows += [claim.row(runs) for claim in config.claims]
    remarks = [*config.footnotes(), *refused, *out_of_reach(runs), *overtaken(runs)]
    figure, notes = draw(runs), config.notes
    publish(config.title, rows, config.results, figure=figure, notes=notes, remarks=remarks)
    return rows


def row(run: Run, ours: float) -> Row:
    """How busy the links are during a run; ``ours``: seconds TACOS takes."""
    share = busy(run, BINS)
    return {
        "network": run.network,
        "size": format_size(run.nbytes),
        "algorithm": run.algorithm,
        "chunks": run.chunks,
        "us": run.time * 1e6,
        "times TACOS's": run.time / ours,
        "links busy, mean %": 100 * run.timeline.mean_utilization(),
        "links busy, most %": float(share.max()),
        f"time over {BUSY:g} % busy, %": float(100 * (share >= BUSY).mean()),
        "% of ideal": run.of_ideal,
    }


def busy(run: Run, bins: int) -> np.ndarray:
    """Percent of all links' time that is used, in each of equal intervals; shape (bins,)."""
    return 100 * run.timeline.utilization(bins).mean(axis=0)


def draw(runs: Sequence[Run]) -> Figure:
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
                busy(run, bins),
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
