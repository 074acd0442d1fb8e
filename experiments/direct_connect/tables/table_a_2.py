"""Table A.2: distance-regular graphs of degree 4, their T_L beside the Moore bounds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.direct_connect.printed import Printed, ours_beside_theirs
from experiments.errors import ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import bandwidth_optimum, bidirectional_moore_steps, moore_steps
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies.generative import distance_regular, is_reverse_symmetric
from jaxcoll.topologies.generative.distance_regular_graphs import TABLE_A2_SIZES

DEGREE = 4


@dataclasses.dataclass(frozen=True)
class Graph(Printed):
    """A row of the table.

    Attributes:
        ranks: its vertices, by which it is known.
    """

    ranks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks not in TABLE_A2_SIZES:
            raise ConfigError(f"no graph of Table A.2 has {self.ranks} ranks")


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        graphs: its rows.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    graphs: tuple[Graph, ...]
    notes: tuple[str, ...]
    results: Path


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each graph, built."""
    rows = []
    for graph in config.graphs:
        digraph = distance_regular(DEGREE, graph.ranks)
        found, n = bfb_cost(digraph), digraph.size
        least, least_both_ways = moore_steps(n, DEGREE), bidirectional_moore_steps(n, DEGREE)
        ours = {
            "T_L": found.steps,
            "T_L*": least,
            "T_L**": least_both_ways,
            "T_B": float(found.inverse_bandwidth),
            "bandwidth-optimal": found.inverse_bandwidth == bandwidth_optimum(n),
            "reverse-symmetric": is_reverse_symmetric(digraph),
        }
        rows.append({"topology": graph.topology, "N": n, **graph.beside(ours)})
    title = "Table A.2: distance-regular graphs of degree 4"
    figure = ours_beside_theirs(rows, "T_L", "T_L in alpha")
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
