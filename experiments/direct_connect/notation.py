"""Topologies in the notation of Tables 3.3 and A.3."""

from __future__ import annotations

import re
from collections.abc import Callable

from experiments.study import ConfigError
from jaxcoll.finder.construction import Construction

_NAMES = {
    "Pi": "generalized_kautz",
    "DBJ": "de_bruijn",
    "DBJMod": "modified_de_bruijn",
    "DistReg": "distance_regular",
    "UniRing": "unidirectional_ring",
    "BiRing": "bidirectional_ring",
    "DC": "dense_circulant",
}


def _hamming(n: int, q: int) -> Construction:
    return Construction("power", (n,), (Construction("complete", (q,)),))


# How bases are written; the groups of a pattern are the arguments.
_BASES: tuple[tuple[re.Pattern, Callable[..., Construction]], ...] = (
    (re.compile("Diamond"), lambda: Construction("diamond")),
    (
        re.compile(r"K(\d+),(\d+)"),
        lambda d, _: Construction("complete_bipartite", (int(d),)),
    ),
    (re.compile(r"K(\d+)"), lambda n: Construction("complete", (int(n),))),
    (re.compile(r"H\((\d+),(\d+)\)"), lambda n, q: _hamming(int(n), int(q))),
    (
        re.compile(r"C\((\d+),\{([\d,]+)\}\)"),
        lambda n, offsets: Construction("circulant", (int(n), _integers(offsets))),
    ),
    (
        re.compile(r"Cay\((\d+),(\d+),(\d+);([\d,]+)\)"),
        lambda *given: Construction("cayley", (*map(int, given[:3]), _integers(given[3]))),
    ),
    (
        re.compile(rf"({'|'.join(sorted(_NAMES, key=len, reverse=True))})\(([\d,]+)\)"),
        lambda name, arguments: Construction(_NAMES[name], _integers(arguments)),
    ),
)
_LINE_GRAPH = re.compile(r"L(?:\^(\d+))?\(")
_TIMES = re.compile(r"([\^*])(\d+)")


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def parse(text: str) -> Construction:
    """A topology from its notation, as in ``L^2(Diamond^2)`` or ``UniRing(1,4) x BiRing(2,8)``.

    ``L^k(G)`` is a line graph, ``G*n`` a degree expansion, ``G^n`` a Cartesian power and
    ``G x H`` a product.

    Raises:
        ConfigError: anything else.
    """
    found, rest = _product(text, text)
    if rest:
        raise _unreadable(text, rest)
    return found


def _product(rest: str, whole: str) -> tuple[Construction, str]:
    part, rest = _factor(rest, whole)
    parts = [part]
    while rest.startswith(" x "):
        part, rest = _factor(rest.removeprefix(" x "), whole)
        parts.append(part)
    return (part if len(parts) == 1 else Construction("product", (), tuple(parts))), rest


def _factor(rest: str, whole: str) -> tuple[Construction, str]:
    found, rest = _operand(rest, whole)
    while times := _TIMES.match(rest):
        operation = {"^": "power", "*": "degree"}[times[1]]
        found = Construction(operation, (int(times[2]),), (found,))
        rest = rest[times.end() :]
    return found, rest


def _operand(rest: str, whole: str) -> tuple[Construction, str]:
    line = _LINE_GRAPH.match(rest)
    if line or rest.startswith("("):
        inner, rest = _product(rest[line.end() if line else 1 :], whole)
        if not rest.startswith(")"):
            raise _unreadable(whole, rest)
        inner = Construction("line_graph", (int(line[1] or 1),), (inner,)) if line else inner
        return inner, rest[1:]
    for pattern, make in _BASES:
        if base := pattern.match(rest):
            return make(*base.groups()), rest[base.end() :]
    raise _unreadable(whole, rest)


def _unreadable(whole: str, rest: str) -> ConfigError:
    return ConfigError(
        f"cannot read the topology {whole!r} from {rest!r} on; write it like L^2(Diamond^2), "
        f"K3*2, C(16,{{3,4}}) or UniRing(1,4)^2 x BiRing(2,8)"
    )
