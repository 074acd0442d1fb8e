"""From a schedule to a ``PermuteProgram``: messages edge-coloured into partial permutations.

Every rank keeps chunks in rows of a buffer. A step is a list of rounds; a round is one
``ppermute``: a partial permutation of ranks and, for every rank, the rows it sends and the rows
where it puts the arrivals. All rounds of a step read before any of them writes.

An edge colouring decides which messages share a round (``jaxcoll.numerics.edge_colouring``).

For a rank in a group, a chunk's row is the chunk's index within the group. For all_to_all the first
rows hold the result (by source) and the same number of rows after them the input (by destination).
Chunks that a rank only forwards take the rows after these. If pairs of ranks have blocks of unequal
sizes (``unequal``), a chunk is several rows, or none.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.numerics.compiled import FEW_SENDS, without_numba
from jaxcoll.numerics.edge_colouring import colour_pairs
from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.schedule import Schedule

# A step whose messages are a large part of the buffer, as the last ones of a bucket all_gather are,
# is split, because received rows take memory in addition to the buffer until they are written to
# it. At most one over this number of a buffer is in flight at once.
PART = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """One ``ppermute``. Entries are -1 where a rank is idle or its message is shorter.

    Attributes:
        pairs: (sender, receiver) of each message, sorted.
        send: row of each chunk sent, int32 of shape (ranks, size).
        recv: row of each chunk received, int32 of shape (ranks, size).
        add: whether a received chunk is added to its row instead of replacing it, bool of shape
            (ranks, size); False where idle.
    """

    pairs: tuple[tuple[int, int], ...]
    send: np.ndarray
    recv: np.ndarray
    add: np.ndarray

    @property
    def size(self) -> int:
        """Chunks in the longest message."""
        return self.send.shape[1]


@dataclasses.dataclass(frozen=True, eq=False)
class PermuteProgram:
    """A schedule as rounds of row tables.

    Attributes:
        collective: the collective of the schedule.
        num_rows: rows of a rank's buffer.
        sides: shape of the grid whose translations are the symmetry to look for; (n,) if there is
            no grid.
        steps: the rounds of each step.
        pairs: rows of each pair of ranks in an all_to_all of unequal blocks; ``None`` for blocks of
            equal size. Each row of input and output is then its own block.
    """

    collective: Collective
    num_rows: int
    sides: tuple[int, ...]
    steps: tuple[tuple[Round, ...], ...]
    pairs: PairRows | None = None

    @property
    def num_ranks(self) -> int:
        """Number of ranks n."""
        return self.collective.num_ranks

    @property
    def num_permutes(self) -> int:
        """Number of rounds, each of which is one ``ppermute``."""
        return sum(len(rounds) for rounds in self.steps)

    @property
    def rows_sent(self) -> int:
        """Rows of all messages, padded to the longest of their round."""
        return sum(len(r.pairs) * r.size for rounds in self.steps for r in rounds)

    @functools.cached_property
    def group_size(self) -> int:
        """Ranks in a group (the largest)."""
        return max(len(group) for group in self.collective.groups)

    @property
    def is_whole(self) -> bool:
        """Whether input and output are one block, which is divided evenly into rows."""
        return self.collective.traits.is_whole

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks in a rank's input and in its output: 1, or the number of ranks in a group."""
        if self.pairs is not None:
            return self.pairs.inputs, self.pairs.outputs
        kind, size = self.collective.traits, self.group_size
        if kind.is_whole:
            return 1, 1
        return 1 if kind.starts_with_shard else size, 1 if kind.ends_with_shard else size

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        if self.pairs is not None:
            return 1
        kind = self.collective.traits
        shards = kind.shards.count(self.group_size) if kind.is_whole else 1
        return shards * self.collective.chunks_per_shard

    @property
    def group_index(self) -> np.ndarray:
        """Index of each rank in its group, 0 for ranks in none; int32 of shape (ranks,)."""
        return self.collective.place_of_rank

    @property
    def inputs(self) -> int:
        """Rows of a rank's input."""
        return self.blocks[0] * self.block_rows

    @property
    def outputs(self) -> int:
        """Rows of a rank's output."""
        return self.blocks[1] * self.block_rows

    @property
    def is_direct(self) -> bool:
        """Whether unequal blocks are placed by rounds, because no rank forwards any."""
        return self.pairs is not None and self.pairs.first is not None

    def input_rows(self) -> np.ndarray:
        """The buffer row of each input row, int32 of shape (ranks, input rows); -1 if unused."""
        if self.pairs is not None:
            return self.pairs.input_rows()
        kind, k, n = self.collective.traits, self.collective.chunks_per_shard, self.num_ranks
        if kind.starts_with_shard:
            return (self.group_index * k)[:, None] + np.arange(k, dtype=np.int32)
        if kind.is_pairwise:
            rows = np.tile(np.arange(self.group_size * k, dtype=np.int32), (n, 1))
            own = rows // k == self.group_index[:, None]
            # A rank's block for itself is in its final row from the start.
            return np.where(own, rows, self.group_size * k + rows)
        rows = np.tile(np.arange(self.blocks[0] * self.block_rows, dtype=np.int32), (n, 1))
        if kind.starts_at_root:
            rows[~np.isin(self.group_index, self.collective.roots)] = -1
        return rows

    def output_rows(self) -> np.ndarray:
        """The buffer row of each result row, int32 of shape (ranks, rows); -1 if it is zeros."""
        if self.pairs is not None:
            return self.pairs.output_rows()
        kind, k, n = self.collective.traits, self.collective.chunks_per_shard, self.num_ranks
        if kind.ends_with_shard:
            return (self.group_index * k)[:, None] + np.arange(k, dtype=np.int32)
        rows = np.tile(np.arange(self.blocks[1] * self.block_rows, dtype=np.int32), (n, 1))
        if kind.ends_at_root:
            rows[~np.isin(self.group_index, self.collective.roots)] = -1
        return rows


@functools.lru_cache(maxsize=256)
def permute_program(schedule: Schedule) -> PermuteProgram:
    """The program of a schedule, whose permutes are the sum of its steps' largest degrees."""
    src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    chunk = np.asarray(schedule.chunk, np.int64)
    num_rows, ends = _rows(schedule.collective, (src, dst), chunk)
    steps = coloured(schedule, (src, dst, *ends, schedule.reduce), schedule.step)
    return PermuteProgram(schedule.collective, num_rows, sides_of(schedule), steps)


def sides_of(schedule: Schedule) -> tuple[int, ...]:
    """The grid of a schedule's ranks; one dimension if they have no grid."""
    grid = schedule.topology.grid
    return (schedule.topology.num_ranks,) if grid is None else grid.shape


def coloured(
    schedule: Schedule, columns: Sequence[np.ndarray], step: np.ndarray, colour=colour_pairs
) -> tuple[tuple[Round, ...], ...]:
    """The rounds of each step that has sends.

    Args:
        columns: sender, receiver, row sent, row received and whether it is added, for each row.
        step: the step of each row.
        colour: returns the rounds of a step's messages, as ``colour_pairs`` does.
    """
    n, sides = schedule.topology.num_ranks, sides_of(schedule)
    # Parallel edges between two ranks make one message: a permute has ranks, not links.
    order = np.lexsort((columns[2], columns[1], columns[0], step))
    columns = [column[order] for column in columns]
    ptr = np.searchsorted(step[order], np.arange(schedule.num_steps + 1))
    # For few sends compiled kernels take longer to load than they save.
    with without_numba(len(schedule.chunk) <= FEW_SENDS):
        return tuple(
            _rounds(n, sides, colour, *(column[first:last] for column in columns))
            for first, last in itertools.pairwise(ptr)
            if first < last
        )


# ---------------------------------------------------------------------- rows


def _rows(collective: Collective, ends: tuple[np.ndarray, np.ndarray], chunk: np.ndarray):
    """Rows of a buffer, and for each end the row of every send's chunk there."""
    home = [_home_row(collective, rank, chunk) for rank in ends]
    rank, both = np.concatenate(ends), np.concatenate([chunk, chunk])
    row = np.concatenate(home)
    num_rows = int(np.diff(collective.chunk_ptr).max())
    if collective.traits.is_pairwise:  # the result, and behind it the input
        largest = max(map(len, collective.groups))
        num_rows = 2 * largest * collective.chunks_per_shard
    # Chunks that a rank only forwards are in no row of its result. They get extra rows at the end,
    # numbered at each rank from 0, so the buffer grows by the most that any rank forwards.
    passing = row < 0
    if passing.any():
        key = rank[passing] * collective.num_chunks + both[passing]
        known, which = np.unique(key, return_inverse=True)
        holder = known // collective.num_chunks
        nth = np.arange(len(known)) - np.searchsorted(holder, holder)
        row[passing] = num_rows + nth[which]
        num_rows += int(nth.max()) + 1
    return num_rows, (row[: len(chunk)], row[len(chunk) :])


def _home_row(collective: Collective, rank: np.ndarray, chunk: np.ndarray) -> np.ndarray:
    """Rows of chunks at ranks, -1 if a rank only forwards a chunk."""
    group = collective.group_of_chunk[chunk]
    local = chunk - collective.chunk_ptr[group]
    if not collective.traits.is_pairwise:
        return np.where(collective.group_of_rank[rank] == group, local, -1)
    k = collective.chunks_per_shard
    size = np.asarray([len(g) for g in collective.groups], np.int64)[group]
    source, (target, part) = local // (size * k), np.divmod(local % (size * k), k)
    row = np.where(rank == collective.target[chunk], source * k + part, -1)
    return np.where(rank == collective.owner[chunk], (size + target) * k + part, row)


# ---------------------------------------------------------------------- rounds


def _rounds(n, sides, colouring, src, dst, sent, received, reduce) -> tuple[Round, ...]:
    """The rounds of one step, its sends sorted by (src, dst, row sent)."""
    # Sends of one pair are one message; its c-th chunk is column c of the round's tables.
    pair = src * n + dst
    ptr = equal_runs(pair)
    starts, size = ptr[:-1], np.diff(ptr)
    u, v = src[starts], dst[starts]
    colour = colouring(u, v, size, sides)
    message = np.repeat(np.arange(len(starts)), size)
    column = np.arange(len(pair)) - starts[message]
    rounds = []
    for c in range(colour.max() + 1):
        chosen = np.flatnonzero(colour == c)
        sends = colour[message] == c
        shape = (n, int(size[chosen].max()))
        tables = np.full((2, *shape), -1, np.int32)
        tables[0, src[sends], column[sends]] = sent[sends]
        tables[1, dst[sends], column[sends]] = received[sends]
        add = np.zeros(shape, bool)
        add[dst[sends], column[sends]] = reduce[sends]
        pairs = tuple((int(a), int(b)) for a, b in zip(u[chosen], v[chosen], strict=True))
        rounds.append(Round(pairs, tables[0], tables[1], add))
    return tuple(rounds)


@functools.lru_cache(maxsize=256)
def split_long_steps(program: PermuteProgram) -> PermuteProgram:
    """The program with every step split so that it carries a tenth of the buffer or less.

    A message has at least one row, so steps of many rounds may still carry more. Every part of a
    step has some rows of every message, so all of its links stay in use.

    Returns:
        The program itself if no step is split.
    """
    steps: list[tuple[Round, ...]] = []
    for rounds in program.steps:
        longest = max(r.size for r in rounds)
        # Rounds of a step are in flight together, so the sum of their rows counts.
        rows = max(1, program.num_rows // (PART * len(rounds)))
        # A power of two gives parts of different steps equal shapes, hence few stages.
        rows = 1 << (rows.bit_length() - 1)
        for first in range(0, longest, rows):
            cut = [columns_of(r, first, first + rows) for r in rounds if r.size > first]
            steps.append(tuple(r for r in cut if r.pairs))
    if len(steps) == len(program.steps):
        return program
    return dataclasses.replace(program, steps=tuple(steps))


def columns_of(round_: Round, first: int, end: int) -> Round:
    """Some columns of a round, as a round of the messages that have them."""
    send, recv, add = (a[:, first:end] for a in (round_.send, round_.recv, round_.add))
    pairs = tuple((u, v) for u, v in round_.pairs if send[u, 0] >= 0)
    return Round(pairs, send, recv, add)
