"""Rail gather: every rank gathers along its rail, and passes the shards on within its host.

For example, on two hosts of two ranks, ranks 0 and 2 are on one rail, 1 and 3 on another. Rank 0
sends its shard to 2 along the rail and to 1 within the host, and passes the shard of 2 on to 1. If
ranks gathered within hosts first and then along rails, rank 0 would send the shard of 1 to 2 as
well, which is twice as much along the rail.
"""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.progress import Report
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    IN_BLOCKS,
    ONE_CHUNK,
    SOON,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import (
    SLOW,
    leaf_of_rank,
    leaves_of,
    rail_slowness,
    ranks_below,
    ranks_per_leaf,
)
from jaxcoll.synth.building.derive import derive
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.patterns.group_gather import Groups, gather_across, groups_of
from jaxcoll.synth.patterns.leaf_gather import gather_below
from jaxcoll.synth.patterns.weak_hosts import WeakHost, weak_host
from jaxcoll.synth.routing.spread_routes import spread_routes
from jaxcoll.topology import Topology

_FEW_RANKS = 64
# The part that a slow rail keeps of the shards that would take it as long as other rails take
# theirs, since its last one takes longer.
_KEPT = 0.9
# Sends of an all_reduce with a weak host up to which shards are cut into more chunks.
_MANY_SENDS = 2**24


@dataclasses.dataclass(frozen=True)
class RailGather(Synthesizer):
    """All-gather along rails in one step; ranks pass shards on within hosts as they arrive.

    Rank i of a host sends its shard to rank i of every other host, the next host first, so that no
    two ranks send to a third at the same time. A shard crosses the rails once per host, while after
    a gather within hosts (``HierarchicalRing``) every rank sends all shards of its host. Shards
    arrive in the order of hosts, and go to the other ranks of the host in ``parts`` messages each,
    while later ones are on their way. Every shard takes two messages, however many hosts there are.

    Where a rank's link to the network is slower than usual, or its link within the host too slow to
    pass on what its rail brings, the other ranks of the host carry its shards in turn. Below leaf
    switches of unequal numbers of ranks, those of a leaf take turns with all (``leaf_gather``). In
    a dragonfly shards cross between groups by the ranks that have the links (``group_gather``).

    Attributes:
        parts: number of messages in which a rank passes on the shards of its rail. With more parts
            the last one, which leaves after all shards have arrived, is shorter.
        inner: ranks per host; read off the network when omitted.

    Raises:
        CollectiveError: a field is out of range.
    """

    parts: int = 32
    inner: int | None = None

    name: ClassVar[str] = "rail_gather"
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = SOON

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "parts")
        checks.integer_fields(self, CollectiveError, "inner", or_none=True)

    def leads(self, problem: Problem) -> bool:
        """Whether many ranks have one link each, below leaf switches, or are in a dragonfly."""
        topology, kind = problem.topology, problem.collective.traits
        if topology.num_ranks <= _FEW_RANKS or len(problem.collective.groups) > 1:
            return False
        is_known = leaf_of_rank(topology) is not None or groups_of(topology) is not None
        return is_known and self.makes(kind)

    def may_win(self, problem: Problem) -> bool:
        """Whether there are so many ranks that searches take long."""
        return problem.topology.num_ranks > _FEW_RANKS

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups.
            TopologyError: the network has no hosts, or hosts do not divide the ranks.
        """
        check_everyone(collective, self.name)
        n = topology.num_ranks
        groups = groups_of(topology) if self.inner is None else None
        if groups is not None:
            return _scheduled(topology, collective, *_by_groups(topology, groups, self.parts))
        leaves = leaves_of(topology) if self.inner is None else []
        if leaves and not ranks_per_leaf(topology):
            return _scheduled(topology, collective, *_by_leaves(topology, leaves, self.parts))
        inner = ranks_below(topology, self.name) if self.inner is None else self.inner
        if n % inner:
            raise TopologyError(
                f"{self.name} takes hosts of {inner} ranks, which does not divide the {n} of "
                f"{topology}; give another inner="
            )
        rails = _Rails(topology, n // inner, inner)
        return _scheduled(topology, collective, rails.edges, *_gathered(rails, self.parts))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk; several for an all_reduce in which a weak host adopts chunks."""
        weak = self._weak(problem)
        return ONE_CHUNK if weak is None else ((weak.chunks(problem.sends, _MANY_SENDS),),)

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """The schedule; in an all_reduce a weak host sums more than others (``weak_hosts``)."""
        weak = self._weak(problem)
        if weak is None:
            return super().answer(problem, report)
        topology, collective = problem.topology, problem.collective
        inner = self.inner or ranks_below(topology, self.name)
        rails = _Rails(topology, topology.num_ranks // inner, inner)
        # Adopted chunks begin at the weak host. After the reverse of these sends, which sums them
        # there, the two are an all_reduce.
        gather = _adopted(rails, weak, problem.of(collective.with_kind("all_gather")), self.parts)
        return derive(gather, collective.kind, self._order_for(problem))

    def _weak(self, problem: Problem) -> WeakHost | None:
        """The weak host of an all_reduce of many ranks; None for others."""
        topology, kind = problem.topology, problem.collective.traits
        n, is_whole = topology.num_ranks, not problem.collective.is_grouped
        if not (kind.has_phases and is_whole and n > _FEW_RANKS):
            return None
        if self.inner is None and leaf_of_rank(topology) is not None:
            return None
        inner = self.inner or ranks_below(topology, self.name)
        if n % inner or inner < 2 or n == inner:
            return None
        return _weak_host(topology, inner)


@functools.lru_cache(maxsize=4)
def _weak_host(topology: Topology, inner: int) -> WeakHost | None:
    if not topology.has_links_of(topology.transpose()):
        return None
    return weak_host(rail_slowness(topology, inner), inner)


def _scheduled(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    step: np.ndarray,
    edge: np.ndarray,
    owner: np.ndarray,
) -> Schedule:
    """The schedule of sends that each carry all chunks of an owner."""
    chunks = collective.chunks_per_shard
    if chunks > 1:
        step, edge, owner = (np.repeat(column, chunks) for column in (step, edge, owner))
    chunk = owner * np.int32(chunks) + np.arange(len(owner), dtype=np.int32) % np.int32(chunks)
    return Schedule.from_sends(topology, collective, step, edge, chunk, edges=edges)


def _by_leaves(
    topology: Topology, leaves: list[np.ndarray], parts: int
) -> tuple[Edges, np.ndarray, np.ndarray, np.ndarray]:
    """Connections, and step, edge and owner of the sends, below leaves of unequal sizes."""
    found = gather_below(leaves, parts)
    nbytes = Fraction(BUCKET_BYTES, topology.num_ranks)
    edges = spread_routes(topology, found.src, found.dst, found.shards, nbytes)
    # Numbers have 32 bits, since thousands of ranks have tens of millions of sends.
    columns = (found.step, found.edge, found.owner)
    step, edge, owner = (column.astype(np.int32) for column in columns)
    return edges, step, edge, owner


def _by_groups(
    topology: Topology, groups: Groups, parts: int
) -> tuple[Edges, np.ndarray, np.ndarray, np.ndarray]:
    """Connections, and step, edge and owner of the sends, in the groups of a dragonfly."""
    found = gather_across(groups, parts)
    return shortest_routes(topology, found.src, found.dst), found.step, found.edge, found.owner


@dataclasses.dataclass(frozen=True)
class _Rails:
    """Connections along rails and within hosts, and the shards that take another rank's rail.

    Edge ``(d - 1) ranks + r`` joins rank r to the rank of its index d hosts ahead. Edge ``first +
    (k - 1) ranks + r`` joins it to the rank of its host k indices ahead.
    """

    topology: Topology
    hosts: int
    inner: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.inner

    @property
    def first(self) -> int:
        """Number of connections along rails."""
        return (self.hosts - 1) * self.ranks

    @functools.cached_property
    def edges(self) -> Edges:
        """All connections, by shortest routes."""
        # Numbers have 32 bits, since thousands of ranks have tens of millions of sends.
        n, rank = self.ranks, np.arange(self.ranks, dtype=np.int32)
        ahead = np.arange(1, self.hosts, dtype=np.int32)[:, None] * self.inner
        beside = np.arange(1, self.inner, dtype=np.int32)[:, None]
        host, index = rank // self.inner * self.inner, rank % self.inner
        dst = np.concatenate(
            [((rank + ahead) % n).ravel(), (host + (index + beside) % self.inner).ravel()]
        )
        # Along a rail goes a single shard, within a host those of all hosts.
        shards = np.where(np.arange(len(dst)) < self.first, 1, self.hosts)
        nbytes = Fraction(BUCKET_BYTES, n)
        return spread_routes(self.topology, np.resize(rank, len(dst)), dst, shards, nbytes)

    @functools.cached_property
    def detours(self) -> np.ndarray:
        """Whether a shard crosses to a host by another rank of its own; bool (hosts - 1, ranks).

        Row d - 1 is for the hosts d ahead, columns are for the owners of the shards. That is where
        the owner's link to the network, or at the other end the link from it or the link over which
        the shards of the rail are passed on within the host, would be the slowest of the gather.
        """
        n = self.ranks
        if self.hosts < 2 or self.inner < 2:
            return np.zeros((self.hosts - 1, n), bool)
        ahead = np.arange(1, self.hosts)[:, None]
        there = (np.arange(n) + self.inner * ahead) % n
        out, inwards = rail_slowness(self.topology, self.inner)
        own = np.maximum(out, inwards[there])
        # A rail of a fifth of the speed keeps nearly every fifth shard, at even distances.
        slow, kept = own > SLOW, _KEPT / own
        slow &= np.floor(ahead * kept) == np.floor((ahead - 1) * kept)
        # Where no rank of the two hosts has a fast rail, all stay on their own.
        left = slow.reshape(self.hosts - 1, self.hosts, self.inner).all(axis=2)
        return slow & ~np.repeat(left, self.inner, axis=1)

    def is_detour(self, edge: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """Which sends of shards along rails, and on from there, detours replace."""
        behind = (self.edges.dst[edge] // self.inner - owner // self.inner) % self.hosts
        return (behind > 0) & self.detours[behind - 1, owner]


def _gathered(rails: _Rails, parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, edge and owner of all sends, where some shards take another rank's rail."""
    step, edge, owner = _by_rails(rails, parts)
    if not rails.detours.any():
        return step, edge, owner
    kept = ~rails.is_detour(edge, owner)
    more = (added.astype(np.int32) for added in _by_carriers(rails, parts))
    step, edge, owner = (
        np.concatenate([column[kept], added])
        for column, added in zip((step, edge, owner), more, strict=True)
    )
    return step, edge, owner


def _adopted(rails: _Rails, weak: WeakHost, problem: Problem, parts: int) -> Schedule:
    """The second phase of an all_reduce: a gather in which a weak host has chunks of others."""
    topology, collective = problem.topology, problem.collective
    n, hosts, inner, chunks = rails.ranks, rails.hosts, rails.inner, collective.chunks_per_shard
    adopts = weak.adopts(hosts, inner, chunks)
    step, edge, owner = (np.repeat(each, chunks) for each in _gathered(rails, parts))
    piece = np.arange(len(owner), dtype=np.int32) % np.int32(chunks)
    # All first chunks cross, then all second ones; in this order they are passed on. Whole shards
    # take steps 0 and 1 until they have crossed, and are passed on by step 2 parts + 1.
    crosses, late = edge < rails.first, np.int32(2 * parts + 2)
    step += np.where(crosses | (step == 0), 1 + 2 * piece, 2 * chunks + 3 + late * piece)
    # An adopted chunk crosses to its owner, before all others of the link, instead of from it. The
    # owner sends it on behind all chunks that it had itself.
    mother = weak.host * inner + np.arange(n) % inner
    rows = np.flatnonzero(adopts[owner] & (piece == chunks - 1))
    across = crosses[rows]
    gone = rows[across & (rails.edges.dst[edge[rows]] == mother[owner[rows]])]
    step[rows] += np.where(across, np.int32(2), late)
    step[rows[rails.edges.src[edge[rows]] == mother[owner[rows]]]] = 1
    # Shards of the weak host are relayed when all others have arrived.
    last = step.max()
    rows = np.flatnonzero(owner // inner == weak.host)
    there = rails.edges.dst[edge[rows]]
    behind = (there // inner - weak.host) % hosts
    is_relayed = (behind > 1) & ((behind + piece[rows]) % weak.period == 0)
    rows, there = rows[is_relayed], there[is_relayed]
    across = crosses[rows]
    step[rows] = last + np.where(across, 1, 2)
    edge[rows[across]] = (there[across] - inner) % n  # from the host before
    child = np.flatnonzero(adopts)
    home = (child // inner - weak.host - 1) % hosts * n + mother[child]
    columns = (
        np.concatenate([np.delete(column, gone), added.astype(np.int32)])
        for column, added in zip(
            (step, edge, owner * np.int32(chunks) + piece),
            (np.zeros(len(child)), home, child * chunks + chunks - 1),
            strict=True,
        )
    )
    return Schedule.from_sends(topology, collective, *columns, edges=rails.edges)


def _by_rails(rails: _Rails, parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, edge and owner of the sends if every shard takes its owner's rail; int32 each."""
    n, hosts, first = rails.ranks, rails.hosts, rails.first
    rank, count = np.arange(n, dtype=np.int32), n * (rails.inner - 1)
    # The shards of a rank, by the distance of the owner's host behind it: its own shard goes first.
    behind = np.arange(hosts, dtype=np.int32)[:, None]
    part = np.where(behind == 0, 0, 1 + (behind - 1) * parts // max(hosts - 1, 1))
    passing = np.resize(rank, count)
    owner = ((passing - behind * np.int32(rails.inner)) % np.int32(n)).ravel()
    step = np.concatenate([np.zeros(first, np.int32), np.repeat(part.ravel(), count)])
    edge = np.concatenate(
        [
            np.arange(first, dtype=np.int32),
            np.tile(np.arange(first, first + count, dtype=np.int32), hosts),
        ]
    )
    return step, edge, np.concatenate([np.resize(rank, first), owner])


def _by_carriers(rails: _Rails, parts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, edge and owner of the sends of shards that cross to a host by another rank's rail."""
    n, inner = rails.ranks, rails.inner
    ahead, owner = np.nonzero(rails.detours)
    host, index = owner // inner, owner % inner
    # The ranks with fast rails between the two hosts carry these shards in turn.
    free = ~rails.detours.reshape(-1, rails.hosts, inner)[ahead, host]
    turn = (ahead + index) % free.sum(axis=1)
    carrier = (free.cumsum(axis=1) > turn[:, None]).argmax(axis=1) + host * inner
    # A carrier has the shard after the first step. It crosses after those of the carrier's own rail
    # and so is passed on after them, too.
    across = ahead * n + carrier
    there = (carrier + (ahead + 1) * inner) % n
    beside = np.arange(inner - 1)[:, None]
    on = (rails.first + beside * n + there).ravel()
    late = parts + 1 + ahead * parts // max(rails.hosts - 1, 1)
    step = np.concatenate([np.ones(len(owner), np.int64), np.tile(late, inner - 1)])
    owners = np.concatenate([owner, np.tile(owner, inner - 1)])
    return step, np.concatenate([across, on]), owners
