"""Switch unwinding: links between ranks replace the switches between them (TACOS, Sec. IV-G).

A switch with ports 0..P-1 is unwound with a degree d by joining the ranks behind port p to those
behind ports p+1, ..., p+d (mod P). A port leads to a rank, or to a switch nearer to ranks; then the
ranks behind two ports are joined in order, the first to the first. Each resulting link stands for a
path through the switches and shares the links of that path with other paths. All paths get max-min
fair shares of the bandwidth, which on a single switch are 1/d of it, as in the paper.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from jaxcoll.links import canonical_order
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

_Path = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Unwound:
    """A network without its switches.

    Attributes:
        topology: the links between ranks.
        edges: edges of the real network; link i of ``topology`` stands for edge i.
    """

    topology: Topology
    edges: Edges

    def carry(self, found: Schedule, topology: Topology) -> Schedule:
        """A schedule of the unwound network, carried over to the real one.

        Sends of a step that had separate links now share the links of a switch. From every rank,
        sends to the next rank come first, then sends to the one after it, and so on round, so that
        many ranks never send to one rank at the same time.
        """
        n = topology.num_ranks
        turn = (self.edges.dst - self.edges.src) % n
        order = np.lexsort((found.edge, turn[found.edge], found.step))
        return Schedule(
            topology,
            found.collective,
            self.edges,
            found.step_ptr,
            found.edge[order],
            found.chunk[order],
            found.reduce[order],
        )


def degrees(topology: Topology) -> tuple[int, ...]:
    """Degrees worth trying: all up to 8, then powers of two, and the largest possible one."""
    most = max((len(ports) for ports in _ports(topology).values()), default=2) - 1
    most = max(most, 1)
    few = {*range(1, min(most, 8) + 1), most}
    return tuple(sorted(few | {2**i for i in range(3, most.bit_length())}))


@functools.lru_cache(maxsize=16)
def hops_unwound(topology: Topology) -> int:
    """Links of all paths through switches, one after another, of all degrees worth trying.

    A fat tree has as many switches at the top as at the bottom, each with all ranks below it.
    """
    level = topology.hops_to_rank
    turns = np.asarray(degrees(topology))
    return sum(
        2 * int(level[switch]) * sum(map(len, ports)) * int(turns.clip(max=len(ports) - 1).sum())
        for switch, ports in _ports(topology).items()
    )


def unwound(topology: Topology, degree: int | str) -> Iterator[tuple[int, Unwound]]:
    """The network unwound with a degree or, for "best", with each degree worth trying."""
    for each in (int(degree),) if degree != "best" else degrees(topology):
        yield each, unwind(topology, each)


def unwind(topology: Topology, degree: int) -> Unwound:
    """The network with every switch unwound; a switch with fewer ports is unwound with all.

    If that leaves the ranks disconnected, every group of connected switches is treated as one
    switch whose ports are the ranks.
    """
    wires = _Wires(topology)
    # Unwinding port by port comes first, because each link then stands for a way through one
    # switch. The wider ways are taken only if ranks would be disconnected otherwise.
    paths = _through_ports(topology, wires, degree)
    if not _connects(topology, paths):
        paths = _through_all(topology, wires, degree)
    if not _connects(topology, paths):
        paths = _through_all(topology, wires, topology.num_ranks)
    return _build(topology, paths)


# ---------------------------------------------------------------------- which links to take


class _Wires:
    """The links between vertices; parallel links are taken in turn."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for link, ends in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
            self.between[ends].append(link)
        self.out: dict[int, list[int]] = defaultdict(list)
        for u, v in self.between:
            self.out[u].append(v)
        self.load = [Fraction(0)] * topology.num_links

    def along(self, vertices: list[int]) -> _Path:
        """The links along a path; of parallel links the one with the least load."""
        taken = []
        for ends in itertools.pairwise(vertices):
            links = self.between[ends]
            link = links[0]
            if len(links) > 1:
                # The load counts relative to the bandwidth; without it the first link would get
                # everything.
                link = min(links, key=lambda i: self.load[i])
                self.load[link] += 1 / self.topology.exact_bandwidth[link]
            taken.append(link)
        return tuple(taken)


def _ports(topology: Topology) -> dict[int, list[list[int]]]:
    """The ranks behind each port of every switch with at least two ports, lowest switches first."""
    level = topology.hops_to_rank
    below: dict[int, set[int]] = defaultdict(set)
    for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        for switch, other in ((u, v), (v, u)):
            if level[other] == level[switch] - 1:
                below[switch].add(other)
    ranks = {rank: [rank] for rank in range(topology.num_ranks)}
    found = {}
    for switch in sorted(below, key=lambda s: (level[s], s)):
        ports = sorted(ranks[child] for child in below[switch])
        ranks[switch] = sorted({rank for port in ports for rank in port})
        if len(ports) > 1:
            found[switch] = ports
    return found


def _through_ports(topology: Topology, wires: _Wires, degree: int) -> dict[_Path, None]:
    level = topology.hops_to_rank
    paths: dict[_Path, None] = {}
    back = defaultdict(list)
    for u, v in wires.between:
        back[v].append(u)

    def is_down(u: int, v: int) -> bool:
        return bool(level[v] == level[u] - 1)

    for switch, ports in _ports(topology).items():
        up = _ways(switch, back, is_down)
        down = _ways(switch, wires.out, is_down)
        for turn in range(1, min(degree, len(ports) - 1) + 1):
            for p, senders in enumerate(ports):
                receivers = ports[(p + turn) % len(ports)]
                for i, u in enumerate(senders):
                    # Join the i-th rank behind one port to the i-th behind the other, so that rails
                    # stay rails.
                    v = receivers[i % len(receivers)]
                    if u != v and u in up and v in down:
                        paths[wires.along(up[u][::-1] + down[v][1:])] = None
    return paths


def _ways(
    start: int, near: dict[int, list[int]], goes: Callable[[int, int], bool]
) -> dict[int, list[int]]:
    """Paths from ``start`` to every vertex that allowed links lead to, found breadth first."""
    way, queue = {start: [start]}, [start]
    for u in queue:  # the loop appends to it
        for v in near[u]:
            if v not in way and goes(u, v):
                way[v] = [*way[u], v]
                queue.append(v)
    return way


def _through_all(topology: Topology, wires: _Wires, degree: int) -> dict[_Path, None]:
    """Paths from every rank to the next ``degree`` ranks that it reaches through switches only."""
    n = topology.num_ranks
    paths: dict[_Path, None] = {}
    for u in range(n):

        def goes(w: int, v: int, first: int = u) -> bool:
            # Ranks end a path: beyond them another link of the unwound network begins.
            return w >= n or (w == first and v >= n)

        way = _ways(u, wires.out, goes)
        nearest = sorted((v for v in way if v < n and v != u), key=lambda v: (v - u) % n)
        for v in nearest[:degree]:
            paths[wires.along(way[v])] = None
    return paths


# ---------------------------------------------------------------------- the network that results


def _connects(topology: Topology, paths: dict[_Path, None]) -> bool:
    """Whether paths through switches and links between ranks join all ranks."""
    n = topology.num_ranks
    direct = np.maximum(topology.src, topology.dst) < n
    src = [*topology.src[direct], *(topology.src[path[0]] for path in paths)]
    dst = [*topology.dst[direct], *(topology.dst[path[-1]] for path in paths)]
    graph = sp.csr_matrix((np.ones(len(src), np.int8), (src, dst)), shape=(n, n))
    parts, _ = sp.csgraph.connected_components(graph, directed=True, connection="strong")
    return parts == 1


def _build(topology: Topology, paths: dict[_Path, None]) -> Unwound:
    n = topology.num_ranks
    direct = np.flatnonzero(np.maximum(topology.src, topology.dst) < n)
    through = list(paths)
    every = [(int(link),) for link in direct] + through
    share = [topology.exact_bandwidth[link] for link in direct]
    share += _fair_shares(topology, through)
    src = np.asarray([topology.src[path[0]] for path in every], np.int32)
    dst = np.asarray([topology.dst[path[-1]] for path in every], np.int32)
    # The exact sum of a path's latencies, computed and rounded once for all equal paths.
    alphas = [tuple(topology.alpha[list(path)].tolist()) for path in every]
    total = {each: float(sum(map(as_fraction, each), Fraction(0))) for each in set(alphas)}
    latency = [total[each] for each in alphas]
    # A ``Topology`` sorts its links; the edges must be in the same order.
    order = canonical_order(src, dst, np.asarray(latency), np.asarray(share, float), share)
    return Unwound(
        Topology(n, src, dst, latency, share, name=f"{topology.name} unwound"),  # type: ignore[arg-type]
        Edges(
            src[order],
            dst[order],
            np.cumsum([0, *(len(every[i]) for i in order)]),
            np.asarray([link for i in order for link in every[i]], np.int32),
        ),
    )


def _fair_shares(topology: Topology, paths: list[_Path]) -> list[Fraction]:
    """Max-min fair bandwidth of every path, in bytes per second.

    The shares of all paths rise together; when a link is full, those of the paths across it stay.
    """
    users: dict[int, set[int]] = defaultdict(set)
    for p, path in enumerate(paths):
        for link in path:
            users[link].add(p)
    left = {link: topology.exact_bandwidth[link] for link in users}
    share = [Fraction(0)] * len(paths)
    while users:
        # Bertsekas and Gallager's progressive filling, in exact numbers, so that links that fill at
        # the same level compare equal.
        least = min(left[link] / len(rising) for link, rising in users.items())
        full = [link for link, rising in users.items() if left[link] == least * len(rising)]
        done = {p for link in full for p in users[link]}
        for p in done:
            share[p] = least
        for link in {link for p in done for link in paths[p]}:
            rising = users[link] - done
            left[link] -= least * (len(users[link]) - len(rising))
            if rising:
                users[link] = rising
            else:
                del users[link]
    return share
