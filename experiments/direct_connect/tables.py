"""The dissertation's tables of direct-connect topologies: 3.4 to 3.6 and A.1 to A.3."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.direct_connect.notation import parse
from experiments.direct_connect.paper import Printed, half_to_even, ours_beside_theirs
from experiments.direct_connect.predictions import (
    base_cost,
    built_cost,
    is_optimal,
    predicted,
    rate_bound,
)
from experiments.figures import panels
from experiments.limits import Count, Filled, NotNegative, Positive, among
from experiments.study import CheckError, ConfigError, Rows
from experiments.timing import cpu_timed
from jaxcoll.bounds.moore import (
    bandwidth_optimum,
    bidirectional_moore_steps,
    cost,
    least_cost,
    moore_steps,
)
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Bfb, Synthesizer
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.direct_connect.searched import searched_all_gather
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topologies.generative import distance_regular, is_reverse_symmetric
from jaxcoll.topologies.generative.distance_regular_graphs import TABLE_A2_SIZES
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Table35(StudyConfig):
    """The table."""

    points: tuple[Printed, ...]


def table_3_5(config: Table35) -> list[dict[str, Any]]:
    """A row for each topology: T_L of its all_reduce, by BFB and as built from its base."""
    rows = Rows()
    for point in config.points:
        construction = parse(point.topology)
        digraph = construction.digraph()
        built, bfb = built_cost(construction), bfb_cost(digraph)
        ours = {
            # The better of BFB on the expanded network and of the schedule of the base, expanded.
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
    return config.publish(title, rows, figure=figure)


# ------------------------------------------------------------ Table 3.6: BFB on hypercubes and tori


FAMILIES = ("hypercube", "torus")


@dataclasses.dataclass(frozen=True)
class CubeOrTorus:
    """A network of Fig. 3.10 and Table 3.6."""

    family: Annotated[str, among(FAMILIES)]  # a torus has two equal sides
    ranks: int  # a power of two, or a square

    def __post_init__(self) -> None:
        whole = 2**self._bits if self.family == "hypercube" else self._side**2
        if self.ranks < 4 or whole != self.ranks:
            wanted = "a power of two" if self.family == "hypercube" else "a square"
            raise ConfigError(
                f"ranks of a {self.family} must be {wanted} of at least 4, got {self.ranks}"
            )

    @property
    def _bits(self) -> int:
        return self.ranks.bit_length() - 1

    @property
    def _side(self) -> int:
        return math.isqrt(self.ranks)

    def build(self) -> Topology:
        """The network."""
        if self.family == "hypercube":
            return hypercube(self._bits)
        return torus(self._side, self._side)

    @property
    def diameter(self) -> int:
        """Of a hypercube its dimensions, of a torus the sum of floor(d_i / 2)."""
        return self._bits if self.family == "hypercube" else 2 * (self._side // 2)


@dataclasses.dataclass(frozen=True)
class Network(CubeOrTorus):
    """A row of the table."""

    bfb: Positive  # printed seconds of BFB; where "<0.01" is printed, 0.01
    # sccl, taccl: printed seconds of runs that ended with a schedule
    sccl: tuple[float, ...]
    taccl: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Table36(StudyConfig):
    """The table."""

    networks: tuple[Network, ...]
    largest: int  # most ranks that a schedule is synthesized for

    def __post_init__(self) -> None:
        if not any(network.ranks <= self.largest for network in self.networks):
            raise ConfigError(
                f"no network has at most {self.largest} ranks (largest); name a smaller one"
            )


def table_3_6(config: Table36) -> list[dict[str, Any]]:
    """A row for each network: cost of the verified all_gather, and seconds to make it."""
    rows = Rows()
    for network in config.networks:
        if network.ranks > config.largest:
            continue
        topology = network.build()
        synthesized(topology)  # compiled before it is timed
        schedule, seconds = cpu_timed(lambda: synthesized(topology))  # noqa: B023
        found = cost(schedule)
        rows.append(
            {
                "topology": f"{network.family} {network.ranks}",
                "ranks": network.ranks,
                "T_L": found.steps,
                "least T_L": network.diameter,
                "T_B": float(found.inverse_bandwidth),
                "least T_B": float(bandwidth_optimum(network.ranks)),
                "optimal": found.inverse_bandwidth == bandwidth_optimum(network.ranks),
                "BFB s": seconds,
                "paper BFB s": network.bfb,
                "SCCL s, printed": min(network.sccl, default=None),
                "TACCL s, printed": min(network.taccl, default=None),
            }
        )
    title = "Table 3.6, Fig. 3.10: BFB all_gathers of hypercubes and tori"
    return config.publish(title, rows, figure=_draw_costs(rows))


def synthesized(
    topology: Topology, synthesizer: Synthesizer | None = None, chunks: int = 0
) -> Schedule:
    """A verified all_gather, by default BFB's with the fewest chunks that lose no bandwidth."""
    synthesizer, chunks = synthesizer or Bfb(), chunks or Bfb.chunks(topology)
    collective = Collective("all_gather", topology.num_ranks, chunks)
    schedule = synthesizer.synthesize(topology, collective)
    verify(schedule)
    return schedule


def _draw_costs(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Seconds, and T_L with its least value, over ranks."""
    lines = {
        "seconds": {
            "BFB": "BFB s",
            "BFB, paper": "paper BFB s",
            "SCCL, paper": "SCCL s, printed",
            "TACCL, paper": "TACCL s, printed",
        },
        "T_L in alpha": {"T_L": "T_L", "least": "least T_L"},
    }
    curves = {
        f"{family}: {what}": {
            name: {
                row["ranks"]: row[column]
                for row in rows
                if row["topology"].startswith(family) and row[column] is not None
            }
            for name, column in columns.items()
        }
        for what, columns in lines.items()
        for family in FAMILIES
    }
    return panels(curves, label_x="ranks", label_y="", in_bytes=False, log_y=True)


# --------------------------------------------------- Table A.2: distance-regular graphs of degree 4


DEGREE = 4


@dataclasses.dataclass(frozen=True)
class Graph(Printed):
    """A row of the table."""

    ranks: int  # its vertices, by which it is known

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ranks not in TABLE_A2_SIZES:
            raise ConfigError(f"no graph of Table A.2 has {self.ranks} ranks")


@dataclasses.dataclass(frozen=True)
class TableA2(StudyConfig):
    """The table."""

    graphs: tuple[Graph, ...]


def table_a_2(config: TableA2) -> list[dict[str, Any]]:
    """A row for each graph, built."""
    rows = Rows()
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
    return config.publish(title, rows, figure=figure)


# ---------------------------------------------------------------------- Table A.3: the families


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
    """A member of a family."""

    family: str  # as the table calls it
    topology: str  # in the table's notation
    steps: int  # T_L as the table gives it for the member; 0 where it gives none
    # The table's statements on the member, by property; properties that it states for some members
    # only are left out for others
    printed: Mapping[str, bool]

    def __post_init__(self) -> None:
        unknown = [name for name in self.printed if name not in PROPERTIES]
        if unknown:
            raise ConfigError(f"unknown property {unknown[0]!r}; known: {', '.join(PROPERTIES)}")


@dataclasses.dataclass(frozen=True)
class TableA3(StudyConfig):
    """The table."""

    members: tuple[Member, ...]  # one or more of each family


def table_a_3(config: TableA3) -> list[dict[str, Any]]:
    """A row for each member, built: its properties, and those that the table says otherwise."""
    rows = Rows()
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
    return config.publish(title, rows, figure=figure)


# ------------------------------------------------------------- Tables 3.4 and A.1: Pareto-efficient


BOUND = "bound"  # in the place of a topology


@dataclasses.dataclass(frozen=True)
class Point(Printed):
    """A row of the table: a topology, or "bound"."""

    ranks: int  # of the topology


@dataclasses.dataclass(frozen=True)
class Frontiers(StudyConfig):
    """The table."""

    degree: Count  # links out of every rank
    points: Filled[tuple[Point, ...]]
    alpha_us: NotNegative  # microseconds a step
    buffer_us: Positive  # M/B in microseconds
    # Ranks up to which all-to-all rates are bounded on any topology; on one known to be
    # vertex-transitive they are at any size
    most_rates: int
    tolerance: Positive  # relative gap of their bounds
    times: bool  # whether times of all_reduce and all_to_all are shown


def frontiers(config: Frontiers) -> list[dict[str, Any]]:
    """A row for each topology: cost as built, diameter, all-to-all rate."""
    rows = Rows(
        {"N": point.ranks, "topology": point.topology, **point.beside(_ours(config, point))}
        for point in config.points
    )
    column, label = ("all_reduce us",) * 2 if config.times else ("T_B", "T_B in M/B")
    figure = ours_beside_theirs(rows, column, label)
    table = "Table 3.4" if config.times else "Table A.1"
    title = f"{table}: Pareto-efficient topologies of degree {config.degree}"
    return config.publish(title, rows, figure=figure)


def _ours(config: Frontiers, point: Point) -> dict[str, Any]:
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
        # The theorem that gives the cost, against the schedule: either may be wrong.
        if found != predicted(construction).cost:
            raise CheckError(f"{point.topology} costs {found} as built, not what is predicted")
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
