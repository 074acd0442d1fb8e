"""How many operations the blocks of an MSCCL++ plan have, without making them."""

from __future__ import annotations

import numpy as np

from jaxcoll.io.mscclpp.block import MOST_IDS
from jaxcoll.io.sends import continues
from jaxcoll.schedule import Schedule


class OperationCount:
    """Counts the operations of a rank's blocks, for any assignment of chunks to blocks.

    It counts, by columns, the operations that ``Block`` makes, because making them for every
    number of blocks would take minutes.
    """

    def __init__(self, schedule: Schedule, per_host: int):
        edges, self.ranks = schedule.edges, schedule.collective.num_ranks
        known: dict[tuple[int, ...], int] = {}
        paths = [known.setdefault(edges.path(e), e) for e in range(len(edges))]
        self.step = np.asarray(schedule.step, np.int64)
        self.chunk = np.asarray(schedule.chunk, np.int64)
        self.adds = np.asarray(schedule.reduce, bool)
        edge = np.asarray(schedule.edge, np.int64)
        self.src, self.dst = (np.asarray(end, np.int64)[edge] for end in (edges.src, edges.dst))
        self.far = self.src // per_host != self.dst // per_host
        self.closes = schedule.collective.traits.ends_with_shard
        self.continues = continues(schedule, np.asarray(paths, np.int64)[edge])
        # Meetings (rank, step, chunk): places where a rank adds runs that begin at different
        # chunks. Cutting runs into blocks adds no meetings, since a block cuts all runs through a
        # chunk at the same place.
        self.met = np.zeros(0, np.int64)
        if (self.adds & self.continues).any():  # otherwise runs have one chunk, as in most trees
            adding = np.flatnonzero(self.adds)
            columns = (column[adding] for column in (self.dst, self.step, self.chunk))
            *self.meeting, which = _unique(*columns, inverse=True)
            apart = self._beginnings(adding, which, self.continues)[1][which] > 1
            self.met, self.met_at = adding[apart], which[apart]

    def _beginnings(
        self, sends: np.ndarray, meeting: np.ndarray, inside: np.ndarray
    ) -> list[np.ndarray]:
        """The meetings of some sends, and in how many places the runs of each begin."""
        begun = self.chunk[~inside][np.cumsum(~inside)[sends] - 1]
        meeting, _ = _unique(meeting, self.chunk[sends] - begun)
        return _unique(meeting, counts=True)

    def most(self, block_of: np.ndarray) -> int:
        """The number of operations of the fullest block of any rank."""
        block = block_of[self.chunk]
        inside = self.continues.copy()
        inside[1:] &= block[1:] == block[:-1]
        runs = np.flatnonzero(~inside)
        step, src, dst, far, adds = (
            each[runs] for each in (self.step, self.src, self.dst, self.far, self.adds)
        )
        sender, receiver = (block[runs] * self.ranks + rank for rank in (src, dst))
        cells = int(block_of.max() + 1) * self.ranks
        total = np.zeros(cells, np.int64)

        def each(cell: np.ndarray) -> None:
            total[:] += np.bincount(cell, minlength=cells)

        def once_a_step(cell: np.ndarray, chosen: np.ndarray) -> None:
            each(_unique(cell[chosen], step[chosen])[0])

        def meets(cell: np.ndarray, *place: np.ndarray, peer: np.ndarray, times: int = 1) -> None:
            """Count operations that each take up to ``MOST_IDS`` channels of one type."""
            cell, *rest, kind, _ = _unique(cell, *place, peer // self.ranks, peer)
            cell, *_, count = _unique(cell, *rest, kind, counts=True)
            for _ in range(times):
                total[:] += np.bincount(cell, -(-count // MOST_IDS), cells).astype(np.int64)

        def by_type(peer: np.ndarray) -> np.ndarray:
            return peer + self.ranks * far

        puts = far | ~adds
        each(sender[puts])
        once_a_step(sender, puts)
        meets(sender, step, peer=by_type(dst))
        meets(receiver, step, peer=by_type(src))
        once_a_step(receiver, np.ones(len(runs), bool))
        each(receiver[adds])
        once_a_step(receiver, adds)
        if len(self.met):
            met, parts = self._beginnings(self.met, self.met_at, inside)
            to, time, chunk = (column[met] for column in self.meeting)
            cell, time, parts = _unique(block_of[chunk] * self.ranks + to, time, parts)
            # Rows are sorted, so the last row of a cell and step is the meeting with the most
            # parts.
            last = (np.diff(cell, append=-1) != 0) | (np.diff(time, append=-1) != 0)
            total += np.bincount(cell[last], parts[last] - 1, cells).astype(np.int64)
        ends, peers = (
            np.concatenate([sender, receiver]),
            np.concatenate([by_type(dst), by_type(src)]),
        )
        meets(ends, peer=peers, times=2)
        each(np.unique(ends))
        meets(ends[peers >= self.ranks], peer=peers[peers >= self.ranks])
        if self.closes:
            meets(ends[peers < self.ranks], peer=peers[peers < self.ranks], times=2)
        return int(total.max(initial=0))


def _unique(*columns: np.ndarray, inverse: bool = False, counts: bool = False) -> list[np.ndarray]:
    """The sorted distinct rows of columns; on demand, their inverse indices and counts."""
    sizes = [int(column.max(initial=0)) + 1 for column in columns]
    numbers = np.ravel_multi_index(columns, sizes)
    found = np.unique(numbers, return_inverse=inverse, return_counts=counts)
    rows, *rest = found if inverse or counts else (found,)
    return [*np.unravel_index(rows, sizes), *rest]
