"""Table A.3: the families, each by members that are built, and the table's statements on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.direct_connect.notation import base_cost, is_optimal, parse
from experiments.direct_connect.printed import ours_beside_theirs
from experiments.errors import ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import moore_steps
from jaxcoll.synth.direct_connect.searched import searched_all_gather
from jaxcoll.topologies.generative import is_reverse_symmetric

PROPERTIES = (
    "reverse-symmetric",
    "bandwidth-optimal",
    "Moore-optimal",
    "BFB schedule",
    "self-loops",
    "multi-edges",
)


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of a family.

    Attributes:
        family: as the table calls it.
        topology: in the table's notation.
        steps: T_L as the table gives it for the member; 0 where it gives none.
        printed: the table's statements on the member, by property; properties that it states for
            some members only are left out for others.
    """

    family: str
    topology: str
    steps: int
    printed: Mapping[str, bool]

    def __post_init__(self) -> None:
        unknown = [name for name in self.printed if name not in PROPERTIES]
        if unknown:
            raise ConfigError(f"unknown property {unknown[0]!r}; known: {', '.join(PROPERTIES)}")


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        members: one or more of each family.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    members: tuple[Member, ...]
    notes: tuple[str, ...]
    results: Path


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each member, built: its properties, and those that the table says otherwise."""
    rows = []
    for member in config.members:
        digraph = parse(member.topology).digraph()
        found = base_cost(digraph)
        row: dict[str, Any] = {
            "family": member.family,
            "topology": member.topology,
            "N": digraph.size,
            "d": digraph.degree,
            "T_L": found.steps,
            "paper T_L": member.steps or None,
            "T_L*": moore_steps(digraph.size, digraph.degree),
            "T_B": float(found.inverse_bandwidth),
        }
        holds = (
            is_reverse_symmetric(digraph),
            is_optimal(found, digraph.size),
            found.steps == row["T_L*"],
            searched_all_gather(digraph) is None,
            digraph.self_loops > 0,
            digraph.has_parallel_arcs,
        )
        has: dict[str, bool] = dict(zip(PROPERTIES, holds, strict=True))
        differs = [name for name, said in member.printed.items() if has[name] != said]
        row["as printed"] = len(member.printed) - len(differs)
        row["paper as printed"] = len(member.printed)
        row["has"] = ", ".join(name for name in PROPERTIES if has[name])
        row["differs"] = ", ".join(differs)
        rows.append(row)
    title = "Table A.3: families of topologies, by members that are built"
    figure = ours_beside_theirs(rows, "T_L", "T_L in alpha", log=True)
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
