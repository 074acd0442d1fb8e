"""Pieces of ForestColl's trees: many cost latency, few delay the first; high trees cost both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.config import StudyConfig
from experiments.figures import panels
from experiments.forestcoll.algorithms import ClusterConfig
from experiments.limits import Filled, Rising
from experiments.study import Rows
from jaxcoll.draw import format_bytes
from jaxcoll.simulation import simulate
from jaxcoll.synth import forest
from jaxcoll.verifier import verify


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
