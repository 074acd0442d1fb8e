"""Topology files of ns-3 simulators: SimAI's, and those of HPCC and ASTRA-sim.

The first line has counts; the numbers of switches follow, then cables with rate, delay and error
rate::

    8 4 1 2 9 H100            # vertices, GPUs of a server, NVSwitches, switches, cables, kind
    4 5 6
    0 4 2880Gbps 0.000025ms 0

HPCC and ASTRA-sim count only vertices, switches and cables. Vertices that are not switches are
ranks. Cables go both ways. Error rates are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from jaxcoll.errors import AssumptionWarning, FormatError, JaxcollError, shown, warn_user
from jaxcoll.io.files import load_text
from jaxcoll.io.networks.link_types import Wire, wired
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
_MOST_VERTICES, _MOST_CABLES = 2**17, 2**20
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE]-?[0-9]{1,2})?)"
_RATE = re.compile(_NUMBER + r"([KkMGT]?i?)(b|B)(?:ps|/s)", re.ASCII)
_DELAY = re.compile(_NUMBER + r"(s|ms|us|ns|ps)?", re.ASCII)
_PREFIXES: Mapping[str, float] = {
    "": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20,
    "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip
_TIMES: Mapping[str, float] = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9, "ps": 1e12}  # in a second
# A first line of counts; one of the next lines is a cable.
BEGINS = r"\A\s*(?:[0-9]+[ \t]+){2}[0-9]+(?:(?:[ \t]+[0-9]+){2}[ \t]+[A-Za-z]\w*)?[ \t]*\r?\n"


def loads(text: str) -> Topology:
    """The network of a file's text.

    Raises:
        FormatError: the counts do not fit the file, switches or cables are invalid (the error gives
            their number), or ranks do not reach each other.
    """
    head, _, rest = checks.text(text, "text", FormatError).lstrip().partition("\n")
    counts = head.split()
    words = rest.split()
    if len(counts) not in (3, 6):
        raise FormatError(
            "expected a line of three counts (vertices, switches, cables), or of five and the kind "
            f"of GPU as SimAI has them, got {shown(head)}"
        )
    numbers = [_whole(word, "the first line", _MOST_CABLES) for word in counts[:5]]
    vertices, cables = numbers[0], numbers[-1] if len(counts) == 6 else numbers[2]
    per_host, nvswitches = (numbers[1], numbers[2]) if len(counts) == 6 else (0, 0)
    switches = nvswitches + (numbers[3] if len(counts) == 6 else numbers[1])
    if not switches < vertices <= _MOST_VERTICES:
        raise FormatError(
            f"{vertices} vertices of which {switches} are switches: expected fewer switches, and "
            f"at most {_MOST_VERTICES} vertices"
        )
    width, left = divmod(len(words) - switches, max(cables, 1))
    if left or (cables and width not in (4, 5)):
        raise FormatError(
            f"{switches} switches and {cables} cables of src dst rate delay error are "
            f"{switches + 5 * cables} words, got {len(words)}"
        )
    order = _order(words[:switches], vertices)
    lines = [words[switches + i * width : switches + (i + 1) * width] for i in range(cables)]
    wires = [_wire(line, i, order) for i, line in enumerate(lines, 1)]
    if any(len(line) == 5 and line[4].strip("0.") for line in lines):
        warn_user("error rates of cables are passed over", AssumptionWarning)
    ranks = vertices - switches
    names = _names(ranks, switches, nvswitches, per_host)
    try:
        return wired(ranks, names, wires, f"{ranks} ranks by ns-3")
    except JaxcollError as error:
        raise FormatError(f"the network is refused: {error}") from error


def load(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)


def _whole(word: str, where: str, most: int) -> int:
    if not _WHOLE.fullmatch(word) or int(word) > most:
        raise FormatError(f"{where}: expected an integer from 0 to {most}, got {shown(word)}")
    return int(word)


def _order(words: Sequence[str], vertices: int) -> list[int]:
    """The number here of each vertex of the file; ranks come first."""
    switches = [_whole(word, "the second line", vertices - 1) for word in words]
    if len(set(switches)) < len(switches):
        raise FormatError("the second line: a switch is given twice")
    order = [-1] * vertices
    ranks = vertices - len(switches)
    for i, switch in enumerate(switches):
        order[switch] = ranks + i
    free = iter(range(ranks))
    return [next(free) if number < 0 else number for number in order]


def _names(ranks: int, switches: int, nvswitches: int, per_host: int) -> list[str]:
    names = [
        f"host {r // per_host} gpu {r % per_host}" if per_host else f"rank {r}"
        for r in range(ranks)
    ]
    names += [f"NVSwitch {s}" for s in range(nvswitches)]
    return names + [f"switch {s}" for s in range(switches - nvswitches)]


def _wire(words: Sequence[str], number: int, order: Sequence[int]) -> Wire:
    where = f"cable {number}"
    a, b = (order[_whole(word, where, len(order) - 1)] for word in words[:2])
    rate, delay = _RATE.fullmatch(words[2]), _DELAY.fullmatch(words[3])
    speed = float(rate[1]) * _PREFIXES.get(rate[2], 0) / (8 if rate[3] == "b" else 1) if rate else 0
    if not 0 < speed < 1e18:
        raise FormatError(f"{where}: expected a rate such as 400Gbps, got {shown(words[2])}")
    seconds = float(delay[1]) / _TIMES[delay[2] or "s"] if delay else -1.0
    if not 0 <= seconds < 1e6:
        raise FormatError(f"{where}: expected a delay such as 0.0005ms, got {shown(words[3])}")
    if a == b:
        raise FormatError(f"{where}: both ends are {shown(words[0])}")
    return a, b, seconds, speed
