"""Networks described elsewhere, by JAX devices or networkx graphs, as columns of links.

JAX tells the name of a device and, on TPUs, its coordinates, but not how fast its links are. The
table here does: it has the vendors' figures per link and direction, in SI units, with their
sources. Latencies are round figures of the right magnitude (ICI and NVLink 1 us, PCIe 2 us, a
network 5 us), to be replaced by measured ones where they matter: ``Topology.from_mesh(mesh,
alpha=..., bandwidth=...)``. Which devices have links follows from their coordinates and host
numbers.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from jaxcoll.errors import AssumptionWarning, TopologyError, shown, warn_user
from jaxcoll.grid import Grid, Placement
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks

WIRINGS = ("grid", "switch", "mesh")


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


def describe_devices(
    devices: Sequence,
    *,
    alpha: float | None = None,
    bandwidth: float | None = None,
    wrap: Sequence[bool] | None = None,
    within: Sequence | None = None,
) -> dict:
    """The arguments of ``Topology`` for a list of devices; see ``Topology.from_devices``."""
    devices = list(checks.members(devices, "devices", TopologyError))
    if not devices:
        raise TopologyError("a network needs at least one device, got none")
    for device in devices:
        if not hasattr(device, "device_kind"):
            raise TopologyError(
                f"a device has a device_kind, as those of jax.devices() do; got "
                f"{checks.shown(device)}"
            )
    kinds = {str(device.device_kind) for device in devices}
    if len(kinds) > 1:
        raise TopologyError(f"devices must be of one kind, got {sorted(kinds)}")
    kind = kind_of(devices[0])
    if kind is UNKNOWN_KIND and len(devices) > 1 and None in (alpha, bandwidth):
        warn_user(
            f"the links of a {devices[0].device_kind!r} are not known: {kind.alpha * 1e6:g} us and "
            f"{kind.bandwidth / 1e9:g} GB/s per link and direction are assumed; state them by "
            "alpha= (seconds) and bandwidth= (bytes per second)",
            AssumptionWarning,
        )
    given = {
        name: check(value, name, TopologyError)
        for name, value, check in (
            ("alpha", alpha, checks.nonnegative),
            ("bandwidth", bandwidth, checks.positive),
        )
        if value is not None
    }
    kind = dataclasses.replace(kind, **given)
    # GPUs that a compiler describes have coordinates too, which number them in their host.
    is_gpu = backend_of(getattr(devices[0], "platform", "")) == "gpu"
    if not is_gpu and any(getattr(device, "coords", None) is not None for device in devices):
        if within is None:  # all devices of the slice that are known
            client = getattr(devices[0], "client", None)
            known = [] if client is None else list(client.devices())
            within = known if all(device in known for device in devices) else devices
        return _tpu_slice(devices, kind, wrap, within)
    return _hosts(devices, kind)


def _tpu_slice(devices: list, kind: DeviceKind, wrap: Sequence[bool] | None, whole) -> dict:
    # Two cores of one chip share its links; cores form one more dimension of the box.
    cored = any(getattr(device, "core_on_chip", 0) for device in (*devices, *whole))
    coords, everywhere = _coordinates(devices, cored), _coordinates(list(whole), cored)
    is_inside = set(map(tuple, coords)) <= set(map(tuple, everywhere))
    if coords.shape[1] != everywhere.shape[1] or not is_inside:
        raise TopologyError("the devices given as the slice (within=) do not hold all devices")
    # Rings close at the ends of the slice, so the sides of the slice decide, not the subgrid's.
    sides = np.ptp(everywhere, axis=0) + 1
    if wrap is None:
        wrap = [kind.wraps_at > 0 and int(side) % kind.wraps_at == 0 for side in sides]
    if len(wrap) < len(sides):
        wrap = [*wrap, *[False] * (len(sides) - len(wrap))]
    slice_ = Grid(tuple(int(side) for side in sides), tuple(wrap))
    coords = coords - everywhere.min(axis=0)
    for d, (side, closed) in enumerate(zip(slice_.shape, slice_.wrap, strict=True)):
        coords[:, d] = _from_zero(coords[:, d], side, closed)
    shape = tuple(int(side) for side in coords.max(axis=0) + 1)
    if math.prod(shape) != len(devices) or len(np.unique(coords, axis=0)) != len(devices):
        raise TopologyError(
            f"the coordinates of {len(devices)} devices do not fill a grid: they span {shape}; "
            f"pass all devices of a slice or of a grid inside it"
        )
    # A dimension that the box spans only in part lacks the link that would close it.
    closes = [
        closed and side == whole_side
        for closed, side, whole_side in zip(slice_.wrap, shape, slice_.shape, strict=True)
    ]
    grid = Grid(shape, tuple(closes))
    position = np.ravel_multi_index(tuple(coords.T), shape)
    rank_at = np.argsort(position)  # box position -> rank
    pairs = rank_at[np.concatenate([grid.neighbour_pairs(d) for d in range(len(shape))])]
    return _columns(
        len(devices),
        pairs,
        np.full(len(pairs), kind.alpha),
        np.full(len(pairs), kind.bandwidth),
        name=f"{getattr(devices[0], 'device_kind', 'device')} {'x'.join(map(str, shape))}",
        placement=Placement(grid, tuple(rank_at)),
    )


def _coordinates(devices: list, cored: bool) -> np.ndarray:
    """Coordinates, int64 of shape (devices, dimensions), with the core last if ``cored``."""
    places = [getattr(device, "coords", None) for device in devices]
    dimensions = {None if place is None else len(place) for place in places}
    if len(dimensions) > 1:
        raise TopologyError(
            f"all devices or none need coordinates, of as many dimensions; got {places[:8]}"
        )
    coords = np.asarray(places, dtype=np.int64)
    cores = np.asarray([int(getattr(device, "core_on_chip", 0)) for device in devices])
    return np.concatenate([coords, cores[:, None]], axis=1) if cored else coords


def _from_zero(coordinate: np.ndarray, side: int, closed: bool) -> np.ndarray:
    """One coordinate of a subgrid of a slice, relative to the subgrid's first coordinate."""
    # On a closed dimension a subgrid may wrap around: its first coordinate follows the longest gap.
    used = np.unique(coordinate)
    if not closed or len(used) == side:
        return coordinate - used[0]
    gaps = np.diff(np.append(used, used[0] + side))
    start = used[(int(gaps.argmax()) + 1) % len(used)]
    return (coordinate - start) % side


def _hosts(devices: list, kind: DeviceKind) -> dict:
    """Hosts wired as the kind of device demands, and one switch between them for all devices."""
    # A host has a switch of its own, or a link between every two of its devices. Where the switch
    # of a kind spans hosts, "host" means all the hosts that it joins.
    n = len(devices)
    place = "slice_index" if kind.spans_hosts else "process_index"
    hosts = [int(getattr(device, place, 0) or 0) for device in devices]
    number = {host: i for i, host in enumerate(sorted(set(hosts)))}
    if n == 1:
        return _columns(1, np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0), name="one device")
    links, switches, able = [], n, []
    for host in number:
        ranks = [rank for rank in range(n) if hosts[rank] == host]
        if kind.wiring == "mesh":
            links += [(*pair, kind.alpha, kind.bandwidth) for pair in combinations(ranks, 2)]
            continue
        if len(ranks) > 1:
            links += [(rank, switches, kind.alpha, kind.bandwidth) for rank in ranks]
            able += [switches] * kind.nvls
        switches += 1
    if len(number) > 1:
        links += [(rank, switches, kind.network_alpha, kind.network_bandwidth) for rank in range(n)]
        switches += 1
    up = np.asarray([link[:2] for link in links], np.int64)
    speed = np.asarray([link[2:] for link in links])
    return _columns(
        n,
        np.concatenate([up, up[:, ::-1]]),
        np.tile(speed[:, 0], 2),
        np.tile(speed[:, 1], 2),
        num_vertices=switches,
        name=f"{len(number)} host{'s' if len(number) > 1 else ''} x "
        f"{n // len(number)} {getattr(devices[0], 'device_kind', 'device')}",
        in_network=InNetwork(able, able),  # type: ignore[arg-type]
    )


def _columns(num_ranks: int, pairs: np.ndarray, alpha, bandwidth, **described) -> dict:
    return {
        "num_ranks": num_ranks,
        "src": pairs[:, 0],
        "dst": pairs[:, 1],
        "alpha": alpha,
        "bandwidth": bandwidth,
        **described,
    }


if TYPE_CHECKING:  # imported where it is used: only those who have such a graph need the package
    import networkx as nx


def make_graph(
    name: str,
    kinds: Sequence[str],
    vertex_names: Sequence[str],
    links: Iterable[tuple],
    parallel: bool,
) -> nx.DiGraph:
    """The graph of a network; see ``Topology.to_networkx``.

    Args:
        kinds: "rank" or "switch" for each vertex.
        vertex_names: one per vertex, or empty.
        links: (src, dst, alpha, bandwidth) of each link.
        parallel: whether several links join the same two vertices in the same direction.
    """
    import networkx as nx

    graph = nx.MultiDiGraph() if parallel else nx.DiGraph()
    for vertex, kind in enumerate(kinds):
        graph.add_node(vertex, kind=kind)
        if vertex_names:
            graph.nodes[vertex]["name"] = vertex_names[vertex]
    for src, dst, alpha, bandwidth in links:
        graph.add_edge(src, dst, alpha=alpha, bandwidth=bandwidth)
    graph.graph["name"] = name
    return graph


def describe_graph(
    graph: nx.Graph, alpha: float | None, bandwidth: float | Fraction | None
) -> dict:
    """The arguments of ``Topology`` for a graph; see ``Topology.from_networkx``."""
    import networkx as nx

    checks.instance(graph, nx.Graph, "graph", TopologyError)
    nodes = list(graph.nodes)
    if all(isinstance(node, (int, np.integer)) for node in nodes):
        nodes.sort()
    is_switch = {}
    for node in nodes:
        kind = graph.nodes[node].get("kind", "rank")
        if str(kind).lower() not in ("rank", "switch"):
            raise TopologyError(
                f"node {shown(node)} has kind={shown(kind)}; a kind is 'rank' or 'switch', and a "
                "node without one is a rank"
            )
        is_switch[node] = str(kind).lower() == "switch"
    nodes.sort(key=is_switch.__getitem__)  # ranks first, otherwise as they were
    index = {node: i for i, node in enumerate(nodes)}
    copying, adding = (
        [index[node] for node in nodes
         if checks.flag(graph.nodes[node].get(what, False), f"{what} of a node", TopologyError)]
        for what in ("copies", "adds")
    )  # fmt: skip
    rows: list[tuple] = []
    for u, v, data in graph.edges(data=True):
        values = (data.get("alpha", alpha), data.get("bandwidth", bandwidth))
        if None in values:
            missing = "alpha" if values[0] is None else "bandwidth"
            raise TopologyError(
                f"edge {shown(u)}->{shown(v)} has no {missing}; set it or pass {missing}="
            )
        rows.append((index[u], index[v], *values))
        if not graph.is_directed():
            rows.append((index[v], index[u], *values))
    src, dst, alphas, bandwidths = zip(*rows, strict=True) if rows else ((), (), (), ())
    plain = nodes == list(range(len(nodes)))
    names = [graph.nodes[v].get("name", "" if plain else v) for v in nodes]
    return {
        "num_ranks": len(nodes) - sum(is_switch.values()),
        "src": np.asarray(src),
        "dst": np.asarray(dst),
        "alpha": np.asarray(alphas),
        "bandwidth": bandwidths,
        "num_vertices": len(nodes),
        "name": str(graph.graph.get("name", "")),
        "vertex_names": tuple(str(name) for name in names) if any(names) else (),
        "in_network": InNetwork(copying, adding),  # type: ignore[arg-type]
    }
