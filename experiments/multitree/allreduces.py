"""MultiTree's all-reduces: bandwidth against size (Fig. 9), and time on growing tori (Fig. 10)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from experiments.config import StudyConfig, at_least, one_of
from experiments.errors import ConfigError
from experiments.multitree.networks import ALGORITHMS, LABELS, LEAST, NETWORKS, algorithms, torus
from experiments.plots import panels
from experiments.study import Rows, publish
from jaxcoll.draw import format_bytes
from jaxcoll.simulation import PACKETS


@dataclasses.dataclass(frozen=True)
class Bandwidth(StudyConfig):
    """The figure.

    Attributes:
        networks: names in ``NETWORKS``.
        sizes: bytes of a rank's buffer, rising.
    """

    networks: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        for network in self.networks:
            one_of("networks", network, tuple(NETWORKS))
        if not self.networks or not self.sizes or sorted(set(self.sizes)) != list(self.sizes):
            raise ConfigError(f"needs networks, and sizes that rise, got {self.sizes}")
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
    publish(title, rows, config.results, figure=figure, notes=config.notes, remarks=remarks)
    return rows


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
    """The figure.

    Attributes:
        rows, columns: sides of each torus, smallest first; rows even.
        kib_per_rank: KiB of the buffer for every rank of the torus.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    kib_per_rank: int

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.columns):
            raise ConfigError(f"needs as many rows as columns, got {self.rows}, {self.columns}")
        if any(side < 2 for side in self.rows + self.columns) or any(r % 2 for r in self.rows):
            raise ConfigError(
                f"sides are at least 2 and rows even, got {self.rows}, {self.columns}"
            )
        at_least("kib_per_rank", self.kib_per_rank, 1)


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
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
