"""Saved: a copy stays unchanged in the memory of the device."""

from __future__ import annotations

from collections.abc import Iterator

from tensorstate.keeping.base import Holds, Keeping, Lived, Reads, Span


def _lived(reads: Reads) -> Iterator[Lived]:
    """From its production to its last read."""
    if reads.is_fused:
        # In the produced placements, its readers compute it again from its operands, at no cost. A
        # copy is stored if it has other placements, or if a reader takes it from memory when it
        # reruns.
        yield from reads.between_passes("apart", reads.later if reads.is_needed else ())
        yield from reads.between_passes("for rerun", reads.rerun)
        return
    only_reruns = () if reads.is_needed else reads.rerun
    yield from reads.between_passes("copy", reads.later or only_reruns)


SAVED = Keeping(
    "saved",
    "saved for the backward pass",
    reruns=False,
    spans=(
        Span("copy", Holds.COPY, "saved"),
        Span("apart", Holds.COPY_APART, "saved"),
        Span("for rerun", Holds.COPY_FOR_RERUN, "saved"),
    ),
    lived=_lived,
    stays_fused=True,
)
