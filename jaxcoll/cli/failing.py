"""The options for failed parts of a network: ``--without``, ``--slow`` and ``--in-network``.

They name parts as these appear in a picture of the network. A wire is "0-1" (both ways), a link
"0->1" (quoted in a shell), a rank "5", a host "host 1", a switch "rail 2". Ends of wires may also
have names: "host 0 rank 3-network". All numbers are those of the whole network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import click

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
            f"nothing stands between two commas; {FAILURES} take parts such as 0-1,5"
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
        raise click.UsageError(
            f"{text[:60]!r} names one end of a link only; type 0-1, or '0->1' for one way"
        )
    if one_way:
        return [ends]
    # "0-1" is also the name of a link that leads one way only; named ends always have a link back.
    is_named = any(isinstance(end, str) for end in ends)
    has_back = is_named or ((network.src == ends[1]) & (network.dst == ends[0])).any()
    return [ends, ends[::-1]] if has_back else [ends]


def _factor(text: str, factor: str) -> Fraction:
    found = _FACTOR.fullmatch(factor)
    if found is None or "=" not in text or (found[2] and int(found[2]) == 0):
        raise click.UsageError(f"{text[:60]!r} names no factor; type --slow 0-1=0.5, =1/2 or =50%")
    number = Fraction(found[1]) / (int(found[2]) if found[2] else 1)
    return number / 100 if found[3] else number
