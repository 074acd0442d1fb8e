"""BFB: hypercubes and tori of Table 3.6, twisted tori, a million ranks, circulants, Kautz digraphs.

Seconds are CPU seconds after compilation. The paper's (dissertation, Table 3.6) were taken on
another machine: they tell orders of magnitude, not ratios.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from time import process_time
from typing import Any

from experiments.benchmarks.report import report
from jaxcoll import executors
from jaxcoll.bounds.moore import Cost, bandwidth_optimum, cost, moore_steps
from jaxcoll.collective import Collective
from jaxcoll.synth import Bfb
from jaxcoll.synth.direct_connect import GroupNetwork, bfb_cost, group_bfb, group_cost
from jaxcoll.topologies import hypercube, torus
from jaxcoll.topologies.generative import generalized_kautz
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

Row = dict[str, Any]

# Dissertation, Table 3.6, column BFB: seconds on another machine, 0.01 standing for "<0.01".
TABLE_3_6: Sequence[tuple[Topology, float]] = (
    *((hypercube(d), s) for d, s in ((2, 0.01), (3, 0.01), (4, 0.01), (5, 0.03), (6, 0.17))),
    (hypercube(10), 52.7),
    *((torus(k, k), s) for k, s in ((2, 0.01), (3, 0.01), (4, 0.01), (5, 0.01), (6, 0.03))),
    (torus(50, 50), 61.1),
)
LARGE = ((64, 64, 64), (100, 100, 100), (1000, 1000))
MOST_TWISTED = 10_000
DEGREES = (2, 4, 8, 16)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and the CPU seconds that it took."""
    start = process_time()
    return call(), process_time() - start


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
    chunks = Bfb.chunks(topology)
    collective = Collective("all_gather", topology.num_ranks, chunks)
    schedule, synthesis = timed(lambda: Bfb().synthesize(topology, collective))
    _, verification = timed(lambda: verify(schedule))
    return row(
        topology.name,
        topology.num_ranks,
        cost(schedule),
        synthesis + verification,
        chunks=chunks,
        sends=schedule.num_sends,
        **{"of which verified": verification, "paper's seconds": paper},
    )


def large_torus(sides: Sequence[int]) -> Row:
    """A schedule as the tree of one rank: synthesized, verified and costed."""

    def run():
        schedule = group_bfb(GroupNetwork.torus(*sides))
        schedule.verify()
        return schedule, schedule.cost()

    (schedule, found), seconds = timed(run)
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

    optimal, seconds = timed(run)
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
        fixing = [u for u in units if u * first % n in (first, n - first)]
        others = [b for b in range(1, (n + 1) // 2) if math.gcd(b, n) >= first and b != first]
        for rest in _subsets(others, count - 1):
            if math.gcd(n, first, *rest) > 1:
                continue
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
    found, seconds = timed(lambda: bfb_cost(generalized_kautz(*case)))
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


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="bfb", description=__doc__)
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
    found, seconds = timed(lambda: bfb_cost(generalized_kautz(4, 1024)))
    yield row("Pi(4,1024), cost alone", 1024, found, seconds)
    if options.conjecture:
        yield from conjecture(2, 500)
        yield from conjecture(3, 48)
    if options.kautz:
        yield from kautz_sweep(options.kautz, options.processes)
