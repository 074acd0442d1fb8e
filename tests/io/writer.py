"""A process that writes one file for ever, to be killed: imported once, forked for every test."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from jaxcoll.io.files import write_text

# Importing takes more than a second; a test needs the process for a few hundredths.
FORKS = multiprocessing.get_context("forkserver")


def content(i: int) -> str:
    """Text that tells whether all of it was written."""
    return f"{i:09}" * 100_000


def is_whole(text: str) -> bool:
    """Whether a text is one of these."""
    return len(text) == 900_000 and text == text[:9] * 100_000


def _write(path: Path, begun: Connection) -> None:
    begun.send("writing")
    for i in range(10**9):
        write_text(path, content(i))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BaseProcess]:
    """A process in the middle of writing a path; killed in the end."""
    FORKS.set_forkserver_preload([__name__])
    receiver, sender = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=_write, args=(path, sender), daemon=True)
    child.start()
    try:
        assert receiver.recv() == "writing"
        yield child
    finally:
        child.kill()
        child.join()
