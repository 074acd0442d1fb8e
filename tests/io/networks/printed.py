"""What tools of clusters print, in small: written by their layout, with names of nobody's."""

from __future__ import annotations

import json
from collections.abc import Callable

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
