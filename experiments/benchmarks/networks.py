"""Networks found by search and by construction: frontiers, expansions and rewired TPU slices."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from experiments.benchmarks.report import report
from experiments.study import Rows
from jaxcoll import finder
from jaxcoll.bounds.moore import Cost, cost
from jaxcoll.links import group_by
from jaxcoll.numerics.connectivity import hops_from
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.expansions import CartesianPower, Expansion, LineGraph
from jaxcoll.synth.direct_connect.searched import base_all_gather
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies import generative
from jaxcoll.topologies.generative import Digraph, torus, twisted_torus
from jaxcoll.topologies.generative.tori import FACES, SIDE, optical_cube_arcs, optical_cubes
from jaxcoll.verifier import verify

DEGREES = (2, 4, 8, 16)


def frontier_row(largest: int, degree: int, folder: Path | None = None) -> dict[str, Any]:
    """Points of the frontiers of a degree, seconds, and the gaps of the bounds of their rates.

    Args:
        folder: where the table of all points is written, if anywhere.
    """
    start = process_time()
    found = finder.frontiers(largest, degree)
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


def frontiers(argv: Sequence[str]) -> None:
    """Frontiers: all sizes up to 2000 of degrees 2, 4, 8 and 16, diameters and all-to-all rates.

    Rates are proved bounds; a row says how many are exact, and how far apart the others are.
    Seconds are CPU seconds after compilation.
    """
    parser = argparse.ArgumentParser(prog="frontiers", description=frontiers.__doc__)
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


Built = tuple[Digraph, Schedule]

# Table 3.4: base, expansions in order, and the paper's T_L and T_B, the latter as exact fractions.
TABLE_3_4: Sequence[tuple[Callable[[], Digraph], Sequence[Expansion], Cost]] = (
    (lambda: generative.generalized_kautz(4, 1024), (), Cost(5, Fraction(341, 256))),
    (
        lambda: generative.circulant(16, (3, 4)),
        (LineGraph(), LineGraph(), LineGraph()),
        Cost(6, Fraction(261, 256)),
    ),
    (
        generative.diamond,
        (CartesianPower(2), LineGraph(), LineGraph()),
        Cost(8, Fraction(257, 256)),
    ),
    (
        lambda: generative.modified_de_bruijn(2, 4),
        (CartesianPower(2), LineGraph()),
        Cost(11, Fraction(1)),
    ),
    (
        lambda: generative.cartesian_product(
            generative.unidirectional_ring(1, 4), generative.unidirectional_ring(1, 8)
        ),
        (CartesianPower(2),),
        Cost(20, Fraction(1023, 1024)),
    ),
)


def expand(base: Digraph, expansions: Sequence[Expansion]) -> Built:
    """A base and its best known schedule, expanded."""
    digraph, schedule = base, base_all_gather(base)
    for expansion in expansions:
        digraph, schedule = expansion.all_gather(digraph, schedule)
    verify(schedule)
    return digraph, schedule


def row(base: Digraph, expansions: Sequence[Expansion], paper: Cost) -> dict[str, Any]:
    """One row of the table."""
    start = process_time()
    digraph, schedule = expand(base, expansions)
    seconds = process_time() - start
    found = cost(schedule, digraph.degree)
    return {
        "network": digraph.name,
        "ranks": digraph.size,
        "sends": schedule.num_sends,
        "T_L": found.steps,
        "T_B": str(found.inverse_bandwidth),
        "diameter": digraph.diameter,
        "as in the paper": found == paper,
        "seconds": seconds,
    }


def expansions(argv: Sequence[str]) -> None:
    """Expansions: the networks of 1024 ranks of Table 3.4, built, verified and costed.

    Seconds are CPU seconds after compilation, from the base's schedule to the verified one. T_L and
    T_B are measured on the schedule built; the paper's are those of the dissertation.
    """
    parser = argparse.ArgumentParser(prog="expansions", description=expansions.__doc__)
    parser.parse_args(argv)
    expand(generative.complete_bipartite(2), (CartesianPower(2), LineGraph()))  # compiles
    report("expansions", (row(base(), chain, paper) for base, chain, paper in TABLE_3_4))


TONS = {"uniform": 2.1, "all_to_all": 1.6}
CUBE = SIDE**3
TOLERANCE = 0.02
OVER = ("over torus", "over best torus variant")

Row = dict[str, Any]


def boxes(ranks: int) -> Iterator[tuple[int, int, int]]:
    """Sides of the slices of so many ranks, multiples of 4, in rising order."""
    for a in range(SIDE, ranks + 1, SIDE):
        for b in range(a, ranks // a + 1, SIDE):
            c = ranks // (a * b)
            if a * b * c == ranks and c >= b and c % SIDE == 0:
                yield a, b, c


def is_twisted(sides: tuple[int, int, int]) -> bool:
    """Whether a slice of these sides can be twisted."""
    return tuple(side / sides[0] for side in sides) in ((1, 1, 2), (1, 2, 2))


def sum_of_distances(cubes: int, shifts: np.ndarray) -> float:
    """From the ranks of one cube to all, which stand for those of all cubes; inf if cut off."""
    tails, heads = optical_cube_arcs(cubes, shifts)
    ptr, arc = group_by(tails, cubes * CUBE)
    hops = np.empty((CUBE, cubes * CUBE), np.int32)
    reached = hops_from(ptr, heads[arc], np.arange(CUBE), hops)
    return int(hops.sum()) if reached else math.inf


def rewired(ranks: int, trials: int, seed: int = 0) -> Digraph:
    """Cubes whose shifts a seeded local search has found to give the least mean distance."""
    cubes, random = ranks // CUBE, np.random.default_rng(seed)
    shifts = random.integers(0, cubes, FACES)
    least = sum_of_distances(cubes, shifts)
    for _ in range(trials):
        changed = shifts.copy()
        changed[tuple(random.integers(0, side) for side in FACES)] = random.integers(0, cubes)
        total = sum_of_distances(cubes, changed)
        if total <= least:
            least, shifts = total, changed
    return optical_cubes(cubes, shifts)


def slices(ranks: int, trials: int) -> list[Row]:
    """A row per network of so many ranks; rates are also given over that of the best torus."""
    networks = [("torus", torus(*sides)) for sides in boxes(ranks)]
    networks += [("twisted torus", twisted_torus(*s)) for s in boxes(ranks) if is_twisted(s)]
    networks.append(("rewired cubes", rewired(ranks, trials)))
    rows = []
    for kind, digraph in networks:
        start = process_time()
        found = digraph_flow(digraph.size, digraph.tails, digraph.heads, tolerance=TOLERANCE)
        rows.append(
            {
                "ranks": ranks,
                "kind": kind,
                "network": digraph.name,
                "diameter": digraph.diameter,
                "rate": float(found.lower),
                "at most": float(found.upper),
                "seconds": process_time() - start,
            }
        )
    best = max(row["rate"] for row in rows if row["kind"] == "torus")
    for row in rows:
        row["over torus"] = row["rate"] / best
    twisted = max((r["rate"] for r in rows if "torus" in r["kind"]), default=best)
    for row in rows:
        row["over best torus variant"] = row["rate"] / twisted
    return rows


def tpu_slices(argv: Sequence[str]) -> None:
    """TPU slices: all-to-all rates of tori, twisted tori and rewired cubes, beside those of TONS.

    TONS (Green and Thottethodi, "Throughput-optimized networks at scale", arXiv 2605.27963) rewires
    the optical circuits of TPU v4 and v5p and reports, over sizes, a geometric mean of 2.1 (uniform
    random traffic) and 1.6 (all-to-all) times the best torus, in simulation with its own routing.
    Here the rate is the maximum concurrent flow, which no routing beats and which is the same for
    both kinds of traffic: all pairs of ranks send equally much.
    """
    parser = argparse.ArgumentParser(prog="tpu-slices", description=tpu_slices.__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--trials", type=int, default=400, help="wirings tried (%(default)s)")
    options = parser.parse_args(argv)
    if any(ranks < 2 * CUBE or ranks % CUBE for ranks in options.ranks):
        parser.error(f"ranks come in cubes of {CUBE}, from {2 * CUBE}")
    rows = Rows(row for ranks in options.ranks for row in slices(ranks, options.trials))
    report("tpu_slices", rows)
    rewired_rows = [row for row in rows if row["kind"] == "rewired cubes"]
    means = {over: _mean(row[over] for row in rewired_rows) for over in OVER}
    print("Rewired, geometric mean: " + ", ".join(f"{means[over]:.2f} {over}" for over in OVER))
    print(f"TONS, simulated, over the best torus variant: {TONS['all_to_all']} (all-to-all),")
    print(f"{TONS['uniform']} (uniform random traffic).")


def _mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(np.mean([math.log(value) for value in values]))
