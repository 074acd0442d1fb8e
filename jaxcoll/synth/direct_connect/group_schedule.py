"""All-gathers on networks of an abelian group, stored as the tree of one rank.

The shard of rank 0 reaches rank r by some links; the shard of rank q reaches q + r by the same
links moved by q. So a table of ranks x chunks suffices, while a schedule would need ranks squared.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from jaxcoll.bounds.moore import Cost
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.rational import common_denominator
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.direct_connect.bfb_balance import deal, least_share, least_time
from jaxcoll.synth.direct_connect.bfb_steps import WORD, by_distance, group_jobs, usable_links
from jaxcoll.synth.direct_connect.group_network import GroupNetwork

_MOST_SENDS = 2**31 - 1
_MOST_CHUNKS = 2**27  # chunks of all ranks, which are rows of five bytes in the table


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GroupSchedule:
    """An all_gather by translations: how rank 0's chunks reach every rank.

    Attributes:
        network: the network.
        step: the step in which each rank receives rank 0's shard, -1 for rank 0 itself, an integer
            column of shape (ranks,).
        via: number of the offset that brings each chunk to each rank, uint8 of shape (ranks,
            chunks); row 0 is unused.

    Raises:
        ScheduleError: columns have other shapes, or numbers are out of range.
    """

    network: GroupNetwork
    step: np.ndarray
    via: np.ndarray

    def __post_init__(self) -> None:
        checks.instance(self.network, GroupNetwork, "network", ScheduleError)
        n = self.network.num_ranks
        step, via = (
            np.asarray(checks.bounded(column, what, ScheduleError))
            for column, what in ((self.step, "step"), (self.via, "via"))
        )
        if step.shape != (n,) or step.dtype.kind != "i":
            raise ScheduleError(f"step must be one column of {n} integers, got shape {step.shape}")
        if step.min() < -1 or step.max() > n:
            raise ScheduleError(f"steps are -1..{n}, got {step.min()}..{step.max()}")
        if via.ndim != 2 or len(via) != n or not via.shape[1] or via.dtype != np.uint8:
            raise ScheduleError(f"via must be uint8 of shape ({n}, chunks), got {via.shape}")
        if (via[1:] >= self.network.degree).any():
            raise ScheduleError(f"via must name offsets 0..{self.network.degree - 1}")
        checks.put(self, step=step, via=via)

    @property
    def chunks_per_shard(self) -> int:
        """Number of chunks per shard, P."""
        return self.via.shape[1]

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return int(self.step.max()) + 1

    def verify(self) -> None:
        """Prove that every rank receives every chunk once, from a rank that has it by then.

        The check is for rank 0's chunks; by translation the result holds for the chunks of any
        rank. They do not get into each other's way, since a link takes the chunks of all ranks in
        one message.

        Raises:
            ScheduleError: with ``rank``, ``chunk`` and ``step`` of the first error.
        """
        if self.step[0] != -1 or (self.step[1:] < 0).any():
            raise ScheduleError("step must be -1 for rank 0 and at least 0 for all others")
        # The sender of a chunk to rank r is r less an offset, and has received the chunk of rank 0
        # in its own step.
        bad = _first_early(self.network.behind, self.step, self.via)
        if bad >= 0:
            rank, chunk = divmod(bad, self.chunks_per_shard)
            sender = int(self.network.behind[self.via[rank, chunk], rank])
            step = int(self.step[rank])
            raise ScheduleError(
                f"step {step}: rank {sender} sends chunk {chunk} of rank 0 to rank {rank}, but has "
                f"not received it before",
                rank=sender,
                chunk=chunk,
                step=step,
            )

    def loads(self) -> np.ndarray:
        """Chunks over each link of an offset in each step, int64 of shape (steps, degree).

        All links of one offset carry the same number.
        """
        # Translations map the links of an offset to one another. So the trees of all ranks together
        # load each of these links as much as rank 0's tree loads all of them together.
        found = np.zeros((self.num_steps, self.network.degree), np.int64)
        _count(self.step, self.via, found)
        return found

    def cost(self) -> Cost:
        """T_L and T_B (3.2); the same for the reversed reduce_scatter, and twice for all_reduce."""
        parts = self.chunks_per_shard * self.network.num_ranks
        busiest = int(self.loads().max(axis=1).sum())
        return Cost(self.num_steps, Fraction(busiest * self.network.degree, parts))

    def expand(self) -> Schedule:
        """The same all_gather with one row per send.

        Raises:
            CollectiveError: there are more than 2**31 - 1 sends.
        """
        network, chunks = self.network, self.chunks_per_shard
        n = network.num_ranks
        if n * (n - 1) * chunks > _MOST_SENDS:
            raise CollectiveError(
                f"{n} ranks and {chunks} chunks per shard take {n * (n - 1) * chunks} sends, more "
                f"than {_MOST_SENDS} that a Schedule can hold"
            )
        topology = network.topology()
        # The link of every offset out of every rank; parallel links of equal offsets are in order.
        key, links = topology.src.astype(np.int64) * n + topology.dst, []
        for i, offset in enumerate(network.offsets):
            ends = np.arange(n) * n + network.ahead[i]
            links.append(np.searchsorted(key, ends) + network.offsets[:i].count(offset))
        rank, chunk = (column.ravel() for column in np.indices((n - 1, chunks)))
        step, offset = self.step[1 + rank], self.via[1 + rank, chunk]
        # Rank q's tree is rank 0's tree with q added to every rank; links keep their offsets.
        moved = np.stack([network.shifted(where) for where in np.ndindex(*network.moduli)])
        sender = network.behind[offset, 1 + rank]
        return Schedule.from_sends(
            topology,
            Collective("all_gather", n, chunks),
            np.broadcast_to(step, (n, len(step))).ravel(),
            np.stack(links)[offset, moved[:, sender]].ravel(),
            (np.arange(n)[:, None] * chunks + chunk).ravel(),
            provenance=Provenance("bfb"),
        )

    def __repr__(self) -> str:
        return (
            f"GroupSchedule(all_gather on {self.network.name or self.network}: {self.num_steps} "
            f"steps, {self.chunks_per_shard} chunks per shard)"
        )


def group_bfb(network: GroupNetwork, chunks: int | None = None) -> GroupSchedule:
    """The BFB all_gather on a network of an abelian group: one rank solved for all.

    Args:
        network: the network.
        chunks: chunks per shard; the fewest with which rounding loses no bandwidth when omitted.

    Raises:
        TopologyError: there are fewer than two ranks, or more than 255 links per rank.
        CollectiveError: chunks is below 1, or all ranks together have more than 2**27.
    """
    checks.instance(network, GroupNetwork, "network", TopologyError)
    chunks = checks.optional(chunks, checks.integer, "chunks", CollectiveError, least=1)
    if network.num_ranks < 2 or network.degree > 255:
        raise TopologyError(f"group_bfb takes 2 ranks or more and 255 links each, not {network}")
    hops, sets = _usable(network)
    if chunks is None:
        # Links carry fractions of shards; with fewer chunks some step would round one up.
        chunks = common_denominator(_shares(hops, sets, network.degree))
    if chunks * len(hops) > _MOST_CHUNKS:
        raise CollectiveError(
            f"{len(hops)} ranks of {chunks} chunks are more than {_MOST_CHUNKS} chunks; take at "
            f"most {_MOST_CHUNKS // len(hops)} chunks per shard"
        )
    via = np.zeros((len(hops), chunks), np.int32)
    _deliver(hops, sets, network.degree, chunks, via.reshape(-1))
    return GroupSchedule(network, hops - 1, via.astype(np.uint8))


def group_cost(network: GroupNetwork) -> Cost:
    """T_L and T_B of the best BFB all_gather on a network of an abelian group (3.2).

    The same as ``bfb_cost`` of its topology, which is not made.
    """
    checks.instance(network, GroupNetwork, "network", TopologyError)
    if network.num_ranks == 1:
        return Cost(0, Fraction(0))
    shares = _shares(*_usable(network), network.degree)
    return Cost(len(shares), sum(shares, Fraction(0)) * network.degree / network.num_ranks)


def _usable(network: GroupNetwork) -> tuple[np.ndarray, np.ndarray]:
    """Hops from rank 0 to every rank, and the sets of last links of the shortest paths."""
    hops = _hops(network.ahead)
    sets = np.empty((-(-network.degree // WORD), len(hops)), np.int64)
    usable_links(hops[network.behind], np.arange(network.degree), hops, sets)
    return hops, sets


def _shares(hops: np.ndarray, sets: np.ndarray, links: int) -> list[Fraction]:
    """U of (3.1) for each step."""
    top, bottom = np.zeros((2, int(hops.max())), np.int64)
    _solve(hops, sets, links, top, bottom)
    return [Fraction(int(a), int(b)) for a, b in zip(top, bottom, strict=True)]


@kernel(cache=True)
def _hops(ahead):
    """Hops from rank 0 to every rank, int32 of shape (ranks,)."""
    degree, n = ahead.shape
    hops = np.full(n, -1, np.int32)
    # Only from rank 0, since the distance from q to r is that from 0 to r - q.
    queue = np.empty(n, np.int32)
    hops[0] = queue[0] = 0
    first, last = 0, 1
    while first < last:
        r = queue[first]
        first += 1
        for i in range(degree):
            w = ahead[i, r]
            if hops[w] < 0:
                hops[w] = hops[r] + 1
                queue[last] = w
                last += 1
    return hops


@kernel(cache=True)
def _solve(hops, sets, links, top, bottom):
    """Writes U of (3.1) for each step, as fractions ``top / bottom``."""
    order = np.empty(len(hops), np.int64)
    start = by_distance(hops, order)
    tight, used = np.zeros(len(hops), np.bool_), np.zeros(links, np.bool_)
    for t in range(1, len(start) - 1):
        jobs = group_jobs(order[start[t] : start[t + 1]], sets, links)
        most = len(jobs.source)  # over all links: a bound to start from
        top[t - 1], bottom[t - 1], _ = least_share(jobs, links, most, links, tight, used)


@kernel(cache=True)
def _deliver(hops, sets, links, chunks, via):
    """Writes, for each chunk of each rank, the number of the offset that brings it."""
    order = np.empty(len(hops), np.int64)
    start = by_distance(hops, order)
    # All links are equal here, so time is counted in chunks of the busiest one.
    delay, pace = np.zeros(links, np.int64), np.ones(links, np.int64)
    for t in range(1, len(start) - 1):
        jobs = group_jobs(order[start[t] : start[t + 1]], sets, links)
        flow = np.empty(len(jobs.link), np.int64)
        least_time(jobs, chunks, delay, pace, flow)
        deal(jobs, chunks, flow, via)


@kernel(cache=True)
def _first_early(behind, step, via):
    """The first rank x chunks + chunk whose sender does not have the chunk yet; or -1."""
    chunks = via.shape[1]
    for r in range(1, len(step)):
        for k in range(chunks):
            # A chunk that arrives in a step can leave in the next at the earliest.
            if step[behind[via[r, k], r]] >= step[r]:
                return r * chunks + k
    return -1


@kernel(cache=True)
def _count(step, via, found):
    """Counts the chunks over the links of each offset in each step."""
    for r in range(1, len(step)):
        for k in range(via.shape[1]):
            found[step[r], via[r, k]] += 1
