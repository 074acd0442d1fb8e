"""The cheapest way to run a call without ``schedule=``: a schedule or ``jax.lax``, and the reason.

The price of a candidate is its time on the links of the network, if it is known, plus the machine's
charges (``ExecutionCosts``). ``jax.lax`` is priced as the algorithm that the backend runs. Only
synthesizers that answer within a few hundredths of a second are candidates, because a program that
is being traced waits for them. ``explain_choice`` shows the candidates and their predicted times.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.execute.choice import stated
from jaxcoll.execute.choice.defaults import (
    default_schedule,
    default_topology,
    is_small,
    schedule_of,
)
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.lowerings.scan import stages
from jaxcoll.execute.primitives import Native, is_loop_on_cpu
from jaxcoll.kinds import kind_of
from jaxcoll.numerics.compiled import without_numba
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.simulation.execution_costs import (
    ExecutionCosts,
    rounds_of_steps,
)
from jaxcoll.simulation.fair_flows import Flows, run_in_order
from jaxcoll.synth import Portfolio, Synthesizer
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.native import JAX_LAX, attempted, few_counts, lax_seconds
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify

# If only the machine's charges count, one synthesizer per number of rounds is enough.
_WITHOUT_LINKS = ("bucket", "ring", "rhd", "direct")
# The most sends of one schedule while a program is being traced and waits: they take 70 ms, and at
# 16 ranks half a second for all candidates, most of it in the first call of each. Tracing and
# compiling grow with the ranks, too.
_LEAST_WORK, _WORK_PER_PAIR = 70_000, 4
# A schedule must take less than this share of the time of jax.lax. Predictions for schedules
# between CPU devices were within a factor of two of most measured times (benchmark
# execution_costs), and a wrong prediction should not cost users who only changed an import. Between
# processes, where ranks act one after the other on known links, times of 1 MiB and more are
# predicted within a few per cent. For the charges shipped for GPUs and TPUs this has not been
# measured.
MARGIN, MARGIN_IN_ORDER = 0.75, 0.9


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way to run a collective, with its price.

    Attributes:
        label: "jax.lax", or the name of a synthesizer with its unusual hyperparameters.
        runs: the schedule or ``jax.lax``; ``None`` if it is not defined.
        links: seconds on the links; 0 if they are unknown.
        charge: seconds that the machine charges.
        rounds: number of permutes; 0 for ``jax.lax``.
        refused: the reason why it is not defined.
        chunks: chunks per shard.
    """

    label: str
    runs: Schedule | Native | None
    links: float = 0.0
    charge: float = 0.0
    rounds: int = 0
    refused: str = ""
    chunks: int = 1

    @property
    def name(self) -> str:
        """The label, with the chunks if there are several per shard."""
        return self.label if self.chunks == 1 else f"{self.label}, {self.chunks} chunks"

    @property
    def is_native(self) -> bool:
        """Whether it is the collective of ``jax.lax``."""
        return isinstance(self.runs, Native)

    @property
    def seconds(self) -> float:
        """The predicted time; infinite if it is not defined."""
        return math.inf if self.runs is None else self.links + self.charge


def cheapest(
    kind: str, axes: Axes, groups, root: int | None, nbytes: int, op: str, dtype
) -> Schedule | Native:
    """The cheapest schedule, or ``jax.lax``, for a call without ``schedule=``.

    Args:
        groups: groups of the ranks of ``axes``, as in ``Collective``.
        nbytes: bytes of the larger of a rank's input and output.
        op: "sum", "max" or "min".
        dtype: dtype of the elements.

    Raises:
        CollectiveError: a stated topology or execution costs do not fit the mesh.
    """
    place = stated.place(kind, axes, groups, root, stated.may_play(axes, dtype, kind, op))
    # If jax.lax cannot run and there is no network, few rounds are best, which the default has.
    by_lax = kind_of(kind).lax is not None and not loses_nans(op, dtype, place.platform)
    if place.topology is None and not by_lax:
        shard = nbytes // len(place.collective.groups[0])
        return default_schedule(place.collective, shard, place.platform)
    found = candidates_at(place, nbytes)
    chosen = taken(found, by_lax, margin_of(place.costs, place.topology)).runs
    if isinstance(chosen, Native):
        return Native(Collective(kind, axes.num_ranks, 1, groups, root))  # type: ignore[arg-type]
    if chosen is None:
        return default_schedule(place.collective, 0, place.platform)
    return _verified(chosen)


def scheduled(place: stated.Place, nbytes: int, algorithm: str, chunks: int) -> Schedule:
    """The verified schedule that a configuration names: a candidate's or a synthesizer's.

    Args:
        nbytes: bytes of the larger of a rank's input and output.
        algorithm: a candidate's label, such as "tacos" or "hierarchical_ring(alternating=True)", or
            the name of a synthesizer.
        chunks: chunks per shard.

    Raises:
        CollectiveError, TopologyError: there is no such synthesizer, or it is not defined here.
    """
    if place.topology is not None:
        for each in candidates_at(place, nbytes):
            is_named = (each.label, each.chunks) == (algorithm, chunks)
            if is_named and isinstance(each.runs, Schedule):
                return _verified(each.runs)
    return schedule_of(place.collective, algorithm, chunks, nbytes, place.topology)


@functools.lru_cache(maxsize=256)
def _verified(schedule: Schedule) -> Schedule:
    # Cached for all calls that run it; only candidates that run are checked.
    with without_numba(is_small(schedule.collective)):
        verify(schedule)
    return schedule


def loses_nans(op: str, dtype, platform: str) -> bool:
    """Whether a maximum by ``jax.lax`` may be a number although some rank has NaN."""
    return op != "sum" and platform == "cpu" and bool(jnp.issubdtype(dtype, jnp.inexact))


def candidates_at(place: stated.Place, nbytes: int) -> tuple[Candidate, ...]:
    """All candidates for a call that is being traced, for so many bytes, as ``candidates``."""
    several = place.has_several_axes
    return candidates(place.collective, nbytes, place.topology, place.costs, several)


@functools.lru_cache(maxsize=1024)
def candidates(
    collective: Collective,
    nbytes: int,
    topology: Topology | None,
    costs: ExecutionCosts,
    several_axes: bool = False,
) -> tuple[Candidate, ...]:
    """All candidates for a collective, ``jax.lax`` first where it has the collective.

    Args:
        nbytes: bytes of the larger of a rank's input and output.
        topology: the network; if ``None``, links cost nothing.
        several_axes: whether the ranks of a group differ along several axes of the mesh.
    """
    nbytes = max(nbytes, 1)
    links = default_topology(collective.num_ranks) if topology is None else topology
    problem = Problem(links, collective, float(nbytes), execution=costs, any_chunks=True)
    found = [
        _scheduled(maker, problem.with_chunks(count), costs, topology)
        for maker, count in worth_tracing(problem, () if topology else _WITHOUT_LINKS)
    ]
    if collective.traits.lax is not None:
        found.insert(0, _native(collective, nbytes, topology, costs, several_axes))
    return tuple(found)


def worth_tracing(problem: Problem, names: Sequence[str] = ()) -> list[tuple[Synthesizer, int]]:
    """The candidates of ``auto`` that are fast enough while a program is being traced.

    Args:
        names: names of synthesizers; all if empty.

    Returns:
        Synthesizers with numbers of chunks per shard, in the order of the registry.
    """
    pairs = sum(len(group) ** 2 for group in problem.collective.groups)
    most = max(_LEAST_WORK, _WORK_PER_PAIR * pairs)
    series: dict[Synthesizer, list[Sequence[int]]] = {}
    with without_numba(is_small(problem.collective)):
        portfolio = Portfolio(problem.nbytes or 1, names=tuple(names), execution=problem.execution)
        for climb in portfolio.candidates(problem):
            series.setdefault(climb.synthesizer, []).append(climb.left)
    return [
        (maker, count)
        for maker, found in series.items()
        for count in few_counts(found)
        if maker.work_if_defined(problem.with_chunks(count))[0] <= most
    ]


def margin_of(costs: ExecutionCosts, topology: Topology | None) -> float:
    """A schedule runs if it takes less than this share of the time of ``jax.lax``."""
    is_measured = costs.backend == "cpu" or bool(costs.machine)
    return MARGIN_IN_ORDER if is_measured and costs.of_native.order.waits and topology else MARGIN


def taken(found: Iterable[Candidate], by_lax: bool = True, margin: float = MARGIN) -> Candidate:
    """The candidate that runs: ``jax.lax``, unless a schedule is cheaper beyond doubt.

    Args:
        by_lax: whether ``jax.lax`` may run; if not, the cheapest schedule runs.
        margin: the share of the time of ``jax.lax`` below which a schedule runs.
    """
    found = [each for each in found if by_lax or not each.is_native]
    # The first among equals, so that all processes take the same one.
    best = min(found, key=lambda candidate: candidate.seconds)
    native = next((each for each in found if each.is_native), best)
    return best if best.seconds < margin * native.seconds else native


def _native(
    collective: Collective,
    nbytes: int,
    topology: Topology | None,
    costs: ExecutionCosts,
    several_axes: bool,
) -> Candidate:
    charge = costs.native_seconds(collective.kind, nbytes, collective.num_ranks) or 0.0
    seconds = 0.0
    if topology is not None:
        with without_numba(is_small(collective)):
            seconds = lax_seconds(
                topology, collective, nbytes, costs, several_axes=several_axes, make=_made
            )
    return Candidate(JAX_LAX, Native(collective), seconds, charge)


def _scheduled(
    maker: Synthesizer, problem: Problem, costs: ExecutionCosts, topology: Topology | None
) -> Candidate:
    made, nbytes, chunks = (
        _made(maker, problem),
        problem.nbytes or 1,
        problem.collective.chunks_per_shard,
    )
    if isinstance(made, str):
        return Candidate(maker.label, None, refused=made, chunks=chunks)
    seconds = 0.0 if topology is None else _on_links(made, nbytes, costs)
    charge = float(costs.seconds(made, nbytes))
    rounds = int(rounds_of_steps(made).sum())
    return Candidate(maker.label, made, seconds, charge, rounds, chunks=chunks)


def _on_links(schedule: Schedule, nbytes: Number, costs: ExecutionCosts) -> float:
    """Seconds on the links, in the order in which the machine runs the program of a schedule."""
    with without_numba(is_small(schedule.collective)):
        if (
            not costs.order.by_round
            or costs.backend != "cpu"
            or not is_loop_on_cpu(schedule=schedule, lowering="auto")
        ):
            taken = simulate(schedule, nbytes, execution=costs)
            return float(taken.exact_time - taken.charge)
        # The rounds of a loop differ from those of the schedule's steps.
        flows = _flows_of_loop(costs.as_sent(schedule), nbytes)
        return float(
            run_in_order(schedule.topology, flows, half_duplex=costs.half_duplex)[1].max(initial=0)
        )


def _flows_of_loop(schedule: Schedule, nbytes: Number) -> Flows:
    """The permutes of a loop on CPU, including padding."""
    edges, row = schedule.edges, float(nbytes) / int(schedule.collective.chunks_per_buffer[0])
    route = {
        (int(edges.src[e]), int(edges.dst[e])): edges.path_link[
            edges.path_ptr[e] : edges.path_ptr[e + 1]
        ]
        for e in np.unique(schedule.edge)[::-1]
    }
    pairs, block, size, before = [], [], [], 0
    for stage in stages(permute_program(schedule), True):
        for step in range(len(stage[0].runs)):
            for slot in stage:
                if slot.runs[step]:
                    pairs += slot.pairs
                    block += [before] * len(slot.pairs)
                    size += [slot.send.shape[-1] * row] * len(slot.pairs)
                    before += 1
    links = [route[pair] for pair in pairs]
    ptr = np.concatenate([[0], np.cumsum([len(link) for link in links])]).astype(np.int64)
    src, dst = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return Flows(
        np.ascontiguousarray(src), np.ascontiguousarray(dst), np.asarray(block, np.int64),
        np.asarray(size, np.float64), ptr, np.concatenate([*links, []]).astype(np.int64),
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _made(maker: Synthesizer, problem: Problem) -> Schedule | str:
    """As ``attempted``, with kernels interpreted or compiled, whichever is faster."""
    with without_numba(is_small(problem.collective, maker.name)):
        return attempted(maker, problem)
