"""A schedule as the player reads it: each rank's messages, and what must happen before them.

A row is a place in a rank's buffer (``jaxcoll.execute.lowerings.rounds``). An operation is a row
that leaves or arrives in some step. Let ``got`` be the number of arrivals in a row so far, and
``sent`` the number of times that it has left. An operation may happen under these conditions:

- A row leaves when all arrivals of earlier steps have happened, that is when ``got`` is at least
  their number.
- A row arrives when all that leaves from it in steps up to its own has left, since it is read
  first. If it replaces the row, all arrivals of earlier steps must have happened; if it is added,
  those up to the last one that replaced.

Numbers are enough. An addition waits for rows that leave up to its step, so no addition of a later
step is counted before a row that leaves in between has left, and none after a replacement is
counted before the replacement has happened. Additions between two of these may come in any order,
or, for sums in one order, in that of the rounds.

A receiver can use each row of a message as soon as that has arrived. So those rows go first that it
sends on soonest, and of these the ones that it sends in the longest message. On a 2x4 torus
reduce_scatter by ``Ring2D`` takes two thirds of the time that it takes with rows in the order of
their numbers.

The table of a rank is a list of int32: rank, rows of the buffer, of the input and of the result;
the buffer row of each row of the input and of the result; the links that leave and those that
arrive. A list of links is their number, and for each link the other rank, the number of messages,
and each message as its step, its number of rows and four numbers per row: the row, whether it is
added, ``got`` and ``sent``.
"""

from __future__ import annotations

import functools

import numpy as np

from jaxcoll.execute.lowerings.rounds import PermuteProgram

# Dtypes whose numbers the player can add, and compare for maximum and minimum.
ADDED = frozenset(
    (
        *("float16", "float32", "float64", "bfloat16"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
)
COMPLEX = frozenset(("complex64", "complex128"))


@functools.lru_cache(maxsize=64)
def tables(program: PermuteProgram, is_ordered: bool = False) -> np.ndarray:
    """The tables of all ranks, int32 of shape (ranks, length of the longest).

    Args:
        is_ordered: whether additions in a row happen in the order of the program's rounds.
    """
    step, src, dst, sent, got, add = operations(program)
    rows = program.num_rows
    most = int(step.max(initial=0)) + 2
    # A key per row of a rank, and the times in it; operations are already sorted by step.
    leaves, arrives = src * rows + sent, dst * rows + got
    leaving, arriving = np.sort(leaves * most + step), np.sort(arrives * most + step)

    def up_to(times: np.ndarray, row: np.ndarray, until: np.ndarray) -> np.ndarray:
        """For each query, the number of sorted times of its row up to some step."""
        return np.searchsorted(times, row * most + until, "right") - np.searchsorted(
            times, row * most
        )

    needed_to_leave = up_to(arriving, leaves, step - 1)
    left = up_to(leaving, arrives, step)
    if is_ordered:
        order = np.argsort(arrives, kind="stable")
        before = np.empty(len(step), np.int64)
        before[order] = np.arange(len(step)) - np.searchsorted(arrives[order], arrives[order])
    else:
        # The last step before its own in which the row was replaced.
        replaced = np.sort((arrives * most + step)[~add])
        last = np.searchsorted(replaced, arrives * most + step) - 1
        of_row = replaced[np.maximum(last, 0)] if len(replaced) else np.zeros(len(step), np.int64)
        is_same = (last >= 0) & (of_row // most == arrives)
        since = np.where(add, np.where(is_same, of_row % most, -1), step - 1)
        before = up_to(arriving, arrives, since)
    zeros = np.zeros(len(step), np.int64)
    out = np.stack([sent, zeros, needed_to_leave, zeros], 1)
    into = np.stack([got, add.astype(np.int64), before, left], 1)
    of = np.unique(np.stack([step, src, dst]), axis=1, return_inverse=True)[1].ravel()
    length = np.bincount(of)[of] if len(of) else of
    urgency = _urgency(leaves * most + step, arrives * most + step, length, most)
    inputs, outputs = program.input_rows(), program.output_rows()
    found = []
    for rank in range(program.num_ranks):
        head = [rank, rows, inputs.shape[1], outputs.shape[1]]
        parts = [np.array(head), inputs[rank], outputs[rank]]
        parts += _links(src == rank, dst, step, urgency, out)
        parts += _links(dst == rank, src, step, urgency, into)
        found.append(np.concatenate(parts).astype(np.int32))
    table = np.zeros((len(found), max(map(len, found))), np.int32)
    for rank, numbers in enumerate(found):
        table[rank, : len(numbers)] = numbers
    return table


def _urgency(
    leaving: np.ndarray, arriving: np.ndarray, length: np.ndarray, most: int
) -> np.ndarray:
    """Least for a row that its receiver sends on soonest, and of these in the longest message.

    Args:
        leaving, arriving: for each operation, the row that leaves and the one that arrives, both as
            ``most`` times its number plus the step.
        length: rows of the message of each operation.
    """
    longest = int(length.max(initial=0))
    order = np.lexsort((-length, leaving))
    after = np.searchsorted(leaving[order], arriving, "right")
    following = np.append(order, 0)[after]
    is_sent_on = (after < len(order)) & (leaving[following] // most == arriving // most)
    rank = (leaving[following] % most) * (longest + 1) + longest - length[following]
    return np.where(is_sent_on, rank, most * (longest + 1))


def operations(program: PermuteProgram) -> tuple[np.ndarray, ...]:
    """Columns of the rows sent: step, sender, receiver, row there, row here, whether added."""
    columns: list[list[np.ndarray]] = [[] for _ in range(6)]
    for t, rounds in enumerate(program.steps):
        for round_ in rounds:
            pairs = np.asarray(round_.pairs, np.int64).reshape(-1, 2)
            which, column = np.nonzero(round_.send[pairs[:, 0]] >= 0)
            u, v = pairs[which].T
            parts = (
                np.full(len(u), t), u, v,
                round_.send[u, column], round_.recv[v, column], round_.add[v, column],
            )  # fmt: skip
            for of, part in zip(columns, parts, strict=True):
                of.append(part)
    types = (np.int64,) * 5 + (bool,)
    return tuple(
        np.concatenate([np.empty(0, kind), *parts]).astype(kind)
        for parts, kind in zip(columns, types, strict=True)
    )


def _links(
    mine: np.ndarray,
    others: np.ndarray,
    step: np.ndarray,
    urgency: np.ndarray,
    numbers: np.ndarray,
) -> list[np.ndarray]:
    """The links of a rank in one direction, as its table lists them."""
    chosen = np.flatnonzero(mine)
    chosen = chosen[np.lexsort((urgency[chosen], step[chosen]))]
    peers = np.unique(others[chosen])
    parts = [np.array([len(peers)])]
    for peer in peers.tolist():
        along = chosen[others[chosen] == peer]
        steps, starts = np.unique(step[along], return_index=True)
        parts.append(np.array([peer, len(steps)]))
        for t, rows in zip(steps.tolist(), np.split(numbers[along], starts[1:]), strict=True):
            parts += [np.array([t, len(rows)]), rows.ravel()]
    return parts
