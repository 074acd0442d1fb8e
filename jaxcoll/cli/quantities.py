"""Input and output of commands: sizes, times and bandwidths with units; tables; JSON.

"256KiB", "0.5us" and "50GB/s" are read exactly: "0.1us" is the decimal number. A number without a
unit is in bytes, seconds or bytes per second. "25MB" has 25 million bytes, "25MiB" 25 times 2^20. B
is bytes and b is bits, as networks are sold: "400Gb/s" is "50GB/s". If another unit may have been
meant, a line on stderr says which one was read. Tables on stdout grow by a row as soon as it is
computed.

``--without`` and ``--slow`` name failed parts as they appear in a picture of the network. A wire is
"0-1" (both ways), a link "0->1" (quoted in a shell), a rank "5", a host "host 1", a switch "rail
2". Ends of wires may also have names: "host 0 rank 3-network". All numbers are those of the whole
network.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import click

from jaxcoll.progress import wipe

_NUMBER = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?|\.[0-9]{1,30})(e[+-]?[0-9]{1,2})?", re.I)

_DECIMAL = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {f"{letter}I": 2 ** (10 * (i + 1)) for i, letter in enumerate("KMGT")}
_PREFIXES = {"": 1, **_DECIMAL, **_BINARY}

# Endings that may be missing after a prefix.
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
            raise ValueError(f"a {self.name} is above 0, got {text[:40]!r}")
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


_FACTOR = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(?:/([0-9]{1,12})|(%))?")

Ends = tuple[int | str, int | str]
Command = TypeVar("Command", bound=Callable[..., Any])


FAILURES = "--without, --slow and --in-network"


def failure_options(command: Command) -> Command:
    """The options --without, --slow and --in-network; the command gets them by these names."""
    for decorate in (
        click.option(
            "--in-network", metavar="SWITCHES",
            help="Switches that copy and add: all, none, names.",
        ),
        click.option(
            "--slow", multiple=True, metavar="WHAT=FACTOR",
            help="Slower parts: 0-1=0.5, 'rail 2=1/2'.",
        ),
        click.option(
            "--without", multiple=True, metavar="WHAT",
            help="Failed: 0-1, '0->1', 5, 'host 1', 'rail 2'.",
        ),
    ):  # fmt: skip
        command = decorate(command)
    return command


def after_failures(
    network, without: Sequence[str], slow: Sequence[str], in_network: str | None = None
):
    """The network without its failed parts, whose switches copy and add as stated.

    Raises:
        click.UsageError: a word is not a wire or rank, or has no factor.
        TopologyError: the library refuses the failures.
    """
    if in_network is not None:
        known = {"all": True, "none": False}
        able = known.get(in_network)
        if able is None:
            able = [_vertex(text) for text in _parts([in_network])]
        network = network.with_in_network(able, able)
    # Several words may name one link, such as a host and its switch: their factors multiply.
    factors: dict[Any, Fraction] = {}
    for text in _parts(slow):
        what, _, factor = text.rpartition("=")
        for link in _links_of(network, what.strip()):
            factors[link] = factors.get(link, Fraction(1)) * _factor(text, factor.strip())
    links: list[Ends] = []
    ranks: list[int | str] = []
    switches: list[int | str] = []
    for text in _parts(without):
        if _is_wire(network, text):
            links += _links_of(network, text)
        else:
            # A number is a host or rank, unless a switch is meant; the library refuses unknown
            # ones.
            behind = range(network.num_ranks, network.num_vertices)
            names = [network.vertex_names[v] for v in behind if network.vertex_names]
            is_switch = int(text[:9]) in behind if text.isdecimal() else text in names
            (switches if is_switch else ranks).append(_vertex(text))
    # ``without`` renumbers the ranks, so speeds come first.
    left = network.scaled(factors) if factors else network
    return left.without(links, ranks, switches) if without else left


def _parts(texts: Iterable[str]) -> list[str]:
    """The parts between commas, from all of these options."""
    parts = [part.strip() for text in texts for part in text.split(",")]
    if "" in parts:
        raise click.UsageError(
            f"between two commas there is nothing; {FAILURES} take parts as 0-1,5"
        )
    return parts


def _vertex(text: str) -> int | str:
    # At most nine digits: Python refuses to read thousands of digits, with an error of its own.
    return int(text[:9]) if text.isdecimal() else text


def _is_wire(network, text: str) -> bool:
    return "-" in text and text not in network.vertex_names


def _links_of(network, text: str) -> list[Any]:
    """The library's keys for a wire, a one-way link, or all links of a vertex or host."""
    if not _is_wire(network, text):
        if not text.isdecimal():
            return [text]
        at = int(text[:9])
        pairs = zip(network.src.tolist(), network.dst.tolist(), strict=True)
        found = [pair for pair in dict.fromkeys(pairs) if at in pair]
        if not found:
            raise click.UsageError(f"the network has no vertex {text[:40]}")
        return found
    one_way = "->" in text
    u, _, v = text.partition("->" if one_way else "-")
    ends: Ends = (_vertex(u.strip()), _vertex(v.strip()))
    if "" in ends:
        raise click.UsageError(f"{text[:60]!r} has one end; type 0-1, or '0->1' for one way")
    if one_way:
        return [ends]
    # "0-1" is also the name of a link that leads one way only; named ends always have a link back.
    is_named = any(isinstance(end, str) for end in ends)
    has_back = is_named or ((network.src == ends[1]) & (network.dst == ends[0])).any()
    return [ends, ends[::-1]] if has_back else [ends]


def _factor(text: str, factor: str) -> Fraction:
    found = _FACTOR.fullmatch(factor)
    if found is None or "=" not in text or (found[2] and int(found[2]) == 0):
        raise click.UsageError(f"{text[:60]!r} says no factor; type --slow 0-1=0.5, =1/2 or =50%")
    number = Fraction(found[1]) / (int(found[2]) if found[2] else 1)
    return number / 100 if found[3] else number
