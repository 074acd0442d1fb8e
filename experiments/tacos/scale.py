"""Time and memory to synthesize and prove all-gathers on meshes of growing size."""

from __future__ import annotations

import math
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxcoll import synthesize_compact, verify
from jaxcoll.topologies import mesh

# Sec. VI-C: an all_reduce on 64 threads. The paper's 3D Hypercube is a 3D mesh.
PAPER_SECONDS = {"mesh 200x200": 2.52 * 3600, "mesh 35x35x35": 3.29 * 3600}


def measure_mesh(
    sides: Sequence[int], folder: Path, threads: int, seed: int
) -> dict[str, str | int | float]:
    """One row: the cost of one mesh, in seconds of wall and processor, and in memory."""
    topology = mesh(*sides)
    started, used = time.perf_counter(), time.process_time()
    compact = synthesize_compact(topology, folder / topology.name, threads=threads, seed=seed)
    made, spent = time.perf_counter() - started, time.process_time() - used
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    verify(compact)
    replayed = time.perf_counter() - started
    shutil.rmtree(folder / topology.name)
    row = {
        "network": topology.name,
        "ranks": topology.num_ranks,
        "steps": compact.num_steps,
        "bound": -(-(topology.num_ranks - 1) // len(sides)),  # by the links of a corner
        "seconds": made,
        "processor seconds": spent,
        "replay seconds": replayed,
        "memory GB": memory * 1024 / 1e9,
        "disk GB": compact.nbytes / 1e9,
        "paper seconds": PAPER_SECONDS.get(topology.name),
    }
    return {column: figure for column, figure in row.items() if figure is not None}


def growth(rows: Sequence[Mapping]) -> float:
    """The exponent with which processor time grows with ranks, from the first row to the last."""
    first, last = rows[0], rows[-1]
    ratio = last["processor seconds"] / first["processor seconds"]
    return math.log(ratio) / math.log(last["ranks"] / first["ranks"])
