"""The user's constraints: pinned placements of inputs, and mesh axes that must not shard them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jax.sharding import NamedSharding, PartitionSpec

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Tensor
from tensorstate.ir.placements import REPLICATED, Placements, divides_evenly
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy

Spec = Sequence[str | Sequence[str] | None]
"""As a ``PartitionSpec``: for every dimension a mesh axis, several (major first), or ``None``."""


def apply_constraints(
    problem: Problem,
    strategies: Sequence[Sequence[Strategy]],
    pin: Mapping[str, Spec],
    forbid: Mapping[str, str | Sequence[str]],
) -> tuple[tuple[Strategy, ...], ...]:
    """The strategies that satisfy the constraints.

    Args:
        problem: a training step on a mesh.
        strategies: for every class the candidate strategies.
        pin: partition specs by patterns of input names. ``*`` matches one part of a name between
            slashes, ``**`` any number of parts.
        forbid: by patterns, the mesh axes that must not shard these inputs.

    Raises:
        PlanError: a pattern that matches no input, or only some inputs of a class; pins that
            contradict each other; unknown axes or dimensions; sizes that do not divide evenly.
    """
    remaining = [tuple(w) for w in strategies]
    by_name: dict[str, tuple[str, Placements]] = {}
    for pattern, spec in pin.items():
        for class_id, tensors in _matched(problem, pattern).items():
            for tensor in tensors:
                placements = from_partition_spec(problem, tensor, spec)
                first, before = by_name.setdefault(tensor.name, (pattern, placements))
                if before != placements:
                    raise PlanError(
                        f"pins {first!r} and {pattern!r} contradict each other on {tensor.name}"
                    )
                remaining[class_id] = tuple(
                    strategy for strategy in remaining[class_id] if strategy == placements
                )
                if not remaining[class_id]:
                    raise PlanError(f"pin {pattern!r}: {tensor.name} cannot be sharded as {spec}")
    for pattern, axes in forbid.items():
        numbers = _axes(problem, (axes,) if isinstance(axes, str) else axes, pattern)
        for class_id in _matched(problem, pattern):
            remaining[class_id] = tuple(
                strategy
                for strategy in remaining[class_id]
                if all(strategy[axis] == REPLICATED for axis in numbers)
            )
            if not remaining[class_id]:
                raise PlanError(f"forbid {pattern!r} contradicts a pin of the same tensors")
    return tuple(remaining)


def checked_pins(pin: Mapping[str, Spec] | None) -> dict[str, tuple]:
    """Pins as plain tuples; a ``NamedSharding`` stands for its spec.

    Raises:
        PlanError: something else than specs by patterns.
    """
    given = {} if pin is None else checks.instance(pin, Mapping, "pin", PlanError)
    return {
        checks.text(pattern, "a pattern of pin", PlanError): _checked_spec(pattern, spec)
        for pattern, spec in given.items()
    }


def _checked_spec(pattern: str, given: object) -> tuple:
    spec = given.spec if isinstance(given, NamedSharding) else given
    if not isinstance(spec, (PartitionSpec, tuple, list)):
        raise PlanError(
            f"pin {checks.shown(pattern)} must be a PartitionSpec, got {checks.shown(given)}"
        )
    for axes in spec:
        names = axes if isinstance(axes, (tuple, list)) else () if axes is None else (axes,)
        if not all(isinstance(name, str) for name in names):
            raise PlanError(
                f"pin {checks.shown(pattern)} has names of mesh axes or None for each dimension, "
                f"got {checks.shown(given)}"
            )
    return tuple(spec)


def checked_forbidden(
    forbid: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, tuple[str, ...]]:
    """Names of mesh axes by pattern, as tuples.

    Raises:
        PlanError: something else than names by patterns.
    """
    given = {} if forbid is None else checks.instance(forbid, Mapping, "forbid", PlanError)
    return {
        checks.text(pattern, "a pattern of forbid", PlanError): (axes,)
        if isinstance(axes, str)
        else tuple(
            checks.text(axis, f"a mesh axis of forbid {checks.shown(pattern)}", PlanError)
            for axis in checks.members(axes, f"forbid {checks.shown(pattern)}", PlanError)
        )
        for pattern, axes in given.items()
    }


def _matched(problem: Problem, pattern: str) -> dict[int, list[Tensor]]:
    """The inputs whose names match, by class: all inputs of a class or none."""
    regex = re.compile(_regex(pattern))
    by_class: dict[int, list[Tensor]] = {}
    for class_id, members in enumerate(problem.graph.node_classes):
        tensors = [problem.graph.nodes[e].tensor for e in members]
        named = [problem.graph.tensors[t] for t in tensors if t is not None]
        matched = [tensor for tensor in named if regex.fullmatch(tensor.name)]
        if matched and len(matched) < len(named):
            other = next(tensor.name for tensor in named if tensor not in matched)
            raise PlanError(
                f"{pattern!r} names {matched[0].name} but not {other}, the same input of an "
                "identical layer: name them together"
            )
        if matched:
            by_class[class_id] = matched
    if not by_class:
        names = [problem.graph.tensors[i].name for i in problem.graph.inputs]
        some = ", ".join(names[:8])
        raise PlanError(f"{pattern!r} names no input; there are {len(names)}, such as {some}")
    return by_class


def _regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*)", pattern)
    stars = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}
    return "".join(stars.get(part, re.escape(part)) for part in parts)


def from_partition_spec(problem: Problem, tensor: Tensor, spec: Spec) -> Placements:
    """The placements of an input that a ``PartitionSpec`` describes.

    Raises:
        PlanError: an unknown axis or dimension, or sizes that do not divide evenly.
    """
    dims = tensor.array_dims or ()
    if len(spec) > len(dims):
        raise PlanError(f"{tensor.name} has {len(dims)} dimensions, the pin {spec} more")
    placements = [REPLICATED] * len(problem.mesh.sizes)
    for dimension, axes in enumerate(spec):
        names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        numbers = _axes(problem, names, str(spec))
        if numbers != sorted(numbers):
            raise PlanError(f"{spec}: axes of a dimension come in the order of the mesh")
        for axis in numbers:
            if problem.mesh.sizes[axis] == 1:
                continue
            if placements[axis] != REPLICATED:
                name = problem.mesh.names[axis]
                raise PlanError(f"{spec} shards two dimensions along mesh axis {name!r}")
            if not dims[dimension]:
                raise PlanError(f"{spec}: dimension {dimension} of {tensor.name} has size 1")
            placements[axis] = dims[dimension][0]
    if not divides_evenly(tuple(placements), tensor.sizes, problem.mesh):
        raise PlanError(f"{spec} does not shard {tensor.name}, of factors {tensor.sizes}, evenly")
    return tuple(placements)


def _axes(problem: Problem, names: Sequence[str], context: str) -> list[int]:
    known = problem.mesh.names
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PlanError(f"{context}: the mesh has axes {', '.join(known)}, not {unknown[0]!r}")
    return [known.index(name) for name in names]
