"""Kinds of devices, and the links assumed between them: the vendors' figures, with their sources.

JAX tells the name of a device and, on TPUs, its coordinates, but not how fast its links are. The
table here does, per link and direction, in SI units. Latencies are round figures of the right
magnitude (ICI and NVLink 1 us, PCIe 2 us, a network 5 us), to be replaced by measured ones where
they matter: ``Topology.from_mesh(mesh, alpha=..., bandwidth=...)``.
"""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class DeviceKind:
    """The links assumed for one kind of device.

    Attributes:
        match: lower-case words, all of which must occur in ``device_kind``; a word is a run of
            letters and digits, so that "a10" does not match "a100".
        bandwidth: bytes per second and direction, of one link to a neighbour ("grid", "mesh"), or
            of one device into its host's switch ("switch").
        source: where the bandwidth comes from.
        wiring: how the devices of a slice or host are linked: "grid", a mesh or torus of
            coordinates; "switch", all behind one; "mesh", every two directly.
        alpha: seconds per link.
        network_alpha: seconds per link between hosts.
        network_bandwidth: bytes per second and direction of one device into the network between
            hosts.
        wraps_at: a dimension of a grid closes into a ring when its side is a multiple of this
            number; 0 where it never closes.
        nvls: whether the switch of a host copies and adds (NVLink SHARP: Hopper and newer, by
            ``NCCL_NVLS_ENABLE`` in NVIDIA's documentation of NCCL).
        spans_hosts: whether the switch joins the devices of several hosts: those of equal
            ``slice_index``, or all devices if they have none.
    """

    match: str
    bandwidth: float
    source: str
    wiring: str = "switch"
    alpha: float = 1e-6
    network_alpha: float = 5e-6
    network_bandwidth: float = 6.25e9
    wraps_at: int = 0
    nvls: bool = False
    spans_hosts: bool = False


def _tpu(match: str, bandwidth: float, wraps_at: int, source: str) -> DeviceKind:
    return DeviceKind(match, bandwidth, source, "grid", wraps_at=wraps_at)


def _pcie(match: str, bandwidth: float, card: str) -> DeviceKind:
    return DeviceKind(
        match, bandwidth, f"{card}: no NVLink between all cards of a host", alpha=2e-6
    )


_CHIPS = "The Design Process for Google's Training Chips: TPUv2 and TPUv3 (IEEE Micro, 2021)"
_CLOUD = "Google Cloud TPU documentation: bidirectional ICI bandwidth per chip over links per chip"
_DGX = "ForestColl's evaluation: NVLink through NVSwitch and InfiniBand, per GPU and direction"
_NVLINK2 = "NVIDIA V100 data sheet: 6 NVLinks of 25 GB/s (DGX-1 joins them in a cube mesh)"
_NVLINK5 = "NVIDIA Blackwell data sheets: fifth-generation NVLink, 1.8 TB/s both ways"
_HOPPER_EXPORT = "NVIDIA H20 and H800 data sheets: NVLink of 900 and 400 GB/s both ways"
_CDNA2 = "AMD CDNA 2: Infinity Fabric links of 50 GB/s, seven a die (jc.topologies.mi250 has wires)"
_CDNA3 = "AMD Instinct MI300 data sheets: 128 GB/s both ways per Infinity Fabric link of a pair"
_CDNA4 = "AMD Instinct MI350 data sheets: 153.6 GB/s both ways per Infinity Fabric link of a pair"
_GEN3, _GEN4, _GEN5 = 15.75e9, 31.5e9, 63e9  # PCIe x16, after its line coding

# The first match wins, so more specific entries come first.
DEVICE_KINDS: tuple[DeviceKind, ...] = (
    # TPU slices. v5p and v4 close dimensions whose side is a multiple of 4; v5e and v6e, a multiple
    # of 16.
    _tpu("tpu7x", 100e9, 4, _CLOUD),
    _tpu("tpu v7x", 100e9, 4, _CLOUD),
    _tpu("tpu v7", 100e9, 4, _CLOUD),
    _tpu("tpu v6e", 100e9, 16, _CLOUD),
    _tpu("tpu v6 lite", 100e9, 16, _CLOUD),
    _tpu("tpu v6", 100e9, 16, _CLOUD),
    _tpu("tpu v5p", 100e9, 4, _CLOUD),
    _tpu("tpu v5e", 50e9, 16, _CLOUD),
    _tpu("tpu v5 lite", 50e9, 16, _CLOUD),
    _tpu("tpu v5", 100e9, 4, _CLOUD),
    _tpu("tpu v4", 50e9, 4, _CLOUD),
    _tpu("tpu v3", 82e9, 32, f"{_CHIPS}: 656 Gbit/s per link"),
    _tpu("tpu v2", 62e9, 16, f"{_CHIPS}: 496 Gbit/s per link"),
    # NVIDIA with NVLink. A Grace Blackwell rack is one NVLink switch for 72 GPUs of 18 hosts.
    DeviceKind("gb300", 900e9, _NVLINK5, network_bandwidth=100e9, nvls=True, spans_hosts=True),
    DeviceKind("gb200", 900e9, _NVLINK5, network_bandwidth=50e9, nvls=True, spans_hosts=True),
    DeviceKind("b300", 900e9, _NVLINK5, network_bandwidth=100e9, nvls=True),
    DeviceKind("b200", 900e9, _NVLINK5, network_bandwidth=50e9, nvls=True),
    DeviceKind("b100", 900e9, _NVLINK5, network_bandwidth=50e9, nvls=True),
    DeviceKind("gh200", 450e9, "NVIDIA GH200 data sheet: NVLink 4", network_bandwidth=50e9,
               nvls=True),
    _pcie("h200 nvl", _GEN5, "NVIDIA H200 NVL"),
    DeviceKind("h200", 450e9, _DGX, network_bandwidth=50e9, nvls=True),
    DeviceKind("h20", 450e9, _HOPPER_EXPORT, network_bandwidth=50e9, nvls=True),
    DeviceKind("h800", 200e9, _HOPPER_EXPORT, network_bandwidth=50e9, nvls=True),
    _pcie("h100 pcie", _GEN5, "NVIDIA H100 PCIe"),
    _pcie("h100 nvl", _GEN5, "NVIDIA H100 NVL"),
    DeviceKind("h100", 450e9, _DGX, network_bandwidth=50e9, nvls=True),
    _pcie("a100 pcie", _GEN4, "NVIDIA A100 PCIe"),
    DeviceKind("a100", 300e9, _DGX, network_bandwidth=25e9),
    _pcie("a800 pcie", _GEN4, "NVIDIA A800 PCIe"),
    DeviceKind("a800", 200e9, "NVIDIA A800 data sheet: NVLink of 400 GB/s both ways",
               network_bandwidth=25e9),
    _pcie("v100 pcie", _GEN3, "NVIDIA V100 PCIe"),
    DeviceKind("v100", 150e9, _NVLINK2, network_bandwidth=6.25e9),
    # One GPU per host, a network of 200 Gbit/s.
    DeviceKind("gb10", 25e9, "NVIDIA DGX Spark: ConnectX-7 of 200 Gbit/s", network_bandwidth=25e9),
    # NVIDIA cards on PCIe.
    _pcie("a40", _GEN4, "NVIDIA A40"),
    _pcie("a30", _GEN4, "NVIDIA A30"),
    _pcie("a16", _GEN4, "NVIDIA A16"),
    _pcie("a10g", _GEN4, "NVIDIA A10G"),
    _pcie("a10", _GEN4, "NVIDIA A10"),
    _pcie("a2", _GEN4 / 2, "NVIDIA A2 (x8)"),
    _pcie("l40s", _GEN4, "NVIDIA L40S"),
    _pcie("l40", _GEN4, "NVIDIA L40"),
    _pcie("l20", _GEN4, "NVIDIA L20"),
    _pcie("l4", _GEN4, "NVIDIA L4"),
    _pcie("t4", _GEN3, "NVIDIA T4"),
    _pcie("rtx blackwell", _GEN5, "NVIDIA RTX PRO Blackwell"),
    _pcie("rtx ada", _GEN4, "NVIDIA RTX Ada"),
    *(_pcie(f"rtx a{n}", _GEN4, f"NVIDIA RTX A{n}") for n in (6000, 5500, 5000, 4500, 4000)),
    *(_pcie(f"rtx 50{n}", _GEN5, "GeForce RTX 50") for n in (90, 80, 70, 60, 50)),
    *(_pcie(f"rtx {g}0{n}", _GEN4, f"GeForce RTX {g}0")
      for g in (4, 3) for n in (90, 80, 70, 60, 50)),
    *(_pcie(f"rtx 20{n}", _GEN3, "GeForce RTX 20") for n in (80, 70, 60)),
    _pcie("quadro", _GEN3, "NVIDIA Quadro"),
    _pcie("titan", _GEN3, "NVIDIA TITAN"),
    # AMD: each die of an MI250 is a device of its own; all the others are linked pair by pair.
    DeviceKind("mi355x", 76.8e9, _CDNA4, "mesh", network_bandwidth=50e9),
    DeviceKind("mi350x", 76.8e9, _CDNA4, "mesh", network_bandwidth=50e9),
    DeviceKind("mi325x", 64e9, _CDNA3, "mesh", network_bandwidth=50e9),
    DeviceKind("mi300x", 64e9, _CDNA3, "mesh", network_bandwidth=50e9),
    DeviceKind("mi300a", 128e9, f"{_CDNA3}, two links per pair", "mesh", network_bandwidth=25e9),
    DeviceKind("mi250x", 350e9, _CDNA2, network_bandwidth=12.5e9),
    DeviceKind("mi250", 350e9, _CDNA2, network_bandwidth=16e9),
    # One device per machine, so there is nothing but a network.
    DeviceKind("apple", 5e9, "Apple: Thunderbolt 4, 40 Gbit/s", network_bandwidth=5e9),
    DeviceKind("metal", 5e9, "Apple: Thunderbolt 4, 40 Gbit/s", network_bandwidth=5e9),
    DeviceKind("cpu", 10e9, "nominal: virtual devices share a memory", network_bandwidth=1.25e9),
)  # fmt: skip
UNKNOWN_KIND = DeviceKind("", 50e9, "nominal")


def kind_of(device) -> DeviceKind:
    """The entry of ``DEVICE_KINDS`` for a device, or ``UNKNOWN_KIND``."""
    words = words_of(getattr(device, "device_kind", ""))
    return next((kind for kind in DEVICE_KINDS if words_of(kind.match) <= words), UNKNOWN_KIND)


def backend_of(platform: str) -> str:
    """The backend of a platform; JAX names GPUs after their driver in some places."""
    return "gpu" if platform in ("cuda", "rocm") else platform


def words_of(text: object) -> frozenset[str]:
    """The runs of letters and digits of a text, in lower case."""
    return frozenset(re.findall("[a-z0-9]+", str(text).lower()))
