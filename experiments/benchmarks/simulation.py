"""The fluid limit of a collective, which no schedule can beat, as a linear program."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.timing import report
from jaxcoll.bounds import bound
from jaxcoll.kinds import kind_of
from jaxcoll.numerics.program import Program, Terms
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topologies import torus
from jaxcoll.topology import Topology

ALPHA, BANDWIDTH = 0.5e-6, 50e9  # the README's


class _Flows:
    """Columns of a flow between the root, which is rank 0, and every other rank.

    Attributes:
        first: the first column.
        size: how many columns there are.
    """

    def __init__(self, topology: Topology, ticks: int, steps: int, first: int) -> None:
        self.topology, self.ticks, self.steps, self.first = topology, ticks, steps, first
        self.size = topology.num_links * steps * topology.num_ranks

    def sent(self, link: int, step: int, rank: int) -> int:
        """Data that enters a link for, or of, a rank in a step; of rank 0, the link's load."""
        return self.first + (link * self.steps + step) * self.topology.num_ranks + rank

    def net(self, vertex: int, step: int, rank: int) -> list[tuple[int, float]]:
        """Data of a rank's flow that has left a vertex by a step, less the data that has come."""
        src, dst = self.topology.src.tolist(), self.topology.dst.tolist()
        terms = []
        for link in range(self.topology.num_links):
            if src[link] == vertex:
                last = min(step + 1, self.steps)
                terms += [(self.sent(link, s, rank), 1.0) for s in range(last)]
            if dst[link] == vertex:
                last = min(step - self.ticks + 1, self.steps)
                terms += [(self.sent(link, s, rank), -1.0) for s in range(last)]
        return terms


def most_bytes(topology: Topology, kind: str, ticks: int, horizon: int) -> float:
    """Bytes of a rank's buffer that all ranks can gather, or reduce, in ``horizon`` ticks.

    Args:
        topology: a torus whose links are equal.
        kind: "all_gather" or "all_reduce".
        ticks: in a link's latency.
        horizon: ticks, more than ``ticks``.
    """
    n, steps = topology.num_ranks, horizon - ticks
    copies = _Flows(topology, ticks, steps, 0)
    kinds = [copies]
    adds = kind_of(kind).adds
    if adds:
        kinds.append(_Flows(topology, ticks, steps, copies.size))
    shard = sum(flows.size for flows in kinds)  # to maximize, in units of a link's data per tick
    program = Program()
    program.add_variables(shard)
    program.add_variable(cost=-1.0)
    if adds:
        # The data that the root holds complete by each tick.
        program.add_variables(horizon)
    _add_capacity(program, topology, kinds, steps)
    others = range(1, n)
    for v in others:
        for flows in kinds:
            for u in set(others) - {v}:
                for step in range(steps):
                    # No vertex passes on more than has come to it by then.
                    _at_most(program, flows.net(u, step, v))
        # By the end each rank has the whole shard of the root.
        _at_most(program, [*copies.net(v, horizon, v), (shard, 1.0)])
    if adds:
        # No more is complete than the contributions of each rank that have come, and no more is
        # copied.
        sums, complete = kinds[1], shard + 1
        for v in others:
            for tick in range(horizon):
                _at_most(program, [*sums.net(v, tick, v), (shard, -1.0)])
                _at_most(program, [*sums.net(0, tick, v), (complete + tick, 1.0)])
                _at_most(program, [*copies.net(0, tick, v), (complete + tick, -1.0)])
    found = program.minimize().optimal()
    return -found.objective * n * (ALPHA / ticks) * BANDWIDTH


def _at_most(program: Program, terms: Terms, most: float = 0.0) -> None:
    """One more row: the sum of factor times variable is at most so much."""
    program.add_constraint(terms, -np.inf, most)


def _add_capacity(
    program: Program, topology: Topology, kinds: Sequence[_Flows], steps: int
) -> None:
    """Loads are at least each rank's flow, and together at most the capacity of a direction."""
    n, links = topology.num_ranks, topology.num_links
    for flows in kinds:
        for link in range(links):
            for step in range(steps):
                load = (flows.sent(link, step, 0), -1.0)
                for v in range(1, n):
                    _at_most(program, [(flows.sent(link, step, v), 1.0), load])
    direction = _directions(topology)
    for way in sorted(set(direction)):
        along = [link for link in range(links) if direction[link] == way]
        for step in range(steps):
            loads = [(flows.sent(link, step, 0), 1.0) for link in along for flows in kinds]
            # The flows of one root, shifted to all n roots, load each link of a direction equally.
            _at_most(program, loads, len(along) / n)


def _directions(topology: Topology) -> list[tuple[int, ...]]:
    """By how much each link changes the coordinates."""
    sides = topology.grid.shape if topology.grid else ()
    at = np.stack(np.unravel_index(np.arange(topology.num_ranks), sides), axis=1)
    return [tuple(way) for way in ((at[topology.dst] - at[topology.src]) % sides).tolist()]


def measure(
    topology: Topology, kind: str, ticks: int, horizons: Sequence[int]
) -> Iterator[dict[str, object]]:
    """A row for each horizon."""
    for horizon in horizons:
        nbytes, seconds = most_bytes(topology, kind, ticks, horizon), horizon * ALPHA / ticks
        schedule = synthesize(topology, kind, nbytes=nbytes)
        yield {
            "collective": kind,
            "KiB": nbytes / 2**10,
            "fluid us": seconds * 1e6,
            "bound us": bound(topology, kind, nbytes).time * 1e6,
            "default us": simulate(schedule, nbytes).time * 1e6,
            "took": chosen_by_auto(schedule),
        }


def fluid(argv: Sequence[str]) -> None:
    """The fluid limit of a collective on a torus: whether the bound or the schedules are loose.

    Data flows over every link in any fractions, at a rate that may change every ``--ticks``-th part
    of the latency, and may be coded; data that has entered a link leaves it after the latency. The
    linear program finds the most bytes that all ranks can gather, or reduce, in a time: no schedule
    with any number of chunks gathers more by the link model "astra". In an all_reduce a rank copies
    a byte once the contributions of all ranks to it have come. Beside it stand ``jc.bound`` for as
    many bytes, and the time of the default's schedule. Where the two bounds agree, no argument
    about flows gives a higher one.

    A torus looks the same from every rank, so the flows of one root, shifted, serve all roots: the
    links of one direction share their capacity in the flows of one root.
    """
    parser = argparse.ArgumentParser(prog="fluid", description=fluid.__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[2, 4], help="(%(default)s)")
    parser.add_argument("--ticks", type=int, default=4, help="in a latency (%(default)s)")
    parser.add_argument("--collective", choices=("all_gather", "all_reduce"), default="all_gather")
    parser.add_argument(
        "--latencies", type=float, nargs="+", help="4 and 5, or 6.5, 7 and 9 (%(default)s)"
    )
    options = parser.parse_args(argv)
    topology = torus(*options.sides, alpha=ALPHA, bandwidth=BANDWIDTH)
    usual = [6.5, 7, 9] if kind_of(options.collective).adds else [4, 5]
    horizons = [round(options.ticks * latencies) for latencies in options.latencies or usual]
    report("fluid", measure(topology, options.collective, options.ticks, horizons))
    print("Where fluid and bound agree, no argument about flows gives a higher bound.")
