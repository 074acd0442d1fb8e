"""The speeds of links in GPU hosts, by kind: nominal, and as NCCL plans with them.

Speeds are bytes per second and direction. Nominal figures come from data sheets; NCCL's are
constants of its topology code (2.30, ``topo.h``) and of RCCL's, on which its own searches are
based. For an H100 with 18 NVLinks they are 450 and 370.8 GB/s. No file of NCCL's states a latency:
``ALPHA``, ``PCIE_ALPHA`` and ``NETWORK_ALPHA`` are this library's, in seconds per hop. ``wired``
builds the network of such links, each of which is equally fast in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks
from jaxcoll.topology import Topology

COLUMNS = ("nominal", "nccl")
# Guesses, about which every network that is read warns: NVLink as in TE-CCL for the NDv2, a hop
# over PCIe and its bridge, and a NIC with the switches behind it.
ALPHA, PCIE_ALPHA, NETWORK_ALPHA = 0.7e-6, 2e-6, 5e-6


# The first compute capability whose NVSwitches copy and add (NVLS): that of Hopper, from NVIDIA's
# documentation of NCCL, ``NCCL_NVLS_ENABLE``.
NVLS = 90


class Speed(NamedTuple):
    """Bytes per second and direction in both columns."""

    nominal: float
    nccl: float

    def by(self, column: str) -> float:
        """The speed in one of the columns.

        Raises:
            TopologyError: the column is unknown.
        """
        return getattr(self, checks.choice(column, COLUMNS, "speeds", TopologyError))


# Speeds of one NVLink, by the first compute capability that has it.
NVLINK: Mapping[int, Speed] = {
    60: Speed(20e9, 18e9),
    70: Speed(25e9, 20e9),
    # NCCL has these for 86 only (the A40), so 87 has an A100's speed.
    86: Speed(14.0625e9, 12e9),
    87: Speed(25e9, 20e9),
    90: Speed(25e9, 20.6e9),
    100: Speed(50e9, 40.1e9),
}
# Speeds of one Infinity Fabric link between AMD GPUs, by the beginning of the architecture's name.
XGMI: Mapping[str, Speed] = {
    "908": Speed(23e9, 24e9),
    "90": Speed(50e9, 36e9),
    "94": Speed(64e9, 48e9),
    "95": Speed(76.8e9, 48e9),
}
# Speeds of one lane of PCIe, by gigatransfers per second: nominal after the line code.
PCIE_LANE: Mapping[float, Speed] = {
    2.5: Speed(0.25e9, 15 / 80 * 1e9),
    5.0: Speed(0.5e9, 30 / 80 * 1e9),
    8.0: Speed(0.984375e9, 60 / 80 * 1e9),
    16.0: Speed(1.96875e9, 120 / 80 * 1e9),
    32.0: Speed(3.9375e9, 240 / 80 * 1e9),
    64.0: Speed(7.5625e9, 480 / 80 * 1e9),
}
# Gigatransfers per second of a GPU's own slot, by the first compute capability that has it.
SLOT: Mapping[int, float] = {60: 8.0, 80: 16.0, 90: 32.0, 103: 64.0}
# Speeds between two sockets, by vendor and the first model that has it; nominal: the links of a
# usual pair (two or three UPI, four Infinity Fabric).
SOCKETS: Mapping[tuple[str, int], Speed] = {
    ("GenuineIntel", 0): Speed(19.2e9, 6e9),
    ("GenuineIntel", 0x55): Speed(31.2e9, 10e9),
    ("GenuineIntel", 0x8F): Speed(48e9, 22e9),
    ("GenuineIntel", 0xCF): Speed(60e9, 40e9),
    ("AuthenticAMD", 0): Speed(64e9, 16e9),
    ("ARM", 0): Speed(32e9, 6e9),
    ("Power", 0): Speed(64e9, 32e9),
}


def nvlink(sm: int) -> Speed:
    """The speed of one NVLink of a GPU with a compute capability."""
    return NVLINK[max((first for first in NVLINK if first <= sm), default=60)]


def slot(sm: int) -> float:
    """Gigatransfers per second of a GPU's slot."""
    return SLOT[max((first for first in SLOT if first <= sm), default=60)]


def xgmi(architecture: str) -> Speed | None:
    """The speed of one link between AMD GPUs; None if it is not in the table."""
    name = architecture.lower().removeprefix("gfx")
    found = [first for first in XGMI if name.startswith(first)]
    # RCCL once wrote gfx90a as 910.
    return XGMI["90"] if name == "910" else XGMI[max(found, key=len)] if found else None


def sockets(vendor: str, model: int) -> Speed:
    """The speed between two sockets of a host."""
    known = [key for key in SOCKETS if key[0] == vendor and key[1] <= model]
    return SOCKETS[max(known)] if known else SOCKETS["GenuineIntel", 0x8F]


Wire = tuple[int, int, float, float]  # two vertices, seconds and bytes per second each way


def wired(
    ranks: int,
    names: Sequence[str],
    wires: Sequence[Wire],
    name: str,
    able: Sequence[int] = (),
) -> Topology:
    """The network of wires, each of which is a link in both directions.

    Args:
        ranks: number of vertices that are ranks, which are the first ones.
        names: names of all vertices.
        able: switches that copy and add.
    """
    a, b, alpha, speed = map(np.asarray, zip(*wires, strict=True)) if wires else [np.zeros(0)] * 4
    return Topology(
        ranks,
        np.concatenate([a, b]).astype(np.int64),
        np.concatenate([b, a]).astype(np.int64),
        np.concatenate([alpha, alpha]),
        np.concatenate([speed, speed]),
        num_vertices=len(names),
        name=name,
        vertex_names=tuple(names),
        in_network=InNetwork(tuple(able), tuple(able)),
    )
