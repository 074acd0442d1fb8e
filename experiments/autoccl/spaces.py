"""Table 2 and Fig. 2: how many configurations there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.autoccl.labels import MEASURED, MODELLED
from experiments.config import at_least
from experiments.errors import ConfigError
from experiments.study import Row, Rows, publish
from jaxcoll.configurations.config import TABLE_2
from jaxcoll.draw.bandwidth import INK, MARKERS, PALETTE
from jaxcoll.tune import Space

_MB = 2**20


@dataclasses.dataclass(frozen=True)
class Config:
    """The table and the figure.

    Attributes:
        size: the preset, "ci" or "paper".
        printed: the paper's number of values of every parameter of Table 2, in its order.
        megabytes: sizes of messages (of 2**20 bytes).
        groups: numbers of ranks.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    printed: tuple[int, ...]
    megabytes: tuple[int, ...]
    groups: tuple[int, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        if len(self.printed) != len(TABLE_2):
            raise ConfigError(f"printed must be {len(TABLE_2)} numbers of values")
        for value in (*self.megabytes, *self.groups):
            at_least("megabytes and groups", value, 1)


def run(config: Config) -> list[Row]:
    """The parameters of Table 2, the size of the space, and what of it differs for a message."""
    space = Space.nccl()
    rows: list[Row] = Rows(
        {
            "what": f"values of {parameter.name} ({parameter.kind})",
            "ours": len(parameter.values),
            "paper": printed,
            "row": MEASURED,
        }
        for parameter, printed in zip(TABLE_2, config.printed, strict=True)
    )
    rows += [
        {"what": "subspaces", "ours": len(space.subspaces), "row": MEASURED},
        {"what": "points per subspace", "ours": space.subspaces[0].size, "row": MEASURED},
        {"what": "points", "ours": space.size, "row": MEASURED},
    ]
    rows += [
        {
            "what": f"different for {megabytes} MB on {ranks} ranks",
            "MB": megabytes,
            "ranks": ranks,
            "ours": different(space, megabytes * _MB // ranks),
            "row": MODELLED,
        }
        for ranks in config.groups
        for megabytes in config.megabytes
    ]
    title = "AutoCCL, Table 2 and Fig. 2: configurations"
    publish(title, rows, config.results, figure=_figure(rows, config.groups), notes=config.notes)
    return rows


def different(space: Space, shard_bytes: int) -> int:
    """Points of which a step of NC chunks of C bytes is not larger than a shard.

    A larger step moves the whole shard at once, as a smaller one does: the two do not differ.
    """
    total = 0
    for subspace in space.subspaces:
        channels, threads, chunks = (np.asarray(p.values) for p in subspace.resources)
        largest = shard_bytes // channels
        total += len(threads) * int(np.searchsorted(chunks, largest, side="right").sum())
    return total


def _figure(rows: Sequence[Row], groups: Sequence[int]) -> Figure:
    figure = Figure(figsize=(5.5, 3.5), layout="constrained")
    axes = figure.subplots()
    for i, ranks in enumerate(groups):
        at = [row for row in rows if row.get("ranks") == ranks]
        x, y = ([row[column] for row in at] for column in ("MB", "ours"))
        axes.plot(x, y, color=PALETTE[i], marker=MARKERS[i], label=f"{ranks} ranks")  # type: ignore[arg-type]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("message (MB)", color=INK)
    axes.set_ylabel("configurations", color=INK)
    axes.legend(frameon=False)
    return figure
