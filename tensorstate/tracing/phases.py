"""When operators run and what tensors are for, read from the trace of ``jax.grad``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tensorstate.ir.graph import Phase, Role, View
from tensorstate.tracing.build import Body


def phases(body: Body) -> list[Phase]:
    """The phase of every operator.

    What ``jax.grad`` differentiated runs forward, and so does whatever that needs, gradients inside
    of a loss included. Else what it transposed or recomputes runs backward, and the rest is the
    optimizer's. All operators of a function without gradients run forward.
    """
    found: list[Phase | None] = [
        _phase_from_stack(o.call.remat_region, o.source.stack) for o in body.operations
    ]
    if all(phase is None for phase in found):
        return [*itertools.repeat("forward", len(found))]
    operands = [[use.tensor for use in o.operands] for o in body.operations]
    producers = [value.producer for value in body.values]

    before = [phase == "forward" for phase in found]
    for i in reversed(range(len(found))):
        if before[i]:
            for tensor in operands[i]:
                if (p := producers[tensor]) is not None:
                    before[p] = True
    rest: list[Phase] = ["backward" if p == "backward" else "optimizer" for p in found]
    return ["forward" if b else phase for b, phase in zip(before, rest, strict=True)]


def _phase_from_stack(remat_region: int | None, stack: str) -> Phase | None:
    if remat_region is not None or "transpose(" in stack:
        return "backward"
    return "forward" if "jvp(" in stack else None


def roles(
    body: Body,
    phases: Sequence[Phase],
    outputs: Sequence[View],
    updates: Mapping[int, int],
    inputs: int,
) -> list[Role]:
    """The role of every tensor.

    Args:
        updates: of outputs that are the new value of an input, that input.
        inputs: how many of the first tensors are inputs; other tensors without a producer are
            constants.
    """
    consumers: list[set[Phase]] = [set() for _ in body.values]
    for operation, phase in zip(body.operations, phases, strict=True):
        for use in operation.operands:
            consumers[use.tensor].add(phase)
    updated = set(updates.values())
    found: list[Role] = []
    for index, value in enumerate(body.values):
        if index < inputs:
            found.append(_of_input(value.dtype, index in updated, consumers[index]))
        elif value.producer is None:
            found.append("constant")
        elif not value.sizes:
            found.append("scalar/output")
        elif phases[value.producer] == "optimizer":
            found.append("optimizer")
        elif phases[value.producer] == "backward" and "optimizer" in consumers[index]:
            found.append("gradient")
        else:
            found.append("activation")
    for output, updated_input in updates.items():
        tensor = outputs[output].tensor
        if tensor is not None and body.values[tensor].producer is not None:
            found[tensor] = found[updated_input]
    return found


def _of_input(dtype, updated: bool, consumers: set[Phase]) -> Role:
    if not (updated and isinstance(dtype, np.dtype) and dtype.kind not in "biu"):
        return "input"
    return "parameter" if "forward" in consumers or "backward" in consumers else "optimizer"
