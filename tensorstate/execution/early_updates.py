"""Which updates run before a gradient is scattered, so that it takes the place of an earlier one.

A step as traced has all updates behind all gradients, and XLA for CPU starts every operator as
early as it can. It scattered the gradients of eight embedding tables at once: the step took 1.35
times the memory of its plan, in which an update follows its gradient (``execution_order``).
"""

from __future__ import annotations

from collections.abc import Collection

from tensorstate.ir.graph import Graph, Operator


def early_updates(graph: Graph, scatter: Operator, done: Collection[int]) -> list[Operator]:
    """The operators of the optimizer to run before a scatter, in order, outside of loops.

    They read what was scattered before, or are read by such operators, and all that they read
    exists. An argument that an operator of the backward pass still reads is not updated yet.

    Args:
        scatter: an operator after the forward pass.
        done: the operators of the optimizer that have run, by index.
    """
    awaited = {
        use.tensor
        for operator in graph.operators[scatter.index :]
        if operator.phase != "optimizer"
        for use in (*operator.operands, *operator.results)
    }
    missing, scattered, ready = set(awaited), set[int](), list[Operator]()
    for operator in graph.operators:
        made = {use.tensor for use in operator.results}
        read = {use.tensor for use in operator.operands}
        if operator.phase != "optimizer":
            if operator.index < scatter.index and is_gradient_scatter(operator):
                scattered |= made
        elif operator.index in done:
            continue
        elif operator.loops or read & missing:
            missing |= made
        else:
            ready.append(operator)
            scattered |= made if read & scattered else set()
    chosen, needed = list[Operator](), scattered
    for operator in reversed(ready):
        if any(use.tensor in needed for use in operator.results):
            chosen.append(operator)
            needed = needed | {use.tensor for use in operator.operands}
    return chosen[::-1]


def last_results(operators: list[Operator]) -> set[int]:
    """The tensors that operators make and none of them reads."""
    read = {use.tensor for operator in operators for use in operator.operands}
    return {use.tensor for operator in operators for use in operator.results} - read


def is_gradient_scatter(operator: Operator) -> bool:
    """Whether an operator outside of loops scatters into zeros after the forward pass."""
    is_scatter = operator.kind == "scatter" and operator.eqn.inputs[0].tensor is None
    return is_scatter and operator.phase == "backward" and not operator.loops
