"""What commands print: lines, tables whose rows come as they are made, JSON, and progress.

Progress is for a person who waits: a line on stderr that is overwritten, when stderr is a terminal,
and nothing otherwise. Results are on stdout.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

# Seconds until a line says what is being waited for, and between its changes.
_PATIENCE, _INTERVAL = 0.7, 0.5


class Progress:
    """The line of progress; ``note`` changes what it says."""

    def __init__(self, what: str):
        self.what = what

    def note(self, what: str) -> None:
        self.what = what


@contextlib.contextmanager
def working(what: str) -> Iterator[Progress]:
    """While this runs, a terminal shows what is being done and for how long."""
    progress = Progress(what)
    if not sys.stderr.isatty():
        yield progress
        return
    done, began = threading.Event(), time.monotonic()

    def show() -> None:
        wait = _PATIENCE
        while not done.wait(wait):
            seconds = time.monotonic() - began
            sys.stderr.write(f"\r{progress.what[:100]} ({seconds:.0f} s)\x1b[K")
            sys.stderr.flush()
            wait = _INTERVAL

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        done.set()
        thread.join()
        if time.monotonic() - began > _PATIENCE:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Table:
    """Rows that are printed as they come, in columns of fixed widths; the first is left-aligned."""

    def __init__(self, widths: Sequence[int]):
        self._widths = widths

    def row(self, *cells: str) -> None:
        first, *rest = cells
        padded = [cell.rjust(width) for cell, width in zip(rest, self._widths[1:], strict=False)]
        click.echo("  ".join([first.ljust(self._widths[0]), *padded]).rstrip())


def print_json(value: Any) -> None:
    """One document on stdout. Infinities and NaN, which JSON has not, are refused."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def one_line(error: object) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
