"""The fixed cost of a topology: ports, circuits and cables, which are paid for whatever is sent."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.topologies.generative import Digraph


@dataclasses.dataclass(frozen=True)
class FixedCost:
    """The parts of a network and their cost.

    Attributes:
        ports: number of ports of all ranks, with those that join a rank to itself.
        circuits: links, each in one direction, as an optical switch makes them.
        cables: links that go opposite ways between two ranks share one.
        metres: metres of cable.
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
        spare_metres: metres in addition for every cable: all there is inside a rack.

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
        # Racks fill a square, row by row; a cable runs along rows and columns of it.
        racks = -(-digraph.size // self.ranks_per_rack)
        row = math.isqrt(racks - 1) + 1
        a, b = (end // self.ranks_per_rack for end in np.divmod(pairs, digraph.size))
        away = np.abs(a // row - b // row) + np.abs(a % row - b % row)
        lengths = away * float(self.rack_metres) + float(self.spare_metres)
        count, metres = int(cables.sum()), float(cables @ lengths)
        total = (
            float(self.port) * digraph.num_arcs
            + float(self.circuit) * len(links)
            + float(self.cable) * count
            + float(self.metre) * metres
        )
        return FixedCost(digraph.num_arcs, len(links), count, metres, total)
