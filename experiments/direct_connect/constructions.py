"""Large topologies made of small ones: line graphs (Fig. 3.3) and the fastest (Fig. A.4)."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.config import StudyConfig, at_least
from experiments.direct_connect.paper import Machine, built_cost, parse, plain_axes, predicted
from experiments.errors import CheckError, ConfigError
from experiments.study import panels, publish
from jaxcoll.bounds.moore import bandwidth_optimum, least_cost, moore_steps
from jaxcoll.draw import format_bytes
from jaxcoll.draw.bandwidth import INK, PALETTE
from jaxcoll.errors import TopologyError
from jaxcoll.finder import Construction, Found, FoundTopology, frontiers


@dataclasses.dataclass(frozen=True)
class LineGraphs(StudyConfig):
    """The figure.

    Attributes:
        bases: in the notation of Table A.3.
        largest: most ranks.
        most_built: ranks up to which schedules are built and verified; others are predicted.
    """

    bases: tuple[str, ...]
    largest: int
    most_built: int

    def __post_init__(self) -> None:
        at_least("most_built", self.most_built, 0)
        if not self.bases:
            raise ConfigError("needs bases")


def line_graphs(config: LineGraphs) -> list[dict[str, Any]]:
    """A row for each base and number of expansions."""
    rows = []
    for name in config.bases:
        base = parse(name)
        found, times = predicted(base), 0
        while found.size <= config.largest:
            construction = Construction("line_graph", (times,), (base,)) if times else base
            found = predicted(construction)
            if found.size > config.largest:
                break
            built = found.size <= config.most_built
            if built and built_cost(construction) != found.cost:
                raise CheckError(f"{construction} does not cost {found.cost} as built")
            share = found.cost.inverse_bandwidth / bandwidth_optimum(found.size)
            rows.append(
                {
                    "base": name,
                    "topology": str(construction),
                    "N": found.size,
                    "T_L": found.cost.steps,
                    "T_L*": moore_steps(found.size, found.degree),
                    "T_B": float(found.cost.inverse_bandwidth),
                    "T_B / T_B*": float(share),
                    "built": built,
                }
            )
            times += 1
    curves = {
        label: {
            base: {row["N"]: row[column] for row in rows if row["base"] == base}
            for base in config.bases
        }
        for label, column in (("T_L in alpha", "T_L"), ("T_B / T_B*", "T_B / T_B*"))
    }
    figure = panels(curves, label_x="ranks", label_y="", in_bytes=False)
    title = "Fig. 3.3: line graph expansions of bases of degree 4"
    publish(title, rows, config.results, figure=figure, notes=config.notes)
    return rows


# -------------------------------------------------- the fastest at every number of ranks (Fig. A.4)


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
    """The figure.

    Attributes:
        degree: links out of every rank.
        machine: constants of the cost model.
        nbytes: sizes of a rank's buffer.
        largest: most ranks.
        sizes: numbers of ranks that have a row of their own.
    """

    degree: int
    machine: Machine
    nbytes: tuple[int, ...]
    largest: int
    sizes: tuple[int, ...]

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


def best_constructions(config: Best) -> list[dict[str, Any]]:
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
