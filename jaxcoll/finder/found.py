"""The finder's result: a Pareto frontier, printed beside the paper's, and choices from it.

A point is on the frontier if no other has both fewer steps and more bandwidth. Which one is best
depends on the bytes: T = steps x alpha + inverse bandwidth x bytes / B, a line per point, and the
lower envelope of these lines names the best of every size.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib import resources

from jaxcoll.bounds.moore import Cost, least_cost
from jaxcoll.bounds.moore import cost as schedule_cost
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.finder.candidates import Candidate, Has
from jaxcoll.finder.construction import Construction, diameter, rate_bounds
from jaxcoll.finder.prices import FixedCost, Prices
from jaxcoll.finder.search import tori
from jaxcoll.kinds import ALL_GATHER, kind_of, names_in
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.columns import all_reduce_of
from jaxcoll.synth.direct_connect.expansions import bfb_all_gather, scatter_of
from jaxcoll.synth.registry import REGISTRY
from jaxcoll.synth.routing.concurrent_flow import FlowRate, RateBounds, digraph_flow
from jaxcoll.topologies.generative import Digraph
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.verifier import verify

# Relative gap of the bounds of an all-to-all rate, as printed and used to choose.
TOLERANCE = 0.01


@dataclasses.dataclass(frozen=True, repr=False)
class FoundTopology:
    """A point of a frontier.

    Attributes:
        size, degree: n and d.
        candidate: its construction and predicted cost.
    """

    size: int
    degree: int
    candidate: Candidate

    def __repr__(self) -> str:
        return (
            f"FoundTopology({self.construction}: {self.size} ranks of degree {self.degree}, "
            f"T_L {self.cost.steps}, T_B {float(self.cost.inverse_bandwidth):.4g})"
        )

    @property
    def construction(self) -> Construction:
        """How it is made."""
        return self.candidate.construction

    @property
    def cost(self) -> Cost:
        """T_L and T_B of its all_gather, predicted, or measured for line graphs."""
        return self.candidate.cost

    @property
    def has_parallel_links(self) -> bool:
        """Whether some links may be parallel."""
        return not self.candidate.has & Has.NO_PARALLEL

    @functools.cached_property
    def digraph(self) -> Digraph:
        """The digraph, built.

        Raises:
            TopologyError: a construction of another size or degree, as a file may say.
        """
        # Predicted numbers, or those of a file, are not believed where the digraph itself is used.
        digraph = self.construction.digraph()
        if (digraph.size, digraph.degree) != (self.size, self.degree):
            raise TopologyError(
                f"{digraph} has {digraph.size} ranks of degree {digraph.degree}, not {self.size} "
                f"of degree {self.degree}"
            )
        return digraph

    @functools.cached_property
    def diameter(self) -> int:
        """D(G): as many as a BFB all_gather has steps, else from the parts or the digraph."""
        # BFB sends every shard along shortest paths, so that the farthest takes all steps.
        if self.candidate.has & Has.BFB:
            return self.cost.steps
        return diameter(self.construction)

    @property
    def rate_bounds(self) -> RateBounds:
        """Proved bounds of the all-to-all rate at once, from the construction; ``rate`` is closer.

        They are exact for many products, and for up to 32 ranks.
        """
        return rate_bounds(self.construction)

    @functools.cached_property
    def rate(self) -> FlowRate:
        """Bounds of the all-to-all rate, links being of capacity 1."""
        digraph = self.digraph
        return digraph_flow(digraph.size, digraph.tails, digraph.heads, tolerance=TOLERANCE)

    @functools.cached_property
    def reduce_scatter_cost(self) -> Cost:
        """T_L and T_B of its reduce_scatter.

        Those of its all_gather where the digraph is isomorphic to its transpose (Theorem 2); else
        predicted for the transpose (Corollary 1.2), as upper bounds for line graphs.
        """
        # An isomorphism to the transpose makes the all_gather one of the transpose, which run
        # backwards is a reduce_scatter here.
        if self.candidate.has & Has.REVERSAL:
            return self.cost
        return self.construction.reduce_scatter_cost()

    def all_reduce_time(self, alpha: Number, nbytes: Number, bandwidth: Number) -> float:
        """Seconds: (T_L alpha + T_B M/B) of the reduce_scatter and of the all_gather.

        Args:
            alpha: seconds per step.
            nbytes: M, bytes of a rank's buffer.
            bandwidth: B, bytes per second of all links of a rank together.
        """
        costs = self.reduce_scatter_cost, self.cost
        return float(sum(cost.time(alpha, nbytes, bandwidth) for cost in costs))

    def all_to_all_time(self, nbytes: Number, bandwidth: Number) -> float:
        """Seconds: (M/B) (d/n) / f, f being the lower bound of the rate."""
        size, speed = (
            float(checks.positive(value, name, TopologyError))
            for value, name in ((nbytes, "nbytes"), (bandwidth, "bandwidth"))
        )
        return self.rate.pair_time(size / speed, self.degree, self.size)

    def schedule(self, kind: str = "all_gather", alpha=ALPHA, link_bandwidth=BANDWIDTH) -> Schedule:
        """A schedule on ``digraph.topology(alpha, link_bandwidth)``, built and verified.

        Args:
            kind: all_gather, reduce_scatter, all_reduce or all_to_all.
            alpha, link_bandwidth: seconds, and bytes per second (B/d), of each link.

        Raises:
            TopologyError: an unknown kind.
        """
        checks.choice(kind, names_in("lax"), "kind", TopologyError)
        wanted = kind_of(kind)
        if wanted.is_pairwise:
            topology = self.digraph.topology(alpha, link_bandwidth)
            synthesizer = REGISTRY["time_stepped"]()
            schedule = synthesizer.synthesize(topology, Collective(kind, self.size))
            verify(schedule)
            return schedule
        digraph, schedule = self.construction.all_gather(alpha, link_bandwidth)
        # What BFB finds on a line graph itself may be cheaper than the expanded schedule, and the
        # candidate has that cost then (``with_bfb_cost``).
        if schedule_cost(schedule, self.degree) != self.cost and self.candidate.has & Has.BFB:
            schedule = bfb_all_gather(digraph, alpha, link_bandwidth)
        if wanted is not ALL_GATHER:
            # By the isomorphism to the transpose (Theorem 2), else built up by itself (Cor. 1.2).
            if self.candidate.has & Has.REVERSAL:
                scatter = scatter_of(self.digraph, schedule)
            else:
                scatter = self.construction.reduce_scatter(alpha, link_bandwidth)[1]
            schedule = all_reduce_of(scatter, schedule) if wanted.has_phases else scatter
        verify(schedule)
        return schedule


@dataclasses.dataclass(frozen=True)
class Choice:
    """A topology, the time of a workload on it in seconds, and its fixed cost."""

    point: FoundTopology
    seconds: float
    fixed: FixedCost


@dataclasses.dataclass(frozen=True, repr=False)
class Found:
    """The frontier of a size and degree; ``print`` it for a table beside the paper's.

    Attributes:
        size, degree: n and d.
        points: topologies by rising T_L and falling T_B.
        with_rates: whether the table measures diameters and all-to-all rates.
    """

    size: int
    degree: int
    points: tuple[FoundTopology, ...]
    with_rates: bool = True

    def __repr__(self) -> str:
        return f"Found({self.size} ranks of degree {self.degree}, {len(self.points)} topologies)"

    def best(
        self,
        alpha: Number,
        bandwidth: Number,
        all_reduce: Mapping[Number, Number] | None = None,
        all_to_all: Mapping[Number, Number] | None = None,
        *,
        prices: Prices | None = None,
        budget: Number | None = None,
    ) -> FoundTopology:
        """The topology on which a distribution of collectives takes the least time together.

        Args:
            alpha: seconds per step.
            bandwidth: B, bytes per second of all links of a rank together.
            all_reduce: how often an all_reduce of each number of bytes is run.
            all_to_all: how often an all_to_all of each number of bytes per rank is run.
            prices: prices of ports, circuits and cables.
            budget: the most that they may cost together, of ``choices``; None for any amount.

        Raises:
            TopologyError: no collectives, numbers out of range, a budget without prices or below
                the cost of every topology.
        """
        seconds = _seconds(alpha, bandwidth, all_reduce, all_to_all)
        # Without a budget cables do not count, for which alone ``choices`` looks at tori.
        if budget is None:
            return min(self.points, key=seconds)
        budget = float(checks.positive(budget, "budget", TopologyError))
        if prices is None:
            raise TopologyError("a budget needs prices=Prices(...)")
        choices = self.choices(prices, alpha, bandwidth, all_reduce, all_to_all)
        # Choices stand by rising cost and falling time: the last that is affordable is the fastest.
        within = [choice for choice in choices if choice.fixed.total <= budget]
        if not within:
            least = choices[0]
            raise TopologyError(
                f"no topology costs {budget:g} or less; the cheapest is "
                f"{least.point.construction}, {least.fixed.total:g}"
            )
        return within[-1].point

    def choices(
        self,
        prices: Prices,
        alpha: Number,
        bandwidth: Number,
        all_reduce: Mapping[Number, Number] | None = None,
        all_to_all: Mapping[Number, Number] | None = None,
    ) -> tuple[Choice, ...]:
        """Topologies that no other beats in both time and fixed cost, the cheapest first.

        The frontier's, and tori, which T_L and T_B alone leave out, for their short cables.

        Args:
            prices: prices of ports, circuits and cables; others are those of ``best``.
        """
        checks.instance(prices, Prices, "prices", TopologyError)
        seconds = _seconds(alpha, bandwidth, all_reduce, all_to_all)
        more = (FoundTopology(self.size, self.degree, c) for c in tori(self.size, self.degree))
        all_of_them = [
            Choice(point, seconds(point), prices.fixed_cost(point.digraph))
            for point in (*self.points, *more)
        ]
        # By rising fixed cost: a choice must be faster than all cheaper ones.
        kept: list[Choice] = []
        for choice in sorted(all_of_them, key=lambda each: (each.fixed.total, each.seconds)):
            if not kept or choice.seconds < kept[-1].seconds:
                kept.append(choice)
        return tuple(kept)

    def __str__(self) -> str:
        if self.with_rates:
            # Their loops run compiled, without the interpreter's lock.
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda point: point.rate, self.points))
        lines = [f"n = {self.size}, degree {self.degree}"]
        head = ("topology", "T_L", "T_B", "D", "MCF")
        rows = [head, *(self._row(point) for point in self.points)]
        bound = least_cost(self.size, self.degree)
        rate = _rate_bound(self.size, self.degree)
        steps = str(bound.steps)
        rows.append(("bound", steps, f"{float(bound.inverse_bandwidth):.3f}", steps, rate))
        # The paper's rows stand below ours, in the same columns.
        paper = paper_rows(self.size, self.degree)
        rows += [("paper:", "", "", "", ""), *paper] if paper else []
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        for row in rows:
            cells = [row[0].ljust(widths[0])]
            cells += [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _row(self, point: FoundTopology) -> tuple[str, ...]:
        cost = point.cost
        name, bandwidth = str(point.construction), f"{float(cost.inverse_bandwidth):.3f}"
        measured = ("", "")
        if self.with_rates:
            measured = (str(point.diameter), f"{float(point.rate.lower):.3g}")
        return (name, str(cost.steps), bandwidth, *measured)


def paper_rows(size: int, degree: int) -> list[tuple[str, ...]]:
    """Rows of Tables 3.4, 3.5 and A.1 for a size and degree: name, T_L, T_B, D, MCF."""
    rows = []
    for row in paper_table():
        if (row["n"], row["d"]) == (size, degree):
            bandwidth = f"{float(Fraction(row['T_B'])):.3f}"
            rate = f"{row['mcf']:.3g}" if row["mcf"] is not None else ""
            rows.append((row["topology"], str(row["T_L"]), bandwidth, str(row["diameter"]), rate))
    return rows


@functools.cache
def paper_table() -> Sequence[dict]:
    """The packaged rows of the paper's frontiers."""
    text = resources.files("jaxcoll.finder").joinpath("paper.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["rows"])


def _rate_bound(size: int, degree: int) -> str:
    """Links over the least sum of distances that the degree allows."""
    # At most d^i ranks are i links away, as in the Moore bound: fill the nearest first. A unit from
    # every rank to every other then takes ``total`` links per rank at the least, of its ``degree``.
    reached, frontier, distance, total = 1, degree, 1, 0
    while reached < size:
        total += distance * min(frontier, size - reached)
        reached, frontier, distance = reached + frontier, frontier * degree, distance + 1
    return f"{degree / total:.3g}"


def _seconds(alpha, bandwidth, all_reduce, all_to_all) -> Callable[[FoundTopology], float]:
    """The time that a distribution of collectives takes on a topology."""
    reduces, exchanges = _counted(all_reduce, "all_reduce"), _counted(all_to_all, "all_to_all")
    if not reduces and not exchanges:
        raise TopologyError("give all_reduce={bytes: count}, all_to_all={bytes: count} or both")

    def seconds(point: FoundTopology) -> float:
        times = [n * point.all_reduce_time(alpha, size, bandwidth) for size, n in reduces]
        return sum(times + [n * point.all_to_all_time(size, bandwidth) for size, n in exchanges])

    return seconds


def _counted(given: Mapping[Number, Number] | None, what: str) -> list[tuple[Number, Number]]:
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise TopologyError(f"{what} must map bytes to counts, got {checks.shown(given)}")
    return [
        (
            checks.positive(size, f"bytes of {what}", TopologyError),
            checks.nonnegative(count, f"count of {what}", TopologyError),
        )
        for size, count in given.items()
    ]
