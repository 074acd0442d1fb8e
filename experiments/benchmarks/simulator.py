"""Messages simulated per second, and the times that TACOS (C++) publishes in its tests.

Every timing stands beside two others of the same run: a heap-driven simulator in plain Python on
a small part of the same traffic, and the time this machine takes to copy the columns that any
simulator must read and write, which is the limit.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.benchmarks.report import report
from experiments.timing import Timing, time_it
from jaxcoll import topologies
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Direct, Ring, Tacos
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


def main(argv: Sequence[str]) -> None:
    """Prints and writes both tables."""
    parser = argparse.ArgumentParser(prog="simulator")
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
