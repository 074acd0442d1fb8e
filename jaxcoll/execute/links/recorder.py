"""Records of messages on the links of this process, at both ends, and of plays."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import engine

LEAVES, ARRIVES, PLAYS = range(3)
# The layout in which player.cc writes events, int64. Program, number of the call and count of its
# runs identify the play. The kind is LEAVES, ARRIVES or PLAYS. Times are nanoseconds of the
# machine's clock: when a link turned to a message, when it began to carry it, and when it ended; a
# message that arrives is not requested.
COLUMNS = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("what", "program", "number", "count", "rank", "peer_rank", "device", "peer"),
            *("message", "step", "bytes", "asked", "begun", "ended"),
        )
    ]
)


class Record:
    """Events since recording began; ``events`` is filled when recording ends."""

    def __init__(self) -> None:
        self.events = np.empty(0, COLUMNS)


@contextlib.contextmanager
def recording() -> Iterator[Record]:
    """Record the messages that the links of this process carry.

    Raises:
        CollectiveError: the player is not available.
    """
    library = engine.library()
    if isinstance(library, str):
        raise CollectiveError(f"the lowering 'links' cannot be recorded here: {library}")
    found = Record()
    library.jaxcoll_links_record(1)
    try:
        yield found
    finally:
        library.jaxcoll_links_record(0)
        count = library.jaxcoll_links_recorded(None, 0)
        found.events = np.empty(count, COLUMNS)
        pointer = found.events.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))
        library.jaxcoll_links_recorded(pointer, count)
