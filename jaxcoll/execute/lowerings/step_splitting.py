"""Pieces: steps with long messages cut into several, so that less is on its way at a time.

What arrives in a step stands in memory beside the buffer until it is written there. A step whose
messages are a large part of the buffer, as the last ones of a bucket all_gather are, would need as
much again.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxcoll.execute.lowerings.rounds import Program, Round

# The part of a buffer that may be on its way at a time.
PART = 10


@functools.lru_cache(maxsize=256)
def in_pieces(program: Program) -> Program:
    """The program with every step cut so that it carries a tenth of the buffer or less.

    A message has at least one row, so steps of many rounds may still carry more. All pieces of a
    step use its links: each has some of the rows of every message.

    Returns:
        The program itself where nothing is to be cut.
    """
    steps: list[tuple[Round, ...]] = []
    for rounds in program.steps:
        longest = max(r.size for r in rounds)
        rows = max(1, program.num_rows // (PART * len(rounds)))
        # A power of two: pieces of different steps are then alike, which makes for few stages.
        rows = 1 << (rows.bit_length() - 1)
        for first in range(0, longest, rows):
            cut = [_columns(r, first, first + rows) for r in rounds if r.size > first]
            steps.append(tuple(r for r in cut if r.pairs))
    if len(steps) == len(program.steps):
        return program
    return dataclasses.replace(program, steps=tuple(steps))


def _columns(round_: Round, first: int, end: int) -> Round:
    send, recv, add = (a[:, first:end] for a in (round_.send, round_.recv, round_.add))
    pairs = tuple((u, v) for u, v in round_.pairs if send[u, 0] >= 0)
    return Round(pairs, send, recv, add)
