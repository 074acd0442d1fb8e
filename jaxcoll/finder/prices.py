"""Fixed cost of a topology: ports, circuits and cables, which are paid for whatever is sent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from jaxcoll.bounds.moore import bandwidth_optimum
from jaxcoll.errors import TopologyError
from jaxcoll.finder.candidates import UNDIRECTED, Candidate
from jaxcoll.finder.construction import Construction
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.topologies.generative import Digraph


@dataclasses.dataclass(frozen=True)
class FixedCost:
    """The parts of a network and their cost.

    Attributes:
        ports: of all ranks, with those that join a rank to itself.
        circuits: links, each in one direction, as an optical switch makes them.
        cables: links that go opposite ways between two ranks share one.
        metres: of cable.
        total: in the currency of ``Prices``.
    """

    ports: int
    circuits: int
    cables: int
    metres: float
    total: float


@dataclasses.dataclass(frozen=True)
class Prices:
    """The cost of each part, and where ranks stand: in racks that fill a square, row by row.

    Attributes:
        port, circuit, cable, metre: cost of each, at least 0, in any currency.
        ranks_per_rack: ranks 0..k-1 are in the first rack, and so on.
        rack_metres: between neighbouring racks; cables run along rows and columns.
        spare_metres: of every cable, in addition: all there is inside a rack.

    Raises:
        TopologyError: a number out of range.
    """

    port: Number = 0
    circuit: Number = 0
    cable: Number = 0
    metre: Number = 0
    ranks_per_rack: int = 16
    rack_metres: Number = 1
    spare_metres: Number = 2

    def __post_init__(self) -> None:
        names = ("port", "circuit", "cable", "metre", "rack_metres", "spare_metres")
        checked = {n: checks.nonnegative(getattr(self, n), n, TopologyError) for n in names}
        checks.put(self, **checked)
        checks.integer_fields(self, TopologyError, "ranks_per_rack", least=1)

    def fixed_cost(self, digraph: Digraph) -> FixedCost:
        """The parts of a digraph whose rank r is the r-th to be placed."""
        checks.instance(digraph, Digraph, "digraph", TopologyError)
        links = digraph.links
        tails, heads = digraph.tails[links], digraph.heads[links]
        low, high = np.minimum(tails, heads), np.maximum(tails, heads)
        pairs, pair = np.unique(low * digraph.size + high, return_inverse=True)
        up = np.bincount(pair, weights=tails < heads, minlength=len(pairs))
        down = np.bincount(pair, weights=tails > heads, minlength=len(pairs))
        cables = np.maximum(up, down).astype(np.int64)
        lengths = self._metres(pairs // digraph.size, pairs % digraph.size, digraph.size)
        count, metres = int(cables.sum()), float(cables @ lengths)
        total = (
            float(self.port) * digraph.num_arcs
            + float(self.circuit) * len(links)
            + float(self.cable) * count
            + float(self.metre) * metres
        )
        return FixedCost(digraph.num_arcs, len(links), count, metres, total)

    def _metres(self, a: np.ndarray, b: np.ndarray, size: int) -> np.ndarray:
        """Of a cable between ranks a and b."""
        racks = -(-size // self.ranks_per_rack)
        row = math.isqrt(racks - 1) + 1
        a, b = a // self.ranks_per_rack, b // self.ranks_per_rack
        away = np.abs(a // row - b // row) + np.abs(a % row - b % row)
        return away * float(self.rack_metres) + float(self.spare_metres)


def tori(size: int, degree: int) -> Iterator[Candidate]:
    """The tori of a size and degree, equal and unequal sides; their cables are the shortest."""
    for sides in _boxes(size, degree, size):
        parts = tuple(
            Construction("bidirectional_ring", (2, side))
            if side > 2
            else Construction("complete", (2,))
            for side in sides
        )
        steps = sum(side // 2 for side in sides)
        made = parts[0] if len(parts) == 1 else Construction("product", (), parts)
        yield Candidate(steps, bandwidth_optimum(size), int(UNDIRECTED), made)


def _boxes(size: int, degree: int, longest: int) -> Iterator[tuple[int, ...]]:
    """Sides of boxes, the longest first; a side of 2 takes one port, a longer one two."""
    if size == 1 and degree == 0:
        yield ()
    if size == 1 or degree < 1:
        return
    for side in range(min(longest, size), 1, -1):
        if size % side == 0:
            for rest in _boxes(size // side, degree - (2 if side > 2 else 1), side):
                yield (side, *rest)
