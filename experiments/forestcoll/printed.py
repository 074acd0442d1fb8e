"""Numbers that the dissertation prints of ForestColl, and their like of ours."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxcoll.bounds.throughput import fixed_k
from jaxcoll.topology import Topology

GB = 10**9

# Seconds of the authors' Java for 1024 ranks on 128 cores (dissertation, Table B.2): of the
# search for the optimum, the removal of switches and the packing of trees.
PAPER_STAGES = {"A100 x128": (2.2, 979.0, 1209.0), "MI250 64 x 16": (3.8, 550.0, 1708.0)}

# Table 4.1: k trees per rank on two MI250 hosts, GB/s.
PAPER_FIXED_K = {1: 320, 2: 341, 3: 343, 4: 341, 5: 348, 83: 354}


def fixed_row(topology: Topology, k: int, paper: float | None) -> dict[str, Any]:
    """One row of Table 4.1."""
    algbw = Fraction(topology.num_ranks) / fixed_k(topology, k).inverse / GB
    return {"trees per rank": k, "algbw GB/s": float(algbw), "paper GB/s": paper}
