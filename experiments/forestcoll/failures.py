"""Failures: one to eight wires of a torus, or network links of hosts, fail at random.

Joint trees sum and copy at the same time; ForestColl sums in one phase and copies in the next, and
beside it stands what two phases one after the other take at best; the ring goes around the hole, on
circles through all ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.figures import panels
from experiments.limits import Count, Natural, at_least
from experiments.study import ConfigError, Rows
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.kinds import kind_of
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
class Failures(StudyConfig):
    """The study."""

    tori: Mapping[str, int]  # sides of each torus, with the chunks per shard of joint trees
    hosts: Mapping[str, int]  # numbers of DGX H100, with the chunks per shard
    failures: tuple[Natural, ...]  # how many wires fail at the same time
    draws: Count  # random choices of the wires, for each number
    nbytes: Count  # of a rank's buffer
    seed: Natural  # of the choices
    exact: bool  # whether bounds are the truest known

    def __post_init__(self) -> None:
        if not (self.tori or self.hosts) or not self.failures:
            raise ConfigError("networks and numbers of failures must not be empty")
        for name, chunks in {**self.tori, **self.hosts}.items():
            at_least(f"chunks of {name}", chunks, 1)

    def networks(self) -> list[tuple[Topology, int]]:
        """Every network with its chunks."""
        tori = [
            (topologies.torus(*map(int, sides.split("x"))), chunks)
            for sides, chunks in self.tori.items()
        ]
        # As schedules use them: their switches forward only.
        hosts = [
            (topologies.dgx_h100(int(n), nvls=False), chunks) for n, chunks in self.hosts.items()
        ]
        return [*tori, *hosts]


def failures(config: Failures) -> list[dict[str, Any]]:
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
    title = "All-reduce after random failures: bandwidth kept, in % of the whole network's"
    return config.publish(title, rows, figure=figure(rows))


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


def seconds(topology: Topology, chunks: int, config: Failures) -> dict[str, float]:
    """Seconds of an all_reduce by each way, and the bound."""
    phases = kind_of("all_reduce").phases
    forests = [_simulated(ForestColl(), topology, k, config.nbytes) for k in _FOREST_CHUNKS]
    return {
        BOUND: bound(topology, "all_reduce", config.nbytes, exact=config.exact).time,
        JOINT: _simulated(JointTrees(config.nbytes), topology, chunks, config.nbytes),
        FOREST: min(forests),
        PHASES: sum(bound(topology, kind.name, config.nbytes).time for kind in phases),
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
