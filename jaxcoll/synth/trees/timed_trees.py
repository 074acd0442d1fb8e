"""Timed trees: a broadcast in which each chunk has a tree of its own, planned in a timetable.

A packing of trees that fills every link is high: on a torus of 16 x 16 ranks four trees are 24
links high, where the farthest rank is 16 links away. If data are few, these eight latencies are as
long as all else. But the links need not all be full then, and only the last chunks are short of
time: the first ones may take detours.

So chunks are planned from the last to the first, each beside all that are planned:

1. A chunk leaves the root once, in turn with the others. From there it goes to every rank on the
   way that arrives first, in slots of the links that are still free (Dijkstra's algorithm; the
   arrival at a link decides which slots are left).
2. Then, from the ends of the tree back to the root, each of its sends moves to the latest free slot
   that is early enough for the sends after it, and for the end of the run. Sends that can wait make
   room for the chunks before, which are planned next.

The end of the run, at which step 2 aims, is when the last chunk could be everywhere if it were
alone, or a little later.

For example, in a ring of ranks 0, 1, 2, 3 the root 0 sends a chunk to 1, and a second one to 3. The
second is planned first: from 3 it goes on to 2, and to 1 it goes from the root, in the slot after
that of the first chunk, which is earlier than by way of 2. The first goes the other way round.

Like every schedule, these are proved correct; how close they come to the bound is not proved.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks, heap
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import followers
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges, distances_from
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import BUCKET_BYTES, SOON, Counts, Problem, Synthesizer
from jaxcoll.synth.building.list_scheduling import LinkedSends, by_urgency, link_ticks
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.topology import Topology

# Up to this number of ranks trees that fill all links are low enough.
_FEW_RANKS = 64
# Ratio of the time in which the root sends all data to the latency of the farthest rank, up to
# which the height of trees matters. On a torus of 16 x 16 ranks trees that fill all links took 1.16
# times the bound at a ratio of 2.5, where these took 1.04; at 10 they took 1.07, and at 42 1.03.
_MOST_DATA = 16
# Ends of the run, in times of the earliest, of which the one is taken that the plan meets best.
_AIMS = (1.0, 1.02, 1.04)
# Length of the first timetable, in times of the earliest end; it is doubled until the plan fits.
_LENGTH = 2
# Chunks planned in one call of the kernel.
_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class TimedTrees(Synthesizer):
    """Broadcast of little data on a large network without switches, by low trees for late chunks.

    The reduce is the broadcast of the reversed network, backwards.

    Attributes:
        nbytes: bytes of the root's buffer for which to be fast.

    Raises:
        CollectiveError: a field is out of range.
    """

    nbytes: float = BUCKET_BYTES

    name: ClassVar[str] = "timed_trees"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"broadcast"})
    has_nbytes: ClassVar[bool] = True
    put_off: ClassVar[float] = SOON
    # Planned as often as there are aims, put in order, and simulated.
    send_work: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Many chunks: what one takes on a link is lost on each link of the way."""
        return ((64, 256, 1024, 2048),)

    def may_win(self, problem: Problem) -> bool:
        """Whether there are many ranks, no switches, and so few data that latencies count."""
        topology, what = problem.topology, problem.collective
        if topology.num_ranks <= _FEW_RANKS or not topology.is_direct or what.is_grouped:
            return False
        root = np.array([what.root_of(what.groups[0])])
        latency = float(distances_from(topology, topology.alpha, root).max())
        return bool(self.nbytes / topology.out_bandwidth()[root[0]] <= _MOST_DATA * latency)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups.
            TopologyError: there are switches.
        """
        check_everyone(collective, self.name)
        if not topology.is_direct:
            raise TopologyError(f"{self.name} knows no switches; {topology} has some")
        chunks, nbytes = collective.chunks_per_shard, as_fraction(self.nbytes)
        sends = chunks * (topology.num_ranks - 1)
        busy, delay = link_ticks(topology, collective, nbytes, sends)
        request = _Request.of(topology, collective.root_of(collective.groups[0]), busy, delay)
        plans = [_planned(request, chunks, aim) for aim in _AIMS]
        link, start, _ = min(plans, key=lambda plan: plan.end)
        chunk = np.repeat(np.arange(chunks), topology.num_ranks - 1)
        edge = link.ravel()
        # The send that brings a chunk to a rank; -1 where the root has it.
        brings = np.full((chunks, topology.num_ranks), -1)
        brings[chunk, topology.dst[edge]] = np.arange(sends)
        waits = followers(brings[chunk, topology.src[edge]])
        linked = LinkedSends(Edges.from_links(topology), edge, chunk, np.zeros(sends, bool), *waits)
        schedule = by_urgency(topology, collective, linked, start.ravel(), busy, delay)
        height = int(_heights(topology, link, request.root).max())
        return schedule.with_provenance(Provenance(certificate={"height": height}))


class _Request(NamedTuple):
    """A root, and the links by which its chunks go.

    Attributes:
        root: the root.
        ptr, link: the links that leave each rank; int64.
        tail, head: the ranks at the ends of each link; int64.
        busy, delay: ticks that a chunk occupies each link, and takes to its end; int64.
        phase: when the slots of each link begin, from 0 to below ``busy``: a chunk that takes the
            shortest way from the root, at any time, arrives when a slot begins.
        farthest: ticks of the shortest way to the farthest rank.
    """

    root: int
    ptr: np.ndarray
    link: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    busy: np.ndarray
    delay: np.ndarray
    phase: np.ndarray
    farthest: int

    @classmethod
    def of(cls, topology: Topology, root: int, busy: np.ndarray, delay: np.ndarray) -> _Request:
        away = distances_from(topology, delay.astype(float), np.array([root]))[0].astype(np.int64)
        ptr, link = topology.out_links
        src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
        columns = np.asarray(ptr, np.int64), np.asarray(link, np.int64), src, dst
        return cls(root, *columns, busy, delay, away[src] % busy, int(away.max()))


class _Timetable(NamedTuple):
    """Which slots of the links are reserved.

    Attributes:
        ptr: link e has the slots ``used[ptr[e]:ptr[e + 1]]``; the first begins at its phase.
        used: whether each slot is reserved, bool.
        load: number of reserved slots of each link, apart from the first sends of all chunks.
        first, turn: the link by which each chunk leaves the root, and its slot there.
    """

    ptr: np.ndarray
    used: np.ndarray
    load: np.ndarray
    first: np.ndarray
    turn: np.ndarray


class _Plan(NamedTuple):
    """The trees of all chunks, each from the root down.

    Attributes:
        link: link of each send, int64 of shape (chunks, ranks - 1).
        start: tick at which it starts, of the same shape.
        end: tick by which all have arrived.
    """

    link: np.ndarray
    start: np.ndarray
    end: int


class _Search(NamedTuple):
    """The tree of one chunk, as far as it is known.

    Attributes:
        arrival: earliest known arrival at each rank; then the tick by which it must have arrived.
        by, slot: the link and the slot of that arrival.
        inside: whether the arrival is final.
        order: ranks, in the order of their arrivals.
        keys, items: heap of ranks by arrival.
    """

    arrival: np.ndarray
    by: np.ndarray
    slot: np.ndarray
    inside: np.ndarray
    order: np.ndarray
    keys: np.ndarray
    items: np.ndarray


def _planned(request: _Request, chunks: int, aim: float) -> _Plan:
    """The trees that aim at an end, in times of the earliest possible."""
    ranks, links = len(request.ptr) - 1, len(request.busy)
    first, turn = _turns(request, chunks)
    last = turn[-1] * request.busy[first[-1]] + request.farthest
    link, start = np.zeros((2, chunks, ranks - 1), np.int64)
    search = _Search(
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.bool_),
        np.zeros(ranks, np.int64),
        np.zeros(links + 1, np.int64),
        np.zeros(links + 1, np.int64),
    )
    until, length = round(aim * float(last)), _LENGTH * int(last)
    while True:
        slots = np.maximum(length // request.busy, np.bincount(first, minlength=links)) + 1
        ptr = np.append(0, np.cumsum(slots))
        table = _Timetable(ptr, np.zeros(ptr[-1], np.bool_), np.zeros(links, np.int64), first, turn)
        table.used[ptr[first] + turn] = True
        end = 0
        for after in range(chunks, 0, -_AT_ONCE):
            block = max(0, after - _AT_ONCE), after
            found = _plan(*block, until, request, table, link, start, search)
            if found < 0:
                break
            end = max(end, found)
        else:
            return _Plan(link, start, end)
        length *= 2


def _turns(request: _Request, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """The link by which each chunk leaves the root, the one that is soonest done, and its slot."""
    out = request.link[request.ptr[request.root] : request.ptr[request.root + 1]]
    # The chunks of each link end at the multiples of its time.
    ends = np.arange(1, chunks + 1)[:, None] * request.busy[out]
    earliest = np.argsort(ends, axis=None, kind="stable")[:chunks]
    turn, place = np.divmod(earliest, len(out))
    return out[place], turn


def _heights(topology: Topology, link: np.ndarray, root: int) -> np.ndarray:
    """The number of links from the root to each rank in each tree, int64 (chunks, ranks)."""
    height, chunk = np.zeros((len(link), topology.num_ranks), np.int64), np.arange(len(link))
    for column in link.T:
        height[chunk, topology.dst[column]] = height[chunk, topology.src[column]] + 1
    return height


@kernel(cache=True, nogil=True)
def _free(request, table, e, moment):
    """The first free slot of a link from a moment on; -1 if the timetable has none."""
    slot = -((request.phase[e] - moment) // request.busy[e])
    first, slots = table.ptr[e], table.ptr[e + 1] - table.ptr[e]
    while slot < slots and table.used[first + slot]:
        slot += 1
    return slot if slot < slots else -1


@kernel(cache=True, nogil=True)
def _plan(first, last, until, request, table, link, start, search):
    """Plan chunks ``last - 1`` down to ``first``; returns the last arrival, or -1 for no slot.

    Args:
        until: the tick by which they are to have arrived everywhere.
        link, start: as in ``_Plan``, rows of which are written.
    """
    end = 0
    for c in range(last - 1, first - 1, -1):
        arrived = _reach(c, request, table, search)
        if arrived < 0:
            return -1
        end = max(end, arrived)
        _put_off(c, max(until, arrived), request, table, search)
        for i in range(link.shape[1]):
            v = search.order[i + 1]
            e = search.by[v]
            link[c, i] = e
            start[c, i] = request.phase[e] + search.slot[v] * request.busy[e]
    return end


@kernel(cache=True, nogil=True)
def _reach(c, request, table, search):
    """Find the tree of earliest arrivals of a chunk; returns the last one, or -1 for no slot."""
    arrival, by, slot, inside = search.arrival, search.by, search.slot, search.inside
    keys, items, waiting, reached = search.keys, search.items, 0, 0
    arrival[:] = -1
    inside[:] = False
    u, now, end = request.root, 0, 0
    while u >= 0:
        inside[u], end = True, now
        search.order[reached] = u
        reached += 1
        for i in range(request.ptr[u], request.ptr[u + 1]):
            e = request.link[i]
            v = request.head[e]
            if inside[v]:
                continue
            s = table.turn[c] if e == table.first[c] else _free(request, table, e, now)
            if s < 0:
                continue
            at = request.phase[e] + s * request.busy[e] + request.delay[e]
            # Of equally early ways the one over the link that carries less.
            if (
                arrival[v] < 0
                or at < arrival[v]
                or (at == arrival[v] and table.load[e] < table.load[by[v]])
            ):
                arrival[v], by[v], slot[v] = at, e, s
                waiting = heap.push(keys, items, 0, waiting, at, v)
        u = -1
        while u < 0 and waiting:
            now, u = keys[0], items[0]
            waiting = heap.pop(keys, items, 0, waiting)
            if inside[u] or now > arrival[u]:
                u = -1
    return end if reached == len(arrival) else -1


@kernel(cache=True, nogil=True)
def _put_off(c, until, request, table, search):
    """Move the sends of a tree to the latest slots in time, and reserve these."""
    due = search.arrival
    due[:] = until
    for i in range(len(due) - 1, 0, -1):
        v = search.order[i]
        e = search.by[v]
        if e != table.first[c]:
            first, slots = table.ptr[e], table.ptr[e + 1] - table.ptr[e]
            s = min((due[v] - request.delay[e] - request.phase[e]) // request.busy[e], slots - 1)
            # The slot of its earliest arrival is free.
            while table.used[first + s]:
                s -= 1
            search.slot[v] = s
            table.used[first + s] = True
            table.load[e] += 1
        u = request.tail[e]
        due[u] = min(due[u], request.phase[e] + search.slot[v] * request.busy[e])
