"""JSON that is not trusted: every irregularity is refused, and fields have checked types."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from jaxcoll.prove.answers import NotRead, quoted

Reader = Callable[[object, str], Any]


def parsed(text: str) -> dict:
    """The JSON object of a text, without repeated keys, and with finite numbers."""

    def once(pairs: list) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise NotRead("an object repeats a key")
        return found

    def refuse(name: str) -> None:
        raise NotRead(f"{name} is not a number of JSON")

    def finite(written: str) -> float:
        if not math.isfinite(float(written)):
            raise NotRead(f"{quoted(written)} is larger than any float")
        return float(written)

    try:
        # Python accepts repeated keys (the last counts), NaN, and numbers of any length. Other
        # parsers do not, and a proof for one reading says nothing about another.
        fields = json.loads(text, object_pairs_hook=once, parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise NotRead("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NotRead(f"not JSON, or cut short: {error}"[:200]) from None
    except NotRead:
        raise
    except ValueError:
        raise NotRead("a number has more digits than are read") from None
    if not isinstance(fields, dict):
        raise NotRead("not a JSON object")
    return fields


def said(value: object, name: str, asked: dict[str, Reader], /, **default: Any) -> dict[str, Any]:
    """The values of an object's fields, by their readers; other fields are refused.

    Args:
        default: values of fields that may be absent.
    """
    if not isinstance(value, dict):
        raise NotRead(f'"{name}" must be an object, got {quoted(value)}')
    for key in value:
        if key not in asked:
            raise NotRead(f'"{name}" has no field {quoted(key)}')
    for key in asked:
        if key not in value and key not in default:
            raise NotRead(f'"{key}" of "{name}" is missing')
    return {key: read(value[key], key) if key in value else default[key]
            for key, read in asked.items()}  # fmt: skip


def integer(least: int, most: int) -> Reader:
    """A reader of an integer between bounds."""

    def read(value: object, name: str) -> int:
        if type(value) is not int or not least <= value <= most:
            limits = f"{quoted(least)} to {quoted(most)}"
            raise NotRead(f'"{name}" must be an integer from {limits}, got {quoted(value)}')
        return value

    return read


def of_type(kind: type, called: str) -> Reader:
    """A reader of a value of a JSON type."""

    def read(value: object, name: str) -> Any:
        if type(value) is not kind:
            raise NotRead(f'"{name}" must be {called}, got {quoted(value)}')
        return value

    return read


text, flag, items = of_type(str, "a text"), of_type(bool, "true or false"), of_type(list, "a list")


def exactly(wanted: str) -> Reader:
    """A reader that accepts one text only."""

    def read(value: object, name: str) -> None:
        if value != wanted:
            raise NotRead(f'"{name}" must be "{wanted}", got {quoted(value)}')

    return read


def optional(read: Reader) -> Reader:
    """A reader that accepts null, too."""
    return lambda value, name: None if value is None else read(value, name)


def list_of(read: Reader) -> Reader:
    """A reader of a list whose items another reader reads."""
    return lambda value, name: [
        read(item, f"{name}[{i}]") for i, item in enumerate(items(value, name))
    ]


def integers(least: int, most: int) -> Reader:
    """A reader of a list of integers between bounds."""
    one_by_one = list_of(integer(least, most))

    def read(value: object, name: str) -> list[int]:
        # A column may have millions of items, which are read one by one only if one of them is bad.
        found = items(value, name)
        is_good = set(map(type, found)) <= {int} and least <= min(found, default=least)
        return found if is_good and max(found, default=least) <= most else one_by_one(value, name)

    return read


def number(value: object, name: str) -> float:
    """Read a finite number."""
    try:
        if type(value) in (int, float) and math.isfinite(value):  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
    except OverflowError:  # an integer beyond the range of floats
        pass
    raise NotRead(f'"{name}" must be a finite number, got {quoted(value)}')


def whole(fields: object, key: str, least: int, most: int) -> int:
    """An integer field of an object, between bounds."""
    return integer(least, most)(fields.get(key) if isinstance(fields, dict) else None, key)


def column(fields: object, key: str, least: int, most: int) -> list[int]:
    """A field of an object that is a list of integers between bounds."""
    return integers(least, most)(fields.get(key) if isinstance(fields, dict) else None, key)
