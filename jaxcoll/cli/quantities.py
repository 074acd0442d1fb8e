"""What commands read and print: sizes, times and bandwidths with their units; tables; JSON.

"256KiB", "0.5us" and "50GB/s" are read exactly: "0.1us" is the decimal number. A number without a
unit is in bytes, seconds or bytes per second. "25MB" has 25 million bytes, "25MiB" 25 times 2^20.
Tables on stdout grow by a row as soon as it is made.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import click

from jaxcoll.progress import wipe

_NUMBER = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", re.I)

_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {f"{letter}I": 2 ** (10 * (i + 1)) for i, letter in enumerate("KMGT")}
_PREFIXES = {"": 1, **_DECIMAL, **_BINARY}

BYTES = {f"{prefix}B": Fraction(scale) for prefix, scale in _PREFIXES.items()}
SECONDS = {
    "S": Fraction(1),
    "MS": Fraction(1, 10**3),
    "US": Fraction(1, 10**6),
    "NS": Fraction(1, 10**9),
}
BANDWIDTHS = {
    **{f"{prefix}B/S": Fraction(scale) for prefix, scale in _PREFIXES.items()},
    **{f"{prefix}BIT/S": Fraction(scale, 8) for prefix, scale in _PREFIXES.items()},
}


class Quantity(click.ParamType):
    """A positive number with a unit, as a whole number where it is one and a float otherwise."""

    def __init__(self, name: str, units: Mapping[str, Fraction], example: str, *, zero: bool):
        self.name, self._units, self._example, self._zero = name, units, example, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        found = _NUMBER.match(value.strip())
        unit = value.strip()[found.end() :].strip() if found else ""
        unit = unit.replace("\u00b5", "u").replace("\u03bc", "u").upper()
        scale = Fraction(1) if not unit else self._units.get(unit)
        if found is None or scale is None:
            self.fail(f"{value[:40]!r} is not a {self.name}; type {self._example}", param, ctx)
        number = Fraction(found[0]) * scale
        if number == 0 and not self._zero:
            self.fail(f"a {self.name} is above 0, got {value[:40]!r}", param, ctx)
        return int(number) if number.denominator == 1 else float(number)


class Quantities(click.ParamType):
    """Several of a quantity, separated by commas."""

    def __init__(self, one: Quantity):
        self.name, self._one = one.name, one

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        return tuple(self._one.convert(part, param, ctx) for part in value.split(","))


SIZE = Quantity("size", BYTES, "256KiB, 25MB or a number of bytes", zero=False)
TIME = Quantity("time", SECONDS, "0.5us or a number of seconds", zero=True)
BANDWIDTH = Quantity("bandwidth", BANDWIDTHS, "50GB/s or 400Gbit/s", zero=False)
SIZES, TIMES, BANDWIDTH_LIST = Quantities(SIZE), Quantities(TIME), Quantities(BANDWIDTH)


def size_text(nbytes: float) -> str:
    """Bytes in the unit that writes them shortest: "256KiB", "25MB"."""
    units = [*_BINARY.items(), *_DECIMAL.items(), ("", 1)]
    written = [
        f"{nbytes / scale:.4g}{unit.replace('I', 'i')}B"
        for unit, scale in units
        if nbytes >= scale or scale == 1
    ]
    return min(written, key=len)


def time_text(seconds: float) -> str:
    """Seconds with up to four digits: "8.61 us"."""
    if seconds < 1e-7:
        return f"{seconds / 1e-9:.4g} ns"
    if seconds < 1e-3:
        return f"{seconds / 1e-6:.4g} us"
    return f"{seconds / 1e-3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def bandwidth_text(per_second: float) -> str:
    """Bytes per second in GB/s."""
    return f"{per_second / 1e9:.4g} GB/s"


class Group(click.Group):
    """Commands by name; a wrong name is told the nearest one."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise click.UsageError(f"no command is called {args[0][:40]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)


class Table:
    """Rows that are printed as they come, in columns of fixed widths; the first is left-aligned."""

    def __init__(self, widths: Sequence[int]):
        self._widths = widths

    def row(self, *cells: str) -> None:
        first, *rest = cells
        wipe()
        padded = [cell.rjust(width) for cell, width in zip(rest, self._widths[1:], strict=False)]
        click.echo("  ".join([first.ljust(self._widths[0]), *padded]).rstrip())


def print_json(value: Any) -> None:
    """One document on stdout. Infinities and NaN, which JSON has not, are refused."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def one_line(error: object) -> str:
    """An error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
