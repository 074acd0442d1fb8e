"""MultiTree's networks and all-reduce algorithms, as its paper configures them (ISCA 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiments.workloads import Simulated, fastest, in_turn
from experiments.workloads.models import Time
from jaxcoll import topologies
from jaxcoll.simulation import PACKETS, WHOLE, Framing
from jaxcoll.synth import DoubleBinaryTree, Hdrm, MultiTree, Ring, Ring2D
from jaxcoll.topology import Topology

ALPHA = 150e-9  # seconds per link (Table III)
BANDWIDTH = 16e9  # bytes per second (Table III)
ALGORITHMS = ("multitree_msg", "multitree", "double_binary_tree", "ring_2d", "ring", "hdrm")
LEAST = "ring_2d_least"  # not in the paper
LABELS = {
    "multitree_msg": "MultiTreeMsg",
    "multitree": "MultiTree",
    "double_binary_tree": "DBTree",
    "ring_2d": "2D-Ring",
    "ring": "Ring",
    "hdrm": "HDRM",
    LEAST: "2D-Ring, least bytes",
}
# Table III: virtual cut-through. Pieces of a message that crosses several links, at most.
PIECES = 8


def torus(rows: int, columns: int) -> Topology:
    """A torus with the links of the paper."""
    return topologies.torus(rows, columns, alpha=ALPHA, bandwidth=BANDWIDTH)


def mesh(rows: int, columns: int) -> Topology:
    """A mesh with the links of the paper."""
    return topologies.mesh(rows, columns, alpha=ALPHA, bandwidth=BANDWIDTH)


# Sec. VI-A and Fig. 9; the 16-rank Fat-Tree is a DGX-2 with one of its six planes of switches.
NETWORKS: Mapping[str, Callable[[], Topology]] = {
    "4x4 torus": lambda: torus(4, 4),
    "8x8 torus": lambda: torus(8, 8),
    "4x4 mesh": lambda: mesh(4, 4),
    "8x8 mesh": lambda: mesh(8, 8),
    "16-rank fat tree": lambda: topologies.dgx2(planes=1, alpha=ALPHA, bandwidth=BANDWIDTH),
    "64-rank fat tree": lambda: topologies.fat_tree(8, 2, alpha=ALPHA, bandwidth=BANDWIDTH),
    "4x8 BiGraph": lambda: topologies.bigraph(4, 8, alpha=ALPHA, bandwidth=BANDWIDTH),
    "4x16 BiGraph": lambda: topologies.bigraph(4, 16, alpha=ALPHA, bandwidth=BANDWIDTH),
}


def algorithms(topology: Topology) -> dict[str, Time]:
    """The algorithms of Fig. 9 that are defined for a network, and their all-reduce times.

    All data is in packets of 256 bytes behind a head of 16 (Table III), but for MultiTreeMsg, whose
    messages have one head (Sec. IV-B). Beside them, on tori, the 2D-Ring whose second dimension
    only moves what the first has scattered.
    """
    found: dict[str, Time] = {
        "multitree_msg": _multitree(topology, WHOLE),
        "multitree": _multitree(topology, PACKETS),
        "double_binary_tree": _double_binary_tree(topology),
    }
    if _sides(topology):
        found["ring_2d"] = _ring_2d(topology)
    found["ring"] = _ring(topology)
    if topology.name.startswith("BiGraph"):
        found["hdrm"] = Simulated(topology, Hdrm(), framing=PACKETS, pieces=PIECES)
    if _is_torus(topology):
        found[LEAST] = Simulated(topology, Ring2D(), chunks=4, framing=PACKETS)
    return found


def _multitree(topology: Topology, framing: Framing) -> Time:
    """Trees of links; through switches, the better of the two orders of looking for children."""
    if topology.is_direct:
        return Simulated(topology, MultiTree(), framing=framing)
    orders = (MultiTree(), MultiTree(nearest_first=True))
    return fastest([Simulated(topology, o, framing=framing, pieces=PIECES) for o in orders])


def _ring(topology: Topology) -> Time:
    """One way round; on a grid, along links only ("contention none", Table I)."""
    sides = _sides(topology)
    circles = (hamiltonian_cycle(*sides),) if sides else None
    ring = Ring(bidirectional=False, order="ranks", circles=circles)
    return Simulated(topology, ring, framing=PACKETS, pieces=1 if sides else PIECES)


def _ring_2d(topology: Topology) -> Time:
    """A whole all-reduce along one dimension, then another along the other (Sec. II-C).

    Half of the data takes the rows first, half the columns, all rings both ways, so that all links
    of a torus are busy; twice the volume of one ring. On a mesh a ring closes over the way back
    along its line.
    """
    rows, columns = lines(*(_sides(topology) or (0, 0)))
    pieces = 1 if _is_torus(topology) else PIECES
    halves = [
        Simulated(topology, Ring(order="ranks"), 2, groups=groups, framing=PACKETS, pieces=pieces)
        for groups in (rows, columns)
    ]
    return in_turn(halves, halves)


def _double_binary_tree(topology: Topology) -> Time:
    """A topology-oblivious baseline, with the number of segments that is fastest at each size."""
    ways = [(DoubleBinaryTree(pieces=1), 1), (DoubleBinaryTree(), 1), (DoubleBinaryTree(), 4)]
    return fastest([Simulated(topology, tree, k, framing=PACKETS) for tree, k in ways])


def lines(rows: int, columns: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The ranks of every row of a grid, and those of every column."""
    ranks = [[row * columns + column for column in range(columns)] for row in range(rows)]
    return tuple(map(tuple, ranks)), tuple(zip(*ranks, strict=True))


def hamiltonian_cycle(rows: int, columns: int) -> tuple[int, ...]:
    """A circle along links of a mesh with an even number of rows.

    Down the first column, then back up through the other columns row by row, to and fro.
    """
    if rows % 2 or columns < 2:
        raise ValueError(f"the rows must be even and the columns several, got {rows}x{columns}")
    circle = [row * columns for row in range(rows)]
    for turn, row in enumerate(reversed(range(rows))):
        there = range(1, columns)
        circle += [row * columns + column for column in (reversed(there) if turn % 2 else there)]
    return tuple(circle)


def _sides(topology: Topology) -> tuple[int, int] | None:
    """Rows and columns of a mesh or torus."""
    grid = topology.grid
    if grid is None or not topology.is_direct or len(grid.shape) != 2:
        return None
    return grid.shape[0], grid.shape[1]


def _is_torus(topology: Topology) -> bool:
    return _sides(topology) is not None and topology.grid is not None and all(topology.grid.wrap)
