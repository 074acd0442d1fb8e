"""``--without`` and ``--slow``: a network less what failed, said in the words of its picture.

A wire is "0-1" (both ways), a link "0->1" (quoted in a shell), a rank "5", a host "host 1", a
switch "rail 2". Ends of wires may have names too: "host 0 rank 3-network". All numbers are those of
the whole network.
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


def failure_options(command: Command) -> Command:
    """The options --without and --slow; the command gets ``without`` and ``slow``."""
    for decorate in (
        click.option(
            "--slow", multiple=True, metavar="WHAT=FACTOR",
            help="Other speeds: 0-1=0.5, 'rail 2=1/2'.",
        ),
        click.option(
            "--without", multiple=True, metavar="WHAT",
            help="Down: 0-1, '0->1', 5, 'host 1', 'rail 2'.",
        ),
    ):  # fmt: skip
        command = decorate(command)
    return command


def after_failures(network, without: Sequence[str], slow: Sequence[str]):
    """The network that is left.

    Raises:
        click.UsageError: words that say neither a wire nor a rank, or no factor.
        TopologyError: the library's refusal.
    """
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
        elif _has_rank(network, text):
            ranks.append(_vertex(text))
        else:
            switches.append(_vertex(text))
    # ``without`` gives ranks other numbers, so speeds come first.
    left = network.scaled(factors) if factors else network
    return left.without(links, ranks, switches) if without else left


def _parts(texts: Iterable[str]) -> list[str]:
    parts = [part.strip() for text in texts for part in text.split(",")]
    if "" in parts:
        raise click.UsageError("between two commas there is nothing; type --without 0-1,5")
    return parts


def _vertex(text: str) -> int | str:
    return int(text[:9]) if text.isdecimal() else text


def _is_wire(network, text: str) -> bool:
    return "-" in text and text not in network.vertex_names


def _has_rank(network, text: str) -> bool:
    """Whether a rank or host is meant, and not a switch; so is what does not exist."""
    vertices = range(network.num_ranks, network.num_vertices)
    if text.isdecimal():
        return int(text[:9]) not in vertices
    return text not in [network.vertex_names[v] for v in vertices if network.vertex_names]


def _links_of(network, text: str) -> list[Any]:
    """The links of a wire, of a link one way, or all at a vertex or host, as the library's keys."""
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
    back = (ends[1], ends[0])
    return [ends, back] if _has_link(network, back) else [ends]


def _has_link(network, ends: Ends) -> bool:
    """Whether there is a link back; ends with names always have one."""
    numbers = [end for end in ends if isinstance(end, int)]
    return len(numbers) < 2 or bool(
        ((network.src == numbers[0]) & (network.dst == numbers[1])).any()
    )


def _factor(text: str, factor: str) -> Fraction:
    found = _FACTOR.fullmatch(factor)
    if found is None or "=" not in text or (found[2] and int(found[2]) == 0):
        raise click.UsageError(f"{text[:60]!r} says no factor; type --slow 0-1=0.5, =1/2 or =50%")
    number = Fraction(found[1]) / (int(found[2]) if found[2] else 1)
    return number / 100 if found[3] else number
