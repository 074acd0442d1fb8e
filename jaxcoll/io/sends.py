"""Parts of sends that several formats share: runs of chunks, paths of links, names of kinds.

Runtimes move neighbouring chunks of a buffer in one operation, so the chunks 4, 5, 6 of a message
are one run, and 4, 6 are two. Files that state their paths, as those written here do in keys that
runtimes ignore, give back the edges of a schedule; in other files a send means the link between two
ranks, or any path.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError
from jaxcoll.kinds import names_in
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

# The kinds that MSCCL and MSCCL++ programs can have, and their words for them.
MSCCL_WORDS = names_in("msccl")


def check_word(what: Collective, programs: str) -> None:
    """Refuse a collective for which MSCCL and MSCCL++ have no word, or only one for all ranks.

    Args:
        programs: the files that are written, for the error.

    Raises:
        FormatError: the kind is another one, there are groups, or shards are unequal.
    """
    if what.kind not in MSCCL_WORDS or what.is_grouped or what.shares is not None:
        raise FormatError(
            f"{programs} are written for {', '.join(MSCCL_WORDS)} of all ranks with equal "
            f"shards, not for {what}"
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """Neighbouring chunks of one message.

    Attributes:
        step: step of the schedule; ``place`` is that of the first chunk among the step's sends.
        edge: edge of the schedule, from rank ``src`` to ``dst`` over the links of ``path``.
        first: the first of ``count`` chunks.
        reduce: whether the receiver adds.
    """

    step: int
    place: int
    edge: int
    src: int
    dst: int
    path: tuple[int, ...]
    first: int
    count: int
    reduce: bool


def runs(
    schedule: Schedule, continued: np.ndarray, chosen: np.ndarray | None = None, most: int = 2**31
) -> list[Run]:
    """The sends as runs, in the order of the schedule.

    Args:
        continued: see ``continues``.
        chosen: whether each chunk is taken, bool of shape (chunks,); all when None.
        most: the most chunks of a run; longer runs are cut.
    """
    chunk, edges = np.asarray(schedule.chunk), schedule.edges
    mine = np.arange(len(chunk)) if chosen is None else np.flatnonzero(chosen[chunk])
    # A run also ends if sends between two of its sends are not taken.
    inside = continued[mine]
    inside[:1] = False
    inside[1:] &= mine[1:] == mine[:-1] + 1
    first = np.flatnonzero(~inside)
    start, count = mine[first], np.diff(np.append(first, len(mine)))
    step, edge = np.asarray(schedule.step)[start], np.asarray(schedule.edge)[start]
    place, reduce = start - np.asarray(schedule.step_ptr)[step], np.asarray(schedule.reduce)[start]
    columns = (step, place, edge, edges.src[edge], edges.dst[edge], chunk[start], count, reduce)
    path = {e: edges.path(e) for e in np.unique(edge).tolist()}
    return [
        Run(t, at + k, e, a, b, path[e], c + k, min(n - k, most), bool(adds))
        for t, at, e, a, b, c, n, adds in zip(*(each.tolist() for each in columns), strict=True)
        for k in range(0, n, most)
    ]


def continues(schedule: Schedule, way: np.ndarray) -> np.ndarray:
    """Whether a send continues the run of the previous one, bool of shape (sends,).

    Args:
        way: a number for each send that is equal if sends may share an operation: that of its edge,
            or of its path if several edges have the same path.
    """
    chunk = np.asarray(schedule.chunk, np.int64)
    same = [np.asarray(column) for column in (schedule.step, way, schedule.reduce)]
    found = np.zeros(len(chunk), bool)
    found[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in same])
    # Sends of a message are in the order of their chunks, so neighbours are adjacent.
    found[1:] &= chunk[1:] == chunk[:-1] + 1
    return found


def links_by_ends(network: Topology) -> dict[tuple[int, int], int]:
    """The link from one vertex to another; of parallel links the last."""
    ends = zip(network.src.tolist(), network.dst.tolist(), strict=True)
    return {pair: link for link, pair in enumerate(ends)}


def leads(network: Topology, path: Sequence[int], src: int, dst: int) -> bool:
    """Whether links that a file names exist and form a path from one rank to another."""
    if not path or max(path) >= network.num_links:
        return False
    if (network.src[path[0]], network.dst[path[-1]]) != (src, dst):
        return False
    return all(network.dst[a] == network.src[b] for a, b in itertools.pairwise(path))


def edges_of(network: Topology, paths: Iterable[tuple[int, ...]]) -> tuple[Edges, list[int]]:
    """An edge for every different path of links, in order of appearance, and each path's edge."""
    number: dict[tuple[int, ...], int] = {}
    edge = [number.setdefault(path, len(number)) for path in paths]
    return Edges.from_paths(network, [*number]), edge
