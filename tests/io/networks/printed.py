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
