"""ForestColl: schedules whose throughput no schedule can beat, on any network.

The dissertation's five steps (Sec. 4.5), each from one frozen type to the next. ``stages.exact``
is steps 2 to 4 as the paper has them, and reads beside it:

1. ``Rates`` (``rates``): the optimum says how fast any schedule can be, and the fewest trees per
   rank that are as fast (Sec. 4.5.2). A ring of 4 ranks with links both ways needs 2 trees per
   rank: three shards enter a rank by two links, and with 1 tree one of them would carry two and the
   other one.
2. ``Logical`` (``edge_splitting``): switches are removed, so that links join ranks only (Sec.
   4.5.3).
3. ``Trees`` (``tree_packing``): spanning trees are packed into what is left (Sec. 4.5.4), and
4. made low (``spanning``). With its path through the switches given back to each edge they are
   ``RoutedTrees``, and counted link by link a ``TreeFlow`` (``routed_trees``).
5. ``Schedule``: the pieces of a tree follow each other down (``TreeFlow.to_schedule``).

That takes a flow for nearly everything. ``shortcuts`` answers one question in seconds, ``guess``:
trees that are as good, or None. An all_reduce may have both phases at once (``joint_phases``).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Self

import numpy as np

from jaxcoll.bounds.all_reduce import all_reduce_bound
from jaxcoll.bounds.cuts import AllReduceBound
from jaxcoll.bounds.throughput import known_optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.progress import Report
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    DOUBLINGS,
    IN_BLOCKS,
    SOON,
    Counts,
    Problem,
    Synthesizer,
    mean_hops,
)
from jaxcoll.synth.building.helpers import helped, sent_on
from jaxcoll.synth.building.urgent_trees import most_urgent_first
from jaxcoll.synth.forestcoll.joint_phases import granularity, joint_all_reduce
from jaxcoll.synth.forestcoll.rates import numbers_of_trees, rates_for_chunks
from jaxcoll.synth.forestcoll.stages import forest, known_forest
from jaxcoll.topology import Topology
from jaxcoll.trees import ORDERS, TreeFlow

__all__ = ["ForestColl", "forest"]

PHASES = ("separate", "joint")
# Up to this number of ranks the trees of a broadcast are low, and packed in no time.
_FEW_RANKS = 64
# Numbers of pieces of a tree of more ranks.
_PIECES = (*DOUBLINGS, 512, 1024)

# How much less urgent each piece is than the one before it, as a share of the time of one piece of
# every tree. On tori with a slow link 0.5 to 2 led to equal times, and 0.1 to up to 5 % more.
_PACE = 0.5

# Finding the optimum takes about half a microsecond times the ranks times the links.
_BOUNDED_FAST = 2**24
# Work of finding and packing trees without switches, for each rank and link.
_OPTIMUM = 0.1


@dataclasses.dataclass(frozen=True)
class ForestColl(Synthesizer):
    """Spanning trees of optimal throughput, in a pipeline (dissertation, Chapter 4).

    The optimum needs a number k of trees per rank, ``granularity(topology)``: with k x p chunks a
    shard every tree is cut into p pieces, and the time approaches the optimum as p grows. With
    other numbers of chunks, the fastest of the numbers of trees up to 16 that divide them is taken.

    Networks with switches must let out as much of every vertex as they let in. One group takes
    part; ranks outside it forward for it, as switches do (``jaxcoll.synth.building.helpers``).

    Attributes:
        k: trees per rank; chosen as above when None.
        pieces: messages each tree edge's load is cut into at most; None to send every chunk by
            itself. Fewer than the chunks allow let several be sent together.
        nbytes: where pieces is None, the bytes of the buffer that their number is chosen for, by
            simulation: many cost latency, few delay the first.
        order: "stream" converges fastest; "steps" has the fewest steps (see
            ``TreeFlow.to_schedule``).
        guess: whether shortcuts, verified, may come before the exact way.
        fast: whether to refuse networks that may take more than some seconds, by their numbers of
            ranks and links (beyond 128 ranks most that have no structure).
        phases: the phases of an all_reduce: "separate" for reduce_scatter and then all_gather;
            "joint" to let both run at once where that is faster: at the rates of the linear program
            of App. B.7, with as many trees rooted at each rank as it says. That takes a second at
            some 16 ranks and much more at more. ``joint_granularity`` tells the chunks it is best
            with.
    """

    k: int | None = None
    pieces: int | None = None
    nbytes: float | None = None
    order: str = "stream"
    guess: bool = True
    fast: bool = False
    phases: str = "separate"

    name: ClassVar[str] = "forestcoll"
    orders_links: ClassVar[bool] = True
    takes_shares: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.copies)
    put_off: ClassVar[float] = SOON

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "k", "pieces", or_none=True)
        nbytes = checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(self, nbytes=nbytes)
        checks.choice(self.order, ORDERS, "order", CollectiveError)
        checks.choice(self.phases, PHASES, "phases", CollectiveError)
        checks.flag_fields(self, CollectiveError, "guess", "fast")

    def granularity(self, topology: Topology) -> int:
        """Chunks per shard of an all_gather are best a multiple of this: its trees per rank."""
        return known_optimum(topology, None).k if self.k is None else self.k

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        return (cls(fast=True), cls(order="steps", fast=True))

    def suited(self, topology: Topology) -> ForestColl:
        """Refusals by number are for networks with switches: on direct ones the work is known."""
        return dataclasses.replace(self, fast=False) if topology.is_direct else self

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Few trees per rank, the fastest for little data, and multiples of the fastest numbers."""
        problem = _alone(problem)
        topology, collective = problem.topology, problem.collective
        kind = collective.traits
        way = topology.transpose() if kind.has_root and kind.adds else topology
        root = collective.root_of(collective.groups[0]) if kind.has_root else None
        if root is not None and topology.num_ranks > _FEW_RANKS:
            # Other numbers of trees take as long to pack, and give no lower ones. Pieces wait at
            # every rank of a tree: the higher it is, the more pieces there should be.
            best = known_optimum(way, tuple(int(r == root) for r in range(way.num_ranks)))
            return (1,), tuple(best.k * pieces for pieces in _PIECES)
        numbers = numbers_of_trees(way, root)
        multiples = (tuple(k * pieces for pieces in DOUBLINGS) for k in numbers)
        return ((1, 2, 3, 4, 6, 8, 12), *multiples)

    def work(self, problem: Problem) -> float:
        """Without switches, trees are found in time for each rank and link.

        Through switches a send is put in order and simulated on every link of its path. Schedules
        of few steps are not put in order, and all that a link carries in a step is one message.
        """
        problem = _alone(problem)
        topology, sends = problem.topology, float(problem.sends)
        if self.order == "steps":
            sends *= IN_BLOCKS
        if topology.is_direct:
            found = _OPTIMUM * topology.num_ranks * topology.num_links
            # The trees of one root are spread over the links, once for all numbers of pieces.
            spread = problem.collective.traits.has_root and topology.num_ranks > _FEW_RANKS
            return (found / len(_PIECES) if spread else found) + sends
        return max(1.0, mean_hops(topology) / 2) * sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: groups, or chunks that k does not divide.
            TopologyError: switches that let out more or less than they let in; see ``fast``.
        """
        flow = self._flow(topology, collective)
        chunks = collective.chunks_per_shard

        def in_pieces(count: int) -> Schedule:  # step 5
            return flow.to_schedule(count, order=self.order, collective=collective)

        if self.pieces is not None or self.nbytes is None:
            return in_pieces(chunks if self.pieces is None else self.pieces)
        # The fastest of 1, 2, 4, ... pieces: more delay the first less and cost latency, so that
        # the search ends where twice as many are slower.
        best, pieces = in_pieces(1), 2
        least = simulate(best, self.nbytes).time
        while pieces <= chunks // flow.granularity:
            schedule = in_pieces(pieces)
            taken = simulate(schedule, self.nbytes).time
            if taken >= least:
                break
            best, least, pieces = schedule, taken, 2 * pieces
        return best

    def _flow(self, topology: Topology, collective: Collective) -> TreeFlow:
        """The trees, by steps 1 to 4; errors as for ``solve``."""
        weights = _weights(topology, collective)
        n, links = topology.num_ranks, topology.num_links
        if self.fast and n * links > _BOUNDED_FAST:
            raise TopologyError(
                f"forestcoll finds the optimum in seconds where ranks times links are up to "
                f"{_BOUNDED_FAST}; {topology} has {n} ranks and {links} links; fast=False takes "
                f"the time"
            )
        rates = rates_for_chunks(topology, weights, collective.chunks_per_shard, self.k)
        return known_forest(rates, self.guess, self.fast)

    def solved(self, problem: Problem) -> Schedule:
        """The schedule; ranks outside a group forward for it, as switches do."""
        members = helped(problem)
        if members is None:
            return self._by_urgency(problem) or super().solved(problem)
        try:
            found = super().solved(problem.among(members))
        except TopologyError as error:
            numbers = "vertices by their places in the group, the ranks outside following"
            raise TopologyError(f"{error} ({numbers})") from error
        nbytes = problem.nbytes or self.nbytes or BUCKET_BYTES
        return sent_on(found, members, problem.collective, nbytes)

    def _by_urgency(self, problem: Problem) -> Schedule | None:
        """A broadcast to many ranks whose trees share links, chunk by chunk; None if it is no such.

        Where ranks wait for one another, order is not by link, and None is returned, too.
        """
        topology, collective = problem.topology, problem.collective
        nbytes, kind = self._order_for(problem), collective.traits
        is_whole = self.order == "stream" and self.pieces is None and self.nbytes is None
        many = topology.num_ranks > _FEW_RANKS
        if not (kind.has_root and kind.copies and is_whole and many) or nbytes is None:
            return None
        flow = self._flow(topology, collective)
        link = flow.edges.path_link
        crossings = np.repeat(np.bincount(flow.edge, minlength=len(flow.edges)), flow.edges.hops)
        if np.bincount(link, crossings).max() <= 1:
            return None
        found = most_urgent_first(flow, collective, as_fraction(nbytes), _PACE)
        return found.with_provenance(Provenance(certificate=dict(flow.certificate)))

    def joint_granularity(self, topology: Topology) -> int:
        """Chunks per shard of an all_reduce in joint phases are best a multiple of this.

        1 where separate phases are as fast.
        """
        bound = _known_bound(topology)
        return 1 if bound.shared is None else granularity(topology, bound)

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """The schedule; an all_reduce has joint phases if those are faster than separate ones."""
        if problem.collective.traits.has_phases and self.phases == "joint":
            _weights(problem.topology, problem.collective)
            bound = _known_bound(problem.topology)
            if bound.shared is not None:
                return joint_all_reduce(problem.topology, problem.collective, bound, self.pieces)
        return super().answer(problem, report)


def _alone(problem: Problem) -> Problem:
    """The problem of a group on its own network; of all ranks, itself."""
    members = helped(problem)
    return problem if members is None else problem.among(members)


@functools.lru_cache(maxsize=4)
def _known_bound(topology: Topology) -> AllReduceBound:
    return all_reduce_bound(topology)


def _weights(topology: Topology, collective: Collective) -> tuple[int, ...] | None:
    group, *others = collective.groups
    n = topology.num_ranks
    if others:
        raise CollectiveError(f"forestcoll is defined for one group, not for {collective}")
    if len(group) < n:
        raise CollectiveError(
            f"forestcoll's joint phases are for one group of all {n} ranks, not for {collective}; "
            f"give phases='separate'"
        )
    if collective.rank_shares is not None:
        shares = dict(zip(group, collective.rank_shares, strict=True))
        return tuple(shares[r] for r in range(n))
    if not collective.traits.has_root:
        return None
    root = collective.root_of(group)
    return tuple(int(r == root) for r in range(n))
