"""Input and output of commands: sizes, times and bandwidths with units; tables; JSON.

"256KiB", "0.5us" and "50GB/s" are read exactly: "0.1us" is the decimal number. A number without a
unit is in bytes, seconds or bytes per second. "25MB" has 25 million bytes, "25MiB" 25 times 2^20. B
is bytes and b is bits, as networks are sold: "400Gb/s" is "50GB/s". If another unit may have been
meant, a line on stderr says which one was read. Tables on stdout grow by a row as soon as it is
computed.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import click

from jaxcoll.progress import wipe

_NUMBER = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", re.I)

_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {f"{letter}I": 2 ** (10 * (i + 1)) for i, letter in enumerate("KMGT")}
_PREFIXES = {"": 1, **_DECIMAL, **_BINARY}

# What a user may have left out after a prefix, for suggestions.
_ENDS = ("iB", "B", "B/s", "b/s", "s", "in")
# Only the letter b distinguishes bits from bytes by its case. The groups are the prefix, bytes or
# bits, "/s".
_DATA = re.compile(r"((?:[KMGT]I?)?)(B|BITS?)(/S|PS)?", re.I)
# The strict spelling, which has only one meaning.
_CLEAR = re.compile(r"([kKMGT]|[kKMGT]i)?(B(/s|ps)?|bits?(/s)?)")
_TIMES = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_DURATIONS = {**_TIMES, "min": Fraction(60), "h": Fraction(3600)}


def _seconds(unit: str) -> Fraction | None:
    # The micro sign and the Greek letter mu look the same.
    return _TIMES.get(unit.replace("\u00b5", "u").replace("\u03bc", "u").lower())


def _duration(unit: str) -> Fraction | None:
    return _DURATIONS.get(unit.lower()) or _seconds(unit)


def _bytes(unit: str) -> Fraction | None:
    found = _DATA.fullmatch(unit)
    if found is None or found[3]:
        return None
    # "gib" in lower case is a hasty GiB: gibibits are not in use.
    return _scale(found[1], found[2] != "B" and unit not in ("kib", "mib", "gib", "tib"))


def _bytes_per_second(unit: str) -> Fraction | None:
    found = _DATA.fullmatch(unit)
    return _scale(found[1], found[2] != "B") if found and found[3] else None


def _scale(prefix: str, is_bits: bool) -> Fraction:
    return Fraction(_PREFIXES[prefix.upper()], 8 if is_bits else 1)


def _parts_of(text: str) -> tuple[str, str]:
    """The digits of a number, "" if there are none, and the rest of the text."""
    text = text.strip()
    found = _NUMBER.match(text)
    return (found[0], text[found.end() :].strip()) if found else ("", text)


class Quantity(click.ParamType):
    """A positive number with a unit: a whole number if possible, otherwise a float.

    Args:
        scale: returns the size of a unit in bytes, seconds or bytes per second; ``None`` if the
            unit is unknown.
        written: writes a number exactly, in the unit that people use.
        units: the accepted units, for error messages.
    """

    def __init__(
        self,
        name: str,
        scale: Callable[[str], Fraction | None],
        written: Callable[[Fraction], str],
        units: str,
        *,
        zero: bool,
    ):
        self.name, self._scale, self.written = name, scale, written
        self._units, self._zero = units, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        try:
            number = self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        unit = _parts_of(value)[1]
        if _DATA.fullmatch(unit) and not _CLEAR.fullmatch(unit):
            click.echo(f"{self.name} {value.strip()}: {self.written(number)}", err=True)
        return int(number) if number.denominator == 1 else float(number)

    def read(self, text: str) -> Fraction:
        """The number that a text states, exactly, in bytes, seconds or bytes per second.

        Raises:
            ValueError: the text is not such a quantity.
        """
        digits, unit = _parts_of(text)
        scale = self._scale(unit) if unit else Fraction(1)
        if not digits or scale is None:
            # "1G" is 2^30 bytes to nccl-tests and 10^9 to others, so the user is asked.
            near = [digits + unit + end for end in _ENDS if digits and self._scale(unit + end)]
            hint = f"did you mean {' or '.join(near)}?" if near else f"type {self._units}"
            raise ValueError(f"{text[:40]!r} is not a {self.name}; {hint}")
        # A fraction, because 0.1us as a float is not a tenth of a microsecond, and exact bounds
        # would differ.
        number = Fraction(digits) * scale
        if number == 0 and not self._zero:
            raise ValueError(f"a {self.name} must be above 0, got {text[:40]!r}")
        return number


class Quantities(click.ParamType):
    """Several quantities, separated by commas."""

    def __init__(self, one: click.ParamType):
        self.name, self._one = one.name, one

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        return tuple(self._one.convert(part, param, ctx) for part in value.split(","))


def _exactly(number: Fraction, units: Mapping[str, Fraction], between: str) -> str:
    """A number, exactly, in the largest unit that it reaches, or else in the smallest unit."""
    fits = [unit for unit, scale in units.items() if number >= scale]
    unit = max(fits, key=units.__getitem__) if fits else min(units, key=units.__getitem__)
    return f"{_decimal(number / units[unit])}{between}{unit}"


def _decimal(number: Fraction) -> str:
    """All digits of a number, which end because the units here divide by 2 and 5 only."""
    places = 0
    while (number * 10**places).denominator > 1:
        places += 1
    digits = f"{int(number * 10**places):0{places + 1}d}"
    return f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}".rstrip(".")


_WHOLE = {f"{prefix}B": Fraction(scale) for prefix, scale in {"": 1, **_DECIMAL}.items()}
_RATES = {f"{unit}/s": scale for unit, scale in _WHOLE.items()}

SIZE = Quantity(
    "size", _bytes, lambda number: _exactly(number, _WHOLE, " "),
    "256KiB, 25MB or a number of bytes, in B, KB, MB, GB, TB, KiB, MiB, GiB or TiB (bits in Mb, "
    "Mbit, Mibit)", zero=False,
)  # fmt: skip
TIME = Quantity(
    "time", _seconds, lambda number: _exactly(number, _TIMES, " "),
    "0.5us or a number of seconds, in s, ms, us or ns", zero=True,
)  # fmt: skip
BANDWIDTH = Quantity(
    "bandwidth", _bytes_per_second, lambda number: f"{_exactly(number, _RATES, ' ')} per link",
    "50GB/s (bytes: GB/s, GBps, GiB/s) or 400Gbit/s (bits: Gb/s, Gbps, Gbit/s, Gibit/s), with K, "
    "M, G, T or nothing before", zero=False,
)  # fmt: skip
# Durations of work may be minutes, too.
DURATION = Quantity(
    "time", _duration, lambda number: _exactly(number, _TIMES, " "),
    "10s, 2min or a number of seconds, in s, ms, min or h", zero=False,
)  # fmt: skip
SIZES, TIMES, BANDWIDTH_LIST = Quantities(SIZE), Quantities(TIME), Quantities(BANDWIDTH)


def size_text(nbytes: float) -> str:
    """Bytes in the unit that writes them shortest: "256KiB", "25MB"."""
    # The first of equal length: 1024 bytes are 1KiB rather than 1.024KB, and 25 MB are 25MB.
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
    """Commands by name; for a wrong name the nearest one is suggested."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        known = self.list_commands(ctx)
        # Unlike click's "No such command", this names the commands at once.
        if args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise click.UsageError(f"no command is called {args[0][:40]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)


class Table:
    """Rows that are printed one by one, in columns of fixed widths; the first is left-aligned."""

    def __init__(self, widths: Sequence[int]):
        self._widths = widths

    def row(self, *cells: str) -> None:
        # A line of progress on stderr is cleared first, since both appear on one terminal.
        first, *rest = cells
        wipe()
        padded = [cell.rjust(width) for cell, width in zip(rest, self._widths[1:], strict=False)]
        click.echo("  ".join([first.ljust(self._widths[0]), *padded]).rstrip())


def print_json(value: Any) -> None:
    """Print one document to stdout. Infinities and NaN, which JSON lacks, are refused."""
    click.echo(json.dumps(value, indent=1, allow_nan=False))


def tell(as_json: bool, facts: Any, *lines: str) -> int:
    """Print a command's result as JSON or as lines for people, and return the exit code 0."""
    print_json(facts) if as_json else click.echo("\n".join(lines))
    return 0


# Longer than any name of a file.
_LONG_WORD, _LONG_LINE = 300, 3000


def one_line(error: object) -> str:
    """An error's message in one line, whatever it quotes.

    Words longer than any name are cut, and characters that would control a terminal are escaped as
    Python does.
    """
    words = (word if len(word) <= _LONG_WORD else f"{word[:60]}..." for word in str(error).split())
    line = " ".join(words) or type(error).__name__
    line = line if len(line) <= _LONG_LINE else f"{line[:_LONG_LINE]}..."
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
