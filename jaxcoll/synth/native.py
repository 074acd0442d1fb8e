"""What ``jax.lax`` runs: the algorithms behind its collectives, and their time on a network.

By backend, as far as it is known. gloo goes around the ranks in order, whatever the links are. NCCL
has rings, double binary trees and direct sends (its documentation). A slice of TPUs is crossed
dimension by dimension (compiled for v5p slices, docs/targets.md); how XLA routes an all_to_all
there is unknown, so that it gets the benefit of the doubt. Of several algorithms the fastest
counts: XLA or NCCL may be as clever as that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from jaxcoll.collective import Collective
from jaxcoll.errors import JaxcollError
from jaxcoll.kinds import names_in
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import LinkModel, simulate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.simulation.execution_order import LINKS, STEPS
from jaxcoll.synth.building.base import Problem, Synthesizer
from jaxcoll.synth.patterns.grid_rings import Bucket
from jaxcoll.synth.patterns.ring import Direct, NcclRing, Ring
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.synth.trees.pipeline import DoubleBinaryTree
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
(_SUM,) = (kind for kind, function in names_in("lax").items() if function == "psum")


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
        collective: of a kind that ``jax.lax`` has.
        nbytes: of the larger of a rank's input and output.
        model: of links, as for ``simulate``.
        several_axes: whether the ranks of a group differ along several axes of a mesh.
        make: as ``attempted``; for a caller that keeps schedules.

    Returns:
        Infinite where none of the algorithms is defined.
    """
    run, kind = collective, collective.traits
    if costs.order.by_round and kind.adds and kind.ends_with_shard:
        # Between processes XLA keeps a part of the sum of all: 2.45 times a switch's bound,
        # measured, where the sum takes 1.1.
        run = dataclasses.replace(collective, kind=_SUM)  # type: ignore[arg-type]
    problem = Problem(topology, run, float(nbytes), any_chunks=True)
    tried = [
        make(maker, problem.with_chunks(count))
        for maker in _ALGORITHMS[costs.backend][kind.is_pairwise]
        for count in few_counts(maker.worth_trying(problem))
    ]
    orders = [costs]
    if costs.order.by_round and kind.is_pairwise:
        # XLA hands gloo all messages of an all_to_all and then waits for all: one step. All ranks
        # are ready to receive before much is sent, and so no pair takes turns: between two hosts of
        # four it took 1.32 s where the cable's bytes take 1.34, and turns would make it 2.07.
        orders = [dataclasses.replace(costs, order=STEPS, half_duplex=False)]
    elif not costs.order.by_round and costs.order.waits:
        # The steps are those of our programs; NCCL's and XLA's own may pipeline better than that.
        orders.append(dataclasses.replace(costs, order=LINKS, half_duplex=False))
    runs = [
        simulate(schedule, nbytes, model, execution=ordered)
        for schedule in tried
        if isinstance(schedule, Schedule)
        for ordered in orders
    ]
    seconds = min((float(run.exact_time - run.charge) for run in runs), default=float("inf"))
    if several_axes and costs.backend == "tpu" and not kind.is_whole and kind.is_sharded:
        return 2 * seconds  # XLA sums zero-padded buffers instead (compiled for v5p)
    return seconds
