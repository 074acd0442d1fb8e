"""Times at many ranks of the finder's topologies and of baselines, both collectives (Fig. 3.7)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Annotated, Any

from experiments.config import PaperValue, StudyConfig
from experiments.direct_connect.baselines import (
    Machine,
    double_tree_us,
    shifted_ring,
    traditional_torus,
)
from experiments.direct_connect.fastest import fastest
from experiments.direct_connect.predictions import rate_bound
from experiments.figures import panels
from experiments.limits import among, at_least, rising
from experiments.study import Rows, tell
from jaxcoll.bounds.moore import least_cost
from jaxcoll.finder import frontiers
from jaxcoll.topologies.generative import (
    Digraph,
    circulant,
    generalized_kautz,
    least_diameter_circulant,
    torus,
)

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
