"""MultiTree, Fig. 10: time of an all-reduce that grows with the torus, 375 KiB a rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.multitree.networks import LABELS, algorithms, torus
from experiments.plots import panels
from experiments.study import publish
from jaxcoll.simulation import PACKETS

SHOWN = ("multitree_msg", "ring_2d", "ring")
# Speedups of the paper's fastest over the others (Sec. VI-B).
PAPER_SPEEDUP = {"ring": 3.0, "ring_2d": 1.4}
_HEADS = 1 + PACKETS.head / (PACKETS.payload or 1)
# Without latency, as tori grow: Ring has one link of four, 2D-Ring sends everything twice, and both
# pay for the heads of packets.
BY_BYTES = {"ring": 4 * _HEADS, "ring_2d": 2 * _HEADS}


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        rows, columns: sides of each torus, smallest first; rows even.
        kib_per_rank: KiB of the buffer for every rank of the torus.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    kib_per_rank: int
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.columns):
            raise ConfigError(f"needs as many rows as columns, got {self.rows}, {self.columns}")
        if any(side < 2 for side in self.rows + self.columns) or any(r % 2 for r in self.rows):
            raise ConfigError(
                f"sides are at least 2 and rows even, got {self.rows}, {self.columns}"
            )
        at_least("kib_per_rank", self.kib_per_rank, 1)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each torus and algorithm, with its time over that of Ring on the smallest torus."""
    rows: list[dict[str, Any]] = []
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
