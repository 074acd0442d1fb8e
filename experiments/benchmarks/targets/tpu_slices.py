"""TPU slices: all-to-all rates of tori, twisted tori and rewired cubes, beside those of TONS.

TONS (Green and Thottethodi, "Throughput-optimized networks at scale", arXiv 2605.27963) rewires the
optical circuits of TPU v4 and v5p and reports, over sizes, a geometric mean of 2.1 (uniform random
traffic) and 1.6 (all-to-all) times the best torus, in simulation with its own routing. Here the
rate is the maximum concurrent flow, which no routing beats and which is the same for both kinds of
traffic: all pairs of ranks send equally much.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from time import process_time
from typing import Any

import numpy as np

from experiments.benchmarks.report import report
from experiments.study import Rows
from jaxcoll.links import group_by
from jaxcoll.numerics.connectivity import hops_from
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies.generative import Digraph, torus, twisted_torus
from jaxcoll.topologies.generative.tori import (
    FACES,
    SIDE,
    optical_cube_arcs,
    optical_cubes,
)

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


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="tpu-slices", description=__doc__)
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
