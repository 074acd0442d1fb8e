"""Heat maps of the load of links, from source to destination (Fig. 1 and 15b)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.study import Row, publish
from experiments.tacos.claims import out_of_reach
from experiments.tacos.comparison import Comparison
from experiments.tacos.measure import Run, format_size
from jaxcoll.draw import link_loads
from jaxcoll.draw.style import INK


def publish_heat(config: Comparison, heat: Callable[[Run], np.ndarray], label: str) -> list[Row]:
    """Measures, prints and publishes; returns the rows.

    Args:
        heat: of every link of a run, float64 of shape (links,).
        label: the quantity shown as heat, with its unit.
    """
    runs, refused = config.measure()
    rows = [row(run) for run in runs] + [claim.row(runs) for claim in config.claims]
    remarks = [*config.footnotes(), *refused, *out_of_reach(runs)]
    figure, notes = draw(runs, heat, label), config.notes
    publish(config.title, rows, config.results, figure=figure, notes=notes, remarks=remarks)
    return rows


def megabytes(run: Run) -> np.ndarray:
    """Megabytes that each link carries, float64 of shape (links,)."""
    return link_loads(run.schedule).sum(axis=1) / 100 * run.nbytes / 1e6


def row(run: Run) -> Row:
    """How evenly a run loads the links."""
    load = megabytes(run)
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


def draw(runs: Sequence[Run], heat: Callable[[Run], np.ndarray], label: str) -> Figure:
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
