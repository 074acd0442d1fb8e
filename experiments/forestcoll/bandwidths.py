"""Bandwidth of ForestColl and others on clusters (Fig. 4.10 to 4.12)."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Annotated, Any

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
from experiments.limits import Natural, Rising, among
from experiments.study import ConfigError, Rows
from jaxcoll.bounds import cut_bound
from jaxcoll.draw import format_bytes
from jaxcoll.kinds import kind_of

OURS = "ForestColl"
# Panel (cluster and kind) to algorithm to bytes to GB/s.
Curves = Mapping[tuple[str, str], Mapping[str, Mapping[int, float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperGain(PaperValue):
    """The percentage by which the paper measured ForestColl to be faster."""

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
            raise ConfigError(
                f"clusters and kinds must not be empty, and algorithms must have {OURS}"
            )


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
