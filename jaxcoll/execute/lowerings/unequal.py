"""Programs for an all_to_all whose blocks have unequal sizes.

Any schedule of all_to_all runs with blocks of any sizes: the rows of a pair are divided among its
chunks, and a chunk without rows is not sent. So a pair without rows costs no message, and a round
without messages no permute.

All ranks run one program, so all messages of a permute are as long as its longest. Therefore
messages of similar size share a round. A round is also cut in two where its shorter messages end,
if that saves more rows than a permute is worth (``spare``). With ``spare`` 0 every row that is sent
belongs to a block.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError
from jaxcoll.execute.lowerings.pair_rows import PairRows
from jaxcoll.execute.lowerings.rounds import (
    PermuteProgram,
    Round,
    coloured,
    columns_of,
    sides_of,
)
from jaxcoll.numerics.connectivity import listed
from jaxcoll.numerics.edge_colouring import colour_messages, colour_pairs
from jaxcoll.numerics.ragged import equal_runs
from jaxcoll.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Unequal:
    """A schedule of all_to_all that runs with blocks of unequal sizes.

    Attributes:
        schedule: a verified schedule, for any shares.
        pairs: the rows of the blocks.
        spare: as for ``unequal_program``.
        is_backwards: whether this is the program for the blocks run backwards.
    """

    schedule: Schedule
    pairs: PairRows
    spare: int = 0
    is_backwards: bool = False

    @property
    def collective(self) -> Collective:
        """The collective of the schedule."""
        return self.schedule.collective

    @property
    def program(self) -> PermuteProgram:
        """The program of the schedule for these blocks."""
        program = unequal_program(self.schedule, self.pairs, self.spare)
        return _backwards(program) if self.is_backwards else program

    @property
    def placed(self) -> PairRows:
        """The rows of the blocks at their places in input and output."""
        return self.program.pairs or self.pairs

    def reverse(self) -> Unequal:
        """The blocks sent back, as ``Schedule.reverse`` does."""
        if self.program.is_direct:  # backwards, rows must use the same rounds
            return dataclasses.replace(self, is_backwards=not self.is_backwards)
        return Unequal(self.schedule.reverse(), self.pairs.transposed(), self.spare)


@functools.lru_cache(maxsize=256)
def unequal_program(schedule: Schedule, pairs: PairRows, spare: int = 0) -> PermuteProgram:
    """The program of a schedule of all_to_all for blocks of the given rows.

    Args:
        spare: the number of unused rows that may be sent to save one permute.

    Raises:
        ScheduleError: pairs have rows, but no chunks in the schedule.
    """
    src, dst = schedule.src.astype(np.int64), schedule.dst.astype(np.int64)
    chunk = np.asarray(schedule.chunk, np.int64)
    offset, length = _rows_of_chunks(schedule, pairs)
    has = length[chunk] > 0
    src, dst, chunk, step = src[has], dst[has], chunk[has], schedule.step[has]
    num_rows, (sent, received) = _rows_of_sends(schedule, pairs, (src, dst), chunk, offset, length)
    # The send of a chunk becomes a send of each of its rows.
    send = np.repeat(np.arange(len(chunk)), length[chunk])
    nth = np.arange(len(send)) - np.searchsorted(send, send)
    adds = np.zeros(len(send), bool)
    columns = (src[send], dst[send], sent[send] + nth, received[send] + nth, adds)
    steps = coloured(schedule, columns, step[send], _by_size)
    # If no rank forwards, and every pair has one message, rows can lie where their round puts them.
    messages = [pair for rounds in steps for r in rounds for pair in r.pairs]
    if num_rows == pairs.inputs + pairs.outputs and len(set(messages)) == len(messages):
        steps, pairs = _placed_by_rounds(steps, pairs)
        num_rows = 2 * pairs.total
    steps = tuple(tuple(part for r in rounds for part in cut(r, spare)) for rounds in steps)
    return PermuteProgram(schedule.collective, num_rows, sides_of(schedule), steps, pairs)


def _rows_of_chunks(schedule: Schedule, pairs: PairRows) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each chunk within the rows of its pair, and its number of rows."""
    n, what = schedule.topology.num_ranks, schedule.collective
    pair = what.owner.astype(np.int64) * n + what.target
    ptr = equal_runs(pair)
    chunks = np.zeros(n * n, np.int64)
    chunks[pair[ptr[:-1]]] = np.diff(ptr)
    lacking = np.flatnonzero((pairs.amounts.ravel() > 0) & (chunks == 0))
    if len(lacking):
        named = listed([f"{p // n}->{p % n}" for p in lacking.tolist()])
        raise ScheduleError(
            f"{schedule} has no chunks for {named}, which have rows to exchange; synthesize one "
            "with shares for them"
        )
    part = np.arange(len(pair)) - np.repeat(ptr[:-1], np.diff(ptr))
    least, more = np.divmod(pairs.amounts.ravel()[pair], chunks[pair])
    return part * least + np.minimum(part, more), least + (part < more)


def _rows_of_sends(schedule, pairs: PairRows, ends, chunk, offset, length):
    """The number of rows of a buffer, and the first row of every send at its source and its end.

    A buffer has the results first, then the inputs, then the chunks that a rank only forwards.

    Args:
        ends: the source and the destination of every send.
        chunk: the chunk of every send.
        offset, length: the first row of each chunk within its pair's rows, and its number of rows.
    """
    what = schedule.collective
    owner, target = (of[chunk].astype(np.int64) for of in (what.owner, what.target))
    rank, both = np.concatenate(ends), np.concatenate([chunk, chunk])
    owner, target = np.tile(owner, 2), np.tile(target, 2)
    row = np.where(rank == target, pairs.got_at[owner, target] + offset[both], -1)
    at_owner = pairs.outputs + pairs.sent_from[owner, target] + offset[both]
    row = np.where(rank == owner, at_owner, row)
    num_rows = pairs.outputs + pairs.inputs
    # Every rank numbers the chunks that it only forwards from 0, each with its number of rows.
    passing = row < 0
    if passing.any():
        total = what.num_chunks
        known, which = np.unique(rank[passing] * total + both[passing], return_inverse=True)
        sizes = length[known % total]
        before = np.cumsum(sizes) - sizes
        holders = equal_runs(known // total)[:-1]
        first = before - np.repeat(before[holders], np.diff([*holders, len(known)]))
        row[passing] = num_rows + first[which]
        num_rows += int((first + sizes).max())
    return num_rows, (row[: len(chunk)], row[len(chunk) :])


# ---------------------------------------------------------------------- rounds

Steps = tuple[tuple[Round, ...], ...]


def _placed_by_rounds(steps: Steps, pairs: PairRows) -> tuple[Steps, PairRows]:
    """The steps, and the places of rows, with each round's rows at the same place on all ranks.

    Then a message is one slice of the buffer, the same on all ranks.
    """
    total = sum(r.size for rounds in steps for r in rounds)
    first, at, placed = np.zeros_like(pairs.amounts), 0, []
    for rounds in steps:
        placed.append([])
        for r in rounds:
            first[tuple(np.transpose(r.pairs))] = at
            row = np.arange(at, at + r.size, dtype=np.int32)
            send, recv = np.where(r.send >= 0, total + row, -1), np.where(r.recv >= 0, row, -1)
            placed[-1].append(Round(r.pairs, send.astype(np.int32), recv.astype(np.int32), r.add))
            at += r.size
    return tuple(map(tuple, placed)), PairRows(pairs.amounts, first, total)


@functools.lru_cache(maxsize=256)
def _backwards(program: PermuteProgram) -> PermuteProgram:
    """A program with rows placed by rounds, run backwards: its arrivals go back round by round."""
    pairs = program.pairs
    if pairs is None:
        raise RuntimeError("a program without rows for pairs is not reversed; the schedule is")

    def back(r: Round) -> Round:
        send = np.where(r.recv >= 0, r.recv + pairs.total, -1).astype(np.int32)
        recv = np.where(r.send >= 0, r.send - pairs.total, -1).astype(np.int32)
        return Round(tuple(sorted((v, u) for u, v in r.pairs)), send, recv, r.add)

    # Rounds keep their order: the result is assembled in it, and no round waits for another.
    steps = tuple(tuple(map(back, rounds)) for rounds in program.steps)
    return dataclasses.replace(program, steps=steps, pairs=pairs.transposed())


def _by_size(u: np.ndarray, v: np.ndarray, size: np.ndarray, sides) -> np.ndarray:
    """The colouring, of two, whose rounds have the fewest rows, padded to their longest message."""

    def rows(colour: np.ndarray) -> int:
        longest = np.zeros(int(colour.max()) + 1, np.int64)
        np.maximum.at(longest, colour, size)
        return int(longest.sum())

    return min(colour_pairs(u, v, size, sides), colour_messages(u, v, size), key=rows)


def cut(round_: Round, spare: int) -> list[Round]:
    """A round cut into the parts with the fewest unused rows, where each part costs ``spare`` more.

    All cuts are at the ends of messages. The least cost of all rows up to the i-th end is the least
    cost up to some earlier end, plus that of one part from there to the i-th end, in which shorter
    messages are padded.
    """
    lengths = np.sort((round_.send[[u for u, _ in round_.pairs]] >= 0).sum(axis=1))
    ends, counts = np.unique(lengths, return_counts=True)
    if len(ends) == 1:
        return [round_]
    ends = np.concatenate([[0], ends])
    # The number of messages that have ended at each end, and of their rows, from 0.
    ended = np.concatenate([[0], np.cumsum(counts)])
    rows = np.concatenate([[0], np.cumsum(counts * ends[1:])])
    least, cut = np.zeros(len(ends), np.int64), np.zeros(len(ends), np.int64)
    for i in range(1, len(ends)):
        # For a part from the j-th end to this one: the messages that end inside are padded to it.
        padding = (ended[i] - ended[:i]) * ends[i] - (rows[i] - rows[:i])
        cost = least[:i] + padding + spare
        cut[i] = int(cost.argmin())
        least[i] = cost[cut[i]]
    parts, i = [], len(ends) - 1
    while i > 0:
        parts.append(columns_of(round_, int(ends[cut[i]]), int(ends[i])))
        i = int(cut[i])
    return parts[::-1]
