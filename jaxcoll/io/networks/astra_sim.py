"""ASTRA-sim's analytical network: dimensions of rings, fully connected ranks and switches.

There are four lists of equal lengths, with an entry per dimension; the first runs fastest::

    topology: [ Ring, Switch ]
    npus_count: [ 4, 2 ]
    bandwidth: [ 50.0, 25.0 ]  # of a link; "GB/s" is 2^30 B/s
    latency: [ 500.0, 2000.0 ]  # ns

The unit of its bandwidth is 2^30 bytes per second, although it is called GB/s there. A hop through
a switch has twice the latency of a link. Rings are bidirectional.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from jaxcoll.errors import FormatError, shown
from jaxcoll.io.files import load_text
from jaxcoll.numerics import checks
from jaxcoll.topologies import fully_connected, product, ring, switch
from jaxcoll.topology import Topology

MAX_BYTES = 2**16
_MAKERS: dict[str, Callable[..., Topology]] = {
    "ring": ring, "fullyconnected": fully_connected, "switch": switch,
}  # fmt: skip
_LINE = re.compile(r"([a-z_-]+):\s*\[([^\[\]]*)\]\s*")
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_MOST_DIMENSIONS, _MOST_RANKS = 8, 2**16


def loads(text: str) -> Topology:
    """The network of a file's text.

    Raises:
        FormatError: a key is missing, repeated or unknown, lists have unequal lengths, or numbers
            are out of range; the error names the line.
    """
    # Line by line, without a YAML parser: four lists of words and numbers need no package.
    found: dict[str, list[str]] = {}
    for number, raw in enumerate(checks.text(text, "text", FormatError).splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[1] not in _KEYS or match[1] in found:
            raise FormatError(
                f"line {number}: expected one of {', '.join(_KEYS)}, once, as KEY: [ A, B ], got "
                f"{shown(line)}"
            )
        found[match[1]] = [word.strip().strip("\"'") for word in match[2].split(",")]
    lacks = [key for key in _KEYS if key not in found]
    lengths = {key: len(values) for key, values in found.items()}
    if lacks or len(set(lengths.values())) != 1 or lengths["topology"] > _MOST_DIMENSIONS:
        raise FormatError(
            f"expected {', '.join(_KEYS)}, of one length to {_MOST_DIMENSIONS}, got {lengths}"
        )
    parts, size = [], 1
    for kind, count, speed, delay in zip(*(found[key] for key in _KEYS), strict=True):
        if kind.lower() not in _MAKERS:
            raise FormatError(f"topology must be Ring, FullyConnected or Switch, got {shown(kind)}")
        ranks = int(_number(count, "npus_count", 2, _MOST_RANKS))
        size *= ranks
        # Links of a full connection grow with the square: 2^11 ranks have four million.
        if size > _MOST_RANKS or (kind.lower() == "fullyconnected" and ranks > 2**11):
            raise FormatError(
                f"npus_count makes {size} ranks; at most {_MOST_RANKS} are read, and 2048 of "
                "one full connection"
            )
        # Its bw_GBps_to_Bpns multiplies by 2^30.
        gibibytes = _number(speed, "bandwidth", 1e-6, 1e9)
        nanoseconds = _number(delay, "latency", 0, 1e12)
        parts.append(
            _MAKERS[kind.lower()](ranks, alpha=nanoseconds * 1e-9, bandwidth=gibibytes * 2**30)
        )
    # The library's last dimension runs fastest, but ASTRA-sim's first.
    return parts[0] if len(parts) == 1 else product(*reversed(parts))


def _number(text: str, key: str, least: float, most: float) -> float:
    is_number = re.fullmatch(r"[0-9]{1,15}(\.[0-9]{1,15})?", text, re.ASCII)
    if not is_number or not least <= float(text) <= most:
        raise FormatError(f"{key} must be a number from {least:g} to {most:g}, got {shown(text)}")
    if key == "npus_count" and "." in text:
        raise FormatError(f"npus_count must be an integer, got {shown(text)}")
    return float(text)


def load(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)
