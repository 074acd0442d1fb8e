"""Progress of long calls, told to a function or written to stderr.

Calls that may take long have an argument ``progress``. It is None for silence, a function that is
called with one ``Progress`` after another, or True for a line on stderr: a terminal shows one line
that changes, and a log gets a line after 5 s and then one every 10 s. If the function raises an
error, the call ends with it. Searches on more than a few hundred ranks report even if nobody asks
for it (``unasked``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxcoll.errors import JaxcollError, shown

# On a terminal: seconds until the line appears, so that short calls show none, and between its
# changes; and the most characters of it, since a longer line would wrap and not be overwritten.
_PATIENCE, _INTERVAL = 0.7, 0.5
_WIDTH = 100
# In a log: seconds until the first line, and between lines.
_LONG, _AGAIN = 5.0, 10.0


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a call has come.

    Attributes:
        done: how much is done, in the unit that the call states.
        total: how much there is to do in that unit; None if that is not known beforehand.
        what: name of the latest work.
        best: in a search, the least time found so far, in seconds; None if there is none yet.
        bound: in a search, a lower bound on that time, in seconds; None if none is known.
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
# What a caller may give as ``progress``.
Wanted = Report | bool | None


@contextlib.contextmanager
def reporting(progress: Wanted, what: str, error: type[JaxcollError]) -> Iterator[Report | None]:
    """A context for a long call: a function that takes every ``Progress``, None if nobody listens.

    Args:
        progress: as the caller gave it.
        what: the work of the call, which the line says until the first ``Progress``.
        error: class of the error for a bad ``progress``.

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
    """A function that takes the number of a step and what happened in it, for calls in steps.

    Between two steps the caller may print lines of its own. So True prints a whole line for each
    step, and only on a terminal, instead of one that is overwritten.

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
    """The argument ``progress``, after a check.

    Raises:
        error: it is neither None, a flag nor a function.
    """
    if progress is None or isinstance(progress, bool) or callable(progress):
        return progress
    raise error(
        "progress must be True for a line in the terminal, a function of one Progress, or None, "
        f"got {shown(progress)}"
    )


@contextlib.contextmanager
def working(what: str) -> Iterator[Report]:
    """A context in which a line on stderr says what is being done and for how long.

    A terminal shows one line, which is wiped at the end; a log gets lines as from ``unasked``. The
    line shows the latest ``Progress`` that the function of this context was called with.
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
    """A context in which stderr gets a line after 5 s and then one every 10 s, terminal or log.

    It is for calls that may take minutes although the caller asked for no progress. A line shows
    the latest ``Progress`` that the function of this context was called with.
    """
    return _told(what, _LONG, _AGAIN, _print)


@contextlib.contextmanager
def _told(
    what: str, first: float, again: float, write: Callable[[str, float], None]
) -> Iterator[Report]:
    """A context in which a line is written again and again.

    Args:
        what: the line until the first ``Progress``.
        first, again: seconds until the line is written, and from one time to the next.
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

    # The work is mostly a single call, which returns at its end: only another thread can write
    # meanwhile.
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
    """Clear the terminal's line, on which ``working`` may have written, before a caller prints."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
