"""The fluid limit of an all_gather on a torus: whether the bound or the schedules are loose.

Data flows over every link in any fractions, at a rate that may change every ``--ticks``-th part of
the latency, and may be coded; data that has entered a link leaves it after the latency. The linear
program finds the most bytes that every rank can gather in a time: no schedule with any number of
chunks gathers more by the link model "astra". Beside it stand ``jc.bound`` for as many bytes, and
the time of the default's schedule. Where the two bounds agree, no argument about flows gives a
higher one.

A torus looks the same from every rank, so the flows of one root, shifted, serve all roots: the
links of one direction share their capacity in the flows of one root.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from experiments.benchmarks.report import report
from jaxcoll.bounds import bound
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.auto import taken_by_auto
from jaxcoll.topologies import torus
from jaxcoll.topology import Topology

ALPHA, BANDWIDTH = 0.5e-6, 50e9  # the README's


class _Rows:
    """Rows of a sparse system ``A x <= b``."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.most: list[float] = []

    def add(self, terms: Iterator[tuple[int, float]], most: float = 0.0) -> None:
        """One more row: the sum of factor times variable is at most so much."""
        self.entries += [(len(self.most), variable, factor) for variable, factor in terms]
        self.most.append(most)

    def matrix(self, variables: int) -> sp.csr_matrix:
        """A, for so many variables."""
        row, column, factor = zip(*self.entries, strict=True)
        return sp.csr_matrix((factor, (row, column)), shape=(len(self.most), variables))


def most_bytes(topology: Topology, ticks: int, horizon: int) -> float:
    """Bytes of a rank's buffer that all ranks can gather in ``horizon`` ticks.

    Args:
        topology: a torus whose links are equal.
        ticks: in a link's latency.
        horizon: ticks, more than ``ticks``.
    """
    n, links, steps = topology.num_ranks, topology.num_links, horizon - ticks
    src, dst = topology.src.tolist(), topology.dst.tolist()
    shard = links * steps * n  # the variable to maximize, in units of a link's data per tick

    def sent(link: int, step: int, target: int) -> int:
        """Load of the flow to a target on a link; target 0, the root, is the load of the link."""
        return (link * steps + step) * n + target

    rows = _Rows()
    for link in range(links):
        for step in range(steps):
            for v in range(1, n):
                rows.add(iter([(sent(link, step, v), 1.0), (sent(link, step, 0), -1.0)]))
    direction = _directions(topology)
    for way in sorted(set(direction)):
        along = [link for link in range(links) if direction[link] == way]
        for step in range(steps):
            rows.add(((sent(link, step, 0), 1.0) for link in along), len(along) / n)
    for v in range(1, n):
        for u in set(range(1, n)) - {v}:
            out = [link for link in range(links) if src[link] == u]
            into = [link for link in range(links) if dst[link] == u]
            for step in range(steps):
                left = [(sent(e, s, v), 1.0) for e in out for s in range(step + 1)]
                come = [(sent(e, s, v), -1.0) for e in into for s in range(step - ticks + 1)]
                rows.add(iter(left + come))
        ends = [(e, 1.0 if src[e] == v else -1.0) for e in range(links) if v in (src[e], dst[e])]
        flow = [(sent(e, s, v), sign) for e, sign in ends for s in range(steps)]
        rows.add(iter([*flow, (shard, 1.0)]))
    cost = np.zeros(shard + 1)
    cost[shard] = -1
    found = linprog(cost, A_ub=rows.matrix(shard + 1), b_ub=rows.most, method="highs-ipm")
    if not found.success:
        raise RuntimeError(f"HiGHS found no optimum: {found.message}")
    return -found.fun * n * (ALPHA / ticks) * BANDWIDTH


def _directions(topology: Topology) -> list[tuple[int, ...]]:
    """By how much each link changes the coordinates."""
    sides = topology.grid.shape if topology.grid else ()
    at = np.stack(np.unravel_index(np.arange(topology.num_ranks), sides), axis=1)
    return [tuple(way) for way in ((at[topology.dst] - at[topology.src]) % sides).tolist()]


def measure(topology: Topology, ticks: int, horizons: Sequence[int]) -> Iterator[dict[str, object]]:
    """A row for each horizon."""
    for horizon in horizons:
        nbytes, seconds = most_bytes(topology, ticks, horizon), horizon * ALPHA / ticks
        schedule = synthesize(topology, "all_gather", nbytes=nbytes)
        yield {
            "KiB": nbytes / 2**10,
            "fluid us": seconds * 1e6,
            "bound us": bound(topology, "all_gather", nbytes).time * 1e6,
            "default us": simulate(schedule, nbytes).time * 1e6,
            "took": taken_by_auto(schedule),
        }


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="fluid", description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[2, 4], help="(%(default)s)")
    parser.add_argument("--ticks", type=int, default=4, help="in a latency (%(default)s)")
    parser.add_argument("--latencies", type=int, nargs="+", default=[4, 5], help="(%(default)s)")
    options = parser.parse_args(argv)
    topology = torus(*options.sides, alpha=ALPHA, bandwidth=BANDWIDTH)
    horizons = [options.ticks * latencies for latencies in options.latencies]
    report("fluid", list(measure(topology, options.ticks, horizons)))
    print("Where fluid and bound agree, no argument about flows gives a higher bound.")
