"""Fused results that are rebuilt after the forward pass, so that XLA for CPU does not keep them.

A plan counts a cheap elementwise result as computed inside each of its readers, and only its
operands as waiting. XLA does so with one exception, and a program may stand in its way:

- XLA for CPU first fuses a reduction with elementwise operators that nothing else reads. It stores
  what this fusion reads, as soon as it can be computed. A normalization, whose gradient is
  sum((x - mean) * dy), kept x - mean of every layer beside x, and operands that were repeated to
  the size of the others.
- If an operand is rebuilt, a reader of the backward pass would still need the first one.

A U-Net in 0.8 of its memory took 1.25 times that limit. So such results are rebuilt from
operands that wait, and repeated operands wait, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensorstate.execution.placement_table import PlacementTable
from tensorstate.ir.graph import Graph, Operator
from tensorstate.ir.placements import Placements


def fused_with_reductions(graph: Graph) -> frozenset[int]:
    """The elementwise operators whose results reductions read, and nothing else does."""
    found = set[int]()
    for operator in reversed(graph.operators):
        readers = {c.operator for r in operator.results for c in graph.tensors[r.tensor].consumers}
        if operator.kind == "elementwise" and len(readers) == 1:
            (reader,) = readers
            if reader in found or graph.operators[reader].kind == "reduction":
                found.add(operator.index)
    return frozenset(found)


def rebuilt_results(table: PlacementTable) -> frozenset[int]:
    """The fused results of the forward pass that are rebuilt for readers after it.

    Rebuilding them sends nothing: all other tensors that they are made from have copies that the
    plan keeps or gathers for the backward pass anyway.
    """
    graph, possible, of_rebuilt = table.graph, set[int](), set[int]()
    forward = [o for o in graph.operators if o.phase == "forward" and not o.loops]
    for operator in forward:
        if not _sends_nothing(table, operator, possible):
            continue
        made = {use.tensor for use in operator.results}
        possible |= made
        for use in operator.operands:
            if use.tensor in of_rebuilt or table.reruns(graph.tensors[use.tensor].producer):
                of_rebuilt |= made
    wanted = _read_by(o for o in graph.operators if o.phase != "forward" or table.reruns(o.index))
    wanted &= of_rebuilt
    fused = fused_with_reductions(graph)
    later = (o for o in graph.operators if o.phase != "forward")
    wanted |= _read_by(o for o in later if o.kind == "reduction" or o.index in fused)
    found = set[int]()
    for operator in reversed(forward):
        made = {use.tensor for use in operator.results} & possible
        if not made.isdisjoint(found | wanted):
            found |= made | {use.tensor for use in operator.operands} & possible
    return frozenset(found)


def _read_by(operators: Iterable[Operator]) -> set[int]:
    """The tensors that operators read."""
    return {use.tensor for operator in operators for use in operator.operands}


def _sends_nothing(table: PlacementTable, operator: Operator, possible: set[int]) -> bool:
    """Whether an operator of fused results can be rebuilt without collectives."""
    for use in operator.results:
        reshard = table.reshards.get(use.tensor)
        if not table.problem.liveness.is_fused(use.tensor) or table.reruns(operator.index):
            return False
        if reshard is not None and reshard.saved not in (None, reshard.produced_placements):
            return False
    return all(
        use.tensor in possible
        or table.read_placements(operator.index, k) in _copies(table, use.tensor)
        for k, use in enumerate(operator.operands)
    )


def _copies(table: PlacementTable, tensor: int) -> set[Placements]:
    """The placements of a tensor's copies after the forward pass."""
    reshard, produced = table.reshards.get(tensor), table.produced_placements(tensor)
    if reshard is None:
        return {produced}
    first = produced if reshard.saved is None else reshard.saved
    is_given = table.graph.tensors[tensor].producer is None
    targets = {step.target for step in reshard.after_forward.steps}
    return {first, *targets, *([produced] if is_given else [])}
