"""Messages that share links fairly, and when they arrive: in blocks, or each when it is ready.

Messages under way at the same time share links as TCP flows and NCCL's channels do: max-min fair.
They cut through the switches and ranks on their path, unlike in the link models, where each vertex
stores a message before it sends it on. A permute's message is as long as the block, and store and
forward would multiply its time by the number of links on its path.

Where a pair of processes is half duplex (gloo's pair of sockets: an exchange takes exactly twice
the time of one direction), the two directions of a pair follow one another, and chance decides
which is first. That matters where pairs share a cable. Four pairs that exchange over one cable
between two hosts took 0.67 to 1.3 s, median 0.95 s; their bytes take 0.67 s each way, and four
messages each way without a pair that meets both ways took 0.67 s. So the order is drawn a few
times, with a fixed seed, and the run of median length counts.

Fair shares are ratios of ratios, whose denominators grow with every event. Therefore these times
are floats, unlike all other times of the simulator.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.compiled import kernel
from jaxcoll.simulation.kernels import Places
from jaxcoll.topology import Topology


class Flows(NamedTuple):
    """Messages in blocks.

    Attributes:
        src, dst: ranks, int64 of shape (flows,).
        block: the block of each flow, int64; a rank goes through its blocks in ascending order.
        nbytes: bytes of each flow with its padding, float64.
        ptr, link: flow f crosses the links ``link[ptr[f]:ptr[f + 1]]``.
    """

    src: np.ndarray
    dst: np.ndarray
    block: np.ndarray
    nbytes: np.ndarray
    ptr: np.ndarray
    link: np.ndarray


def run_in_order(
    topology: Topology, flows: Flows, *, half_duplex: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The seconds at which each message starts and arrives, float64 of shape (flows,).

    A message waits until both of its ends have done all their messages of earlier blocks, takes
    the latencies of its links, and flows at its fair share of them.

    Args:
        half_duplex: whether, if two ranks send to each other, one waits until the other's messages
            have arrived.
    """
    count = len(flows.src)
    start, end = np.zeros(count), np.zeros(count)
    if count == 0:
        return start, end
    alpha = np.asarray(topology.alpha, np.float64)[flows.link]
    latency = np.add.reduceat(alpha, flows.ptr[:-1]) if len(alpha) else np.zeros(count)
    capacity = np.asarray(topology.bandwidth, np.float64)
    # The flows of every rank in order: one row of flows per rank and block.
    rank = np.concatenate([flows.src, flows.dst])
    both = np.concatenate([np.arange(count)] * 2)
    block = flows.block[both]
    order = np.lexsort((block, rank))
    rank, both, block = rank[order], both[order], block[order]
    fresh = np.ones(len(rank), bool)
    fresh[1:] = (rank[1:] != rank[:-1]) | (block[1:] != block[:-1])
    row_ptr = np.append(np.flatnonzero(fresh), len(rank)).astype(np.int64)
    row_rank, row_block = rank[fresh], block[fresh]
    rank_ptr = np.searchsorted(row_rank, np.arange(topology.num_ranks + 1)).astype(np.int64)
    work = _Work(rank_ptr, row_ptr, row_block, both)
    pair, way = np.full(count, -1), np.zeros(count, np.int64)
    draws = [np.zeros(0, np.int64)]
    if half_duplex:
        pair, way, draws = _exchanges(flows, topology.num_ranks)
    runs = []
    for first in draws:
        _run(flows, _Exchanges(pair, way, first), capacity, latency, work, start, end)
        runs.append((start.copy(), end.copy()))
    return sorted(runs, key=lambda run: run[1].max())[len(runs) // 2]


def run_when_ready(
    topology: Topology,
    rows: Flows,
    message_ptr: np.ndarray,
    urgency: tuple[np.ndarray, ...],
    places: Places,
    needed: np.ndarray,
    is_shared: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The seconds at which each row starts and arrives if messages wait only for their chunks.

    Every block is a *connection*, which carries its messages one after the other in their order,
    each as soon as all of its chunks are at its source. The chunks of a message, its rows, follow
    one another and arrive one by one.

    Args:
        rows: the sends; ``block`` is the connection of each.
        message_ptr: message m has the rows ``message_ptr[m]..message_ptr[m + 1] - 1``.
        urgency: keys of ``np.lexsort``, by which the rows of a message are in order.
        places: the rank and chunk that each row reads and brings (``kernels.places_of``).
        needed: for each row, the arrivals at the place that it reads before it may leave.
        is_shared: whether rows of several connections cross a link.
    """
    count = len(rows.src)
    start, end = np.zeros(count), np.zeros(count)
    if count == 0:
        return start, end
    alpha = np.asarray(topology.alpha, np.float64)[rows.link]
    latency = np.add.reduceat(alpha, rows.ptr[:-1])
    # Connections by their sources, so that those which an arrival may set going stand together.
    message = np.repeat(np.arange(len(message_ptr) - 1), np.diff(message_ptr))
    queue = np.lexsort((*urgency, message, rows.block, rows.src))
    fresh = np.ones(count, bool)
    fresh[1:] = rows.block[queue[1:]] != rows.block[queue[:-1]]
    queue_ptr = np.append(np.flatnonzero(fresh), count).astype(np.int64)
    sources = rows.src[queue[fresh]]
    rank_ptr = np.searchsorted(sources, np.arange(topology.num_ranks + 1)).astype(np.int64)
    number = np.empty(count, np.int64)
    number[queue] = np.cumsum(fresh) - 1
    # The first row of a message waits for the chunks of all of them, the others for the first.
    leads = np.ones(count, bool)
    leads[1:] = message[queue[1:]] != message[queue[:-1]]
    waits_from, waits_to = np.zeros((2, count), np.int64)
    first = queue[leads]
    lead = message[first]
    waits_from[first], waits_to[first] = message_ptr[lead], message_ptr[lead + 1]
    connections = _Connections(rank_ptr, queue_ptr, queue, number)
    waits = _Waits(waits_from, waits_to, places.have, places.get, needed)
    arrived = np.zeros(places.count, np.int32)
    capacity = np.array(topology.bandwidth, np.float64)
    _run_ready(rows, connections, waits, arrived, capacity, latency, is_shared, start, end)
    return start, end


# Number of random runs, of which the one of median length counts.
_DRAWS = 5


class _Connections(NamedTuple):
    """Rows in the order in which connections carry them.

    Attributes:
        rank_ptr: rank r sends by the connections ``rank_ptr[r]..rank_ptr[r + 1] - 1``.
        queue_ptr, queue: connection c carries ``queue[queue_ptr[c]:queue_ptr[c + 1]]``.
        number: the connection of each row.
    """

    rank_ptr: np.ndarray
    queue_ptr: np.ndarray
    queue: np.ndarray
    number: np.ndarray


class _Waits(NamedTuple):
    """What rows wait for; see ``run_when_ready``.

    Attributes:
        first, until: the rows ``first[i]..until[i] - 1`` must be able to leave before row i does.
        have, get, needed: the places that each row reads and brings, and the arrivals it needs.
    """

    first: np.ndarray
    until: np.ndarray
    have: np.ndarray
    get: np.ndarray
    needed: np.ndarray


class _Exchanges(NamedTuple):
    """Pairs of ranks that send to each other in a block, one direction after the other.

    Attributes:
        pair: number of each flow's pair, -1 if nothing comes back.
        way: direction of each flow: 0 from the lower rank to the higher, 1 back.
        first: direction of each pair that goes first where both could.
    """

    pair: np.ndarray
    way: np.ndarray
    first: np.ndarray


def _exchanges(flows: Flows, ranks: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """``pair`` and ``way`` of ``_Exchanges``, and a few random draws of ``first``."""
    low, high = np.minimum(flows.src, flows.dst), np.maximum(flows.src, flows.dst)
    way = (flows.src > flows.dst).astype(np.int64)
    which = np.unique((flows.block * ranks + low) * ranks + high, return_inverse=True)[1]
    both = np.bincount(which, way == 0).astype(bool) & np.bincount(which, way == 1).astype(bool)
    pair = np.where(both[which], np.cumsum(both)[which] - 1, -1)
    count = int(both.sum())
    if count == 0:
        return pair, way, [np.zeros(0, np.int64)]
    drawn = np.random.default_rng(0).integers(0, 2, (_DRAWS, count))
    return pair, way, list(drawn)


class _Work(NamedTuple):
    """The flows that ranks take part in, block after block.

    Attributes:
        rank_ptr: rank r has the rows ``rank_ptr[r]..rank_ptr[r + 1] - 1``, one per block.
        row_ptr: row i has the flows ``flow[row_ptr[i]:row_ptr[i + 1]]``.
        row_block: the block of each row.
        flow: flows by row.
    """

    rank_ptr: np.ndarray
    row_ptr: np.ndarray
    row_block: np.ndarray
    flow: np.ndarray


# Relative difference below which shares count as equal: all of them are sums and quotients of the
# same few numbers.
_SAME = 1e-9


@kernel(cache=True, nogil=True)
def _run(flows, exchanges, capacity, latency, work, start, end):
    src, dst, nbytes, ptr, link = flows.src, flows.dst, flows.nbytes, flows.ptr, flows.link
    count, ranks = len(src), len(work.rank_ptr) - 1
    row = work.rank_ptr[:-1].copy()
    left = np.zeros(ranks, np.int64)
    rest = nbytes.copy()
    begun = np.zeros(count, np.bool_)
    # A flow waits out its latency and then flows; in an exchange it also waits until nothing comes
    # the other way.
    waiting, num_waiting = np.empty(count, np.int64), 0
    pair, way, first = exchanges
    under_way = np.zeros((len(first), 2), np.int64)
    flowing, num_flowing = np.empty(count, np.int64), 0
    rate, room = np.zeros(count), np.zeros(len(capacity))
    users = np.zeros(len(capacity), np.int64)
    entered, num_entered = np.empty(ranks, np.int64), 0
    now, done = 0.0, 0
    for r in range(ranks):
        if row[r] < work.rank_ptr[r + 1]:
            left[r] = work.row_ptr[row[r] + 1] - work.row_ptr[row[r]]
            entered[num_entered] = r
            num_entered += 1
    while done < count:
        # Ranks that have entered a block begin those messages whose other end has entered it too.
        for e in range(num_entered):
            r = entered[e]
            for k in range(work.row_ptr[row[r]], work.row_ptr[row[r] + 1]):
                f = work.flow[k]
                other = dst[f] if src[f] == r else src[f]
                is_there = (
                    row[other] < work.rank_ptr[other + 1]
                    and work.row_block[row[other]] == flows.block[f]
                )
                if is_there and not begun[f]:
                    begun[f] = True
                    start[f] = now
                    waiting[num_waiting] = f
                    num_waiting += 1
        num_entered = 0
        # First the directions that were drawn to go first, then the others.
        for later in range(2):
            kept = 0
            for i in range(num_waiting):
                f = waiting[i]
                p = pair[f]
                goes = start[f] + latency[f] <= now * (1 + 1e-15)
                if goes and p >= 0:
                    is_first = way[f] == first[p]
                    goes = (is_first or later == 1) and under_way[p, 1 - way[f]] == 0
                if goes:
                    flowing[num_flowing] = f
                    num_flowing += 1
                    if p >= 0:
                        under_way[p, way[f]] += 1
                else:
                    waiting[kept] = f
                    kept += 1
            num_waiting = kept
        _share(flowing, num_flowing, ptr, link, capacity, rate, room, users)
        ahead = np.inf
        for i in range(num_flowing):
            ahead = min(ahead, rest[flowing[i]] / rate[flowing[i]])
        for i in range(num_waiting):
            due = start[waiting[i]] + latency[waiting[i]]
            if due > now * (1 + 1e-15):  # others wait for what comes the other way
                ahead = min(ahead, due - now)
        now += ahead
        kept = 0
        for i in range(num_flowing):
            f = flowing[i]
            rest[f] -= rate[f] * ahead
            if rest[f] > _SAME * nbytes[f]:
                flowing[kept] = f
                kept += 1
                continue
            end[f] = now
            done += 1
            if pair[f] >= 0:
                under_way[pair[f], way[f]] -= 1
            for r in (src[f], dst[f]):
                left[r] -= 1
                if left[r] == 0:
                    row[r] += 1
                    if row[r] < work.rank_ptr[r + 1]:
                        left[r] = work.row_ptr[row[r] + 1] - work.row_ptr[row[r]]
                        entered[num_entered] = r
                        num_entered += 1
        num_flowing = kept


@kernel(cache=True, nogil=True)
def _run_ready(rows, connections, waits, arrived, capacity, latency, is_shared, start, end):
    dst, nbytes, ptr, link = rows.dst, rows.nbytes, rows.ptr, rows.link
    rank_ptr, queue_ptr, queue, number = connections
    first, until, have, get, needed = waits
    count, total = len(dst), len(queue_ptr) - 1
    following, is_busy = queue_ptr[:-1].copy(), np.zeros(total, np.bool_)
    # Connections that may be able to begin their next row.
    asked, num_asked = np.arange(total), total
    is_asked = np.ones(total, np.bool_)
    rest = nbytes.copy()
    flowing, num_flowing = np.empty(total, np.int64), 0
    # Rows whose last byte has left and is on its way for the latency of its links.
    leaving, num_leaving = np.empty(count, np.int64), 0
    rate, room = np.zeros(count), np.zeros(len(capacity))
    users = np.zeros(len(capacity), np.int64)
    now, done = 0.0, 0
    while done < count:
        for i in range(num_asked):
            c = asked[i]
            is_asked[c] = False
            if is_busy[c] or following[c] == queue_ptr[c + 1]:
                continue
            row, is_ready = queue[following[c]], True
            for k in range(first[row], until[row]):
                if arrived[have[k]] < needed[k]:
                    is_ready = False
                    break
            if is_ready:
                is_busy[c] = True
                start[row] = now
                flowing[num_flowing] = row
                num_flowing += 1
                rate[row] = np.inf
                for h in range(ptr[row], ptr[row + 1]):
                    rate[row] = min(rate[row], capacity[link[h]])
        num_asked = 0
        if is_shared:
            _share(flowing, num_flowing, ptr, link, capacity, rate, room, users)
        ahead = np.inf
        for i in range(num_flowing):
            ahead = min(ahead, rest[flowing[i]] / rate[flowing[i]])
        for i in range(num_leaving):
            ahead = min(ahead, end[leaving[i]] - now)
        ahead = max(ahead, 0.0)
        now += ahead
        kept = 0
        for i in range(num_flowing):
            row = flowing[i]
            rest[row] -= rate[row] * ahead
            if rest[row] > _SAME * nbytes[row]:
                flowing[kept] = row
                kept += 1
                continue
            end[row] = now + latency[row]
            leaving[num_leaving] = row
            num_leaving += 1
            c = number[row]
            is_busy[c] = False
            following[c] += 1
            if not is_asked[c]:
                is_asked[c] = True
                asked[num_asked] = c
                num_asked += 1
        num_flowing = kept
        kept = 0
        for i in range(num_leaving):
            row = leaving[i]
            if end[row] > now * (1 + 1e-15):
                leaving[kept] = row
                kept += 1
                continue
            done += 1
            arrived[get[row]] += 1
            for c in range(rank_ptr[dst[row]], rank_ptr[dst[row] + 1]):
                if not is_asked[c]:
                    is_asked[c] = True
                    asked[num_asked] = c
                    num_asked += 1
        num_leaving = kept


@kernel(cache=True, nogil=True)
def _share(flowing, count, ptr, link, capacity, rate, room, users):
    """Max-min fair rates: the fullest link is shared equally, then the next one, and so on."""
    for i in range(count):
        f = flowing[i]
        rate[f] = -1.0
        for h in range(ptr[f], ptr[f + 1]):
            users[link[h]] = 0
            room[link[h]] = capacity[link[h]]
    for i in range(count):
        for h in range(ptr[flowing[i]], ptr[flowing[i] + 1]):
            users[link[h]] += 1
    todo = count
    while todo:
        least = np.inf
        for i in range(count):
            f = flowing[i]
            if rate[f] < 0.0:
                for h in range(ptr[f], ptr[f + 1]):
                    least = min(least, room[link[h]] / users[link[h]])
        # All these flows are marked before any room is reduced, so that flows of a link get equal
        # rates.
        for i in range(count):
            f = flowing[i]
            if rate[f] < 0.0:
                for h in range(ptr[f], ptr[f + 1]):
                    if room[link[h]] <= least * (1 + _SAME) * users[link[h]]:
                        rate[f] = -2.0
        for i in range(count):
            f = flowing[i]
            if rate[f] == -2.0:
                rate[f] = least
                todo -= 1
                for h in range(ptr[f], ptr[f + 1]):
                    room[link[h]] -= least
                    users[link[h]] -= 1
