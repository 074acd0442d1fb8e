"""Fig. A.4: the construction of the fastest all_reduce at every number of ranks."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.config import at_least
from experiments.direct_connect.baselines import Machine
from experiments.direct_connect.printed import plain_axes
from experiments.errors import ConfigError
from experiments.study import publish
from jaxcoll.bounds.moore import least_cost
from jaxcoll.draw import format_bytes
from jaxcoll.draw.style import INK, PALETTE
from jaxcoll.errors import TopologyError
from jaxcoll.finder import Construction, Found, FoundTopology, frontiers

# The letters of the figure's legend; bases are called by their family.
_LETTERS = {"line_graph": "L", "power": "P", "product": "C", "degree": "D"}
_FAMILIES = {
    "generalized_kautz": "GenKautz",
    "circulant": "Circulant",
    "cayley": "Cayley",
    "distance_regular": "DistReg",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """The figure.

    Attributes:
        size: the preset, "ci" or "paper".
        degree: links out of every rank.
        machine: constants of the cost model.
        nbytes: sizes of a rank's buffer.
        largest: most ranks.
        sizes: numbers of ranks that have a row of their own.
        notes: differences from the paper.
        results: folder to write to.
    """

    size: str
    degree: int
    machine: Machine
    nbytes: tuple[int, ...]
    largest: int
    sizes: tuple[int, ...]
    notes: tuple[str, ...]
    results: Path

    def __post_init__(self) -> None:
        at_least("largest", self.largest, self.degree + 2)
        if any(not self.degree < n <= self.largest for n in self.sizes):
            raise ConfigError(f"sizes are above degree {self.degree}, up to {self.largest}")


def kind(construction: Construction) -> str:
    """The letters of its expansions, the base's family of none, else "other"."""
    letters = set()
    inside = [construction]
    while inside:
        part = inside.pop()
        letters.add(_LETTERS.get(part.operation, ""))
        inside += part.parts
    found = "".join(letter for letter in "LDPC" if letter in letters)
    return found or _FAMILIES.get(construction.operation, "other base")


def run(config: Config) -> list[dict[str, Any]]:
    """Rows of how many sizes each construction is best at, then of single sizes."""
    machine, table = config.machine, frontiers(config.largest, config.degree)
    rows: list[dict[str, Any]] = []
    picked: list[dict[str, Any]] = []
    points: dict[str, dict[int, tuple[float, float | None, float]]] = {}
    sizes = range(config.degree + 1, config.largest + 1)
    for nbytes in config.nbytes:
        count: collections.Counter[str] = collections.Counter()
        curve = points.setdefault(format_bytes(nbytes), {})
        for n in sizes:
            point, time = fastest(table.found(n), machine, nbytes)
            try:
                back = fastest(table.found(n, links="both_ways"), machine, nbytes)
            except TopologyError:  # no construction of this size has links both ways
                back = None
            bound = machine.time_us(least_cost(n, config.degree), nbytes)
            best_kind = kind(point.construction)
            count[best_kind] += 1
            curve[n] = time, back and back[1], bound
            if n in config.sizes:
                picked.append(
                    {
                        "buffer": format_bytes(nbytes),
                        "N": n,
                        "best": str(point.construction),
                        "us": time,
                        "best both ways": str(back[0].construction) if back else None,
                        "both ways us": back and back[1],
                        "bound us": bound,
                    }
                )
        rows += [
            {
                "buffer": format_bytes(nbytes),
                "construction": name,
                "sizes": times,
                "% of sizes": 100 * times / len(sizes),
            }
            for name, times in sorted(count.items(), key=lambda item: (-item[1], item[0]))
        ]
    title = f"Fig. A.4: fastest all_reduces of degree {config.degree}"
    publish(title, [*rows, *picked], config.results, figure=draw(points), notes=config.notes)
    return [*rows, *picked]


def fastest(found: Found, machine: Machine, nbytes: int) -> tuple[FoundTopology, float]:
    """The topology of a frontier with the least time in microseconds, and that time."""
    times = [machine.time_us(point.cost, nbytes) for point in found.points]
    best = min(range(len(times)), key=times.__getitem__)
    return found.points[best], times[best]


def draw(points: Mapping[str, Mapping[int, tuple[float, float | None, float]]]) -> Figure:
    """Times over ranks: best, best both ways, bound; a panel for each size of buffer."""
    figure = Figure(figsize=(4.4 * len(points), 3.6), layout="constrained")
    for axes, (name, curve) in zip(
        figure.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True
    ):
        n = list(curve)
        axes.plot(n, [c[1] for c in curve.values()], ".", color=PALETTE[1], markersize=2)
        axes.plot(n, [c[0] for c in curve.values()], ".", color=PALETTE[0], markersize=2)
        axes.plot(n, [c[2] for c in curve.values()], color=INK, linewidth=1)
        axes.set_title(f"{name}: best, best both ways, bound", fontsize=10, color=INK)
        plain_axes(axes, "ranks", "microseconds of all_reduce")
    return figure
