"""MultiTree's all-reduces: bandwidth against size (Fig. 9), and time on growing tori (Fig. 10).

The networks and the algorithms, as the paper configures them (ISCA 2021), come first; the other
studies of MultiTree take them from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from experiments.config import StudyConfig
from experiments.figures import panels
from experiments.limits import Count, among, at_least
from experiments.study import ConfigError, Rows
from experiments.workloads import Simulated, fastest, in_turn
from experiments.workloads.models import Time
from jaxcoll import topologies
from jaxcoll.draw import format_bytes
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
    # The paper leaves open which child is taken behind a switch.
    orders = (MultiTree(), MultiTree(nearest_first=True))
    return fastest([Simulated(topology, o, framing=framing, pieces=PIECES) for o in orders])


def _ring(topology: Topology) -> Time:
    """One way round; on a grid, along links only ("contention none", Table I)."""
    sides = _sides(topology)
    # Ranks in order would cross links of others on a grid, and Table I says that a ring has no
    # contention.
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
        raise ValueError(f"rows must be even and columns at least 2, got {rows}x{columns}")
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


@dataclasses.dataclass(frozen=True)
class Bandwidth(StudyConfig):
    """The figure."""

    networks: tuple[Annotated[str, among(NETWORKS)], ...]
    sizes: tuple[int, ...]  # bytes of a rank's buffer, rising

    def __post_init__(self) -> None:
        if not self.networks or not self.sizes or sorted(set(self.sizes)) != list(self.sizes):
            raise ConfigError(f"networks must not be empty, and sizes must rise, got {self.sizes}")
        at_least("sizes", self.sizes[0], 1)


def bandwidth(config: Bandwidth) -> list[dict[str, Any]]:
    """A row for each network and algorithm, with the bandwidth at every size in GB/s."""
    measured: dict[str, Curves] = {}
    rows = Rows()
    for network in config.networks:
        measured[network] = speeds = measure(network, config.sizes)
        for algorithm, curve in speeds.items():
            row: dict[str, Any] = {"network": network, "algorithm": LABELS[algorithm]}
            row |= {format_bytes(size): speed for size, speed in curve.items()}
            row["/ Ring"] = curve[config.sizes[-1]] / speeds["ring"][config.sizes[-1]]
            if algorithm == "multitree_msg":
                most = curve[config.sizes[-1]]
                row["gain %"] = 100 * (most / speeds["multitree"][config.sizes[-1]] - 1)
                row["paper gain %"] = 6.0  # Sec. VI-A
            rows.append(row)
    title = "MultiTree, Fig. 9: all-reduce bandwidth in GB/s by size of the buffer"
    figure = panels(
        {
            network: {LABELS[name]: speeds[name] for name in (*ALGORITHMS, LEAST) if name in speeds}
            for network, speeds in measured.items()
        },
        label_x="buffer of a rank",
        label_y="bandwidth (GB/s)",
    )
    remarks = _remarks(measured)
    return config.publish(title, rows, figure=figure, remarks=remarks)


Curves = dict[str, dict[int, float]]


def measure(network: str, sizes: Sequence[int]) -> Curves:
    """Bandwidth in GB/s by algorithm and size."""
    times = algorithms(NETWORKS[network]())
    return {
        name: {size: size / float(time(size)) / 1e9 for size in sizes}
        for name, time in times.items()
    }


# ---------------------------------------------------------------------- claims of the paper


def beats_all(speeds: Curves) -> bool:
    """Both MultiTrees are above all others of the paper at every size."""
    others = speeds.keys() - {"multitree", "multitree_msg", LEAST}
    ours = [speeds[name] for name in ("multitree", "multitree_msg")]
    return all(
        mine[size] > speeds[other][size] for mine in ours for other in others for size in mine
    )


def double_binary_tree_is_last(speeds: Curves) -> bool:
    """At the largest size."""
    most = max(speeds["ring"])
    return min(speeds, key=lambda name: speeds[name][most]) == "double_binary_tree"


def ring_2d_beats_ring(speeds: Curves) -> bool:
    """At the largest size."""
    most = max(speeds["ring"])
    return speeds["ring_2d"][most] > speeds["ring"][most]


def ring_beats_ring_2d(speeds: Curves) -> bool:
    """At the largest size."""
    return not ring_2d_beats_ring(speeds)


def meets_ring(speeds: Curves) -> bool:
    """MultiTree is above Ring at the smallest size, and within 2 % of it at the largest."""
    least, most = min(speeds["ring"]), max(speeds["ring"])
    tree, ring = speeds["multitree"], speeds["ring"]
    return tree[least] > ring[least] and abs(tree[most] / ring[most] - 1) < 0.02


def beats_hdrm_when_small(speeds: Curves) -> bool:
    """At the smallest size."""
    least = min(speeds["hdrm"])
    return speeds["multitree"][least] > speeds["hdrm"][least]


_GRIDS = ("4x4 torus", "8x8 torus", "4x4 mesh", "8x8 mesh")
_TORI = ("4x4 torus", "8x8 torus")
_SWITCHED = ("16-rank fat tree", "64-rank fat tree", "4x8 BiGraph", "4x16 BiGraph")
_BIGRAPHS = ("4x8 BiGraph", "4x16 BiGraph")
# Claims of Sec. VI-A about Fig. 9, and their networks.
CLAIMS: dict[str, tuple[Callable[[Curves], bool], Sequence[str]]] = {
    "MultiTree and MultiTreeMsg are best at every size": (beats_all, _GRIDS),
    "DBTree is the worst": (double_binary_tree_is_last, _TORI),
    "2D-Ring is better than Ring": (ring_2d_beats_ring, (*_TORI, "4x4 mesh")),
    "2D-Ring is worse than Ring": (ring_beats_ring_2d, ("8x8 mesh",)),
    "MultiTree beats Ring on small data and meets it on large": (meets_ring, _SWITCHED),
    "HDRM is worse than MultiTree on small data": (beats_hdrm_when_small, _BIGRAPHS),
}


def _remarks(measured: dict[str, Curves]) -> list[str]:
    """Whether the rows hold the paper's claims, claim by claim."""
    found = []
    for text, (holds, networks) in CLAIMS.items():
        shown = {network: holds(measured[network]) for network in networks if network in measured}
        said = ", ".join(f"{network} {'yes' if held else 'NO'}" for network, held in shown.items())
        if said:
            found.append(f"The paper (Sec. VI-A): {text}. Ours: {said}.")
    return found


# ---------------------------------------------------------------------- Figure 10


SHOWN = ("multitree_msg", "ring_2d", "ring")
# Speedups of the paper's fastest over the others (Sec. VI-B).
PAPER_SPEEDUP = {"ring": 3.0, "ring_2d": 1.4}
_HEADS = 1 + PACKETS.head / (PACKETS.payload or 1)
# Without latency, as tori grow: Ring has one link of four, 2D-Ring sends everything twice, and both
# pay for the heads of packets.
BY_BYTES = {"ring": 4 * _HEADS, "ring_2d": 2 * _HEADS}


@dataclasses.dataclass(frozen=True)
class Scalability(StudyConfig):
    """The figure."""

    # rows, columns: sides of each torus, smallest first; rows even
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    kib_per_rank: Count  # KiB of the buffer for every rank of the torus

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.columns):
            raise ConfigError(
                f"rows and columns must be equally many and not empty, got {self.rows}, "
                f"{self.columns}"
            )
        if any(side < 2 for side in self.rows + self.columns) or any(r % 2 for r in self.rows):
            raise ConfigError(
                f"sides must be at least 2 and rows even, got {self.rows}, {self.columns}"
            )


def scalability(config: Scalability) -> list[dict[str, Any]]:
    """A row for each torus and algorithm, with its time over that of Ring on the smallest torus."""
    rows: list[dict[str, Any]] = Rows()
    first = None
    for sides in zip(config.rows, config.columns, strict=True):
        topology = torus(*sides)
        nbytes = 1024 * config.kib_per_rank * topology.num_ranks
        times = {name: algorithms(topology)[name](nbytes) for name in SHOWN}
        first = first or times["ring"]
        for name in SHOWN:
            speedup = float(times[name] / times["multitree_msg"])
            rows.append(
                {
                    "ranks": topology.num_ranks,
                    "torus": f"{sides[0]}x{sides[1]}",
                    "algorithm": LABELS[name],
                    "ms": 1e3 * float(times[name]),
                    "normalized": float(times[name] / first),
                    "MultiTreeMsg is faster by": speedup,
                    "paper is faster by": PAPER_SPEEDUP.get(name),
                    "by bytes": BY_BYTES.get(name),
                }
            )
    curves = {
        LABELS[name]: {r["ranks"]: r["normalized"] for r in rows if r["algorithm"] == LABELS[name]}
        for name in SHOWN
    }
    title = f"MultiTree, Fig. 10: all-reduce of {config.kib_per_rank} KiB a rank on growing tori"
    figure = panels(
        {f"{config.kib_per_rank} KiB for every rank": curves},
        label_x="ranks of the torus",
        label_y="time over Ring's on the smallest",
        columns=1,
        in_bytes=False,
    )
    return config.publish(title, rows, figure=figure)
