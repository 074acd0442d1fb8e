"""How fast an all_reduce can be: a linear program, and whether two phases reach it; exact.

Dissertation, App. B.7. An all_reduce may root unequal shares at the ranks, and share every link
between trees that sum and trees that broadcast. The program chooses both; switches are replaced
by capacities between ranks, which it chooses too. A solver answers in floats; the results are
computed from them exactly: dual variables that prove a bound, and shares and capacities that trees
reach.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse as sp

try:
    import cvxpy as cp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the linear program of an all_reduce needs the package cvxpy: pip install cvxpy",
        name="cvxpy",
    ) from error

from jaxcoll.bounds.cuts import AllReduceBound, SharedPaths
from jaxcoll.bounds.dual_variables import (
    DualVariables,
    is_routable,
    paths_of_flows,
    proved_rate,
    reached_rate,
)
from jaxcoll.bounds.throughput import bottleneck, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.topology import Topology

# Floats are taken for fractions with denominators up to these; the best answer of all counts.
_DENOMINATORS = (12, 360, 10_000, 10**6)


# Seconds per byte that trees take, the shares of their roots, and the paths they share.
_Reached = tuple[Fraction, tuple[Fraction, ...], SharedPaths | None]


def all_reduce_bound(topology: Topology) -> AllReduceBound:
    """Solve (B.5), with switches (App. B.7), by HiGHS, and prove what it says.

    Variables number about 2 n x pairs of ranks with capacity: some 16 ranks take a second.

    Raises:
        TopologyError: one rank, or the solver gives up.
    """
    n = topology.num_ranks
    if n < 2:
        raise TopologyError(f"with {n} rank there is nothing to reduce")
    gather, scatter = bottleneck(topology), bottleneck(topology.transpose())
    program = _Program(topology, gather.inverse)
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

    The solver does not see the slowest links of a cut with others 10^9 times as fast.
    """
    one = [1] + [0] * (topology.num_ranks - 1)
    return max(bottleneck(way, one).inverse for way in (topology, topology.transpose()))


def _is_balanced(topology: Topology) -> bool:
    try:
        check_balanced(topology)
    except TopologyError:
        return False
    return True


class _Program:
    """(B.5), solved: columns t are a flow of all x to rank t (copies), or from it (sums)."""

    def __init__(self, topology: Topology, gather: Fraction):
        """Build and solve the program; ``gather`` is max |S| / c(S), in seconds per byte."""
        n, self.topology = topology.num_ranks, topology
        # Every byte of the vector crosses every cut, once as a part or once as a sum, so no
        # all_reduce is faster than n / gather. Solvers like numbers near 1, so that is the unit.
        self.unit = n / gather
        src, dst, room, self.limits = self._between_ranks()
        self.arcs = tuple(zip(src.tolist(), dst.tolist(), strict=True))
        pairs = len(src)
        into = sp.csr_matrix((np.ones(pairs), (dst, np.arange(pairs))), (n, pairs))
        out = sp.csr_matrix((np.ones(pairs), (src, np.arange(pairs))), (n, pairs))
        self.root = cp.Variable(n, nonneg=True)  # x_v
        self.capacity = [cp.Variable(pairs, nonneg=True) for _ in range(2)]  # of copies, of sums
        self.shared = self.capacity[0] + self.capacity[1] <= room
        self.within, self.demands = [], []
        constraints = [*self.limits, self.shared]
        for capacity, gained, lost in zip(self.capacity, (into, out), (out, into), strict=True):
            flow = cp.Variable((pairs, n), nonneg=True)
            ends = cp.Variable((n, n), nonneg=True)
            self.within.append(
                flow <= cp.reshape(capacity, (pairs, 1), order="C") @ np.ones((1, n))
            )
            self.demands.append((gained - lost) @ flow + ends >= cp.sum(self.root) * np.eye(n))
            most = ends <= cp.reshape(self.root, (n, 1), order="C") @ np.ones((1, n))
            constraints += [self.within[-1], self.demands[-1], most]
        problem = cp.Problem(cp.Maximize(cp.sum(self.root)), constraints)
        # SciPy runs HiGHS too, but silently: HiGHS 1.16 prints its name when cvxpy constructs it.
        problem.solve(solver=cp.SCIPY, scipy_options={"method": "highs"})
        if problem.status != cp.OPTIMAL:
            raise TopologyError(f"the all_reduce program on {topology} ended {problem.status}")

    def _between_ranks(self) -> tuple:
        """Pairs of ranks, what each can carry (a variable, with switches), and what limits that."""
        topology = self.topology
        n, links = topology.num_ranks, topology.num_links
        # No link carries more than all bytes of all pairs of ranks, once as parts and once as sums.
        # Faster links are taken to be just that fast: unlike coefficients mislead the solver.
        most = 2 if topology.is_direct else 2 * n * n
        speed = np.asarray([float(min(b / self.unit, most)) for b in topology.exact_bandwidth])
        self.flow = self.room = None
        if topology.is_direct:
            return topology.src, topology.dst, speed, []
        src, dst = np.nonzero(~np.eye(n, dtype=bool))
        self.room = cp.Variable(n * (n - 1), nonneg=True)
        # Column a: what flows from rank a to all others, over every link.
        self.flow = cp.Variable((links, n), nonneg=True)
        shape, ones, every = (topology.num_vertices, links), np.ones(links), np.arange(links)
        into = sp.csr_matrix((ones, (topology.dst, every)), shape)
        out = sp.csr_matrix((ones, (topology.src, every)), shape)
        # What ends at each vertex: the pair's room at ranks, nothing at switches; rank a sends all.
        pairs = len(src)
        place = sp.csr_matrix((np.ones(pairs), (dst * n + src, np.arange(pairs))), (n * n, pairs))
        arriving = cp.reshape(place @ self.room, (n, n), order="C")
        net = (into - out) @ self.flow
        off = np.ones((n, n)) - np.eye(n)
        limits = [
            cp.sum(self.flow, axis=1) <= speed,
            cp.multiply(net[:n], off) == cp.multiply(arriving, off),
            net[n:] == 0,
        ]
        return src, dst, self.room, limits

    def dual_variables(self, most: int) -> DualVariables:
        """The dual solution, rounded to fractions with denominators up to ``most``."""
        copies, sums = (
            tuple(
                (_fraction(worth, most), _fractions(lengths, most))
                for worth, lengths in zip(
                    np.diag(demand.dual_value), np.asarray(within.dual_value).T, strict=True
                )
            )
            for within, demand in zip(self.within, self.demands, strict=True)
        )
        links = _fractions(self.limits[0].dual_value, most) if self.limits else []
        return DualVariables(self.arcs, copies, sums, links)

    def trees(self, most: int) -> list[_Reached]:
        """Seconds per byte of trees in the rounded primal solution, their roots and their paths.

        Nothing if the rounded capacities do not fit the network, or reach nothing.
        """
        n, topology = self.topology.num_ranks, self.topology
        roots = _fractions(self.root.value, most)
        copies = _fractions(self.capacity[0].value, most)
        flows = None
        if self.room is None or self.flow is None:
            room = [b / self.unit for b in topology.exact_bandwidth]
        else:
            room = _fractions(self.room.value, most)
            flows = [_fractions(flow, most) for flow in np.asarray(self.flow.value).T]
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


def _fractions(values: Any, most: int) -> list[Fraction]:
    return [_fraction(value, most) for value in np.asarray(values)]


def _fraction(value: float, most: int) -> Fraction:
    return max(Fraction(0), Fraction(float(value)).limit_denominator(most))
