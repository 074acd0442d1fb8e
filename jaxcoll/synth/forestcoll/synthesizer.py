"""ForestColl: schedules whose throughput no schedule can beat, on any network.

The dissertation's five steps (Sec. 4.5): 1. the optimum, and how many trees reach it
(``capacities``); 2. switches removed; 3. spanning trees packed into the rest; 4. low trees with
even loads (all in ``stages``); 5. the schedule, in which the pieces of a tree follow each other
down (``TreeFlow``). Every step takes the frozen value of the one before: ``Rates``, ``Logical``,
``Trees``, ``TreeFlow``, ``Schedule``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Self

from jaxcoll.bounds.cuts import AllReduceBound
from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    IN_BLOCKS,
    SOON,
    Counts,
    Problem,
    Synthesizer,
    mean_hops,
)
from jaxcoll.synth.forestcoll.capacities import known_optimum, numbers_of_trees, rates_for_chunks
from jaxcoll.synth.forestcoll.joint_phases import granularity, joint_all_reduce
from jaxcoll.synth.forestcoll.stages import known_forest
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from jaxcoll.trees.flow import ORDERS

PHASES = ("separate", "joint")

# Finding the optimum takes about half a microsecond times the ranks times the links.
_BOUNDED_FAST = 2**23
# Work of finding and packing trees without switches, for each rank and link.
_OPTIMUM = 0.1


@dataclasses.dataclass(frozen=True)
class ForestColl(Synthesizer):
    """Spanning trees of optimal throughput, in a pipeline (dissertation, Chapter 4).

    The optimum needs a number k of trees per rank, ``granularity(topology)``: with k x p chunks a
    shard every tree is cut into p pieces, and the time approaches the optimum as p grows. With
    other numbers of chunks, the fastest of the numbers of trees up to 16 that divide them is taken.

    Networks with switches must let out as much of every vertex as they let in; all ranks take part
    in one group.

    Attributes:
        k: trees per rank; chosen as above when None.
        pieces: messages each tree edge's load is cut into at most; None to send every chunk by
            itself. Fewer than the chunks allow let several be sent together.
        nbytes: where pieces is None, the bytes of the buffer that their number is chosen for, by
            simulation: many cost latency, few delay the first.
        order: "stream" converges fastest; "steps" has the fewest steps (see
            ``TreeFlow.to_schedule``).
        guess: whether structured guesses, verified, may come before the exact way.
        fast: whether to refuse networks that may take more than some seconds, by their numbers of
            ranks and links (beyond 128 ranks most that have no structure).
        phases: of an all_reduce: "separate" for reduce_scatter and then all_gather; "joint" to let
            both run at once where that is faster: at the rates of the linear program of App. B.7,
            with as many trees rooted at each rank as it says. That takes a second at some 16 ranks
            and much more at more. ``joint_granularity`` tells the chunks it is best with.
    """

    k: int | None = None
    pieces: int | None = None
    nbytes: float | None = None
    order: str = "stream"
    guess: bool = True
    fast: bool = False
    phases: str = "separate"

    name: ClassVar[str] = "forestcoll"
    takes_shares: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather", "broadcast", "all_reduce"})
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

    def solves(self, kind: str) -> bool:
        """Whether ``solve`` makes schedules of a kind: of an all_reduce in joint phases."""
        return kind in self.kinds and (kind != "all_reduce" or self.phases == "joint")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        return (cls(fast=True), cls(order="steps", fast=True))

    def suited(self, topology: Topology) -> ForestColl:
        """Refusals by number are for networks with switches: on direct ones the work is known."""
        return dataclasses.replace(self, fast=False) if topology.is_direct else self

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Few trees per rank, the fastest for little data, and multiples of the fastest numbers."""
        topology, collective = problem.topology, problem.collective
        way = topology.transpose() if collective.kind == "reduce" else topology
        root = collective.groups[0][collective.root or 0] if collective.kind in ROOTED else None
        numbers = numbers_of_trees(way, root)
        multiples = (tuple(k * pieces for pieces in DOUBLINGS) for k in numbers)
        return ((1, 2, 3, 4, 6, 8, 12), *multiples)

    def work(self, problem: Problem) -> float:
        """Without switches, trees are found in time for each rank and link.

        Through switches a send is put in order and simulated on every link of its path. Schedules
        of few steps are not put in order, and all that a link carries in a step is one message.
        """
        topology, sends = problem.topology, float(problem.sends)
        if self.order == "steps":
            sends *= IN_BLOCKS
        if topology.is_direct:
            return _OPTIMUM * topology.num_ranks * topology.num_links + sends
        return max(1.0, mean_hops(topology) / 2) * sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: groups, or chunks that k does not divide.
            TopologyError: switches that let out more or less than they let in; see ``fast``.
        """
        weights = _weights(topology, collective)
        if collective.kind == "all_reduce":
            return self._all_reduce(topology, collective, seed)
        if self.fast:
            _check_quick(topology)
        rates = rates_for_chunks(topology, weights, collective.chunks_per_shard, self.k)  # step 1
        flow = known_forest(rates, self.guess, self.fast)  # steps 2 to 4
        return self._in_pieces(flow, collective)  # step 5

    def joint_granularity(self, topology: Topology) -> int:
        """Chunks per shard of an all_reduce in joint phases are best a multiple of this.

        1 where separate phases are as fast.
        """
        bound = _known_bound(topology)
        return 1 if bound.shared is None else granularity(topology, bound)

    def _all_reduce(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        bound = _known_bound(topology)
        if bound.shared is not None:
            return joint_all_reduce(topology, collective, bound, self.pieces)
        return self.two_phases(Problem(topology, collective, seed=seed))

    def _in_pieces(self, flow: TreeFlow, collective: Collective) -> Schedule:
        """The trees as a pipeline of the pieces asked for.

        Where those are left open for a number of bytes, the fastest of 1, 2, 4, ... pieces; the
        search ends where twice as many are slower.
        """
        chunks = collective.chunks_per_shard
        if self.pieces is not None or self.nbytes is None:
            pieces = chunks if self.pieces is None else self.pieces
            return flow.to_schedule(pieces, order=self.order, collective=collective)
        best = flow.to_schedule(1, order=self.order, collective=collective)
        least, pieces = simulate(best, self.nbytes).time, 2
        while pieces <= chunks // flow.granularity:
            schedule = flow.to_schedule(pieces, order=self.order, collective=collective)
            taken = simulate(schedule, self.nbytes).time
            if taken >= least:
                break
            best, least, pieces = schedule, taken, 2 * pieces
        return best


@functools.lru_cache(maxsize=4)
def _known_bound(topology: Topology) -> AllReduceBound:
    # CVXPY takes a second to load, which nothing else here needs.
    from jaxcoll.bounds.all_reduce import all_reduce_bound

    return all_reduce_bound(topology)


def _check_quick(topology: Topology) -> None:
    n, links = topology.num_ranks, topology.num_links
    if n * links > _BOUNDED_FAST:
        raise TopologyError(
            f"forestcoll finds the optimum in seconds where ranks times links are up to "
            f"{_BOUNDED_FAST}; {topology} has {n} ranks and {links} links; fast=False takes "
            f"the time"
        )


def _weights(topology: Topology, collective: Collective) -> tuple[int, ...] | None:
    group, *others = collective.groups
    n = topology.num_ranks
    if others or len(group) < n:
        raise CollectiveError(
            f"forestcoll is defined for one group of all {n} ranks, not for {collective}"
        )
    if collective.shares is not None:
        shares = dict(zip(group, collective.shares, strict=True))
        return tuple(shares[r] for r in range(n))
    if collective.kind in ("all_gather", "all_reduce"):
        return None
    root = group[collective.root or 0]
    return tuple(int(r == root) for r in range(n))
