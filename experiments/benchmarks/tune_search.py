"""Searches of the tuner: how far from the best they end, and after how many measurements.

On landscapes of 12 subspaces and 129,600 points with 2 % noise, drawn by equations 1 to 5 of
AutoCCL ("equations") and by two other unimodal forms ("hills", which this library's search fits
too, and "ramps", which it does not): AutoCCL's algorithm as printed and as released, AFNFA and this
library's search. A last row times the latter on the whole of Table 2.

A gap is the share of the best bandwidth that is lost, without noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from time import process_time
from typing import Any

import numpy as np

from experiments.benchmarks.report import report
from jaxcoll.tune.models.landscape import Landscape, equations, hills, landscape_space, ramps
from jaxcoll.tune.search import Afnfa, Fitted, Printed, Released, Search
from jaxcoll.tune.spaces.space import Space

FAMILIES: Mapping[str, Callable[..., Landscape]] = {
    "equations": equations,
    "hills": hills,
    "ramps": ramps,
}

SEARCHES: Mapping[str, Callable[[Space, int], Search]] = {
    "printed": lambda space, seed: Printed(space, seed=seed),
    # The authors' example, and five whole descents of single measurements per subspace.
    "released": lambda space, seed: Released(space, seed=seed),
    "released, no limit": lambda space, seed: Released(
        space, seed=seed, pretrain=12, train=12_000, repeats=1
    ),
    "AFNFA": lambda space, seed: Afnfa(space, seed=seed),
    "fitted": lambda space, seed: Fitted(space, seed=seed),
}

# Asked of the fitted search: median and 95th percentile of the gap, most measurements.
ASKED = {"equations": (0.01, 0.05, 75), "hills": (0.02, 0.08, 120)}
# Landscapes for the searches that it is compared with: their larger gaps show on fewer.
_OTHERS = 10


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


def measure(name: str, family: str, space: Space, seeds: range) -> dict[str, Any]:
    """A row: one search on some landscapes of a family."""
    gaps, gains, counts, spent = [], [], [], 0.0
    for seed in seeds:
        landscape = FAMILIES[family](space, seed)
        search = SEARCHES[name](space, seed)
        spent += run(search, landscape)
        found = search.best
        reached = landscape.bandwidth(found[0]) if found else 0.0
        gaps.append(1 - reached / landscape.best()[1])
        gains.append(reached / landscape.bandwidth(space.default))
        counts.append(search.evaluations)
    return {
        "landscapes": f"{family}, {space.size:,} points",
        "search": name,
        "number": len(seeds),
        "median gap %": 100 * np.median(gaps),
        "95th percentile %": 100 * np.quantile(gaps, 0.95),
        "largest %": 100 * max(gaps),
        "measurements, median": np.median(counts),
        "most": max(counts),
        "least / default": min(gains),
        "2 % below default": sum(gain < 0.98 for gain in gains),
        "CPU ms per measurement": 1e3 * spent / sum(counts),
    }


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tune_search", description=__doc__)
    parser.add_argument("--landscapes", type=int, default=1000, help="per family (%(default)s)")
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--whole", type=int, default=2, help="landscapes of Table 2 (%(default)s)")
    options = parser.parse_args(argv)
    space, rows = landscape_space(), []
    for family in options.families:
        for name in options.searches:
            few = name != "fitted" and options.landscapes > _OTHERS
            number = max(_OTHERS, options.landscapes // 10) if few else options.landscapes
            rows.append(measure(name, family, space, range(number)))
    if options.whole:
        rows.append(measure("fitted", "equations", Space.nccl(), range(options.whole)))
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
