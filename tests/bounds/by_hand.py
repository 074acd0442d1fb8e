"""Schedules that a person would draw: trees to a middle and back, stars, chains, detours.

Written against no synthesizer, so that what holds bounds to them is independent of the library's
own ways. All are sound by construction; tests verify them all the same.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from fractions import Fraction

from jaxcoll import Collective, Schedule, Topology
from tests.reference import Send, schedule_of

Path = tuple[int, ...]
Steps = list[tuple[int, int, Path]]  # from rank to rank over links, nearest to the root first


def tree(topology: Topology, root: int, length: Callable[[int], float]) -> dict[int, list]:
    """The shortest way from a root to each rank, as links with the rank that each begins at.

    Returns:
        For every rank but the root, its parent (a rank) and the path of links from there, in the
        order in which they are reached.
    """
    out: dict[int, list[int]] = {}
    for link in range(topology.num_links):
        out.setdefault(int(topology.src[link]), []).append(link)
    reached: dict[int, list] = {}
    queue: list[tuple] = [(0.0, 0, root, root, ())]
    count = 0
    seen = set()
    while queue:
        away, _, vertex, parent, path = heapq.heappop(queue)
        if vertex in seen:
            continue
        seen.add(vertex)
        if vertex < topology.num_ranks:
            if vertex != root:
                reached[vertex] = [parent, path]
            parent, path = vertex, ()
        for link in out.get(vertex, ()):
            count += 1
            queue_entry = (away + length(link), count, int(topology.dst[link]), parent)
            heapq.heappush(queue, (*queue_entry, (*path, link)))
    return reached


def _pruned(found: Mapping[int, list], root: int, wanted: set[int]) -> list[tuple[int, int, Path]]:
    """(depth, rank, path) of the ways that lead to wanted ranks; the root's have depth 1."""
    needed: set[int] = set()
    for rank in wanted - {root}:
        while rank != root and rank not in needed:
            needed.add(rank)
            rank = found[rank][0]
    depth = {root: 0}
    listed = []
    for rank, (parent, path) in found.items():
        if rank in needed:
            depth[rank] = depth[parent] + 1
            listed.append((depth[rank], rank, path))
    return listed


class Hand:
    """Trees on a network by the latency and load that a chunk meets there."""

    def __init__(self, topology: Topology, chunk_bytes: float) -> None:
        back = topology.transpose()
        self.topology = topology

        def length(of: Topology) -> Callable[[int], float]:
            return lambda link: float(of.alpha[link] + chunk_bytes / of.bandwidth[link])

        self.out = [tree(topology, m, length(topology)) for m in range(topology.num_ranks)]
        # Trees on the reversed network, each link of it named by the link that it is reversed.
        image = _reversed_links(topology, back)
        self.into = [
            {
                rank: [parent, tuple(image[link] for link in path[::-1])]
                for rank, (parent, path) in tree(back, m, length(back)).items()
            }
            for m in range(topology.num_ranks)
        ]

    def copies(self, chunk: int, root: int, wanted: set[int], after: int = 0) -> list[Send]:
        """From the root to all in ``wanted``, nearest first."""
        return [
            Send(after + depth - 1, path, chunk, False)
            for depth, _, path in _pruned(self.out[root], root, wanted)
        ]

    def sums(self, chunk: int, root: int, members: set[int]) -> list[Send]:
        """Contributions of all ``members`` to the root, farthest first."""
        ways = _pruned(self.into[root], root, members)
        most = max((depth for depth, _, _ in ways), default=0)
        return [Send(most - depth, path, chunk, True) for depth, _, path in reversed(ways)]

    def schedule(self, what: Collective, places: list[int]) -> Schedule:
        """A schedule of any kind; sums that several ranks get meet in ``places``, in turn."""
        sends: list[Send] = []
        for chunk in range(what.num_chunks):
            members = set(what.groups[int(what.group_of_chunk[chunk])])
            owner, target = int(what.owner[chunk]), int(what.target[chunk])
            match what.kind:
                case "all_gather" | "broadcast":
                    sends += self.copies(chunk, owner, members)
                case "gather" | "all_to_all":
                    sends += self.copies(chunk, owner, {target})
                case "scatter":
                    sends += self.copies(chunk, target, {owner})
                case "reduce_scatter" | "reduce":
                    sends += self.sums(chunk, owner, members)
                case "all_reduce" | "reduce_to_some":
                    if len(members) < 2:
                        continue
                    wanted = members
                    if what.kind == "reduce_to_some":
                        group = what.groups[int(what.group_of_chunk[chunk])]
                        wanted = {group[at] for at in what.roots}
                    place = places[chunk % len(places)]
                    first = self.sums(chunk, place, members)
                    after = 1 + max((send.step for send in first), default=-1)
                    sends += first + self.copies(chunk, place, wanted, after)
        return schedule_of(self.topology, what, sorted(sends, key=lambda send: send.step))


def _reversed_links(topology: Topology, back: Topology) -> list[int]:
    """For each link of the reversed network, the link it is the reverse of."""
    ends = range(topology.num_links)

    def key(of: Topology, link: int, flipped: bool) -> tuple:
        u, v = int(of.src[link]), int(of.dst[link])
        u, v = (v, u) if flipped else (u, v)
        return u, v, float(of.alpha[link]), Fraction(of.exact_bandwidth[link])

    mine = sorted(ends, key=lambda link: key(topology, link, False))
    theirs = sorted(ends, key=lambda link: key(back, link, True))
    image = [0] * len(mine)
    for link, reverse in zip(mine, theirs, strict=True):
        image[reverse] = link
    return image


def meeting_places(topology: Topology, what: Collective, rng: random.Random) -> list[list[int]]:
    """Where to let sums meet: in every rank, in a few in turn, in those of the group in turn."""
    n = topology.num_ranks
    if what.kind not in ("all_reduce", "reduce_to_some"):
        return [[0]]
    members = [rank for group in what.groups for rank in group]
    several = [rng.sample(range(n), min(n, size)) for size in (2, 3)]
    return [[m] for m in range(n)] + [*several, members]
