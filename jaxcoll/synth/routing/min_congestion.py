"""Minimum congestion: data for single ranks over paths that share the load among the links.

Every chunk moves to one rank; Van de Geijn's broadcast (``van_de_geijn``) begins with such a move.
One after another, chunks take the path that is cheapest at the loads so far; a link costs more the
nearer it is to being the fullest. Then every chunk is taken out and routed again, because the first
chunks could not see the later ones. Finally the order on links is chosen: the chunk with the
longest remaining way leaves first, since a run is as long as its slowest chunk.

For example, on a ring of 3 ranks each pair is joined by a link, and no rank forwards. Without the
link from 0 to 1, chunks from 0 to 1 go over 2, on one link together with those from 0 to 2, and on
another with those from 2 to 1.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks, heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import DOUBLINGS, Counts, Problem, Synthesizer
from jaxcoll.synth.building.list_scheduling import as_they_arrive, link_ticks
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.topology import Topology

# Passes and rounds of the variant that auto tries for groups.
_MORE_PASSES, _ROUNDS = 6, 2
# Up to this many ranks, all data of a rank are one batch; with more, batches may be cut into parts,
# each of which goes to this many ranks.
_FEW_RANKS, _PART = 64, 4
# The most times that everything is routed.
_MOST_ROUTINGS = 6
# A link is too full if its load is more than the first times that of the link that is, by load, as
# far down as the second says, or farther on large networks.
_FULLER, _FULL_LINKS = 1.05, 16


@dataclasses.dataclass(frozen=True)
class MinCongestion(Synthesizer):
    """Every chunk takes the path of least latency and congestion; links serve the farthest first.

    Minimum-congestion routing by dual variables (Raghavan and Thompson, "Randomized rounding",
    1987, state the problem; Basu et al., "Efficient all-to-all collective communication schedules
    for direct-connect topologies", HPDC 2024, route all_to_all that way). A link costs
    alpha + bytes / bandwidth, and more the nearer it is to being the fullest by the chunks routed
    so far. So small data take the paths of least latency, and large data spread.

    A message is a chunk. It leaves a rank as soon as it has arrived and the link is free; if
    several wait, the one with the longest remaining way leaves first. The chunks of a shard may
    take different paths, so more chunks share the load more evenly, and wait less to be stored and
    forwarded.

    Attributes:
        nbytes: bytes of a rank's buffer to route for; 64 MiB when omitted.
        passes: number of times that every chunk is routed.
        power: a link's load counts times (its load / the load of the fullest link) to this power.
            With 0 the way of every chunk is short, which is best for little data.
        rounds: the most improvements of the order on links (``list_scheduling``). Where ranks
            outside a group forward for it, the longest way first takes up to 1.3 of the bound, and
            two rounds bring that to 1.02.

    Raises:
        CollectiveError: a field is out of range.
    """

    nbytes: float = 2**26
    passes: int = 2
    power: int = 5
    rounds: int = 0

    name: ClassVar[str] = "min_congestion"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.moves)
    has_nbytes: ClassVar[bool] = True
    series: ClassVar[tuple[Counts, ...]] = (DOUBLINGS,)  # more chunks share the load more evenly
    hop_work: ClassVar[float | None] = 2.0  # every link of a path is searched and simulated

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "passes")
        power = checks.integer(self.power, "power", CollectiveError, least=0, most=100)
        rounds = checks.integer(self.rounds, "rounds", CollectiveError, least=0)
        checks.put(self, power=power, rounds=rounds)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """Both powers that were best for some problems, and a better order with more passes."""
        return cls(), cls(power=0), cls(passes=_MORE_PASSES, rounds=_ROUNDS)

    def may_win(self, problem: Problem) -> bool:
        """Whether improving the order may help; between all ranks it gains at most a percent."""
        taking_part = sum(len(group) for group in problem.collective.groups)
        return not self.rounds or taking_part < problem.topology.num_ranks

    def _routed(self, topology: Topology, collective: Collective) -> tuple[np.ndarray, _Sends]:
        """The chunks in the order of their routing, and the sends along the best routes found."""
        parted = np.zeros(topology.num_ranks, bool)
        routed = best = self._routed_once(topology, collective, parted)
        if topology.num_ranks <= _FEW_RANKS:
            return best
        # A batch does not see its own load, so all data of a rank may take one slow link, or leave
        # it empty. The data of ranks that fill a link alone are therefore routed in parts. Other
        # ranks may then fill another link, so the best of all routings is kept.
        least = np.inf
        for left in reversed(range(_MOST_ROUTINGS)):
            order, (path_ptr, path, place, _) = routed
            source = collective.ends(collective.traits.before)[order[place]]
            fullest, alone = _filling_alone(topology, path_ptr, path, source)
            if fullest < least:
                best, least = routed, fullest
            if not left or parted[alone].all():
                break
            parted[alone] = True
            routed = self._routed_once(topology, collective, parted)
        return best

    def _routed_once(
        self, topology: Topology, collective: Collective, parted: np.ndarray
    ) -> tuple[np.ndarray, _Sends]:
        """One routing of all chunks.

        Args:
            parted: the ranks whose data are cut into parts, bool of shape (ranks,).
        """
        order, source, target, batch_ptr = _batches(collective, parted)
        hops = 4 * len(order) * topology.num_vertices
        busy, delay = link_ticks(topology, collective, as_fraction(self.nbytes), hops)
        ptr, link = topology.out_links
        src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
        ones = np.ones(len(target), np.int64)
        into = route(
            ptr, link, src, dst, busy, delay, source, target, ones, batch_ptr, self.passes,
            self.power, np.zeros(topology.num_links, np.int64),
        )  # fmt: skip
        return order, sends_along(into, src, topology.num_ranks, source, target, batch_ptr)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        nbytes = as_fraction(self.nbytes)
        order, (path_ptr, path, place, before) = self._routed(topology, collective)
        if topology.is_direct:
            edges, edge = Edges.from_links(topology), path
        else:
            edges, edge = distinct_edges(topology, path_ptr, path)
        return as_they_arrive(
            topology, collective, edges, edge, order[place], before, nbytes, self.rounds
        )


# What ``sends_along`` returns: path_ptr, path_link, chunk, before.
_Sends = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _filling_alone(
    topology: Topology, path_ptr: np.ndarray, path: np.ndarray, source: np.ndarray
) -> tuple[float, np.ndarray]:
    """The load of the fullest link, and, if few are as full, the ranks with a quarter of it each.

    Args:
        path_ptr, path: the links of each send.
        source: the rank that has each send's chunk before.
    """
    load = np.bincount(path, minlength=topology.num_links) / topology.bandwidth
    many = min(topology.num_links, max(_FULL_LINKS, topology.num_links // 64))
    fullest = float(load.max())
    if fullest <= _FULLER * np.partition(load, -many)[-many]:
        return fullest, np.zeros(0, np.int64)
    crossing = np.repeat(source, np.diff(path_ptr))[path == load.argmax()]
    return fullest, np.flatnonzero(4 * np.bincount(crossing) > len(crossing))


def _batches(
    collective: Collective, parted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Batches of the chunks that must move: one piece of one rank's data, or a single chunk.

    Args:
        parted: ranks whose batches are cut into parts.

    Returns:
        order: the chunks, int64.
        source: the rank where each batch starts.
        target: the rank where each chunk of ``order`` ends.
        batch_ptr: batch b has the chunks ``order[batch_ptr[b]:batch_ptr[b + 1]]``.
    """
    kind = collective.traits
    src, dst = (collective.ends(end).astype(np.int64) for end in (kind.before, kind.after))
    chunk = np.flatnonzero(src != dst)
    # Piece by piece: the first piece of every rank is routed before any second one, so that no rank
    # finds the links taken by all data of another.
    piece = chunk % collective.chunks_per_shard
    ahead = (dst[chunk] - src[chunk]) % collective.num_ranks  # not all send to one rank at once
    place = np.lexsort((ahead, src[chunk], piece))
    order = chunk[place]
    key = order % collective.chunks_per_shard * collective.num_ranks + src[order]
    if kind.starts_at_root:
        key = np.arange(len(order))  # one tree for a whole piece would use few links of the root
    part = np.where(parted[src[order]], ahead[place] // _PART, 0)
    ptr = equal_runs(key * collective.num_ranks + part)
    return order, src[order[ptr[:-1]]], dst[order], ptr


_FAR = np.int64(2**62)


@kernel(cache=True, nogil=True, superlinear=True)
def route(
    ptr,
    link,
    link_src,
    link_dst,
    busy,
    delay,
    source,
    target,
    weight,
    batch_ptr,
    passes,
    power,
    load,
):
    """The link into every vertex, on the tree of paths that each batch of chunks takes.

    The chunks of a batch start at one rank. A batch takes the cheapest paths, where a link costs
    the time of a chunk on it, plus its load (the time that the chunks routed so far occupy it)
    times a power of the ratio to the fullest link's load. Then the batch is added to the loads.
    Every further pass takes out the batches one by one and routes each again.

    A run lasts as long as the fullest link, so links with room to spare should cost almost nothing.
    The load alone as the cost would avoid a path over two links that are half as full as one. Of
    the powers 0, 1, 3, 5, 7, power 5 brought scatters and gathers on 2 and 8 hosts of H100s closest
    to their bound (1.09 to 1.15, where the load alone came to 1.7), and all_to_all on random
    4-regular graphs within a percent of the closest.

    Args:
        ptr, link: links out of each vertex.
        link_src, link_dst: ends of each link.
        busy: ticks for which a chunk of weight 1 occupies each link.
        delay: ticks that a chunk takes to the end of each link.
        source: rank at which each batch starts.
        target, weight: the rank where each chunk ends, and the chunk's size.
        batch_ptr: batch b has the chunks ``batch_ptr[b]..batch_ptr[b + 1] - 1``.
        passes: at least 1.
        power: at least 0.
        load: ticks for which other chunks occupy each link; the load of these is added.

    Returns:
        int32 of shape (batches, vertices), -1 where no link leads.
    """
    vertices = len(ptr) - 1
    into = np.full((len(source), vertices), -1, np.int32)
    cost = np.empty(vertices, np.int64)
    price, ratio = np.empty(len(busy), np.float64), np.empty(len(busy), np.float64)
    key, item = np.empty(len(link) + 1, np.int64), np.empty(len(link) + 1, np.int64)
    for number in range(passes):
        for b in range(len(source)):
            first, last = batch_ptr[b], batch_ptr[b + 1]
            # Further passes undo the bias of the order, since the first batches were routed on an
            # empty network. Each batch is taken out and routed with all the others in place (rip-up
            # and reroute, as in the routing of circuits).
            if number > 0:
                _add(into[b], link_src, busy, source[b], target, weight, first, last, -1, load)
            _prices(load, power, ratio, price)
            _cheapest(ptr, link, link_dst, delay, price, source[b], into[b], cost, key, item)
            _add(into[b], link_src, busy, source[b], target, weight, first, last, 1, load)
    return into


@kernel(cache=True, nogil=True)
def _prices(load, power, ratio, price):
    """load x (load / most)^power: the power makes only links near the fullest expensive."""
    # Power by power, not link by link: products of one link wait for each other, which took two
    # thirds of the time of all routing.
    most = float(max(1, load.max()))
    for e in range(len(load)):
        price[e] = float(load[e])
        ratio[e] = load[e] / most
    for _ in range(power):
        for e in range(len(load)):
            price[e] *= ratio[e]


@kernel(cache=True, nogil=True)
def _cheapest(ptr, link, link_dst, delay, price, source, into, cost, key, item):
    """Dijkstra's algorithm; of paths of equal cost, the one whose last vertex came first."""
    cost[:] = _FAR
    into[:] = -1
    cost[source] = 0
    size = heap.push(key, item, 0, 0, 0, source)
    while size:
        reached, v = key[0], item[0]
        size = heap.pop(key, item, 0, size)
        if reached > cost[v]:
            continue
        for i in range(ptr[v], ptr[v + 1]):
            e = link[i]
            through = reached + delay[e] + np.int64(price[e])
            if through < cost[link_dst[e]]:
                cost[link_dst[e]] = through
                into[link_dst[e]] = e
                size = heap.push(key, item, 0, size, through, link_dst[e])


@kernel(cache=True, nogil=True)
def _add(into, link_src, busy, source, target, weight, first, last, sign, load):
    # Adds the chunks of a batch to the loads of the links on their paths, or takes them out.
    for c in range(first, last):
        v, size = target[c], sign * weight[c]
        while v != source:
            e = into[v]
            load[e] += size * busy[e]
            v = link_src[e]


@kernel(cache=True, nogil=True)
def sends_along(into, link_src, ranks, source, target, batch_ptr):
    """The paths split at the ranks they pass, as sends in the order in which chunks make them.

    Args:
        ranks: vertices below this number split a path; with 0 each path is one send.

    Returns:
        path_ptr, path_link: the links of each send.
        chunk: the chunk of each send, by its index in ``target``.
        before: the send of the same chunk before each, -1 for the first.
    """
    sends = hops = 0
    for b in range(len(source)):
        for c in range(batch_ptr[b], batch_ptr[b + 1]):
            v = target[c]
            # Switches do not hold chunks, so a path is split only at ranks, and a send crosses the
            # switches between two ranks.
            while v != source[b]:
                hops += 1
                v = link_src[into[b, v]]
                sends += v < ranks or v == source[b]
    path_ptr, path_link = np.zeros(sends + 1, np.int64), np.empty(hops, np.int64)
    chunk, before = np.empty(sends, np.int64), np.full(sends, -1, np.int64)
    send = hop = 0
    for b in range(len(source)):
        for c in range(batch_ptr[b], batch_ptr[b + 1]):
            length, v = 0, target[c]
            while v != source[b]:
                length += 1
                v = link_src[into[b, v]]
            at, v = hop + length, target[c]
            while v != source[b]:
                at -= 1
                path_link[at] = into[b, v]
                v = link_src[into[b, v]]
            for h in range(hop, hop + length):
                if h > hop and link_src[path_link[h]] < ranks:
                    path_ptr[send + 1] = h
                    chunk[send] = c
                    send += 1
                    before[send] = send - 1
            hop += length
            if length:
                path_ptr[send + 1] = hop
                chunk[send] = c
                send += 1
    return path_ptr, path_link, chunk, before
