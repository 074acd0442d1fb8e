"""Bandwidth of ForestColl and others: on clusters (Fig. 4.10 to 4.12), by pieces, after failures.

Many pieces of a tree cost latency, few delay the first; high trees cost both.

Failures: one to eight wires of a torus, or network links of hosts, fail at random. Joint trees sum
and copy at the same time; ForestColl sums in one phase and copies in the next, and beside it stands
what two phases one after the other take at best; the ring goes around the hole, on circles through
all ranks.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from statistics import mean
from typing import Annotated, Any

import numpy as np
from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig
from experiments.figures import panels
from experiments.forestcoll.algorithms import (
    KINDS,
    NAMES,
    Case,
    ClusterConfig,
    NotApplicable,
    fastest_times,
)
from experiments.limits import Count, Filled, Natural, Rising, among, at_least
from experiments.study import ConfigError, Rows
from jaxcoll import topologies
from jaxcoll.bounds import bound, cut_bound
from jaxcoll.collective import Collective
from jaxcoll.draw import format_bytes
from jaxcoll.errors import TopologyError
from jaxcoll.kinds import kind_of
from jaxcoll.simulation import simulate
from jaxcoll.synth import ForestColl, JointTrees, Ring, Synthesizer, forest
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

OURS = "ForestColl"
# Panel (cluster and kind) to algorithm to bytes to GB/s.
Curves = Mapping[tuple[str, str], Mapping[str, Mapping[int, float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperGain(PaperValue):
    """By how many percent the paper measured ForestColl to be faster."""

    # cluster, kind: of the panel
    cluster: str
    kind: Annotated[str, among(KINDS)]
    # Algorithms; the fastest of them at each size counts
    over: tuple[Annotated[str, among(NAMES)], ...]
    nbytes: Natural  # at this size; the mean over all where 0

    def row(self, curves: Curves) -> dict[str, Any]:
        """Our value beside it; empty where we have no such run."""
        lines = curves.get((self.cluster, self.kind), {})
        others = [lines[name] for name in self.over if name in lines]
        ours = None
        if others:
            gains = {
                nbytes: 100 * (speed / max(line[nbytes] for line in others) - 1)
                for nbytes, speed in lines[OURS].items()
            }
            ours = gains.get(self.nbytes) if self.nbytes else statistics.fmean(gains.values())
        size = format_bytes(self.nbytes) if self.nbytes else "mean of all sizes"
        return {
            "cluster": self.cluster,
            "collective": self.kind,
            "algorithm": f"{OURS} over {', '.join(self.over)}, {size}",
            **self.beside(ours, "% faster"),
        }


@dataclasses.dataclass(frozen=True)
class Bandwidths(StudyConfig):
    """The figure."""

    title: str
    clusters: Mapping[str, ClusterConfig]  # by name
    kinds: tuple[Annotated[str, among(KINDS)], ...]
    algorithms: tuple[Annotated[str, among(NAMES)], ...]
    pieces: Rising  # that are tried, smallest first
    nbytes: Rising  # sizes of a rank's buffer, rising
    claims: tuple[PaperGain, ...]  # the numbers that the paper prints
    seed: Natural  # of the synthesizers

    def __post_init__(self) -> None:
        if OURS not in self.algorithms or not self.clusters or not self.kinds:
            raise ConfigError(f"needs clusters, kinds, and {OURS} among the algorithms")


def bandwidths(config: Bandwidths) -> list[dict[str, Any]]:
    """A row for each cluster, kind and algorithm, and one for each number that the paper prints."""
    curves, rows, refused = {}, Rows(), {}
    for name, cluster in config.clusters.items():
        topology = cluster.build()
        for kind in config.kinds:
            case = Case(cluster, topology, kind, config.pieces, config.nbytes[-1], config.seed)
            lines = curves[name, kind] = {}
            for algorithm in config.algorithms:
                try:
                    times = fastest_times(algorithm, case, config.nbytes)
                except NotApplicable as error:
                    refused[algorithm, name, kind] = str(error)
                    continue
                lines[algorithm] = {size: size / time / 1e9 for size, time in times.items()}
                most = _optimum(case)
                rows.append(
                    {
                        "cluster": name,
                        "collective": kind,
                        "algorithm": algorithm,
                        **{format_bytes(size): speed for size, speed in lines[algorithm].items()},
                        "optimum GB/s": most,
                        "% of optimum": 100 * lines[algorithm][case.nbytes] / most,
                    }
                )
    rows += [claim.row(curves) for claim in config.claims]
    figure = panels(
        {f"{kind}, {name}": lines for (name, kind), lines in curves.items()},
        label_x="buffer of a rank",
        label_y="algbw (GB/s)",
        columns=min(3, len(curves)),
    )
    remarks = dict.fromkeys(f"{a} on {n}: {text}" for (a, n, _), text in refused.items())
    return config.publish(config.title, rows, figure=figure, remarks=[*remarks])


def _optimum(case: Case) -> float:
    """GB/s that no schedule beats; for all_reduce, no reduce_scatter and all_gather after it."""
    phases = len(kind_of(case.kind).phases)
    gather = cut_bound(case.topology, "all_gather", case.nbytes).time
    return case.nbytes / (phases * gather) / 1e9


# ---------------------------------------------------------------------- pieces of a tree


@dataclasses.dataclass(frozen=True)
class Pieces(StudyConfig):
    """The curves."""

    clusters: Filled[Mapping[str, ClusterConfig]]  # by name
    pieces: Rising  # into which every tree is cut, rising
    nbytes: Rising  # sizes of a rank's buffer, rising


def pieces_of_trees(config: Pieces) -> list[dict[str, Any]]:
    """A row for each cluster, forest and size: percent of the optimum by number of pieces."""
    rows, curves = Rows(), {}
    for name, cluster in config.clusters.items():
        topology = cluster.build()
        for way, guess in (("guesses first", True), ("exact way", False)):
            flow = forest(topology, guess=guess)
            best = float(flow.inverse) / topology.num_ranks
            reached: dict[int, dict[int, float]] = {nbytes: {} for nbytes in config.nbytes}
            for pieces in config.pieces:
                schedule = flow.to_schedule(pieces)
                verify(schedule)
                for nbytes in config.nbytes:
                    time = simulate(schedule, nbytes).time
                    reached[nbytes][pieces] = 100 * best * nbytes / time
            panel = f"{name}, height {flow.height}"
            curves[panel] = {format_bytes(nbytes): reached[nbytes] for nbytes in config.nbytes}
            rows += [
                {
                    "cluster": name,
                    "trees": way,
                    "height": flow.height,
                    "mean height": flow.mean_height,
                    "buffer": format_bytes(nbytes),
                    **{f"% with {pieces}": share for pieces, share in shares.items()},
                    "best pieces": _first_of_most(shares),
                }
                for nbytes, shares in reached.items()
            ]
    figure = panels(
        curves,
        label_x="pieces of a tree",
        label_y="algbw in percent of the optimum",
        in_bytes=False,
    )
    title = "ForestColl: an all_gather in pieces, percent of the optimum that simulation reaches"
    return config.publish(title, rows, figure=figure)


def _first_of_most(shares: Mapping[int, float]) -> int:
    return max(shares, key=lambda pieces: (shares[pieces], -pieces))


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
            raise ConfigError("needs networks and numbers of failures")
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
