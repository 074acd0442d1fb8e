"""JSON that is not trusted: parsing with every surprise refused, and fields of checked types.

A reader is a function of (value, name) that returns the value, checked, or raises a ``FormatError``
with the name. ``Fields`` takes an object's fields by such readers and refuses those left over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

import numpy as np

from jaxcoll.errors import FormatError, shown

INT32 = np.iinfo(np.int32).max
INT64 = np.iinfo(np.int64).max

_MAX_DIGITS = 1000  # of an integer or of a part of a rational: to read more takes long
LARGEST = 10**_MAX_DIGITS - 1
_MAX_DEPTH = 32  # of a value of provenance
_MOST_NAME = 60  # letters of a name in an error
_RATIONAL = re.compile(rf"([0-9]{{1,{_MAX_DIGITS}}})/([0-9]{{1,{_MAX_DIGITS}}})", re.ASCII)
_FRACTION_KEY = "p/q"

T = TypeVar("T")

# ---------------------------------------------------------------------- text


def parse(text: str) -> object:
    """The value of JSON text.

    Raises:
        FormatError: malformed, cut short, too deep; a key twice; NaN or infinity.
    """
    if not isinstance(text, str):
        raise FormatError(f"expected JSON text, got {shown(text)}")
    try:
        return json.loads(
            text.removeprefix("\ufeff"),
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise FormatError(
            f"not JSON, or cut short: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise FormatError("nested deeper than any file of this format") from None
    except FormatError:
        raise
    except ValueError as error:  # an integer of too many digits
        raise FormatError(f"not JSON that is read here: {shown(str(error))}") from None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict:
    fields: dict = {}
    for key, value in pairs:
        if key in fields:
            raise FormatError(f"the key {glimpse(key)} is given twice; give it once")
        fields[key] = value
    return fields


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise FormatError(f"{shown(written)} is larger than any float; finite numbers are expected")
    return number


def _refuse_constant(name: str) -> object:
    raise FormatError(f"{name} is not a number in JSON; finite numbers are expected")


def glimpse(value: object) -> str:
    """A value as it is shown in an error: its beginning, and its type where that says more."""
    if isinstance(value, (dict, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    return shown(value)


def within(where: str, key: object) -> str:
    """The name of an item, or of a field whose key the file chose; of a long one both ends."""
    name = f"{where}[{key}]" if isinstance(key, int) else f"{where}.{shown(key)[1:-1]}"
    half = _MOST_NAME // 2 - 2
    return name if len(name) <= _MOST_NAME else f"{name[:half]}...{name[-half:]}"


# ---------------------------------------------------------------------- claims

# (rank, chunk) pairs that a file may claim whatever it holds.
MAX_FREE = 2**22


def check_claims(where: str, ranks: int, chunks: int, deliveries: int, sends: int) -> None:
    """Refuse a file that claims a collective too large for the sends it holds.

    Whoever verifies or times a schedule keeps a number for each rank and chunk. Every sound
    schedule passes, unless it has millions of chunks that no rank needs from another: of the others
    it sends each at least once, and there are as many of the former at most (an all_to_all of two).

    Args:
        where: a name of the file, for the error.
        deliveries: sends that every schedule of the collective has at least.
        sends: sends that the file holds.

    Raises:
        FormatError: more claimed than held.
    """
    least = max(deliveries, chunks // 2)
    if ranks * chunks > MAX_FREE and sends < least:
        raise FormatError(
            f"{where} claims {chunks} chunks on {ranks} ranks and holds {sends} sends, "
            f"where every schedule has at least {least}: it is cut short or made up"
        )


# ---------------------------------------------------------------------- checked fields


class Fields:
    """The fields of a JSON object, taken one by one, each of a checked type."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            raise FormatError(f"{where} must be an object, got {glimpse(value)}")
        self.left = dict(value)
        self.where = where

    def take(self, key: str, read: Callable, *default):
        """``read(value, name)`` of a field; without the field the default, if one is given."""
        name = f"{self.where}.{key}"
        if key not in self.left:
            if default:
                return default[0]
            raise FormatError(f"{name} is missing")
        return read(self.left.pop(key), name)

    def optional(self, key: str, read: Callable):
        """A field that may be null or absent."""
        return self.take(
            key, lambda value, name: None if value is None else read(value, name), None
        )

    def end(self) -> None:
        """Refuse fields that nobody has taken."""
        if self.left:
            key = min(self.left)
            raise FormatError(f"{self.where} has no field {glimpse(key)}; remove it")


def entries(text: str, form: str, name: str) -> dict:
    """The entries of a file of one format, ``{"format": form, name: {...}}``, as JSON text.

    Raises:
        FormatError: not JSON, of another format, or with other keys.
    """
    whole = Fields(parse(text), "the file")
    whole.take("format", exactly(form))
    found = whole.take(name, json_object)
    whole.end()
    return found


def _is_whole(value: object) -> bool:
    return type(value) is int


def whole(low: int, high: int) -> Callable[[object, str], int]:
    """Reads an integer low..high."""

    def read(value: object, name: str) -> int:
        if not _is_whole(value) or not low <= value <= high:  # type: ignore[operator]
            raise FormatError(
                f"{name} must be an integer from {low} to {high}, got {glimpse(value)}"
            )
        return value  # type: ignore[return-value]

    return read


def whole_or_several(low: int, high: int) -> Callable[[object, str], int | tuple[int, ...]]:
    """Reads an integer low..high, or a list of such."""
    one = whole(low, high)
    several = list_of(one)
    return lambda value, name: (
        tuple(several(value, name)) if isinstance(value, list) else one(value, name)
    )


def any_whole(value: object, name: str) -> int:
    """An integer of as many digits as are read."""
    if not _is_whole(value) or abs(value) > LARGEST:  # type: ignore[arg-type]
        raise FormatError(
            f"{name} must be an integer of at most {_MAX_DIGITS} digits, got {glimpse(value)}"
        )
    return value  # type: ignore[return-value]


def _of(kind: type[T], called: str, value: object, name: str) -> T:
    if not isinstance(value, kind):
        raise FormatError(f"{name} must be {called}, got {glimpse(value)}")
    return value


def text(value: object, name: str) -> str:
    """A string."""
    return _of(str, "a string", value, name)


def items(value: object, name: str) -> list:
    """A list."""
    return _of(list, "a list", value, name)


def json_object(value: object, name: str) -> dict:
    """An object, whose keys the caller reads."""
    return _of(dict, "an object", value, name)


def flag(value: object, name: str) -> bool:
    """A boolean."""
    return _of(bool, "true or false", value, name)


def list_of(read: Callable) -> Callable[[object, str], tuple]:
    """Reads a list whose items ``read`` reads."""

    def read_all(value: object, name: str) -> tuple:
        return tuple(read(item, f"{name}[{i}]") for i, item in enumerate(items(value, name)))

    return read_all


def column(high: int, dtype: type = np.int32) -> Callable[[object, str], np.ndarray]:
    """Reads a list of integers 0..high."""

    def read(value: object, name: str) -> np.ndarray:
        values = items(value, name)
        # By types and extremes first: a column may have millions of entries, and only a bad one is
        # looked for entry by entry. True and False are ints, but not of that type.
        if not set(map(type, values)) <= {int}:
            i = next(i for i, item in enumerate(values) if not _is_whole(item))
            raise FormatError(f"{name}[{i}] must be an integer, got {glimpse(values[i])}")
        if values and (min(values) < 0 or max(values) > high):
            i = next(i for i, item in enumerate(values) if not 0 <= item <= high)
            raise FormatError(
                f"{name}[{i}] must be an integer from 0 to {high}, got {glimpse(values[i])}"
            )
        return np.asarray(values, dtype)

    return read


def number(value: object, name: str) -> float:
    """A finite float."""
    if type(value) not in (int, float):
        raise FormatError(f"{name} must be a number, got {glimpse(value)}")
    try:
        read = float(value)  # type: ignore[arg-type]
    except OverflowError:
        read = math.inf
    if not math.isfinite(read):
        raise FormatError(f"{name} must be a finite number, got {glimpse(value)}")
    return read


def rational(value: object, name: str) -> float | Fraction:
    """A finite float, or the exact rational of a string "p/q"."""
    if not isinstance(value, str):
        return number(value, name)
    match = _RATIONAL.fullmatch(value)
    if match is None or int(match[2]) == 0:
        raise FormatError(
            f'{name} must be a number or a string "p/q" of at most {_MAX_DIGITS} digits each, '
            f"got {glimpse(value)}"
        )
    return Fraction(int(match[1]), int(match[2]))


def encode_rational(value: Fraction) -> str:
    """A rational as the string that ``rational`` reads."""
    if max(value.numerator, value.denominator) > LARGEST:
        raise FormatError(f"a number of more than {_MAX_DIGITS} digits cannot be written")
    return f"{value.numerator}/{value.denominator}"


def exactly(name: str) -> Callable[[object, str], None]:
    """Reads nothing but one string."""

    def read(value: object, where: str) -> None:
        if value != name:
            raise FormatError(f"{where} must be {name!r}, got {glimpse(value)}")

    return read


# ---------------------------------------------------------------------- free-form values


def encode(value: object, where: str, depth: int = 0) -> object:
    """A provenance value in JSON's terms; tuples and arrays as lists, rationals as an object."""
    # Refused when it is written, too: no file is written that cannot be read.
    if depth > _MAX_DEPTH:
        raise FormatError(f"{where} is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and abs(value) <= LARGEST:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Fraction):
        return {_FRACTION_KEY: ("-" if value < 0 else "") + encode_rational(abs(value))}
    if isinstance(value, (list, tuple)):
        return [encode(item, within(where, i), depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        if set(value) == {_FRACTION_KEY}:
            raise FormatError(
                f"{where}: a mapping with the key {_FRACTION_KEY!r} alone stands for a rational "
                "number; name the key otherwise"
            )
        return {key: encode(item, within(where, key), depth + 1) for key, item in value.items()}
    raise FormatError(
        f"{where} is {glimpse(value)} of type {type(value).__name__}; only finite numbers, "
        f"strings, booleans, None, and lists and string-keyed mappings of these can be written"
    )


def decode(value: object, where: str, depth: int = 0) -> object:
    """The value that ``encode`` has encoded; lists come back as tuples."""
    if depth > _MAX_DEPTH:
        raise FormatError(f"{where} is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, float):
        return number(value, where)
    if isinstance(value, list):
        return tuple(decode(item, within(where, i), depth + 1) for i, item in enumerate(value))
    if isinstance(value, dict) and set(value) == {_FRACTION_KEY}:
        written = text(value[_FRACTION_KEY], where)
        return (-1 if written.startswith("-") else 1) * Fraction(
            rational(written.removeprefix("-"), where)
        )
    if isinstance(value, dict):
        return {key: decode(item, within(where, key), depth + 1) for key, item in value.items()}
    return value


def decode_object(value: object, where: str) -> dict:
    """An object of such values."""
    items_of = json_object(value, where).items()
    return {key: decode(item, within(where, key), 1) for key, item in items_of}
