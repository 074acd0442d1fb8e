"""Tables 3.4 and A.1: Pareto-efficient topologies of degree 4, built, beside the printed ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.config import above, at_least
from experiments.direct_connect.notation import (
    built_cost,
    half_to_even,
    parse,
    predicted,
    rate_bound,
)
from experiments.direct_connect.printed import Printed, ours_beside_theirs
from experiments.errors import CheckError, ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import least_cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow

BOUND = "bound"  # in the place of a topology


@dataclasses.dataclass(frozen=True)
class Point(Printed):
    """A row of the table: a topology, or "bound".

    Attributes:
        ranks: of the topology.
    """

    ranks: int


@dataclasses.dataclass(frozen=True)
class Config:
    """The table.

    Attributes:
        size: the preset, "ci" or "paper".
        degree: links out of every rank.
        points: its rows.
        alpha_us: microseconds a step.
        buffer_us: M/B in microseconds.
        most_rates: ranks up to which all-to-all rates are bounded on any topology; on one known to
            be vertex-transitive they are at any size.
        tolerance: relative gap of their bounds.
        times: whether times of all_reduce and all_to_all are shown.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    degree: int
    points: tuple[Point, ...]
    alpha_us: float
    buffer_us: float
    most_rates: int
    tolerance: float
    times: bool
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("degree", self.degree, 1)
        at_least("alpha_us", self.alpha_us, 0)
        for name in ("buffer_us", "tolerance"):
            above(name, getattr(self, name), 0)
        if not self.points:
            raise ConfigError("needs points")


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each topology: cost as built, diameter, all-to-all rate."""
    rows = [
        {"N": point.ranks, "topology": point.topology, **point.beside(_ours(config, point))}
        for point in config.points
    ]
    column, label = ("all_reduce us",) * 2 if config.times else ("T_B", "T_B in M/B")
    figure = ours_beside_theirs(rows, column, label)
    table = "Table 3.4" if config.times else "Table A.1"
    title = f"{table}: Pareto-efficient topologies of degree {config.degree}"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


def _ours(config: Config, point: Point) -> dict[str, Any]:
    n, degree = point.ranks, config.degree
    gap = None
    if point.topology == BOUND:
        found, rate = least_cost(n, degree), float(rate_bound(n, degree))
        diameter = found.steps
    else:
        construction = parse(point.topology)
        digraph = construction.digraph()
        if (digraph.size, digraph.degree) != (n, degree):
            raise ConfigError(f"{point.topology} is {digraph}, not {n} ranks of degree {degree}")
        found, diameter, rate = built_cost(construction), digraph.diameter, None
        if found != predicted(construction).cost:
            raise CheckError(f"{point.topology} costs {found} as built, another than predicted")
        if n <= config.most_rates or digraph.vertex_transitive:
            flow = digraph_flow(n, digraph.tails, digraph.heads, tolerance=config.tolerance)
            rate, gap = float(flow.lower), round(100 * flow.gap, 3)
    ours: dict[str, Any] = {
        "T_L": found.steps,
        "T_B": half_to_even(found.inverse_bandwidth),
        "diameter": diameter,
        "MCF": rate,
        "MCF gap %": gap,
    }
    if config.times:
        steps, bandwidth = found.steps * config.alpha_us, float(found.inverse_bandwidth)
        ours["all_reduce us"] = 2 * (steps + bandwidth * config.buffer_us)
        ours["all_to_all us"] = config.buffer_us * degree / n / rate if rate else None
    return {**ours, "exact T_B": str(found.inverse_bandwidth)}
