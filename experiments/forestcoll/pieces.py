"""ForestColl's pipeline: many pieces cost latency, few delay the first; high trees cost both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.errors import ConfigError
from experiments.forestcoll.networks import ClusterConfig
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.draw import format_bytes
from jaxcoll.simulation import simulate
from jaxcoll.synth import forest
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Config:
    """The curves.

    Attributes:
        size: the preset, "ci" or "paper".
        clusters: by name.
        pieces: into which every tree is cut, rising.
        nbytes: sizes of a rank's buffer, rising.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    clusters: Mapping[str, ClusterConfig]
    pieces: tuple[int, ...]
    nbytes: tuple[int, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        for name, values in (("nbytes", self.nbytes), ("pieces", self.pieces)):
            if not values or sorted(set(values)) != list(values) or values[0] < 1:
                raise ConfigError(f"{name} must rise from 1 or more, got {values}")
        if not self.clusters:
            raise ConfigError("needs clusters")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each cluster, forest and size: percent of the optimum by number of pieces."""
    rows, curves = [], {}
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
