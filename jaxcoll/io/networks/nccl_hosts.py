"""NCCL's topology XML: the hosts that ``NCCL_TOPO_DUMP_FILE`` describes.

The structure is ``system > cpu > pci > (gpu | nic > net)``, with bridges as nested ``pci``. A
``gpu`` lists its NVLinks (``nvlink``; ``xgmi`` for AMD): to other GPUs by their bus, or to each
NVSwitch that it sees. NCCL treats these as one switch, and so does ``topology``. Version 1 is
NCCL's, version 2 RCCL's. A dump has one host, or the hosts of a rack that one NVLink domain joins,
distinguished by ``host_hash``: buses, numbers of devices and names repeat from host to host, but
ranks do not.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator

from jaxcoll.errors import AssumptionWarning, FormatError, shown, warn_user
from jaxcoll.io import xml
from jaxcoll.io.files import load_text, write_text
from jaxcoll.io.xml import Element
from jaxcoll.numerics import checks

MAX_BYTES = 2**26
_MOST_GPUS, _MOST_LINKS = 2**12, 2**10
# The class of an NVSwitch, and the bus that NCCL gives to the switches of a rack or of a virtual
# machine, which have no bus that a host can see.
_SWITCH, _EVERYWHERE = "0x068000", "fffffff:ff"
# Mbit/s, ten times the speed of a port: RCCL's collection of topologies has kbit/s in some files.
_TOO_FAST = 10**7
_BUS = re.compile(r"[0-9a-fA-F]{1,8}(:[0-9a-fA-F]{1,4}){1,3}(\.[0-9a-fA-F])?")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU of a host.

    Attributes:
        host: number of its host in the file.
        rank: rank in the communicator, -1 if it is not in one.
        device: number in its host.
        bus: PCI address.
        sm: compute capability, 90 for an H100.
        architecture: for AMD GPUs, such as ``942``; empty for others.
        links: targets and counts of its NVLinks or xgmi, and the class of the target.
        c2c: bytes per second to its own CPU, 0 for none.
        above: the elements from its slot up to its CPU.
    """

    host: int
    rank: int
    device: int
    bus: str
    sm: int
    architecture: str
    links: tuple[tuple[str, int, str], ...]
    c2c: float
    above: tuple[Element, ...]


@dataclasses.dataclass(frozen=True)
class Nic:
    """A port of a network card: ``speed`` in B/s (0 if not stated), ``latency`` in seconds."""

    host: int
    name: str
    speed: float
    latency: float
    above: tuple[Element, ...]


@dataclasses.dataclass(frozen=True)
class System:
    """The hosts of a file, with their GPUs by rank, and the whole file as elements."""

    root: Element
    hosts: int
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]


def loads(text: str) -> System:
    """The hosts of XML text.

    Raises:
        FormatError: see ``jaxcoll.io.xml``; or the version is another one, the file is a skeleton
            without GPUs, which NCCL itself completes, GPUs repeat a rank or bus, or attributes are
            missing or not numbers; the error names line and element.
    """
    return of_element(xml.parsed(text, "system"))


def load(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> System:
    """The hosts of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)


def dumps(system: System) -> str:
    """The XML of hosts, as NCCL's own parser reads it (``NCCL_TOPO_FILE``)."""
    checks.instance(system, System, "system", FormatError)
    return xml.written(system.root)


def save(path: str | os.PathLike, system: System) -> None:
    """Write ``dumps(system)``, all or nothing. An OSError if it cannot be written."""
    write_text(path, dumps(system))


def of_element(root: Element) -> System:
    """The hosts of a ``system`` element; see ``loads``."""
    if root.text("version") not in ("1", "2"):
        raise FormatError(
            f"{root.place}: version must be 1 (NCCL) or 2 (RCCL), got {shown(root.text('version'))}"
        )
    hosts: dict[str, int] = {}
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    # Older files have no host_hash, and only one host.
    for cpu in root.each("cpu"):
        host = hosts.setdefault(cpu.said.get("host_hash", ""), len(hosts))
        for each, above in _slots(cpu, (cpu,)):
            if each.tag == "gpu":
                gpus.append(_gpu(each, above, host))
            else:
                nics += _ports(each, above, host)
    if not gpus:
        raise FormatError(
            f"{root.place} has no gpu: it is a skeleton, which NCCL completes by detection on the "
            "machine; run with NCCL_TOPO_DUMP_FILE=topo.xml there and give that file"
        )
    if len(gpus) > _MOST_GPUS:
        raise FormatError(f"there are {len(gpus)} GPUs; at most {_MOST_GPUS} are read")
    # A dump lists all GPUs of a host, even those without a rank; in older dumps no GPU has a rank.
    kept = [gpu for gpu in gpus if gpu.rank >= 0] or gpus
    ranks = [gpu.rank for gpu in kept if gpu.rank >= 0]
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise FormatError(f"two GPUs have the rank {twice}; each has its own")
    kept.sort(key=lambda gpu: (gpu.rank, gpu.host, gpu.device))
    return System(root, len(hosts), tuple(kept), tuple(nics))


def _slots(
    element: Element, above: tuple[Element, ...]
) -> Iterator[tuple[Element, tuple[Element, ...]]]:
    """The GPUs and network cards below an element, each with the elements above it."""
    for child in element.each("pci", "gpu", "nic"):
        if child.tag == "pci":
            yield from _slots(child, (child, *above))
        else:
            yield child, above


def _gpu(each: Element, above: tuple[Element, ...], host: int) -> Gpu:
    architecture = each.said.get("gcn", "")
    links = []
    for link in each.each("nvlink", "xgmi"):
        target = link.text("target").lower()
        if not _BUS.fullmatch(target):
            raise FormatError(f"{link.place}: target must be a PCI bus, got {shown(target)}")
        count = link.integer("count", 1, _MOST_LINKS)
        links.append((target, count, link.said.get("tclass", "").lower()))
    # The file's units are MB/s, Mbit/s and us, although it does not state them.
    c2c = sum(
        link.number("bw") * 1e6 * link.integer("count", 1, _MOST_LINKS) for link in each.each("c2c")
    )
    bus = above[0].text("busid").lower() if above[0].tag == "pci" else ""
    return Gpu(
        host,
        each.integer("rank", -1, 2**24, -1),
        each.integer("dev", 0, 2**16),
        bus,
        each.integer("sm", 0, 10**4, 0),
        architecture,
        tuple(links),
        c2c,
        above,
    )


def _ports(nic: Element, above: tuple[Element, ...], host: int) -> Iterator[Nic]:
    """The ports of a card, once each: those that offer collectives are listed twice."""
    seen: set[str] = set()
    for net in nic.each("net"):
        name = f"{net.text('name')} port {net.said.get('port', '1')}"
        if name in seen:
            continue
        seen.add(name)
        speed = net.integer("speed", -1, 10**10, 0)
        if speed >= _TOO_FAST:
            speed //= 1000
            warn_user(
                f"{shown(name)} of {1000 * speed} Mbit/s is faster than any: taken for kbit/s",
                AssumptionWarning,
            )
        latency = net.number("latency", 0.0)
        yield Nic(host, name, max(speed, 0) * 1e6 / 8, latency * 1e-6, above)


def is_switch(link: tuple[str, int, str], buses: frozenset[str]) -> bool:
    """Whether a link ends in an NVSwitch, by its class, or because no GPU has the bus."""
    target, _, kind = link
    return target not in buses and (kind in ("", _SWITCH) or target.startswith(_EVERYWHERE))


def is_everywhere(link: tuple[str, int, str]) -> bool:
    """Whether a link ends in the switches of a rack, which have no bus of their own."""
    return link[0].startswith(_EVERYWHERE)
