"""Questions about a file, and their answers: a proof, or a line that says why there is none."""

from __future__ import annotations

from typing import NamedTuple

_MOST_QUOTED = 60


def quoted(value: object) -> str:
    """A part of a file as messages show it: at most 60 characters, without line breaks."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value[:_MOST_QUOTED] if isinstance(value, str) else value)
    return text if len(text) <= _MOST_QUOTED else f"{text[: _MOST_QUOTED - 3]}..."


class NotRead(ValueError):
    """The file is not of its format, is cut short, of another version, or too large."""


class NotProved(ValueError):
    """The file is read but does not do what is asked; ``rank`` and ``chunk`` if they are known."""

    def __init__(self, message: str, rank: int | None = None, chunk: int | None = None):
        super().__init__(message)
        self.rank, self.chunk = rank, chunk


class Asked(NamedTuple):
    """The caller's claims about a file; None where the file itself states it."""

    kind: str | None
    ranks: int | None
    roots: tuple[int, ...]
    runtime: str | None

    def agreed(self, kind: str | None, ranks: int) -> str:
        """The collective, after checking that file and caller agree on it and on the ranks."""
        if self.ranks is not None and ranks != self.ranks:
            raise NotProved(f"the file has {ranks} ranks, but {self.ranks} were asked for")
        if None not in (kind, self.kind) and kind != self.kind:
            raise NotProved(f"the file states {kind}, but {self.kind} was asked for")
        found = kind or self.kind
        if found is None:
            raise NotProved("the file does not say which collective it is; say it: --as all_reduce")
        return found


class Proof(NamedTuple):
    """The facts that were shown, and the size of the file."""

    format: str
    collective: str
    ranks: int
    chunks: int
    messages: int
    shown: tuple[str, ...]
