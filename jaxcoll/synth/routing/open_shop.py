"""Open shop: an all_to_all of unequal shares, in which busy ports are never idle.

Ports are the machines of an open shop: the data from s to d are a job that occupies the port out of
s and the port into d for the time of its bytes. If jobs may be interrupted, all of them can end
when the busiest port has finished its own, which are its row or its column of the matrix of bytes:
Gonzalez and Sahni, "Open shop scheduling to minimize finish time" (1976), by the theorem of
Birkhoff (1946) that a matrix with equal sums of rows and columns is a sum of weighted permutations.
FAST (Lei et al., "FAST: an efficient scheduler for all-to-all GPU communication", arXiv 2505.09764)
runs these permutations one after another between hosts, so that no port is sent to by several at a
time.

There may be as many permutations as pairs, and each cuts every message. Here shards are cut into
equal pieces, of at most a 32nd of all bytes of the busiest port, host or rack, and a list schedule
orders them: a free port sends next to the port that is free first, and among several to the one
with the most left to receive, for which the end waits. For example, three ranks send

    0 4 1        rank 1 gets 12 and is never idle. Rank 0, which may send it a piece while rank 2
    2 0 2        does, or one to rank 2, takes the latter: rank 2 is free.
    0 8 0

A port with nothing else to send does not wait; its piece waits at the switch. FAST would hold the
piece back, since real switches pause or drop long queues; some queues occur near the end of a hot
port.

If several paths lead from rank to rank, pieces are first routed so that the fullest link carries
the least (``route`` of ``min_congestion``). So the data for a hot rank come over all links into it,
and on hosts with rails also over the rails of its neighbours, as in the phases of FAST inside
hosts.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.bounds.cuts import parts as parts_of
from jaxcoll.collective import Collective, common_parts
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks, heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import equal_runs, followers
from jaxcoll.paths import Edges, hop_distances
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import LATER, Counts, Problem, Synthesizer, mean_hops
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.synth.routing.min_congestion import route, sends_along
from jaxcoll.topology import Topology

# Numbers of turns in which a rank's pieces are routed, each by a separate tree. Fewer turns are
# taken where the trees of all ranks, over all links, are more work than the larger of the other
# two, which is some 30 ms in two passes.
_TURNS, _WORK, _WORK_OF_A_RANK = (64, 32, 16, 8, 4, 2), 2**18, 2**14
# The largest piece in units of weight, and a unit on the fastest link in ticks, with an upper
# limit.
_WEIGHTS, _TICKS, _LATEST = 2**16, 2**8, 2**40
# Pieces that cross several links are stored and forwarded. So they are finer by a factor _FINER per
# link of the longest path, with at most _PER_PAIR per pair of ranks or _FEW in total.
_FINER, _PER_PAIR, _FEW = 2, 4, 2**12
# The most times that a shard is halved.
_MOST_HALVINGS = 14
# Sends that a link examines to choose one: 8 left a link idle more often; examining all gained
# nothing and took ten times as long for 1,024 ranks.
_LOOKED_AT = 32
# Up to this total of links crossed by pieces, ranks on the way pass them on by separate sends.
_MOST_PARTED = 2**21


@dataclasses.dataclass(frozen=True)
class OpenShop(Synthesizer):
    """List scheduling of an open shop, after routing by minimum congestion; see the module.

    It is the only synthesizer for unequal shares of pairs; ``cut`` tells the best number of pieces
    for whole shards. A rank on the way receives the data that pass it and sends them on. On direct
    networks of hundreds of ranks, where that would take millions of sends, such data stay in the
    network instead, as in the routers of tori, and a send is a path.

    Attributes:
        nbytes: bytes of a rank's buffer, by which latency is weighed against load when paths are
            chosen; 64 MiB when omitted.
        pieces: the fewest pieces into which the bytes of the narrowest part of the network, which
            may be a rank, a host or a rack, are cut.
        passes: number of times that every piece is routed.
        power: the power of the ratio of loads, see ``MinCongestion``. On tori of 64 ranks 10, 14
            and 18 came to 1.086, 1.083 and 1.079 times the bound (mean of 60 draws), and 8 with
            twice the passes and half the trees to 1.101.

    Raises:
        CollectiveError: a field is out of range.
    """

    nbytes: float = 2**26
    pieces: int = 32
    passes: int = 2
    power: int = 16

    name: ClassVar[str] = "open_shop"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.is_pairwise)
    takes_shares: ClassVar[bool] = True
    has_nbytes: ClassVar[bool] = True
    # If all pairs have equal shares, patterns that rely on that are as fast.
    tried_by_auto: ClassVar[bool] = False
    hop_work: ClassVar[float | None] = 2.0
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "passes", "pieces")
        power = checks.integer(self.power, "power", CollectiveError, least=0, most=100)
        checks.put(self, power=power)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """A single count, since pieces are cut by their size, and more of them gain nothing."""
        return ((self.cut(problem.topology, problem.collective).chunks_per_shard,),)

    def cut(self, topology: Topology, collective: Collective) -> Collective:
        """The collective with its shards cut into the best number of pieces.

        No piece takes more of any link's time than 1 / ``pieces`` of the least time of all: that of
        the rank, host or rack with the most bytes for its bandwidth.
        """
        whole = dataclasses.replace(collective, chunks_per_shard=1)
        weight, _ = common_parts(whole)
        src, dst = (whole.ends(end) for end in (whole.traits.before, whole.traits.after))
        moves, n = src != dst, topology.num_ranks
        if not moves.any():
            return whole
        size = weight[moves] / weight[moves].max()
        seconds = _narrowest(topology, src[moves], dst[moves], size)
        hops = int(hop_distances(topology).max()) if topology.is_direct else 1
        parts = self.pieces / (seconds * topology.bandwidth.min())
        coarsest, finest = (
            int(np.clip(np.ceil(np.log2(count)), 0, _MOST_HALVINGS))
            for count in (parts, parts * _FINER * hops)
        )
        most = max(_PER_PAIR * n * n, _FEW) + self.pieces * n
        for halvings in range(finest, coarsest - 1, -1):
            if np.exp2(np.ceil(np.log2(np.maximum(size * 2.0**halvings, 1)))).sum() <= most:
                break
        return dataclasses.replace(collective, chunks_per_shard=2**halvings)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        sizes, total = common_parts(collective)
        order, source, target, batch_ptr = _batches(collective, topology.num_links)
        unit = int(sizes[order].max())
        weight = np.maximum(1, np.rint(sizes[order] * (_WEIGHTS / unit))).astype(np.int64)
        busy, alpha = _ticks(topology, float(self.nbytes) * unit / total / _WEIGHTS)
        delay = busy * int(weight.mean()) + alpha
        ptr, link = topology.out_links
        src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
        # On a tree, such as a switch with its ranks, there is only one path to each rank.
        passes = 1 if topology.num_links == 2 * (topology.num_vertices - 1) else self.passes
        into = route(
            ptr, link, src, dst, busy, delay, source, target, weight, batch_ptr, passes, self.power,
            np.zeros(topology.num_links, np.int64),
        )  # fmt: skip
        is_parted = not topology.is_direct or len(order) * mean_hops(topology) <= _MOST_PARTED
        parting = topology.num_ranks if is_parted else 0
        path_ptr, path, place, before = sends_along(into, src, parting, source, target, batch_ptr)
        # The sends of a chunk follow one another, and all of them stop where its last one does.
        is_last = np.append(before[1:] < 0, True)
        stop = path_ptr[1:][is_last][np.cumsum(is_last) - is_last]
        number, step = _listed(
            path_ptr, path, stop, *followers(before), before, weight[place], busy, alpha
        )
        if topology.is_direct and is_parted:
            edges, edge = Edges.from_links(topology), path
        else:
            edges, edge = distinct_edges(topology, path_ptr, path)
        return Schedule.from_sends(
            topology, collective, step[number], edge[number], order[place[number]], edges=edges
        )


def _narrowest(topology: Topology, src: np.ndarray, dst: np.ndarray, size: np.ndarray) -> float:
    """Seconds that the data take out of or into the narrowest part of the network.

    Args:
        src, dst, size: ends and bytes of each chunk.
    """
    seconds = 0.0
    for part in parts_of(topology):
        leaves, enters = part[src], part[dst]
        out, into = part[topology.src], part[topology.dst]
        data, room = size * (leaves != enters), topology.bandwidth * (out != into)
        for chunk, link in ((leaves, out), (enters, into)):
            carried, able = (
                np.bincount(at, what, len(part)) for at, what in ((chunk, data), (link, room))
            )
            busy = carried > 0
            seconds = max(seconds, float((carried[busy] / able[busy]).max(initial=0.0)))
    return seconds


def _batches(
    collective: Collective, links: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Batches of the chunks that must move: those of a rank that take one tree of paths.

    The pieces of a shard are dealt to several trees, so that they may take different paths.

    Returns:
        order: the chunks, int64.
        source: the rank where each batch starts.
        target: the rank where each chunk of ``order`` ends.
        batch_ptr: batch b has the chunks ``order[batch_ptr[b]:batch_ptr[b + 1]]``.
    """
    kind, n = collective.traits, collective.num_ranks
    src, dst = (collective.ends(end).astype(np.int64) for end in (kind.before, kind.after))
    pair = equal_runs(src * n + dst)
    count = np.repeat(np.diff(pair), np.diff(pair))
    piece = np.arange(len(src)) - np.repeat(pair[:-1], np.diff(pair))
    chunk = np.flatnonzero(src != dst)
    src, dst, piece, count = src[chunk], dst[chunk], piece[chunk], count[chunk]
    for turns in (*_TURNS, 1):
        turn = piece * turns // count
        keys = turn * n + src
        batches = np.count_nonzero(np.bincount(keys))
        if batches * links <= max(_WORK, _WORK_OF_A_RANK * n):
            break
    ahead = (dst - src) % n  # so that ranks do not all begin with the same one
    order = np.lexsort((ahead, keys))
    ptr = equal_runs(keys[order])
    return chunk[order], src[order][ptr[:-1]], dst[order], ptr


def _ticks(topology: Topology, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Ticks for which ``unit`` bytes occupy each link, and ticks of latency; int64 (links,)."""
    fastest = float(topology.bandwidth.max())
    busy = np.maximum(1, np.rint(_TICKS * fastest / topology.bandwidth))
    per_second = _TICKS * fastest / unit
    alpha = np.minimum(topology.alpha * per_second, _LATEST)
    return np.minimum(busy, _LATEST).astype(np.int64), alpha.astype(np.int64)


class _Waiting(NamedTuple):
    """Sends that wait to leave, by the link that they cross first; all columns are int64.

    The data by which links choose are adjacent here, since links examine thousands of sends to
    choose one.

    Attributes:
        first, count: link l has the rows ``first[l]..first[l] + count[l] - 1`` of the columns
            below.
        send: the number of each send.
        last: the link at the end of its path.
        lead: ticks that it takes to arrive at that link.
        way: ticks from here to where its chunk ends, if no other delays it.
        begin, end: the range in ``path_link`` of the links after the first, up to that end.
    """

    first: np.ndarray
    count: np.ndarray
    send: np.ndarray
    last: np.ndarray
    lead: np.ndarray
    way: np.ndarray
    begin: np.ndarray
    end: np.ndarray


@kernel(cache=True, nogil=True)
def _listed(path_ptr, path_link, stop, next_ptr, following, before, weight, busy, alpha):
    """The sends in the order in which they start, and the step of each.

    A free link takes, of the sends that wait for it, the one whose last link is free first,
    allowing for the time to get there. Among several it takes the one with the fullest link ahead
    of it, counting the load that each link has left plus twice the undelayed time of its way. Of
    the rules tried on tori of 16 to 64 ranks, only this one was almost always within 3 % of the
    fullest link's load; the longest way first, and the initial loads, lost 30 %.

    Args:
        path_ptr, path_link: links of each send; those of a chunk are consecutive.
        stop: the index in ``path_link`` where the way of each send's chunk ends.
        next_ptr, following: the sends that wait for each send.
        before: the send that each waits for; -1 for none.
        weight: weight of each send.
        busy, alpha: ticks for which a weight of 1 occupies each link, and then until it arrives.
    """
    sends, links = len(weight), len(busy)
    left, first = np.zeros(links, np.int64), np.zeros(links, np.int64)
    for i in range(sends):
        first[path_link[path_ptr[i]]] += 1
        for h in range(path_ptr[i], path_ptr[i + 1]):
            left[path_link[h]] += weight[i] * busy[path_link[h]]
    first = np.cumsum(first) - first
    waiting = _Waiting(
        first, np.zeros(links, np.int64), np.empty(sends, np.int64), np.empty(sends, np.int64),
        np.empty(sends, np.int64), np.empty(sends, np.int64), np.empty(sends, np.int64),
        np.empty(sends, np.int64),
    )  # fmt: skip
    for i in range(sends):
        if before[i] < 0:
            _wait(waiting, i, path_ptr, path_link, stop, weight, busy)
    # Event i means that send i has arrived; event sends + l means that link l may take a send.
    awake, free = waiting.count > 0, np.zeros(links, np.int64)
    times, events = np.empty(sends + links, np.int64), np.empty(sends + links, np.int64)
    pending = done = 0
    for link in range(links):
        if awake[link]:
            pending = heap.push(times, events, 0, pending, 0, sends + link)
    order, step = np.empty(sends, np.int64), np.zeros(sends, np.int64)
    on_link = np.zeros(links, np.int64)
    while pending:
        time, event = times[0], events[0]
        pending = heap.pop(times, events, 0, pending)
        if event < sends:
            for a in range(next_ptr[event], next_ptr[event + 1]):
                link = _wait(waiting, following[a], path_ptr, path_link, stop, weight, busy)
                if not awake[link]:
                    awake[link] = True
                    start = max(time, free[link])
                    pending = heap.push(times, events, 0, pending, start, sends + link)
            continue
        link = event - sends
        i = _take(waiting, link, path_link, free, left, time)
        order[done] = i
        done += 1
        at = time
        for h in range(path_ptr[i], path_ptr[i + 1]):
            on = path_link[h]
            free[on] = max(at, free[on]) + weight[i] * busy[on]
            left[on] -= weight[i] * busy[on]
            at = free[on] + alpha[on]
        ready = step[before[i]] + 1 if before[i] >= 0 else 0
        step[i] = max(ready, on_link[link])
        on_link[link] = step[i] + 1
        if next_ptr[i + 1] > next_ptr[i]:
            pending = heap.push(times, events, 0, pending, at, i)
        awake[link] = waiting.count[link] > 0
        if awake[link]:
            pending = heap.push(times, events, 0, pending, free[link], sends + link)
    return order, step


@kernel(cache=True, nogil=True)
def _wait(waiting, send, path_ptr, path_link, stop, weight, busy):
    """Queue a send at its first link, and return this link."""
    begin, end = path_ptr[send], path_ptr[send + 1]
    link = path_link[begin]
    at, ticks = waiting.first[link] + waiting.count[link], weight[send] * busy[link]
    waiting.count[link] += 1
    waiting.send[at], waiting.last[at] = send, path_link[end - 1]
    waiting.lead[at], waiting.way[at] = (end - 1 - begin) * ticks, (stop[send] - begin) * ticks
    waiting.begin[at], waiting.end[at] = begin + 1, stop[send]
    return link


@kernel(cache=True, nogil=True)
def _take(waiting, link, path_link, free, left, time):
    """Choose the send that a link takes, and remove it from those that wait."""
    begin, count = waiting.first[link], waiting.count[link]
    best, soonest, fullest = begin, np.int64(2**62), np.int64(0)
    for k in range(begin, begin + min(count, _LOOKED_AT)):
        last = waiting.last[k]
        wait = max(free[last] - waiting.lead[k] - time, 0)
        if wait > soonest:
            continue
        most = np.int64(0)
        if waiting.end[k] - waiting.begin[k] == 1:  # nearly all sends behind a switch
            most = left[last]
        else:
            for h in range(waiting.begin[k], waiting.end[k]):
                most = max(most, left[path_link[h]])
        most += 2 * waiting.way[k]
        if wait < soonest or most > fullest:
            best, soonest, fullest = k, wait, most
    send, end = waiting.send[best], begin + count - 1
    waiting.count[link] = count - 1
    waiting.send[best], waiting.last[best] = waiting.send[end], waiting.last[end]
    waiting.lead[best], waiting.way[best] = waiting.lead[end], waiting.way[end]
    waiting.begin[best], waiting.end[best] = waiting.begin[end], waiting.end[end]
    return send
