"""All-reduce up and down a few trees that span all ranks: C-Cube, double binary tree, TTO.

Chunks follow one another, and each tree is a separate channel. Where several trees share links,
messages can be put in the order in which they would start if every link served first come, first
served (``by_arrival``).

- C-Cube: two trees laid out on a DGX-1.
- Double binary tree: two trees, where the leaves of one are inner ranks of the other. A leaf only
receives in its tree; with both trees, every rank sends as much as it receives.
- TTO: three trees on a 2D mesh.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Message, simulate_messages
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    LAST,
    LATER,
    Counts,
    Problem,
    Synthesizer,
    in_pieces,
)
from jaxcoll.synth.building.sends import check_everyone, routed
from jaxcoll.topologies import dgx1
from jaxcoll.topologies.generative.kautz_graphs import tree_parents
from jaxcoll.topology import Topology

# Columns of sends: step, src, dst, chunk, reduce, message; sends of one message are adjacent.
Columns = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree over indices 0..n-1.

    Attributes:
        parent: the index above each, -1 for the root; int64 of shape (indices,).
        depth: number of links to the root, of the same shape.
        height: number of links to the farthest index below, of the same shape.
    """

    parent: np.ndarray
    depth: np.ndarray
    height: np.ndarray

    @classmethod
    def from_parents(cls, parent: Sequence[int] | np.ndarray) -> Tree:
        """The tree in which ``parent[v]`` is above v; the parents must form a tree."""
        above = np.asarray(parent, np.int64)
        depth, at = np.zeros(len(above), np.int64), above.copy()
        while (at >= 0).any():
            depth += at >= 0
            at = np.where(at >= 0, above[at], -1)
        height = np.zeros(len(above), np.int64)
        # From the lowest vertices up, so that a vertex is done before its parent reads it.
        for v in np.argsort(-depth, kind="stable"):
            if above[v] >= 0:
                height[above[v]] = max(height[above[v]], height[v] + 1)
        return cls(above, depth, height)


def all_reduce(
    topology: Topology,
    collective: Collective,
    trees: Callable[[int], Sequence[Tree]],
    pieces: int | None,
    nbytes: float | None = None,
) -> Schedule:
    """Sums flow up every tree and results down, piece by piece; routed over shortest paths.

    The chunks of a group are dealt to the trees in turn, and those of a tree are cut into pieces. A
    piece goes up the tree, where each rank adds the sums of all its children, and back down from
    the root, while the next piece follows. All chunks that a rank sends to another in a step are
    one message.

    Args:
        trees: maps the size of a group to its trees; a tree listed twice gets two shares.
        pieces: the most pieces of the data of a group; None for one chunk per tree and piece.
        nbytes: bytes of a rank's buffer, for which links serve trees in the order of arrival
            (``by_arrival``); None for the order of steps, in which all trees move in lockstep.
    """
    columns, count_of_messages = [], 0
    for g, group in enumerate(collective.groups):
        if len(group) == 1:
            continue
        ranks = np.asarray(group)
        chunks = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
        # Chunks are dealt to the trees in rotation; a tree listed twice gets two of them.
        share = trees(len(group))
        count = -(-len(chunks) // len(share))
        count = count if pieces is None else min(pieces, count)
        # Pieces are cut from the chunks of the group, not of a tree, so that a piece is a run of
        # the buffer on which all trees work at the same time.
        piece_of = np.arange(len(chunks)) * count // len(chunks)
        for turn, tree in enumerate(share):
            mine = slice(turn, None, len(share))
            for sends in _up_and_down(tree, ranks, chunks[mine], piece_of[mine]):
                columns.append((*sends[:-1], sends[-1] + count_of_messages))
                count_of_messages += len(ranks) * count
    *sends, message = (np.concatenate(c) for c in zip(*columns, strict=True))
    if nbytes is not None:
        return by_arrival(topology, collective, (*sends, message), nbytes)
    return routed(topology, collective, *sends)


def _up_and_down(
    tree: Tree, ranks: np.ndarray, chunk: np.ndarray, piece: np.ndarray
) -> list[tuple[np.ndarray, ...]]:
    """Columns (step, src, dst, chunk, reduce, message) of both directions.

    Messages of each direction are numbered from 0: the pieces of one tree edge after another.
    """
    below = np.flatnonzero(tree.parent >= 0)
    below = below[np.argsort(tree.depth[below], kind="stable")]
    above = tree.parent[below]
    shape = (len(below), len(chunk))

    def spread(column: np.ndarray) -> np.ndarray:
        return np.broadcast_to(column[:, None], shape).ravel()

    chunks = np.tile(chunk, len(below))
    message = (np.arange(len(below))[:, None] * (piece.max(initial=0) + 1) + piece).ravel()
    # A rank of height h has all sums of its children after step h - 1, and adds its own data.
    # Pieces are one step apart.
    up = (tree.height[below][:, None] + piece).ravel()
    # The root, which has the greatest height, is done in the step before.
    down = (tree.height.max() + tree.depth[above][:, None] + piece).ravel()
    child, parent = spread(ranks[below]), spread(ranks[above])
    return [
        (up, child, parent, chunks, np.ones(len(chunks), bool), message),
        (down, parent, child, chunks, np.zeros(len(chunks), bool), message),
    ]


def by_arrival(
    topology: Topology, collective: Collective, columns: Columns, nbytes: float
) -> Schedule:
    """The schedule of messages that each link serves first come, first served.

    The steps of a pattern tell which messages wait for which. As the order of a link, they also
    make a message that is ready wait for a late one of another tree. Libraries give each channel
    its own thread block, which does not wait in this way.

    Args:
        columns: ``step, src, dst, chunk, reduce, message``, int64 except ``reduce``; the sends of a
            message differ only in the chunk, and chunks that move together do so all the way.
        nbytes: bytes of a rank's buffer, for which messages are timed (link model "astra").
    """
    order = np.lexsort((columns[5], columns[0]))
    step, src, dst, chunk, reduce, message = (column[order] for column in columns)
    # The first send of each message represents all of them: they share step, ends and piece.
    first = np.flatnonzero(np.append(True, (message[1:] != message[:-1]) | (step[1:] != step[:-1])))
    sizes = np.diff(np.append(first, len(step)))
    pair, edge = np.unique(src[first] * topology.num_ranks + dst[first], return_inverse=True)
    edges = shortest_routes(topology, pair // topology.num_ranks, pair % topology.num_ranks)
    paths = [
        edges.path_link[edges.path_ptr[e] : edges.path_ptr[e + 1]].tolist()
        for e in range(len(edges))
    ]
    # A message waits only for those that brought its source the data, regardless of the steps.
    waits = _waits(src[first].tolist(), dst[first].tolist(), chunk[first].tolist())
    routes = [(int(topology.src[path[0]]), *topology.dst[path].tolist()) for path in paths]
    share = nbytes / collective.num_chunks
    traffic = [
        Message(routes[e], share * size, after=after)
        for e, size, after in zip(edge.tolist(), sizes.tolist(), waits, strict=True)
    ]
    start = simulate_messages(topology, traffic).start
    step_of = np.empty(len(first), np.int64)
    free = defaultdict(int)  # the first step at which a link has no message yet
    for m in np.argsort(start, kind="stable").tolist():
        path = paths[edge[m]]
        # Messages are taken by starting time, so that the order on every link of a path is that of
        # the simulated run.
        at = max([free[link] for link in path] + [step_of[i] + 1 for i in waits[m]])
        step_of[m] = at
        free.update(dict.fromkeys(path, at + 1))
    return Schedule.from_sends(
        topology,
        collective,
        np.repeat(step_of, sizes),
        np.repeat(edge, sizes),
        chunk,
        reduce,
        edges=edges,
    )


def _waits(src: list[int], dst: list[int], chunk: list[int]) -> list[tuple[int, ...]]:
    """For each message, the earlier ones that bring its source the data it sends."""
    brought: dict[tuple[int, int], list[int]] = defaultdict(list)
    found = []
    for m, (u, v, c) in enumerate(zip(src, dst, chunk, strict=True)):
        found.append(tuple(brought[u, c]))
        brought[v, c].append(m)
    return found


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Trees(Synthesizer):
    """All-reduce over a few trees by ``all_reduce``, with a number of pieces."""

    pieces: int | None = None

    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.sums_for_all)

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces", or_none=True)


class _AnySize(_Trees):
    """Trees for networks of any size, for which whole chunks (one piece) are worth trying too."""

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(pieces=1))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk or, if messages are cut into pieces, the counts worth trying for a pipeline."""
        return in_pieces(self.pieces)


# This symmetry of the network maps the first tree to the second.
_SYMMETRY = np.asarray((6, 7, 4, 5, 2, 3, 0, 1))
_FIRST = np.asarray((-1, 0, 1, 0, 5, 1, 2, 5))


@dataclasses.dataclass(frozen=True)
class CCube(_Trees):
    """All-reduce over two binary trees that share no link of a DGX-1.

    Cho, Son and Kim, "Logical/physical topology-aware collective communication in deep learning
    training" (HPCA 2023). Their figure is not at hand; these trees have the properties that the
    TACOS paper states of it (Sec. VI-B.5): they use one NVLink to each of a rank's four neighbours,
    so 2 of its 6 are idle, and no link twice. Every rank is a leaf of one tree and inside the
    other, both have height 3, and a symmetry of the network maps one onto the other. Results go
    down while sums come up.

    Its field ``pieces`` is that of ``DoubleBinaryTree``.
    """

    name: ClassVar[str] = "c_cube"
    series: ClassVar[tuple[Counts, ...]] = (DOUBLINGS,)
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a DGX-1.
            CollectiveError: the groups are not all ranks in order.
        """
        wires = dgx1(merged=True)
        joined = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        wanted = set(zip(wires.src.tolist(), wires.dst.tolist(), strict=True))
        if topology.num_ranks != 8 or not topology.is_direct or joined != wanted:
            raise TopologyError(
                f"c_cube is defined on a DGX-1 only (topologies.dgx1), {topology} is none"
            )
        check_everyone(collective, self.name)
        return all_reduce(topology, collective, lambda _: two_trees(), self.pieces)


def two_trees() -> tuple[Tree, Tree]:
    """The two trees over the ranks of a DGX-1."""
    second = np.empty(8, np.int64)
    second[_SYMMETRY] = np.where(_FIRST >= 0, _SYMMETRY[_FIRST], -1)
    return Tree.from_parents(_FIRST), Tree.from_parents(second)


@dataclasses.dataclass(frozen=True)
class DoubleBinaryTree(_AnySize):
    """All-reduce over two binary trees with half the data each.

    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009), with the trees of NCCL: in the first, ranks with more trailing zero bits are higher up;
    the second is the first mirrored (even n) or shifted by one (odd n). Any number of ranks will
    do, though the TACOS paper uses it only for powers of two. Topology-oblivious: parents and
    children are routed over shortest paths.

    Attributes:
        pieces: see ``all_reduce``: 1 for the lowest latency.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    name: ClassVar[str] = "double_binary_tree"
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        return all_reduce(topology, collective, double_binary_trees, self.pieces)


def double_binary_trees(n: int) -> Sequence[Tree]:
    """The two trees over n ranks."""
    first, second = tree_parents(n)
    return Tree.from_parents(first), Tree.from_parents(second)


@dataclasses.dataclass(frozen=True)
class Tto(_AnySize):
    """All-reduce over three trees of a 2D mesh, chunks overlapping.

    Laskar, Majhi, Kim, Shahid and Kim, "Enhancing collective communication in MCM accelerators for
    deep learning training" (HPCA 2024). The first tree goes from the first corner down the first
    column and along all rows; the second goes from the opposite corner along the last row and up
    all columns; the third goes from the end of the first row along the rows above the diagonal and
    down the columns below it. Every link carries at most the results of one tree and the sums of
    another, except around one corner. The third tree of the authors' simulator leaves that corner
    out, as it has two neighbours for three trees. Here both neighbours carry its data alternately.

    Defined on meshes and tori of two dimensions, for all ranks at once.

    Its field ``pieces`` is that of ``DoubleBinaryTree``.
    """

    name: ClassVar[str] = "tto"
    put_off: ClassVar[float] = LATER

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a mesh of two dimensions.
            CollectiveError: the groups are not all ranks in order.
        """
        sides = tuple(s for s in topology.grid.shape if s > 1) if topology.grid else ()
        if len(sides) != 2:
            raise TopologyError(
                f"tto needs a mesh of two dimensions with sides of at least 2; {topology} is none"
            )
        check_everyone(collective, self.name)
        first, second, third, other = three_trees(*sides)
        share = (first, second, third, first, second, other)
        return all_reduce(topology, collective, lambda _: share, self.pieces)


def three_trees(rows: int, columns: int) -> tuple[Tree, Tree, Tree, Tree]:
    """The trees over the ranks of a mesh, row by row, with both forms of the third."""
    rank = np.arange(rows * columns)
    row, column = np.divmod(rank, columns)
    up, down, left, right = rank - columns, rank + columns, rank - 1, rank + 1

    first = np.where(column > 0, left, up)
    first[0] = -1
    second = np.where(row < rows - 1, down, right)
    second[-1] = -1
    above_diagonal = row * (columns - 1) + column * (rows - 1) < (rows - 1) * (columns - 1)
    inside = (row > 0) & (column > 0)
    third = np.where(inside & ~above_diagonal, up, right)
    third[columns - 1] = -1
    corner = (rows - 1) * columns
    other = third.copy()
    other[corner] = corner - columns
    return tuple(Tree.from_parents(parent) for parent in (first, second, third, other))  # type: ignore[return-value]
