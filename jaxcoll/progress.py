"""Progress of the calls that take long: one frozen value, told to a function or to a terminal.

Searches on more than some hundred ranks say so by themselves once they take long (``unasked``).
Every such call takes ``progress=``: None for silence, True for a line on stderr, overwritten where
that is a terminal, and in a log after 5 s and every 10 s then, or a function of one ``Progress``.
An error raised by the function ends the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxcoll.errors import JaxcollError, shown

# Seconds until a line says what is being waited for, and between its changes.
_PATIENCE, _INTERVAL = 0.7, 0.5
_WIDTH = 100
# Seconds after which a call that nobody watches says that it is at work, and between such lines.
_LONG, _AGAIN = 5.0, 10.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a call has come.

    Attributes:
        done: how much is done, in the unit that the call states.
        total: how much there is to do, in that unit; None where that shows only at the end.
        what: name of the latest work.
        best: in a search, the least time found so far, in seconds; None while there is none.
        bound: in a search, seconds that nothing can be below, where such a number is known.
    """

    done: float
    total: float | None
    what: str
    best: float | None = None
    bound: float | None = None

    def __str__(self) -> str:
        count = f"{self.done:.6g}" + ("" if self.total is None else f" of {self.total:.6g}")
        best = "" if self.best is None else f", best {_duration(self.best)}"
        bound = "" if self.bound is None else f", bound {_duration(self.bound)}"
        return f"{self.what}: {count}{best}{bound}"


Report = Callable[[Progress], None]
# What callers give for ``progress=``.
Wanted = Report | bool | None


@contextlib.contextmanager
def reporting(progress: Wanted, what: str, error: type[JaxcollError]) -> Iterator[Report | None]:
    """While this runs, a function to call with every ``Progress``; None where nobody listens.

    Args:
        progress: as a caller gave it.
        what: the call's work, for the terminal until the first ``Progress``.
        error: raised by a bad ``progress``.

    Raises:
        error: ``progress`` is neither None, a flag nor a function.
    """
    checked(progress, error)
    if progress is True:
        with working(what) as report:
            yield report
    else:
        yield progress or None


def by_lines(progress: Wanted, error: type[JaxcollError]) -> Callable[[int, str], None]:
    """For work in steps of a caller who prints too: a function of a count and what happened there.

    True prints a line of its own for each, where stderr is a terminal.

    Raises:
        error: ``progress`` is neither None, a flag nor a function.
    """
    checked(progress, error)

    def tell(done: int, what: str) -> None:
        told = Progress(done, None, what)
        if progress is True:
            if sys.stderr.isatty():
                print(told, file=sys.stderr, flush=True)
        elif progress:
            progress(told)

    return tell


def checked(progress: Wanted, error: type[JaxcollError]) -> Wanted:
    """The argument ``progress=`` itself, once checked.

    Raises:
        error: neither None, a flag nor a function.
    """
    if progress is None or isinstance(progress, bool) or callable(progress):
        return progress
    raise error(
        "progress must be True for a line in the terminal, a function of one Progress, or None, "
        f"got {shown(progress)}"
    )


@contextlib.contextmanager
def working(what: str) -> Iterator[Report]:
    """While this runs, a terminal shows what is being done and for how long, wiped at the end.

    Elsewhere, in a log, a line says so after 5 s and every 10 s then: see ``unasked``. Gives a
    function to call with every ``Progress``, which the line then shows.
    """
    if not sys.stderr.isatty():
        with _told(what, _LONG, _AGAIN, _print) as report:
            yield report
        return
    began = time.monotonic()
    try:
        with _told(what, _PATIENCE, _INTERVAL, _overwrite) as report:
            yield report
    finally:
        if time.monotonic() - began > _PATIENCE:  # otherwise nothing was written
            wipe()


def unasked(what: str) -> contextlib.AbstractContextManager[Report]:
    """While this runs, a line on stderr after 5 s and every 10 s then, terminal or log.

    For calls that may take minutes of callers who asked for no progress; gives a function to call
    with every ``Progress``, which the next line then says.
    """
    return _told(what, _LONG, _AGAIN, _print)


@contextlib.contextmanager
def _told(
    what: str, first: float, again: float, write: Callable[[str, float], None]
) -> Iterator[Report]:
    """While this runs, the line is written after some seconds, and again and again.

    By a thread of its own, since most waiting is for one call that returns at its end.

    Args:
        write: called with the line and the seconds since the beginning.
    """
    line, done, began = [what], threading.Event(), time.monotonic()

    def report(progress: Progress) -> None:
        line[0] = str(progress)

    def tell() -> None:
        wait = first
        while not done.wait(wait):
            write(line[0], time.monotonic() - began)
            wait = again

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        done.set()
        thread.join()


def _print(line: str, seconds: float) -> None:
    print(f"{line} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def _overwrite(line: str, seconds: float) -> None:
    sys.stderr.write(f"\r{line[:_WIDTH]} ({seconds:.0f} s)\x1b[K")
    sys.stderr.flush()


def wipe() -> None:
    """Clear the line of a terminal on which ``working`` may have written: for who prints there."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
