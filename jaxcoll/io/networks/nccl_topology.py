"""The network in NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE`` writes it: a rank per GPU.

``nccl_hosts`` reads and writes the file, and its names are also available here; ``topology`` makes
the network.

NVLinks and xgmi come first. Direct links join two GPUs; all switches that a host's GPUs see become
one, as in NCCL, and those of a rack become one for all its hosts. If they do not reach every GPU of
a host, the tree of its PCIe bridges and sockets is added. NVSwitches copy and add for GPUs of
compute capability 9.0 and newer; the file does not tell whether switches of the network do. With
several hosts every port of a network card is a vertex between the GPUs nearest to it and the switch
of the network.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, warn_user
from jaxcoll.io.networks import link_types
from jaxcoll.io.networks.link_types import ALPHA, NETWORK_ALPHA, PCIE_ALPHA, Wire, wired
from jaxcoll.io.networks.nccl_hosts import (
    Gpu,
    Nic,
    System,
    dumps,
    is_everywhere,
    is_switch,
    load,
    loads,
    save,
)
from jaxcoll.io.xml import Element
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import components
from jaxcoll.topology import Topology

__all__ = ["Gpu", "Nic", "System", "dumps", "load", "loads", "save", "topology"]

_MOST_HOSTS, _MOST_RANKS = 4096, 2**15
_TEN_GIGABIT = 1.25e9  # NCCL's assumption for a card that does not state its speed
_TRANSFERS = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)\s*GT/s")


def topology(
    system: System, *, hosts: int = 1, speeds: str = "nominal", network: float | None = None
) -> Topology:
    """The network of a file's hosts, or of several equal ones; a rank per GPU, host by host.

    Args:
        system: the result of ``load``.
        hosts: number of equal hosts, joined by one switch that their network cards are linked to; a
            file with several hosts has its own number.
        speeds: the column of ``link_types``: ``nominal``, or ``nccl`` for the figures that NCCL's
            searches use (450 or 370.8 GB/s for an H100's NVLinks).
        network: bytes per second and direction of a port, instead of the file's.

    Warns:
        AssumptionWarning: for each number that the file does not state, and for PCIe links that are
            ignored because they are slower than the devices behind them.

    Raises:
        TopologyError: numbers are out of range; several hosts have no network cards, or are asked
            for although the file already has several; or GPUs are not connected.
        FormatError: links end nowhere, or their two ends have different counts.
    """
    checks.instance(system, System, "system", TopologyError)
    hosts = checks.integer(hosts, "hosts", TopologyError, least=1, most=_MOST_HOSTS)
    checks.choice(speeds, link_types.COLUMNS, "speeds", TopologyError)
    checks.optional(network, checks.positive, "network", TopologyError)
    if hosts > 1 and system.hosts > 1:
        raise TopologyError(f"the file already describes {system.hosts} hosts; leave hosts= out")
    if hosts * len(system.gpus) > _MOST_RANKS:
        raise TopologyError(
            f"{hosts} hosts of {len(system.gpus)} GPUs are more than the {_MOST_RANKS} "
            "ranks that are built"
        )
    builder = _Builder(system, hosts, speeds, None if network is None else float(network))
    builder.fabric()
    builder.reach_all()
    if max(hosts, system.hosts) > 1:
        builder.join_hosts()
    builder.say_what_is_assumed()
    return builder.built()


@dataclasses.dataclass
class _Builder:
    """Vertices and wires of the hosts; a single host is copied ``hosts`` times.

    Vertices are numbered in the order in which they are made: copies of the file's GPUs first, host
    by host.
    """

    system: System
    hosts: int
    speeds: str
    network: float | None

    def __post_init__(self) -> None:
        self.gpus = self.system.gpus
        count = len(self.gpus)
        self.names = [
            f"host {h if self.hosts > 1 else gpu.host} gpu {gpu.device}"
            for h in range(self.hosts)
            for gpu in self.gpus
        ]
        self.ranks = count * self.hosts
        self.wires: list[Wire] = []
        self.able: list[int] = []  # switches that copy and add
        self.assumed: list[str] = []
        self.links: defaultdict[str, set[str]] = defaultdict(set)

    def vertex(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _copies(self) -> Iterator[tuple[int, int]]:
        """Each copy of the file's hosts and the vertex of its first GPU."""
        return ((h, h * len(self.gpus)) for h in range(self.hosts))

    # ------------------------------------------------------------------ NVLink, xgmi

    def fabric(self) -> None:
        """Add direct links between GPUs, and a switch for those that end in switches."""
        # Buses repeat from host to host, so a GPU is found by host and bus. ``buses`` are of all
        # hosts: a target that is the bus of any GPU cannot be a switch.
        place = {(gpu.host, gpu.bus): g for g, gpu in enumerate(self.gpus)}
        buses = frozenset(gpu.bus for gpu in self.gpus)
        direct: dict[tuple[int, int], int] = {}
        switched: defaultdict[int | None, list[tuple[int, float]]] = defaultdict(list)
        sharing = [sum((o.host, o.bus) == (g.host, g.bus) for o in self.gpus) for g in self.gpus]
        for g, gpu in enumerate(self.gpus):
            lane, up = self._lane(gpu), 0
            for link in gpu.links:
                target, count, _ = link
                if (gpu.host, target) in place:
                    # Some hosts of Azure list each GPU as its own target, which joins nothing.
                    if (other := place[gpu.host, target]) != g and target != gpu.bus:
                        direct[g, other] = direct.get((g, other), 0) + count
                elif is_switch(link, buses):
                    up += count
                else:
                    self._note(f"links to {target}, no GPU of the file, are left out")
            if up:
                whole = any(is_everywhere(link) for link in gpu.links) and self.system.hosts > 1
                # Parts of one GPU (mlopart) each list the links of the whole GPU.
                switched[None if whole else gpu.host].append((g, up * lane / sharing[g]))
        # A wire is a row at each of its ends; if one of them is missing, the file was cut or
        # edited.
        for (a, b), count in direct.items():
            if direct.get((b, a)) != count:
                back = direct.get((b, a), 0)
                raise FormatError(
                    f"gpu {a} lists {count} links to gpu {b}, which lists {back} back"
                )
        for h, first in self._copies():
            self.wires += [
                (first + a, first + b, ALPHA, count * self._lane(self.gpus[a]))
                for (a, b), count in direct.items()
                if a < b
            ]
            # One switch, as in NCCL, for any number in a host: every GPU is linked to each of them,
            # so all together carry between two GPUs what the GPU's own links carry.
            for host, ends in switched.items():
                name = "rack" if host is None else f"host {h if self.hosts > 1 else host}"
                switch = self.vertex(f"{name} NVSwitch")
                self.wires += [(first + g, switch, ALPHA, speed) for g, speed in ends]
                if min(self.gpus[g].sm for g, _ in ends) >= link_types.NVLS:
                    self.able.append(switch)

    def _lane(self, gpu: Gpu) -> float:
        """Bytes per second of one NVLink or xgmi link of a GPU."""
        if gpu.architecture:
            found = link_types.xgmi(gpu.architecture)
            if found is None:
                found = link_types.XGMI["94"]
                self._note(f"xgmi of gfx{gpu.architecture} is not known and taken for gfx942's")
            self.links["xgmi"].add(f"{found.by(self.speeds) / 1e9:g}")
            return found.by(self.speeds)
        speed = link_types.nvlink(gpu.sm)
        if gpu.links:
            self.links["NVLink"].add(f"{speed.by(self.speeds) / 1e9:g}")
        return speed.by(self.speeds)

    # ------------------------------------------------------------------ PCIe

    def reach_all(self) -> None:
        """Add the tree of bridges and sockets for hosts whose GPUs are otherwise not connected."""
        for host in range(self.system.hosts):
            mine = [g for g, gpu in enumerate(self.gpus) if gpu.host == host]
            part = self._parts()
            if len({part[g] for g in mine}) > 1:
                for h, first in self._copies():
                    self._tree(host, mine, first, h if self.hosts > 1 else host)

    def _tree(self, host: int, mine: Sequence[int], first: int, number: int) -> None:
        """Add every bridge with two or more ways down, and the sockets, joined to each other.

        Example: GPUs 0 and 1 are behind bridge A, GPU 2 behind bridge B, and both bridges behind
        socket 0. A and the socket are vertices; B joins nothing and is a part of the way from GPU 2
        to the socket.
        """
        # By identity, because Element compares by content, and equal bridges are several.
        below: defaultdict[int, set[int]] = defaultdict(set)
        for g in mine:
            for element in self.gpus[g].above:
                below[id(element)].add(g)
        vertices: dict[int, int] = {}
        top: dict[int, Element] = {}
        for g in mine:
            at, size = first + g, 1
            above = self.gpus[g].above
            speed = self.gpus[g].c2c or self._slot(above, self.gpus[g].sm)
            for element in above[1:] if above[0].tag == "pci" else above:
                is_top = element.tag == "cpu"
                if len(below[id(element)]) == size and not is_top:
                    continue  # only one way down: the bridge joins nothing
                size, known = len(below[id(element)]), id(element) in vertices
                if not known:
                    kind = f"socket {element.said.get('numaid', '')}" if is_top else "PCIe switch"
                    vertices[id(element)] = self.vertex(f"host {number} {kind}")
                self.wires.append((at, vertices[id(element)], PCIE_ALPHA, speed))
                at = vertices[id(element)]
                if known:
                    break  # from here up, an earlier GPU has added the wires
                if is_top:
                    top[at] = element
                # Virtual bridges do not report the speed of a link, so that of the next one is
                # used.
                said = self._pcie(element)
                if said and said < speed / 2:
                    bus = element.said.get("busid", "no bus")
                    self._note(f"{said / 1e9:.3g} GB/s of the PCIe bridge at {bus} is not believed")
                speed = speed if said < speed / 2 else said
        tops = sorted(top)
        for i, a in enumerate(tops):
            for b in tops[i + 1 :]:
                said = top[a].said
                vendor, model = said.get("vendor", ""), said.get("modelid", "")
                kind = {"arm64": "ARM", "ppc64": "Power"}.get(said.get("arch", ""), vendor)
                speed = link_types.sockets(kind, int(model) if model.isdigit() else 0)
                self.wires.append((a, b, PCIE_ALPHA, speed.by(self.speeds)))
        if len(tops) > 1:
            self._note("sockets are joined at the speed of their vendor's table")

    def _pcie(self, element: Element) -> float:
        """Bytes per second of the link above a PCI device; 0 if the file does not state it."""
        found = _TRANSFERS.match(element.said.get("link_speed", ""))
        lanes = element.said.get("link_width", "")
        # Virtual machines write "Unknown" and a width of 0, which NCCL treats as Gen3 x16.
        lane = link_types.PCIE_LANE.get(float(found[1])) if found else None
        if lane is None or not lanes.isdigit() or not 1 <= int(lanes) <= 32:
            return 0.0
        return lane.by(self.speeds) * int(lanes)

    def _slot(self, above: Sequence[Element], sm: int) -> float:
        """The speed of a GPU's slot: the file's, or its generation's if that cannot be true."""
        usual = link_types.PCIE_LANE[link_types.slot(sm)].by(self.speeds) * 16
        said = self._pcie(above[0])
        # Root ports of virtual machines state 2.5 GT/s x1, 0.25 of 63 GB/s. A slot with fewer lanes
        # or of an older generation than the GPU's, by a half or a quarter, is real and accepted.
        if said < usual / 8:
            bus = above[0].said.get("busid", "no bus")
            what = f"{said / 1e9:.3g} GB/s of" if said else "no speed for"
            self._note(f"{what} PCIe at {bus} is not believed: {usual / 1e9:.3g} GB/s")
            return usual
        return said

    # ------------------------------------------------------------------ several hosts

    def join_hosts(self) -> None:
        """Add ports of network cards, their links to the nearest GPUs, and the network's switch."""
        ports = self.system.nics
        for host in range(self.system.hosts):
            part = self._parts()
            joined = self.system.hosts > 1 and len(set(part[: self.ranks])) == 1
            if not any(nic.host == host for nic in ports) and not joined:
                raise TopologyError(
                    f"host {host} has no network card in the file, so hosts cannot be joined"
                )
        if not ports:
            return
        network = self.vertex("network")
        for h, first in self._copies():
            used: dict[int, int] = {}
            for g, gpu in enumerate(self.gpus):
                for n in self._nearest(gpu):
                    nic = ports[n]
                    if n not in used:
                        host = h if self.hosts > 1 else gpu.host
                        used[n] = self.vertex(f"host {host} {nic.name}")
                        alpha = NETWORK_ALPHA + nic.latency
                        self.wires.append((used[n], network, alpha, self._port(nic)))
                    # The slower of both slots. A GPU that shares only the CPU with the card may
                    # reach it over c2c. A card whose slot is slower than its port is not believed.
                    speed = self._slot(gpu.above, gpu.sm)
                    bridges = {id(element) for element in nic.above if element.tag == "pci"}
                    if gpu.c2c and bridges.isdisjoint(map(id, gpu.above)):
                        speed = gpu.c2c
                    card = self._pcie(nic.above[0]) if nic.above[0].tag == "pci" else 0.0
                    speed = min(speed, card) if card >= self._port(nic) / 2 else speed
                    self.wires.append((first + g, used[n], PCIE_ALPHA, speed))

    def _nearest(self, gpu: Gpu) -> list[int]:
        """The ports that share the most of a GPU's way up."""
        shared = {
            n: len({id(e) for e in gpu.above} & {id(e) for e in nic.above})
            for n, nic in enumerate(self.system.nics)
            if nic.host == gpu.host
        }
        most = max(shared.values(), default=0)
        return [n for n, count in shared.items() if count == most]

    def _port(self, nic: Nic) -> float:
        if self.network is not None:
            return self.network
        if not nic.speed:
            self._note(f"{nic.name} does not say its speed: 10 Gbit/s, as NCCL takes it")
        return nic.speed or _TEN_GIGABIT

    # ------------------------------------------------------------------ the whole

    def _note(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)

    def say_what_is_assumed(self) -> None:
        """Give one warning about everything that the file does not state."""
        for kind, speeds in sorted(self.links.items()):
            self._note(f"one {kind} has {' or '.join(sorted(speeds))} GB/s ({self.speeds})")
        alphas = [f"{alpha * 1e6:g}" for alpha in (ALPHA, PCIE_ALPHA, NETWORK_ALPHA)]
        self._note(f"hops take {', '.join(alphas)} us (NVLink, PCIe, network)")
        shown_ = self.assumed[:8]
        more = len(self.assumed) - len(shown_)
        warn_user(
            f"assumed: {'; '.join(shown_)}" + (f"; and {more} more" if more else ""),
            AssumptionWarning,
        )

    def built(self) -> Topology:
        part = self._parts()
        apart = next((g for g in range(self.ranks) if part[g] != part[0]), None)
        if apart is not None:
            raise TopologyError(
                f"nothing in the file joins {self.names[0]} and {self.names[apart]}; give a file "
                "with the links of all GPUs"
            )
        count = max(self.hosts, self.system.hosts)
        hosts = f"{count} hosts, " if count > 1 else ""
        name = f"{hosts}{self.ranks} GPUs by NCCL's topology ({self.speeds})"
        return wired(self.ranks, self.names, self.wires, name, self.able)

    def _parts(self) -> np.ndarray:
        """For each vertex, the least vertex that wires join it to."""
        ends = np.asarray([wire[:2] for wire in self.wires], np.int64).reshape(-1, 2)
        return components(len(self.names), *ends.T)
