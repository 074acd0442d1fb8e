"""hwloc's XML of a machine, ``lstopo topology.xml``: sockets, PCIe, GPUs and network cards.

The file is converted to the form of NCCL's topology, which then gives the network
(``nccl_topology``). It states where GPUs and cards are plugged in, and the speed of each slot. If
hwloc was built with the vendors' libraries, it also has NVLink and xgmi, as matrices of megabytes
per second, and the kind of the GPUs; otherwise the kind may be in the name of the device.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping

from jaxcoll.device_kinds import words_of
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.io import xml
from jaxcoll.io.files import load_text
from jaxcoll.io.networks import amd_smi, link_types, nccl_hosts, nccl_topology, nvidia_smi
from jaxcoll.io.xml import Element
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

MAX_BYTES = 2**26
KINDS = (*nvidia_smi.LINKS, *amd_smi.KINDS)

_TEXT = frozenset(("indexes", "u64values", "userdata", "support"))
_NVIDIA, _AMD = "10de", "1002"
_SWITCH, _EVERYWHERE = "0x068000", "fffffff:ffff:ff"
# Of PCI classes, the display, 3D and processing devices are GPUs, and the network ones are cards.
_GPU_CLASSES, _NIC_CLASSES = ("0300", "0302", "0380", "1200"), ("0200", "0207")
_PCI_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_FABRIC = "3"  # hwloc's type of an OSDev that is an InfiniBand or RoCE port
_MATRIX = ("distances2", "distances2hetero")
_MOST_IN_MATRIX = 512
# Megabytes per second of one NVLink, as drivers state them.
_NVLINKS = (14_062, 20_000, 25_000, 25_781, 26_562, 50_000, 53_125)
# Kinds whose NVLinks end in NVSwitches in all their hosts, and whose xgmi joins all pairs; cards of
# the same generation on PCIe have names that say so.
_SWITCHED = ("a100", "a800", "h100", "h200", "h20", "h800", "b200", "b300", "gb200")
_MESHED = ("mi300x", "mi325x", "mi350x", "mi355x", "mi300a")
_ON_PCIE = frozenset(("pcie", "nvl"))


def loads(
    text: str,
    *,
    gpu: str | None = None,
    hosts: int = 1,
    network: float | None = None,
    speeds: str = "nominal",
) -> Topology:
    """The network of one host or several equal ones; a rank per GPU, host by host.

    Args:
        text: XML of hwloc 2 or newer.
        gpu: the kind of GPU, a name in ``KINDS``; taken from the names of the devices when None.
        hosts: number of equal hosts, joined by one switch that their network cards are linked to.
        network: bytes per second and direction of a card; 50e9 (400 Gbit/s) when None.
        speeds: the column of ``link_types``: ``nominal``, or ``nccl``.

    Warns:
        AssumptionWarning: for each number that neither the file nor an argument gives.

    Raises:
        FormatError: see ``jaxcoll.io.xml``; the XML is of hwloc 1; there is no GPU of NVIDIA or
            AMD, or its kind is unknown; or matrices have another size.
        TopologyError: numbers are out of range, several hosts have no cards, or GPUs are not
            connected.
    """
    checks.optional(gpu, checks.choice, KINDS, "gpu", TopologyError)
    checks.optional(network, checks.positive, "network", TopologyError)
    hosts = checks.integer(hosts, "hosts", TopologyError, least=1, most=4096)
    system = _Machine(xml.parsed(text, "topology", 2**20, _TEXT, True), gpu).system()
    if hosts > 1 and network is None:
        network = 50e9
        warn_user("a NIC is assumed to have 50 GB/s; state network=", AssumptionWarning)
    made = nccl_topology.topology(system, hosts=hosts, speeds=speeds, network=network)
    return dataclasses.replace(made, name=str(made.name).replace("NCCL's topology", "lstopo"))


def load(
    path: str | os.PathLike,
    *,
    gpu: str | None = None,
    hosts: int = 1,
    network: float | None = None,
    speeds: str = "nominal",
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes, gpu=gpu, hosts=hosts, network=network, speeds=speeds)


class _Machine:
    """The elements of NCCL's topology for a machine of hwloc's."""

    def __init__(self, root: Element, kind: str | None):
        version = root.said.get("version", "1")
        if not version.startswith(("2", "3")):
            raise FormatError(
                f"{root.place}: XML of hwloc {shown(version)}; give that of lstopo 2.0 or newer"
            )
        self.root, self.kind, self.pcie_alone = root, kind, False
        self.bus_of: dict[str, str] = {}  # of a GPU or NVSwitch, by its number or its OSDev's
        self.gpus: list[str] = []
        self.cards = 0

    def system(self) -> nccl_hosts.System:
        sockets = [Element("cpu", said, tuple(inside)) for said, inside in self._sockets()]
        if not self.gpus:
            raise FormatError(
                "the file has no GPU of NVIDIA or AMD; run lstopo on the machine, with I/O: "
                "lstopo --whole-io topology.xml"
            )
        links = self._links()
        system = Element("system", {"version": "2"}, tuple(self._with(sockets, links)))
        return nccl_hosts.of_element(system)

    # ------------------------------------------------------------------ PCIe

    def _sockets(self) -> Iterator[tuple[dict[str, str], list[Element]]]:
        """Attributes and PCI elements of each socket, and of the machine itself."""
        stack: list[tuple[Element, Element | None]] = [(o, None) for o in self.root.each("object")]
        inside: dict[int, tuple[dict[str, str], list[Element]]] = {}
        while stack:
            each, socket = stack.pop()
            kind = each.said.get("type")
            if kind == "Bridge" or kind == "PCIDev":
                number = 0 if socket is None else id(socket)
                said = _socket(socket, len(inside)) if number not in inside else {}
                inside.setdefault(number, (said, []))[1].extend(self._pci(each, 0))
                continue
            socket = each if kind == "Package" else socket
            # Popped from the end, so reversed: GPUs are numbered in the order of the file.
            stack += [(o, socket) for o in reversed(tuple(each.each("object")))]
        return (found for found in inside.values() if found[1])

    def _pci(self, each: Element, depth: int) -> Iterator[Element]:
        """A bridge or device as NCCL writes it, if there is a GPU or card below it."""
        kind, said = each.said.get("type"), each.said
        if kind == "Bridge":
            below = [
                found for o in each.each("object") if o.said.get("type") in ("Bridge", "PCIDev")
                for found in self._pci(o, depth + 1)
            ]  # fmt: skip
            # The bridge of a host stands for its processor. Other bridges have a bus of their own.
            if said.get("bridge_type", "0-1").startswith("0"):
                yield from below
            elif below:
                yield Element("pci", _slot(said, "0x060400"), tuple(below), each.line)
            return
        found = _PCI_TYPE.match(said.get("pci_type", ""))
        if found is None or not _BUS.fullmatch(said.get("pci_busid", "")):
            return
        bus, vendor = said["pci_busid"].lower(), found[2].lower()
        if found[1] in _GPU_CLASSES and vendor in (_NVIDIA, _AMD):
            self._see(each, bus)
            number = str(len(self.gpus))
            self.gpus.append(bus)
            inner = Element("gpu", self._gpu(each, number))
            yield Element("pci", _slot(said, f"0x{found[1]}00"), (inner,), each.line)
        elif found[1] == "0680" and vendor == _NVIDIA:
            self._see(each, bus)
        elif found[1] in _NIC_CLASSES and (ports := tuple(self._ports(each))):
            inner = Element("nic", {}, ports)
            yield Element("pci", _slot(said, f"0x{found[1]}00"), (inner,), each.line)

    def _see(self, each: Element, bus: str) -> None:
        for named in (each, *each.each("object")):
            if "gp_index" in named.said:
                self.bus_of[named.said["gp_index"]] = bus

    def _ports(self, each: Element) -> Iterator[Element]:
        for port in each.each("object"):
            name = port.said.get("name", "")
            if port.said.get("type") == "OSDev" and port.said.get("osdev_type") == _FABRIC and name:
                yield Element("net", {"name": name[:80], "dev": str(self.cards), "port": "1"})
                self.cards += 1

    def _gpu(self, each: Element, number: str) -> dict[str, str]:
        """The attributes of a GPU; its kind is stated, or told by the names in the file."""
        said = " ".join(
            info.said.get("value", "")
            for named in (each, *each.each("object"))
            for info in named.each("info")
            if info.said.get("name") in ("GPUModel", "PCIDevice", "CUDADeviceName")
        )
        words = words_of(f"{said} {each.said.get('name', '')}")
        # For b200 and gb200 the longer name is the more specific one.
        found = [kind for kind in KINDS if words_of(kind) <= words]
        if self.kind is None and not found:
            where = shown(said) if said else "a GPU without a name"
            raise FormatError(
                f"{each.place}: {where} is not of a known kind; give gpu=, one of "
                f"{', '.join(KINDS[:8])}"
            )
        self.kind = self.kind or max(found, key=len)
        self.pcie_alone |= bool(words & _ON_PCIE)
        attributes = {"dev": number, "rank": number}
        if self.kind in amd_smi.KINDS:
            # The capability only tells the generation of the slot.
            architecture, slot, _ = amd_smi.KINDS[self.kind]
            return attributes | {"gcn": f"gfx{architecture}", "sm": "90" if slot > 16 else "80"}
        return attributes | {"sm": str(nvidia_smi.LINKS[self.kind][0])}

    # ------------------------------------------------------------------ NVLink, xgmi

    def _links(self) -> Mapping[str, list[Element]]:
        """The NVLinks or xgmi links of each GPU, by its bus."""
        matrices = {
            each.said.get("name", ""): each for each in self.root.each(*_MATRIX)
        }  # a machine has one of each name
        for name, hops in (("NVLinkBandwidth", ""), ("XGMIBandwidth", "XGMIHops")):
            if name in matrices:
                speeds = self._matrix(matrices[name])
                far = self._matrix(matrices[hops]) if hops in matrices else {}
                return self._counted(speeds, far)
        return self._usual()

    def _matrix(self, each: Element) -> dict[tuple[str, str], int]:
        """The cells of a matrix, by the buses of their rows and columns."""
        if each.said.get("indexing", "gp") != "gp":
            return {}
        size = each.integer("nbobjs", 1, _MOST_IN_MATRIX)
        names = " ".join(part.inner for part in each.each("indexes")).split()
        values = " ".join(part.inner for part in each.each("u64values")).split()
        right = all(re.fullmatch(r"[0-9]{1,18}", value, re.ASCII) for value in values)
        if len(names) != size or len(values) != size * size or not right:
            raise FormatError(
                f"{each.place}: expected {size} indexes and {size * size} numbers, got "
                f"{len(names)} and {len(values)}"
            )
        # With several types a name is "PCIDev:12", with one type only the number.
        buses = [self.bus_of.get(name.rpartition(":")[2], "") for name in names]
        return {
            (a, b): int(values[i * size + j])
            for i, a in enumerate(buses)
            for j, b in enumerate(buses)
            if a and b and a != b
        }

    def _counted(
        self, speeds: Mapping[tuple[str, str], int], far: Mapping[tuple[str, str], int]
    ) -> dict[str, list[Element]]:
        links: dict[str, list[Element]] = {bus: [] for bus in self.gpus}
        is_amd = self.kind in amd_smi.KINDS
        for (a, b), speed in speeds.items():
            if a not in links or not speed or far.get((a, b), 1) > 1:
                continue
            tag, count = ("xgmi" if is_amd else "nvlink"), self._count(speed)
            kind = "0x030200" if b in links else _SWITCH
            links[a].append(Element(tag, {"target": b, "count": str(count), "tclass": kind}))
        return links

    def _count(self, speed: int) -> int:
        """The number of links with a sum of megabytes per second; for xgmi, links of the kind."""
        if self.kind in amd_smi.KINDS:
            return amd_smi.KINDS[str(self.kind)][2]
        usual = link_types.nvlink(nvidia_smi.LINKS[str(self.kind)][0]).nominal / 1e6
        # Drivers state the raw rate or the nominal one; the rate that gives the number closest to
        # an integer is the right one.
        near = [each for each in _NVLINKS if abs(each / usual - 1) < 0.1] or [usual]
        one = min(near, key=lambda each: abs(speed / each - round(speed / each)))
        return min(max(round(speed / one), 1), 64)

    def _usual(self) -> dict[str, list[Element]]:
        """The links that GPUs of a kind always have, if hwloc was built without its library."""
        kind, links = str(self.kind), dict[str, list[Element]]()
        if len(self.gpus) < 2 or self.pcie_alone:
            return links
        if kind in _SWITCHED:
            count = nvidia_smi.LINKS[kind][1]
            said = {"target": _EVERYWHERE, "count": str(count), "tclass": _SWITCH}
            links = {bus: [Element("nvlink", said)] for bus in self.gpus}
            warn_user(
                f"the file has no NVLinks: {count} of each {kind} to NVSwitches are assumed",
                AssumptionWarning,
            )
        elif kind in _MESHED:
            count = str(amd_smi.KINDS[kind][2])
            links = {
                bus: [Element("xgmi", {"target": other, "count": count, "tclass": "0x038000"})
                      for other in self.gpus if other != bus]
                for bus in self.gpus
            }  # fmt: skip
            warn_user(
                f"the file has no xgmi: {count} between every two {kind} are assumed",
                AssumptionWarning,
            )
        elif kind in amd_smi.KINDS or nvidia_smi.LINKS[kind][1]:
            tool = "amd-smi topology" if kind in amd_smi.KINDS else "nvidia-smi topo -m"
            warn_user(
                f"the file has no links between {kind} but PCIe, which is taken for all; {tool} "
                "has them",
                AssumptionWarning,
            )
        return links

    def _with(
        self, elements: list[Element], links: Mapping[str, list[Element]]
    ) -> Iterator[Element]:
        """The elements with the links of GPUs added to them."""
        for each in elements:
            inside = list(self._with(list(each.children), links))
            if each.tag == "pci" and inside and inside[0].tag == "gpu":
                found = links.get(each.said["busid"], [])
                inside = [Element("gpu", inside[0].said, tuple(found), each.line)]
            yield Element(each.tag, each.said, tuple(inside), each.line)


def _socket(package: Element | None, number: int) -> dict[str, str]:
    infos = {} if package is None else {
        info.said.get("name", ""): info.said.get("value", "") for info in package.each("info")
    }  # fmt: skip
    vendor, model = infos.get("CPUVendor", ""), infos.get("CPUModelNumber", "")
    is_arm = vendor.startswith("ARM") or "CPUImplementer" in infos
    return {
        "numaid": str(number),
        "arch": "arm64" if is_arm else "x86_64",
        "vendor": vendor[:80],
        "modelid": model if model.isdigit() and len(model) < 10 else "",
    }


def _slot(said: Mapping[str, str], kind: str) -> dict[str, str]:
    """The attributes of a PCI element: its bus, and its link as transfers per second and lanes."""
    slot = {"busid": said.get("pci_busid", "").lower(), "class": kind}
    text = said.get("pci_link_speed", "")
    speed = float(text) * 1e9 if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", text) else 0.0
    fits = [
        (abs(lane.nominal * width / speed - 1), -width, rate)
        for rate, lane in link_types.PCIE_LANE.items()
        for width in (1, 2, 4, 8, 16)
        if speed
    ]
    if fits and min(fits)[0] < 0.05:
        _, width, rate = min(fits)
        slot |= {"link_speed": f"{rate} GT/s PCIe", "link_width": str(-width)}
    return slot
