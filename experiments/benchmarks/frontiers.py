"""Frontiers: every size up to 2000 of degrees 2, 4, 8 and 16, with diameters and all-to-all rates.

Rates are proved bounds; a row says how many are exact, and how far apart the others are. Seconds
are CPU seconds after compilation.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from experiments.benchmarks.report import report
from experiments.study import Rows
from jaxcoll.finder import frontiers

DEGREES = (2, 4, 8, 16)


def frontier_row(largest: int, degree: int, folder: Path | None = None) -> dict[str, Any]:
    """Points of the frontiers of a degree, seconds, and the gaps of the bounds of their rates.

    Args:
        folder: where the table of all points is written, if anywhere.
    """
    start = process_time()
    found = frontiers(largest, degree)
    searched = process_time()
    points = list(found.rows())
    done = process_time()
    if folder is not None:
        found.write_table(folder / f"degree-{degree}.csv")
    gaps = [float(p["rate at most"]) / float(p["rate"]) - 1 for p in points]  # type: ignore[arg-type]
    return {
        "degree": degree,
        "sizes": len(found),
        "points": len(points),
        "search s": searched - start,
        "diameters, rates s": done - searched,
        "exact rates": sum(bool(p["exact"]) for p in points),
        "median gap %": 100 * float(np.median(gaps)),
        "90 % gap %": 100 * float(np.quantile(gaps, 0.9)),
        "most gap %": 100 * max(gaps),
    }


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="frontiers", description=__doc__)
    parser.add_argument("--largest", type=int, default=2000, help="ranks (%(default)s)")
    parser.add_argument("--degrees", type=int, nargs="+", default=DEGREES)
    parser.add_argument("--tables", type=Path, help="folder for a CSV per degree")
    options = parser.parse_args(argv)
    for degree in options.degrees:  # compile
        frontier_row(48, degree)
    rows = Rows(frontier_row(options.largest, degree, options.tables) for degree in options.degrees)
    report("frontiers", rows)
    seconds = sum(row["search s"] + row["diameters, rates s"] for row in rows)
    print(f"{seconds:.0f} CPU seconds together, after compilation.")
