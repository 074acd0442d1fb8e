"""Joint trees: every chunk is summed up one tree and broadcast down another, all at once.

An all_reduce in two phases makes every rank send and receive nearly the whole buffer twice. For a
rank with slow links, that is twice too much: as a leaf of both trees of a chunk it sends the chunk
once, receives it once, and may do both at the same time. The optimum of such pairs of trees is a
linear program (dissertation on ForestColl, App. B.7); its solution needs thousands of chunks. Here
every chunk gets one pair of its own, and few chunks come within a few percent of the optimum:

1. *Grow*: chunk by chunk, an in-tree and an out-tree with a common root, over links whose prices
   rise exponentially with their load (as for concurrent flows: Plotkin, Shmoys and Tardos, "Fast
   approximation algorithms for fractional packing and covering problems", 1995), and with a price
   per hop, so that trees are low.
2. *Regrow*: every pair again, beside all others as they are, with prices that rise more steeply
   from pass to pass; the pass of the least load is kept.
3. *Order*: all sends are list-scheduled, sums and copies of different chunks interleaved, and the
   plan is improved backwards and forwards (``list_scheduling``).

For example, on three ranks in a row, 0 - 1 - 2, every pair has its root in the middle, sums come in
from both ends, and copies go back over the same wires in the other direction: each link carries
each chunk once.

Like every schedule, these are proved correct; how close they come to the bound is not proved.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.links import group_by
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import hop_distances
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    DOUBLINGS,
    FIRST,
    Counts,
    Problem,
    Synthesizer,
    mean_hops,
)
from jaxcoll.synth.building.list_scheduling import LinkedSends, improved, link_ticks, remaining
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.synth.trees import joint_trees_kernel as kernel
from jaxcoll.topology import Topology

# _FIRST_STEEPNESS: doublings of a price, in the first pass, over the load that even trees would
# give every link. _STEEPER: the increase from pass to pass. Passes end after _PASSES, or after
# _FAILURES that do not lower the load. On tori, hosts and random networks with slow links, 24 and 3
# came closest to the bound.
_FIRST_STEEPNESS, _STEEPER, _PASSES, _FAILURES = 24.0, 3.0, 6, 2
# A limit that keeps prices of links slower by orders of magnitude comparable with those of fast
# links.
_MOST_DOUBLINGS = 100.0
# The price of a hop, relative to a chunk on the fullest link. For hosts with a weak NIC a higher
# price makes pipelines shorter (64 chunks: 1.07 of the bound with 0.02, 1.03 with 0.3); from 0.5
# on, loads become unequal.
_HOP = 0.3
# The lower price is kept where the higher one leaves slow links unused, so that the lower price
# reduces the load below _LESS_LOAD of it.
_LOW_HOP, _LESS_LOAD = 0.1, 0.98
# Urgency of chunks by their number, in fractions of the time that each adds to a run.
_PACES = (0.1, 0.2, 0.4, 0.8)
# Links examined in one call of the kernel, in whole trees. That takes half a second as Python,
# after which a kernel knows whether compiling it pays.
_LINKS_AT_ONCE = 1 << 16
# The number of sends up to which all paces and rounds are tried, and the work of a send up to and
# beyond it.
_MANY_SENDS, _WORK, _WORK_OF_MANY = 1 << 20, 6, 4
# Work of examining a link out of a switch, in sends: 221 s for one chunk on 128 hosts of H100s.
_LOOKS = 0.025
# The first chunk count that auto tries has this many sends where chunks are large.
_FEW_SENDS, _LARGE_CHUNK = 1 << 12, 8.0
# Ranks up to which a single chunk is tried.
_FEW_RANKS = 64
# Ratio by which two phases must be slower, by their bounds.
_WORTH_TRYING = 1.01


@dataclasses.dataclass(frozen=True)
class JointTrees(Synthesizer):
    """All-reduce over an in-tree and an out-tree per chunk, near the optimum of unequal links.

    On networks with unequal or missing links, an all_reduce by joint trees comes within some
    percent of the joint bound (a torus without one link, 16 chunks per shard: 0.1 %), where
    reduce_scatter and all_gather take up to twice as long. An all_gather and a broadcast have only
    out-trees; reduce_scatter and reduce are the same backwards. Groups run at the same time, and
    ranks of other groups forward.

    Attributes:
        nbytes: bytes of a rank's buffer for which to be fast; latency makes trees low.
        tries: number of roots tried for each chunk of an all_reduce.
        rounds: the most improvements of the order of sends; fewer if they gain little.

    Raises:
        CollectiveError: a field is out of range.
    """

    nbytes: float = BUCKET_BYTES
    tries: int = 4
    rounds: int = 8

    name: ClassVar[str] = "joint_trees"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"all_reduce", "all_gather", "broadcast"})
    put_off: ClassVar[float] = FIRST
    # All counts before the last together take as long as the last: seconds on tens of ranks.
    counts_are_costly: ClassVar[bool] = True
    has_nbytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "tries")
        checks.put(self, rounds=checks.integer(self.rounds, "rounds", CollectiveError, least=0))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """More chunks share the load more evenly, in a shorter pipeline.

        Few large chunks are skipped: each is a large part of a slow link's load, so that they lose
        more than by the law that auto extrapolates. So is a single chunk of many ranks (``work``).
        """
        topology = problem.topology
        is_single = problem.sends == topology.num_ranks - 1 > _FEW_RANKS and not topology.is_direct
        first = 2 if is_single else 1
        size = self.nbytes / _chunks_of_buffer(problem.collective)
        latency = float(np.median(topology.alpha) * np.median(topology.bandwidth))
        while first * problem.sends < _FEW_SENDS and size / (2 * first) > _LARGE_CHUNK * latency:
            first *= 2
        return (tuple(count for count in DOUBLINGS if count >= first) or (DOUBLINGS[-1],),)

    def may_win(self, problem: Problem) -> bool:
        """Whether the joint bound of an all_reduce is below that of two phases."""
        collective, topology = problem.collective, problem.topology.forwarding_only()
        if not collective.traits.has_phases:
            return True
        phases = (collective.with_kind(kind) for kind in collective.traits.phase_names)
        separate = sum(bound(topology, phase, self.nbytes).time for phase in phases)
        return separate > _WORTH_TRYING * bound(topology, collective, self.nbytes).time

    def work(self, problem: Problem) -> float:
        """Every tree is grown several times, and every send is planned a dozen times.

        The search examines all links out of each switch that it enters. With 1,024 ranks behind one
        switch, which every rank enters towards every other, that takes minutes. So does the tree of
        a single chunk on 128 hosts, and two chunks take a tenth of a second: a price doubles with a
        share of all load, and where one chunk is all there is, every rank that joins the tree
        avoids all links of those before.
        """
        topology, collective = problem.topology, problem.collective
        fans = np.bincount(topology.src, minlength=topology.num_vertices)[topology.num_ranks :]
        looks = collective.num_chunks * topology.num_ranks * int(fans.max(initial=0))
        looks *= topology.num_ranks if collective.num_chunks == 1 else 1
        grown = 2 * self.tries if collective.traits.has_phases else 1
        planned = (_WORK_OF_MANY if problem.sends > _MANY_SENDS else _WORK) * problem.sends
        # On each link of its path. The longest plans of all are those of just below _MANY_SENDS.
        if 2 * problem.sends > _MANY_SENDS and not topology.is_direct:
            planned *= max(1.0, mean_hops(topology) / 2)
        return max(planned, _LOOKS * grown * looks)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        sides = len(collective.traits.phases)
        roots = self._roots(topology, collective, seed)
        chunk_bytes = as_fraction(self.nbytes) / _chunks_of_buffer(collective)
        grown = _Growth(topology, collective, sides, float(chunk_bytes))
        trees = grown.best(roots)
        sends = linked(topology, trees)
        schedule = self._ordered(topology, collective, sends)
        claims = {
            "busiest link": f"{grown.least * float(chunk_bytes) / grown.usual:.6g} s",
            "passes": grown.passes,
        }
        return schedule.with_provenance(Provenance(certificate=claims))

    def _roots(self, topology: Topology, collective: Collective, seed: int) -> np.ndarray:
        """Roots to try for each chunk, int64 of shape (chunks, tries)."""
        if not collective.traits.has_phases:
            return collective.owner.astype(np.int64)[:, None]
        choice = np.random.default_rng(seed)
        found = np.empty((collective.num_chunks, self.tries), np.int64)
        for g, group in enumerate(collective.groups):
            places = _meeting_places(topology, collective, np.asarray(group))
            mine = np.flatnonzero(collective.group_of_chunk == g)
            # The first try is each rank in rotation, so that all ranks are tried equally often.
            found[mine, 0] = places[np.arange(len(mine)) % len(places)]
            found[mine, 1:] = choice.choice(places, (len(mine), self.tries - 1))
        return found

    def _ordered(self, topology: Topology, collective: Collective, sends: LinkedSends) -> Schedule:
        """The sends in the order of the best plan, simulated if inner links are shared."""
        hops = int(sends.edges.hops[sends.edge].sum())
        nbytes = as_fraction(self.nbytes)
        busy, delay = link_ticks(topology, collective, nbytes, hops)
        left = remaining(sends, delay)
        links = sends.edges.path_link
        crossings = np.bincount(sends.edge, minlength=len(sends.edges))
        load = np.bincount(links, np.repeat(crossings, sends.edges.hops), topology.num_links)
        pace = float((load * busy).max()) / collective.num_chunks
        is_large = len(sends.edge) > _MANY_SENDS
        paces, rounds = ((0.2,), min(self.rounds, 2)) if is_large else (_PACES, self.rounds)
        urgencies = [sends.chunk * round(part * pace) - left for part in paces]
        plans = improved(sends, urgencies, busy, delay, rounds)
        if topology.is_direct and len(plans) > 1:
            plans = plans[-1:]  # every message is one hop: the plan is the run
        made = [sends.at(begin, topology, collective) for begin in plans[-3:]]
        if len(made) == 1:
            return made[0]
        # If sends meet inside the network at the same moment, a run takes the one that is first in
        # the schedule, which no plan foresees.
        return min(made, key=lambda schedule: simulate(schedule, nbytes).time)


def _meeting_places(topology: Topology, collective: Collective, group: np.ndarray) -> np.ndarray:
    """The ranks where sums of a group may meet: members, then others as near to all members.

    The links of a rank outside the group carry only sums in and results out, while those of a
    member carry its own data as well.
    """
    if not collective.is_grouped or not collective.helpers or len(group) < 2:
        return group
    hops = hop_distances(topology)
    farthest = np.maximum(hops[:, group], hops.T[:, group]).max(axis=1)
    near = np.flatnonzero(farthest <= farthest[group].max())
    return np.concatenate([group, np.setdiff1d(near, group)])


def _chunks_of_buffer(collective: Collective) -> int:
    """Number of chunks of a rank's whole buffer."""
    return int(np.bincount(collective.group_of_chunk).max())


class _Growth:
    """Trees over the links of a network, grown and grown again."""

    def __init__(
        self, topology: Topology, collective: Collective, sides: int, chunk_bytes: float
    ) -> None:
        n, vertices, links = topology.num_ranks, topology.num_vertices, topology.num_links
        self.topology, self.collective, self.sides = topology, collective, sides
        self.usual = float(np.median(topology.bandwidth))
        self.seconds = self.usual / topology.bandwidth
        src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
        self.back = kernel.Graph(*group_by(dst, vertices), dst, src)
        self.forth = kernel.Graph(*group_by(src, vertices), src, dst)
        groups = collective.groups
        self.role = np.full((len(groups), vertices), kernel.FORWARDS, np.int8)
        self.role[:, :n] = kernel.HELPS if collective.helpers else kernel.STAYS_OUT
        for g, members in enumerate(groups):
            self.role[g, list(members)] = kernel.MEMBER
        sizes = (self.role == kernel.MEMBER).sum(axis=1)
        is_one_hop = topology.is_direct and len(groups) == 1 and sizes[0] == n
        self.most_links = 1 if is_one_hop else 1 + int(hop_distances(topology).max())
        self.sizes = sizes[collective.group_of_chunk]
        self.chunks, self.most = collective.num_chunks, int(sizes.max())
        self.links = links
        # The load if all links were busy for the same time; no trees have a lower one.
        self.even = float(sides * (self.sizes - 1).sum() / (1 / self.seconds).sum())
        # One more hop adds a chunk's time on the link to the run once, and the latency of the link;
        # the run is about as long as the even load.
        latency = topology.alpha / (chunk_bytes / self.usual)
        self.latency = latency / (self.even * self.seconds)
        self.passes, self.least = 0, np.inf

    def best(self, roots: np.ndarray) -> kernel.Trees:
        """The trees of the pass that loads the busiest link the least."""
        kept = self._blank(self.chunks)
        # If links are equally fast, the price of a hop leaves none unused.
        hops = (_HOP, _LOW_HOP) if np.ptp(self.seconds) > 0 else (_HOP,)
        for hop in hops:
            tried = roots
            trees, load = self._blank(self.chunks), np.zeros(self.links, np.int64)
            steepness, failures = _FIRST_STEEPNESS, 0
            below = self.least * (1 if hop == _HOP else _LESS_LOAD)
            for number in range(_PASSES):
                grown = self.chunks if number else 0
                doublings = steepness / self.even
                self._pass(trees, grown, tried, load, doublings, hop + self.latency)
                self.passes += 1
                busiest = float((load * self.seconds).max())
                failures += 1
                if busiest < below:
                    self.least = below = busiest
                    failures = 0
                    kept = kernel.Trees(*(column.copy() for column in trees))
                if failures == _FAILURES:
                    break
                # A chunk keeps its root or takes one of the others, in rotation. Trying all of them
                # in every pass takes half as long again and lowers no load.
                turn = number % max(1, roots.shape[1] - 1)
                other = roots[:, 1:][:, turn : turn + 1]
                tried = np.concatenate([trees.root[:, None], other], axis=1)
                steepness *= _STEEPER
        return kept

    def _pass(
        self,
        trees: kernel.Trees,
        grown: int,
        roots: np.ndarray,
        load: np.ndarray,
        doublings: float,
        hop: np.ndarray,
    ) -> None:
        """Grow each tree again; prices double ``steepness`` times per unit of time."""
        v = self.topology.num_vertices
        rise = np.exp2(np.minimum(doublings * self.seconds, _MOST_DOUBLINGS))
        fine = len(kernel.POWERS) * doublings
        hop_price = hop * (rise - 1)
        search = kernel.Search(
            np.empty(v),
            np.zeros(v, np.int64),
            np.empty(v),
            np.zeros(v, np.bool_),
            np.empty(self.links),
            np.empty(64 * (self.links + v)),
            np.empty(64 * (self.links + v), np.int64),
        )
        spare, level = self._blank(1), np.ones(self.links)
        work = self.links * self.sides * roots.shape[1] * 4
        block = max(1, _LINKS_AT_ONCE // work)
        for first in range(0, self.chunks, block):
            kernel.replace(
                first, min(first + block, self.chunks), grown, self.back, self.forth, self.role,
                self.collective.group_of_chunk, trees, roots, load, self.seconds, fine, rise, level,
                hop_price, self.most_links, search, spare,
            )  # fmt: skip

    def _blank(self, chunks: int) -> kernel.Trees:
        # A tree adds all members except its root; if the root is a helper, it adds all members.
        ways = self.most if self.collective.is_grouped else max(1, self.most - 1)
        shape = (chunks, self.sides)
        return kernel.Trees(
            np.zeros(chunks, np.int64),
            np.zeros((*shape, ways * self.most_links), np.int32),
            np.zeros(shape, np.int64),
        )


def linked(topology: Topology, trees: kernel.Trees) -> LinkedSends:
    """The sends of all trees, chunk by chunk: first sums from the leaves inwards, then copies."""
    ends, sides = (topology.src, topology.dst, topology.num_ranks), trees.link.shape[1]
    counts = np.zeros(trees.used.shape, np.int64)
    kernel.count_sends(trees, *ends, counts)
    of_chunk = counts.sum(axis=1)
    sends = int(of_chunk.sum())
    path_ptr, path = np.zeros(sends + 1, np.int64), np.empty(int(trees.used.sum()), np.int64)
    waits = kernel.write_sends(trees, counts, *ends, path_ptr, path)
    before, after = np.empty(waits, np.int64), np.empty(waits, np.int64)
    kernel.write_waits(trees, counts, ends[:2], path_ptr, path, ends[2], before, after)
    next_ptr, order = group_by(before, sends)
    chunk = np.repeat(np.arange(len(counts)), of_chunk)
    is_sum = np.tile(np.arange(sides) < sides - 1, len(counts))
    edges, edge = distinct_edges(topology, path_ptr, path)
    reduce = np.repeat(is_sum, counts.ravel())
    return LinkedSends(edges, edge, chunk, reduce, next_ptr, after[order])
