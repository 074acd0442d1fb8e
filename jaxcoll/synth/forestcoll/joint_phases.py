"""Both phases of an all_reduce at once: in-trees and out-trees that share links (App. B.7).

On three ranks in a line, 0 - 1 - 2, reduce_scatter takes two thirds of the vector from rank 0 to 1
and one third back, and all_gather the other way round: the time of four thirds of a vector. If rank
1 sums all of it, the vector crosses every link once, both ways at once: the time of one.

The linear program of App. B.7 says how much of the vector is summed at each rank, and what trees of
either kind may use of every link. They are packed into that, one of each per chunk, and a chunk
starts on its way out as soon as it is complete. Steps are counted per chunk, so that chunks of the
same tree follow each other through both phases.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.bounds.cuts import AllReduceBound, SharedPaths
from jaxcoll.bounds.throughput import Scaling, least_scale
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.forestcoll.edge_splitting import Logical, PathCapacity
from jaxcoll.synth.forestcoll.routed_trees import as_flow, assemble
from jaxcoll.synth.forestcoll.shortcuts.balanced_packing import packed_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow, edge_before


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
        # Trees exist as long as no cut lets out fewer than are rooted inside (Edmonds). Newton's
        # method: the cut that is short at one scale says which larger one it needs, starting from
        # the cuts around single ranks, until a flow to every rank finds none that is short.
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
        packed = packed_trees(len(trees), logical.capacity(), scaling.trees)
        # Whole trees may need every link less than the scale allows, so that it is counted.
        routed = dataclasses.replace(assemble(logical, packed), is_tight=False)
        return as_flow(self.topology, scaling, routed)


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
        bound: the bound of the topology, with ``shared``.
        pieces: messages that each tree edge's chunks are cut into at most.
    """
    chunks, n = collective.num_chunks, topology.num_ranks
    base = granularity(topology, bound) * n
    times = chunks // base if chunks % base == 0 else 1
    weights = _apportioned(chunks // times, bound.roots)
    receive, give = (side.trees(weights) for side in _sides(topology, _shared(bound)))
    # The edges of both phases, each path once: a link that serves both has one order of messages.
    first = give.edges.reverse(topology.transpose().transpose_links())
    path = np.append(first.path_link, receive.edges.path_link)
    ptr = np.append(first.path_ptr, first.path_ptr[-1] + receive.edges.path_ptr[1:])
    keep, number = distinct_rows(ptr, path)
    edges = Edges.along(topology, *take_rows(ptr, path, keep))
    start = np.cumsum([0, *weights]) * times
    up, down = (_sends(flow, start, times) for flow in (give, receive))
    # Of a tree with fewer chunks than another each goes on for as many more steps.
    count = int(np.bincount(down[1]).max()) if times == 1 else times
    count = min(count, pieces or count)
    turn = _turns(give, receive, start, times, count)
    # In-trees end together, one chunk's last sum in step turn + height, and the out-tree goes on
    # from there: chunks of the same turn keep step through both phases, whatever the heights of
    # their trees.
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
            "two phases are as fast as any all_reduce here, so the phases share nothing; "
            "give phases='separate'"
        )
    return bound.shared


def _sides(topology: Topology, shared: SharedPaths) -> Iterator[_Side]:
    """What out-trees may use, and what in-trees may, as out-trees of the transposed network."""
    back = topology.transpose_links()
    reversed_paths = tuple(tuple(int(back[e]) for e in reversed(path)) for path in shared.paths)
    ways = (
        (topology, shared.paths, shared.copies),
        (topology.transpose(), reversed_paths, shared.sums),
    )
    for network, paths, speeds in ways:
        # A path of no speed would carry a tree at no scale.
        kept = [i for i, speed in enumerate(speeds) if speed]
        yield _Side(network, tuple(paths[i] for i in kept), tuple(speeds[i] for i in kept))


def _apportioned(chunks: int, shares: Sequence[Fraction]) -> list[int]:
    """Whole numbers of chunks in proportion to shares that add up to 1: largest remainders."""
    # Ranks of equal remainders in their order, so that equal bounds give equal schedules.
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
    ends = [_batches(flow, start, times) + flow.weight * times for flow in (give, receive)]
    # Between two marks all chunks have the same two trees. Spread over all steps, such a pair takes
    # its part of every step, as the capacities of the links were shared out; one pair after another
    # would leave most links idle.
    marks = np.unique(np.concatenate([[0], *ends]))
    sizes = np.diff(marks)
    offset = np.arange(marks[-1]) - np.repeat(marks[:-1], sizes)
    return offset * count // np.repeat(sizes, sizes)
