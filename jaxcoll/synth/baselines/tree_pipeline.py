"""All-reduce up and down a few trees that span all ranks; the algorithms say which trees.

Chunks follow one another, and each tree is a separate channel. Where several trees share links,
messages can be put in the order in which they would start if every link served first come, first
served (``by_arrival``).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Message, simulate_messages
from jaxcoll.synth.building.base import (
    Counts,
    Problem,
    Synthesizer,
    in_pieces,
)
from jaxcoll.synth.building.sends import routed
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
class FewTrees(Synthesizer):
    """All-reduce over a few trees by ``all_reduce``, with a number of pieces."""

    pieces: int | None = None

    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.sums_for_all)

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces", or_none=True)


class AnySize(FewTrees):
    """Trees for networks of any size, for which whole chunks (one piece) are worth trying too."""

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return (cls(), cls(pieces=1))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk or, if messages are cut into pieces, the counts worth trying for a pipeline."""
        return in_pieces(self.pieces)
