"""The table of ``nvidia-smi topo -m``, which shows the connections of a host's GPUs and NICs.

The table names kinds of connections and counts NVLinks. It does not state the kind of the GPUs, the
speed of PCIe and the NICs, or the number of hosts. These are arguments of ``topology``, and if one
is left out its value is assumed, with a warning. Speeds are those of ``link_types``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.io.files import MAX_BYTES, load_text, write_text
from jaxcoll.io.networks import link_types
from jaxcoll.io.networks.equal_hosts import Host, check_stated, side_by_side
from jaxcoll.io.networks.link_types import ALPHA, PCIE_ALPHA, Wire
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import components
from jaxcoll.topology import Topology

# Compute capability and number of NVLinks of each kind of GPU. If all pairs of GPUs have this
# number, the links of each end in NVSwitches. From NVIDIA's data sheets.
LINKS: Mapping[str, tuple[int, int]] = {
    "v100": (70, 6), "a100": (80, 12), "a800": (80, 8), "a30": (80, 4), "a40": (86, 4),
    "h100": (90, 18), "h200": (90, 18), "h20": (90, 18), "h800": (90, 8), "gh200": (90, 18),
    "b200": (100, 18), "b300": (100, 18), "gb200": (100, 18),
    # Kinds without NVLinks; their capability tells the slot.
    "t4": (75, 0), "a10": (86, 0), "l4": (89, 0), "l40": (89, 0), "l40s": (89, 0),
    "rtx4090": (89, 0), "rtx6000ada": (89, 0),
}  # fmt: skip
# The kind that a count of NVLinks to every other GPU suggests. If several kinds have a count, it is
# the older, more common one: an H100's 18 are also a B200's.
_LIKELY = {6: "v100", 12: "a100", 18: "h100", 8: "a800", 4: "a40"}
SOCKETS = 32e9  # between the sockets of a host, which no table of NVIDIA's states

# The nearest first. SOC is an old name of SYS.
KINDS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_MOST_GPUS, _MOST_COLUMNS = 128, 512
# Drivers underline the header; text pasted from a terminal has lost the escape and kept the rest.
_ESCAPES = re.compile(r"\x1b?\[[0-9;]*[mK]")
_NVLINKS = re.compile(r"NV([1-9][0-9]?)")


@dataclasses.dataclass(frozen=True)
class Connections:
    """The table of a host.

    Attributes:
        gpus: number of GPUs, which are the ranks of the network.
        joined: for every two GPUs, ``NV4`` or one of ``KINDS``; ``X`` for one with itself.
        nics: for each NIC by name, its kind of connection with every GPU.
    """

    gpus: int
    joined: tuple[tuple[str, ...], ...]
    nics: Mapping[str, tuple[str, ...]]


def loads(text: str) -> Connections:
    """The table in the output of ``nvidia-smi topo -m``, even with pasted text around it.

    Raises:
        FormatError: there is no table, it is another one, or it is cut; the error names the row.
    """
    checks.text(text, "the table of nvidia-smi", FormatError)
    # Cells are separated by tabs, in pasted text by spaces; it is split by either.
    lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    # The row of GPU0 begins like the header, but has cells, the first of which is X.
    at = next(
        (i for i, words in enumerate(lines)
         if words[:1] == ["GPU0"] and not any(map(_is_cell, words[1:2]))), None,
    )  # fmt: skip
    if at is None:
        raise FormatError(
            "there is no header that begins with GPU0; give what nvidia-smi topo -m prints"
        )
    head = lines[at]
    # "CPU Affinity" and "NUMA Affinity" follow: a range of cores, and a number, not connections.
    columns = head[: head.index("CPU")] if "CPU" in head else head
    gpus = sum(bool(re.fullmatch(r"GPU[0-9]+", name)) for name in columns)
    if gpus > _MOST_GPUS or len(columns) > _MOST_COLUMNS:
        raise FormatError(f"a host has at most {_MOST_GPUS} GPUs, got {gpus}")
    if list(columns[:gpus]) != [f"GPU{i}" for i in range(gpus)]:
        raise FormatError(f"expected the columns GPU0 to GPU{gpus - 1} first, got {shown(columns)}")
    if len(set(columns)) < len(columns):
        raise FormatError("two columns have the same name")
    rows: dict[str, tuple[str, ...]] = {}
    for words in lines[at + 1 :]:
        if words and words[0] in columns and words[0] not in rows:
            rows[words[0]] = _cells(words, columns)
    for name in columns[:gpus]:
        if name not in rows:
            raise FormatError(f"the row of {shown(name)} is missing")
    # A pasted table may have lost a line end or a column; then its two halves differ somewhere.
    for i, name in enumerate(columns):
        for j, other in enumerate(columns):
            if name in rows and other in rows and rows[name][j] != rows[other][i]:
                raise FormatError(
                    f"the table contradicts itself: {shown(name)} has {rows[name][j]} to "
                    f"{shown(other)}, which has {rows[other][i]} back; copy all of it"
                )
    nics = {
        name: tuple(rows[f"GPU{g}"][gpus + i] for g in range(gpus))
        for i, name in enumerate(columns[gpus:])
    }
    return Connections(gpus, tuple(rows[f"GPU{g}"][:gpus] for g in range(gpus)), nics)


def _is_cell(word: str) -> bool:
    return word in ("X", "SOC", *KINDS) or bool(_NVLINKS.fullmatch(word))


def _cells(words: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    name, cells = words[0], words[1 : len(columns) + 1]
    if len(cells) < len(columns):
        raise FormatError(
            f"the row of {shown(name)} is cut short: it has {len(cells)} of {len(columns)} cells"
        )
    for other, cell in zip(columns, cells, strict=True):
        if not _is_cell(cell) or (cell == "X") != (name == other):
            raise FormatError(
                f"{shown(name)} has {shown(cell)} under {shown(other)}, expected NV1 to NV99, "
                f"{', '.join(KINDS)}, or X under itself; this is read from nvidia-smi topo -m, "
                "not from -p2p, nor from rocm-smi"
            )
    return tuple("SYS" if cell == "SOC" else cell for cell in cells)


def load(path: str | os.PathLike, max_bytes: int = MAX_BYTES) -> Connections:
    """The table of a file, see ``loads``. An OSError if it cannot be read."""
    return load_text(path, loads, max_bytes)


def dumps(table: Connections) -> str:
    """The table as ``nvidia-smi topo -m`` prints it, with tabs."""
    checks.instance(table, Connections, "table", FormatError)
    names = [*(f"GPU{g}" for g in range(table.gpus)), *table.nics]
    lines = ["\t".join(["", *names])]
    for g, row in enumerate(table.joined):
        lines.append("\t".join([f"GPU{g}", *row, *(nic[g] for nic in table.nics.values())]))
    return "\n".join(lines) + "\n"


def save(path: str | os.PathLike, table: Connections) -> None:
    """Write ``dumps(table)``, all or nothing. An OSError if it cannot be written."""
    write_text(path, dumps(table))


# ---------------------------------------------------------------------- the network


def topology(
    table: Connections,
    *,
    gpu: str | None = None,
    hosts: int = 1,
    inside: float | None = None,
    network: float | None = None,
    speeds: str = "nominal",
) -> Topology:
    """The network of one host or several equal ones; a rank per GPU, host by host.

    Equal NVLinks between all GPUs, each with as many as a GPU has, end in a switch. So do unequal
    ones that are more than a GPU has, if some are down. Others join two GPUs. If NVLink does not
    reach every GPU, a tree of PCIe switches is added, with one switch for the GPUs that are PIX,
    PXB, PHB and NODE from one another. With several hosts every NIC is a vertex between the GPUs
    nearest to it and the network's switch. NVSwitches copy and add for GPUs of compute capability
    9.0 and newer.

    Args:
        table: the result of ``load``.
        gpu: the kind of GPU, a name in ``LINKS``; the likeliest one for their NVLinks when None.
        hosts: number of equal hosts, joined by one switch.
        inside: bytes per second and direction of one NVLink, instead of the table's.
        network: bytes per second and direction of a NIC; 50e9 (400 Gbit/s) when None.
        speeds: the column of ``link_types``: ``nominal``, or ``nccl`` for the speeds that NCCL
            plans with.

    Warns:
        AssumptionWarning: for each number that no argument gives.

    Raises:
        TopologyError: the kind of GPU is unknown, numbers are out of range, or several hosts have
            no NICs.
    """
    checks.instance(table, Connections, "table", TopologyError)
    check_stated(gpu, LINKS, hosts, inside, network, speeds)
    if hosts > 1 and not table.nics:
        raise TopologyError("the table has no NIC, so its hosts cannot be joined; give hosts=1")
    most = max((_nvlinks(cell) for row in table.joined for cell in row), default=0)
    if gpu is None:
        gpu = _LIKELY.get(most, "h100" if most > 12 else "a100")
        found = f"NV{most}" if most else "no NVLink"
        warn_user(f"{found}: the GPUs are assumed to be {gpu}; state gpu=", AssumptionWarning)
    elif most and not LINKS[gpu][1]:
        raise TopologyError(f"the table has NV{most}, and {gpu} has no NVLink; give another gpu")
    host = _Host(table, gpu, inside, speeds)
    wires = list(host.wires())
    if hosts > 1 and network is None:
        network = 50e9
        warn_user("a NIC is assumed to have 50 GB/s; state network=", AssumptionWarning)
    able = ("NVSwitch",) if host.is_able else ()
    made = Host(gpu, table.gpus, host.names, wires, list(host.nics()), host.pcie, able)
    return side_by_side(made, hosts, float(network or 0), "nvidia-smi")


def _nvlinks(cell: str) -> int:
    found = _NVLINKS.fullmatch(cell)
    return int(found[1]) if found else 0


class _Host:
    """One host: GPUs first, then the switches that ``wires`` needs."""

    def __init__(self, table: Connections, kind: str, inside: float | None, speeds: str):
        self.table, self.kind = table, kind
        sm, self.links = LINKS[kind]
        self.lane = link_types.nvlink(sm).by(speeds) if inside is None else float(inside)
        self.pcie = 16 * link_types.PCIE_LANE[link_types.slot(sm)].by(speeds)
        self.names = [f"gpu {g}" for g in range(table.gpus)]
        self.sm = sm

    @property
    def is_able(self) -> bool:
        """Whether there is an NVSwitch that copies and adds; valid after ``wires``."""
        return "NVSwitch" in self.names and self.sm >= link_types.NVLS

    def wires(self) -> Iterator[Wire]:
        """Pairs of vertices, with seconds and bytes per second each way."""
        n, joined = self.table.gpus, self.table.joined
        counts = np.asarray([[_nvlinks(cell) for cell in row] for row in joined])
        reached = np.flatnonzero(counts.any(1))
        ports, m = counts.max(1, initial=0), len(reached)
        among = counts[np.ix_(reached, reached)][~np.eye(m, dtype=bool)]
        is_even = bool(m) and (among == among[0]).all() and m == n
        # NV18 to each of seven peers cannot be 126 wires of a GPU with 18 links: they end in
        # switches. NV4 to each of three, of twelve in all, may be wires, and a switch would carry
        # the same. If some NVLinks of a GPU are down, every peer sees those that are left.
        is_full = is_even and max(ports[0], ports[0] * (n - 1)) >= self.links
        is_over = m and (among > 0).all() and (counts[reached].sum(1) > self.links).all()
        if is_full or is_over:
            switch = self._vertex("NVSwitch")
            for g in reached.tolist():
                yield g, switch, ALPHA, float(ports[g] * self.lane)
            if m == n:
                return
        else:
            for a in range(n):
                for b in range(a + 1, n):
                    if counts[a, b]:
                        yield a, b, ALPHA, float(counts[a, b] * self.lane)
        if components(n, *np.nonzero(counts)).any():
            yield from self._pcie_tree()

    def _vertex(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def _pcie_tree(self) -> Iterator[Wire]:
        """Switches above the GPUs that each kind of connection joins, from the nearest up."""
        warn_user(
            f"PCIe is assumed to carry {self.pcie / 1e9:g} GB/s, and {SOCKETS / 1e9:g} GB/s "
            "between sockets",
            AssumptionWarning,
        )
        n = self.table.gpus
        top = list(range(n))  # the top vertex above each GPU so far
        # From the nearest kind up: GPUs that are PIX from one another share a switch, which is one
        # vertex for the switch above that joins those that are PXB, and so on up to the sockets.
        for level, kind in enumerate(KINDS):
            near = set(KINDS[: level + 1])
            joined = np.asarray([[c in near for c in row] for row in self.table.joined])
            group = components(n, *np.nonzero(joined)).tolist()
            for each in sorted(set(group)):
                below = sorted({top[g] for g in range(n) if group[g] == each})
                if len(below) > 1:
                    switch = self._vertex(f"{kind} {each}")
                    speed = SOCKETS if kind == "SYS" else self.pcie
                    for vertex in below:
                        yield vertex, switch, PCIE_ALPHA, speed
                    top = [switch if group[g] == each else v for g, v in enumerate(top)]

    def nics(self) -> Iterator[tuple[int, str]]:
        """Every GPU with each of the NICs that are nearest to it."""
        for g in range(self.table.gpus):
            kinds = {name: cells[g] for name, cells in self.table.nics.items()}
            nearest = min(map(KINDS.index, (k for k in kinds.values() if k in KINDS)), default=None)
            for name, kind in kinds.items():
                if nearest is not None and kind == KINDS[nearest]:
                    yield g, name
