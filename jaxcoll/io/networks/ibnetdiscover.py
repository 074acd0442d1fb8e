"""InfiniBand fabrics as ``ibnetdiscover`` prints them: switches, hosts' adapters and their cables.

The print has a paragraph per switch (``Switch``) and adapter (``Ca``), then a line per port: the
node and port at the other end, and after ``#`` width and speed, such as ``4xHDR``. Most cables are
listed at both ends and count once; several between two switches become one link with their sum. An
adapter belongs to the host whose name begins its description. The GPUs of a host are not stated;
they are an argument.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping

from jaxcoll.errors import FormatError, shown
from jaxcoll.io.files import load_text
from jaxcoll.io.networks.clusters import (
    MOST_HOSTS,
    MOST_SWITCHES,
    NETWORK,
    Fabric,
    Port,
    gpus_of,
    joined,
    only,
)
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
# Gbit/s of data per lane, after its line code; from the InfiniBand Trade Association's roadmap.
LANE: Mapping[str, float] = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0,
    "NDR": 100.0, "XDR": 200.0,
}  # fmt: skip
_MOST_CABLES = 2**20
_NODE = re.compile(r'(Switch|Ca|Rt)\s+[0-9]{1,5}\s+"([SHR]-[0-9a-fA-F]{1,16})"\s*(#.*)?')
_PORT = re.compile(
    r'\[([0-9]{1,5})\](?:\[ext [0-9]{1,5}\])?(?:\([0-9a-fA-F]{1,16}\))?\s+'
    r'"([SHR]-[0-9a-fA-F]{1,16})"\[([0-9]{1,5})\](?:\[ext [0-9]{1,5}\])?'
    r'(?:\([0-9a-fA-F]{1,16}\))?\s*(#.*)?'
)  # fmt: skip
_SPEED = re.compile(r"\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_QUOTED = re.compile(r'"([^"]*)"')
# Adapters without a name describe their own model, and those inside switches their function.
_NAMELESS = re.compile(r"MT[0-9]{3,}|Mellanox|ConnectX|localhost|\W*$")
_AGGREGATION = "Aggregation Node"

End = tuple[str, int]  # a node's identifier and a port


def loads(
    text: str,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    alpha: float | None = None,
) -> Topology:
    """The network of a fabric; ranks are GPUs, or hosts if their GPUs are not stated.

    Args:
        text: the output of ``ibnetdiscover``.
        gpu: the GPUs of a host, such as ``h100:8``; without it hosts are ranks.
        nodes: the hosts to take, such as ``gpu[01-16]``; all when None, including those of storage.
        inside: bytes per second and direction of a GPU's link inside its host.
        alpha: seconds between a port and its switch.

    Warns:
        AssumptionWarning: lists everything that neither the print nor an argument states.

    Raises:
        FormatError: there is no adapter, or a line has another form; the error names the line.
        TopologyError: numbers are out of range, there are too many ranks, or no cable reaches a
            host.
    """
    checks.text(text, "text", FormatError)
    stated = gpus_of(gpu)
    read = _Fabric(text)
    fabric = only(read.fabric(), nodes)
    return joined(fabric, stated, "ibnetdiscover", inside=inside, alpha=alpha, assumed=read.assumed)


def load(
    path: str | os.PathLike,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    alpha: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, gpu=gpu, nodes=nodes, inside=inside, alpha=alpha)


class _Fabric:
    """Nodes by identifier with their descriptions, and cables by both ends."""

    def __init__(self, text: str):
        self.described: dict[str, str] = {}
        self.cables: dict[tuple[End, End], float] = {}
        self.assumed: list[str] = []
        node: str | None = None
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("["):
                if node is None:
                    raise FormatError(f"line {number}: a port without a Switch or Ca above it")
                self._add_cable(f"line {number}", node, line)
            elif line.startswith(("Switch", "Ca", "Rt")):
                node = self._add_node(f"line {number}", line)
        if not any(name.startswith("H-") for name in self.described):
            raise FormatError(
                "there is no Ca, the adapter of a host; give all that ibnetdiscover prints"
            )

        self._check_whole()

    def _add_node(self, where: str, line: str) -> str:
        found = _NODE.match(line)
        if found is None:
            raise FormatError(
                f'{where}: expected Switch or Ca, its ports and "S-guid" or "H-guid", got '
                f"{shown(line)}"
            )
        if found[2] in self.described:
            raise FormatError(f"{where}: {found[2]} is given twice")
        quoted = _QUOTED.search(found[3] or "")
        self.described[found[2]] = quoted[1].strip() if quoted else ""
        return found[2]

    def _add_cable(self, where: str, node: str, line: str) -> None:
        found = _PORT.match(line)
        if found is None:
            raise FormatError(f'{where}: expected [port] "node"[port], got {shown(line)}')
        ends: tuple[End, End] = (node, int(found[1])), (found[2], int(found[3]))
        # After the descriptions, which may contain any words.
        speeds = _SPEED.findall((found[4] or "").rpartition('"')[2])
        speed = int(speeds[-1][0]) * LANE[speeds[-1][1]] * 1e9 / 8 if speeds else 0.0
        key = ends if ends[0] < ends[1] else (ends[1], ends[0])
        self.cables[key] = max(self.cables.get(key, 0.0), speed)
        if len(self.cables) > _MOST_CABLES:
            raise FormatError(
                f"{where}: the file has more than the {_MOST_CABLES} cables that are read"
            )

    def _check_whole(self) -> None:
        """Check that every node at the end of a cable has a paragraph, since a print may be cut."""
        for ends in self.cables:
            for node, port in ends:
                if node.startswith(("S-", "H-")) and node not in self.described:
                    (other, _) = ends[0] if ends[1][0] == node else ends[1]
                    raise FormatError(
                        f"{shown(other)} has a cable to {shown(node)} port {port}, which has "
                        "no paragraph of its own; give all that ibnetdiscover prints"
                    )

    def _host(self, node: str) -> str:
        """The host of an adapter: the first word of its description."""
        said = self.described[node]
        if _NAMELESS.match(said):
            return node
        return said.split()[0].strip("'")[:80]

    def fabric(self) -> Fabric:
        """The hosts and switches in the order of the print, with ports by adapter."""
        switches = [node for node in self.described if node.startswith("S-")]
        place = {node: s for s, node in enumerate(switches)}
        adapters = [
            node
            for node, said in self.described.items()
            if node.startswith("H-") and _AGGREGATION not in said
        ]
        hosts: dict[str, int] = {}
        for node in adapters:
            hosts.setdefault(self._host(node), len(hosts))
        if len(hosts) > MOST_HOSTS or len(switches) > MOST_SWITCHES:
            raise FormatError(
                f"the file has {len(hosts)} hosts and {len(switches)} switches; at most "
                f"{MOST_HOSTS} and {MOST_SWITCHES} are read"
            )
        ports: list[tuple[tuple, Port]] = []
        trunks: dict[tuple[int, int], float] = {}
        silent = 0
        known = set(adapters)
        for (one, other), said in self.cables.items():
            silent += not said
            speed = said or NETWORK
            if one[0] in place and other[0] in place:
                pair = place[one[0]], place[other[0]]
                if pair[0] != pair[1]:
                    key = min(pair), max(pair)
                    trunks[key] = trunks.get(key, 0.0) + speed
                continue
            # Two adapters may be joined directly, and there are routers: their cables are not part
            # of a network of switches.
            host, switch = (one, other) if one[0] in known else (other, one)
            if host[0] in known and switch[0] in place:
                name = self.described[host[0]].split()[1:2] or [host[0]]
                where = f"{name[0][:40]} port {host[1]}"
                port = Port(hosts[self._host(host[0])], place[switch[0]], where, speed)
                ports.append((_natural(name[0], host), port))
        if silent:
            self.assumed.append(f"{NETWORK / 1e9:g} GB/s of {silent} cables without a speed")
        ports.sort(key=lambda each: each[0])
        names = self._names(switches)
        return Fabric(list(hosts), names, [port for _, port in ports],
                      [(a, b, speed) for (a, b), speed in trunks.items()])  # fmt: skip

    def _names(self, switches: list[str]) -> list[str]:
        """Descriptions of switches if they are names; identifiers if two descriptions are equal."""
        said = [self.described[node] for node in switches]
        times = Counter(said)
        return [
            name[:80] if name and times[name] == 1 else node
            for node, name in zip(switches, said, strict=True)
        ]


def _natural(name: str, end: End) -> tuple:
    """A sort key that puts ``mlx5_2`` before ``mlx5_10``."""
    parts = re.split(r"([0-9]{1,9})", name[:80])
    return tuple(int(p) if i % 2 else p for i, p in enumerate(parts)), end
