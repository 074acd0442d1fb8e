"""x

MultiTree's networks and all-reduce algorithms, as its paper configures them (ISCA 2021).

Training time of seven networks on MultiTree's torus (Fig. 11), and what ways of overlap hide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from experiments.config import StudyConfig, one_of
from experiments.errors import ConfigError
from experiments.plots import stacked_bars
from experiments.study import publish
from experiments.workloads import (
    Overlap,
    Simulated,
    Workload,
    fastest,
    in_turn,
    iteration,
    load_accelerator,
    load_model,
    workload,
)
from experiments.workloads import training_time as shared
from experiments.workloads.models import Time, known_models
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


SHOWN = ("ring", "double_binary_tree", "ring_2d", "multitree", "multitree_msg")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Models on a torus, data parallel.

    Attributes:
        sides: of the torus; the first even.
        models: names in ``configs/workload``.
        accelerator: a name in ``configs/accelerator``.
        batch_per_rank: of every rank.
        element_bytes: bytes of a gradient.
    """

    sides: tuple[int, ...]
    models: tuple[str, ...]
    accelerator: str
    batch_per_rank: int
    element_bytes: int

    def __post_init__(self) -> None:
        if len(self.sides) != 2 or min(self.sides) < 2 or self.sides[0] % 2:
            raise ConfigError(f"sides are two, of at least 2, the first even; got {self.sides}")
        if not self.models:
            raise ConfigError("models must name at least one")
        for model in self.models:
            one_of("models", model, known_models())

    def workloads(self) -> dict[str, Workload]:
        """The workload of every model, by the name in its table."""
        accelerator = load_accelerator(self.accelerator)
        models = [load_model(name) for name in self.models]
        return {
            model.name: workload(
                model,
                accelerator,
                batch_per_rank=self.batch_per_rank,
                element_bytes=self.element_bytes,
                ranks=math.prod(self.sides),
            )
            for model in models
        }


@dataclasses.dataclass(frozen=True)
class TrainingTime(StudyConfig):
    """The figure.

    Attributes:
        title: of the table.
        setting: the workloads that are trained.
        overlap: which all-reduces run beside compute.
        claims: the paper's numbers; models by the names in their tables.
    """

    title: str
    setting: Setting
    overlap: Overlap
    claims: tuple[shared.PaperPick, ...]

    def __post_init__(self) -> None:
        for claim in self.claims:
            one_of("claims.of", claim.of, SHOWN)
            one_of("claims.over", claim.over, ("", *SHOWN))


def training_time(config: TrainingTime) -> list[dict[str, Any]]:
    """A row for each network and algorithm, and one for each number that the paper prints."""
    topology = torus(*config.setting.sides)
    defined = algorithms(topology)
    times = {name: {"all": defined[name]} for name in SHOWN}
    runs = shared.run_all(config.setting.workloads(), times, config.overlap)
    rows = shared.rows(runs, LABELS, "ring")
    rows += [claim.row(runs, LABELS) for claim in config.claims]
    figure = shared.draw(runs, LABELS, "ring")
    publish(config.title, rows, config.results, figure=figure, notes=config.notes)
    return rows


# ----------------------------------------- how much of the all-reduces several ways of overlap hide


@dataclasses.dataclass(frozen=True)
class Overlaps(StudyConfig):
    """The study; the paper has none of it but the two ways of its Fig. 11.

    Attributes:
        setting: the workloads that are trained.
        algorithm: of the all-reduces, one of those in Fig. 11.
        overlaps: ways to overlap, by name.
    """

    setting: Setting
    algorithm: str
    overlaps: Mapping[str, Overlap]

    def __post_init__(self) -> None:
        one_of("algorithm", self.algorithm, SHOWN)
        if not self.overlaps:
            raise ConfigError("overlaps must name at least one")


def overlaps(config: Overlaps) -> list[dict[str, Any]]:
    """A row for each model, with its compute and the length of an iteration, all ms."""
    topology = torus(*config.setting.sides)
    times = {"all": algorithms(topology)[config.algorithm]}
    rows, bars = [], {}
    for model, work in config.setting.workloads().items():
        runs = {name: iteration(work, times, way) for name, way in config.overlaps.items()}
        row: dict[str, Any] = {
            "model": model,
            "MB of gradients": work.gradient_bytes / 1e6,
            "compute ms": 1e3 * float(work.compute),
        }
        rows.append(row | {name: 1e3 * float(run.total) for name, run in runs.items()})
        bars[model] = {
            name: {
                "compute": 1.0,
                "waits for gradients": float(run.exposed / run.compute),
            }
            for name, run in runs.items()
        }
    figure = stacked_bars(
        bars, parts=["compute", "waits for gradients"], label="time of an iteration over compute"
    )
    label = LABELS[config.algorithm]
    title = f"An iteration in ms with {label} on {topology.name}, by what overlaps"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows
