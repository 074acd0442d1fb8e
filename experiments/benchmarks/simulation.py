"""The simulator's speed and published times, and the fluid limit that no schedule can beat."""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy
import scipy.sparse as sp

from experiments.timing import Timing, report, time_it
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Direct, Ring, Tacos, synthesize
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.topologies import torus
from jaxcoll.topology import Topology

GIB = 2**30

# Expected times in the tests of TACOS v1.3.0 (C++), in microseconds: family, sides, alpha in us,
# bandwidth in GiB/s, chunks per shard, GiB gathered, time.
PUBLISHED = (
    ("mesh", (5, 5), 0.5, 50, 1, 1, 9606.0),
    ("mesh", (10, 10), 1.0, 100, 2, 1, 5049.0),
    ("mesh", (7, 12), 1.0, 100, 3, 4, 19966.27),
    ("torus", (3, 3, 3), 0.5, 50, 1, 1, 3706.20),
    ("torus", (3, 4, 5), 0.5, 50, 2, 2, 6676.67),
    ("torus", (4, 2, 3), 0.5, 50, 3, 3, 11673.67),
    ("mesh", (3, 3, 3), 0.5, 50, 1, 1, 6671.17),
    ("mesh", (3, 4, 5), 0.5, 50, 2, 2, 13353.33),
    ("mesh", (4, 2, 3), 0.5, 50, 3, 3, 19178.17),
)


def simulator(argv: Sequence[str]) -> None:
    """Messages simulated per second, and the times that TACOS (C++) publishes in its tests.

    Every timing stands beside two others of the same run: a heap-driven simulator in plain Python
    on a small part of the same traffic, and the time this machine takes to copy the columns that
    any simulator must read and write, which is the limit.
    """
    parser = argparse.ArgumentParser(prog="simulator", description=simulator.__doc__)
    parser.add_argument("--ranks", type=int, default=4096, help="ranks of the ring")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args(argv)
    report("simulator", (speed_row(*case, options.repeat) for case in traffic(options.ranks)))
    report("simulator-published", (published_row(*case) for case in PUBLISHED))


def traffic(ranks: int) -> list[tuple[str, Schedule]]:
    """The simulated cases: a ring link by link, then messages that are stored and forwarded."""
    one_way = Ring(bidirectional=False)
    cases: list[tuple[Topology, str, Ring | Direct]] = [
        (topologies.ring(ranks, bidirectional=False), "all_reduce", one_way),
        (topologies.switch(max(2, ranks // 8)), "all_gather", one_way),
        (topologies.torus(16, 16), "all_gather", Direct()),
    ]
    return [
        (
            f"{synthesizer.name} {kind} on {topology.name}",
            synthesizer.synthesize(topology, Collective(kind, topology.num_ranks)),
        )
        for topology, kind, synthesizer in cases
    ]


def speed_row(name: str, schedule: Schedule, repeat: int) -> dict[str, Any]:
    """Messages and hops per second of the simulator, plain Python and a copy of the columns."""
    hops = len(simulate(schedule, 64e6).hop_link)
    ours = time_it(lambda: simulate(schedule, 64e6), repeat)
    part = min(hops, 200_000)
    python = time_it(lambda: heap_replay(part), min(repeat, 3))
    # A hop reads its link, start and durations and writes its start; a message its chunk and edge.
    columns = np.zeros(4 * hops + schedule.num_messages, np.int64)
    copy = time_it(lambda: columns.copy(), repeat)
    return {
        "traffic": name,
        "messages": schedule.num_messages,
        "hops": hops,
        "seconds": ours,
        "Mmessages/s": schedule.num_messages / ours.median / 1e6,
        "Mhops/s": hops / ours.median / 1e6,
        "Python Mhops/s": part / python.median / 1e6,
        "ratio": _ratio(hops, ours, part, python),
        "copy Mhops/s": hops / copy.median / 1e6,
    }


def _ratio(hops: int, ours: Timing, part: int, python: Timing) -> float:
    return (hops / ours.median) / (part / python.median)


def heap_replay(hops: int, ranks: int = 64) -> int:
    """The baseline: a ring's messages through ``heapq``, one event a hop; returns the end."""
    free = [0] * ranks
    events = [(0, rank) for rank in range(ranks)]
    end = 0
    for _ in range(hops):
        now, rank = heapq.heappop(events)
        start = max(now, free[rank])
        free[rank] = start + 100
        end = start + 150
        heapq.heappush(events, (end, (rank + 1) % ranks))
    return end


def published_row(
    family: str, sides: tuple[int, ...], alpha: float, gib_s: float, k: int, gib: int, peer: float
) -> dict[str, Any]:
    """Our TACOS schedule of the peer's case, timed by both link models."""
    make = getattr(topologies, family)
    topology = make(*sides, alpha=alpha * 1e-6, bandwidth=gib_s * GIB)
    schedule = Tacos().synthesize(topology, Collective("all_gather", topology.num_ranks, k))
    ours = simulate(schedule, gib * GIB, "tacos").time * 1e6
    return {
        "case": topology.name,
        "chunks": k,
        "steps": schedule.num_steps,
        "peer us": peer,
        "ours us (tacos model)": ours,
        "ours / peer": ours / peer,
        "ours us (astra model)": simulate(schedule, gib * GIB, "astra").time * 1e6,
    }


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
    if kind == "all_reduce":
        kinds.append(_Flows(topology, ticks, steps, copies.size))
    shard = sum(flows.size for flows in kinds)  # to maximize, in units of a link's data per tick
    rows = _Rows()
    _add_capacity(rows, topology, kinds, steps)
    others = range(1, n)
    for v in others:
        for flows in kinds:
            for u in set(others) - {v}:
                for step in range(steps):
                    rows.add(iter(flows.net(u, step, v)))
        rows.add(iter([*copies.net(v, horizon, v), (shard, 1.0)]))
    if kind == "all_reduce":
        # The data that the root holds complete by each tick; more than the contributions of no rank
        # has come, and more is not copied.
        sums, complete = kinds[1], shard + 1
        for v in others:
            for tick in range(horizon):
                rows.add(iter([*sums.net(v, tick, v), (shard, -1.0)]))
                rows.add(iter([*sums.net(0, tick, v), (complete + tick, 1.0)]))
                rows.add(iter([*copies.net(0, tick, v), (complete + tick, -1.0)]))
    columns = shard + 1 + (horizon if kind == "all_reduce" else 0)
    cost = np.zeros(columns)
    cost[shard] = -1
    found = scipy.optimize.linprog(
        cost, A_ub=rows.matrix(columns), b_ub=rows.most, method="highs-ipm"
    )
    if not found.success:
        raise RuntimeError(f"HiGHS found no optimum: {found.message}")
    return -found.fun * n * (ALPHA / ticks) * BANDWIDTH


def _add_capacity(rows: _Rows, topology: Topology, kinds: Sequence[_Flows], steps: int) -> None:
    """Loads are at least each rank's flow, and together at most the capacity of a direction."""
    n, links = topology.num_ranks, topology.num_links
    for flows in kinds:
        for link in range(links):
            for step in range(steps):
                load = (flows.sent(link, step, 0), -1.0)
                for v in range(1, n):
                    rows.add(iter([(flows.sent(link, step, v), 1.0), load]))
    direction = _directions(topology)
    for way in sorted(set(direction)):
        along = [link for link in range(links) if direction[link] == way]
        for step in range(steps):
            loads = [(flows.sent(link, step, 0), 1.0) for link in along for flows in kinds]
            rows.add(iter(loads), len(along) / n)


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
    parser = argparse.ArgumentParser(prog="fluid", description=simulator.__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=[2, 4], help="(%(default)s)")
    parser.add_argument("--ticks", type=int, default=4, help="in a latency (%(default)s)")
    parser.add_argument("--collective", choices=("all_gather", "all_reduce"), default="all_gather")
    parser.add_argument(
        "--latencies", type=float, nargs="+", help="4 and 5, or 6.5, 7 and 9 (%(default)s)"
    )
    options = parser.parse_args(argv)
    topology = torus(*options.sides, alpha=ALPHA, bandwidth=BANDWIDTH)
    usual = [4, 5] if options.collective == "all_gather" else [6.5, 7, 9]
    horizons = [round(options.ticks * latencies) for latencies in options.latencies or usual]
    report("fluid", measure(topology, options.collective, options.ticks, horizons))
    print("Where fluid and bound agree, no argument about flows gives a higher bound.")
