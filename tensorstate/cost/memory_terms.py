"""The memory of a tensor group per device: the one description, as linear terms.

A term is a share of the group times bytes at every program point (``problem.liveness`` says how
many of the group's tensors are live there, and why). The shares come from a ``Shares``:

- of given decisions they are numbers, and ``cost.memory`` sums the terms;
- in the mixed-integer program they are linear expressions, and ``solver.memory_constraints`` bounds
  the sum of the terms at every program point by the memory limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from tensorstate.ir.placements import Placements
from tensorstate.problem.liveness import LiveRanges
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.tensor_groups import TensorGroup

Category = Literal["saved", "loop_resident", "gradients", "temporaries"]
CATEGORIES: tuple[Category, ...] = ("saved", "loop_resident", "gradients", "temporaries")

ReshardPhase = Literal["in_forward", "after_forward", "after_loop", "for_recompute"]

Share = TypeVar("Share", covariant=True)
"""A number, or a variable of a program."""


class Term(NamedTuple, Generic[Share]):
    """A part of a device's memory.

    Attributes:
        category: the field of ``Memory`` it belongs to.
        share: the share of the group that takes these bytes.
        nbytes: bytes at every program point for all of the group.
    """

    category: Category
    share: Share
    nbytes: np.ndarray


class Shares(Protocol[Share]):
    """The shares of one tensor group, by placements or by reshard step."""

    def resharded(self, phase: ReshardPhase) -> Mapping[ReshardStep, Share]:
        """The share that takes each step in a pass."""
        ...

    def produced(self, recomputed: bool | None = None) -> Mapping[Placements, Iterable[Share]]:
        """The share produced in each placement; only that part which is recomputed or is not."""
        ...

    def awaiting(
        self, consumer: int | None, recomputed: bool | None = None
    ) -> Mapping[Placements, Iterable[Share]]:
        """The share that waits in each placement for a consumer class of the group.

        Args:
            consumer: number of the class. For ``None``, and for the caller of the step, which
                requires no placements, the tensor waits as it is produced.
            recomputed: only the part whose consumer is recomputed, or is not.
        """
        ...

    def saved(self) -> Mapping[Placements, Share]:
        """The share with a saved copy in each placement."""
        ...

    def saved_beside_produced(self, placements: Placements) -> Share:
        """The share saved in placements other than those in which it is produced."""
        ...

    def saved_for_recompute(self, placements: Placements) -> Share:
        """The share whose saved copy is read by a recomputed consumer."""
        ...

    def recomputed_for_recompute(self, placements: Placements) -> Share | None:
        """The share recomputed in these placements, and read by a recomputed consumer."""
        ...

    def loop_resident(self) -> Mapping[Placements, Share]:
        """The share with a loop-resident copy in each placement."""
        ...

    def resident_in_place(self, placements: Placements) -> Share | None:
        """The share of an input whose resident copy is the input itself."""
        ...


def resharded_bytes(problem: Problem, group: TensorGroup, step: ReshardStep) -> int:
    """Bytes of the copy that a step makes; an all-reduce replaces its operand in place."""
    return 0 if step.kind == "all_reduce" else problem.local_bytes(group, step.target)


def receive_buffer_bytes(step: ReshardStep) -> int:
    """Bytes of the buffer in which a step receives data before it is put in order."""
    return step.nbytes if step.kind in ("all_gather", "all_to_all") else 0


def memory_terms(problem: Problem, number: int, shares: Shares[Share]) -> Iterator[Term[Share]]:
    """The terms of a tensor group, without the stored inputs themselves.

    Args:
        number: number of the group.
        shares: numbers or linear expressions.
    """
    group, live = problem.tensor_groups[number], problem.live_ranges(number)
    yield from _reshard_terms(problem, group, live, shares)
    yield from _saved_terms(problem, group, live, shares)
    for placements, share in shares.loop_resident().items():
        nbytes = problem.local_bytes(group, placements) * live.loop_resident
        yield Term("loop_resident", share, nbytes)
        in_place = shares.resident_in_place(placements)
        if in_place is not None:
            yield Term("loop_resident", in_place, -nbytes)
    yield from _live_terms(problem, group, live, shares)


def _reshard_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Copies made by resharding, and the buffers in which they are received."""
    ranges: tuple[tuple[ReshardPhase, np.ndarray, np.ndarray], ...] = (
        ("in_forward", live.resharded_in_forward, live.receive_buffer_in_forward),
        ("after_forward", live.resharded_after_forward, live.receive_buffer_after_forward),
        ("after_loop", live.resharded_after_loop, live.receive_buffer_after_loop),
        ("for_recompute", live.resharded_for_recompute, live.receive_buffer_for_recompute),
    )
    by_phase = [(shares.resharded(phase), copy, buffer) for phase, copy, buffer in ranges]
    for steps, copy, buffer in by_phase:
        for step, share in steps.items():
            yield Term("temporaries", share, resharded_bytes(problem, group, step) * copy)
            yield Term("temporaries", share, receive_buffer_bytes(step) * buffer)


def _saved_terms(
    problem: Problem, group: TensorGroup, live: LiveRanges, shares: Shares[Share]
) -> Iterator[Term[Share]]:
    """Saved copies. A fused tensor has none of its own, but may have one in other placements."""
    saved = shares.saved()
    for placements, share in saved.items():
        nbytes = problem.local_bytes(group, placements)
        yield Term("saved", share, nbytes * live.saved)
        extra = nbytes * (live.saved_copy - live.saved)
        if extra.any():
            yield Term("saved", shares.saved_beside_produced(placements), extra)
    for placements in saved if not group.is_input else ():
        nbytes = problem.local_bytes(group, placements)
        if live.saved_for_recompute.any():
            share = shares.saved_for_recompute(placements)
            yield Term("saved", share, nbytes * live.saved_for_recompute)
        if live.recomputed_early.any():
            share = shares.recomputed_for_recompute(placements)
            if share is not None:
                yield Term("temporaries", share, nbytes * live.recomputed_early)


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
    recomputed = live.recomputed
    if group.needed_after_forward:
        recomputed = live.recomputed + live.awaiting_forward_use
    yield from terms("temporaries", shares.produced(recomputed=True), recomputed)
    if not group.in_forward:
        category: Category = "gradients" if is_gradient(problem, group) else "temporaries"
        waiting = shares.awaiting(live.last_backward_use)
        yield from terms(category, waiting, live.awaiting_backward_use)
        return
    if not group.is_input and not group.needed_after_forward:
        waiting = shares.awaiting(live.last_forward_use)
        yield from terms("temporaries", waiting, live.awaiting_forward_use)
    waiting = shares.awaiting(live.fused_consumer, recomputed=False)
    yield from terms("saved", waiting, live.fused_input)


def is_gradient(problem: Problem, group: TensorGroup) -> bool:
    """Whether the backward pass produces the tensors and the optimizer reads them."""
    return problem.node(group.class_id).phase == "backward" and any(
        c.class_id is not None and problem.node(c.class_id).phase == "optimizer"
        for c in group.consumer_classes
    )
