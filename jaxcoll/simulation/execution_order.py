"""Orders of execution: when ranks may start messages, if links do not work independently.

``simulate`` lets every link carry a message as soon as its chunks have arrived. MSCCL, MSCCL++ and
kernels that push each message separately work in this way, but programs of ``ppermute`` do not.
Between processes on CPUs, XLA runs one permute after the other, and each process waits in it for
its message; on GPUs the permutes of a step are one NCCL group in a stream; on TPUs the permutes of
a step are in flight together, and the next step waits for them. So a rank goes through *blocks*,
the rounds or the steps of a schedule, one after the other, and a message of a block flows while
both of its ends are in that block.

Messages under way at the same time share links as TCP flows and NCCL's channels do: max-min fair.
They cut through the switches and ranks on their path, unlike in the link models, where each vertex
stores a message before it sends it on. A permute's message is as long as the block, and store and
forward would multiply its time by the number of links on its path.

All messages of a round have one length: shorter ones are padded to the longest. A round is about
ranks, not links, so everything that one rank sends another in it takes one way, that of the first
of their edges; parallel links on that way act as one link with their total bandwidth.

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

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.edge_colouring import colour_pairs
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class ExecutionOrder:
    """The order in which a rank sends and receives its messages.

    Attributes:
        name: "links", "steps" or "rounds".
        waits: whether a rank goes through blocks one after the other; otherwise links work
            independently.
        by_round: whether a block is a round, one ``ppermute``, whose messages are padded to the
            longest; otherwise it is a step.
        meaning: a description, for texts that tell how a time was computed.
    """

    name: str
    waits: bool
    by_round: bool
    meaning: str

    def __str__(self) -> str:
        return self.name


LINKS = ExecutionOrder("links", False, False, "each link works by itself")
STEPS = ExecutionOrder("steps", True, False, "a rank's steps follow one another")
ROUNDS = ExecutionOrder("rounds", True, True, "a rank's permutes follow one another")
ORDERS = {order.name: order for order in (LINKS, STEPS, ROUNDS)}


def order_of(given: ExecutionOrder | str, error: checks.Error = TuneError) -> ExecutionOrder:
    """The order that an argument stands for: the order itself, or the order with that name.

    Raises:
        error: the argument is neither an order nor the name of one.
    """
    if isinstance(given, ExecutionOrder):
        return given
    return ORDERS[checks.choice(given, ORDERS, "order of execution", error)]


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


def flows_of(schedule: Schedule, nbytes: float, order: ExecutionOrder) -> Flows:
    """One flow per message of a schedule, in the blocks of an order.

    Args:
        nbytes: bytes of a rank's buffer.
    """
    weight, total = common_parts(schedule.collective)
    first = schedule.message_ptr[:-1]
    edge = schedule.edge[first]
    edges = schedule.edges
    src, dst = edges.src[edge].astype(np.int64), edges.dst[edge].astype(np.int64)
    chunks = np.add.reduceat(weight[schedule.chunk], first) if len(first) else first
    size = chunks * (nbytes / total)
    block = np.asarray(schedule.step[first], np.int64)
    if order.by_round:
        block, size, edge = _in_rounds(schedule, edge, block, size)
    ptr, link = edges.paths_of(edge)
    return Flows(src, dst, block, size.astype(np.float64), ptr, link.astype(np.int64))


def _in_rounds(
    schedule: Schedule, edge: np.ndarray, step: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The round, counted through all steps, the padded size and the edge of each message."""
    n, grid = schedule.topology.num_ranks, schedule.topology.grid
    sides = (n,) if grid is None else grid.shape
    src, dst = (ends[edge].astype(np.int64) for ends in (schedule.edges.src, schedule.edges.dst))
    # Parallel edges between two ranks carry one message of a round, since a permute names ranks.
    pair, which = np.unique((step * n + src) * n + dst, return_inverse=True)
    together = np.bincount(which, size)
    at, u, v = pair // (n * n), pair // n % n, pair % n
    ptr = np.searchsorted(at, np.arange(schedule.num_steps + 1))
    block = np.zeros(len(pair), np.int64)
    longest = np.zeros(len(pair))
    before = 0
    for low, high in itertools.pairwise(ptr.tolist()):
        if low == high:
            continue
        here = slice(low, high)
        rank = np.unique(together[here], return_inverse=True)[1] + 1
        colour = colour_pairs(u[here], v[here], rank, sides)
        most = np.zeros(colour.max() + 1)
        np.maximum.at(most, colour, together[here])
        block[here], longest[here] = before + colour, most[colour]
        before += len(most)
    first = np.full(len(pair), len(schedule.edges), edge.dtype)
    np.minimum.at(first, which, edge)
    taken = _along(schedule, edge, first[which])
    return block[which], size * (longest / together)[which], taken


def _along(schedule: Schedule, edge: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The edge that each message takes: the first edge of its ranks if its own takes another way.

    Args:
        edge, first: the message's own edge, and the first edge between its two ranks.
    """
    if np.array_equal(edge, first):  # usual: one edge from a rank to another
        return edge
    taken, edges, head = edge.copy(), schedule.edges, schedule.topology.dst
    for own, other in np.unique(np.stack([edge, first])[:, edge != first], axis=1).T.tolist():
        way, others = (
            head[edges.path_link[edges.path_ptr[e] : edges.path_ptr[e + 1]]] for e in (own, other)
        )
        if not np.array_equal(way, others):
            taken[(edge == own) & (first == other)] = other
    return taken


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


# Number of random runs, of which the one of median length counts.
_DRAWS = 5


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
