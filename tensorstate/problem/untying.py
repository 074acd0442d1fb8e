"""Inputs of identical layers that the user's pins distinguish.

Identical layers share a decision, so a pin of one of them would pin all. If pins or forbidden axes
name only some of such inputs, or ask different things of them, these inputs and the operators
around them become separate classes. The search then has more to decide, and no plan of the tied
layers is lost.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Mapping, Sequence

from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Tensor, Untied
from tensorstate.tracing.node_classes import group_nodes

Spec = Sequence[str | Sequence[str] | None]
"""A ``PartitionSpec``: for each dimension one or more mesh axes (major first), or ``None``."""


def named(graph: Graph, pattern: str) -> list[Tensor]:
    """The inputs whose names a pattern matches.

    Args:
        pattern: ``*`` matches one part of a name between slashes, ``**`` any number of parts.

    Raises:
        PlanError: it matches no input.
    """
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
    stars = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}  # "**/" may also match no part
    regex = re.compile("".join(stars.get(part, re.escape(part)) for part in parts))
    inputs = [graph.tensors[index] for index in graph.inputs]
    found = [tensor for tensor in inputs if regex.fullmatch(tensor.name)]
    if not found:
        some = ", ".join(tensor.name for tensor in inputs[:8])
        raise PlanError(f"{pattern!r} names no input; there are {len(inputs)}, such as {some:.160}")
    return found


def by_input(graph: Graph, pin: Mapping[str, Spec]) -> dict[int, list[tuple[str, Spec]]]:
    """For each input tensor the pins that apply to it, with their patterns.

    The name of an input takes precedence over patterns with stars, as in ``plan.path_rules``.
    """
    pins: dict[int, list[tuple[str, Spec]]] = {}
    for pattern, spec in sorted(pin.items(), key=lambda item: "*" in item[0]):
        for tensor in named(graph, pattern):
            given = pins.setdefault(tensor.index, [])
            if not given or "*" in given[0][0]:
                given.append((pattern, spec))
    return pins


def untie(graph: Graph, pin: Mapping[str, Spec], forbid: Mapping[str, Sequence[str]]) -> Graph:
    """The graph in which all inputs of a class have the same constraints.

    Raises:
        PlanError: a pattern matches no input.
    """
    if graph.untied is not None:  # by the pins of an earlier search
        graph = _grouped(graph, None)
    asked: dict[int, list[Hashable]] = {}
    for index, pins in by_input(graph, pin).items():
        asked.setdefault(index, []).extend(_canonical(spec) for _, spec in pins)
    for pattern, axes in forbid.items():
        for tensor in named(graph, pattern):
            asked.setdefault(tensor.index, []).append(("not", frozenset(axes)))
    numbers: dict[Hashable, int] = {}
    groups: dict[int, int] = {}
    for members in graph.node_classes:
        inputs = [t for t in (graph.nodes[node].tensor for node in members) if t is not None]
        wanted = [frozenset(asked.get(tensor, ())) for tensor in inputs]
        if len(set(wanted)) > 1:
            pairs = zip(inputs, wanted, strict=True)
            groups |= {tensor: numbers.setdefault(of, len(numbers)) for tensor, of in pairs}
    return regrouped(graph, groups)


def _canonical(spec: Spec) -> Hashable:
    """Equal specs as equal values: names as tuples, without ``None`` at the end."""
    dims = [() if d is None else (d,) if isinstance(d, str) else tuple(d) for d in spec]
    while dims and not dims[-1]:
        dims.pop()
    return tuple(dims)


def regrouped(graph: Graph, groups: Mapping[int, int]) -> Graph:
    """The graph with inputs of different groups in different classes."""
    if not groups:
        return graph
    return _grouped(graph, Untied(groups, len(graph.node_classes)))


def _grouped(graph: Graph, untied: Untied | None) -> Graph:
    nodes, node_classes, edges = group_nodes(
        graph.tensors, graph.operators, graph.outputs, loops=graph.loops, untied=untied
    )
    return dataclasses.replace(
        graph, nodes=nodes, node_classes=node_classes, edges=edges, untied=untied
    )
