"""All-reduce after random failures: the bandwidth kept by joint trees, two phases and rings.

One to eight wires of a torus, or network links of hosts, fail at random. Joint trees sum and copy
at the same time; ForestColl sums in one phase and copies in the next, and beside it stands what two
phases one after the other take at best; the ring goes around the hole, on circles through all
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least
from experiments.errors import ConfigError
from experiments.plots import panels
from experiments.study import Rows, publish
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.simulation import simulate
from jaxcoll.synth import ForestColl, JointTrees, Ring, Synthesizer
from jaxcoll.topology import Topology

BOUND, JOINT, FOREST = "bound", "joint trees", "ForestColl"
PHASES, RING = "two phases at best", "ring"
_RING_CHUNKS = 8  # more than the circles of any network here
# Chunks per shard of ForestColl, of which the faster count is taken: one has few large trees whose
# loads are uneven, the other the longer pipeline.
_FOREST_CHUNKS = (16, 64)


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The study.

    Attributes:
        tori: sides of each torus, with the chunks per shard of joint trees.
        hosts: numbers of DGX H100, with the chunks per shard.
        failures: how many wires fail at the same time.
        draws: random choices of the wires, for each number.
        nbytes: of a rank's buffer.
        seed: of the choices.
        exact: whether bounds are the truest known.
    """

    tori: Mapping[str, int]
    hosts: Mapping[str, int]
    failures: tuple[int, ...]
    draws: int
    nbytes: int
    seed: int
    exact: bool

    def __post_init__(self) -> None:
        if not (self.tori or self.hosts) or not self.failures:
            raise ConfigError("needs networks and numbers of failures")
        for name, chunks in {**self.tori, **self.hosts}.items():
            at_least(f"chunks of {name}", chunks, 1)
        for count in self.failures:
            at_least("failures", count, 0)
        at_least("draws", self.draws, 1)
        at_least("nbytes", self.nbytes, 1)
        at_least("seed", self.seed, 0)

    def networks(self) -> list[tuple[Topology, int]]:
        """Every network with its chunks."""
        tori = [
            (topologies.torus(*map(int, sides.split("x"))), chunks)
            for sides, chunks in self.tori.items()
        ]
        hosts = [(topologies.dgx_h100(int(n)), chunks) for n, chunks in self.hosts.items()]
        return [*tori, *hosts]


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each network and number of failures: percent of the whole network's bandwidth."""
    rows = Rows()
    for number, (whole, chunks) in enumerate(config.networks()):
        least = bound(whole, "all_reduce", config.nbytes).time
        for count in config.failures:
            kept: dict[str, list[float]] = {}
            for draw in range(config.draws):
                random = np.random.default_rng([config.seed, number, count, draw])
                times = seconds(after(whole, count, random), chunks, config)
                for name, time in times.items():
                    kept.setdefault(name, []).append(100 * least / time)
            row: dict[str, Any] = {"network": str(whole.name), "failures": count}
            row |= {f"{name} %": mean(values) for name, values in kept.items()}
            ratios = [b / j for b, j in zip(kept[BOUND], kept[JOINT], strict=True)]
            rows.append({**row, "draws": config.draws, "worst joint / bound": max(ratios)})
    publish(
        "All-reduce after random failures: bandwidth kept, in % of the whole network's",
        rows, config.results, figure=figure(rows), notes=config.notes,
    )  # fmt: skip
    return rows


def after(whole: Topology, count: int, random: np.random.Generator) -> Topology:
    """The network less some wires, drawn again where it would fall apart."""
    pairs = zip(whole.src.tolist(), whole.dst.tolist(), strict=True)
    # Of hosts the links to the network, whose vertex is the last one.
    last = whole.num_vertices - 1
    wires = [(u, v) for u, v in pairs if u < v and (whole.is_direct or v == last)]
    while True:
        chosen = [wires[i] for i in random.choice(len(wires), count, replace=False)]
        try:
            return whole.without([pair for u, v in chosen for pair in ((u, v), (v, u))])
        except TopologyError:
            continue


def seconds(topology: Topology, chunks: int, config: Config) -> dict[str, float]:
    """Seconds of an all_reduce by each way, and the bound."""
    phases = ("reduce_scatter", "all_gather")
    forests = [_simulated(ForestColl(), topology, k, config.nbytes) for k in _FOREST_CHUNKS]
    return {
        BOUND: bound(topology, "all_reduce", config.nbytes, exact=config.exact).time,
        JOINT: _simulated(JointTrees(config.nbytes), topology, chunks, config.nbytes),
        FOREST: min(forests),
        PHASES: sum(bound(topology, kind, config.nbytes).time for kind in phases),
        RING: _simulated(Ring(), topology, _RING_CHUNKS, config.nbytes),
    }


def _simulated(maker: Synthesizer, topology: Topology, chunks: int, nbytes: int) -> float:
    collective = Collective("all_reduce", topology.num_ranks, chunks)
    return simulate(maker.synthesize(topology, collective), nbytes).time


def figure(rows: list[dict[str, Any]]) -> Figure:
    """Bandwidth kept over failures, a panel for each network."""
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        lines = curves.setdefault(row["network"], {})
        for name in (BOUND, JOINT, FOREST, PHASES, RING):
            lines.setdefault(name, {})[row["failures"]] = row[f"{name} %"]
    return panels(curves, label_x="wires that failed", label_y="bandwidth kept (%)", in_bytes=False)
