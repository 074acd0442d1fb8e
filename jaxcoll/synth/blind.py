"""From places to ranks and from pairs of ranks to routes: what algorithms blind to wires share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.links import whole_number
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.dimensionwise import Sends
from jaxcoll.topology import Topology


def checked_pieces(pieces: int | None) -> int | None:
    """A number of pieces to cut messages into.

    Raises:
        CollectiveError: less than 1.
    """
    if pieces is None:
        return None
    count = whole_number(pieces, "pieces")
    if count < 1:
        raise CollectiveError(f"pieces must be at least 1, got {count}")
    return count


def gathered(
    topology: Topology,
    collective: Collective,
    write: Callable[[np.ndarray], tuple[np.ndarray, Sends]],
    pieces: int = 1,
) -> Schedule:
    """The all_gather that is written for every group by itself, routed over shortest paths.

    Args:
        write: from the ranks of a group to (ranks by place, ``Sends`` between the places).
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
    """Sends between places as sends between the ranks that stand there."""
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
) -> Schedule:
    """The schedule of sends between any ranks, each pair joined by its shortest route."""
    n = topology.num_ranks
    pairs, edge = np.unique(src.astype(np.int64) * n + dst, return_inverse=True)
    edges = shortest_routes(topology, pairs // n, pairs % n)
    return Schedule.from_sends(topology, collective, step, edge, chunk, reduce, edges=edges)
