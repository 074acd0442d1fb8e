"""Large topologies: made of small ones (Fig. 3.3, A.4), and the finder's at many ranks (Fig. 3.7).

Large topologies made of small ones: line graphs (Fig. 3.3) and the fastest (Fig. A.4).

Fig. 3.7: all_reduce and all-to-all of the finder's topologies and of baselines at many ranks.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

from matplotlib.figure import Figure

from experiments.config import PaperValue, StudyConfig
from experiments.direct_connect.paper import (
    Machine,
    built_cost,
    double_tree_us,
    parse,
    predicted,
    rate_bound,
    shifted_ring,
    traditional_torus,
)
from experiments.figures import panels
from experiments.limits import Filled, Natural, among, at_least, rising
from experiments.study import CheckError, ConfigError, Rows, tell
from jaxcoll.bounds.moore import bandwidth_optimum, least_cost, moore_steps
from jaxcoll.draw import format_bytes
from jaxcoll.errors import TopologyError
from jaxcoll.finder import Construction, Found, FoundTopology, frontiers
from jaxcoll.topologies.generative import (
    Digraph,
    circulant,
    generalized_kautz,
    least_diameter_circulant,
    torus,
)


@dataclasses.dataclass(frozen=True)
class LineGraphs(StudyConfig):
    """The figure."""

    bases: Filled[tuple[str, ...]]  # in the notation of Table A.3
    largest: int  # most ranks
    most_built: Natural  # ranks up to which schedules are built and verified; others are predicted


def line_graphs(config: LineGraphs) -> list[dict[str, Any]]:
    """A row for each base and number of expansions."""
    rows = Rows()
    for name in config.bases:
        base = parse(name)
        # T_B of a line graph is an upper bound (Theorem 7), so costs are predicted, and those of
        # small ones are held against the schedule as built.
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
    return config.publish(title, rows, figure=figure)


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
    """The figure."""

    degree: int  # links out of every rank
    machine: Machine  # constants of the cost model
    nbytes: tuple[int, ...]  # sizes of a rank's buffer
    largest: int  # most ranks
    sizes: tuple[int, ...]  # numbers of ranks that have a row of their own

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


DEGREE = 4
OURS, RING, TREES, TORUS, BOUND = "ours", "shifted ring", "double binary tree", "torus", "bound"
CIRCULANT, KAUTZ = "circulant", "Pi"
REDUCE, EXCHANGE = "all_reduce", "all_to_all"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio(PaperValue):
    """How many times as long one takes as another, as the paper prints it."""

    collective: Annotated[str, among((REDUCE, EXCHANGE))]  # all_reduce or all_to_all
    # of, to: the slower and the faster; the mean over numbers of ranks is taken
    of: str
    to: str
    least: int  # fewest ranks


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure."""

    machine: Machine  # constants of the cost model
    nbytes: int  # of a rank's buffer, in both collectives
    ranks: tuple[int, ...]  # rising; squares among them have a torus
    claims: tuple[Ratio, ...]  # ratios that the paper prints

    def __post_init__(self) -> None:
        rising("ranks", self.ranks)
        at_least("ranks", self.ranks[0], 9)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each claim, then one for each collective and number of ranks."""
    table = frontiers(config.ranks[-1], DEGREE)
    times: dict[tuple[str, int], Mapping[str, float]] = {}
    for n in config.ranks:
        _, ours = fastest(table.found(n), config.machine, config.nbytes)
        times[REDUCE, n] = {OURS: ours, **all_reduces(config, n)}
        times[EXCHANGE, n] = all_to_alls(config, n)
        tell({"N": n, **{f"{name} us": time for name, time in times[REDUCE, n].items()}})
    rows: list[dict[str, Any]] = Rows()
    for claim in config.claims:
        ratios = [
            here[claim.of] / here[claim.to]
            for (collective, n), here in times.items()
            if collective == claim.collective and n >= claim.least and claim.of in here
        ]
        what = f"{claim.collective}, {claim.of} / {claim.to}, {claim.least} ranks or more"
        rows.append({"ratio": what, **claim.beside(statistics.fmean(ratios))})
    rows += [
        {"collective": collective, "N": n, **{f"{name} us": time for name, time in here.items()}}
        for (collective, n), here in times.items()
    ]
    curves: dict[str, dict[str, dict[int, float]]] = {REDUCE: {}, EXCHANGE: {}}
    for (collective, n), here in times.items():
        for name, time in here.items():
            curves[collective].setdefault(name, {})[n] = time
    figure = panels(curves, label_x="ranks", label_y="microseconds", in_bytes=False, log_y=True)
    title = "Fig. 3.7: all_reduce and all-to-all at many ranks, degree 4"
    return config.publish(title, rows, figure=figure)


def all_reduces(config: Config, n: int) -> dict[str, float]:
    """Microseconds of the baselines and the bound."""
    machine, nbytes = config.machine, config.nbytes
    side = math.isqrt(n)
    torus_time = machine.time_us(traditional_torus(side), nbytes)
    return {
        RING: machine.time_us(shifted_ring(n), nbytes),
        TREES: double_tree_us(machine, n, nbytes, at_once=False),
        **({TORUS: torus_time} if side**2 == n else {}),
        BOUND: machine.time_us(least_cost(n, DEGREE), nbytes),
    }


def all_to_alls(config: Config, n: int) -> dict[str, float]:
    """Microseconds of all-to-all, by the sum of distances; of the trees, by the cut at a root."""
    side = math.isqrt(n)
    networks: dict[str, Callable[[], Digraph]] = {
        CIRCULANT: lambda: least_diameter_circulant(n),
        KAUTZ: lambda: generalized_kautz(DEGREE, n),
        RING: lambda: circulant(n, (1, (n - 1) // 2)),
        **({TORUS: lambda: torus(side, side)} if side**2 == n else {}),
    }
    rates = {name: float(distance_rate(make())) for name, make in networks.items()}
    # Four links join the halves of both trees, n^2 / 4 pairs each way.
    rates |= {TREES: 4 / (n / 2) ** 2, BOUND: float(rate_bound(n, DEGREE))}
    # Each pair of ranks exchanges an n-th of the buffer, and a rate of 1 is that of a link, B /
    # degree.
    moved = config.machine.buffer_us(config.nbytes) * DEGREE / n
    return {name: moved / rate for name, rate in rates.items()}


def distance_rate(digraph: Digraph) -> Fraction:
    """Links over the sum of distances: the all-to-all rate if shortest paths load links evenly.

    No all-to-all has a larger one.
    """
    links = digraph.num_arcs - digraph.self_loops
    if digraph.vertex_transitive:
        return Fraction(links, digraph.size * int(digraph.distances((0,)).sum()))
    return Fraction(links, int(digraph.distances().sum()))
