"""Steps with long messages split into several steps, so that less memory is in flight.

Received rows take memory beside the buffer until they are written to it. A step whose messages are
a large part of the buffer, as the last ones of a bucket all_gather are, would need as much again.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxcoll.execute.lowerings.rounds import PermuteProgram, Round

# One over this part of a buffer may be in flight at once.
PART = 10


@functools.lru_cache(maxsize=256)
def split_long_steps(program: PermuteProgram) -> PermuteProgram:
    """The program with every step split so that it carries a tenth of the buffer or less.

    A message has at least one row, so steps of many rounds may still carry more. Every part of a
    step has some rows of every message, so all of its links stay in use.

    Returns:
        The program itself where no step is split.
    """
    steps: list[tuple[Round, ...]] = []
    for rounds in program.steps:
        longest = max(r.size for r in rounds)
        rows = max(1, program.num_rows // (PART * len(rounds)))
        # A power of two: parts of different steps then have equal shapes, hence few stages.
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
