"""Bandwidth of ForestColl and of others on clusters (Fig. 4.10 to 4.12), and by pieces of a tree.

Many pieces cost latency, few delay the first; high trees cost both.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from experiments.config import PaperValue, StudyConfig, at_least, one_of
from experiments.errors import ConfigError
from experiments.forestcoll.algorithms import (
    KINDS,
    NAMES,
    Case,
    ClusterConfig,
    NotApplicable,
    fastest_times,
)
from experiments.plots import panels
from experiments.study import Rows, publish
from jaxcoll.bounds import cut_bound
from jaxcoll.draw import format_bytes
from jaxcoll.simulation import simulate
from jaxcoll.synth import forest
from jaxcoll.verifier import verify

OURS = "ForestColl"
# Panel (cluster and kind) to algorithm to bytes to GB/s.
Curves = Mapping[tuple[str, str], Mapping[str, Mapping[int, float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperGain(PaperValue):
    """By how many percent the paper measured ForestColl to be faster.

    Attributes:
        cluster, kind: of the panel.
        over: algorithms; the fastest of them at each size counts.
        nbytes: at this size; the mean over all where 0.
    """

    cluster: str
    kind: str
    over: tuple[str, ...]
    nbytes: int

    def __post_init__(self) -> None:
        one_of("claims.kind", self.kind, KINDS)
        for name in self.over:
            one_of("claims.over", name, NAMES)
        at_least("claims.nbytes", self.nbytes, 0)
        super().__post_init__()

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
    """The figure.

    Attributes:
        title: of the table.
        clusters: by name.
        kinds: of collectives.
        algorithms: names in ``NAMES``.
        pieces: that are tried, smallest first.
        nbytes: sizes of a rank's buffer, rising.
        claims: the numbers that the paper prints.
        seed: of the synthesizers.
    """

    title: str
    clusters: Mapping[str, ClusterConfig]
    kinds: tuple[str, ...]
    algorithms: tuple[str, ...]
    pieces: tuple[int, ...]
    nbytes: tuple[int, ...]
    claims: tuple[PaperGain, ...]
    seed: int

    def __post_init__(self) -> None:
        for kind in self.kinds:
            one_of("kinds", kind, KINDS)
        for name in self.algorithms:
            one_of("algorithms", name, NAMES)
        if OURS not in self.algorithms or not self.clusters or not self.kinds:
            raise ConfigError(f"needs clusters, kinds, and {OURS} among the algorithms")
        for name, values in (("nbytes", self.nbytes), ("pieces", self.pieces)):
            if not values or sorted(set(values)) != list(values) or values[0] < 1:
                raise ConfigError(f"{name} must rise from 1 or more, got {values}")
        at_least("seed", self.seed, 0)


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
    notes = config.notes
    publish(config.title, rows, config.results, figure=figure, notes=notes, remarks=[*remarks])
    return rows


def _optimum(case: Case) -> float:
    """GB/s that no schedule beats; for all_reduce, no reduce_scatter and all_gather after it."""
    phases = 2 if case.kind == "all_reduce" else 1
    gather = cut_bound(case.topology, "all_gather", case.nbytes).time
    return case.nbytes / (phases * gather) / 1e9


# ---------------------------------------------------------------------- pieces of a tree


@dataclasses.dataclass(frozen=True)
class Pieces(StudyConfig):
    """The curves.

    Attributes:
        clusters: by name.
        pieces: into which every tree is cut, rising.
        nbytes: sizes of a rank's buffer, rising.
    """

    clusters: Mapping[str, ClusterConfig]
    pieces: tuple[int, ...]
    nbytes: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in (("nbytes", self.nbytes), ("pieces", self.pieces)):
            if not values or sorted(set(values)) != list(values) or values[0] < 1:
                raise ConfigError(f"{name} must rise from 1 or more, got {values}")
        if not self.clusters:
            raise ConfigError("needs clusters")


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
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def _first_of_most(shares: Mapping[int, float]) -> int:
    return max(shares, key=lambda pieces: (shares[pieces], -pieces))
