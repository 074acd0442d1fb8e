"""Where a tensor group is resharded in a training step: the one description of its passes.

A group is resharded in up to four passes. The microbatch loop surrounds the second and the third:

    pass            starts from                               delivers
    before the loop produced                                  the loop-resident copy of an input
    in forward      produced; the loop-resident copy          consumers of the forward pass,
                    of an input                               the saved copy
    after forward   the saved copy and an input itself, or    consumers after the forward pass and
                    as in the forward pass if none is saved   recomputed consumers
    after the loop  an input itself; else the resident copy   consumers after the loop

A copy that accumulates over microbatches, such as a gradient, is delivered by the pass in which the
tensor is produced. ``cost.reshard_plan`` finds the cheapest collectives of each pass for given
decisions; ``solver.reshard_constraints`` writes each pass as flow constraints.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup

Pass = Literal["before_loop", "in_forward", "after_forward", "after_loop"]


@dataclasses.dataclass(frozen=True, eq=False)
class ReshardPasses:
    """The passes in which one tensor group is resharded.

    Attributes:
        in_forward, after_forward, after_loop: the consumers that each pass delivers to, without
            recomputed ones.
        num_repeats: executions of the passes inside the microbatch loop per step.
        resident_from: the pass that delivers the loop-resident copy; ``None`` without such a copy.
    """

    in_forward: tuple[ConsumerClass, ...]
    after_forward: tuple[ConsumerClass, ...]
    after_loop: tuple[ConsumerClass, ...]
    num_repeats: int
    resident_from: Pass | None

    def can_save(self, num_later_consumers: int) -> bool:
        """Whether a copy is saved between the passes, if the tensor is not recomputed.

        Args:
            num_later_consumers: consumers after the forward pass and recomputed consumers.
        """
        return num_later_consumers > 0 and self.resident_from != "before_loop"


def reshard_passes(problem: Problem, group: TensorGroup) -> ReshardPasses:
    """The passes of a tensor group."""
    classes = group.consumer_classes
    return ReshardPasses(
        tuple(c for c in classes if not c.after_forward) if group.in_forward else (),
        tuple(c for c in classes if c.after_forward and not c.after_loop),
        tuple(c for c in classes if c.after_loop),
        problem.microbatches if group.in_loop else 1,
        _resident_from(problem, group),
    )


def _resident_from(problem: Problem, group: TensorGroup) -> Pass | None:
    """Inputs are resident if the loop reads them; other tensors if they are read after the loop."""
    if problem.microbatches == 1 or group.batch_placement >= 0:
        return None
    after_loop = [c.after_loop for c in group.consumer_classes]
    if group.is_input:
        return None if all(after_loop) else "before_loop"
    if not any(after_loop):
        return None
    return "in_forward" if group.in_forward else "after_forward"
