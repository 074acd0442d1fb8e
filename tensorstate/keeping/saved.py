"""Saved: a copy stays in the memory of the device, as it is."""

from __future__ import annotations

from collections.abc import Iterator

from tensorstate.keeping.base import Holds, Keeping, Lived, Reads, Span


def _lived(reads: Reads) -> Iterator[Lived]:
    """From its making to its last read."""
    if reads.is_fused:
        # As it is produced its readers compute it again from its operands, for nothing. A copy in
        # other placements is stored, and one that a reader takes from memory when it runs again.
        yield from reads.between_passes("apart", reads.later if reads.is_needed else ())
        yield from reads.between_passes("read again", reads.again)
        return
    only_again = () if reads.is_needed else reads.again
    yield from reads.between_passes("copy", reads.later or only_again)


SAVED = Keeping(
    "saved",
    "saved for the backward pass",
    runs_again=False,
    spans=(
        Span("copy", Holds.COPY, "saved"),
        Span("apart", Holds.COPY_APART, "saved"),
        Span("read again", Holds.COPY_READ_AGAIN, "saved"),
    ),
    lived=_lived,
    stays_fused=True,
)
