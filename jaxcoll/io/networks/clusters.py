"""Clusters: hosts on a network of switches, from files that do not describe the inside of hosts.

Schedulers and fabrics know hosts by name and the switches that they are plugged into. The GPUs of a
host are given as SLURM writes them, ``h100:8``, and linked as ``jaxcoll.device_kinds`` links their
kind; without them a host is a rank.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Sequence

from jaxcoll.device_kinds import DEVICE_KINDS, DeviceKind, words_of
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.io.networks.link_types import NETWORK_ALPHA, PCIE_ALPHA, Wire, wired
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import components
from jaxcoll.topology import Topology

MOST_HOSTS, MOST_SWITCHES = 2**14, 2**14
_MOST_RANKS, _MOST_WIRES = 2**16, 2**20
_MOST_PIECES = 17  # of an expression: eight pairs of brackets, and the text between them
SWITCH_ALPHA = 0.5e-6  # between two switches: the port-to-port latency of one, and a cable
NETWORK = 50e9  # speed of a port that is not stated: 400 Gbit/s

# GPUs of a host by the words of their kind, if there are not eight.
_COUNTS = {"gb300": 4, "gb200": 4, "gh200": 1, "gb10": 1, "mi300a": 4}
_GPU = re.compile(r"(?:gpu:)?([a-z0-9 ._-]{1,40}?)(?::([0-9]{1,9}))?", re.IGNORECASE)
_MOST_GPUS = 256  # of a host; more than any has


@dataclasses.dataclass(frozen=True)
class Port:
    """A host's port: the numbers of the host and of the switch, and bytes per second each way."""

    host: int
    switch: int
    name: str
    speed: float


@dataclasses.dataclass(frozen=True)
class Fabric:
    """Hosts and switches.

    Attributes:
        hosts: their names.
        switches: their names.
        ports: the ports in the order in which they are assigned to a host's GPUs.
        trunks: pairs of switches, with bytes per second each way.
        racks: the rack of each host; one NVLink switch may join its GPUs; None if racks are
            unknown.
    """

    hosts: Sequence[str]
    switches: Sequence[str]
    ports: Sequence[Port]
    trunks: Sequence[tuple[int, int, float]]
    racks: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Gpus:
    """The GPUs of every host; ``kind`` is None for hosts that are ranks."""

    kind: DeviceKind | None = None
    count: int = 1

    @property
    def network(self) -> float:
        """Bytes per second of a port that is not stated."""
        return NETWORK if self.kind is None else self.kind.network_bandwidth


def gpus_of(gpu: object) -> Gpus:
    """The GPUs of ``h100:8``, ``gpu:h100:8`` or ``h100``; None for hosts that are ranks.

    Raises:
        TopologyError: the text has another form, or ``jaxcoll.device_kinds`` lacks the kind.
    """
    if gpu is None:
        return Gpus()
    found = _GPU.fullmatch(checks.text(gpu, "gpu", TopologyError))
    words = words_of(found[1]) if found else frozenset()
    known = [kind for kind in DEVICE_KINDS if kind.wiring != "grid" and kind.match != "cpu"]
    kind = next((each for each in known if words_of(each.match) <= words), None)
    if found is None:
        raise TopologyError(
            f"gpu must be a kind of GPU and how many a host has, as h100:8 or mi300x:8; got "
            f"{shown(gpu)}"
        )
    if kind is None:
        near = difflib.get_close_matches(found[1].lower(), [each.match for each in known], n=1)
        raise TopologyError(
            f"no GPU is called {shown(found[1])}; {f'did you mean {near[0]}? ' if near else ''}"
            "the table of jaxcoll.device_kinds has all, as h100, b200, gb200, l40s or mi300x"
        )
    count = int(found[2]) if found[2] else _COUNTS.get(kind.match, 8)
    if not 1 <= count <= _MOST_GPUS:
        raise TopologyError(f"a host has 1 to {_MOST_GPUS} GPUs, got {shown(gpu)}")
    return Gpus(kind, count)


def hosts_named(text: str, most: int = MOST_HOSTS) -> list[str]:
    """The names in a list of SLURM's, ``gpu[01-03,7],login1``, in its order.

    Raises:
        FormatError: brackets do not close, ranges run backwards, or there are more than ``most``.
    """
    names: list[str] = []
    for part in _parts(text):
        # An expression has several pairs of brackets, as rack[1-2]node[01-16].
        found = [""]
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        # With more pieces, the names would grow with the square of the file.
        is_one = part and len(pieces) <= _MOST_PIECES
        if not is_one or any(bracket in piece for piece in pieces for bracket in "[]"):
            raise FormatError(f"expected a list of names such as gpu[01-16,20], got {shown(text)}")
        for i, piece in enumerate(pieces):
            inner = _numbers(piece, text, most) if i % 2 else [piece]
            if len(found) * len(inner) + len(names) > most:
                raise FormatError(f"{shown(text)} has more than {most} names")
            found = [name + each for name in found for each in inner]
        names += found
    return names


def _parts(text: str) -> list[str]:
    """The expressions of a list; commas inside brackets belong to an expression."""
    parts, start, depth = [], 0, 0
    for mark in re.finditer(r"[\[\],]", text):
        depth += (mark[0] == "[") - (mark[0] == "]")
        if mark[0] == "," and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
    return [*parts, text[start:]]


def _numbers(text: str, whole: str, most: int) -> list[str]:
    """The numbers of ``01-03,7``, with the digits that are written."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part, re.ASCII)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not low <= high or high - low >= most - len(found):
            raise FormatError(
                f"{shown(part)} in {shown(whole)} must be a range of at most {most} numbers, "
                "such as 01-16"
            )
        found += [f"{i:0{len(match[1])}}" for i in range(low, high + 1)]
    return found


def only(fabric: Fabric, nodes: str | None) -> Fabric:
    """The fabric with only the hosts of a list.

    Raises:
        FormatError: the text is not a list, or has a name that the file does not have.
    """
    if nodes is None:
        return fabric
    wanted = hosts_named(checks.text(nodes, "nodes", FormatError))
    place = {name: i for i, name in enumerate(fabric.hosts)}
    lacking = next((name for name in wanted if name not in place), None)
    if lacking is not None or len(set(wanted)) < len(wanted):
        what = "names a host twice" if lacking is None else f"has no host {shown(lacking)}"
        where = "nodes" if lacking is None else "the file"
        raise FormatError(f"{where} {what}; it has {shown(', '.join(fabric.hosts))}")
    kept = [place[name] for name in wanted]
    now = {old: new for new, old in enumerate(kept)}
    ports = [dataclasses.replace(p, host=now[p.host]) for p in fabric.ports if p.host in now]
    racks = None if fabric.racks is None else [fabric.racks[old] for old in kept]
    # Switches that no longer lead to a host are useless, and would only be drawn.
    ends = _used(fabric, {port.switch for port in ports})
    number = {old: new for new, old in enumerate(ends)}
    return Fabric(
        wanted,
        [fabric.switches[s] for s in ends],
        [dataclasses.replace(p, switch=number[p.switch]) for p in ports],
        [(number[a], number[b], v) for a, b, v in fabric.trunks if {a, b} <= number.keys()],
        racks,
    )


def _used(fabric: Fabric, leaves: Collection[int]) -> list[int]:
    """Switches that are not dead ends: those with one trunk and no host are removed in turn."""
    near: dict[int, set[int]] = {s: set() for s in range(len(fabric.switches))}
    for a, b, _ in fabric.trunks:
        near[a].add(b)
        near[b].add(a)
    ends = [s for s, others in near.items() if len(others) <= 1 and s not in leaves]
    while ends:
        s = ends.pop()
        for other in near.pop(s):
            near[other].discard(s)
            if len(near[other]) == 1 and other not in leaves:
                ends.append(other)
    return sorted(near)


# ---------------------------------------------------------------------- the network


def joined(
    fabric: Fabric,
    gpus: Gpus,
    by: str,
    *,
    inside: float | None = None,
    alpha: float | None = None,
    assumed: Sequence[str] = (),
) -> Topology:
    """The network, with a rank per GPU, host by host, or a rank per host.

    A GPU with ports of its own is linked to their switches; GPUs that share a port are linked to
    it, and the port to its switch.

    Args:
        by: the tool that wrote the file.
        inside: bytes per second and direction of a GPU's link inside its host, instead of its
            kind's.
        alpha: seconds between a port and its switch, 5 us when None.
        assumed: the assumptions of the format's reader.

    Warns:
        AssumptionWarning: lists all assumptions in one warning.

    Raises:
        TopologyError: numbers are out of range, there are too many ranks, or hosts are not
            connected.
    """
    for name, value, check in (
        ("inside", inside, checks.positive), ("alpha", alpha, checks.nonnegative),
    ):  # fmt: skip
        checks.optional(value, check, name, TopologyError)
    if gpus.kind is None and inside is not None:
        raise TopologyError(
            "inside= is the speed between the GPUs of a host, and without gpu= a host is "
            "one rank; add gpu=, as in gpu='h100:8'"
        )
    if not 1 <= len(fabric.hosts) * gpus.count <= _MOST_RANKS:
        raise TopologyError(
            f"{len(fabric.hosts)} hosts of {gpus.count} ranks are outside the 1 to "
            f"{_MOST_RANKS} ranks that are read; choose some of the hosts by nodes=, as in "
            "gpu[01-16]"
        )
    builder = _Builder(fabric, gpus, NETWORK_ALPHA if alpha is None else float(alpha))
    builder.inside(inside)
    builder.outside()
    said = [*assumed, *builder.assumed]
    if alpha is None:
        said.append(f"{NETWORK_ALPHA * 1e6:g} us to a switch")
    if said:
        warn_user(f"assumed: {'; '.join(said)}", AssumptionWarning)
    return builder.built(by)


class _Builder:
    """Vertices and wires: ranks, switches of hosts, shared ports, switches of the network."""

    def __init__(self, fabric: Fabric, gpus: Gpus, alpha: float):
        self.fabric, self.gpus, self.alpha = fabric, gpus, alpha
        n = gpus.count
        self.ranks = n * len(fabric.hosts)
        self.names = [
            f"host {host}" if gpus.kind is None else f"host {host} gpu {g}"
            for host in fabric.hosts
            for g in range(n)
        ]
        self.wires: list[Wire] = []
        self.able: list[int] = []
        self.assumed: list[str] = []

    def vertex(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def inside(self, speed: float | None) -> None:
        """Add the links between each host's GPUs, or a rack's."""
        kind, n = self.gpus.kind, self.gpus.count
        if kind is None:
            self.assumed.append("a host is a rank; gpu=, as h100:8, says its GPUs")
            return
        hosts, racks = self.fabric.hosts, self.fabric.racks
        # If racks are unknown, only each host's GPUs are joined, which is the least possible.
        in_racks = kind.spans_hosts and racks is not None
        groups: dict[object, list[int]] = {}
        for h in range(len(hosts)):
            key = racks[h] if in_racks and racks is not None else h
            groups.setdefault(key, []).extend(range(h * n, h * n + n))
        each = kind.bandwidth if speed is None else float(speed)
        for members in groups.values():
            if kind.wiring == "mesh":
                self.wires += [
                    (a, b, kind.alpha, each) for i, a in enumerate(members) for b in members[:i]
                ]
            elif len(members) > 1:
                place = "rack" if in_racks else "host"
                switch = self.vertex(f"{place} {hosts[members[0] // n]} switch")
                self.able += [switch] * kind.nvls
                self.wires += [(g, switch, kind.alpha, each) for g in members]
        if kind.spans_hosts and not in_racks:
            self.assumed.append(f"NVLink of {kind.match} ends at its host")
        if speed is None and n > 1:
            self.assumed.append(f"{each / 1e9:g} GB/s per {kind.match} link inside hosts")

    def outside(self) -> None:
        """Add ports and trunks."""
        first = len(self.names)
        for name in self.fabric.switches:
            self.vertex(name)
        by_host: dict[int, list[Port]] = {}
        for port in self.fabric.ports:
            by_host.setdefault(port.host, []).append(port)
        n = self.gpus.count
        for h, ports in by_host.items():
            # In their order, as GPUs and NICs are numbered: with four ports and eight GPUs each
            # port serves two GPUs; with eight ports and four GPUs each GPU has two ports.
            if len(ports) >= n:
                for i, port in enumerate(ports):
                    rank = h * n + i * n // len(ports)
                    self.wires.append((rank, first + port.switch, self.alpha, port.speed))
                continue
            for i, port in enumerate(ports):
                shared = self.vertex(f"host {self.fabric.hosts[h]} {port.name}")
                self.wires.append((shared, first + port.switch, self.alpha, port.speed))
                self.wires += [(h * n + g, shared, PCIE_ALPHA, port.speed)
                               for g in range(n) if g * len(ports) // n == i]  # fmt: skip
        self.wires += [(first + a, first + b, SWITCH_ALPHA, v) for a, b, v in self.fabric.trunks]
        if n > 1:
            self.assumed.append("GPUs use the ports of their host in turn")

    def built(self, by: str) -> Topology:
        if len(self.wires) > _MOST_WIRES:
            raise TopologyError(
                f"{len(self.wires)} cables are more than the {_MOST_WIRES} that are read"
            )
        ends = [[wire[side] for wire in self.wires] for side in (0, 1)]
        part = components(len(self.names), *ends)
        apart = next((r for r in range(self.ranks) if part[r] != part[0]), None)
        if apart is not None:
            raise TopologyError(
                f"nothing joins {shown(self.names[0])} and {shown(self.names[apart])}, so the "
                "file has two networks; choose the hosts of one by nodes=, as in gpu[01-16]"
            )
        count, kind = len(self.fabric.hosts), self.gpus.kind
        inside = "" if kind is None else f" of {self.gpus.count} {kind.match}"
        name = f"{count} hosts{inside} by {by}"
        return wired(self.ranks, self.names, self.wires, name, self.able)
