"""What tools of clusters print, in small: written by their layout, with names of nobody's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from xml.etree import ElementTree

Said = Callable[[int, int], object]  # of two GPUs

# ---------------------------------------------------------------------- SLURM

TREE = """# leaves of two hosts below a spine
SwitchName=leaf1 Nodes=gpu[01-02] LinkSpeed=400000
switchname=leaf2 nodes=gpu03,gpu04  # as SLURM, in letters of any size
SwitchName=spine \\
  Switches=leaf[1-2]
"""
TREE_SHOWN = """SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[01-02]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[03-04]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[01-04] Switches=leaf[1-2]
"""
BLOCKS = """BlockName=rack1 Nodes=gb[01-02]
BlockName=rack2 Nodes=gb[03-04]
BlockSizes=2
"""

# ---------------------------------------------------------------------- InfiniBand

Node = tuple[str, int]  # an identifier such as "S-1", and a port


def ibnetdiscover(
    described: dict[str, str], cables: list[tuple[Node, Node]], speed: str = "4xNDR"
) -> str:
    """Nodes by identifier, and cables, each of which is printed at both ends."""
    text = "#\n# Topology file: generated on some day\n#\n"
    for node, name in described.items():
        kind = "switch" if node.startswith("S") else "ca"
        text += f"\nvendid=0x2c9\ndevid=0x1\nsysimgguid=0x{node[2:]}\n{kind}guid=0x{node[2:]}\n"
        what = "enhanced port 0 lid 1 lmc 0" if kind == "switch" else ""
        text += f'{kind.capitalize()}\t64 "{node}"\t\t# "{name}" {what}\n'
        for ends in cables:
            for here, there in (ends, ends[::-1]):
                if here[0] == node:
                    guid = f"({there[0][2:]})" if there[0].startswith("H") else ""
                    own = f"({node[2:]})" if kind == "ca" else ""
                    text += (
                        f'[{here[1]}]{own}\t"{there[0]}"[{there[1]}]{guid} \t\t# '
                        f'"{described.get(there[0], "")}" lid 4 {speed}\n'
                    )
    return text


def leaf_spine(leaves: int, hosts: int, spines: int, adapters: int = 1, speed="4xNDR") -> str:
    """Hosts with as many adapters to their leaf, and leaves with two cables to every spine."""
    described = {f"S-a{s}": f"MF0;leaf{s}:MQM9700/U1" for s in range(leaves)}
    described |= {f"S-b{s}": f"MF0;spine{s}:MQM9700/U1" for s in range(spines)}
    cables: list[tuple[Node, Node]] = []
    for leaf in range(leaves):
        for h in range(hosts):
            for a in range(adapters):
                node = f"H-{leaf}0{h}0{a}"
                described[node] = f"n{leaf * hosts + h} mlx5_{a}"
                cables.append(((node, 1), (f"S-a{leaf}", 1 + h * adapters + a)))
        cables += [
            ((f"S-a{leaf}", 40 + 2 * s + i), (f"S-b{s}", 1 + 2 * leaf + i))
            for s in range(spines)
            for i in range(2)
        ]
    return ibnetdiscover(described, cables, speed)


YAML = """---
# the tree of TREE, and blocks
- topology: racks
  cluster_default: false
  block:
    block_sizes:
      - 2
    blocks:
      - block: rack1
        nodes: gpu[01-04]
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: leaf1
        nodes: gpu[01-02]
      - switch: leaf2
        nodes: "gpu[03-04]"
      - switch: spine
        children: leaf[1-2]
- topology: all
  flat: true
"""

# ---------------------------------------------------------------------- hwloc


def lstopo(nccl: str, model: str = "NVIDIA H100 80GB HBM3", megabytes: int = 26562) -> str:
    """The host of a dump of NCCL's as ``lstopo topology.xml`` writes it.

    Args:
        model: the model of its GPUs, as NVML names it; without one hwloc had no library for them.
        megabytes: per second of one of their links; 0 for no matrix.
    """
    root = ElementTree.fromstring(nccl)  # noqa: S314  (the tests' own text)
    number = itertools.count(10)
    osdevs: dict[str, int] = {}  # by bus
    lines = ['<object type="Machine" os_index="0" gp_index="1">']
    for i, cpu in enumerate(root):
        said = cpu.attrib
        lines.append(f'<object type="Package" os_index="{i}" gp_index="{next(number)}">')
        for name, key in (("CPUVendor", "vendor"), ("CPUModelNumber", "modelid")):
            lines.append(f'<info name="{name}" value="{said.get(key, "")}"/>')
        lines.append(f'<object type="NUMANode" os_index="{i}" gp_index="{next(number)}"/>')
        lines.append(f'<object type="Bridge" gp_index="{next(number)}" bridge_type="0-1">')
        lines += [line for pci in cpu for line in _hwloc_pci(pci, model, number, osdevs)]
        lines += ["</object>", "</object>"]
    lines.append("</object>")
    gpus = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    speeds = {
        (pci.attrib["busid"], link.attrib["target"]): int(link.attrib["count"]) * megabytes
        for pci in gpus
        for link in [*pci.iter("nvlink"), *pci.iter("xgmi")]
    }
    switches = sorted({b for _, b in speeds} - osdevs.keys())
    for bus in switches:  # seen by the machine, on a bridge without a card
        osdevs[bus] = next(number)
        lines.insert(
            -1,
            f'<object type="PCIDev" gp_index="{osdevs[bus]}" pci_busid="{bus}" '
            'pci_type="0680 [10de:22a3] [10de:1796] a1" pci_link_speed="4.000000"/>',
        )
    if megabytes:
        name = "XGMIBandwidth" if root.find(".//xgmi") is not None else "NVLinkBandwidth"
        lines += _hwloc_matrix(
            name, [pci.attrib["busid"] for pci in gpus], switches, osdevs, speeds
        )
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    return head + '<topology version="2.0">\n' + "\n".join(lines) + "\n</topology>\n"


def _hwloc_pci(pci: ElementTree.Element, model: str, number, osdevs: dict[str, int]) -> list[str]:
    said = pci.attrib
    rates = {"2.5": 0.25, "5.0": 0.5, "8.0": 0.984615, "16.0": 1.969231, "32.0": 3.938462}
    speed = rates[said["link_speed"].split()[0]] * int(said["link_width"])
    kind, code = said["class"][2:6], f"[{said['vendor'][2:]}:{said['device'][2:]}]"
    slot = f'pci_busid="{said["busid"]}" pci_type="{kind} {code} [0000:0000] a1" '
    slot += f'pci_link_speed="{speed:.6f}"'
    bridge = "Bridge" if kind == "0604" else "PCIDev"
    more = 'bridge_type="1-1" depth="1" ' if kind == "0604" else ""
    lines = [f'<object type="{bridge}" gp_index="{next(number)}" {more}{slot}>']
    for inside in pci:
        if inside.tag == "pci":
            lines += _hwloc_pci(inside, model, number, osdevs)
        elif inside.tag == "gpu" and model:
            osdevs[said["busid"]] = next(number)
            lines += [
                f'<object type="OSDev" gp_index="{osdevs[said["busid"]]}" name="nvml0" '
                f'osdev_type="1"><info name="GPUModel" value="{model}"/></object>'
            ]
        for net in inside.iter("net"):
            name = net.attrib["name"]
            lines += [
                f'<object type="OSDev" gp_index="{next(number)}" name="{name}" '
                'osdev_type="3"><info name="Port1State" value="4"/></object>',
                f'<object type="OSDev" gp_index="{next(number)}" name="ib0" osdev_type="2"/>',
            ]
    return [*lines, "</object>"]  # fmt: skip


def _hwloc_matrix(name: str, gpus: list[str], switches: list[str], osdevs, speeds) -> list[str]:
    """Ten entries to a line, as hwloc writes them."""
    ends = [*gpus, *switches]
    kinds = ["OSDev"] * len(gpus) + ["PCIDev"] * len(switches)
    tag = "distances2hetero" if switches else "distances2"
    indexes = [
        f"{k}:{osdevs[b]}" if switches else f"{osdevs[b]}" for k, b in zip(kinds, ends, strict=True)
    ]
    values = [
        1_000_000 if a == b else speeds.get((a, b), speeds.get((b, a), 0))
        for a in ends
        for b in ends
    ]
    kind = "" if switches else 'type="OSDev" '
    lines = [f'<{tag} {kind}nbobjs="{len(ends)}" kind="9" name="{name}" indexing="gp">']
    for inner, entries in (("indexes", indexes), ("u64values", [str(v) for v in values])):
        for at in range(0, len(entries), 10):
            line = " ".join(entries[at : at + 10]) + " "
            lines.append(f'<{inner} length="{len(line)}">{line}</{inner}>')
    return [*lines, f"</{tag}>"]


# ---------------------------------------------------------------------- GKE


def nodes(
    accelerator: str = "tpu-v5p-slice", topology: str = "2x2x4", pools: tuple[str, ...] = ("a",)
) -> dict:
    """What ``kubectl get nodes -o json`` has of two nodes in every pool."""
    items = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {
            "annotations": {"node.gke.io/last-applied-node-labels": "x=y"},
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "cloud.google.com/gke-nodepool": pool,
                "cloud.google.com/gke-tpu-accelerator": accelerator,
                "cloud.google.com/gke-tpu-topology": topology,
            }, "name": f"gke-tpu-{pool}-{i}"}, "spec": {"podCIDR": "10.0.0.0/24"}}
        for pool in pools for i in range(2)
    ]  # fmt: skip
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}}


LABELS = (
    "cloud.google.com/gke-tpu-accelerator=tpu-v5p-slice,cloud.google.com/gke-tpu-topology=2x2x4"
)
DESCRIBED = """Name:               gke-tpu-1
Roles:              <none>
Labels:             beta.kubernetes.io/arch=amd64
                    cloud.google.com/gke-tpu-accelerator=tpu-v5p-slice
                    cloud.google.com/gke-tpu-topology=2x2x4
Annotations:        <none>
"""

GPU_TREE = (("b1", "s1", 2), ("b1", "s2", 1), ("b2", "s3", 1))  # block, subblock, its nodes


def gpu_nodes(kind: str = "nvidia-h100-mega-80gb", count: str = "8", tree=GPU_TREE) -> dict:
    """What ``kubectl get nodes -o json`` has of nodes with GPUs; labels are sorted by name."""
    leaves = [(block, leaf) for block, leaf, nodes in tree for _ in range(nodes)]
    items = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"labels": {
            "beta.kubernetes.io/arch": "amd64", "cloud.google.com/gce-topology-block": block,
            "cloud.google.com/gce-topology-host": f"machine-{i}",
            "cloud.google.com/gce-topology-subblock": leaf,
            "cloud.google.com/gke-accelerator": kind,
            "cloud.google.com/gke-accelerator-count": count,
            "kubernetes.io/hostname": f"gke-gpu-{i}", "kubernetes.io/os": "linux",
        }, "name": f"gke-gpu-{i}"}}
        for i, (block, leaf) in enumerate(leaves)
    ]  # fmt: skip
    return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {}}


GPU_NODES = json.dumps(gpu_nodes())

# ---------------------------------------------------------------------- ns-3

# Two servers of two GPUs, an NVSwitch each, below one switch.
SIMAI = """7 2 2 1 8 H100
4 5 6
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 2880Gbps 0.000025ms 0
3 5 2880Gbps 0.000025ms 0
0 6 400Gbps 0.0005ms 0
1 6 400Gbps 0.0005ms 0
2 6 400Gbps 0.0005ms 0
3 6 400Gbps 0.0005ms 0
"""
HPCC = "4 1 3\n0\n0 1 100Gbps 1us 0.000000\n2 0 100Gbps 1us 0\n0 3 25Gb/s 500ns 0\n"

# ---------------------------------------------------------------------- AMD


def matrix(names: list[str], said: Said, same: str) -> str:
    """A table of GPUs by GPUs, as both of AMD's tools print it."""
    lines = [" " * 13 + "".join(f"{name:<13}" for name in names)]
    for i, name in enumerate(names):
        cells = [same if i == j else str(said(i, j)) for j in range(len(names))]
        lines.append(f"{name:<13}" + "".join(f"{cell:<13}" for cell in cells))
    return "\n".join(lines) + "\n"


def rocm_smi(
    gpus: int,
    said: Said = lambda i, j: "XGMI",
    weight: Said = lambda i, j: 15,
    hops: Said = lambda i, j: 1,
    numa: Callable[[int], int] = lambda i: i // 4,
) -> str:
    names = [f"GPU{i}" for i in range(gpus)]
    text = f"{' ROCm System Management Interface ':=^90}\n"
    for title, cell in (("Weight", weight), ("Hops", hops), ("Link Type", said)):
        text += f"{f' {title} between two GPUs ':=^90}\n{matrix(names, cell, '0')}\n"
    text += f"{' Numa Nodes ':=^90}\n"
    for i in range(gpus):
        text += f"GPU[{i}]\t\t: (Topology) Numa Node: {numa(i)}\n"
        text += f"GPU[{i}]\t\t: (Topology) Numa Affinity: {numa(i)}\n"
    return text + f"{' End of ROCm SMI Log ':=^90}\n"


def rocm_smi_json(gpus: int, said: Said = lambda i, j: "XGMI") -> str:
    pairs = [(i, j) for i in range(gpus) for j in range(i + 1, gpus)]
    cards = {f"card{i}": {"(Topology) Numa Node": str(i // 4)} for i in range(gpus)}
    system = {}
    for what, cell in (("Weight", lambda i, j: 15), ("Hops", lambda i, j: 1), ("Link type", said)):
        system |= {
            f"(Topology) {what} between DRM devices {i} and {j}": str(cell(i, j)) for i, j in pairs
        }
    return json.dumps({"system": system, **cards})


def amd_smi(
    gpus: int,
    said: Said = lambda i, j: "XGMI",
    weight: Said = lambda i, j: 15,
    bandwidth: Said = lambda i, j: "N/A",
) -> str:
    names = [f"0000:{16 * i + 5:02x}:00.0" for i in range(gpus)]
    tables: list[tuple[str, Said, str]] = [
        ("ACCESS", lambda i, j: "ENABLED", "ENABLED"), ("WEIGHT", weight, "0"),
        ("HOPS", lambda i, j: 1, "0"), ("LINK TYPE", said, "SELF"),
        ("NUMA BW", bandwidth, "N/A"), ("CACHE COHERANCY", lambda i, j: "C", "SELF"),
    ]  # fmt: skip
    text = "".join(f"{title} TABLE:\n{matrix(names, cell, same)}\n" for title, cell, same in tables)
    return text + "\nLegend:\n  SELF = Current GPU\n  N/A = Not supported\n"


def amd_smi_json(gpus: int, said: Said = lambda i, j: "XGMI", is_old: bool = False) -> str:
    """``amd-smi topology --json`` of 6.4 and later, or of versions before."""

    def row(i: int) -> dict:
        kinds = ["SELF" if i == j else said(i, j) for j in range(gpus)]
        if is_old:
            return {
                "gpu": i,
                "weight": {f"gpu_{j}": 0 if i == j else 15 for j in range(gpus)},
                "hops": {f"gpu_{j}": int(i != j) for j in range(gpus)},
                "link_type": {f"gpu_{j}": kinds[j] for j in range(gpus)},
                "numa_bandwidth": {f"gpu_{j}": "N/A" for j in range(gpus)},
            }
        links = [
            {"gpu": j, "bdf": f"0000:{j:02x}:00.0", "weight": 15 * (i != j), "num_hops": 1,
             "link_type": kinds[j], "bandwidth": "50000-100000"}
            for j in range(gpus)
        ]  # fmt: skip
        return {"gpu": i, "bdf": f"0000:{i:02x}:00.0", "links": links}

    return json.dumps([row(i) for i in range(gpus)])
