"""A network that is asked instead of one of cables: flows share links fairly, as fluids do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.paths import forwarded_routes
from jaxcoll.probing.meter import Flow
from jaxcoll.topology import Topology


class Model:
    """A meter of a network whose truth is known.

    Args:
        truth: the network.
        noise: times are longer by up to this share of themselves.
        sees_switches: whether a switch counts as a hop.
    """

    def __init__(
        self, truth: Topology, noise: float = 0.0, sees_switches: bool = True, seed: int = 0
    ) -> None:
        self.num_ranks = truth.num_ranks
        self.truth, self._noise, self._sees = truth, noise, sees_switches
        self._generator = np.random.default_rng(seed)
        self.measurements = 0
        self.seconds = 0.0

    def _routes(self, pairs: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        src, dst = np.array(pairs).T
        edges = forwarded_routes(self.truth, src, dst)
        return np.split(edges.path_link, edges.path_ptr[1:-1])

    def hops(self) -> np.ndarray:
        n = self.num_ranks
        found = np.zeros((n, n), int)
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        for (a, b), route in zip(pairs, self._routes(pairs), strict=True):
            between = self.truth.dst[route[:-1]]
            found[a, b] = len(between) if self._sees else (between < n).sum()
        return found

    def latencies(self, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        return np.array([self.truth.alpha[route].sum() for route in self._routes(pairs)])

    def times(self, flows: Sequence[Flow]) -> np.ndarray:
        routes = self._routes([(flow.src, flow.dst) for flow in flows])
        uses = np.zeros((self.truth.num_links, len(flows)), bool)
        for i, route in enumerate(routes):
            uses[route, i] = True
        left = np.array([flow.nbytes for flow in flows], float)
        ended = np.zeros(len(flows))
        at = 0.0
        while (left > 0).any():
            rates = self._fair(uses, left > 0)
            with np.errstate(divide="ignore"):
                step = np.where(left > 0, left / np.where(rates > 0, rates, 1), np.inf).min()
            at += step
            left = np.where(left > 0, left - rates * step, 0)
            left[left < 1e-6] = 0
            ended[(left == 0) & (ended == 0)] = at
        took = ended * (1 + self._noise * self._generator.random(len(flows)))
        self.measurements += 1
        self.seconds += took.max()
        return took

    def _fair(self, uses: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Max-min fair rates: links fill together, and what crosses a full one has its rate."""
        rates = np.zeros(len(active))
        free, room = active.copy(), self.truth.bandwidth.astype(float).copy()
        while free.any():
            load = uses[:, free].sum(1)
            share = np.divide(room, load, out=np.full(len(room), np.inf), where=load > 0)
            k = int(share.argmin())
            fixed = free & uses[k]
            rates[fixed] = share[k]
            room = room - share[k] * uses[:, fixed].sum(1)
            free &= ~fixed
        return rates
