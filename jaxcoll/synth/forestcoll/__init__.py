"""ForestColl: schedules whose throughput no schedule can beat, on any network.

The dissertation's five steps (Sec. 4.5): 1. the optimum, and how many trees reach it; 2. switches
removed; 3. spanning trees packed into the rest; 4. low trees with even loads (all in ``stages``);
5. the schedule, in which the pieces of a tree follow each other
down (``TreeFlow``). Every step takes the frozen value of the one before: ``Rates``, ``Logical``,
``Trees``, ``TreeFlow``, ``Schedule``.

An all_reduce may have both phases at once, its in-trees and out-trees sharing links. The linear
program of App. B.7 says how much of the vector is summed at each rank, and what trees of either
kind may use of every link. They are packed into that, one of each per chunk, and a chunk starts on
its way out as soon as it is complete. Steps are counted per chunk, so that chunks of the same tree
follow each other through both phases.

Read in this order: this file, ``stages`` (how many trees, and from rates to trees),
``edge_splitting`` and ``pairings`` (switches removed), ``tree_packing`` (trees that fit into the
capacities: the choice of method, the exact one, and networks that fall in two), ``balancing``
(trees of many roots), ``spanning`` (moves of ranks between trees, and lower trees); ``rail_trees``
for networks with a structure, ``host_trees`` for hosts that differ.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np

from jaxcoll.bounds.cuts import AllReduceBound, SharedPaths
from jaxcoll.bounds.throughput import Scaling, known_optimum, least_scale
from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import FlowNetwork
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges
from jaxcoll.progress import Report
from jaxcoll.schedule import Provenance, Schedule
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
from jaxcoll.synth.forestcoll.edge_splitting import Logical, PathCapacity
from jaxcoll.synth.forestcoll.stages import (
    assemble,
    forest,
    known_forest,
    numbers_of_trees,
    rates_for_chunks,
)
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import ORDERS, TreeFlow, edge_before

__all__ = ["ForestColl", "forest"]

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
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather", "broadcast"})
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

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """As every synthesizer's, but for an all_reduce in joint phases where those are faster."""
        if problem.collective.kind == "all_reduce" and self.phases == "joint":
            _weights(problem.topology, problem.collective)
            bound = _known_bound(problem.topology)
            if bound.shared is not None:
                return joint_all_reduce(problem.topology, problem.collective, bound, self.pieces)
        return super().answer(problem, report)

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


@dataclasses.dataclass(frozen=True)
class _Side:
    """Paths that trees of one kind may use.

    Attributes:
        topology: the network of the paths; transposed for in-trees.
        paths: links of each path.
        speeds: bytes per second of each path.
    """

    topology: Topology
    paths: tuple[tuple[int, ...], ...]
    speeds: tuple[Fraction, ...]

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """First and last rank of each path."""
        first, last = zip(*((path[0], path[-1]) for path in self.paths), strict=True)
        return self.topology.src[list(first)], self.topology.dst[list(last)]

    def scaling(self, trees: Sequence[int]) -> Scaling:
        """The least scale at which a number of trees per root fit (as ``fixed_k``, by cuts)."""
        n, (src, dst) = len(trees), self.ends()
        need = sum(trees)
        network = FlowNetwork(n + 1, np.append(src, [n] * n), np.append(dst, np.arange(n)))

        def scale_for(inside: np.ndarray) -> Fraction:
            leaving = Counter(self.speeds[i] for i in np.flatnonzero(inside[src] & ~inside[dst]))
            return least_scale(leaving, sum(t for t, x in zip(trees, inside, strict=False) if x))

        alone = [np.arange(n) != r for r in range(n) if trees[r] < need]
        scale = max(scale_for(inside) for inside in alone)
        while True:
            capacity = tuple(math.floor(speed * scale) for speed in self.speeds)
            short = network.first_short([*capacity, *trees], n, range(n), need)
            if short is None:
                return Scaling(1, scale, capacity, tuple(trees))
            scale = scale_for(short.source_side)

    def trees(self, trees: Sequence[int]) -> TreeFlow:
        """Trees, a number per root, at the least scale."""
        scaling, (src, dst) = self.scaling(trees), self.ends()
        paths: dict[tuple[int, int], list[PathCapacity]] = {}
        for u, v, path, amount in zip(
            src.tolist(), dst.tolist(), self.paths, scaling.capacity, strict=True
        ):
            if amount:
                paths.setdefault((u, v), []).append(PathCapacity(path, amount))
        logical = Logical(len(trees), paths, ())
        packed = pack_trees(len(trees), logical.capacity(), scaling.trees)
        flow = assemble(self.topology, scaling, logical, packed)
        return dataclasses.replace(flow, inverse=flow.slowest_link())


def granularity(topology: Topology, bound: AllReduceBound) -> int:
    """Chunks per shard of which a multiple makes the program's rates whole trees."""
    shared, n = _shared(bound), topology.num_ranks
    reached = bound.reached or bound.seconds
    rates = [reached * speed for speed in {*shared.copies, *shared.sums}]
    chunks = math.lcm(n, *(x.denominator for x in (*rates, *bound.roots)))
    return chunks // n


def joint_all_reduce(
    topology: Topology, collective: Collective, bound: AllReduceBound, pieces: int | None = None
) -> Schedule:
    """The all_reduce whose trees share links as the linear program says (App. B.7).

    With a multiple of ``granularity`` chunks per shard its links carry exactly what the program
    says, and time approaches that as the multiple grows. Other numbers of chunks are rooted and
    packed as near to it as whole chunks allow.

    Args:
        collective: an all_reduce of all ranks.
        bound: of the topology, with ``shared``.
        pieces: messages that each tree edge's chunks are cut into at most.
    """
    chunks, n = collective.num_chunks, topology.num_ranks
    base = granularity(topology, bound) * n
    times = chunks // base if chunks % base == 0 else 1
    weights = _apportioned(chunks // times, bound.roots)
    receive, give = (side.trees(weights) for side in _sides(topology, _shared(bound)))
    edges, number = _all_edges(
        topology, give.edges.reverse(topology.transpose().transpose_links()), receive.edges
    )
    start = np.cumsum([0, *weights]) * times
    up, down = (_sends(flow, start, times) for flow in (give, receive))
    # Of a tree with fewer chunks than another each goes on for as many more steps.
    count = int(np.bincount(down[1]).max()) if times == 1 else times
    count = min(count, pieces or count)
    turn = _turns(give, receive, start, times, count)
    # In-trees end together, one chunk's last sum in step turn + height, and the out-tree goes on
    # from there: chunks of one turn keep step through both phases, whatever the heights of their
    # trees.
    height = int(up[2].max())
    reduce_step = turn[up[1]] + height - up[2]
    gather_step = turn[down[1]] + height + down[2] - receive.edges.hops[down[0]]
    certificate = {
        "seconds per byte": str(bound.seconds),
        "reached": str(bound.reached),
        "two phases": str(bound.two_phases),
        "roots": ", ".join(map(str, bound.roots)),
        "counted": f"in-trees {give.check_load()} and out-trees {receive.check_load()} s/B at most",
    }
    return Schedule.from_sends(
        topology,
        collective,
        np.concatenate([reduce_step, gather_step]),
        number[np.concatenate([up[0], down[0] + len(give.edges)])],
        np.concatenate([up[1], down[1]]),
        np.repeat([True, False], [len(up[0]), len(down[0])]),
        edges=edges,
        provenance=Provenance("trees", {"pieces": count}, certificate=certificate),
    )


def _shared(bound: AllReduceBound) -> SharedPaths:
    if bound.shared is None:
        raise TopologyError(
            "two phases are as fast as any all_reduce here: nothing is to be shared"
        )
    return bound.shared


def _sides(topology: Topology, shared: SharedPaths) -> tuple[_Side, _Side]:
    """What out-trees may use, and what in-trees may, as out-trees of the transposed network."""
    back = topology.transpose_links()
    reversed_paths = tuple(tuple(int(back[e]) for e in reversed(path)) for path in shared.paths)
    return (
        _side(topology, shared.paths, shared.copies),
        _side(topology.transpose(), reversed_paths, shared.sums),
    )


def _side(
    topology: Topology, paths: Sequence[tuple[int, ...]], speeds: Sequence[Fraction]
) -> _Side:
    # A path of no speed would carry a tree at no scale.
    kept = [i for i, speed in enumerate(speeds) if speed]
    return _Side(topology, tuple(paths[i] for i in kept), tuple(speeds[i] for i in kept))


def _apportioned(chunks: int, shares: Sequence[Fraction]) -> list[int]:
    """Whole numbers of chunks in proportion to shares that add up to 1: largest remainders."""
    exact = [chunks * share for share in shares]
    found = [math.floor(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda r: (found[r] - exact[r], r))
    for r in order[: chunks - sum(found)]:
        found[r] += 1
    return found


def _batches(flow: TreeFlow, start: np.ndarray, times: int) -> np.ndarray:
    """The first chunk of each batch of trees: those of a root share its chunks in order."""
    following = start.copy()
    first = np.zeros(flow.num_trees, np.int64)
    for i, (root, weight) in enumerate(zip(flow.root.tolist(), flow.weight.tolist(), strict=True)):
        first[i] = following[root]
        following[root] += weight * times
    return first


def _sends(
    flow: TreeFlow, start: np.ndarray, times: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edge, chunk and depth of every send of a phase; depth in links from the root."""
    sizes = np.repeat(flow.weight * times, np.diff(flow.tree_ptr))
    first = np.repeat(_batches(flow, start, times), np.diff(flow.tree_ptr))
    row = np.repeat(np.arange(len(flow.edge)), sizes)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return flow.edge[row].astype(np.int64), first[row] + offset, _link_depth(flow)[row]


def _link_depth(flow: TreeFlow) -> np.ndarray:
    """Links from the root to the far end of each tree edge."""
    hops = flow.edges.hops[flow.edge].astype(np.int64)
    before, found = edge_before(flow), np.zeros(len(flow.edge), np.int64)
    for depth in range(1, flow.height + 1):
        here = np.flatnonzero(flow.depth == depth)
        found[here] = hops[here] + (found[before[here]] if depth > 1 else 0)
    return found


def _turns(
    give: TreeFlow, receive: TreeFlow, start: np.ndarray, times: int, count: int
) -> np.ndarray:
    """The step in which each chunk starts, 0..count - 1: evenly within each pair of trees."""
    ends = [
        first + flow.weight * times
        for flow in (give, receive)
        for first in [_batches(flow, start, times)]
    ]
    marks = np.unique(np.concatenate([[0], *ends]))
    sizes = np.diff(marks)
    offset = np.arange(marks[-1]) - np.repeat(marks[:-1], sizes)
    return offset * count // np.repeat(sizes, sizes)


def _all_edges(topology: Topology, first: Edges, second: Edges) -> tuple[Edges, np.ndarray]:
    """The edges of both phases, each path once, and the new number of each edge."""
    path = np.concatenate([first.path_link, second.path_link])
    ptr = np.concatenate([first.path_ptr, first.path_ptr[-1] + second.path_ptr[1:]])
    keep, number = distinct_rows(ptr, path)
    ptr, path = take_rows(ptr, path, keep)
    edges = Edges(topology.src[path[ptr[:-1]]], topology.dst[path[ptr[1:] - 1]], ptr, path)
    return edges, number
