"""Phases of operators and roles of tensors, read from the name stacks that ``jax.grad`` leaves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tensorstate.ir.graph import Operator, Phase, Role, Tensor, View


def phases(tensors: Sequence[Tensor], operators: Sequence[Operator]) -> list[Phase]:
    """The phase of every operator.

    Operators that ``jax.grad`` differentiated, and all that they depend on (such as gradients
    inside of a loss), run in the forward pass. Of the others, those that it transposed or
    recomputes run in the backward pass, and the remaining ones in the optimizer. All operators of a
    function without gradients run in the forward pass.
    """
    phase_of: list[Phase | None] = [
        _phase_from_stack(o.eqn.remat_region, o.source.stack) for o in operators
    ]
    if all(phase is None for phase in phase_of):
        return [*itertools.repeat("forward", len(phase_of))]
    operands = [[use.tensor for use in o.operands] for o in operators]
    producers = [tensor.producer for tensor in tensors]

    before = [phase == "forward" for phase in phase_of]
    for i in reversed(range(len(phase_of))):
        if before[i]:
            for tensor in operands[i]:
                if (p := producers[tensor]) is not None:
                    before[p] = True
    by_stack: list[Phase] = ["backward" if p == "backward" else "optimizer" for p in phase_of]
    return ["forward" if b else phase for b, phase in zip(before, by_stack, strict=True)]


def _phase_from_stack(remat_region: int | None, stack: str) -> Phase | None:
    if remat_region is not None or "transpose(" in stack:
        return "backward"
    return "forward" if "jvp(" in stack else None


def roles(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    outputs: Sequence[View],
    updates: Mapping[int, int],
    inputs: int,
) -> list[Role]:
    """The role of every tensor.

    Args:
        operators: with their phases.
        updates: maps outputs to the inputs whose new values they are.
        inputs: the number of inputs, which are the first tensors; other tensors without a producer
            are constants.
    """
    consumers: list[set[Phase]] = [set() for _ in tensors]
    for operator in operators:
        for use in operator.operands:
            consumers[use.tensor].add(operator.phase)
    updated = set(updates.values())
    assigned: list[Role] = []
    for index, tensor in enumerate(tensors):
        if index < inputs:
            assigned.append(_input_role(tensor.dtype, index in updated, consumers[index]))
        elif tensor.producer is None:
            assigned.append("constant")
        elif not tensor.sizes:
            assigned.append("scalar/output")
        elif operators[tensor.producer].phase == "optimizer":
            assigned.append("optimizer")
        elif operators[tensor.producer].phase == "backward" and "optimizer" in consumers[index]:
            assigned.append("gradient")
        else:
            assigned.append("activation")
    for output, updated_input in updates.items():
        result = outputs[output].tensor
        if result is not None and tensors[result].producer is not None:
            assigned[result] = assigned[updated_input]
    return assigned


def _input_role(dtype, updated: bool, consumers: set[Phase]) -> Role:
    if not (updated and isinstance(dtype, np.dtype) and dtype.kind not in "biu"):
        return "input"
    return "parameter" if "forward" in consumers or "backward" in consumers else "optimizer"
