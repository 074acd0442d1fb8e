"""How fast an all_reduce can be: a linear program, and whether two phases reach it.

Dissertation, App. B.7. An all_reduce may root unequal shares at the ranks, and share every link
between trees that sum and trees that broadcast. The program chooses both; switches are replaced
by capacities between ranks, which it chooses too. Its solution is a float, and a bound.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from jaxcoll.errors import TopologyError
from jaxcoll.throughput import bottleneck
from jaxcoll.topology import Topology

_TOLERANCE = 1e-6  # relative, of the solver's optimum


@dataclasses.dataclass(frozen=True)
class AllReduceBound:
    """The least time of an all_reduce, latency aside.

    Attributes:
        seconds: seconds a byte of the vector that is reduced, by the linear program.
        two_phases: seconds a byte of an optimal reduce_scatter and then an optimal all_gather.
        roots: bytes a second that are summed at each rank and broadcast from it, float64.
    """

    seconds: float
    two_phases: Fraction
    roots: np.ndarray

    @property
    def two_phases_reach_it(self) -> bool:
        """Whether nothing is to be gained over reduce_scatter and all_gather."""
        return float(self.two_phases) <= self.seconds * (1 + _TOLERANCE)


def all_reduce_bound(topology: Topology) -> AllReduceBound:
    """Solve (B.5), with switches (App. B.7), by HiGHS.

    Variables number about 2 n x pairs of ranks with capacity: some 16 ranks take a second.

    Raises:
        TopologyError: one rank, or the solver gives up.
    """
    n = topology.num_ranks
    if n < 2:
        raise TopologyError(f"with {n} rank there is nothing to reduce")
    # In units of the fastest link: solvers like numbers near 1.
    unit = float(topology.bandwidth.max())
    src, dst, room, constraints = _between_ranks(topology, unit)
    pairs = len(src)
    into = sp.csr_matrix((np.ones(pairs), (dst, np.arange(pairs))), (n, pairs))
    out = sp.csr_matrix((np.ones(pairs), (src, np.arange(pairs))), (n, pairs))
    root = cp.Variable(n, nonneg=True)  # x_v
    for_sums, for_copies = cp.Variable(pairs, nonneg=True), cp.Variable(pairs, nonneg=True)
    constraints.append(for_sums + for_copies <= room)
    # Column t: a flow of all x from the added source to rank t (copies), or from t to it (sums).
    for capacity, gained, lost in ((for_copies, into, out), (for_sums, out, into)):
        flow = cp.Variable((pairs, n), nonneg=True)
        ends = cp.Variable((n, n), nonneg=True)
        constraints += [
            flow <= cp.reshape(capacity, (pairs, 1), order="C") @ np.ones((1, n)),
            ends <= cp.reshape(root, (n, 1), order="C") @ np.ones((1, n)),
            (gained - lost) @ flow + ends >= cp.sum(root) * np.eye(n),
        ]
    problem = cp.Problem(cp.Maximize(cp.sum(root)), constraints)
    problem.solve(solver=cp.HIGHS)
    if problem.status != cp.OPTIMAL or root.value is None:
        raise TopologyError(f"the all_reduce program on {topology} ended {problem.status}")
    gather, scatter = bottleneck(topology), bottleneck(topology.transpose())
    return AllReduceBound(
        1 / (float(root.value.sum()) * unit),
        (gather.inverse + scatter.inverse) / n,
        root.value * unit,
    )


def _between_ranks(topology: Topology, unit: float) -> tuple:
    """Pairs of ranks, what each can carry (a variable, with switches), and what limits that."""
    n, links = topology.num_ranks, topology.num_links
    speed = topology.bandwidth / unit
    if topology.is_direct:
        return topology.src, topology.dst, speed, []
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    room = cp.Variable(n * (n - 1), nonneg=True)
    # Column a: what flows from rank a to all others, over every link.
    flow = cp.Variable((links, n), nonneg=True)
    shape, ones, every = (topology.num_vertices, links), np.ones(links), np.arange(links)
    into = sp.csr_matrix((ones, (topology.dst, every)), shape)
    out = sp.csr_matrix((ones, (topology.src, every)), shape)
    # What ends at each vertex: the pair's room at ranks, nothing at switches; rank a sends it all.
    pairs = len(src)
    place = sp.csr_matrix((np.ones(pairs), (dst * n + src, np.arange(pairs))), (n * n, pairs))
    arriving = cp.reshape(place @ room, (n, n), order="C")
    net = (into - out) @ flow
    off = np.ones((n, n)) - np.eye(n)
    return (
        src,
        dst,
        room,
        [
            cp.sum(flow, axis=1) <= speed,
            cp.multiply(net[:n], off) == cp.multiply(arriving, off),
            net[n:] == 0,
        ],
    )
