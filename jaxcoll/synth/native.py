"""What ``jax.lax`` runs: the algorithms behind its collectives, and their time on a network.

By backend, as far as it is known. gloo goes around the ranks in order, whatever the links are; its
reduce_scatter halves recursively, neighbours in number first, and then brings the shards, which lie
in the order of reversed bits, to their owners (``ReduceScatterHalvingDoubling``, in jaxlib). NCCL
has rings, double binary trees and direct sends (its documentation). A slice of TPUs is crossed
dimension by dimension (compiled for v5p slices, docs/targets.md); how XLA routes an all_to_all
there is unknown, so that it gets the benefit of the doubt. Of several algorithms the fastest
counts: XLA or NCCL may be as clever as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import forwarded_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import LinkModel, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import LINKS, STEPS
from jaxcoll.simulation.fair_flows import Flows, run_in_order
from jaxcoll.synth.baselines.bucket import Bucket
from jaxcoll.synth.baselines.direct import Direct
from jaxcoll.synth.baselines.double_binary_tree import DoubleBinaryTree
from jaxcoll.synth.baselines.halving import Halving
from jaxcoll.synth.baselines.nccl_ring import NcclRing
from jaxcoll.synth.baselines.ring import Ring
from jaxcoll.synth.building.base import Problem, Synthesizer
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.topology import Topology

JAX_LAX = "jax.lax"

# For sums and gathers, then for all_to_all.
_ALGORITHMS: dict[str, tuple[tuple[Synthesizer, ...], tuple[Synthesizer, ...]]] = {
    "cpu": ((Ring(bidirectional=False, order="ranks"),), (Direct(),)),
    "gpu": ((NcclRing(), DoubleBinaryTree()), (Direct(),)),
    "tpu": ((Bucket(), Ring()), (Direct(), MinCongestion())),
}
# Of a synthesizer's series of chunk counts the first, and the most chunks of those: pipelines of
# more make a program that compiles for minutes.
_COUNTS, _MOST_CHUNKS = 2, 16


def few_counts(series: Iterable[Sequence[int]]) -> list[int]:
    """One chunk per shard, and the few of each series that load a network's links evenly."""
    counts = {count for some in series for count in some[:_COUNTS] if count <= _MOST_CHUNKS}
    return sorted({1, *counts})


def attempted(maker: Synthesizer, problem: Problem) -> Schedule | str:
    """A synthesizer's schedule, not verified; or why there is none."""
    try:
        return maker.with_nbytes(problem.nbytes or 1).made(problem)
    except JaxcollError as error:
        return str(error)


def lax_seconds(
    topology: Topology,
    collective: Collective,
    nbytes: Number,
    costs: ExecutionCosts,
    *,
    model: str | LinkModel = "astra",
    several_axes: bool = False,
    make: Callable[[Synthesizer, Problem], Schedule | str] = attempted,
) -> float:
    """Seconds of a collective of ``jax.lax`` on links, in the machine's order of execution.

    Where ranks go through steps, each link by itself counts too, if that is faster. Beside them the
    machine charges ``costs.native_seconds``.

    Args:
        collective: a collective of a kind that ``jax.lax`` has.
        nbytes: bytes of the larger of a rank's input and output.
        model: the model of links, as for ``simulate``.
        several_axes: whether the ranks of a group differ along several axes of a mesh.
        make: as ``attempted``; for a caller that keeps schedules.

    Returns:
        Infinite where none of the algorithms is defined.
    """
    kind, costs = collective.traits, costs.of_native
    is_halved = costs.order.by_round and kind.adds and kind.ends_with_shard
    makers = (Halving(),) if is_halved else _ALGORITHMS[costs.backend][kind.is_pairwise]
    problem = Problem(topology, collective, float(nbytes), any_chunks=True)
    schedules = [
        costs.as_sent(each)
        for maker in makers
        for count in few_counts(maker.worth_trying(problem))
        if isinstance(each := make(maker, problem.with_chunks(count)), Schedule)
    ]

    def seconds_in(machine: ExecutionCosts) -> float:
        runs = [simulate(each, nbytes, model, execution=machine) for each in schedules]
        return min((float(run.exact_time - run.charge) for run in runs), default=float("inf"))

    if costs.order.by_round and kind.is_pairwise:
        # XLA hands gloo all messages and then waits for all: one step. Chance says which pairs take
        # turns. Halfway between none and all is within a fifth of times on ten networks.
        step = dataclasses.replace(costs, order=STEPS, half_duplex=False)
        in_turns = dataclasses.replace(step, half_duplex=True)
        return (seconds_in(step) + seconds_in(in_turns)) / 2
    if is_halved:
        step = dataclasses.replace(costs, order=STEPS)
        return seconds_in(step) + _reversal_seconds(topology, collective, nbytes, step)
    seconds = seconds_in(costs)
    if costs.order.waits and not costs.order.by_round:
        # The steps are those of our programs; NCCL's and XLA's own may pipeline better than that.
        by_links = dataclasses.replace(costs, order=LINKS, half_duplex=False)
        seconds = min(seconds, seconds_in(by_links))
    if several_axes and costs.backend == "tpu" and not kind.is_whole and kind.is_sharded:
        return 2 * seconds  # XLA sums zero-padded buffers instead (compiled for v5p)
    return seconds


def _reversal_seconds(
    topology: Topology, collective: Collective, nbytes: Number, costs: ExecutionCosts
) -> float:
    """Seconds in which shards that lie in the order of reversed bits get to their owners."""
    pairs = []
    for group in collective.groups:
        bits = (len(group) - 1).bit_length()
        if len(group) == 1 << bits:
            reversed_ = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(len(group))]
            pairs += [(group[i], group[j]) for i, j in enumerate(reversed_) if i != j]
    if not pairs:
        return 0.0
    src, dst = np.array(pairs, np.int64).T
    ptr, link = forwarded_routes(topology, src, dst).paths_of(np.arange(len(pairs)))
    shard = np.full(len(pairs), float(nbytes) / len(collective.groups[0]))
    flows = Flows(src, dst, np.zeros(len(pairs), np.int64), shard, ptr, link.astype(np.int64))
    return float(run_in_order(topology, flows, half_duplex=costs.half_duplex)[1].max())
