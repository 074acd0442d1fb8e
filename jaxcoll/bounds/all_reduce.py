"""The best rate of an all_reduce: a linear program, and exact proofs of its answer (App. B.7).

Source: dissertation, App. B.7. An all_reduce may root unequal shares at the ranks, and share every
link between trees that sum and trees that broadcast. The program chooses both; switches are
replaced by capacities between ranks, which it chooses too.

The program is solved in floats, so its answer is only approximate. But any values of the dual
variables prove a bound, and good values prove a good one; and any capacities for copies and sums
hold some trees. So the floats are read as fractions, and both sides follow from them: a rate that
nothing beats (``proved_rate``) and one that trees reach (``reached_rate``, ``is_routable``). If
these are equal, the answer is exact; if the solver failed, they are far apart but still valid.
Every number after the solver is a ``Fraction``.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.cuts import AllReduceBound, SharedPaths
from jaxcoll.bounds.throughput import bottleneck, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.program import Program, Status
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.topology import Topology

# Floats are read as fractions with denominators up to these; the best answer of all counts.
_DENOMINATORS = (12, 360, 10_000, 10**6)


# Weights of the depths of all ranks, and of the largest root, relative to the value. Of solutions
# of equal value the program takes one with short trees, and of those one whose roots share the
# work. Depths count first, as each link costs alpha. Roots count because sums wait for nothing:
# they run ahead, and if few roots take them all, results queue behind them at a switch's last link.
# Without the weights the answer was an arbitrary vertex that depended on the order of the columns:
# when cvxpy wrote them, the time on hosts of 3 and 2 ranks was 1.06 of the optimum's with cvxpy 1.9
# and 1.37 with 1.7. The weights stay below what ``_DENOMINATORS`` round off, so that dual variables
# still prove the value itself: with 1e-5 they proved 1e-5 less on a mesh of 5 x 5.
_DEPTH, _MOST_ROOTED = 1e-6, 1e-7
# The solver must distinguish such small differences; by default it stops at 1e-7.
_TOLERANCE = 1e-9


# Seconds per byte that trees take, the shares of their roots, and the paths they share.
_Reached = tuple[Fraction, tuple[Fraction, ...], SharedPaths | None]


def all_reduce_bound(topology: Topology) -> AllReduceBound:
    """Solve (B.5), with switches (App. B.7), in floats, and prove the answer.

    There are about 2 n variables per pair of ranks with capacity: 16 ranks take about a second.

    Raises:
        TopologyError: there is only one rank, or the solver gives up.
    """
    n = topology.num_ranks
    if n < 2:
        raise TopologyError(f"with {n} rank there is nothing to reduce")
    gather, scatter = bottleneck(topology), bottleneck(topology.transpose())
    # A solver works in floats and with a tolerance, so its answer is not trusted. Its dual
    # variables, rounded to fractions with small denominators, are multiplied out exactly, and prove
    # a bound whatever they are. Its rounded primal solution is checked by flows, and is therefore
    # reached.
    program = _Optimum(topology, gather.inverse)
    rates = [proved_rate(topology, program.dual_variables(most)) for most in _DENOMINATORS]
    proved = [rate for rate in rates if rate is not None]
    if not proved:
        raise TopologyError(
            f"the all_reduce program on {topology} has no dual variables that prove it"
        )
    seconds = max(1 / min(proved), _smallest_cut_seconds(topology))
    two_phases = (gather.inverse + scatter.inverse) / n
    found: list[_Reached] = []
    if _is_balanced(topology):
        found.append((two_phases, (Fraction(1, n),) * n, None))
    if not found or two_phases > seconds:
        found += [each for most in _DENOMINATORS for each in program.trees(most)]
    reached, roots, shared = min(found, default=(None, (), None), key=lambda each: each[0])
    return AllReduceBound(seconds, two_phases, reached, roots, shared)


def _smallest_cut_seconds(topology: Topology) -> Fraction:
    """Seconds per byte of the vector to cross the smallest cut, as a part or as a sum; exact.

    It is needed because the solver ignores the slowest links of a cut with links 10^9 times as
    fast.
    """
    one = [1] + [0] * (topology.num_ranks - 1)
    return max(bottleneck(way, one).inverse for way in (topology, topology.transpose()))


def _is_balanced(topology: Topology) -> bool:
    try:
        check_balanced(topology)
    except TopologyError:
        return False
    return True


class _Optimum:
    """The solution of (B.5).

    Each x_v is the part of the vector that is summed at rank v. Towards every rank t there is a
    flow of all x for the results, and from every rank t one for the contributions. Flows to
    different ranks are the same data, so that they may overlap (network coding, or trees), and fit
    a capacity as long as each of them does:

        maximize    sum of x_v, less a little for depths and for the largest x_v
        subject to  copies + sums <= room                                   for each pair of ranks
                    flow_t <= copies                                        for each t and pair
                    flow_t into v - flow_t out of v + end_t[v] >= 0         for each t and v
                        (and >= sum of x at v = t)
                    end_t[v] <= x_v                                         for each t and v

    and so for sums, which flow the other way. Room is the bandwidth of a link. With switches it is
    a variable, made up by flows through them from every rank to all others, which fit the links.
    """

    def __init__(self, topology: Topology, gather: Fraction):
        """Build and solve the program; ``gather`` is max |S| / c(S), in seconds per byte."""
        self.topology, direct = topology, topology.is_direct
        n, links = topology.num_ranks, topology.num_links
        # Every byte of the vector crosses every cut, once as a part or once as a sum, so no
        # all_reduce is faster than n / gather. That is the unit, because solvers work best with
        # numbers near 1.
        self.unit = n / gather
        # No link carries more than all bytes of all pairs of ranks, once as parts and once as sums.
        # Faster links count as just that fast, because very unequal coefficients mislead the
        # solver.
        most = 2 if direct else 2 * n * n
        speed = np.asarray([float(min(b / self.unit, most)) for b in topology.exact_bandwidth])
        src, dst = (topology.src, topology.dst) if direct else np.nonzero(~np.eye(n, dtype=bool))
        self.arcs = tuple(zip(src.tolist(), dst.tolist(), strict=True))
        pairs = len(src)

        # Variables by rank are numbered rank after rank: flow_t[pair] is at t * pairs + pair.
        program = Program()
        self.root = program.add_variables(n, cost=-1.0)  # x_v
        # Each rank's flow times its links is the depth of ranks in trees that are packed from it.
        flows = [program.add_variables(n * pairs, cost=_DEPTH) for _ in range(2)]
        largest = program.add_variables(1, cost=_MOST_ROOTED, low=-np.inf)
        self.through = program.add_variables(0 if direct else n * links)
        self.room = program.add_variables(0 if direct else pairs)
        self.capacity = [program.add_variables(pairs) for _ in range(2)]  # of copies, of sums
        ends = [program.add_variables(n * n) for _ in range(2)]

        # Rows of ranks are numbered in the same way: for each t, those of all v, or of all pairs.
        one, each = np.ones((n, 1)), sp.eye_array
        program.add_blocks((each(n), self.root), (-one, largest), high=0.0)
        self.limits = np.zeros(0, np.int64)
        if direct:
            of_room, room = [], speed
        else:
            together = sp.kron(one.T, each(links))
            self.limits = program.add_blocks((together, self.through), high=speed)
            of_room, room = [(-each(pairs), self.room)], 0.0
        both = ((each(pairs), capacity) for capacity in self.capacity)
        program.add_blocks(*both, *of_room, high=room)
        self.within, self.demands = [], []
        net = _incidence(src, dst, n)
        for flow, capacity, end, way in zip(flows, self.capacity, ends, (net, -net), strict=True):
            self._add_flows(program, flow, capacity, end, way)
        if not direct:
            # The flow from rank a through the switches ends with the pair's room at each other
            # rank, and with nothing at a switch; rank a sends all of it.
            net = _incidence(topology.src, topology.dst, topology.num_vertices)
            at_ranks, at_switches = (sp.kron(each(n), part) for part in (net[:n], net[n:]))
            others = np.flatnonzero(~np.eye(n, dtype=bool))
            arriving = (at_ranks.tocsr()[others], self.through)
            program.add_blocks(arriving, *of_room, low=0.0, high=0.0)
            program.add_blocks((at_switches, self.through), low=0.0, high=0.0)

        found = program.minimize(tolerance=_TOLERANCE)
        if found.status != Status.OPTIMAL:
            raise TopologyError(f"the all_reduce program on {topology} ended with {found.status}")
        self.values, self.worth = found.values, -found.duals

    def _add_flows(
        self,
        program: Program,
        flow: np.ndarray,
        capacity: np.ndarray,
        end: np.ndarray,
        net: Any,
    ) -> None:
        """Add the rows of copies or of sums: each flow is within the capacity and carries all of x.

        Args:
            flow, capacity, end: the variables.
            net: flow into a rank less flow out of it, a sparse matrix of shape (ranks, pairs).
        """
        n, pairs = net.shape
        one, each = np.ones((n, 1)), sp.eye_array
        at_t, of_all = each(n).reshape((n * n, 1)), np.ones((1, n))
        self.within.append(
            program.add_blocks(
                (each(n * pairs), flow), (sp.kron(-one, each(pairs)), capacity), high=0.0
            )
        )
        self.demands.append(
            program.add_blocks(
                (sp.kron(at_t, of_all), self.root),
                (sp.kron(each(n), -net), flow),
                (-each(n * n), end),
                high=0.0,
            )
        )
        program.add_blocks((each(n * n), end), (sp.kron(-one, each(n)), self.root), high=0.0)

    def dual_variables(self, most: int) -> DualVariables:
        """The dual solution, rounded to fractions with denominators up to ``most``."""
        n = self.topology.num_ranks
        copies, sums = (
            tuple(
                (_fraction(worth, most), _fractions(lengths, most))
                for worth, lengths in zip(
                    np.diag(self.worth[demand].reshape(n, n)),
                    self.worth[within].reshape(n, -1),
                    strict=True,
                )
            )
            for within, demand in zip(self.within, self.demands, strict=True)
        )
        return DualVariables(self.arcs, copies, sums, _fractions(self.worth[self.limits], most))

    def trees(self, most: int) -> list[_Reached]:
        """Seconds per byte of trees in the rounded primal solution, their roots and their paths.

        Empty if the rounded capacities do not fit the network, or reach nothing.
        """
        n, topology = self.topology.num_ranks, self.topology
        roots = _fractions(self.values[self.root], most)
        copies = _fractions(self.values[self.capacity[0]], most)
        flows = None
        if topology.is_direct:
            room = [b / self.unit for b in topology.exact_bandwidth]
        else:
            room = _fractions(self.values[self.room], most)
            flows = [_fractions(flow, most) for flow in self.values[self.through].reshape(n, -1)]
            if not is_routable(topology, self.arcs, room, flows, self.unit):
                return []
        copies = [min(c, all_) for c, all_ in zip(copies, room, strict=True)]
        sums = [all_ - c for c, all_ in zip(copies, room, strict=True)]
        back = [(v, u) for u, v in self.arcs]
        rate = min(
            reached_rate(n, arcs, capacity, roots)
            for arcs, capacity in ((self.arcs, copies), (back, sums))
        )
        total = sum(roots, Fraction(0))
        if not rate or not total:
            return []
        paths = [(e, (e,), all_) for e, all_ in enumerate(room)]
        if flows is not None:
            paths = list(paths_of_flows(topology, self.arcs, room, flows))
        left, shared = list(copies), []
        for arc, path, amount in paths:
            used = min(amount, left[arc])
            left[arc] -= used
            shared.append((path, used * self.unit, (amount - used) * self.unit))
        split = SharedPaths(*zip(*shared, strict=True))
        return [(1 / (rate * total * self.unit), tuple(x / total for x in roots), split)]


def _incidence(src: np.ndarray, dst: np.ndarray, vertices: int) -> sp.csr_array:
    """The matrix of flow into a vertex less flow out of it; shape (vertices, arcs)."""
    arc, shape = np.arange(len(src)), (vertices, len(src))
    into, out = (sp.csr_array((np.ones(len(src)), (ends, arc)), shape) for ends in (dst, src))
    return into - out


def _fractions(values: Any, most: int) -> list[Fraction]:
    return [_fraction(value, most) for value in np.asarray(values)]


def _fraction(value: float, most: int) -> Fraction:
    return max(Fraction(0), Fraction(float(value)).limit_denominator(most))


Arc = tuple[int, int]
Numbers = Sequence[Fraction]


@dataclasses.dataclass(frozen=True)
class DualVariables:
    """An approximate solution of the dual program; any numbers of at least 0 are allowed.

    Attributes:
        arcs: pairs of ranks with capacity from the first to the second.
        copies: for each rank t, its weight as a receiver, and lengths of the arcs towards it.
        sums: for each rank t, its weight as a sender, and lengths of the arcs from it.
        links: variables of the links, if switches are between the ranks.
    """

    arcs: tuple[Arc, ...]
    copies: tuple[tuple[Fraction, Numbers], ...]
    sums: tuple[tuple[Fraction, Numbers], ...]
    links: Numbers


def proved_rate(topology: Topology, dual: DualVariables) -> Fraction | None:
    """Bytes per second that no all_reduce beats; None if the variables prove nothing.

    Take an all_reduce of x_v bytes per second at the roots v. Towards each rank t flows all of x,
    each byte from v over a length of at least dist_t(v); and so from each rank t. What flows on an
    arc is no more than its capacity for copies, or for sums, so that

        sum_v x_v sum_t (min(worth_t, dist_t(v)) + the same of sums)  <=  sum_arcs capacity x worth

    with the larger of an arc's lengths over all t, of copies and of sums, as its worth. Capacity
    between ranks through switches is worth at least the shortest path by the links' variables.
    """
    n = topology.num_ranks
    gains = [Fraction(0)] * n
    for sides, reverse in ((dual.copies, True), (dual.sums, False)):
        for t, (most, lengths) in enumerate(sides):
            # Each byte from v towards t covers a length of at least dist_t(v), but counts at most
            # its worth.
            apart = _distances(n, dual.arcs, lengths, t, reverse)
            for v in range(n):
                gains[v] += min(most, apart[v])
    worth = [
        max(sum(column, Fraction(0)) for column in (sums, copies))
        for sums, copies in zip(
            zip(*(lengths for _, lengths in dual.sums), strict=True),
            zip(*(lengths for _, lengths in dual.copies), strict=True),
            strict=True,
        )
    ]
    paid = _cost(topology, dual, worth)
    return None if paid is None or min(gains) <= 0 else paid / min(gains)


def _cost(topology: Topology, dual: DualVariables, worth: Numbers) -> Fraction | None:
    """The worth of all capacity, with links' variables scaled so that arcs are worth enough."""
    if topology.is_direct:
        return sum(
            (b * p for b, p in zip(topology.exact_bandwidth, worth, strict=True)), Fraction()
        )
    ends = tuple(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    scale = Fraction(0)
    for u in range(topology.num_ranks):
        apart = _distances(topology.num_vertices, ends, dual.links, u, False)
        for (a, b), asked in zip(dual.arcs, worth, strict=True):
            if a == u and asked:
                if not apart[b]:
                    return None  # the links' variables are 0 along a path
                scale = max(scale, asked / apart[b])
    pairs = zip(topology.exact_bandwidth, dual.links, strict=True)
    return scale * sum((b * p for b, p in pairs), Fraction(0))


def _distances(
    count: int, arcs: Sequence[Arc], lengths: Numbers, start: int, reverse: bool
) -> dict[int, Fraction]:
    """Exact shortest distances from ``start``, or to it, by Dijkstra's algorithm."""
    near: list[list[tuple[int, Fraction]]] = [[] for _ in range(count)]
    for (u, v), length in zip(arcs, lengths, strict=True):
        tail, head = (v, u) if reverse else (u, v)
        near[tail].append((head, length))
    found: dict[int, Fraction] = {}
    queue = [(Fraction(0), start)]
    while queue:
        reached, u = heapq.heappop(queue)
        if u not in found:
            found[u] = reached
            for v, length in near[u]:
                heapq.heappush(queue, (reached + length, v))
    return found


def reached_rate(n: int, arcs: Sequence[Arc], capacity: Numbers, roots: Numbers) -> Fraction:
    """The largest rate r for which trees of total bandwidth r x roots[v] from each rank v fit.

    They fit if no cut is too narrow (Edmonds, 1973). Newton's method on cuts, as in
    ``jaxcoll.bounds.throughput``; 0 if some rank is cut off from a root.
    """
    scale = common_denominator([*capacity, *roots])
    room, weight = ([int(x * scale) for x in column] for column in (capacity, roots))
    src = np.asarray([*(u for u, _ in arcs), *[n] * n])
    network = FlowNetwork(n + 1, src, np.asarray([*(v for _, v in arcs), *range(n)]))
    # From above: every cut that is too narrow gives a lower rate, and the last one is the largest
    # that all cuts allow.
    rate = Fraction(sum(room) + 1)
    while rate:
        need = sum(weight) * rate.numerator
        held = [c * rate.denominator for c in room] + [w * rate.numerator for w in weight]
        short = network.first_short(held, n, range(n), need)
        if short is None:
            break
        inside = short.source_side
        leaving = sum(c for (u, v), c in zip(arcs, room, strict=True) if inside[u] > inside[v])
        rate = Fraction(leaving, sum(itertools.compress(weight, inside)))
    return rate


def is_routable(
    topology: Topology,
    arcs: Sequence[Arc],
    capacity: Numbers,
    flows: Sequence[Numbers],
    unit: Fraction,
) -> bool:
    """Whether flows through the switches make up the capacities between ranks, and fit the links.

    Args:
        flows: for each rank, the part of its capacity that runs over each link.
        unit: bytes per second of capacities and flows.
    """
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    load = [Fraction(0)] * topology.num_links
    wanted = [[Fraction(0)] * topology.num_vertices for _ in range(topology.num_ranks)]
    for (u, v), amount in zip(arcs, capacity, strict=True):
        wanted[u][v] += amount
        wanted[u][u] -= amount
    for flow, net in zip(flows, wanted, strict=True):
        for link, ((u, v), amount) in enumerate(zip(ends, flow, strict=True)):
            load[link] += amount
            net[v] -= amount
            net[u] += amount
    fits = all(x * unit <= b for x, b in zip(load, topology.exact_bandwidth, strict=True))
    return fits and not any(x for net in wanted for x in net)


def paths_of_flows(
    topology: Topology, arcs: Sequence[Arc], capacity: Numbers, flows: Sequence[Numbers]
) -> Iterator[tuple[int, tuple[int, ...], Fraction]]:
    """Flows through the switches as paths (arc, links, amount) that make up the capacities.

    Args:
        flows: for each rank, the part of its capacity that runs over each link (``is_routable``).
            Circulations among them are left out.
    """
    for rank in range(topology.num_ranks):
        left = list(flows[rank])
        wanted = {v: a for a, (u, v) in enumerate(arcs) if u == rank}
        missing = {v: capacity[a] for v, a in wanted.items() if capacity[a]}
        while missing:
            # Shortest paths come first, so that circulations, which cost nothing in a linear
            # program, are never used.
            path = _path(topology, left, rank, missing)
            end = int(topology.dst[path[-1]])
            amount = min(missing[end], *(left[link] for link in path))
            for link in path:
                left[link] -= amount
            missing[end] -= amount
            if not missing[end]:
                del missing[end]
            yield wanted[end], path, amount


def _path(
    topology: Topology, left: Numbers, start: int, ends: Mapping[int, Fraction]
) -> tuple[int, ...]:
    """Links of a shortest path with remaining flow, from a rank to one that lacks some."""
    near: dict[int, list[int]] = {}
    for link in np.flatnonzero(np.asarray([x > 0 for x in left])).tolist():
        near.setdefault(int(topology.src[link]), []).append(link)
    before: dict[int, int] = {start: -1}
    queue = [start]
    for u in queue:
        for link in near.get(u, []):
            v = int(topology.dst[link])
            if v not in before:
                before[v] = link
                queue.append(v)
    path, v = [], next(v for v in queue if v in ends)
    while v != start:
        path.append(before[v])
        v = int(topology.src[before[v]])
    return tuple(reversed(path))
