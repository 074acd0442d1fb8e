"""The clusters of ForestColl's evaluation, the algorithms compared there, and training (Fig. 4.13).

Fig. 4.13 is of training iterations with fully sharded weights on two DGX A100, whose collectives
take the times of these algorithms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any

from experiments.config import StudyConfig
from experiments.figures import stacked_bars
from experiments.limits import Count, Filled, among, one_of
from experiments.study import Rows
from experiments.workloads import Workload, load_accelerator, load_model, workload
from experiments.workloads.models import FOLDER, cut_through, names_in
from jaxcoll import topologies
from jaxcoll.bounds.throughput import fixed_k, optimum
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.kinds import NAMES, kind_of
from jaxcoll.numerics.rational import as_fraction
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
from jaxcoll.synth.building.circles import host_chains, host_circles
from jaxcoll.topology import Topology

# Dissertation, Sec. 4.6.2 and 4.6.3: bytes per second from a rank to its host's switch, and
# outside.
NVSWITCH = {"a100": (300e9, 25e9), "h100": (450e9, 50e9)}


@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """Hosts of one kind."""

    fabric: str  # "a100", "h100" or "mi250"
    hosts: Count
    ranks: Count  # of each host; all that a host has (8, 8 and 16) in the paper but for MI250's 8+8

    def __post_init__(self) -> None:
        one_of("fabric", self.fabric, FABRICS)

    def build(self) -> Topology:
        """The network."""
        return FABRICS[self.fabric](self.hosts, self.ranks)

    def circles(self) -> tuple[tuple[int, ...], ...]:
        """A ring for each rank of a host, entering and leaving it at different ranks."""
        return host_circles(self.build(), self.ranks)

    def box_switches(self) -> tuple[int, ...]:
        """The vertices of the switches inside hosts; none where links join the ranks of a host."""
        topology = self.build()
        found = []
        for switch in range(topology.num_ranks, topology.num_vertices):
            ranks = topology.src[topology.dst == switch]
            if (ranks < topology.num_ranks).all() and len({*(ranks // self.ranks)}) == 1:
                found.append(switch)
        return tuple(found)

    def chains(self) -> tuple[tuple[int, ...], ...]:
        """An order of the ranks of a host for each of them to begin, over links where it can be."""
        return host_chains(self.build(), self.ranks)


def _nvswitch(fabric: str) -> Callable[[int, int], Topology]:
    def build(hosts: int, ranks: int) -> Topology:
        if ranks == 8:
            return {"a100": topologies.dgx_a100, "h100": topologies.dgx_h100}[fabric](hosts)
        inside, network = NVSWITCH[fabric]
        return topologies.nvswitch_hosts((ranks,) * hosts, inside=inside, network=network)

    return build


FABRICS: Mapping[str, Callable[[int, int], Topology]] = {
    "a100": _nvswitch("a100"),
    "h100": _nvswitch("h100"),
    "mi250": lambda hosts, ranks: topologies.mi250(hosts, ranks=ranks),
}


# ---------------------------------------------------------------------- the algorithms compared


KINDS = tuple(name for name in NAMES if kind_of(name).is_sharded)
# A kind of collective that an algorithm is not for, or a network that it cannot search.
NotApplicable = (CollectiveError, TopologyError)


@dataclasses.dataclass(frozen=True)
class Case:
    """One case of a comparison."""

    cluster: ClusterConfig
    topology: Topology
    kind: str
    pieces: Sequence[int]  # into which the data that crosses a connection is cut, smallest first
    nbytes: int  # largest size
    seed: int = 0  # of the synthesizers

    def made(self, synthesizer: Synthesizer, chunks: int) -> Schedule:
        """A verified schedule."""
        return synthesize(self.topology, self.kind, synthesizer, chunks=chunks, seed=self.seed)


def _forestcoll(case: Case) -> Iterator[Schedule]:
    """With the trees of the optimum, with one, and with the best number below 10 (Sec. 4.5.5)."""
    best = optimum(case.topology)
    # Fewer trees lose some bandwidth, and have fewer and larger chunks: faster where latency
    # counts.
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
    boxes = case.cluster.box_switches()
    topology = case.topology.with_in_network(boxes, boxes)
    flow = forest(topology if kind_of(case.kind).copies else topology.transpose())
    for pieces in case.pieces:
        for in_flight in (2, 8) if kind_of(case.kind).has_phases else (pieces,):
            for nbytes in sizes:
                times = simulate_multicast(
                    flow,
                    nbytes,
                    boxes,
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


MODELS = FOLDER / "fsdp"
OURS, NCCL = "ForestColl", "vendor ring"
# The collectives of fully sharded training: weights are gathered, gradients are scattered.
GATHERED = tuple(name for name in KINDS if not kind_of(name).has_phases)

_NONE = Fraction(0)
# Seconds of a collective of so many bytes, by kind.
Times = Mapping[str, Callable[[int], Fraction]]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model as it is trained."""

    table: Annotated[str, among(names_in(MODELS))]  # a name in ``configs/workload/fsdp``
    batch_per_rank: Count  # of every rank
    overlap: bool  # whether communication runs beside compute; one after the other otherwise
    paper_compute: float  # percent of NCCL's iteration that is compute, as printed; 0 for nothing
    paper_reduction: float  # percent that ForestColl takes off NCCL's iteration; 0 for nothing


@dataclasses.dataclass(frozen=True)
class Config(StudyConfig):
    """The figure."""

    cluster: ClusterConfig
    models: Filled[tuple[ModelConfig, ...]]  # smallest first
    accelerator: str  # a name in ``configs/accelerator``
    element_bytes: Count  # bytes of a weight or gradient
    pieces: Filled[tuple[int, ...]]  # that are tried, smallest first


def run(config: Config) -> list[dict[str, Any]]:
    """Two rows for each model."""
    works = [_workload(config, model) for model in config.models]
    sizes = sorted({n for work in works for n in _bytes(work) if n})
    times = {name: _times(config, name, sizes) for name in (NCCL, OURS)}
    rows, bars = Rows(), {}
    for model, work in zip(config.models, works, strict=True):
        totals = {name: iteration(work, times[name], model.overlap) for name in times}
        bars[work.name] = {}
        for name, total in totals.items():
            exposed = total - work.compute
            parts = {"compute": work.compute, "communication alone": exposed}
            bars[work.name][name] = {k: float(v / totals[NCCL]) for k, v in parts.items()}
            rows.append(
                {
                    "model": work.name,
                    "algorithm": name,
                    "beside compute": "yes" if model.overlap else "no",
                    "compute ms": 1e3 * float(work.compute),
                    "exposed ms": 1e3 * float(exposed),
                    "total ms": 1e3 * float(total),
                    "compute %": 100 * float(work.compute / total),
                    "paper compute %": _if_shown(name == NCCL, model.paper_compute),
                    "reduction %": 100 * float(1 - total / totals[NCCL]),
                    "paper reduction %": _if_shown(name == OURS, model.paper_reduction),
                }
            )
    figure = stacked_bars(
        bars, parts=("compute", "communication alone"), label="iteration over NCCL's"
    )
    title = "ForestColl, Fig. 4.13: FSDP training iterations on two DGX A100"
    return config.publish(title, rows, figure=figure)


def _if_shown(shown: bool, number: float) -> float | None:
    return number if shown and number else None


def _workload(config: Config, model: ModelConfig) -> Workload:
    return workload(
        load_model(model.table, MODELS),
        load_accelerator(config.accelerator),
        batch_per_rank=model.batch_per_rank,
        element_bytes=config.element_bytes,
        ranks=config.cluster.hosts * config.cluster.ranks,
    )


def _bytes(work: Workload) -> list[int]:
    """Bytes of each layer's weights."""
    return [layer.gradient.nbytes if layer.gradient else 0 for layer in work.layers]


def _times(config: Config, algorithm: str, sizes: list[int]) -> Times:
    one_of("algorithm", algorithm, tuple(ALGORITHMS))
    topology, found = config.cluster.build(), {}
    for kind in GATHERED:
        case = Case(config.cluster, topology, kind, config.pieces, sizes[-1])
        seconds = fastest_times(algorithm, case, sizes)
        found[kind] = {n: as_fraction(s) for n, s in seconds.items()}.__getitem__
    return found


def iteration(work: Workload, times: Times, overlap: bool) -> Fraction:
    """Seconds from the first gather of weights to the last sum of gradients.

    Weights are gathered layer by layer, in the forward pass and again in the backward pass, and
    discarded after use; gradients are reduce-scattered as they come (Sec. 4.6.4). With overlap the
    network serves one request after another: the next layer's weights are asked for as a layer
    starts to compute, its gradients when it ends.

    Args:
        times: times of ``KINDS``, by bytes.
    """
    gather, scatter = (times[kind] for kind in GATHERED)
    sizes = _bytes(work)
    forward = [(layer.forward, n, 0) for layer, n in zip(work.layers, sizes, strict=True)]
    backward = [
        (layer.input_gradient + layer.weight_gradient, n, n)
        for layer, n in zip(work.layers, sizes, strict=True)
    ]
    # Of each layer in turn: seconds of compute, to gather before, and to reduce-scatter after.
    passes = [
        (seconds, gather(weights) if weights else _NONE, scatter(summed) if summed else _NONE)
        for seconds, weights, summed in [*forward, *reversed(backward)]
    ]
    if not overlap:
        return sum((sum(turn, _NONE) for turn in passes), _NONE)
    # The first gather has nothing to hide behind.
    compute, network = _NONE, passes[0][1]  # when each has finished its queue
    gathered = network
    for (seconds, _, after), (_, before, _) in zip(
        passes, [*passes[1:], (_NONE,) * 3], strict=True
    ):
        start = max(compute, gathered)
        compute = start + seconds
        # Asked for as the layer starts, so the next layer's weights go before the gradients of this
        # one, which come at its end.
        gathered = network = max(network, start) + before if before else network
        network = max(network, compute) + after if after else network
    return max(compute, network)
