"""The dissertation's printed numbers and its notation, beside ours.

The dissertation's printed numbers beside ours, its cost model, and its baselines.

Topologies in the notation of Tables 3.3 and A.3, and what their all_gathers cost.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import grouped_bars
from experiments.limits import NotNegative, Positive, above
from experiments.study import ConfigError
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost
from jaxcoll.draw.bandwidth import FAINT, INK
from jaxcoll.finder.construction import Construction
from jaxcoll.synth.direct_connect import bfb_cost
from jaxcoll.synth.direct_connect.expansions import (
    CartesianPower,
    DegreeExpansion,
    line_graph_power_cost,
    product_cost,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather, searched_all_gather
from jaxcoll.topologies.generative import Digraph
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of a printed table."""

    topology: str  # its first column, in the notation of Tables 3.3 and A.3
    printed: Mapping[str, float]  # numbers above 0, by column

    def __post_init__(self) -> None:
        for column, value in self.printed.items():
            above(f"printed.{column} of {self.topology}", value, 0)

    def beside(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Each of our columns, and the paper's next to it where the paper has one.

        Raises:
            ConfigError: a printed column that we have none for.
        """
        unknown = [column for column in self.printed if column not in ours]
        if unknown:
            raise ConfigError(
                f"printed of {self.topology} has {unknown[0]!r}; known: {', '.join(ours)}"
            )
        row = {}
        for column, value in ours.items():
            row[column] = value
            if column in self.printed:
                row[f"paper {column}"] = self.printed[column]
        return row


def plain_axes(axes: Axes, label_x: str, label_y: str) -> None:
    """Labels and a faint grid, as all figures have."""
    axes.set_xlabel(label_x, color=INK)
    axes.set_ylabel(label_y, color=INK)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def ours_beside_theirs(
    rows: Sequence[Mapping[str, Any]], column: str, label: str, *, log: bool = False
) -> Figure:
    """A column of a table as bars, each beside the paper's."""
    bars = {
        f"{row['topology']} ({place + 1})": {
            whose: row[each]
            for whose, each in (("ours", column), ("paper", f"paper {column}"))
            if row.get(each) is not None
        }
        for place, row in enumerate(rows)
        if row.get(column) is not None
    }
    return grouped_bars({"": bars}, label=label, log=log)


# ---------------------------- times of all_reduces on the paper's baselines (Secs. 3.8.2 and A.1.2)


MIB = 2**20  # 1 MB of the paper


@dataclasses.dataclass(frozen=True)
class Machine:
    """Constants of the cost model."""

    alpha_us: NotNegative  # microseconds a step
    constant_us: NotNegative  # microseconds a collective
    bandwidth_gbit: Positive  # B, Gbit/s of all links of a rank together

    def buffer_us(self, nbytes: float) -> float:
        """M/B in microseconds."""
        return nbytes * 8e-3 / self.bandwidth_gbit

    def time_us(self, cost: Cost, nbytes: float, phases: int = 2) -> float:
        """An all_reduce, by all_gathers of a cost; or one phase of it."""
        moved = float(cost.inverse_bandwidth) * self.buffer_us(nbytes)
        return phases * (cost.steps * self.alpha_us + moved) + self.constant_us


def shifted_ring(n: int) -> Cost:
    """Two rings, both ways, each with a part of the data: n - 1 steps."""
    return Cost(n - 1, bandwidth_optimum(n))


def shifted_bfb_ring(n: int) -> Cost:
    """The same rings by BFB: floor(n / 2) steps."""
    return Cost(n // 2, bandwidth_optimum(n))


def traditional_torus(side: int) -> Cost:
    """A square torus, a ring for each dimension: 2 (side - 1) steps."""
    return Cost(2 * (side - 1), bandwidth_optimum(side * side))


def double_tree_us(
    machine: Machine, n: int, nbytes: float, *, at_once: bool, phases: int = 2
) -> float:
    """Double binary trees, half of the data each, with the best number of pieces.

    A piece descends floor(log2 n) levels, of one step where a rank sends to both children at once
    and of two where it does not; then a piece arrives every step. Links carry half of the data at
    B/4. Pieces are powers of two: so the paper's 1434 us at 1024 ranks, of two steps a level.
    """
    height = (n.bit_length() - 1) * (1 if at_once else 2)
    moved = 2 * machine.buffer_us(nbytes)
    best = min(
        (height + pieces - 1) * (machine.alpha_us + moved / pieces)
        for pieces in (2**i for i in range(15))
    )
    return phases * best + machine.constant_us


_NAMES = {
    "Pi": "generalized_kautz",
    "DBJ": "de_bruijn",
    "DBJMod": "modified_de_bruijn",
    "DistReg": "distance_regular",
    "UniRing": "unidirectional_ring",
    "BiRing": "bidirectional_ring",
    "DC": "dense_circulant",
}


def _hamming(n: int, q: int) -> Construction:
    return Construction("power", (n,), (Construction("complete", (q,)),))


# How bases are written; the groups of a pattern are the arguments.
_BASES: tuple[tuple[re.Pattern, Callable[..., Construction]], ...] = (
    (re.compile("Diamond"), lambda: Construction("diamond")),
    (
        re.compile(r"K(\d+),(\d+)"),
        lambda d, _: Construction("complete_bipartite", (int(d),)),
    ),
    (re.compile(r"K(\d+)"), lambda n: Construction("complete", (int(n),))),
    (re.compile(r"H\((\d+),(\d+)\)"), lambda n, q: _hamming(int(n), int(q))),
    (
        re.compile(r"C\((\d+),\{([\d,]+)\}\)"),
        lambda n, offsets: Construction("circulant", (int(n), _integers(offsets))),
    ),
    (
        re.compile(r"Cay\((\d+),(\d+),(\d+);([\d,]+)\)"),
        lambda *given: Construction("cayley", (*map(int, given[:3]), _integers(given[3]))),
    ),
    (
        re.compile(rf"({'|'.join(sorted(_NAMES, key=len, reverse=True))})\(([\d,]+)\)"),
        lambda name, arguments: Construction(_NAMES[name], _integers(arguments)),
    ),
)
_LINE_GRAPH = re.compile(r"L(?:\^(\d+))?\(")
_TIMES = re.compile(r"([\^*])(\d+)")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def parse(text: str) -> Construction:
    """A topology from its notation, as in ``L^2(Diamond^2)`` or ``UniRing(1,4) x BiRing(2,8)``.

    ``L^k(G)`` is a line graph, ``G*n`` a degree expansion, ``G^n`` a Cartesian power and
    ``G x H`` a product.

    Raises:
        ConfigError: anything else.
    """
    found, rest = _product(text, text)
    if rest:
        raise _unreadable(text, rest)
    return found


def _product(rest: str, whole: str) -> tuple[Construction, str]:
    part, rest = _factor(rest, whole)
    parts = [part]
    while rest.startswith(" x "):
        part, rest = _factor(rest.removeprefix(" x "), whole)
        parts.append(part)
    return (part if len(parts) == 1 else Construction("product", (), tuple(parts))), rest


def _factor(rest: str, whole: str) -> tuple[Construction, str]:
    found, rest = _operand(rest, whole)
    while times := _TIMES.match(rest):
        operation = {"^": "power", "*": "degree"}[times[1]]
        found = Construction(operation, (int(times[2]),), (found,))
        rest = rest[times.end() :]
    return found, rest


def _operand(rest: str, whole: str) -> tuple[Construction, str]:
    line = _LINE_GRAPH.match(rest)
    if line or rest.startswith("("):
        inner, rest = _product(rest[line.end() if line else 1 :], whole)
        if not rest.startswith(")"):
            raise _unreadable(whole, rest)
        inner = Construction("line_graph", (int(line[1] or 1),), (inner,)) if line else inner
        return inner, rest[1:]
    for pattern, make in _BASES:
        if base := pattern.match(rest):
            return make(*base.groups()), rest[base.end() :]
    raise _unreadable(whole, rest)


def _unreadable(whole: str, rest: str) -> ConfigError:
    return ConfigError(
        f"cannot read the topology {whole!r} from {rest!r} on; write it like L^2(Diamond^2), "
        f"K3*2, C(16,{{3,4}}) or UniRing(1,4)^2 x BiRing(2,8)"
    )


# ---------------------------------------------------------------------- costs


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Size, degree and cost of the all_gather of a topology, by theorems from its bases'."""

    size: int
    degree: int
    cost: Cost  # exact; an upper bound of T_B for line graphs (Theorem 7)


def predicted(construction: Construction) -> Predicted:
    """The cost of the all_gather that is built up from the bases' schedules, not built.

    Raises:
        ConfigError: a product of factors that no theorem covers.
    """
    if not construction.parts:
        digraph = construction.digraph()
        return Predicted(digraph.size, digraph.degree, base_cost(digraph))
    if construction.operation == "product":
        return _predicted_product(construction)
    base = predicted(construction.parts[0])
    size, degree, (times,) = base.size, base.degree, construction.arguments
    if construction.operation == "line_graph":
        found = line_graph_power_cost(base.cost, size, degree, times)
        return Predicted(size * degree**times, degree, found)
    is_power = construction.operation == "power"
    expansion = CartesianPower(times) if is_power else DegreeExpansion(times)
    return Predicted(*expansion.size(size, degree), expansion.cost(base.cost, size, degree))


def _predicted_product(construction: Construction) -> Predicted:
    factors = [part.digraph() for part in construction.parts]
    found = product_cost(factors, [bfb_cost(factor) for factor in factors])
    if found is None:
        raise ConfigError(f"Theorem 13 does not cover the factors of {construction}")
    size = 1
    for factor in factors:
        size *= factor.size
    return Predicted(size, sum(factor.degree for factor in factors), found)


def base_cost(digraph: Digraph) -> Cost:
    """T_L and T_B of the best known all_gather of a base."""
    if searched_all_gather(digraph) is None:
        return bfb_cost(digraph)
    return cost(base_all_gather(digraph), digraph.degree)


def built_cost(construction: Construction) -> Cost:
    """T_L and T_B of the all_gather as built up from the bases' schedules, verified."""
    digraph, schedule = construction.all_gather()
    verify(schedule)
    return cost(schedule, digraph.degree)


# ---------------------------------------------------------------------- bounds and printing


def rate_bound(size: int, degree: int) -> Fraction:
    """The all-to-all rate that no digraph exceeds: links over the least sum of distances.

    As many vertices as the degree allows are at distance 1, 2 and so on of each.
    """
    reached, ahead, distance, total = 1, degree, 1, 0
    while reached < size:
        total += distance * min(ahead, size - reached)
        reached, ahead, distance = reached + ahead, ahead * degree, distance + 1
    return Fraction(degree, total)


def half_to_even(value: Fraction, digits: int = 3) -> float:
    """A fraction as the paper prints it: 21/16 is 1.312."""
    return float(round(value, digits))


def is_optimal(found: Cost, size: int) -> bool:
    """Whether an all_gather is bandwidth-optimal."""
    return found.inverse_bandwidth == bandwidth_optimum(size)
