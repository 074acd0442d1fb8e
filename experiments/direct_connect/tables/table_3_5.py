"""Table 3.5: the topologies of degree 4 that the paper's testbed of up to 12 ranks was wired as."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.direct_connect.notation import built_cost, is_optimal, parse
from experiments.direct_connect.printed import Printed, ours_beside_theirs
from experiments.study import publish
from jaxcoll.bounds.moore import least_cost
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.topologies.generative import is_reverse_symmetric


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        points: its rows.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    points: tuple[Printed, ...]
    notes: tuple[str, ...]
    results: Path


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each topology: T_L of its all_reduce, by BFB and as built from its base."""
    rows = []
    for point in config.points:
        construction = parse(point.topology)
        digraph = construction.digraph()
        built, bfb = built_cost(construction), bfb_cost(digraph)
        ours = {
            "T_L": 2 * min(bfb.steps, built.steps),
            "T_L as expanded": 2 * built.steps,
            "least T_L": least_cost(digraph.size, digraph.degree, "all_reduce").steps,
            "T_B": 2 * float(min(bfb.inverse_bandwidth, built.inverse_bandwidth)),
            "bandwidth-optimal": is_optimal(bfb, digraph.size),
            "reverse-symmetric": is_reverse_symmetric(digraph),
        }
        rows.append({"N": digraph.size, "topology": point.topology, **point.beside(ours)})
    title = "Table 3.5: all_reduces on topologies of degree 4"
    figure = ours_beside_theirs(rows, "T_L", "T_L of all_reduce in alpha")
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
