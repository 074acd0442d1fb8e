"""Who is compared with ForestColl: schedules by algorithm and kind, each in several pieces."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from experiments.forestcoll.networks import ClusterConfig
from experiments.workloads.collectives import cut_through
from jaxcoll.bounds.throughput import fixed_k, optimum
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate, simulate_multicast
from jaxcoll.synth import (
    Blink,
    DoubleBinaryTree,
    ForestColl,
    HierarchicalTree,
    MultiTree,
    Ring,
    StepMilp,
    Synthesizer,
    Tacos,
    forest,
    synthesize,
)
from jaxcoll.topology import Topology

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
# A kind of collective that an algorithm is not for, or a network that it cannot search.
NotApplicable = (CollectiveError, TopologyError)


@dataclasses.dataclass(frozen=True)
class Case:
    """One case of a comparison.

    Attributes:
        cluster: the hosts.
        topology: their network.
        kind: of the collective.
        pieces: into which the data that crosses a connection is cut, smallest first.
        nbytes: largest size.
        seed: of the synthesizers.
    """

    cluster: ClusterConfig
    topology: Topology
    kind: str
    pieces: Sequence[int]
    nbytes: int
    seed: int = 0

    def made(self, synthesizer: Synthesizer, chunks: int) -> Schedule:
        """A verified schedule."""
        return synthesize(self.topology, self.kind, synthesizer, chunks=chunks, seed=self.seed)


def _forestcoll(case: Case) -> Iterator[Schedule]:
    """With the trees of the optimum, with one, and with the best number below 10 (Sec. 4.5.5)."""
    best = optimum(case.topology)
    few = min(range(1, 10), key=lambda k: (fixed_k(case.topology, k, best=best).inverse, k))
    for k in dict.fromkeys((best.k, min(few, best.k), 1)):
        for pieces in case.pieces:
            yield case.made(ForestColl(k=k), k * pieces)


def _blink(case: Case) -> Iterator[Schedule]:
    least = Blink().granularity(case.topology)
    for pieces in case.pieces:
        yield case.made(Blink(), least * pieces)


def _vendor_ring(case: Case) -> Iterator[Schedule]:
    """NCCL's and RCCL's, at best: a ring for each link between hosts, one way and both ways."""
    circles = case.cluster.circles()
    for both in (False, True):
        ring = Ring(bidirectional=both, circles=circles)
        for pieces in case.pieces:
            yield cut_through(case.made(ring, (1 + both) * len(circles) * pieces), pieces)


def _vendor_tree(case: Case) -> Iterator[Schedule]:
    """NCCL's and RCCL's: chains inside hosts, two trees across them, a channel for each rank."""
    chains = case.cluster.chains()
    for pieces in case.pieces:
        chunks = -(-2 * pieces // case.cluster.hosts)
        for nbytes in (1 << 20, case.nbytes):
            tree = HierarchicalTree(chains=chains, pieces=pieces, nbytes=nbytes)
            yield case.made(tree, chunks)


def _double_binary_tree(case: Case) -> Iterator[Schedule]:
    for pieces in case.pieces:
        yield case.made(DoubleBinaryTree(pieces=pieces), pieces)


def _multitree(case: Case) -> Iterator[Schedule]:
    """With the slowest link as its unit, as the dissertation has it (Sec. 4.6.5)."""
    unit = float(case.topology.bandwidth.min())
    for nearest_first in (False, True):
        multitree = MultiTree(unit=unit, nearest_first=nearest_first)
        for pieces in case.pieces:
            yield cut_through(case.made(multitree, pieces), pieces)


def _tacos(case: Case) -> Iterator[Schedule]:
    for chunks in (1, 4):
        yield case.made(Tacos(nbytes=case.nbytes), chunks)


def _step_milp(case: Case) -> Iterator[Schedule]:
    """One chunk per rank, and two where they are found in time."""
    milp = StepMilp(nbytes=case.nbytes, seconds=10.0)
    yield case.made(milp, 1)
    with contextlib.suppress(*NotApplicable):
        yield case.made(milp, 2)


ALGORITHMS: Mapping[str, Callable[[Case], Iterator[Schedule]]] = {
    "ForestColl": _forestcoll,
    "vendor ring": _vendor_ring,
    "vendor tree": _vendor_tree,
    "double binary tree": _double_binary_tree,
    "Blink+Switch": _blink,
    "MultiTree": _multitree,
    "TACOS": _tacos,
    "step MILP": _step_milp,
}


def _nvls(case: Case, sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """ForestColl's trees, with switches of the hosts that copy and add (Sec. 4.5.6)."""
    topology = case.topology
    flow = forest(topology if case.kind == "all_gather" else topology.transpose())
    for pieces in case.pieces:
        for in_flight in (2, 8) if case.kind == "all_reduce" else (pieces,):
            for nbytes in sizes:
                times = simulate_multicast(
                    flow,
                    nbytes,
                    case.cluster.box_switches(),
                    kind=case.kind,
                    pieces=pieces,
                    in_flight=in_flight,
                )
                yield nbytes, times.time


# Timed without a schedule, which cannot hold sends that begin or end in a switch.
TIMED: Mapping[str, Callable[[Case, Sequence[int]], Iterator[tuple[int, float]]]] = {
    "ForestColl NVLS": _nvls,
}
NAMES = (*ALGORITHMS, *TIMED)


def fastest_times(algorithm: str, case: Case, sizes: Sequence[int]) -> dict[int, float]:
    """Simulated seconds of the fastest of the algorithm's runs, by size.

    Raises:
        CollectiveError, TopologyError: the algorithm is not defined for the case.
    """
    times = dict.fromkeys(sizes, math.inf)
    if algorithm in TIMED:
        for nbytes, seconds in TIMED[algorithm](case, sizes):
            times[nbytes] = min(times[nbytes], seconds)
        return times
    for schedule in ALGORITHMS[algorithm](case):
        for nbytes in sizes:
            times[nbytes] = min(times[nbytes], simulate(schedule, nbytes).time)
    return times
