"""The rate of all-to-all: the maximum concurrent flow between all pairs of ranks, proved.

The linear program (A.1) of the direct-connect paper has a variable for the flow from every source
over every link. ``flow_classes`` finds which flows are equal by symmetry; if that leaves a small
program, it is solved exactly. Otherwise the dual is climbed at soft distances until the two bounds
meet. In both cases the bounds are computed on the whole graph, in integers, and hold whatever the
solver did.

For example, on a one-way ring of 3 ranks every rank's data cross 1 + 2 links, which is 9 crossings
over 3 links: the rate is 1/3 of a link. Lengths of 1 prove that no flow has a higher rate, and the
only flow has this rate.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.links import group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.program import Program
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.synth.routing import soft_distances as kernel
from jaxcoll.synth.routing.flow_classes import FlowClasses, flow_classes
from jaxcoll.synth.routing.soft_distances import climb
from jaxcoll.topology import Topology, connected


class Bounded:
    """A rate between two proved bounds, which the subclass holds."""

    lower: Fraction
    upper: Fraction

    @property
    def is_exact(self) -> bool:
        """Whether the bounds meet."""
        return self.lower == self.upper

    @property
    def gap(self) -> float:
        """The distance of the upper bound from the lower, relative to the lower."""
        return float(self.upper / self.lower - 1)


@dataclasses.dataclass(frozen=True)
class RateBounds(Bounded):
    """Proved bounds of the all-to-all rate of a digraph whose links have capacity 1.

    Attributes:
        lower: a flow of this rate exists.
        upper: no flow has a larger rate.
    """

    lower: Fraction
    upper: Fraction


# The most flow classes for which the program is solved exactly.
MOST_CLASSES = 20_000
# The integers that stand for a flow of 1 and for the longest link.
_UNIT, _LONGEST = 2**30, 2**24
# Denominators tried for an exact solution.
_DENOMINATORS = (1, 16, 64, 1024)
# The most sources times arcs, which is the number of entries of a column of flows.
_MOST_FLOWS = 2**27


@dataclasses.dataclass(frozen=True, eq=False)
class FlowRate(Bounded):
    """Bounds of the rate f at which every rank can send to every other at the same time.

    Attributes:
        lower, upper: bounds of f in units of the capacity of a link, equal if the rate is exact.
        flow: the flow of every source over every link, for one unit to every vertex, in multiples
            of ``1 / unit``; int64 of shape (ranks, links).
        unit: the least amount that a vertex receives from a source, in the same multiples.
        lengths: integer lengths of the links that prove ``upper``, int64 of shape (links,).
    """

    lower: Fraction
    upper: Fraction
    flow: np.ndarray
    unit: int
    lengths: np.ndarray

    def pair_time(self, buffer_time: float, degree: int, size: int) -> float:
        """Seconds of an all-to-all at the lower bound of the rate: (M/B) (d/n) / f.

        Args:
            buffer_time: M/B, seconds in which a rank sends the bytes of its buffer over all links.
            degree: number of links out of a rank, including self-loops.
            size: number of ranks.
        """
        return buffer_time * degree / size / float(self.lower)


def concurrent_flow(topology: Topology, tolerance: float = 0.005) -> FlowRate:
    """The rate of all-to-all on a direct network, in units of its slowest link's bandwidth.

    Source: LP (A.1) of "Efficient Direct-Connect Topologies for Collective Communications"
    (dissertation, App. A.1.5), with the bandwidth of each link as its capacity.

    Args:
        topology: a network without switches, with at least two ranks.
        tolerance: the relative difference of the bounds that is accepted.

    Raises:
        TopologyError: there are switches, there is only one rank, or the tolerance is not above 0.
    """
    if not connected(topology).is_direct:
        raise TopologyError(
            f"the all-to-all rate is defined for direct networks; {topology} has switches"
        )
    least = min(topology.exact_bandwidth, default=Fraction(1))
    capacity = [bandwidth / least for bandwidth in topology.exact_bandwidth]
    return digraph_flow(
        topology.num_ranks,
        topology.src.astype(np.int64),
        topology.dst.astype(np.int64),
        capacity,
        tolerance,
    )


def digraph_flow(
    size: int,
    tails: np.ndarray,
    heads: np.ndarray,
    capacity: list[Fraction] | None = None,
    tolerance: float = 0.005,
) -> FlowRate:
    """The rate of all-to-all on a strongly connected digraph; self-loops carry nothing.

    Args:
        size: number of vertices, at least 2.
        tails, heads: ends of each arc, int64; parallel arcs are separate arcs.
        capacity: capacity of each arc; 1 when omitted.
        tolerance: the relative difference of the bounds that is accepted.

    Raises:
        TopologyError: there are fewer than two vertices, there is no path between two of them, or
            the tolerance is bad.
    """
    checks.integer(size, "size", TopologyError, least=2)
    tolerance = float(checks.positive(tolerance, "tolerance", TopologyError))
    graph = _Graph.of(size, tails, heads, capacity)
    classes = flow_classes(size, graph.tails, graph.heads, graph.capacity_class)
    # (A.1) has a variable for every source and arc; symmetry makes most of them equal.
    if len(classes.key) <= MOST_CLASSES:
        return _exact(graph, classes)
    flow, lengths = climb(classes, graph.tails, graph.heads, graph.capacity, tolerance)
    unit = _unit(size)
    # Any lengths prove an upper bound (the sum of capacity times length over the sum of distances),
    # and any flow proves a lower one. So both may be rounded: the bounds stay valid and only become
    # slightly less tight.
    whole = np.rint(lengths / lengths.max() * min(unit, _LONGEST)).astype(np.int64)
    return graph.certified(np.rint(flow * unit).astype(np.int64), np.maximum(whole, 1))


def _unit(size: int) -> int:
    """The integer for 1, so that sums over pairs of vertices and the arcs between fit 64 bits."""
    return min(_UNIT, 2**62 // size**3)


@dataclasses.dataclass(frozen=True, eq=False)
class _Graph:
    """The arcs other than loops, and their positions among the given arcs."""

    size: int
    tails: np.ndarray
    heads: np.ndarray
    kept: np.ndarray
    given: int
    exact: list[Fraction]

    @classmethod
    def of(cls, size, tails, heads, capacity) -> _Graph:
        """The digraph, checked."""
        tails, heads = np.asarray(tails), np.asarray(heads)
        if tails.shape != heads.shape or tails.ndim != 1:
            raise TopologyError(
                f"tails and heads need one value per arc, got shapes {tails.shape}, {heads.shape}"
            )
        ends = np.concatenate([tails, heads])
        if ends.dtype.kind not in "iu" or (len(ends) and not 0 <= ends.min() <= ends.max() < size):
            raise TopologyError(f"tails and heads must hold vertices 0..{size - 1}")
        exact = [Fraction(1)] * len(tails) if capacity is None else list(capacity)
        if len(exact) != len(tails) or not all(c > 0 for c in exact):
            raise TopologyError(f"capacity needs a number above 0 for each of {len(tails)} arcs")
        if size * len(tails) > _MOST_FLOWS:
            raise TopologyError(
                f"the flows of {size} sources over {len(tails)} arcs are more than {_MOST_FLOWS}; "
                f"take a smaller network"
            )
        adjacency = sp.csr_matrix((np.ones(len(tails)), (tails, heads)), (size, size))
        parts, label = sp.csgraph.connected_components(adjacency, connection="strong")
        if parts > 1:
            other = int(np.flatnonzero(label != label[0])[0])
            raise TopologyError(
                f"every vertex must reach every other: vertices 0 and {other} do not both reach "
                f"each other"
            )
        kept = np.flatnonzero(tails != heads)
        ends = tails[kept].astype(np.int64), heads[kept].astype(np.int64)
        return cls(size, *ends, kept, len(tails), [Fraction(exact[e]) for e in kept])

    @property
    def capacity(self) -> np.ndarray:
        """Capacity of each arc for a solver, as floats; the bounds are exact in any case.

        No rate is above the least capacity out of a vertex, so no arc carries more than that rate
        for all pairs of vertices, and faster arcs count as equally fast. The unit is the slowest
        arc, unless it is so slow that it is useless.
        """
        out = [Fraction(0)] * self.size
        for tail, c in zip(self.tails.tolist(), self.exact, strict=True):
            out[tail] += c
        most = min(out) * self.size**2
        unit = max(min(self.exact), most / self.size**4)
        return np.asarray([float(min(c, most) / unit) for c in self.exact])

    @property
    def capacity_class(self) -> np.ndarray:
        """Integers that distinguish unequal capacities, int64."""
        place = {c: i for i, c in enumerate(sorted(set(self.exact)), start=1)}
        return np.asarray([place[c] for c in self.exact], np.int64)

    def capacity_of(self, classes: FlowClasses) -> np.ndarray:
        """Capacity of each class of arcs, float64."""
        return self.capacity[np.unique(classes.arc_class, return_index=True)[1]]

    def certified(self, flow: np.ndarray, lengths: np.ndarray) -> FlowRate:
        """The bounds that a flow and lengths of the arcs prove on the whole graph."""
        # Scaled until the fullest arc is just full, the flow delivers at least ``least`` to every
        # vertex, which proves that this rate exists.
        least, load = kernel.delivered(flow, self.tails, self.heads)
        worst = max(Fraction(x) / c for x, c in {*zip(load.tolist(), self.exact, strict=True)})
        ptr, arc = group_by(self.tails, self.size)
        every = np.arange(self.size)
        # The dual: a unit from u to v uses at least d(u, v) of length times capacity, of which the
        # network has ``room``.
        total = kernel.total_distance(ptr, arc, self.heads, lengths, every, np.ones_like(every))
        room = sum((c * x for c, x in zip(self.exact, lengths.tolist(), strict=True)), Fraction(0))
        if not (least and worst and total and room):
            raise _too_far_apart(self.exact)
        all_flow = np.zeros((self.size, self.given), np.int64)
        all_flow[:, self.kept] = flow
        all_lengths = np.zeros(self.given, np.int64)
        all_lengths[self.kept] = lengths
        return FlowRate(int(least) / worst, room / int(total), all_flow, int(least), all_lengths)


def _too_far_apart(capacity: list[Fraction]) -> TopologyError:
    ratio = float(max(capacity) / min(capacity))
    return TopologyError(
        f"capacities of which one is {ratio:g} times another are too far apart for the linear "
        f"program of all-to-all flows, which is solved in floats"
    )


def _exact(graph: _Graph, classes: FlowClasses) -> FlowRate:
    """The rate if symmetry leaves a small program."""
    try:
        value, dual = _solve(classes, graph.capacity_of(classes))
    except RuntimeError as error:
        raise _too_far_apart(graph.exact) from error
    # Circular flows on fast arcs cost nothing, and may be too large for integers.
    if not (value.max() * _unit(graph.size) < 2**62 and 0 < dual.max() < math.inf):
        raise _too_far_apart(graph.exact)
    capacity = [graph.exact[e] for e in np.unique(classes.arc_class, return_index=True)[1]]
    # The solver's floats are also read as fractions with small denominators, since the true
    # solution often has these. The reading that proves most is kept.
    flow = max(_whole(value, graph.size), key=lambda found: _proved(found, classes, capacity))
    ptr, arc = group_by(graph.tails, graph.size)
    room = graph.capacity_of(classes) * classes.arc_size

    def bound(lengths: np.ndarray) -> float:
        each = lengths[classes.arc_class]
        total = kernel.total_distance(ptr, arc, graph.heads, each, classes.sources, classes.weight)
        return float(room @ lengths) / total if total else math.inf

    lengths = min(_whole(dual / dual.max(), graph.size), key=bound)
    lifted = kernel.lifted(
        flow, classes.key, classes.pair_colour, classes.arc_colour, graph.tails, graph.heads
    )
    return graph.certified(lifted, lengths[classes.arc_class])


def _whole(values: np.ndarray, size: int) -> list[np.ndarray]:
    """Numbers as integer multiples of a unit: with small denominators, and finely rounded."""
    values = np.maximum(values, 0)
    finest = _unit(size)
    found = [np.rint(values * finest).astype(np.int64)]
    for most in _DENOMINATORS:
        exact = [Fraction(value).limit_denominator(most) for value in values.tolist()]
        unit = common_denominator(exact)
        if unit <= finest:
            found.append(np.asarray([int(value * unit) for value in exact], np.int64))
    return found


def _proved(flow: np.ndarray, classes: FlowClasses, capacity: list[Fraction]) -> Fraction:
    """The lower bound that a flow per class proves, if the classes are right."""
    net = np.zeros(len(classes.pair_size), np.int64)
    load = np.zeros(len(classes.arc_size), np.int64)
    np.add.at(net, classes.enters, flow * classes.flow_size)
    np.subtract.at(net, classes.leaves, flow * classes.flow_size)
    np.add.at(load, classes.over, flow * classes.flow_size)
    least = (net // classes.pair_size)[~classes.at_source].min()
    loads = (load // classes.arc_size).tolist()
    worst = max(Fraction(x) / c for x, c in zip(loads, capacity, strict=True))
    return int(least) / worst if worst else Fraction(0)


def _solve(classes: FlowClasses, capacity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solve LP (A.1) with a variable per class: the least load with 1 unit to every vertex.

    Returns:
        The flow of each class, and the lengths (dual variables) of the classes of arcs.
    """
    flows, arcs, pairs = len(classes.key), len(classes.arc_size), len(classes.pair_size)
    column = np.arange(flows)
    rows = np.concatenate([classes.over, arcs + classes.enters, arcs + classes.leaves])
    values = np.concatenate(
        [
            classes.flow_size / classes.arc_size[classes.over] / capacity[classes.over],
            classes.flow_size / classes.pair_size[classes.enters],
            -classes.flow_size / classes.pair_size[classes.leaves],
        ]
    )
    rows = np.concatenate([rows, np.arange(arcs)])
    columns = np.concatenate([column, column, column, np.full(arcs, flows)])
    matrix = sp.coo_matrix(
        (np.concatenate([values, -np.ones(arcs)]), (rows, columns)), (arcs + pairs, flows + 1)
    )
    served = np.where(classes.at_source, -np.inf, 1.0)
    low = np.concatenate([np.full(arcs, -np.inf), served])
    high = np.concatenate([np.zeros(arcs), np.full(pairs, np.inf)])
    program = Program()
    program.add_variables(flows)
    program.add_variable(cost=1.0)
    program.add_rows(matrix, low, high)
    found = program.minimize().optimal()
    return found.values[:flows], -found.duals[:arcs] / capacity / classes.arc_size
