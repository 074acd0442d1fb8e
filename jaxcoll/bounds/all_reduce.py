"""The best rate of an all_reduce, by a linear program whose answer is proved (App. B.7).

Source: dissertation, App. B.7. An all_reduce may root unequal shares at the ranks, and every link
may be shared between trees that sum and trees that broadcast. The program chooses both. It also
chooses the capacities between ranks that take the place of switches.

A solver works in floats and with a tolerance, so its answer is only approximate. But any values of
the dual variables prove a bound, and any capacities for copies and sums hold some trees. So the
floats are read as fractions, and ``all_reduce_proofs`` derives both sides exactly: a rate that
nothing beats, and one that trees reach. If these are equal, the answer is exact. If the solver
failed, they are far apart but still valid.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.all_reduce_proofs import (
    DualVariables,
    is_routable,
    paths_of_flows,
    proved_rate,
    reached_rate,
)
from jaxcoll.bounds.cuts import AllReduceBound, SharedPaths
from jaxcoll.bounds.throughput import bottleneck, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.program import Program, Status
from jaxcoll.topology import Topology

# Floats are read as fractions with denominators up to each of these; the best answer counts.
_DENOMINATORS = (12, 360, 10_000, 10**6)

# Weights of the depths of all ranks, and of the largest root, relative to the value. Many solutions
# have the same value. Of these the program takes one with short trees, since each link costs alpha,
# and of those one whose roots share the work. Sums wait for nothing and run ahead; if few roots
# took them all, results would queue behind them at a switch's last link.
#
# Without the weights the answer is an arbitrary vertex, which depends on the order of the columns:
# on hosts of 3 and 2 ranks, the time was 1.06 of the optimum's in one order and 1.37 in another.
# The weights stay below what ``_DENOMINATORS`` round off, so that dual variables still prove the
# value itself: with 1e-5 they proved 1e-5 less on a mesh of 5 x 5.
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
    # From below: the dual variables, rounded to fractions with small denominators, prove a bound
    # whatever they are.
    program = _Optimum(topology, gather.inverse)
    rates = [proved_rate(topology, program.dual_variables(most)) for most in _DENOMINATORS]
    proved = [rate for rate in rates if rate is not None]
    if not proved:
        raise TopologyError(
            f"the all_reduce program on {topology} has no dual variables that prove it"
        )
    seconds = max(1 / min(proved), _smallest_cut_seconds(topology))
    # From above: two phases one after the other, and trees in the rounded primal solution.
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

    root[v] is the part of the vector that is summed at rank v. Towards every rank t there is a flow
    of all results, which starts at the roots, and from every rank t there is one of all its
    contributions. Flows to different ranks are the same data, so they may overlap (by network
    coding, or in trees), and fit a capacity as long as each of them does:

        maximize    sum of root, less a little for depths and for the largest root
        subject to  copies + sums <= room                                   for each pair of ranks
                    flow_t <= copies                                        for each t and pair
                    flow_t into v - flow_t out of v + end_t[v] >= 0         for each t and v != t
                    flow_t into t - flow_t out of t + end_t[t] >= sum of root       for each t
                    end_t[v] <= root[v]                                     for each t and v

    and the same with sums in place of copies, for flows the other way. ``end_t[v]`` is the data of
    flow t that starts at its root v. Room is the bandwidth of a link. With switches it is a
    variable: the flows ``through`` the switches from every rank to all others, which fit the links.
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
        self.root = program.add_variables(n, cost=-1.0)
        # The links that a flow crosses are the depth of its rank in trees that are packed from it.
        flows = [program.add_variables(n * pairs, cost=_DEPTH) for _ in range(2)]
        largest = program.add_variables(1, cost=_MOST_ROOTED, low=-np.inf)
        self.through = program.add_variables(0 if direct else n * links)
        self.room = program.add_variables(0 if direct else pairs)
        self.capacity = [program.add_variables(pairs) for _ in range(2)]  # of copies, of sums
        ends = [program.add_variables(n * n) for _ in range(2)]

        # Rows are numbered in the same way: for each t those of all v, or of all pairs. Products of
        # Kronecker repeat a matrix for every t.
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
        """Add the rows of copies or of sums: a flow fits the capacity, and carries all of root.

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
        """Trees in the rounded primal solution: seconds per byte, their roots and their paths.

        Empty if the rounded capacities do not fit the network, or hold no trees.
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
