"""Constructions: how a direct-connect topology is made of bases and expansions, built on demand."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxcoll import fields
from jaxcoll.bounds.moore import Cost
from jaxcoll.errors import FormatError, TopologyError, shown
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.expansions import (
    Bidirectional,
    CartesianPower,
    DegreeExpansion,
    Expansion,
    LineGraph,
)
from jaxcoll.synth.direct_connect.searched import base_all_gather, base_cost
from jaxcoll.topologies import generative
from jaxcoll.topologies.generative import Digraph, distance_regular_graphs, multiply_arcs
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH


def _of_sides(build: Callable[..., Digraph]) -> Callable[[tuple[int, ...]], Digraph]:
    """A constructor that takes sides as one argument."""
    return lambda sides: build(*checks.integers(sides, "sides", TopologyError))


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
    "twisted_torus": (_of_sides(generative.twisted_torus), "twisted torus({0})"),
    "twisted_hypercube": (generative.twisted_hypercube, "twisted hypercube({0})"),
    "shifted_ring": (generative.shifted_ring, "ShiftedRing({0})"),
    "double_binary_tree": (generative.double_binary_tree, "DBT({0})"),
}

# Operations of one operand, by how they are written.
_WRITTEN = {"degree": "{0}*{1}", "power": "{0}^{1}", "parallel": "{1} x arcs of {0}"}
# Operations whose result BFB schedules, whatever the schedules of the operands.
_SCHEDULED_WHOLE = ("product", "parallel")
# Operations by another word than a base's, and the least and most parts that they have.
_PARTS = {"line_graph": (1, 1), "bidirectional": (1, 1), "product": (2, 64)}
_MOST_DEPTH, _MOST_TIMES = 32, 256


@dataclasses.dataclass(frozen=True)
class Construction:
    """A base, or an operation on constructions.

    Attributes:
        operation: a name in ``BASES``; or ``line_graph``, ``degree``, ``power``, ``product``,
            ``bidirectional``, ``parallel`` (every arc several times).
        arguments: of the constructor; or the number of times, copies or factors.
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
            alpha: seconds per link.
            link_bandwidth: bytes per second per link, B/d.
        """

        def of_part(digraph: Digraph) -> Schedule:
            return base_all_gather(digraph, alpha, link_bandwidth)

        return self._built_up(of_part, Expansion.all_gather)

    def reduce_scatter(self, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> tuple[Digraph, Schedule]:
        """The digraph and its reduce_scatter, built up from those of the bases (Corollary 1.2).

        That of a base is the all_gather of its transpose, run backwards. Where the digraph is
        isomorphic to its transpose, ``scatter_of`` derives one from the all_gather.

        Args:
            alpha: seconds per link.
            link_bandwidth: bytes per second per link, B/d.
        """

        def of_part(digraph: Digraph) -> Schedule:
            return base_all_gather(digraph.transpose(), alpha, link_bandwidth).reverse()

        return self._built_up(of_part, Expansion.reduce_scatter)

    def _built_up(self, of_part, expand) -> tuple[Digraph, Schedule]:
        """The digraph and a schedule: ``of_part`` of a part scheduled whole, then expanded."""
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
        make = {"degree": DegreeExpansion, "power": CartesianPower}[self.operation]
        return [make(self.arguments[0])]

    def said(self) -> list:
        """In JSON's terms."""
        arguments = [list(a) if isinstance(a, tuple) else a for a in self.arguments]
        return [self.operation, arguments, [part.said() for part in self.parts]]

    @classmethod
    def heard(cls, said: object) -> Construction:
        """What ``said`` returned.

        Raises:
            FormatError: anything else.
        """
        return cls._heard(said, 0)

    @classmethod
    def _heard(cls, said: object, depth: int) -> Construction:
        if depth > _MOST_DEPTH:
            raise FormatError(f"a construction has at most {_MOST_DEPTH} parts in each other")
        if not (isinstance(said, list) and len(said) == 3 and isinstance(said[2], list)):
            raise FormatError(f"a construction is [operation, arguments, parts], got {shown(said)}")
        name = fields.text(said[0], "an operation")
        arguments = fields.list_of(_argument)(said[1], f"the arguments of {shown(name)}")
        least, most = _PARTS.get(name, (1, 1)) if name not in BASES else (0, 0)
        if name not in {*BASES, *_PARTS, *_WRITTEN} or not least <= len(said[2]) <= most:
            raise FormatError(
                f"no construction is called {shown(name)} with {len(said[2])} parts; known: "
                f"{', '.join(_PARTS)}, {', '.join(_WRITTEN)}, and bases, which have no parts"
            )
        _check_arguments(name, arguments)
        return cls(name, arguments, tuple(cls._heard(part, depth + 1) for part in said[2]))


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
            f"{name} has {wanted} arguments from 1 to {_MOST_TIMES}, got {shown(list(arguments))}"
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
    return Construction("product", (), tuple(sorted(factors, key=str)))
