"""The phases of operators, from the name stacks that ``jax.grad`` leaves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tensorstate.ir.graph import Operator, Phase, Tensor
from tensorstate.tracing.build import GraphParts


def phases(tensors: Sequence[Tensor], operators: Sequence[Operator]) -> list[Phase]:
    """The phase of every operator.

    Operators that ``jax.grad`` differentiated, and all that they depend on (such as gradients
    inside of a loss), run in the forward pass. Of the others, those that it transposed or reran
    belong to the backward pass, and the remaining ones to the optimizer. All operators of a
    function without gradients run in the forward pass. A whole loop runs in one phase.
    """
    phase_of = phases_by_stack(operators)
    if all(phase is None for phase in phase_of):
        return [*itertools.repeat("forward", len(phase_of))]
    bodies: dict[int, list[int]] = {}
    for i, operator in enumerate(operators):
        if operator.loops:
            bodies.setdefault(operator.loops[0], []).append(i)
    before = _before_the_loss(tensors, operators, phase_of, bodies)
    by_stack: list[Phase] = ["backward" if p == "backward" else "optimizer" for p in phase_of]
    for body in bodies.values():
        if not before[body[0]]:
            is_backward = any(phase_of[i] == "backward" for i in body)
            for i in body:
                by_stack[i] = "backward" if is_backward else "optimizer"
    return ["forward" if b else phase for b, phase in zip(before, by_stack, strict=True)]


def phases_in_steps(parts: GraphParts, operators: Sequence[Operator]) -> list[Phase]:
    """The phases of ``phases``; in loops over whole steps, of each operator within its step.

    Such a loop, as of an update by minibatches, has both passes in its body, and what follows them:
    which of its tensors are gradients, and which the optimizer's, is seen there alone.
    """
    phase_of, inside = phases_by_stack(operators), dict[int, set[Phase | None]]()
    for operator, phase in zip(operators, phase_of, strict=True):
        for loop in operator.loops:
            inside.setdefault(loop, set()).add(phase)
    before = _before_the_loss(parts.tensors, operators, phase_of, {})
    of_steps: list[Phase] = []
    for operator, phase, is_before in zip(operators, phase_of, before, strict=True):
        if not any(inside[loop] >= {"forward", "backward"} for loop in operator.loops):
            of_steps.append(operator.phase)
        else:
            after: Phase = "backward" if phase == "backward" else "optimizer"
            of_steps.append("forward" if is_before else after)
    return of_steps


def phases_by_stack(operators: Sequence[Operator]) -> list[Phase | None]:
    """Phases as ``jax.grad`` names them: f under jvp(f), its transposition under transpose()."""
    return [
        "backward"
        if o.eqn.remat_region is not None or "transpose(" in o.source.stack
        else ("forward" if "jvp(" in o.source.stack else None)
        for o in operators
    ]


def _before_the_loss(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    phase_of: Sequence[Phase | None],
    bodies: Mapping[int, Sequence[int]],
) -> list[bool]:
    """Whether the forward pass depends on each operator, or consists of it.

    Such operators are forward, whatever their stack says: of a penalty on the gradient of the
    input, the inner transposition runs before the outer loss is known.

    Args:
        bodies: by outermost loop the operators that run in one phase.
    """
    before = [phase == "forward" for phase in phase_of]
    pending, seen = [i for i, is_before in enumerate(before) if is_before], set[int]()
    while pending:
        operator = operators[pending.pop()]
        needed = [p for use in operator.operands if (p := tensors[use.tensor].producer) is not None]
        if operator.loops and operator.loops[0] not in seen:
            seen.add(operator.loops[0])
            needed += bodies.get(operator.loops[0], ())
        for p in needed:
            if not before[p]:
                before[p] = True
                pending.append(p)
    return before
