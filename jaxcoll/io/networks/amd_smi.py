"""A host's GPUs as ``rocm-smi --showtopo`` and ``amd-smi topology`` print them, as text or JSON.

Tables name the type of link between every two GPUs, its weight and hops, and in some versions the
least and most megabytes per second between them, whose ratio is the number of links. They do not
state the kind of GPU, the speed of PCIe, or the NICs of a host. These are arguments, and if one is
left out its value is assumed, with a warning. Speeds are those of ``link_types``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxcoll import fields as readers
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, shown, warn_user
from jaxcoll.fields import glimpse, within
from jaxcoll.io.files import MAX_BYTES, load_text
from jaxcoll.io.networks import link_types
from jaxcoll.io.networks.equal_hosts import Host, check_stated, side_by_side
from jaxcoll.io.networks.link_types import ALPHA, PCIE_ALPHA, Wire
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import components
from jaxcoll.topology import Topology

# For each kind of GPU its architecture, the gigatransfers per second of its slot, and the links
# between two of a host if the table does not count them. From AMD's data sheets.
KINDS: Mapping[str, tuple[str, float, int]] = {
    "mi100": ("908", 16.0, 1), "mi210": ("90a", 16.0, 1), "mi250": ("90a", 16.0, 1),
    "mi250x": ("90a", 16.0, 1), "mi300a": ("942", 32.0, 2), "mi300x": ("942", 32.0, 1),
    "mi325x": ("942", 32.0, 1), "mi350x": ("950", 32.0, 1), "mi355x": ("950", 32.0, 1),
}  # fmt: skip
SOCKETS = 64e9  # between the sockets of a host with EPYC processors, as in ``link_types``

_MOST_GPUS, _MOST_LINKS = 128, 16
# The kernel driver's weights: 15 for a hop over xGMI, 20 for one over PCIe to the processor, and
# more if two sockets are in between.
_ONE_HOP, _ONE_SOCKET = 15, 40
_GPU = re.compile(r"GPU[0-9]{1,3}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_TITLES = re.compile(r"\b(link type|weight|hops|bandwidth|bw)\b", re.IGNORECASE)
_ANY_TITLE = re.compile(r"={4,}|\btable\b", re.IGNORECASE)
_NUMA = re.compile(r"GPU\s*\[?([0-9]{1,3})\]?\s*: \(Topology\) Numa Node:\s*(-?[0-9]{1,3})\s*$")
_OF_PAIR = re.compile(
    r"\(topology\) (link type|weight|hops) between drm devices ([0-9]{1,3}) and ([0-9]{1,3})",
    re.IGNORECASE,
)
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)
_TABLES = {"link type": "type", "weight": "weight", "hops": "hops", "bandwidth": "bw", "bw": "bw"}

Pair = tuple[int, int]


@dataclasses.dataclass
class _Table:
    """Cells for pairs of GPUs, both ways, by table; and the NUMA node of GPUs."""

    gpus: int
    cells: dict[str, dict[Pair, str]] = dataclasses.field(
        default_factory=lambda: {name: {} for name in (*_TABLES.values(), "status")}
    )
    numa: dict[int, int] = dataclasses.field(default_factory=dict)

    def put(self, table: str, a: int, b: int, said: object) -> None:
        # Programs that print JSON write numbers as numbers or as text, depending on their version.
        if a != b:
            self.cells[table][a, b] = str(said) if isinstance(said, (str, int)) else ""

    def number(self, table: str, a: int, b: int) -> int | None:
        said = self.cells[table].get((a, b), "")
        return int(said) if _COUNT.fullmatch(said) else None


def loads(
    text: str,
    *,
    gpu: str | None = None,
    hosts: int = 1,
    inside: float | None = None,
    network: float | None = None,
    speeds: str = "nominal",
) -> Topology:
    """The network of one host or several equal ones; a rank per GPU, host by host.

    GPUs that are one xGMI hop apart are linked directly. If xGMI does not reach every GPU, the GPUs
    of a NUMA node share a PCIe switch, and these switches are joined by one between the sockets.
    With several hosts each GPU is assumed to have a NIC on the network's switch.

    Args:
        text: the output of ``rocm-smi --showtopo`` or ``amd-smi topology``, with or without
            ``--json``.
        gpu: the kind of GPU, a name in ``KINDS``; the likeliest one for their links when None.
        hosts: number of equal hosts, joined by one switch.
        inside: bytes per second and direction of one xGMI link, instead of the kind's.
        network: bytes per second and direction of a NIC; 50e9 (400 Gbit/s) when None.
        speeds: the column of ``link_types``: ``nominal``, or ``nccl`` for the speeds that RCCL
            plans with.

    Warns:
        AssumptionWarning: for each number that neither the table nor an argument gives.

    Raises:
        FormatError: there is no table of link types, or it is cut; the error names the row.
        TopologyError: the kind of GPU is unknown, or numbers are out of range.
    """
    checks.text(text, "text", FormatError)
    check_stated(gpu, KINDS, hosts, inside, network, speeds)
    is_json = text.lstrip("\ufeff \t\r\n").startswith(("{", "["))
    table = _of_json(text) if is_json else _of_text(text)
    _check_types(table)
    direct = {pair for pair in table.cells["type"] if _is_direct(table, *pair)}
    if gpu is None:
        gpu = _likely(table, direct)
        warn_user(f"the GPUs are assumed to be {gpu}; state gpu=", AssumptionWarning)
    architecture, slot, usual = KINDS[gpu]
    each = _one_link(architecture).by(speeds) if inside is None else float(inside)
    wires: list[Wire] = [
        (a, b, ALPHA, each * _links(table, a, b, usual)) for a, b in sorted(direct) if a < b
    ]
    _warn_of_links(table, direct, gpu, usual)
    names = [f"gpu {g}" for g in range(table.gpus)]
    pcie = 16 * link_types.PCIE_LANE[slot].by(speeds)
    if table.gpus > 1 and components(table.gpus, *np.asarray([*direct] or [(0, 0)]).T).any():
        _add_pcie(table, names, wires, pcie)
    if hosts > 1:
        _warn_of_nics(network)
    nics = [(g, f"nic {g}") for g in range(table.gpus)]
    made = Host(gpu, table.gpus, names, wires, nics, pcie)
    return side_by_side(made, hosts, float(50e9 if network is None else network), "AMD's tools")


def load(
    path: str | os.PathLike,
    *,
    gpu: str | None = None,
    hosts: int = 1,
    inside: float | None = None,
    network: float | None = None,
    speeds: str = "nominal",
    max_bytes: int = MAX_BYTES,
) -> Topology:
    """The network of a file; see ``loads``. An OSError if it cannot be read."""
    return load_text(
        path, loads, max_bytes, gpu=gpu, hosts=hosts, inside=inside, network=network, speeds=speeds
    )


# ---------------------------------------------------------------------- text


def _of_text(text: str) -> _Table:
    """The tables below their titles; the first table of each title counts."""
    table: _Table | None = None
    title, columns, seen = None, None, set()
    numa: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split()
        if (found := _NUMA.search(line[:120])) is not None:
            numa[int(found[1])] = int(found[2])
        elif words and all(_GPU.fullmatch(word) for word in words) and title is not None:
            columns = _columns(words)
            if table is None:
                table = _Table(len(words))
            elif table.gpus != len(words):
                raise FormatError(
                    f"all tables must be of the same GPUs, but one of {len(words)} follows one of "
                    f"{table.gpus}"
                )
        elif table is not None and columns and title and words and words[0] in columns:
            _put_row(table, title, columns, words)
            seen.add((title, words[0]))
        elif (title_ := _TITLES.search(line[:200])) or _ANY_TITLE.search(line[:200]):
            title, columns = _TABLES[title_[1].lower()] if title_ else None, None
    if table is None or (not table.cells["type"] and table.gpus > 1):
        raise FormatError(
            "there is no table of link types; give what rocm-smi --showtopo or amd-smi topology "
            "prints"
        )
    table.numa = {g: node for g, node in numa.items() if g < table.gpus and node >= 0}
    return table


def _columns(words: Sequence[str]) -> dict[str, int]:
    if len(words) > _MOST_GPUS:
        raise FormatError(f"a host has at most {_MOST_GPUS} GPUs, got {len(words)}")
    if len(set(words)) < len(words):
        raise FormatError("two columns of a table have the same name")
    return {word: g for g, word in enumerate(words)}


def _put_row(table: _Table, title: str, columns: Mapping[str, int], words: Sequence[str]) -> None:
    if len(words) != len(columns) + 1:
        raise FormatError(
            f"the row of {shown(words[0])} has {len(words) - 1} of {len(columns)} cells"
        )
    for g, word in enumerate(words[1:]):
        table.put(title, columns[words[0]], g, word)


# ---------------------------------------------------------------------- JSON


def _of_json(text: str) -> _Table:
    whole = readers.parse(text)
    return _of_rocm_smi(whole) if isinstance(whole, dict) else _of_amd_smi(whole)


def _of_rocm_smi(whole: dict) -> _Table:
    """``{"system": {"(Topology) Link type between DRM devices 0 and 1": "XGMI", ...}}``."""
    system = readers.Fields(whole, "the file").take("system", readers.json_object, {})
    found = ((_OF_PAIR.fullmatch(key), said) for key, said in system.items())
    pairs = [(match, said) for match, said in found if match is not None]
    table = _Table(1 + max((int(match[i]) for match, _ in pairs for i in (2, 3)), default=-1))
    if table.gpus < 1:
        raise FormatError(
            "there are no link types between GPUs; give what rocm-smi --showtopo --json prints"
        )
    _check_count(table.gpus)
    for match, said in pairs:
        name, a, b = _TABLES[match[1].lower()], int(match[2]), int(match[3])
        # Only one of both directions is printed.
        table.put(name, a, b, said)
        table.put(name, b, a, said)
    for g in range(table.gpus):
        card = whole.get(f"card{g}")
        node = card.get("(Topology) Numa Node") if isinstance(card, dict) else None
        if isinstance(node, (str, int)) and _COUNT.fullmatch(str(node)[:20]):
            table.numa[g] = int(str(node)[:20])
    return table


_KEYS = {"link_type": "type", "link_status": "status", "weight": "weight", "num_hops": "hops",
         "hops": "hops", "bandwidth": "bw", "numa_bandwidth": "bw"}  # fmt: skip


def _of_amd_smi(whole: object) -> _Table:
    """A list of GPUs, each with ``links`` (6.4 and later), or with an object per table (before)."""
    rows = readers.items(whole, "the file")
    _check_count(len(rows))
    table = _Table(len(rows))
    number = readers.whole(0, len(rows) - 1)
    for i, row in enumerate(rows):
        fields = readers.Fields(row, f"[{i}]")
        a = fields.take("gpu", number)
        if "links" not in fields.left:
            _put_tables(table, fields, a, number)
            continue
        for k, link in enumerate(fields.take("links", readers.items)):
            each = readers.Fields(link, f"[{i}].links[{k}]")
            b = each.take("gpu", number)
            for key, name in _KEYS.items():
                if key in each.left:
                    table.put(name, a, b, each.left[key])
    if not table.cells["type"] and table.gpus > 1:
        raise FormatError("there is no link_type; give what amd-smi topology --json prints")
    return table


def _put_tables(table: _Table, fields: readers.Fields, a: int, number: Callable) -> None:
    for key, name in _KEYS.items():
        if key in fields.left:
            for other, said in fields.take(key, readers.json_object).items():
                found = re.fullmatch(r"gpu_([0-9]{1,3})", other)
                where = within(f"{fields.where}.{key}", other)
                if found is None:
                    raise FormatError(f"{where}: expected gpu_0 and so on, got {glimpse(other)}")
                table.put(name, a, number(int(found[1]), where), said)


def _check_count(gpus: int) -> None:
    if not 1 <= gpus <= _MOST_GPUS:
        raise FormatError(f"a host has 1 to {_MOST_GPUS} GPUs, got {gpus}")


# ---------------------------------------------------------------------- the network


def _check_types(table: _Table) -> None:
    """Check that every pair has a type, the same both ways: a pasted table may have lost a line."""
    types = table.cells["type"]
    for a in range(table.gpus):
        for b in range(a + 1, table.gpus):
            said, back = types.get((a, b)), types.get((b, a))
            if said is None or back is None:
                raise FormatError(f"the link type of GPU {a} and GPU {b} is missing")
            if said != back:
                raise FormatError(
                    f"GPU {a} has {shown(said)} to GPU {b}, which has {shown(back)} to it"
                )
            if said.upper() not in ("XGMI", "PCIE"):
                raise FormatError(
                    f"the link type of GPU {a} and GPU {b} must be XGMI or PCIE, got {shown(said)}"
                )


def _likely(table: _Table, direct: set[Pair]) -> str:
    """The kind of GPU that the links suggest."""
    peers = np.bincount([a for a, _ in direct], minlength=1)
    # A card has bridges to three others, and a die of an MI250 wires to five; in a host of eight
    # MI300X some links may be down.
    if direct and (len(direct) == table.gpus * (table.gpus - 1) or peers.max() > 5):
        return "mi300x"
    # Dies of an MI250 reach each other over xGMI, in several hops; cards with bridges in hives.
    return (
        "mi250x" if {said.upper() for said in table.cells["type"].values()} == {"XGMI"} else "mi210"
    )


def _one_link(architecture: str) -> link_types.Speed:
    found = link_types.xgmi(architecture)
    if found is None:
        raise TopologyError(f"no xGMI speed is known of gfx{architecture}; give inside=")
    return found


def _is_direct(table: _Table, a: int, b: int) -> bool:
    """Whether a link joins two GPUs; several hops over xGMI are called XGMI, too."""
    status = (table.cells["status"].get(pair, "").upper() for pair in ((a, b), (b, a)))
    hops, weight = table.number("hops", a, b), table.number("weight", a, b)
    return (
        table.cells["type"][a, b].upper() == "XGMI"
        and "DISABLED" not in status
        and (hops is None or hops <= 1)
        and (weight is None or weight <= _ONE_HOP)
    )


def _links(table: _Table, a: int, b: int, usual: int) -> int:
    """The number of links between two GPUs: the most that they carry over that of one link."""
    found = _RANGE.fullmatch(table.cells["bw"].get((a, b), ""))
    least, most = map(int, found.groups()) if found else (0, 0)
    # Some drivers print 0-0.
    if least < 1 or most < least:
        return usual
    return min(max(usual, most // least), _MOST_LINKS)


def _add_pcie(table: _Table, names: list[str], wires: list[Wire], pcie: float) -> None:
    """Add a switch for the GPUs of each socket, and one between these switches."""
    n = table.gpus
    near = np.zeros((n, n), bool)
    for a in range(n):
        for b in range(n):
            weight = table.number("weight", a, b)
            if len(table.numa) == n:
                near[a, b] = table.numa[a] == table.numa[b]
            else:
                near[a, b] = a == b or weight is None or weight <= _ONE_SOCKET
    group = components(n, *np.nonzero(near)).tolist()
    tops = []
    for each in sorted(set(group)):
        tops.append(len(names))
        names.append(f"PCIe {each}")
        wires += [(g, tops[-1], PCIE_ALPHA, pcie) for g in range(n) if group[g] == each]
    if len(tops) > 1:
        names.append("sockets")
        wires += [(top, len(names) - 1, PCIE_ALPHA, SOCKETS) for top in tops]
    warn_user(
        f"PCIe is assumed to carry {pcie / 1e9:g} GB/s"
        + (f", and {SOCKETS / 1e9:g} GB/s between sockets" if len(tops) > 1 else ""),
        AssumptionWarning,
    )


def _warn_of_nics(network: float | None) -> None:
    speed = "" if network is not None else " of 50 GB/s; state network="
    warn_user(f"each GPU is assumed to have a NIC{speed}", AssumptionWarning)


def _warn_of_links(table: _Table, direct: set[Pair], gpu: str, usual: int) -> None:
    """Warn about dies with one to four links between them, if the table does not say how many."""
    said = table.cells["bw"]
    uncounted = sum(a < b and not _RANGE.fullmatch(said.get((a, b), "")) for a, b in direct)
    if uncounted and gpu in ("mi250", "mi250x"):
        warn_user(
            f"{uncounted} pairs of dies are assumed to have {usual} link each, where an MI250 has "
            "up to 4: the table has no bandwidths, as amd-smi topology prints them",
            AssumptionWarning,
        )
