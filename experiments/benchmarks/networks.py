"""Networks found by search and by construction: BFB, frontiers, expansions, TPU slices."""

from __future__ import annotations

import argparse
import itertools
import math
import resource
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from experiments.direct_connect.tables import synthesized
from experiments.timing import cpu_timed, kept, report
from jaxcoll import executors, finder
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost, moore_steps
from jaxcoll.links import group_by
from jaxcoll.numerics.connectivity import hops_from
from jaxcoll.synth.direct_connect import GroupNetwork, bfb_cost, group_bfb, group_cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies import generative, hypercube, torus
from jaxcoll.topologies.generative import Digraph, generalized_kautz, twisted_torus
from jaxcoll.topologies.generative.tori import FACES, SIDE, optical_cube_arcs, optical_cubes
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# Dissertation, Table 3.6, column BFB: seconds on another machine, 0.01 standing for "<0.01".
TABLE_3_6: Sequence[tuple[Topology, float]] = (
    *((hypercube(d), s) for d, s in ((2, 0.01), (3, 0.01), (4, 0.01), (5, 0.03), (6, 0.17))),
    (hypercube(10), 52.7),
    *((torus(k, k), s) for k, s in ((2, 0.01), (3, 0.01), (4, 0.01), (5, 0.01), (6, 0.03))),
    (torus(50, 50), 61.1),
)
LARGE = ((64, 64, 64), (100, 100, 100), (1000, 1000))
MOST_TWISTED = 10_000


def row(network: str, ranks: int, found: Cost, seconds: float, **more: Any) -> Row:
    """One row of the table: T_L and T_B, and whether T_B is (N - 1)/N."""
    return {
        "network": network,
        "ranks": ranks,
        "T_L": found.steps,
        "T_B": str(found.inverse_bandwidth),
        "optimal": found.inverse_bandwidth == bandwidth_optimum(ranks),
        "seconds": seconds,
        **more,
    }


def table_3_6(topology: Topology, paper: float) -> Row:
    """A schedule with exact chunks, synthesized and verified send by send."""
    schedule, seconds = cpu_timed(lambda: synthesized(topology))
    _, verification = cpu_timed(lambda: verify(schedule))
    return row(
        topology.name,
        topology.num_ranks,
        cost(schedule),
        seconds,
        chunks=schedule.collective.chunks_per_shard,
        sends=schedule.num_sends,
        **{"of which verified": verification, "paper's seconds": paper},
    )


def large_torus(sides: Sequence[int]) -> Row:
    """A schedule as the tree of one rank: synthesized, verified and costed."""

    def run():
        schedule = group_bfb(GroupNetwork.torus(*sides))
        schedule.verify()
        return schedule, schedule.cost()

    (schedule, found), seconds = cpu_timed(run)
    network = schedule.network
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
    more = {"chunks": schedule.chunks_per_shard, "peak GiB": peak}
    return row(f"{network.name}, one rank's tree", network.num_ranks, found, seconds, **more)


def twisted_tori(most: int) -> Iterator[tuple[int, ...]]:
    """Sides of the twisted tori k, 2k and k, k, 2k and k, 2k, 2k of at most so many ranks."""
    for shape in ((1, 2), (1, 1, 2), (1, 2, 2)):
        k = 2
        while math.prod(shape) * k ** len(shape) <= most:
            yield tuple(k * side for side in shape)
            k += 1


def twisted(most: int) -> Row:
    """How many of the twisted tori have T_B = (N - 1)/N."""

    def run():
        found = 0
        for sides in twisted_tori(most):
            network = GroupNetwork.twisted_torus(*sides)
            share = group_cost(network).inverse_bandwidth
            found += share == bandwidth_optimum(network.num_ranks)
        return found

    optimal, seconds = cpu_timed(run)
    count = len(list(twisted_tori(most)))
    return {
        "network": f"{optimal} of {count} twisted tori are optimal",
        "ranks": most,
        "optimal": optimal == count,
        "seconds": seconds,
    }


# ---------------------------------------------------------------------- Conjecture 1


def circulants(n: int, count: int) -> Iterator[tuple[int, ...]]:
    """Offsets below n/2 of connected circulant graphs, at least one per class under units of Z_n.

    Multiplying all offsets by a unit renames ranks. The first offset is a divisor of n, since every
    offset is a unit times one, and none has a smaller common divisor with n.
    """
    units = [u for u in range(1, n) if math.gcd(u, n) == 1]
    divisors = [a for a in range(1, (n + 1) // 2) if n % a == 0]
    seen = set()
    for first in divisors:
        # Units that keep the first offset: only these are left to rename the others by.
        fixing = [u for u in units if u * first % n in (first, n - first)]
        others = [b for b in range(1, (n + 1) // 2) if math.gcd(b, n) >= first and b != first]
        for rest in _subsets(others, count - 1):
            if math.gcd(n, first, *rest) > 1:
                continue
            # The smallest image stands for its class.
            least = first, min(_image(n, rest, unit) for unit in fixing)
            if least not in seen:
                seen.add(least)
                yield (first, *least[1])


def _subsets(items: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    if count == 0:
        yield ()
        return
    for i, item in enumerate(items):
        for rest in _subsets(items[i + 1 :], count - 1):
            yield (item, *rest)


def counterexamples(n: int, count: int) -> tuple[int, list[tuple[tuple[int, ...], Fraction]]]:
    """Circulants of n ranks that were tried, and the classes whose T_B is above (N - 1)/N.

    A class is shown by its least offsets.
    """
    tried, found = 0, {}
    for offsets in circulants(n, count):
        tried += 1
        share = group_cost(GroupNetwork.circulant(n, offsets)).inverse_bandwidth
        if share > bandwidth_optimum(n):
            found[min(_image(n, offsets, u) for u in range(1, n) if math.gcd(u, n) == 1)] = share
    return tried, sorted(found.items())


def _image(n: int, offsets: Sequence[int], unit: int) -> tuple[int, ...]:
    return tuple(sorted(min(unit * a % n, -unit * a % n) for a in offsets))


def conjecture(count: int, most: int) -> list[Row]:
    """Conjecture 1 (App. A.6.4) for all circulants of degree 2 x count, and all that refute it."""
    rows, tried, start = [], 0, process_time()
    for n in range(2 * count + 1, most + 1):
        here, found = counterexamples(n, count)
        tried += here
        for offsets, share in found:
            name = f"C({n},{{{','.join(map(str, offsets))}}})"
            rows.append({"network": name, "ranks": n, "T_B": str(share), "optimal": False})
    text = f"{tried} circulants of degree {2 * count}: {len(rows)} classes are not optimal"
    return [
        {
            "network": text,
            "ranks": most,
            "optimal": not rows,
            "seconds": process_time() - start,
        },
        *rows,
    ]


# ---------------------------------------------------------------------- generalized Kautz


def kautz(case: tuple[int, int]) -> tuple[int, int, Cost, float]:
    """Degree, ranks and cost of Pi(d, n), and the CPU seconds that it took."""
    found, seconds = cpu_timed(lambda: bfb_cost(generalized_kautz(*case)))
    return *case, found, seconds


def kautz_sweep(most: int, processes: int) -> list[Row]:
    """T_B of Pi(d, n) against 2(N - 1)/N, and T_L against T_L* + 1 (Thm. 21), by degree."""
    cases = [(d, n) for d in DEGREES for n in range(d + 1, most + 1)]
    with executors.with_workers(processes) as executor:
        solved = list(executors.ordered(kautz, cases, executor))
    rows = []
    for degree in DEGREES:
        here = [found for found in solved if found[0] == degree]
        worst = max(here, key=lambda f: f[2].inverse_bandwidth / bandwidth_optimum(f[1]))
        _, n, found, _ = worst
        late = sum(f[2].steps > moore_steps(f[1], degree) + 1 for f in here)
        ratio = found.inverse_bandwidth / bandwidth_optimum(n)
        name = f"Pi({degree},n): T_B is at most {ratio} of the least; {late} above T_L* + 1"
        rows.append(row(name, n, found, sum(f[3] for f in here)))
    return rows


def bfb(argv: Sequence[str]) -> None:
    """BFB: hypercubes and tori of Table 3.6, twisted tori, a million ranks, Kautz digraphs.

    Seconds are CPU seconds after compilation. The paper's (dissertation, Table 3.6) were taken on
    another machine: they tell orders of magnitude, not ratios.
    """
    parser = argparse.ArgumentParser(prog="bfb", description=(bfb.__doc__ or "").partition("\n")[0])
    parser.add_argument("--twisted", type=int, default=MOST_TWISTED, help="ranks (%(default)s)")
    parser.add_argument(
        "--conjecture",
        action="store_true",
        help="test Conjecture 1: degree 4 to 500 ranks, degree 6 to 48 with every counterexample",
    )
    parser.add_argument("--kautz", type=int, default=0, help="all Pi(d, n) up to n ranks")
    parser.add_argument("--processes", type=int, default=2, help="for --kautz (%(default)s)")
    options = parser.parse_args(argv)
    # Compile, so that no row has to.
    table_3_6(torus(3, 3), 0)
    large_torus((3, 3, 3))
    twisted(32)
    bfb_cost(generalized_kautz(2, 9))
    report("bfb", _rows(options))
    print("T_L in alpha, T_B in M/B; optimal: T_B = (N - 1)/N. Seconds are CPU seconds after")
    print("compilation, of synthesis and verification; the paper's were taken on another machine.")


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    # First, so that the peak of memory is theirs.
    yield from map(large_torus, LARGE)
    yield from itertools.starmap(table_3_6, TABLE_3_6)
    yield twisted(options.twisted)
    found, seconds = cpu_timed(lambda: bfb_cost(generalized_kautz(4, 1024)))
    yield row("Pi(4,1024), cost alone", 1024, found, seconds)
    if options.conjecture:
        yield from conjecture(2, 500)
        yield from conjecture(3, 48)
    if options.kautz:
        yield from kautz_sweep(options.kautz, options.processes)


DEGREES = (2, 4, 8, 16)
Row = dict[str, Any]


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
    rows = kept(
        "frontiers",
        (frontier_row(options.largest, degree, options.tables) for degree in options.degrees),
    )
    report("frontiers", rows)
    seconds = sum(row["search s"] + row["diameters, rates s"] for row in rows)
    print(f"{seconds:.0f} CPU seconds together, after compilation.")


TONS = {"uniform": 2.1, "all_to_all": 1.6}
CUBE = SIDE**3
TOLERANCE = 0.02
OVER = ("over torus", "over best torus variant")


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
        # An equal wiring is taken too, so that the search walks along plateaus.
        if total <= least:
            least, shifts = total, changed
    return optical_cubes(cubes, shifts)


def slices(ranks: int, trials: int) -> list[Row]:
    """A row per network of so many ranks; rates are also given over that of the best torus."""
    networks = [("torus", generative.torus(*sides)) for sides in boxes(ranks)]
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
    made = (row for ranks in options.ranks for row in slices(ranks, options.trials))
    report("tpu_slices", rows := kept("tpu_slices", made))
    rewired_rows = [row for row in rows if row["kind"] == "rewired cubes"]
    means = {over: _mean(row[over] for row in rewired_rows) for over in OVER}
    print("Rewired, geometric mean: " + ", ".join(f"{means[over]:.2f} {over}" for over in OVER))
    print(f"TONS, simulated, over the best torus variant: {TONS['all_to_all']} (all-to-all),")
    print(f"{TONS['uniform']} (uniform random traffic).")


def _mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(np.mean([math.log(value) for value in values]))
