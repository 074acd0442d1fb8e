"""All-reduce up and down a few trees that span all ranks, chunks following one another.

Each tree is a channel of its own. Where links are shared by several, messages can be put in the
order in which they would start if every link served first come, first served (``by_arrival``).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Message, simulate_messages
from jaxcoll.synth.building.routed import routed
from jaxcoll.topology import Topology

# Columns of sends: step, src, dst, chunk, reduce, message; sends of one message stand together.
Columns = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """A rooted tree over indices 0..n-1.

    Attributes:
        parent: the index above each, -1 for the root; int64 of shape (indices,).
        depth: links to the root, likewise.
        height: links to the farthest index below, likewise.
    """

    parent: np.ndarray
    depth: np.ndarray
    height: np.ndarray

    @classmethod
    def from_parents(cls, parent: Sequence[int] | np.ndarray) -> Tree:
        """The tree in which ``parent[v]`` is above v; it must be one."""
        above = np.asarray(parent, np.int64)
        depth, at = np.zeros(len(above), np.int64), above.copy()
        while (at >= 0).any():
            depth += at >= 0
            at = np.where(at >= 0, above[at], -1)
        height = np.zeros(len(above), np.int64)
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

    The chunks of a group are dealt to the trees in turn, and those of a tree cut into pieces. A
    piece goes up the tree, each rank adding what all its children sent, and back down from the
    root, while the next follows. All chunks that a rank sends to another in a step are one message.

    Args:
        trees: from the size of a group to its trees; a tree listed twice gets two shares.
        pieces: pieces of the data of a group, at most; None for one chunk per tree and piece.
        nbytes: of a rank's buffer, for which links serve trees in the order of arrival
            (``arrivals``); None for the order of steps, in which all trees move in lockstep.
    """
    columns, count_of_messages = [], 0
    for g, group in enumerate(collective.groups):
        if len(group) == 1:
            continue
        ranks = np.asarray(group)
        chunks = np.arange(collective.chunk_ptr[g], collective.chunk_ptr[g + 1])
        share = trees(len(group))
        count = -(-len(chunks) // len(share))
        count = count if pieces is None else min(pieces, count)
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
    up = (tree.height[below][:, None] + piece).ravel()
    down = (tree.height.max() + tree.depth[above][:, None] + piece).ravel()
    child, parent = spread(ranks[below]), spread(ranks[above])
    return [
        (up, child, parent, chunks, np.ones(len(chunks), bool), message),
        (down, parent, child, chunks, np.zeros(len(chunks), bool), message),
    ]


def by_arrival(
    topology: Topology, collective: Collective, columns: Columns, nbytes: float
) -> Schedule:
    """The schedule of some messages, each link in the order of first come, first served.

    Steps of a pattern say what waits for what; kept as the order of a link, they also make a
    message that is ready wait for one of another tree that is late. Libraries give each channel a
    thread block of its own, which does not wait so.

    Args:
        columns: ``step, src, dst, chunk, reduce, message``, int64 but for ``reduce``; the sends of
            a message share all but the chunk, and chunks that move together do so all the way.
        nbytes: of a rank's buffer, for which messages are timed (link model "astra").
    """
    order = np.lexsort((columns[5], columns[0]))
    step, src, dst, chunk, reduce, message = (column[order] for column in columns)
    first = np.flatnonzero(np.append(True, (message[1:] != message[:-1]) | (step[1:] != step[:-1])))
    sizes = np.diff(np.append(first, len(step)))
    pair, edge = np.unique(src[first] * topology.num_ranks + dst[first], return_inverse=True)
    edges = shortest_routes(topology, pair // topology.num_ranks, pair % topology.num_ranks)
    paths = [
        edges.path_link[edges.path_ptr[e] : edges.path_ptr[e + 1]].tolist()
        for e in range(len(edges))
    ]
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
    """Per message those before it that bring its source what it sends."""
    brought: dict[tuple[int, int], list[int]] = defaultdict(list)
    found = []
    for m, (u, v, c) in enumerate(zip(src, dst, chunk, strict=True)):
        found.append(tuple(brought[u, c]))
        brought[v, c].append(m)
    return found
