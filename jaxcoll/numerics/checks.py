"""The checks of arguments: one set for the whole library.

Every function takes the value, its name in the error message, and the error to raise. It returns
the value as a plain Python object, so that the parameters of a synthesizer can be written to a
file.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import JaxcollError, shown
from jaxcoll.numerics.rational import Number, as_fraction

Error = type[JaxcollError]

# The most items of a range, which has few bytes at any length but would be written out: half a
# gigabyte.
_MOST_ITEMS = 2**26
# Digits are limited, since a number of a million of them takes minutes to read.
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]{1,3})\s*", re.ASCII)
_UNITS = {
    "b": 1,
    **{f"{letter}b": 1000**i for i, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**i for i, letter in enumerate("kmgtp", 1)},
}
_INT64 = np.iinfo(np.int64).max

# Limits of bytes, bytes per second and seconds above 0. Products and quotients of two or three of
# them are then floats, and no network or buffer is beyond these limits.
LEAST, MOST = 1e-100, 1e100


def optional(value, check: Callable, *args, **limits):
    """None, or the result of ``check(value, *args, **limits)``."""
    return None if value is None else check(value, *args, **limits)


def integer(
    value, what: str, error: Error, *, least: int | None = None, most: int | None = None
) -> int:
    """An integer between two limits; NumPy's integers are allowed, booleans are not."""
    try:
        # True equals 1 in Python, but as a number of ranks it is a mistake.
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise error(f"{what} must be an integer, got {shown(value)}") from None
    if least is not None and number < least:
        raise error(f"{what} must be an integer of at least {least}, got {shown(number)}")
    if most is not None and number > most:
        raise error(f"{what} must be an integer of at most {most}, got {shown(number)}")
    return number


def seed(value, error: Error) -> int:
    """A seed of random choices: an integer of at least 0."""
    return integer(value, "seed", error, least=0)


def integers(
    values, what: str, error: Error, *, least: int | None = None, most: int | None = None
) -> tuple[int, ...]:
    """A sequence of integers, each between two limits, as a tuple."""
    given = sequence(values, what, error)
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu" and given.ndim == 1:
        given = given.tolist()
    # Most sequences are in order, and some have a number for each of many thousand ranks.
    if set(map(type, given)) == {int}:
        low, high = min(given), max(given)
        if (least is None or low >= least) and (most is None or high <= most):
            return tuple(given)
    return tuple(
        integer(value, f"{what}[{i}]", error, least=least, most=most)
        for i, value in enumerate(given)
    )


def rank_permutation(values, count: int, what: str, error: Error) -> np.ndarray:
    """The ranks 0..count-1 in some order, int64 of shape (count,)."""
    image = np.asarray(integers(values, what, error, least=0, most=_INT64), np.int64)
    if not np.array_equal(np.sort(image), np.arange(count)):
        raise error(f"{what} must be a permutation of the {count} ranks, got {shown(values)}")
    return image


def sequence(values, what: str, error: Error) -> Sequence | np.ndarray:
    """A list, tuple, range, array or other finite sequence, but not a string."""
    if isinstance(values, np.ndarray) and values.ndim:
        return values
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray)):
        raise error(f"{what} must be a sequence, got {shown(values)}")
    return bounded(values, what, error)


def bounded(values, what: str, error: Error):
    """The values, unless they are a range whose list would fill the memory."""
    if isinstance(values, range) and len(values) > _MOST_ITEMS:
        raise error(f"{what} may have at most {_MOST_ITEMS} items, got {values}")
    return values


def members(values, what: str, error: Error) -> tuple:
    """The items of a sequence, a set or an iterator, but not of a string, as a tuple."""
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise error(f"{what} must be a sequence, got {shown(values)}")
    try:
        return tuple(bounded(values, what, error))
    except TypeError:  # an array without dimensions
        raise error(f"{what} must be a sequence, got {shown(values)}") from None


def column(values, dtype: type, what: str, error: Error) -> np.ndarray:
    """One contiguous column of integers; refuses numbers that the type would round or wrap."""
    try:
        given = np.asarray(bounded(values, what, error))
        with np.errstate(invalid="ignore"):
            found = np.ascontiguousarray(given, dtype)
    except (TypeError, ValueError, OverflowError) as wrong:
        raise error(f"{what} must be one column of integers: {wrong}") from None
    if given.ndim != 1:
        raise error(f"{what} must be one column of integers, got shape {given.shape}")
    # Compared after the cast, because it rounds and wraps silently.
    if given.dtype != found.dtype and not np.array_equal(given, found):
        bad = given[np.flatnonzero(given != found)[0]]
        raise error(f"{what} must hold integers of {np.dtype(dtype).name}, got {bad}")
    return found


def flags(values, what: str, error: Error) -> np.ndarray:
    """Flags, or one for all, as bool."""
    try:
        given = np.asarray(bounded(values, what, error))
    except ValueError:
        given = np.zeros((), object)
    # 0 and 1 are accepted, since columns of files have them.
    is_known = given.dtype.kind == "b" or not given.size
    if not is_known and (given.dtype.kind not in "iu" or not np.isin(given, (0, 1)).all()):
        raise error(f"{what} must hold True and False, got {shown(values)}")
    if given.ndim > 1:
        raise error(f"{what} must be one column, got shape {given.shape}")
    return np.asarray(given, bool)


def flag(value, what: str, error: Error) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise error(f"{what} must be True or False, got {shown(value)}")
    return bool(value)


def text(value, what: str, error: Error) -> str:
    """A string."""
    if not isinstance(value, str):
        raise error(f"{what} must be a string, got {shown(value)}")
    return value


def rational(value, what: str, error: Error) -> Fraction:
    """The exact value of a finite number that a float can approximate."""
    exact = _as_rational(value)
    if exact is None:
        raise error(f"{what} must be a finite number, got {shown(value)}")
    return exact


def positive(value, what: str, error: Error) -> Number:
    """A finite number above 0 whose float is neither 0 nor infinite."""
    # The float of a Fraction above 0 may be 0, by which callers would divide.
    exact = _as_rational(value)
    if exact is None or exact <= 0 or float(exact) == 0:
        raise error(f"{what} must be a finite number above 0, got {shown(value)}")
    return _plain(value, exact)


def between(value, what: str, error: Error, *, least: float, most: float) -> float:
    """A number above 0 within limits, as a float."""
    number = float(positive(value, what, error))
    if not least <= number <= most:
        raise error(f"{what} must be from {least:g} to {most:g}, got {number:g}")
    return number


def nbytes(value, error: Error, what: str = "nbytes") -> Number:
    """Bytes, above 0, within ``LEAST`` and ``MOST``."""
    size = positive(value, what, error)
    if not LEAST <= size <= MOST:
        raise error(f"{what} must be from {LEAST:g} to {MOST:g} bytes, got {shown(value)}")
    return size


def nonnegative(value, what: str, error: Error) -> Number:
    """A finite number of at least 0."""
    exact = _as_rational(value)
    if exact is None or exact < 0:
        raise error(f"{what} must be a finite number of at least 0, got {shown(value)}")
    return _plain(value, exact)


def probability(value, what: str, error: Error) -> Number:
    """A number from 0 to 1."""
    exact = _as_rational(value)
    if exact is None or not 0 <= exact <= 1:
        raise error(f"{what} must be a number from 0 to 1, got {shown(value)}")
    return _plain(value, exact)


def _as_rational(value) -> Fraction | None:
    try:
        exact = as_fraction(value)
        return exact if math.isfinite(float(exact)) else None
    except (ValueError, OverflowError):
        return None


def _plain(value, exact: Fraction) -> Number:
    # A plain number of the same kind, without NumPy's types, because files and certificates store
    # it.
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if isinstance(value, (float, np.floating)) else exact


def choice(value, options: Iterable[str], what: str, error: Error) -> str:
    """One of some strings."""
    known = tuple(options)
    if not isinstance(value, str) or value not in known:
        raise error(f"{what} must be one of {', '.join(known)}, got {shown(value)}")
    return value


def instance(value, kinds: type | tuple[type, ...], what: str, error: Error):
    """The object, if it is of one of the classes."""
    if not isinstance(value, kinds):
        names = [kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
        expected = " or a ".join(names)
        raise error(f"{what} must be a {expected}, got {shown(value)} ({type(value).__name__})")
    return value


def memory(value, what: str, error: Error) -> Number:
    """A number of bytes above 0, or a text with a unit: 16e9, "16GB" and "16 GB" are equal."""
    if not isinstance(value, str):
        return positive(value, what, error)
    match = _SIZE.fullmatch(value)
    if match is None or match[2].lower() not in _UNITS or not float(match[1]) > 0:
        raise error(
            f'{what} must be a number of bytes above 0 or a text such as "80GB" or "1.5 GiB", got '
            f"{shown(value)}"
        )
    # An exact decimal times an exact unit; rounded once, at the end.
    exact = Fraction(match[1]) * _UNITS[match[2].lower()]
    return int(exact) if exact.denominator == 1 else float(exact)


def names(value, what: str, error: Error) -> tuple[str, ...]:
    """A string, or several of them, as a tuple."""
    given = (value,) if isinstance(value, str) else members(value, what, error)
    return tuple(text(name, f"a name in {what}", error) for name in given)


def function(value, what: str, error: Error):
    """The function, if it is callable."""
    if not callable(value):
        raise error(f"{what} must be a function, got {shown(value)}")
    return value


def put(frozen, **values) -> None:
    """Set fields of a frozen dataclass to the values that the checks returned."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


def integer_fields(
    frozen, error: Error, *names: str, least: int = 1, or_none: bool = False
) -> None:
    """Check the fields of a frozen dataclass that are integers, or None where that is allowed."""
    for name in names:
        value = getattr(frozen, name)
        if value is not None or not or_none:
            put(frozen, **{name: integer(value, name, error, least=least)})


def flag_fields(frozen, error: Error, *names: str) -> None:
    """Check the fields of a frozen dataclass that are True or False."""
    for name in names:
        put(frozen, **{name: flag(getattr(frozen, name), name, error)})


def column_fields(frozen, what: str, error: Error, **dtypes: type) -> None:
    """Check fields as columns of integers, and store them as read-only columns."""
    for name, dtype in dtypes.items():
        found = column(getattr(frozen, name), dtype, f"{name} of {what}", error)
        found.setflags(write=False)
        object.__setattr__(frozen, name, found)
