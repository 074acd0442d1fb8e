"""Networks from SLURM: ``topology.conf``, ``topology.yaml`` or ``scontrol show topology``.

A file names switches, and the hosts or switches below each. It does not tell the GPUs of a host,
the cables up from a switch, or any speed that SLURM would use. So one port per GPU is assumed, and
every switch is assumed to have as much bandwidth upward as its hosts have together. Blocks are
racks: where the kind of GPU has NVLink switches that span hosts, as GB200 has, one of them joins
the GPUs of a block; for other kinds a block is an ordinary switch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.io.files import load_text
from jaxcoll.io.networks.clusters import (
    MOST_HOSTS,
    MOST_SWITCHES,
    Fabric,
    Gpus,
    Port,
    gpus_of,
    hosts_named,
    joined,
    only,
)
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**24
_PAIR = re.compile(r"([A-Za-z]{1,40})=(\S*)")
_SWITCH = {"switchname", "nodes", "switches"}
_BLOCK = {"blockname", "nodes"}
# Keys that are ignored: SLURM itself ignores LinkSpeed, and scontrol prints the others.
_PASSED = {"linkspeed", "level", "blockindex", "blocksize", "blocksizes"}
_MOST_NAMED = 2**18  # hosts and switches in all lists of a file


def loads(
    text: str,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    network: float | None = None,
    alpha: float | None = None,
) -> Topology:
    """The network of a file; ranks are GPUs, or hosts if their GPUs are not stated.

    Args:
        text: the content of ``topology.conf``, the content of ``topology.yaml``, of which the
            default topology is read, or the output of ``scontrol show topology``.
        gpu: the GPUs of a host as SLURM writes them, ``h100:8``; without it hosts are ranks.
        nodes: the hosts to take, such as those of a job: ``gpu[01-16]`` (``SLURM_JOB_NODELIST``);
            all hosts when None.
        inside: bytes per second and direction of a GPU's link inside its host.
        network: bytes per second and direction of a port, one per GPU.
        alpha: seconds between a port and its switch.

    Warns:
        AssumptionWarning: lists everything that neither the file nor an argument tells.

    Raises:
        FormatError: a line has another form, or a name repeats or is undefined; it names the line.
        TopologyError: numbers are out of range, there are too many ranks, or switches are not
            connected.
    """
    checks.text(text, "text", FormatError)
    checks.optional(network, checks.positive, "network", TopologyError)
    stated = gpus_of(gpu)
    file = _File(text)
    speed = stated.network if network is None else float(network)
    fabric = only(file.fabric(stated, speed), nodes)
    assumed = [] if network is not None else [f"a port per rank of {speed / 1e9:g} GB/s"]
    if fabric.trunks:
        assumed.append("switches pass up all that their hosts send")
    return joined(fabric, stated, "SLURM", inside=inside, alpha=alpha, assumed=assumed)


def load(
    path: str | os.PathLike,
    *,
    gpu: str | None = None,
    nodes: str | None = None,
    inside: float | None = None,
    network: float | None = None,
    alpha: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. Raises an OSError if the file cannot be read."""
    return load_text(
        path, loads, max_bytes, gpu=gpu, nodes=nodes, inside=inside, network=network, alpha=alpha
    )


class _File:
    """The content of a file: blocks, and switches with everything below each, by name."""

    def __init__(self, text: str):
        self.left = _MOST_NAMED
        self.hosts: dict[str, int] = {}
        self.below: dict[str, tuple[list[str], list[str]]] = {}  # hosts and switches of a switch
        self.blocks: dict[str, list[str]] = {}
        is_yaml = re.search(r"^[ \t]*(-[ \t]+topology|flat)[ \t]*:", text, re.MULTILINE)
        for where, said in _default(text) if is_yaml else _lines(text):
            if "switchname" in said:
                self._check_keys(where, said, _SWITCH, "SwitchName")
                under = self._names(where, said.get("switches", ""))
                # scontrol lists all hosts of a switch, including those of the switches below it.
                nodes = [] if under else self._names(where, said.get("nodes", ""))
                self._add(self.below, where, said["switchname"], (nodes, under))
                self._see(nodes)
            elif "blockname" in said:
                self._check_keys(where, said, _BLOCK, "BlockName")
                nodes = self._names(where, said.get("nodes", ""))
                self._add(self.blocks, where, said["blockname"], nodes)
                self._see(nodes)
        if not self.hosts:
            raise FormatError(self._without_hosts(text))
        if self.below and self.blocks:
            raise FormatError("the file has both switches and blocks; give one of the two")
        if len(self.hosts) > MOST_HOSTS or len(self.below) + len(self.blocks) > MOST_SWITCHES:
            raise FormatError(
                f"the file has {len(self.hosts)} hosts below {len(self.below) + len(self.blocks)} "
                f"switches or blocks; at most {MOST_HOSTS} and {MOST_SWITCHES} are read"
            )

    def _names(self, where: str, text: str) -> list[str]:
        try:
            found = hosts_named(text, min(MOST_HOSTS, self.left)) if text else []
        except FormatError as error:
            raise FormatError(f"{where}: {error}") from None
        self.left -= len(found)
        return found

    def _add(self, to: dict, where: str, name: str, value: object) -> None:
        if name in to or not name:
            raise FormatError(f"{where}: the name {shown(name)} is empty or given twice")
        to[name] = value

    def _check_keys(self, where: str, said: dict[str, str], known: set[str], first: str) -> None:
        other = next((key for key in said if key not in known | _PASSED), None)
        if other is not None:
            raise FormatError(f"{where}: {shown(other)} cannot be read beside {first}=")

    def _see(self, names: list[str]) -> None:
        for name in names:
            self.hosts.setdefault(name, len(self.hosts))

    def _without_hosts(self, text: str) -> str:
        if self.below and all(under for _, under in self.below.values()):
            # Each leads to another, so some lead back.
            return (
                f"the switches {shown(', '.join(self.below))} are above each other only, in a "
                "circle, and none has Nodes="
            )
        if re.search(r"^[ \t]*flat[ \t]*:[ \t]*true", text, re.MULTILINE | re.IGNORECASE):
            return (
                "the topology is flat, which names neither hosts nor switches; give the print of "
                "ibnetdiscover, or a family as dgx-h100:4"
            )
        return "no line has Nodes=; expected SwitchName=leaf1 Nodes=gpu[01-16]"

    # ------------------------------------------------------------------ the fabric

    def fabric(self, gpus: Gpus, speed: float) -> Fabric:
        """The hosts, the switches, one port per GPU, and the trunks up from every switch."""
        return self._of_blocks(gpus, speed) if self.blocks else self._of_switches(gpus, speed)

    def _of_blocks(self, gpus: Gpus, speed: float) -> Fabric:
        names = list(self.blocks)
        racks = [0] * len(self.hosts)
        for b, nodes in enumerate(self.blocks.values()):
            for name in nodes:
                racks[self.hosts[name]] = b
        n, hosts = gpus.count, list(self.hosts)
        if gpus.kind is not None and gpus.kind.spans_hosts:
            ports = [Port(h, 0, "port", speed) for h in range(len(hosts)) for _ in range(n)]
            return Fabric(hosts, ["network"], ports, [], racks)
        ports = [Port(h, racks[h], "port", speed) for h in range(len(hosts)) for _ in range(n)]
        trunks = [(b, len(names), max(1, racks.count(b)) * n * speed) for b in range(len(names))]
        alone = len(names) == 1
        return Fabric(hosts, names if alone else [*names, "network"], ports,
                      [] if alone else trunks, racks)  # fmt: skip

    def _of_switches(self, gpus: Gpus, speed: float) -> Fabric:
        place = {name: s for s, name in enumerate(self.below)}
        leaves: dict[str, list[int]] = {name: [] for name in self.hosts}
        above: dict[str, list[str]] = {name: [] for name in self.below}
        for name, (nodes, under) in self.below.items():
            for host in nodes:
                leaves[host].append(place[name])
            for switch in under:
                if switch not in above:
                    raise FormatError(f"{shown(name)} is above {shown(switch)}, which has no line")
                above[switch].append(name)
        ports = [
            # A host on several leaves, as with rails, has its ports assigned to them in turn.
            Port(h, switches[i % len(switches)], f"port {i}", speed)
            for h, switches in enumerate(leaves.values())
            for i in range(max(gpus.count, len(switches)))
        ]
        carried = self._carried(above, gpus.count * speed)
        trunks = [
            (place[name], place[top], carried[name] / len(tops))
            for name, tops in above.items()
            for top in tops
            if carried[name]
        ]
        return Fabric(list(self.hosts), list(self.below), ports, trunks)

    def _carried(self, above: dict[str, list[str]], speed: float) -> dict[str, float]:
        """Bytes per second upward from each switch: the sum over all hosts below it."""
        carried = {name: len(nodes) * speed for name, (nodes, _) in self.below.items()}
        waits = {name: len(under) for name, (_, under) in self.below.items()}
        ready = [name for name, count in waits.items() if count == 0]
        done = 0
        while ready:
            name = ready.pop()
            done += 1
            for top in above[name]:
                carried[top] += carried[name] / len(above[name])
                waits[top] -= 1
                if waits[top] == 0:
                    ready.append(top)
        if done < len(waits):
            name = next(name for name, count in waits.items() if count)
            raise FormatError(f"the switch {shown(name)} is below itself, or below one that is")
        return carried


def _lines(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The place and the key-value pairs of every line, without comments, with lower-case keys."""
    whole = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = whole + raw.split("#", 1)[0].strip()
        if line.endswith("\\"):
            whole = line[:-1] + " "
            continue
        whole = ""
        if not line or line.lower().startswith(("blocksizes=", "aggregatedblock=")):
            continue
        said: dict[str, str] = {}
        for word in line.split():
            pair = _PAIR.fullmatch(word)
            key = pair[1].lower() if pair else ""
            if pair is None or key in said:
                raise FormatError(
                    f"line {number}: expected SwitchName=, Nodes=, Switches= or BlockName=, once "
                    f"each, got {shown(word)}"
                )
            said[key] = pair[2]
        if not said.keys() & {"switchname", "blockname"}:
            raise FormatError(
                f"line {number}: expected SwitchName= or BlockName=, got {shown(line)}"
            )
        yield f"line {number}", said


# ---------------------------------------------------------------------- topology.yaml

# ``_ENTRY`` is a key and its value, in a list item or not; ``_SIZES`` is a line of block sizes.
_ENTRY = re.compile(r"(-\s+)?([a-z_]{1,40})\s*:\s*(.*)")
_SIZES = re.compile(r"[-0-9\[\], ]+")
_KEYS = {"switch": "switchname", "block": "blockname", "children": "switches", "nodes": "nodes"}
_PASSED_YAML = {"switches", "blocks", "block_sizes", "tree", "flat", "alpha_step_rank"}

Topologies = dict[str, list[tuple[str, dict[str, str]]]]


def _default(text: str) -> list[tuple[str, dict[str, str]]]:
    """The lines of the cluster's default topology, in the form of ``_lines``.

    The text is read line by line: keys with single words do not need a package for YAML.
    """
    found: Topologies = {}
    chosen, name = "", ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if not line or line == "---" or _SIZES.fullmatch(line):
            continue
        entry = _ENTRY.fullmatch(line)
        key, value = (entry[2], entry[3].strip("\"'")) if entry else ("", "")
        if key == "topology":
            name = value
            if name in found:
                raise FormatError(f"line {number}: the topology {shown(name)} is given twice")
            found[name] = []
        elif key == "cluster_default":
            chosen = name if value.lower() == "true" and not chosen else chosen
        elif key in ("switch", "block") and entry and entry[1]:
            found.setdefault(name, []).append((f"line {number}", {_KEYS[key]: value}))
        elif key in ("children", "nodes") and found.get(name):
            found[name][-1][1][_KEYS[key]] = value
        elif key not in _PASSED_YAML and not (key == "block" and not value):
            raise FormatError(
                f"line {number}: expected topology, tree, block, switch, children or nodes, got "
                f"{shown(line)}"
            )
    with_hosts = [each for each, lines in found.items() if lines]
    taken = chosen if found.get(chosen) else next(iter(with_hosts), "")
    if len(with_hosts) > 1 or (with_hosts and taken != chosen):
        warn_user(
            f"of the topologies {shown(', '.join(found))} that of {shown(taken)} is taken",
            AssumptionWarning,
        )
    return found.get(taken, [])
