"""Searches of the tuner: how far from the best they end, and after how many measurements.

On landscapes of 12 subspaces and 129,600 points with 2 % noise, drawn by equations 1 to 5 of
AutoCCL ("equations") and by three other unimodal forms ("hills" and "ramps", of which this
library's search has models, and "coupled", of which it has none): AutoCCL's algorithm as printed
and as released, AFNFA and this library's search. The last rows time the latter on the whole of
Table 2.

A gap is the share of the best bandwidth that is lost, without noise. Rows are printed when they are
ready, and all together at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import process_time
from typing import Any, ClassVar

import numpy as np

from experiments.autoccl.searches import Afnfa, Printed, Released
from experiments.autoccl.searches.landscapes import (
    Landscape,
    coupled,
    equations,
    hills,
    landscape_space,
    ramps,
)
from experiments.benchmarks.report import report, text
from jaxcoll import executors
from jaxcoll.configurations.base import Search
from jaxcoll.configurations.peaks import Elliptical, Peaks, Separable
from jaxcoll.tune import Fitted, Space

FAMILIES: Mapping[str, Callable[..., Landscape]] = {
    "equations": equations,
    "hills": hills,
    "ramps": ramps,
    "coupled": coupled,
}


class WithoutSeparable(Fitted):
    """The search without the separable form of peak."""

    forms: ClassVar[tuple[type[Peaks], ...]] = (Elliptical,)


class WithoutElliptical(Fitted):
    """The search without the elliptical form of peak."""

    forms: ClassVar[tuple[type[Peaks], ...]] = (Separable,)


class WithoutEquations(Fitted):
    """The search that takes peaks from the first measurement on."""

    begins_with_equations: ClassVar[bool] = False


SEARCHES: Mapping[str, Callable[[Space, int], Search]] = {
    "printed": lambda space, seed: Printed(space, seed=seed),
    # The authors' example, and five whole descents of single measurements per subspace.
    "released": lambda space, seed: Released(space, seed=seed),
    "released, no limit": lambda space, seed: Released(
        space, seed=seed, pretrain=12, train=12_000, repeats=1
    ),
    "AFNFA": lambda space, seed: Afnfa(space, seed=seed),
    "fitted": lambda space, seed: Fitted(space, seed=seed),
    # A form is kept as long as some landscapes, these or those of tune_landscapes, need it.
    "without equations": lambda space, seed: WithoutEquations(space, seed=seed),
    "without elliptical": lambda space, seed: WithoutElliptical(space, seed=seed),
    "without separable": lambda space, seed: WithoutSeparable(space, seed=seed),
}

# Asked of the fitted search: median and 95th percentile of the gap, most measurements.
_OTHER = (0.02, 0.08, 120)
ASKED = {"equations": (0.01, 0.05, 75), "hills": _OTHER, "ramps": _OTHER, "coupled": _OTHER}
# Landscapes for the searches that it is compared with: their larger gaps show on fewer.
_OTHERS = 10
# Families on the whole of Table 2: one for each limit of measurements.
_WHOLE = ("equations", "hills")


def run(search: Search, landscape: Landscape) -> float:
    """Runs a search to its end; its own CPU seconds."""
    spent = 0.0
    while True:
        started = process_time()
        config = search.ask()
        spent += process_time() - started
        if config is None:
            return spent
        seconds = landscape.measure(config)
        started = process_time()
        search.tell(config, seconds)
        spent += process_time() - started


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One search of one landscape.

    Attributes:
        gap: share of the best bandwidth that is lost.
        gain: reached bandwidth over that of the default.
        measurements: how many.
        cpu_seconds: of the search itself.
    """

    gap: float
    gain: float
    measurements: int
    cpu_seconds: float


def outcome(name: str, family: str, space: Space, seed: int) -> Outcome:
    """Runs one search on one landscape."""
    landscape = FAMILIES[family](space, seed)
    search = SEARCHES[name](space, seed)
    spent = run(search, landscape)
    found = search.best
    reached = landscape.bandwidth(found[0]) if found else 0.0
    return Outcome(
        gap=1 - reached / landscape.best()[1],
        gain=reached / landscape.bandwidth(space.default),
        measurements=search.evaluations,
        cpu_seconds=spent,
    )


def summarize(name: str, family: str, space: Space, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """A row: one search on some landscapes of a family."""
    gaps = [outcome.gap for outcome in outcomes]
    counts = [outcome.measurements for outcome in outcomes]
    gains = [outcome.gain for outcome in outcomes]
    return {
        "landscapes": f"{family}, {space.size:,} points",
        "search": name,
        "number": len(outcomes),
        "median gap %": 100 * np.median(gaps),
        "95th percentile %": 100 * np.quantile(gaps, 0.95),
        "largest %": 100 * max(gaps),
        "measurements, median": np.median(counts),
        "most": max(counts),
        "least / default": min(gains),
        "2 % below default": sum(gain < 0.98 for gain in gains),
        "CPU ms per measurement": 1e3 * sum(o.cpu_seconds for o in outcomes) / sum(counts),
    }


def rows_of(options: argparse.Namespace, mapped: Callable[..., Iterable[Outcome]]):
    """Yields the rows.

    Args:
        options: of the command line.
        mapped: like ``map``.
    """
    space = landscape_space()
    todo = [(name, family, space) for family in options.families for name in options.searches]
    if options.whole:
        todo += [("fitted", family, Space.nccl()) for family in _WHOLE]
    for name, family, points in todo:
        number = options.landscapes if points is space else options.whole
        if name != "fitted" and number > _OTHERS:
            number = max(_OTHERS, number // 10)
        one = functools.partial(outcome, name, family, points)
        yield summarize(name, family, points, list(mapped(one, range(number))))


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_search", description=__doc__)
    parser.add_argument("--landscapes", type=int, default=1000, help="per family (%(default)s)")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES)[:5])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--whole", type=int, default=2, help="landscapes of Table 2 (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="side by side (%(default)s)")
    options = parser.parse_args(argv)
    rows = []
    with executors.with_workers(options.processes) as executor:
        for row in rows_of(options, functools.partial(executors.ordered, executor=executor)):
            rows.append(row)
            print("; ".join(f"{name}: {text(value)}" for name, value in row.items()), flush=True)
    report("tune_search", rows)
    for row in rows:
        family = str(row["landscapes"]).partition(",")[0]
        if row["search"] == "fitted" and family in ASKED:
            median, percentile, most = ASKED[family]
            print(
                f"{row['landscapes']}: asked for a median of {median:.0%} and a 95th percentile of "
                f"{percentile:.0%} in {most} measurements; {row['median gap %']:.2f} %, "
                f"{row['95th percentile %']:.2f} %, {row['most']}. Asked for 5 ms per measurement "
                f"on Table 2; {row['CPU ms per measurement']:.1f} ms."
            )
