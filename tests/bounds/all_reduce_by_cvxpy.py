"""The linear program of an all_reduce as App. B.7 prints it, for another solver."""

from __future__ import annotations

import cvxpy as cp
import numpy as np

from jaxcoll.topology import Topology


def most_bytes_per_second(topology: Topology) -> float:
    """The bytes of an all_reduce's vector that every second can sum and copy.

    x[v] is the part of the vector that is summed at rank v; flow[:, t] is all of x on its way to
    rank t as results, and from rank t as contributions. The two kinds share what pairs of ranks can
    carry, and flows of one kind are the same data, of which the largest counts.
    """
    n, fastest = topology.num_ranks, float(topology.bandwidth.max())
    speed = topology.bandwidth / fastest
    src, dst, room, limits = _between_ranks(topology, speed)
    x = cp.Variable(n, nonneg=True)
    capacity = [cp.Variable(len(src), nonneg=True) for _ in range(2)]
    constraints = [*limits, capacity[0] + capacity[1] <= room]
    enters, leaves = _ends(src, dst, n)
    for carried, gained, lost in zip(capacity, (enters, leaves), (leaves, enters), strict=True):
        for t in range(n):
            flow, begins = cp.Variable(len(src), nonneg=True), cp.Variable(n, nonneg=True)
            at_t = np.eye(n)[t]
            constraints += [
                flow <= carried,
                begins <= x,
                (gained - lost) @ flow + begins >= cp.sum(x) * at_t,
            ]
    problem = cp.Problem(cp.Maximize(cp.sum(x)), constraints)
    problem.solve(solver=cp.CLARABEL)
    if problem.status != cp.OPTIMAL:
        raise AssertionError(f"the oracle ended {problem.status}")
    return float(problem.value) * fastest  # type: ignore[arg-type]


def _ends(src: np.ndarray, dst: np.ndarray, vertices: int) -> tuple[np.ndarray, np.ndarray]:
    """1 where an arc enters a vertex, and where it leaves one."""
    every = np.arange(vertices)[:, None]
    return (every == dst).astype(float), (every == src).astype(float)


def _between_ranks(topology: Topology, speed: np.ndarray) -> tuple:
    """Pairs of ranks, what each can carry, and what limits that where switches join them."""
    if topology.is_direct:
        return topology.src, topology.dst, speed, []
    n = topology.num_ranks
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    room = cp.Variable(len(src), nonneg=True)
    enters, leaves = _ends(topology.src, topology.dst, topology.num_vertices)
    flows = [cp.Variable(topology.num_links, nonneg=True) for _ in range(n)]
    limits: list = [sum(flows) <= speed]
    for rank, flow in enumerate(flows):
        net = (enters - leaves) @ flow
        limits += [net[int(v)] == room[k] for k, v in enumerate(dst) if src[k] == rank]
        if topology.num_vertices > n:
            limits.append(net[n:] == 0)
    return src, dst, room, limits
