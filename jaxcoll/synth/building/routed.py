"""From grid indices to ranks, and from pairs of ranks to routes: for topology-oblivious ones.

Such an algorithm names senders and receivers by index, as if all ranks were joined. Where no link
joins two of them, a shortest route does, which may cross other ranks: they forward and do not keep.
Routes are chosen without regard to load, since that is what running such an algorithm on
a network means. Parallel links are told apart only where a caller numbers its lanes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics.ragged import distinct_rows, take_rows
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.sends import Sends
from jaxcoll.topology import Topology


def check_everyone(collective: Collective, who: str) -> None:
    """Refuse groups other than all ranks in order.

    Raises:
        CollectiveError: naming the synthesizer.
    """
    if collective.is_grouped:
        raise CollectiveError(f"{who} is defined for all ranks at once, in order; got {collective}")


def gathered(
    topology: Topology,
    collective: Collective,
    write: Callable[[np.ndarray], tuple[np.ndarray, Sends]],
    pieces: int = 1,
) -> Schedule:
    """The all_gather that is written for every group by itself, routed over shortest paths.

    Args:
        write: from the ranks of a group to (ranks by index, ``Sends`` between the indices).
        pieces: see ``Sends.in_pieces``.
    """
    parts = []
    for group in collective.groups:
        if len(group) > 1:
            ranks, sends = write(np.asarray(group))
            sends = sends.in_pieces(collective.chunks_per_shard, pieces)
            parts.append(on_ranks(sends, ranks))
    return schedule_of(topology, collective, Sends.joined(parts))


def on_ranks(sends: Sends, ranks: np.ndarray) -> Sends:
    """Sends between indices as sends between the ranks of these indices."""
    src, dst, owner = ranks[sends.src], ranks[sends.dst], ranks[sends.owner]
    return Sends(sends.step, src, dst, owner, sends.index)


def schedule_of(topology: Topology, collective: Collective, sends: Sends) -> Schedule:
    """The schedule of an all_gather's sends between ranks, routed over shortest paths."""
    chunk = first_chunk(collective)[sends.owner] + sends.index
    return routed(topology, collective, sends.step, sends.src, sends.dst, chunk)


def first_chunk(collective: Collective) -> np.ndarray:
    """The first chunk of each rank's shard (all_gather), int64 of shape (ranks,); -1 for none."""
    first = np.full(collective.num_ranks, -1, np.int64)
    starts = np.arange(0, collective.num_chunks, collective.chunks_per_shard)
    first[collective.owner[starts]] = starts
    return first


def routed(
    topology: Topology,
    collective: Collective,
    step: np.ndarray,
    src: np.ndarray,
    dst: np.ndarray,
    chunk: np.ndarray,
    reduce: np.ndarray | bool = False,
    lane: np.ndarray | None = None,
) -> Schedule:
    """The schedule of sends between any ranks, each pair joined by its shortest route.

    Args:
        lane: which of equal parallel links each send takes, counted round; the first when omitted.
    """
    n = topology.num_ranks
    pair = src.astype(np.int64) * n + dst
    lanes = 1 if lane is None else int(lane.max(initial=0)) + 1
    key, edge = np.unique(pair if lane is None else pair * lanes + lane, return_inverse=True)
    edges = shortest_routes(topology, key // lanes // n, key // lanes % n)
    if lanes > 1:
        moved = _on_lanes(topology, edges, key % lanes)
        edges, same = distinct_edges(topology, edges.path_ptr, moved)
        edge = same[edge]
    return Schedule.from_sends(topology, collective, step, edge, chunk, reduce, edges=edges)


def _on_lanes(topology: Topology, edges: Edges, lane: np.ndarray) -> np.ndarray:
    """Links of the edges' paths, each moved ``lane`` further among those equal and parallel."""
    columns = (topology.src, topology.dst, topology.alpha, topology.bandwidth)
    fresh = np.append(True, ~np.all([c[1:] == c[:-1] for c in columns], axis=0))
    first = np.flatnonzero(fresh)  # equal links stand together
    width = np.diff(np.append(first, topology.num_links))
    link = edges.path_link
    bundle = (np.cumsum(fresh) - 1)[link]
    ahead = np.repeat(lane, edges.hops)
    return first[bundle] + (link - first[bundle] + ahead) % width[bundle]


def distinct_edges(
    topology: Topology, path_ptr: np.ndarray, path: np.ndarray
) -> tuple[Edges, np.ndarray]:
    """Edges over the distinct ones of some paths, and the edge of each path.

    Args:
        path_ptr: links of path i are ``path[path_ptr[i]:path_ptr[i + 1]]``.
        path: links.
    """
    keep, edge = distinct_rows(path_ptr, path)
    ptr, link = take_rows(path_ptr, path, keep)
    return Edges(topology.src[link[ptr[:-1]]], topology.dst[link[ptr[1:] - 1]], ptr, link), edge
