"""Errors and warnings of the library.

Every error is a ``ValueError``: it states the value, the expectation and the remedy. A warning
states the assumption, and how to replace it by a statement.
"""

import sys
import warnings
from fractions import Fraction

__all__ = [
    "AssumptionWarning",
    "CollectiveError",
    "FormatError",
    "JaxcollError",
    "ScheduleError",
    "SearchWarning",
    "TableWarning",
    "TopologyError",
    "TuneError",
]

_SHOWN = 60


def shown(value: object) -> str:
    """A value as an error shows it: 60 characters of its ``repr``, in a line, and never a failure.

    Whatever a file or an argument says is quoted by this: either may be as long as a file, and hold
    line breaks.
    """
    try:
        # Only the beginning of long text, since what is not trusted may be as long as a file.
        # Fractions as numbers are typed: 1/3, not Fraction(1, 3).
        is_text = isinstance(value, (str, bytes))
        text = (
            str(value)
            if isinstance(value, Fraction)
            else repr(value[:_SHOWN] if is_text else value)
        )
    except Exception as error:  # an object of the caller's: any failure must not hide the error
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    return " ".join(text.split()) if "\n" in text else text  # an array's repr has several lines


def named(text: str) -> str:
    """A name as an error shows it: whole if it is short, and in one line."""
    return shown(text)[1:-1]


class JaxcollError(ValueError):
    """Base of every error that refuses an input."""


class TopologyError(JaxcollError):
    """A network that cannot be used: no ranks, a bad link, ranks that cannot reach each other."""


class CollectiveError(JaxcollError):
    """A collective that is ill-formed, or one that a synthesizer or function is not defined for."""


class ScheduleError(JaxcollError):
    """A schedule that does not carry its collective.

    ``rank``, ``chunk`` and ``step`` name the place, where there is one (``None`` otherwise).
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        chunk: int | None = None,
        step: int | None = None,
    ):
        super().__init__(message)
        self.rank = rank
        self.chunk = chunk
        self.step = step


class FormatError(JaxcollError):
    """A file or text that is truncated, malformed or not of the format it claims."""


class TuneError(JaxcollError):
    """A configuration space, a measurement or a search's state that a tuner cannot use."""


class SearchWarning(UserWarning):
    """A search whose answer is far from its bound, and that left candidates out for their work."""


class TableWarning(UserWarning):
    """Measurements of an earlier run, a file of them or a row, that are not used."""


class AssumptionWarning(UserWarning):
    """A number that nobody stated, or that is likely stated in another unit."""


def warn_user(
    message: str, category: type[Warning], unless_in: frozenset[str] = frozenset()
) -> None:
    """Warn at the line of the user's code that called the library, once per line and message.

    Args:
        unless_in: packages of the library, as "jaxcoll.synth"; a call that came through one of them
            is its own, and the user is not told.
    """
    # Past all frames of ours, or every warning would name the same line of the library, and be
    # shown once only.
    depth, frame = 2, sys._getframe(1)  # to ``warnings``, 1 is this function
    while frame.f_back and (name := frame.f_globals.get("__name__", "").split("."))[0] in _OURS:
        if ".".join(name[:2]) in unless_in:
            return
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth)


_OURS = frozenset(("jaxcoll", "tensorstate"))
