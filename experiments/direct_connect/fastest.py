"""The fastest construction at every number of ranks (Fig. A.4)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig
from experiments.direct_connect.baselines import Machine
from experiments.figures import panels
from experiments.limits import at_least
from experiments.study import ConfigError, Rows
from jaxcoll.bounds.moore import least_cost
from jaxcoll.draw import format_bytes
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
class Best(StudyConfig):
    """The figure."""

    degree: int  # links out of every rank
    machine: Machine  # constants of the cost model
    nbytes: tuple[int, ...]  # sizes of a rank's buffer
    largest: int  # most ranks
    sizes: tuple[int, ...]  # numbers of ranks that have a row of their own

    def __post_init__(self) -> None:
        at_least("largest", self.largest, self.degree + 2)
        if any(not self.degree < n <= self.largest for n in self.sizes):
            raise ConfigError(
                f"sizes must be above degree {self.degree} and at most {self.largest}, got "
                f"{self.sizes}"
            )


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


def best_constructions(config: Best) -> list[dict[str, Any]]:
    """Rows of how many sizes each construction is best at, then of single sizes."""
    machine, table = config.machine, frontiers(config.largest, config.degree)
    rows: list[dict[str, Any]] = Rows()
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
    return config.publish(title, [*rows, *picked], figure=draw(points))


def fastest(found: Found, machine: Machine, nbytes: int) -> tuple[FoundTopology, float]:
    """The topology of a frontier with the least time in microseconds, and that time."""
    times = [machine.time_us(point.cost, nbytes) for point in found.points]
    best = min(range(len(times)), key=times.__getitem__)
    return found.points[best], times[best]


def draw(points: Mapping[str, Mapping[int, tuple[float, float | None, float]]]) -> Figure:
    """Times over ranks: best, best both ways, bound; a panel for each size of buffer."""
    curves = {
        title: {
            name: {n: times[i] for n, times in curve.items() if times[i] is not None}
            for i, name in enumerate(("best", "best both ways", "bound"))
        }
        for title, curve in points.items()
    }
    label = "microseconds of all_reduce"
    return panels(curves, label_x="ranks", label_y=label, log_x=False)  # type: ignore[arg-type]
