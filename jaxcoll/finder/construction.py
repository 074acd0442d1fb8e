"""Constructions: how a direct-connect topology is made of bases and expansions, and its properties.

A construction is built on demand; diameters and bounds of all-to-all rates follow from those of its
parts, in closed form or measured.

- Diameters of a product add up, and a line graph has one more than its base, unless that is a ring.
- The rate of a product of N ranks is the least of f_i N_i / N over its factors: a flow that
  corrects one coordinate after the other has it, and lengths that count one coordinate only prove
  that none has more. With every arc several times the rate is as many times that of the digraph.
- The rate of a line graph of degree d is at most 1/d of that of its base G: of d^2 pairs of arcs,
  the flow over an arc of G enters it, as a vertex of L(G), by its d arcs.
- ``kautz_flow`` bounds the rate of generalized Kautz digraphs, ``shortest_flow`` that of others.
  For few ranks the linear program is solved.

Costs of bases that no formula gives are measured once by BFB and kept in ``measured.json``, made by
``python -m jaxcoll.finder.construction`` in about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from jaxcoll import fields
from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.errors import FormatError, TopologyError, shown
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, reporting
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.synth.direct_connect.expansions import (
    Bidirectional,
    CartesianPower,
    DegreeExpansion,
    Expansion,
    LineGraph,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather, base_cost
from jaxcoll.synth.routing.concurrent_flow import RateBounds, digraph_flow
from jaxcoll.synth.routing.shortest_flow import kautz_flow_bounds, shortest_flow_bounds
from jaxcoll.topologies import generative
from jaxcoll.topologies.generative import (
    Digraph,
    circulant,
    distance_regular_graphs,
    generalized_kautz,
    multiply_arcs,
)
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH

# Constructors of bases, and how their arguments are written (Table A.3).
BASES: Mapping[str, tuple[Callable[..., Digraph], str]] = {
    "complete": (generative.complete, "K{0}"),
    "complete_bipartite": (generative.complete_bipartite, "K{0},{0}"),
    "generalized_kautz": (generative.generalized_kautz, "Pi({0},{1})"),
    "circulant": (generative.circulant, "C({0},{{{1}}})"),
    "dense_circulant": (generative.dense_circulant, "DC({0})"),
    "bidirectional_ring": (generative.bidirectional_ring, "BiRing({0},{1})"),
    "unidirectional_ring": (generative.unidirectional_ring, "UniRing({0},{1})"),
    "de_bruijn": (generative.de_bruijn, "DBJ({0},{1})"),
    "diamond": (generative.diamond, "Diamond"),
    "modified_de_bruijn": (generative.modified_de_bruijn, "DBJMod({0},{1})"),
    "distance_regular": (generative.distance_regular, "DistReg({0},{1})"),
    "crown": (distance_regular_graphs.crown, "crown({0})"),
    "johnson": (distance_regular_graphs.johnson, "J({0},{1})"),
    "odd_graph": (distance_regular_graphs.odd_graph, "O{0}"),
    "projective_plane": (distance_regular_graphs.projective_plane, "PG(2,{0})"),
    "affine_plane_minus_class": (
        distance_regular_graphs.affine_plane_minus_class,
        "AG(2,{0})-class",
    ),
    "generalized_quadrangle": (distance_regular_graphs.generalized_quadrangle, "GQ({0},{0})"),
    "generalized_hexagon": (distance_regular_graphs.generalized_hexagon, "GH({0},{0})"),
    "doubled_odd_graph": (distance_regular_graphs.doubled_odd_graph, "D(O{0})"),
    "cayley": (generative.cayley, "Cay({0},{1},{2};{3})"),
    "twisted_torus": (
        lambda sides: generative.twisted_torus(*checks.integers(sides, "sides", TopologyError)),
        "twisted torus({0})",
    ),
    "twisted_hypercube": (generative.twisted_hypercube, "twisted hypercube({0})"),
    "shifted_ring": (generative.shifted_ring, "ShiftedRing({0})"),
    "double_binary_tree": (generative.double_binary_tree, "DBT({0})"),
}

# Operations of one operand, by how they are written. An operand that is itself compound stands in
# parentheses (``_operand``).
_WRITTEN = {"degree": "{0}*{1}", "power": "{0}^{1}", "parallel": "{1} x arcs of {0}"}
# Operations whose result BFB schedules, whatever the schedules of the operands.
_SCHEDULED_WHOLE = ("product", "parallel")
# Operations by another word than a base's, and the least and most parts that they have.
_PARTS = {"line_graph": (1, 1), "bidirectional": (1, 1), "product": (2, 64)}
# Files are untrusted: constructions nested without end, or of any size, are refused.
_MOST_DEPTH, _MOST_TIMES = 32, 256


@dataclasses.dataclass(frozen=True)
class Construction:
    """A base, or an operation on constructions.

    Attributes:
        operation: a name in ``BASES``; or ``line_graph``, ``degree``, ``power``, ``product``,
            ``bidirectional``, ``parallel`` (every arc several times).
        arguments: arguments of the constructor; or the number of times, copies or factors.
        parts: operands; none for a base.
    """

    operation: str
    arguments: tuple[Any, ...] = ()
    parts: tuple[Construction, ...] = ()

    def __str__(self) -> str:
        if not self.parts:
            texts = (
                ",".join(map(str, a)) if isinstance(a, tuple) else str(a) for a in self.arguments
            )
            return BASES[self.operation][1].format(*texts)
        if self.operation == "line_graph":
            times = self.arguments[0]
            return f"L{f'^{times}' if times > 1 else ''}({self.parts[0]})"
        if self.operation == "bidirectional":
            return f"both ways of {self.parts[0]}"
        if self.operation == "product":
            return " x ".join(part._operand() for part in self.parts)
        return _WRITTEN[self.operation].format(self.parts[0]._operand(), *self.arguments)

    def _operand(self) -> str:
        is_compound = self.operation in ("product", "bidirectional", *_WRITTEN)
        return f"({self})" if is_compound else str(self)

    def digraph(self) -> Digraph:
        """The digraph, built."""
        if not self.parts:
            return BASES[self.operation][0](*self.arguments)
        digraphs = [part.digraph() for part in self.parts]
        if self.operation == "product":
            return generative.cartesian_product(*digraphs)
        if self.operation == "parallel":
            return multiply_arcs(digraphs[0], self.arguments[0])
        digraph = digraphs[0]
        for expansion in self._expansions():
            digraph = expansion.digraph(digraph)
        return digraph

    def all_gather(self, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> tuple[Digraph, Schedule]:
        """The digraph and its all_gather, built up from the bases' schedules.

        Args:
            alpha, link_bandwidth: seconds, and bytes per second (B/d), of each link.
        """

        def of_part(digraph: Digraph) -> Schedule:
            return base_all_gather(digraph, alpha, link_bandwidth)

        return self._built_up(of_part, Expansion.all_gather)

    def reduce_scatter(self, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> tuple[Digraph, Schedule]:
        """The digraph and its reduce_scatter, built up from those of the bases (Corollary 1.2).

        That of a base is the all_gather of its transpose, run backwards. Where the digraph is
        isomorphic to its transpose, ``scatter_of`` derives one from the all_gather.

        Args:
            alpha, link_bandwidth: seconds, and bytes per second (B/d), of each link.
        """

        def of_part(digraph: Digraph) -> Schedule:
            return base_all_gather(digraph.transpose(), alpha, link_bandwidth).reverse()

        return self._built_up(of_part, Expansion.reduce_scatter)

    def _built_up(self, of_part, expand) -> tuple[Digraph, Schedule]:
        """The digraph and a schedule: ``of_part`` of a part scheduled whole, then expanded."""
        # Bases and products are scheduled as they are; all other operations expand a schedule, from
        # the inside out, without looking at the network again.
        if not self.parts or self.operation in _SCHEDULED_WHOLE:
            digraph = self.digraph()
            return digraph, of_part(digraph)
        digraph, schedule = self.parts[0]._built_up(of_part, expand)
        for expansion in self._expansions():
            digraph, schedule = expand(expansion, digraph, schedule)
        return digraph, schedule

    def reduce_scatter_cost(self) -> Cost:
        """T_L and T_B of ``reduce_scatter``, predicted; an upper bound for line graphs."""
        return self._cost_of_transpose()[1]

    def _cost_of_transpose(self) -> tuple[tuple[int, int], Cost]:
        """Size and degree, and the cost of the transpose's all_gather."""
        if not self.parts or self.operation in _SCHEDULED_WHOLE:
            transpose = self.digraph().transpose()
            return (transpose.size, transpose.degree), base_cost(transpose)
        cell, found = self.parts[0]._cost_of_transpose()
        for expansion in self._expansions():
            cell, found = expansion.size(*cell), expansion.cost(found, *cell)
        return cell, found

    def _expansions(self) -> list[Expansion]:
        if self.operation == "line_graph":
            return [LineGraph()] * self.arguments[0]
        if self.operation == "bidirectional":
            return [Bidirectional()]
        expansion = DegreeExpansion if self.operation == "degree" else CartesianPower
        return [expansion(self.arguments[0])]

    def to_json(self) -> list:
        """The construction as lists, numbers and strings that JSON can hold."""
        arguments = [list(a) if isinstance(a, tuple) else a for a in self.arguments]
        return [self.operation, arguments, [part.to_json() for part in self.parts]]

    @classmethod
    def from_json(cls, value: object) -> Construction:
        """The construction of which ``to_json`` gave a value.

        Raises:
            FormatError: anything else.
        """
        return cls._of_value(value, 0)

    @classmethod
    def _of_value(cls, value: object, depth: int) -> Construction:
        if depth > _MOST_DEPTH:
            raise FormatError(f"a construction is nested at most {_MOST_DEPTH} deep")
        if not (isinstance(value, list) and len(value) == 3 and isinstance(value[2], list)):
            raise FormatError(
                f"a construction must be [operation, arguments, parts], got {shown(value)}"
            )
        name = fields.text(value[0], "an operation")
        arguments = fields.list_of(_argument)(value[1], f"the arguments of {shown(name)}")
        least, most = _PARTS.get(name, (1, 1)) if name not in BASES else (0, 0)
        if name not in {*BASES, *_PARTS, *_WRITTEN} or not least <= len(value[2]) <= most:
            raise FormatError(
                f"no construction is called {shown(name)} with {len(value[2])} parts; known: "
                f"{', '.join(_PARTS)}, {', '.join(_WRITTEN)}, and bases, which have no parts"
            )
        _check_arguments(name, arguments)
        return cls(name, arguments, tuple(cls._of_value(part, depth + 1) for part in value[2]))


def _argument(value: object, name: str) -> int | tuple[int, ...]:
    whole = fields.whole(-fields.INT32, fields.INT32)
    return fields.list_of(whole)(value, name) if isinstance(value, list) else whole(value, name)


def _check_arguments(name: str, arguments: tuple) -> None:
    """Refuse arguments that are not as many as the constructor or the operation has."""
    if name in BASES:
        try:
            inspect.signature(BASES[name][0]).bind(*arguments)
        except TypeError as error:
            raise FormatError(f"{name} does not take {shown(list(arguments))}: {error}") from None
        return
    wanted = 0 if name in ("product", "bidirectional") else 1
    if len(arguments) != wanted or not all(a in range(1, _MOST_TIMES + 1) for a in arguments):
        raise FormatError(
            f"{name} takes {wanted} arguments from 1 to {_MOST_TIMES}, got {shown(list(arguments))}"
        )


def line_graph(part: Construction) -> Construction:
    """L of a construction; of L^k it is L^(k+1), of DBJ(d,n) it is DBJ(d,n+1)."""
    if part.operation == "de_bruijn":
        degree, letters = part.arguments
        return Construction("de_bruijn", (degree, letters + 1))
    if part.operation == "line_graph":
        return Construction("line_graph", (part.arguments[0] + 1,), part.parts)
    return Construction("line_graph", (1,), (part,))


def product(first: Construction, second: Construction) -> Construction:
    """The product of two constructions, of which products are joined to one."""
    factors: list[Construction] = []
    for part in (first, second):
        factors += part.parts if part.operation == "product" else (part,)
    # Sorted, so that products of the same factors are equal.
    return Construction("product", (), tuple(sorted(factors, key=str)))


# Ranks up to which the linear program of the rate is solved, and up to which the flows of
# generalized Kautz digraphs are followed link by link.
SOLVED, FOLLOWED = 32, 128


def diameter(construction: Construction) -> int:
    """D(G), from the diameters of the parts where they determine it."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return sum(map(diameter, parts))
    if operation == "power":
        return construction.arguments[0] * diameter(parts[0])
    if operation == "parallel":
        return diameter(parts[0])
    # With degree 1 the base is a ring, whose line graph is the same ring.
    if operation == "line_graph" and _built(parts[0]).degree > 1:
        return construction.arguments[0] + diameter(parts[0])
    return _built(construction).diameter


@functools.lru_cache(maxsize=2**16)
def rate_bounds(construction: Construction) -> RateBounds:
    """Proved bounds of the all-to-all rate, links being of capacity 1; equal where it is exact."""
    operation, parts = construction.operation, construction.parts
    if operation == "product":
        return _of_product(parts)
    if operation == "power":
        return _of_product(parts * construction.arguments[0])
    if operation == "parallel":
        times, found = construction.arguments[0], rate_bounds(parts[0])
        return RateBounds(times * found.lower, times * found.upper)
    if operation == "generalized_kautz" and construction.arguments[1] > FOLLOWED:
        return kautz_flow_bounds(*construction.arguments)
    # All others are measured on the digraph itself. A bound from the base or by formula is proved
    # as well, so that the closer of the two is taken.
    digraph = construction.digraph()
    if digraph.size <= SOLVED:
        found = digraph_flow(digraph.size, digraph.tails, digraph.heads)
        return RateBounds(found.lower, found.upper)
    found = shortest_flow_bounds(digraph)
    if operation == "line_graph":
        base, times = rate_bounds(parts[0]), construction.arguments[0]
        return dataclasses.replace(
            found, upper=min(found.upper, base.upper / digraph.degree**times)
        )
    if operation == "generalized_kautz":
        other = kautz_flow_bounds(*construction.arguments)
        return dataclasses.replace(found, lower=max(found.lower, other.lower))
    return found


def _of_product(parts: Sequence[Construction]) -> RateBounds:
    # A line of a dimension carries, between two of its ranks, the data of as many pairs of ranks as
    # the dimension has lines.
    sizes, found = [_built(part).size for part in parts], list(map(rate_bounds, parts))
    lines = [math.prod(sizes) // size for size in sizes]
    return RateBounds(
        min(each.lower / many for each, many in zip(found, lines, strict=True)),
        min(each.upper / many for each, many in zip(found, lines, strict=True)),
    )


@functools.lru_cache(maxsize=2**13)
def _built(construction: Construction) -> Digraph:
    return construction.digraph()


VERSION = 1
_FILE = "measured.json"
_KAUTZ_DEGREES, _CIRCULANT_DEGREES, _LARGEST = (2, 4, 8, 16), (6, 8, 16), 2000
# Sets of offsets drawn per circulant, and how many of the least diameters are scheduled.
_DRAWN, _SCHEDULED = 40, 4


class Measured(NamedTuple):
    """The best BFB all_gather of a base.

    Attributes:
        arguments: arguments of its constructor.
        cost: its T_L and T_B.
    """

    arguments: tuple
    cost: Cost


@functools.cache
def measured_bases() -> dict[tuple[str, int, int], Measured]:
    """The measured costs of bases, by constructor, degree and size.

    Raises:
        FormatError: a file of another version.
    """
    text = resources.files("jaxcoll.finder").joinpath(_FILE).read_text(encoding="utf-8")
    said = json.loads(text)
    if said.get("version") != VERSION:
        raise FormatError(f"{_FILE} has version {said.get('version')}, expected {VERSION}")
    found = {}
    for degree, size, steps, above, below in said["generalized_kautz"]:
        cost = Cost(steps, Fraction(above, below))
        found["generalized_kautz", degree, size] = Measured((degree, size), cost)
    for degree, size, steps, above, below, offsets in said["circulant"]:
        cost = Cost(steps, Fraction(above, below))
        found["circulant", degree, size] = Measured((size, tuple(offsets)), cost)
    return found


def kautz_rows(degree: int, largest: int) -> Iterator[list]:
    """[degree, size, T_L, T_B above, T_B below] of every generalized Kautz digraph."""
    for size in range(degree + 1, largest + 1):
        cost = bfb_cost(generalized_kautz(degree, size))
        yield [degree, size, cost.steps, *cost.inverse_bandwidth.as_integer_ratio()]


def circulant_rows(degree: int, largest: int) -> Iterator[list]:
    """[degree, size, T_L, T_B above, T_B below, offsets] of circulants of small diameter.

    Offsets are powers 1, s, s^2, ... or drawn, with a fixed seed; of those of least diameter, the
    first whose BFB all_gather is bandwidth-optimal is taken, else the one of least T_B.
    """
    for size in range(degree + 2, largest + 1):
        best = None
        # Every circulant seems to have an optimal BFB all_gather, but that is proved for two
        # offsets only (Conjecture 1, App. A.6.4): here it is measured.
        for offsets in _small_diameters(size, degree // 2)[:_SCHEDULED]:
            cost = bfb_cost(circulant(size, offsets))
            if best is None or cost.inverse_bandwidth < best[0].inverse_bandwidth:
                best = cost, offsets
            if cost.inverse_bandwidth == bandwidth_optimum(size):
                break
        if best is not None:
            cost, offsets = best
            ratio = cost.inverse_bandwidth.as_integer_ratio()
            yield [degree, size, cost.steps, *ratio, list(offsets)]


def _small_diameters(size: int, count: int) -> list[tuple[int, ...]]:
    """Sets of offsets below size / 2, the least diameter first."""
    random = np.random.default_rng(size * 64 + count)
    most = (size - 1) // 2
    sets = set()
    for base in range(2, min(size, 2 + _DRAWN)):
        power = {min(x, size - x) for x in (pow(base, i, size) for i in range(count))}
        sets.add(tuple(sorted(power)))
    for _ in range(_DRAWN):
        sets.add(tuple(sorted(int(x) + 1 for x in random.choice(most, count, replace=False))))
    proper = [s for s in sets if len(s) == count and s[0] > 0 and 2 * s[-1] < size]
    ranked = sorted((_diameter(size, chosen), chosen) for chosen in proper)
    return [chosen for diameter, chosen in ranked if diameter > 0]


def _diameter(size: int, offsets: tuple[int, ...]) -> int:
    """Steps after which every number modulo ``size`` is a sum of offsets, -1 if never."""
    reached = np.zeros(size, bool)
    reached[0] = True
    frontier: np.ndarray = np.zeros(1, np.int64)
    steps = 0
    # Breadth first: a step goes on from the numbers that the last one reached for the first time.
    moves = np.asarray([*offsets, *(-x for x in offsets)])
    while len(frontier):
        ahead = np.zeros(size, bool)
        ahead[np.ravel((frontier[:, None] + moves) % size).astype(np.int64)] = True
        frontier = np.flatnonzero(ahead & ~reached)
        reached[frontier] = True
        steps += len(frontier) > 0
    return steps if reached.all() else -1


def main(argv: Sequence[str] | None = None) -> None:
    """Measure everything and print the JSON."""
    argparse.ArgumentParser(
        prog="python -m jaxcoll.finder.construction",
        description="Measure costs of bases that no formula gives, ten minutes, and print them as "
        "JSON.",
    ).parse_args(argv)
    parts = [(kautz_rows, d) for d in _KAUTZ_DEGREES] + [
        (circulant_rows, d) for d in _CIRCULANT_DEGREES
    ]
    kautz: list[list[int]] = []
    rings: list[list[int]] = []
    with reporting(True, "measuring", TopologyError) as report:
        for done, (rows, degree) in enumerate(parts, 1):
            (kautz if rows is kautz_rows else rings).extend(rows(degree, _LARGEST))
            if report is not None:
                report(Progress(done, len(parts), f"{rows.__name__} of degree {degree}"))
    lines = [f'{{"version": {VERSION},', '"generalized_kautz": [']
    lines += [",\n".join(json.dumps(row) for row in kautz) + "],", '"circulant": [']
    lines += [",\n".join(json.dumps(row) for row in rings) + "]}"]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
