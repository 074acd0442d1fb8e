"""ForestColl, Fig. 4.14: seconds to make a schedule, and its throughput, up to 1024 ranks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least, one_of
from experiments.errors import ConfigError
from experiments.forestcoll.algorithms import ClusterConfig, NotApplicable
from experiments.forestcoll.tables import PAPER_STAGES
from experiments.study import Rows, publish
from jaxcoll.bounds.throughput import optimum
from jaxcoll.collective import Collective
from jaxcoll.draw.bandwidth import FAINT, INK, MARKERS, PALETTE
from jaxcoll.simulation import steady_seconds
from jaxcoll.synth import MultiTree, Ring, StepMilp, Synthesizer, Tacos, forest
from jaxcoll.topology import Topology

# Sec. 4.6.5: 512 GPUs in "4min".
_PAPER_MINUTES_512 = 4


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure.

    Attributes:
        clusters: smallest of each fabric first.
        algorithms: names in ``ALGORITHMS``, and the most ranks that each is run on.
        seed: of the synthesizers.
    """

    clusters: tuple[ClusterConfig, ...]
    algorithms: Mapping[str, int]
    seed: int

    def __post_init__(self) -> None:
        for name, ranks in self.algorithms.items():
            one_of("algorithms", name, tuple(ALGORITHMS))
            at_least(f"algorithms.{name}", ranks, 1)
        if not self.clusters or not self.algorithms:
            raise ConfigError("needs clusters and algorithms")
        at_least("seed", self.seed, 0)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each cluster and algorithm."""
    rows, compiled = Rows(), set()
    for cluster in config.clusters:
        topology = cluster.build()
        n, best = topology.num_ranks, optimum(topology)
        for name, most in config.algorithms.items():
            if n > most:
                continue
            make = ALGORITHMS[name]
            row: dict[str, Any] = {"fabric": cluster.fabric, "ranks": n, "algorithm": name}
            try:
                if name not in compiled:
                    make(cluster, topology, config.seed)
                    compiled.add(name)
                start = time.perf_counter()
                inverse = make(cluster, topology, config.seed)
                row["seconds"] = time.perf_counter() - start
                row["paper seconds"] = _paper_seconds(name, cluster, topology)
                row["algbw GB/s"] = float(1 / inverse) / 1e9
                row["% of optimum"] = float(100 * best.inverse / n / inverse)
            except NotApplicable as error:
                row["refused"] = str(error).partition(":")[0]
            rows.append(row)
    title = "ForestColl, Fig. 4.14: all_gather schedules of large clusters"
    publish(title, rows, config.results, figure=draw(rows), notes=config.notes)
    return rows


def _paper_seconds(name: str, cluster: ClusterConfig, topology: Topology) -> float | None:
    if name != "ForestColl":
        return None
    if topology.num_ranks == 512 and cluster.fabric == "a100":
        return _PAPER_MINUTES_512 * 60.0
    return sum(PAPER_STAGES[topology.name]) if topology.name in PAPER_STAGES else None


# ---------------------------------------------------------------------- algorithms

# From a cluster and its network to seconds per byte of the gathered result, on the busiest link.
Maker = Callable[[ClusterConfig, Topology, int], Fraction]


def _forestcoll(cluster: ClusterConfig, topology: Topology, seed: int) -> Fraction:
    return forest(topology).inverse / topology.num_ranks


def _scheduled(of: Callable[[ClusterConfig, Topology], tuple[Synthesizer, int]]) -> Maker:
    def make(cluster: ClusterConfig, topology: Topology, seed: int) -> Fraction:
        synthesizer, chunks = of(cluster, topology)
        collective = Collective("all_gather", topology.num_ranks, chunks)
        return steady_seconds(synthesizer.synthesize(topology, collective, seed))

    return make


def _rings(cluster: ClusterConfig, topology: Topology) -> tuple[Synthesizer, int]:
    return Ring(bidirectional=False, circles=cluster.circles()), cluster.ranks


def _multitree(cluster: ClusterConfig, topology: Topology) -> tuple[Synthesizer, int]:
    unit = float(topology.bandwidth.min())  # Sec. 4.6.5
    return MultiTree(unit=unit, nearest_first=cluster.fabric == "mi250"), 1


ALGORITHMS: Mapping[str, Maker] = {
    "ForestColl": _forestcoll,
    "MultiTree": _scheduled(_multitree),
    "vendor ring": _scheduled(_rings),
    "TACOS": _scheduled(lambda *_: (Tacos(nbytes=1e9), 1)),
    "step MILP": _scheduled(lambda *_: (StepMilp(nbytes=1e9, seconds=20.0, most_ranks=16), 1)),
}


# ---------------------------------------------------------------------- drawing


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A column for each fabric: seconds above, bandwidth below."""
    fabrics = list(dict.fromkeys(row["fabric"] for row in rows))
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    figure = Figure(figsize=(4.2 * len(fabrics) + 0.8, 6.4), layout="constrained")
    grid = figure.subplots(2, len(fabrics), squeeze=False, sharex="col")
    for column, fabric in zip(grid.T, fabrics, strict=True):
        for axes, value in zip(column, ("seconds", "algbw GB/s"), strict=True):
            for i, name in enumerate(names):
                mine = [r for r in rows if (r["fabric"], r["algorithm"]) == (fabric, name)]
                mine = [r for r in mine if value in r]
                axes.plot(
                    [r["ranks"] for r in mine],
                    [r[value] for r in mine],
                    color=PALETTE[i],
                    marker=MARKERS[i],
                    label=name,
                )
            if value == "seconds":
                paper = [r for r in rows if r["fabric"] == fabric and r.get("paper seconds")]
                axes.plot(
                    [r["ranks"] for r in paper],
                    [r["paper seconds"] for r in paper],
                    "*",
                    color=INK,
                    label="ForestColl, paper",
                )
                axes.set_yscale("log")
                axes.set_title(fabric.upper(), fontsize=10, color=INK)
            else:
                axes.set_ylim(bottom=0)
                axes.set_xlabel("ranks", color=INK)
            axes.set_xscale("log", base=2)
            ticks = sorted({r["ranks"] for r in rows if r["fabric"] == fabric})
            axes.set_xticks(ticks, map(str, ticks))
            axes.grid(color=FAINT, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("wall time to make it (s)", color=INK)
    grid[1, 0].set_ylabel("algbw by busiest link (GB/s)", color=INK)
    grid[0, 0].legend(frameon=False, labelcolor=INK, fontsize=8)
    return figure
