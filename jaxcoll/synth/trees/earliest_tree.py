"""Earliest tree: a broadcast of little data, in which the sender that is first serves a rank.

A root that sends 1 KiB to 255 ranks through one port needs 5 us for that, while latencies are 4 us
to another host and 1.4 us within a host. So the other ranks of its host, which have the data after
1.4 us, send to other hosts too, and the first rank of a host that has the data sends it to the rest
of its host.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import BUCKET_BYTES, ONE_CHUNK, SOON, Counts, Problem, Synthesizer
from jaxcoll.synth.building.circles import leaf_of_rank, ranks_per_host
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.routing.spread_routes import spread_routes
from jaxcoll.synth.trees.leaf_tree import leaf_tree
from jaxcoll.topology import Topology

_FEW_RANKS = 64


@dataclasses.dataclass(frozen=True)
class EarliestTree(Synthesizer):
    """Broadcast of all data at once down one tree, grown by the send that arrives first.

    Earliest completing edge first (Bhat, Raghavendra and Prasanna, "Efficient collective
    communication in distributed heterogeneous systems", ICDCS 1999), between hosts and within them:
    of all sends that ranks with the data could make next, the one that arrives first is made. A
    send to another host goes to the host where the fewest ranks have the data, along the sender's
    rail if other ranks are farther away. Hosts are those of ``HierarchicalTree``, of consecutive
    ranks. Where each rank has a single link, to one of several leaf switches, the tree is that of
    ``leaf_tree``.

    Attributes:
        inner: ranks per host; when omitted, hosts or leaf switches are read off the network.
        nbytes: bytes of the buffer, which occupy a rank's links for a time.

    Raises:
        CollectiveError: a field is out of range.
    """

    inner: int | None = None
    nbytes: float = BUCKET_BYTES

    name: ClassVar[str] = "earliest_tree"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"broadcast"})
    has_nbytes: ClassVar[bool] = True
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    put_off: ClassVar[float] = SOON

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "inner", or_none=True)

    def may_win(self, problem: Problem) -> bool:
        """Whether there are switches, and so many ranks that searches take long."""
        return problem.topology.num_ranks > _FEW_RANKS and not problem.topology.is_direct

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups.
            TopologyError: the network has no hosts, or hosts do not divide the ranks.
        """
        check_everyone(collective, self.name)
        root = collective.root_of(collective.groups[0])
        leaf = leaf_of_rank(topology) if self.inner is None else None
        if leaf is not None:
            src, dst = leaf_tree(topology, leaf, root, float(self.nbytes))
        else:
            src, dst = self._tree(topology, self._inner(topology), root)
        depth = np.zeros(topology.num_ranks, np.int64)
        for u, v in zip(src.tolist(), dst.tolist(), strict=True):
            depth[v] = depth[u] + 1
        order = np.argsort(depth[src], kind="stable")
        src, dst = src[order], dst[order]
        if leaf is None:
            edges = shortest_routes(topology, src, dst)
        else:
            once = np.ones(len(src), np.int64)
            edges = spread_routes(topology, src, dst, once, as_fraction(self.nbytes))
        chunks = collective.chunks_per_shard
        edge = np.repeat(np.arange(len(order)), chunks)
        chunk = np.tile(np.arange(chunks), len(order))
        return Schedule.from_sends(topology, collective, depth[src][edge], edge, chunk, edges=edges)

    def _inner(self, topology: Topology) -> int:
        """Ranks per host.

        Raises:
            TopologyError: the network has no hosts, or hosts do not divide the ranks.
        """
        inner = ranks_per_host(topology, self.name) if self.inner is None else self.inner
        if topology.num_ranks % inner:
            raise TopologyError(
                f"{self.name} takes hosts of {inner} ranks, which does not divide the "
                f"{topology.num_ranks} of {topology}; give another inner="
            )
        return inner

    def _tree(self, topology: Topology, inner: int, root: int) -> tuple[np.ndarray, np.ndarray]:
        """Sender and receiver of every send, in the order in which they arrive."""
        n, nbytes = topology.num_ranks, float(self.nbytes)
        ways = _ways(topology, inner, nbytes)
        has = np.zeros(n, bool)
        inside = np.zeros(n // inner, np.int64)  # ranks of each host that have the data
        # The next send of every rank that has the data, each way, ordered by arrival.
        coming: list[tuple[float, int, int]] = []
        found: list[tuple[int, int]] = []

        def give(rank: int, moment: float) -> None:
            has[rank] = True
            inside[rank // inner] += 1
            for index, way in enumerate(ways):
                heapq.heappush(coming, (moment + way.seconds, rank, index))

        give(root, 0.0)
        while len(found) < n - 1:
            arrival, u, index = heapq.heappop(coming)
            way = ways[index]
            v = _within(u, inner, has) if way.is_near else _beyond(u, inner, has, inside, way)
            if v is not None:
                found.append((u, v))
                heapq.heappush(coming, (arrival + way.occupied, u, index))
                give(v, arrival)
        src, dst = np.asarray(found, np.int64).T
        return src, dst


class _Way(NamedTuple):
    """A way out of a rank: to the others of its host, or to other hosts.

    Attributes:
        is_near: whether it leads to the rank's own host.
        seconds: seconds from the start of a send until it has arrived.
        occupied: seconds until the next send on that way can start.
        along_rail: whether other ranks of other hosts are farther away than those of its own index.
    """

    is_near: bool
    seconds: float
    occupied: float
    along_rail: bool = False


def _ways(topology: Topology, inner: int, nbytes: float) -> tuple[_Way, ...]:
    """The ways out of rank 0, assumed to be the same for all ranks."""
    n = topology.num_ranks
    found = []
    if inner > 1:
        found.append(_Way(True, *_taken(topology, 1, nbytes)))
    if n > inner:
        seconds, occupied = _taken(topology, inner, nbytes)
        is_straight = inner > 1 and _taken(topology, inner + 1, nbytes)[0] > seconds
        found.append(_Way(False, seconds, occupied, is_straight))
    return tuple(found)


def _taken(topology: Topology, to: int, nbytes: float) -> tuple[float, float]:
    """Seconds from rank 0 to another rank, and seconds for which the narrowest link is occupied."""
    route: Edges = shortest_routes(topology, np.array([0]), np.array([to]))
    links = route.path_link
    each = nbytes / topology.bandwidth[links]
    return float(topology.alpha[links].sum() + each.sum()), float(each.max())


def _within(u: int, inner: int, has: np.ndarray) -> int | None:
    """The next rank of u's host without the data, if any."""
    first = u // inner * inner
    missing = np.flatnonzero(~has[first : first + inner])
    return first + int(missing[0]) if missing.size else None


def _beyond(u: int, inner: int, has: np.ndarray, inside: np.ndarray, way: _Way) -> int | None:
    """A rank without the data, in the host with the fewest that have it, to which u may send."""
    lacking = np.where(has[u % inner :: inner], inner, inside) if way.along_rail else inside.copy()
    lacking[u // inner] = inner
    # Hosts after u's own come first, so that senders choose different ones.
    turned = np.roll(lacking, -(u // inner))
    host = (int(turned.argmin()) + u // inner) % len(inside)
    if lacking[host] == inner:
        return None
    own = host * inner + u % inner
    if not has[own]:
        return own
    return host * inner + int(np.flatnonzero(~has[host * inner : (host + 1) * inner])[0])
