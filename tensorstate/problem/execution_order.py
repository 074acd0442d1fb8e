"""The order of operators, and the bodies of loops in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tensorstate.ir.graph import Graph


def execution_order(
    graph: Graph, after_loop: frozenset[int], together: frozenset[int]
) -> dict[int, int]:
    """The point of every operator; optimizer operators run as soon as their operands are ready."""
    # As traced, the optimizer comes after the last gradient, and all gradients would be live at
    # once. A compiler runs an update as early as it can, which frees its gradient.
    producer_of = {use.tensor: o.index for o in graph.operators for use in o.results}
    forward_end = min((o.index for o in graph.operators if o.phase != "forward"), default=0)
    # Nothing is complete before the last microbatch.
    ends = [o.index for o in graph.operators if not together.isdisjoint(o.loops)]
    forward_end = max([forward_end, *ends])
    ready: dict[int, int] = {}
    for operator in graph.operators:
        ready[operator.index] = operator.index
        if operator.phase == "optimizer":
            tensors = [use.tensor for use in operator.operands if use.tensor in producer_of]
            ready[operator.index] = max([forward_end, *(ready[producer_of[t]] for t in tensors)])
    # A loop of the optimizer runs as a whole, as soon as everything that it reads is ready.
    started: dict[int, int] = {}
    for operator in graph.operators:
        if operator.phase == "optimizer" and operator.loops:
            loop = operator.loops[0]
            started[loop] = max(started.get(loop, 0), ready[operator.index])
    for operator in graph.operators:
        if operator.loops:
            ready[operator.index] = started.get(operator.loops[0], ready[operator.index])
    # Within one point the traced order holds, in which operands come before their readers.
    order = sorted(ready, key=lambda index: (index in after_loop, ready[index], index))
    return {index: point for point, index in enumerate(order)}


class Body(NamedTuple):
    """The first and the last point of a loop's body, and the last before the carry is replaced."""

    first: int
    last: int
    carried: int


def bodies(graph: Graph, at: Mapping[int, int], together: frozenset[int]) -> dict[int, Body]:
    """The bodies of all loops that run; those that run together begin and end as one."""
    points: dict[int, list[int]] = {}
    for operator in graph.operators:
        for loop in operator.loops:
            points.setdefault(loop, []).append(at[operator.index])
    found = {}
    for loop, of_loop in points.items():
        # After the new carry is written, the old one is not read, since its buffer may be reused.
        ends = [at[leave] for _, leave in graph.loops[loop].carries]
        last = max(of_loop)
        found[loop] = Body(min(of_loop), last, min(ends, default=last + 1) - 1)
    joined = [found[loop] for loop in sorted(together)]
    for loop in together:
        first, last = min(b.first for b in joined), max(b.last for b in joined)
        found[loop] = found[loop]._replace(first=first, last=last)
    return found
