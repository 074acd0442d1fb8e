"""Memory per device: live bytes at every program point, and their peak.

A tensor group takes memory for several reasons: it is produced, kept for the backward pass (by the
spans of ``tensorstate.keeping``), resident in the microbatch loop, or resharded. Each reason is one
linear term: a share of the group times bytes at every program point (``problem.liveness`` tells how
many of the group's tensors are live there, and why). The terms are defined once, here, and the
shares come from a ``Shares``:

- for given decisions they are numbers, and ``bytes_by_point`` sums the terms;
- in the mixed-integer program they are linear expressions, and ``solver.memory_constraints`` bounds
  the sum of the terms at every program point by the memory limit.

So the solver's memory and the reported memory can differ only by rounding.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np

from jaxcoll.kinds import those
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.ir.placements import Exchange, MeshShape, Placements, RingStrategy, all_placements
from tensorstate.keeping import table
from tensorstate.keeping.base import Category, Holds, Keeping, Span
from tensorstate.keeping.table import Kept
from tensorstate.problem.liveness import LiveRanges
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import SUMS_ITEMSIZE, Problem
from tensorstate.problem.reshard import IN_PLACE, ReshardStep
from tensorstate.problem.tensor_groups import TensorGroup

# Collectives that receive data from several devices, which is then put in order.
REORDERED = those(lambda kind: not kind.adds)

CATEGORIES: tuple[Category, ...] = get_args(Category)

ReshardPhase = Literal["in_forward", "after_forward", "after_loop", "for_rerun"]

KeepingsThat = Callable[[Keeping], bool]
"""A condition on the keepings for which shares are asked."""


def any_keeping(_keeping: Keeping) -> bool:
    """True for every keeping."""
    return True


Share = TypeVar("Share", covariant=True)
"""A number, or a variable of a program."""


class Term(NamedTuple, Generic[Share]):
    """A part of a device's memory.

    Attributes:
        category: the field of ``Memory`` that it belongs to.
        share: the share of the group that takes these bytes.
        nbytes: bytes at every program point for the whole group.
    """

    category: Category
    share: Share
    nbytes: np.ndarray


class Shares(Protocol[Share]):
    """The shares of one tensor group, by placements or by reshard step."""

    def resharded(self, phase: ReshardPhase) -> Mapping[ReshardStep, Share]:
        """The share that uses each step in a pass."""
        ...

    def produced(self, kept: KeepingsThat = any_keeping) -> Mapping[Placements, Iterable[Share]]:
        """The share produced in each placement; only the part that is kept in some ways."""
        ...

    def awaiting(
        self, consumer: int | None, kept: KeepingsThat = any_keeping
    ) -> Mapping[Placements, Iterable[Share]]:
        """The share that waits in each placement for a consumer class of the group.

        Args:
            consumer: number of the class. For ``None``, and for the caller of the step, which
                requires no placements, the tensor waits as it is produced.
            kept: only the part whose consumer is kept in some ways.
        """
        ...

    def produced_by(self) -> Mapping[Strategy, Iterable[Share]]:
        """The share produced under each strategy."""
        ...

    def read_by(self, consumer: int) -> Mapping[Strategy, Iterable[Share]]:
        """The share that a consumer class, of a node, reads under each strategy."""
        ...

    def made(self, keeping: Keeping) -> Mapping[Placements, Iterable[Share]]:
        """The share produced in each placement, and kept in this way."""
        return self.produced(keeping.__eq__)

    def copies(self, keeping: Keeping) -> Mapping[Placements, Iterable[Share]]:
        """The share with a copy in each placement that is stored in this way."""
        ...

    def copies_apart(self, keeping: Keeping) -> Mapping[Placements, Iterable[Share]]:
        """The part of ``copies`` in placements other than those in which it is produced."""
        ...

    def copies_for_rerun(self, keeping: Keeping) -> Mapping[Placements, Iterable[Share]]:
        """The part of ``copies`` that a consumer reads when it reruns."""
        ...

    def made_for_rerun(self, keeping: Keeping) -> Mapping[Placements, Iterable[Share]]:
        """The share rebuilt in each placement, and read by a consumer that reruns."""
        ...

    def loop_resident(self) -> Mapping[Placements, Share]:
        """The share with a loop-resident copy in each placement."""
        ...

    def resident_in_place(self, placements: Placements) -> Share | None:
        """The share of an input whose resident copy is the input itself."""
        ...


def resharded_bytes(problem: Problem, group: TensorGroup, step: ReshardStep) -> int:
    """Bytes of the copy that a step makes; an all-reduce replaces its operand in place."""
    return 0 if step.kind in IN_PLACE else problem.local_bytes(group, step.target)


def receive_buffer_bytes(step: ReshardStep) -> int:
    """Bytes of the buffer in which a step receives data before it is put in order."""
    return step.nbytes if step.kind in REORDERED else 0


def memory_terms(problem: Problem, number: int, shares: Shares[Share]) -> Iterator[Term[Share]]:
    """The terms of a tensor group, without the stored inputs themselves.

    Args:
        number: number of the group.
        shares: numbers or linear expressions.
    """
    # Shares and ranges are separate: ``LiveRanges`` counts tensors for each reason as if it applied
    # to all of them, and a share says to how many it applies. Their product is linear in the
    # decisions.
    group, live = problem.tensor_groups[number], problem.live_ranges(number)
    yield from _reshard_terms(problem, group, live, shares)
    for keeping in table.KEEPINGS:
        yield from _kept_terms(problem, group, keeping, keeping.spans, live, shares)
    for placements, share in shares.loop_resident().items():
        nbytes = problem.local_bytes(group, placements) * live.loop_resident
        yield Term("loop_resident", share, nbytes)
        # An input that stays resident as it is stored is already counted among the inputs.
        in_place = shares.resident_in_place(placements)
        if in_place is not None:
            yield Term("loop_resident", in_place, -nbytes)
    yield from _live_terms(problem, group, live, shares)
    yield from _ring_terms(problem, group, live, shares)
    yield from _exchange_terms(problem, group, live, shares)


def _ring_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Blocks of keys and of their gradients: those in use and those that are being received.

    Only a ring shards along keys. Their gradients are accumulated in 32 bits or more.
    """
    dtype = problem.graph.tensors[group.tensors[0]].dtype
    wide = max(1, SUMS_ITEMSIZE // dtype.itemsize)

    def terms(
        labels: Sequence[int], keys: int, by: Mapping[Placements, Iterable[Share]], runs: np.ndarray
    ) -> Iterator[Term[Share]]:
        position = labels.index(keys) if keys in labels else None
        for placements, parts in by.items():
            for share in parts if position in placements else ():
                # One block is in use while the next is received.
                nbytes = 2 * problem.local_bytes(group, placements)
                yield Term("temporaries", share, nbytes * runs)

    made = problem.strategies[group.class_id].pairing
    if isinstance(made, RingStrategy):
        yield from terms(group.labels, made.keys, shares.produced(), wide * live.producing)
    for number, consumer in enumerate(group.consumer_classes):
        ring = None if consumer.class_id is None else problem.strategies[consumer.class_id].pairing
        if not isinstance(ring, RingStrategy):
            continue
        runs = _runs(problem, group, number)
        yield from terms(consumer.labels, ring.keys, shares.awaiting(number), runs)


def _runs(problem: Problem, group: TensorGroup, number: int) -> np.ndarray:
    """At every program point, the nodes of a consumer class of a group that run there."""
    points = problem.liveness.program_points
    runs = np.zeros(len(points))
    for node in {node for of_tensor in group.consumers for node in of_tensor[number]}:
        operator = problem.graph.nodes[node].members[0].operator
        at = np.searchsorted(points, problem.liveness.at[operator])
        runs[min(at, len(points) - 1)] += 1
    return runs


def _exchange_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Rows that arrive at experts, and their results before they are sent back.

    An expert may get all rows, so there is room for all of them; and for as many blocks where
    slices are padded.
    """

    def terms(
        exchange: Exchange,
        class_id: int,
        labels: Sequence[int],
        by: Mapping[Strategy, Iterable[Share]],
        runs: np.ndarray,
    ) -> Iterator[Term[Share]]:
        for strategy, parts in by.items():
            if exchange.label in strategy and exchange.rows in labels:
                size = problem.mesh.sizes[strategy.index(exchange.label)]
                shards = problem.shards_of(class_id, strategy, tuple(labels))
                room = (1 if problem.hardware.has_ragged else 2) * size * group.nbytes // shards
                for share in parts:
                    yield Term("temporaries", share, room * runs)

    made = problem.strategies[group.class_id].pairing
    if isinstance(made, Exchange):
        yield from terms(made, group.class_id, group.labels, shares.produced_by(), live.producing)
    for number, consumer in enumerate(group.consumer_classes):
        own = consumer.class_id
        read = None if own is None else problem.strategies[own].pairing
        if own is not None and isinstance(read, Exchange):
            runs = _runs(problem, group, number)
            yield from terms(read, own, consumer.labels, shares.read_by(number), runs)


def _reshard_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Copies made by resharding, and the buffers in which they are received."""
    ranges: tuple[tuple[ReshardPhase, np.ndarray, np.ndarray], ...] = (
        ("in_forward", live.resharded_in_forward, live.receive_buffer_in_forward),
        ("after_forward", live.resharded_after_forward, live.receive_buffer_after_forward),
        ("after_loop", live.resharded_after_loop, live.receive_buffer_after_loop),
        ("for_rerun", live.resharded_for_rerun, live.receive_buffer_for_rerun),
    )
    by_phase = [(shares.resharded(phase), copy, buffer) for phase, copy, buffer in ranges]
    for steps, copy, buffer in by_phase:
        for step, share in steps.items():
            yield Term("temporaries", share, resharded_bytes(problem, group, step) * copy)
            yield Term("temporaries", share, receive_buffer_bytes(step) * buffer)


def _kept_terms(
    problem: Problem,
    group: TensorGroup,
    keeping: Keeping,
    spans: Iterable[Span],
    live: LiveRanges,
    shares: Shares[Share],
) -> Iterator[Term[Share]]:
    """The bytes of tensors that are kept in one way, by some spans of the keeping."""
    for span in spans:
        counts = live.kept[keeping][span.name]
        if not counts.any():  # otherwise an unused share would become a variable
            continue
        # One of the methods of the shares returns these bytes.
        held = getattr(shares, span.holds.value)(keeping)
        for placements, parts in held.items():
            nbytes = span.nbytes(problem.local_bytes(group, placements))
            for share in parts:
                yield Term(span.category, share, nbytes * counts)


def _live_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Tensors that are being produced, or wait for their last consumer."""

    def terms(
        category: Category, by_placements: Mapping[Placements, Iterable[Share]], span: np.ndarray
    ) -> Iterator[Term[Share]]:
        for placements, parts in by_placements.items():
            for share in parts:
                yield Term(category, share, problem.local_bytes(group, placements) * span)

    yield from terms("temporaries", shares.produced(), live.producing)
    # XLA for CPUs, where nothing overlaps, copies the operands of the gradient of a kernel, since
    # its convolutions need batch, space and features in this order.
    for consumer, span in () if problem.hardware.overlaps else live.copied.items():
        yield from terms("temporaries", shares.awaiting(consumer), span)
    if not group.in_forward:
        category: Category = "gradients" if is_gradient(problem, group) else "temporaries"
        waiting = shares.awaiting(live.last_backward_use)
        yield from terms(category, waiting, live.awaiting_backward_use)
        return
    # A tensor that is needed after the forward pass is kept for it in some way, and already
    # counted.
    if not group.is_input and not group.needed_after_forward:
        waiting = shares.awaiting(live.last_forward_use)
        yield from terms("temporaries", waiting, live.awaiting_forward_use)
    # The backward pass reads the operands of a fused operator instead of its result.
    if live.fused_input.any():
        waiting = shares.awaiting(live.fused_consumer, lambda keeping: keeping.stays_fused)
        yield from terms("saved", waiting, live.fused_input)


def is_gradient(problem: Problem, group: TensorGroup) -> bool:
    """Whether the backward pass produces the tensors and the optimizer reads them."""
    return problem.node(group.class_id).phase == "backward" and any(
        c.class_id is not None and problem.node(c.class_id).phase == "optimizer"
        for c in group.consumer_classes
    )


# -------------------------------------------------------------------- the memory of given decisions


# Rounding error of sums of shares, in bytes.
EXACT = 1e-6


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of memory per device at the program point with the most live bytes.

    Attributes:
        inputs: parameters, optimizer state, batch and constants, which are live throughout.
        saved: activations and gathered copies saved from the forward to the backward pass.
        loop_resident: gathered copies and sums that stay resident through the microbatch loop.
        gradients: gradients that wait for the optimizer.
        temporaries: all other operands and results of operators.
        host: bytes of the host's memory, at the program point with the most of them. They are not
            part of the peak.
    """

    inputs: int
    saved: int
    loop_resident: int
    gradients: int
    temporaries: int
    host: int = 0

    @property
    def peak(self) -> int:
        """The most bytes that are live at the same time."""
        return self.inputs + self.saved + self.loop_resident + self.gradients + self.temporaries

    def fits(self, limit: float | None) -> bool:
        """Whether the peak is within a limit in bytes; ``None`` stands for no limit."""
        return limit is None or self.peak <= limit


def no_bytes(problem: Problem) -> np.ndarray:
    """No bytes yet, by category and program point."""
    return np.zeros((len(CATEGORIES), len(problem.liveness.program_points)))


def bytes_by_group(
    problem: Problem,
    decisions: Decisions,
    reshards: Sequence[ReshardPlan],
    kept: Kept,
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the number of each tensor group, its ``input_bytes`` and its ``bytes_by_point``.

    Args:
        reshards: the reshard plans of all tensors.
        kept: how nodes are kept.
    """
    for number, plans in _by_group(reshards).items():
        others = bytes_by_point(problem, number, decisions.strategies, plans, kept)
        yield number, input_bytes(problem, plans), others


def _by_group(reshards: Iterable[ReshardPlan]) -> dict[int, list[ReshardPlan]]:
    """The reshard plans of each tensor group, by its number."""
    by_group: dict[int, list[ReshardPlan]] = defaultdict(list)
    for reshard in reshards:
        by_group[reshard.group].append(reshard)
    return by_group


def bytes_at_peak(
    problem: Problem, decisions: Decisions, reshards: Sequence[ReshardPlan], kept: Kept
) -> list[tuple[int, int, dict[Category, float]]]:
    """For each tensor group the bytes at the peak: its number, its bytes of inputs, and all others.

    Their sum is ``peak_memory``, up to rounding.
    """
    of_groups = [*bytes_by_group(problem, decisions, reshards, kept)]
    total = sum((nbytes for _, _, nbytes in of_groups), no_bytes(problem)).sum(0)
    peak = int(total.argmax())
    return [
        (number, inputs, dict(zip(CATEGORIES, nbytes[:, peak].tolist(), strict=True)))
        for number, inputs, nbytes in of_groups
    ]


def host_bytes(
    problem: Problem, decisions: Decisions, reshards: Iterable[ReshardPlan], kept: Kept
) -> int:
    """Bytes per device in the memory of the host, at the program point with the most of them.

    Args:
        reshards: the reshard plans of all tensors.
        kept: how nodes are kept.
    """
    nbytes = np.zeros(len(problem.liveness.program_points))
    for number, plans in _by_group(reshards).items():
        stored = {r.keeping for r in plans if r.keeping.on_host and r.saved is not None}
        if not stored:
            continue
        group, live = problem.tensor_groups[number], problem.live_ranges(number)
        shares = _DecidedShares(problem, number, decisions.strategies, plans, kept)
        for keeping in stored:
            for term in _kept_terms(problem, group, keeping, keeping.on_host, live, shares):
                nbytes += term.share * term.nbytes
    return math.ceil(nbytes.max() - EXACT)


def peak_memory(inputs: float, nbytes: np.ndarray, host: int = 0) -> Memory:
    """The memory at its peak.

    Args:
        inputs: bytes of the inputs.
        nbytes: all other bytes, by category and program point (see ``bytes_by_point``).
        host: bytes in the host's memory, by ``host_bytes``.
    """
    # Parts are rounded one by one, and the last one takes the rest. So they add up to the rounded
    # peak, which is compared with the limit.
    total = nbytes.sum(0)
    saved, loop_resident, gradients, _ = nbytes[:, int(total.argmax())]
    parts = round(saved), round(loop_resident), round(gradients)
    temporaries = math.ceil(total.max() - EXACT) - sum(parts)
    return Memory(round(inputs), *parts, temporaries, host)


def input_bytes(problem: Problem, reshards: Iterable[ReshardPlan]) -> int:
    """Bytes of inputs per device, in the placements in which they are stored."""
    tensor_groups = problem.tensor_groups
    return sum(
        reshard.multiplicity
        * problem.input_bytes(tensor_groups[reshard.group], reshard.produced_placements)
        for reshard in reshards
        if tensor_groups[reshard.group].is_input
    )


def bytes_by_point(
    problem: Problem,
    number: int,
    strategies: Sequence[Strategy],
    reshards: Iterable[ReshardPlan],
    kept: Kept,
) -> np.ndarray:
    """Bytes of a tensor group per device, by category (``CATEGORIES``) and program point.

    Members of a group are assumed to use its reshard plans in proportion: at every program point,
    the same share of the live members uses each plan.

    Args:
        number: number of the tensor group.
        reshards: all reshard plans of the group.
        kept: how nodes are kept.
    """
    shares = _DecidedShares(problem, number, strategies, [*reshards], kept)
    nbytes = no_bytes(problem)
    for category, share, at_points in memory_terms(problem, number, shares):
        nbytes[CATEGORIES.index(category)] += share * at_points
    return nbytes


def least_bytes_by_point(
    problem: Problem, number: int, strategies: Iterable[Strategy], keepings: Iterable[Keeping]
) -> np.ndarray:
    """A lower bound on the bytes of a tensor group at every program point, for all decisions.

    It has each of the terms whose shares add up to 1, in the placements with the most shards: the
    tensors are produced, wait for their last consumer, and are kept in one of some ways. Copies in
    other placements would be added. Inputs are counted separately, by ``input_bytes``.

    Args:
        number: number of the tensor group.
        strategies: strategies of the class that produces it.
        keepings: the ways in which nodes may be kept.
    """
    group, live = problem.tensor_groups[number], problem.live_ranges(number)
    produced = {problem.produced_placements(group, strategy) for strategy in strategies}
    at_source = min(problem.local_bytes(group, placements) for placements in produced)
    # Copies may have placements that no strategy produces, so a bound uses the smallest possible.
    anywhere = group.nbytes // _most_shards(group.sizes, problem.mesh)
    nbytes = at_source * live.producing
    if group.is_input:
        return nbytes
    if not group.in_forward:
        return nbytes + anywhere * live.awaiting_backward_use
    if not group.needed_after_forward:
        return nbytes + anywhere * live.awaiting_forward_use
    # The smallest one at each point, although a plan uses one of them at all points.
    possible = [keeping for keeping in keepings if problem.may_keep(group.class_id, keeping)]
    ways = (_least_kept(live, keeping, at_source, anywhere) for keeping in possible)
    return nbytes + functools.reduce(np.minimum, ways)


def most_bytes(problem: Problem) -> int:
    """An upper bound on a device's bytes: all tensors at once, whole, with two copies each.

    A copy has other placements, and is received in a buffer before it is put in order.
    """
    graph = problem.graph
    return (
        3
        * problem.num_parts
        * sum(
            tensor.nbytes * graph.num_repeats(graph.loops_around(tensor.index))
            for tensor in graph.tensors
        )
    )


def _least_kept(live: LiveRanges, keeping: Keeping, made: int, copy: int) -> np.ndarray:
    """The least bytes of tensors that are kept in one way.

    Args:
        made, copy: bytes of a tensor as it is produced, and of the smallest copy.
    """
    of_all = {Holds.MADE: made, Holds.COPY: copy}  # other spans hold only some tensors
    spans = [span for span in keeping.spans if span.holds in of_all]
    return sum(
        (span.nbytes(of_all[span.holds]) * live.kept[keeping][span.name] for span in spans),
        start=np.zeros_like(live.producing),
    )


@functools.cache
def _most_shards(sizes: tuple[int, ...], mesh: MeshShape) -> int:
    return max(mesh.num_shards(placements) for placements in all_placements(sizes, mesh))


class _DecidedShares(Shares[float]):
    """The shares of a tensor group under given decisions, as numbers."""

    def __init__(
        self,
        problem: Problem,
        number: int,
        strategies: Sequence[Strategy],
        reshards: Sequence[ReshardPlan],
        kept: Kept,
    ):
        self.problem, self.group = problem, problem.tensor_groups[number]
        self.strategies, self.kept = strategies, kept
        self.reshards = reshards
        self.source = problem.produced_placements(self.group, strategies[self.group.class_id])

    def _share(self, where: Callable[[ReshardPlan], bool]) -> float:
        """The share of the tensors whose plan meets a condition."""
        return sum(r.multiplicity for r in self.reshards if where(r)) / self.group.multiplicity

    def resharded(self, phase: ReshardPhase) -> Mapping[ReshardStep, float]:
        steps: dict[ReshardStep, float] = defaultdict(float)
        for reshard in self.reshards:
            for step in getattr(reshard, phase).steps:
                steps[step] += reshard.multiplicity / self.group.multiplicity
        return steps

    def produced(self, kept: KeepingsThat = any_keeping) -> Mapping[Placements, Iterable[float]]:
        share = self._share(lambda r: kept(r.keeping))
        return {self.source: [share]} if share else {}

    def produced_by(self) -> Mapping[Strategy, Iterable[float]]:
        return {self.strategies[self.group.class_id]: [1.0]}

    def read_by(self, consumer: int) -> Mapping[Strategy, Iterable[float]]:
        class_id = self.group.consumer_classes[consumer].class_id
        return {} if class_id is None else {self.strategies[class_id]: [1.0]}

    def awaiting(
        self, consumer: int | None, kept: KeepingsThat = any_keeping
    ) -> Mapping[Placements, Iterable[float]]:
        if consumer is None:
            return self.produced(kept)
        consumer_class = self.group.consumer_classes[consumer]
        placements = self.source
        if consumer_class.class_id is not None:
            strategy = self.strategies[consumer_class.class_id]
            placements = self.problem.required_placements(consumer_class, strategy)
        if kept is any_keeping:
            return {placements: [1.0]}
        nodes = [node for of_tensor in self.group.consumers for node in of_tensor[consumer]]
        # The caller of the step reads a tensor without a node, which is kept by default.
        how = [self.kept[node] for node in nodes] or [table.DEFAULT]
        return {placements: [sum(map(kept, how)) / len(how)]}

    def copies(self, keeping: Keeping) -> Mapping[Placements, Iterable[float]]:
        return self._stored(lambda r: r.keeping == keeping)

    def copies_apart(self, keeping: Keeping) -> Mapping[Placements, Iterable[float]]:
        return self._stored(lambda r: r.keeping == keeping and r.saved != self.source)

    def copies_for_rerun(self, keeping: Keeping) -> Mapping[Placements, Iterable[float]]:
        return self._stored(lambda r: r.keeping == keeping and self._feeds_rerun(r))

    def made_for_rerun(self, keeping: Keeping) -> Mapping[Placements, Iterable[float]]:
        share = self._share(lambda r: r.keeping == keeping and self._feeds_rerun(r))
        return {self.source: [share]}

    def _stored(self, where: Callable[[ReshardPlan], bool]) -> Mapping[Placements, list[float]]:
        """For each placement of a stored copy, the share of tensors with a plan as given."""
        shares: dict[Placements, float] = defaultdict(float)
        for reshard in self.reshards:
            if reshard.saved is not None and where(reshard):
                shares[reshard.saved] += reshard.multiplicity / self.group.multiplicity
        return {placements: [share] for placements, share in shares.items()}

    def _feeds_rerun(self, reshard: ReshardPlan) -> bool:
        """Whether a node that reruns reads the tensors of a plan."""
        consumers = self.group.consumers[self.group.tensors.index(reshard.tensors[0])]
        return any(not self.kept.rerun.isdisjoint(nodes) for nodes in consumers)

    def loop_resident(self) -> Mapping[Placements, float]:
        shares: dict[Placements, float] = defaultdict(float)
        for reshard in self.reshards:
            if reshard.loop_resident is not None:
                shares[reshard.loop_resident] += reshard.multiplicity / self.group.multiplicity
        return shares

    def resident_in_place(self, placements: Placements) -> None:
        """Always ``None``: reshard plans do not count an input that is resident in place."""
