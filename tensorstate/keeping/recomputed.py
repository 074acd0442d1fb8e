"""Recomputed: nothing is stored, and the producer reruns at the first read after the pass."""

from __future__ import annotations

from collections.abc import Iterator

from tensorstate.ir.graph import LOOP_BOUNDARY, Graph
from tensorstate.keeping.base import Holds, Keeping, Lived, Reads, Span


def _may_keep(graph: Graph, index: int) -> bool:
    """Whether an operator may be recomputed; in a body, only if a loop mirrors it.

    Values that pass into a body or out of it are passed only once, except for the rows of an
    operand.
    """
    operator = graph.operators[index]
    if not operator.loops:
        return True
    if operator.primitive in LOOP_BOUNDARY and operator.primitive != "scan_row":
        return False
    return graph.mirror(operator.loops) is not None


def _lived(reads: Reads) -> Iterator[Lived]:
    """To its last read in the forward pass, and from its first to its last read after it."""
    if reads.is_fused:
        return
    if reads.is_needed:
        yield "made", reads.made, reads.last_forward, 1
    later = reads.later or reads.rerun
    if not later:
        return
    yield "made", min(later) - 1, max(later), 1
    if reads.rerun:  # for an operator that itself reruns, before all other readers
        yield "early", min(reads.rerun) - 1, min(later) - 1, 1


RECOMPUTED = Keeping(
    "recomputed",
    "recomputed in the backward pass",
    reruns=True,
    spans=(
        Span("made", Holds.MADE, "temporaries"),
        Span("early", Holds.MADE_FOR_RERUN, "temporaries"),
    ),
    lived=_lived,
    option="recompute",
    may_keep=_may_keep,
    is_always_written=True,
)
