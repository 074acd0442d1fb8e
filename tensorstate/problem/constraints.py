"""The user's constraints: pinned placements of inputs, and mesh axes that must not shard them.

Shardings that the step itself asks for are constraints, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from jax.sharding import NamedSharding, PartitionSpec

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Operator, Tensor
from tensorstate.ir.placements import REPLICATED, Placements, divides_evenly
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.untying import Spec, by_input, named

# A label that no operator has, for a sharding that no strategy gives.
NO_LABEL = 2**30


def apply_constraints(
    problem: Problem,
    strategies: Sequence[Sequence[Strategy]],
    pin: Mapping[str, Spec],
    forbid: Mapping[str, str | Sequence[str]],
) -> tuple[tuple[Strategy, ...], ...]:
    """The strategies that satisfy the constraints, including those of the step itself.

    Args:
        problem: a training step on a mesh.
        strategies: for every class the candidate strategies.
        pin: partition specs by patterns of input names. ``*`` matches one part of a name between
            slashes, ``**`` any number of parts; a name without stars takes precedence over them.
        forbid: by patterns, the mesh axes that must not shard these inputs.

    Raises:
        PlanError: a pattern matches no input; inputs of one class have different constraints (see
            ``untying``); pins contradict each other; axes or dimensions are unknown; or sizes do
            not divide evenly.
    """
    # Strategies belong to classes, not to inputs, and equal layers are pinned together
    # (``_matched``). So pins only remove strategies, and the search stays the same.
    remaining = [
        _pinned_by_step(problem, class_id, tuple(of_class))
        for class_id, of_class in enumerate(strategies)
    ]
    by_name = _pin(problem, remaining, pin)
    for pattern, axes in forbid.items():
        numbers = _axes(problem, (axes,) if isinstance(axes, str) else axes, pattern)
        for class_id, tensors in _matched(problem, pattern, named(problem.graph, pattern)).items():
            remaining[class_id] = tuple(
                strategy
                for strategy in remaining[class_id]
                if all(strategy[axis] == REPLICATED for axis in numbers)
            )
            if not remaining[class_id]:
                name = tensors[0].name
                pinned, _ = by_name.get(name, ("the step", ()))
                raise PlanError(
                    f"forbid {pattern!r} contradicts the pin {pinned!r} of {name}, which is "
                    f"sharded over {', '.join(problem.mesh.names[a] for a in numbers)} by it: take "
                    "one of them away"
                )
    return tuple(remaining)


def _pin(
    problem: Problem, remaining: list[tuple[Strategy, ...]], pin: Mapping[str, Spec]
) -> dict[str, tuple[str, Placements]]:
    """Leave to every class of pinned inputs only the strategy that its pins ask for.

    Returns:
        For each input the first pattern that pins it, and its placements.
    """
    by_name: dict[str, tuple[str, Placements]] = {}
    for index, pins in by_input(problem.graph, pin).items():
        tensor = problem.graph.tensors[index]
        for pattern, spec in pins:
            placements = from_partition_spec(problem, tensor, spec)
            # Two patterns, such as "**" and a name, may match one input if they ask for the same.
            first, before = by_name.setdefault(tensor.name, (pattern, placements))
            if before != placements:
                raise PlanError(
                    f"pins {first!r} and {pattern!r} contradict each other on {tensor.name}: "
                    f"{tuple(pin[first])} and {tuple(spec)}; keep one of them"
                )
    for class_id, members in enumerate(problem.graph.node_classes):
        indices = [problem.graph.nodes[node].tensor for node in members]
        names = [problem.graph.tensors[index].name for index in indices if index is not None]
        asked = {by_name[name][1]: name for name in names if name in by_name}
        if not asked:
            continue
        (placements, name), *others = asked.items()
        free = next((other for other in names if other not in by_name), None)
        if others or free:
            raise PlanError(
                f"{by_name[name][0]!r} pins {name} but not {free or others[0][1]} in the same way, "
                "the same input of an identical layer: pins of search() untie them"
            )
        remaining[class_id] = tuple(s for s in remaining[class_id] if s == placements)
        if not remaining[class_id]:
            pattern = by_name[name][0]
            raise PlanError(f"pin {pattern!r}: {name} cannot be sharded as {tuple(pin[pattern])}")
    return by_name


def _pinned_by_step(
    problem: Problem, class_id: int, strategies: tuple[Strategy, ...]
) -> tuple[Strategy, ...]:
    """The strategies of a class that shard as the step asks; all of them if it asks for nothing.

    Raises:
        PlanError: the mesh lacks the axes, or sizes do not divide evenly; the error names the line.
    """
    members = problem.node(class_id).members
    operator = problem.graph.operators[members[0].operator] if members else None
    if operator is None or operator.pin is None:
        return strategies
    # A dimension may be several labels, which a reshape has merged: [batch, heads x width] is
    # pinned as one dimension and sharded along the major labels.
    asked = tuple(dim.axes for dim in operator.pin)
    where = f"the step asks for the sharding {_spec_text(asked)} ({operator.source})"
    free: set[int] = set()
    wanted = [REPLICATED] * len(problem.mesh.sizes)
    for labels, axes in operator.pin:
        if axes is None:
            free.update(labels)
            continue
        remedy = "search on the mesh that it is written for, or trace it with constraints='drop'"
        numbers = _axes(problem, axes, where, remedy)
        # Placements are a set of axes per dimension, in the order of the mesh; another order of the
        # blocks cannot be expressed.
        if numbers != sorted(numbers):
            raise PlanError(f"{where}: axes of a dimension come in the order of the mesh")
        factors = _factors_of(problem, operator, labels, numbers)
        for axis, label in zip(numbers, factors, strict=True):
            wanted[axis] = label
    allowed = tuple(
        strategy
        for strategy in strategies
        if all(
            placement == want or (want == REPLICATED and placement in free)
            for placement, want in zip(strategy, wanted, strict=True)
        )
    )
    if not allowed:
        dims = [math.prod(operator.sizes[k] for k in dim.labels) for dim in operator.pin]
        sizes = " x ".join(map(str, dims))
        raise PlanError(
            f"{where} of an array of {sizes}, which {problem.mesh} does not shard evenly: change "
            "its sizes, or trace the step with constraints='drop'"
        )
    return allowed


def _factors_of(
    problem: Problem, operator: Operator, labels: Sequence[int], axes: Sequence[int]
) -> Iterator[int]:
    """For every axis the factor of a dimension that it shards; major factors are filled first."""
    # An axis that does not fit the rest of a label would have to split two labels, which no
    # strategy does.
    left = [(label, operator.sizes[label]) for label in labels]
    for axis in axes:
        size = problem.mesh.sizes[axis]
        while len(left) > 1 and left[0][1] == 1 < size:
            left.pop(0)
        if size == 1 or not left:
            yield REPLICATED if size == 1 else NO_LABEL
            continue
        label, parts = left[0]
        left[0] = label, parts // size
        yield label if parts % size == 0 else NO_LABEL


def _spec_text(spec: Sequence[Sequence[str] | None]) -> str:
    parts = [
        "any" if axes is None else "None" if not axes else repr(axes[0] if len(axes) == 1 else axes)
        for axes in spec
    ]
    return f"P({', '.join(parts)})"


def checked_pins(pin: Mapping[str, Spec] | None) -> dict[str, tuple]:
    """Pins as plain tuples; a ``NamedSharding`` stands for its spec.

    Raises:
        PlanError: they are not specs by patterns.
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
        PlanError: they are not names by patterns.
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


def _matched(problem: Problem, pattern: str, tensors: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """The inputs that a pattern names, by class: all inputs of a class or none."""
    wanted = {tensor.index for tensor in tensors}
    by_class: dict[int, list[Tensor]] = {}
    for class_id, members in enumerate(problem.graph.node_classes):
        indices = [problem.graph.nodes[e].tensor for e in members]
        of_class = [problem.graph.tensors[t] for t in indices if t is not None]
        matched = [tensor for tensor in of_class if tensor.index in wanted]
        if matched and len(matched) < len(of_class):
            other = next(tensor.name for tensor in of_class if tensor not in matched)
            raise PlanError(
                f"{pattern!r} names {matched[0].name} but not {other}, the same input of an "
                "identical layer: pins of search() untie them"
            )
        if matched:
            by_class[class_id] = matched
    return by_class


def from_partition_spec(problem: Problem, tensor: Tensor, spec: Spec) -> Placements:
    """The placements of an input that a ``PartitionSpec`` describes.

    Raises:
        PlanError: an axis or dimension is unknown, or sizes do not divide evenly.
    """
    dims = tensor.array_dims or ()
    where = f"the pin {tuple(spec)} of {tensor.name}"
    if len(spec) > len(dims):
        raise PlanError(
            f"{where} has {len(spec)} dimensions, the array has {len(dims)}: leave the others out"
        )
    # A spec has names of axes for each dimension; placements have a position for each axis.
    placements = [REPLICATED] * len(problem.mesh.sizes)
    for dimension, axes in enumerate(spec):
        names = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        numbers = _axes(problem, names, where)
        if numbers != sorted(numbers):
            order = ", ".join(problem.mesh.names[axis] for axis in sorted(numbers))
            raise PlanError(
                f"{where}: axes of a dimension come in the order of the mesh, here {order}"
            )
        for axis in numbers:
            if problem.mesh.sizes[axis] == 1:
                continue
            if placements[axis] != REPLICATED:
                name = problem.mesh.names[axis]
                raise PlanError(
                    f"{where} names mesh axis {name!r} twice: an axis shards one dimension, so "
                    "take it away from the others"
                )
            if not dims[dimension]:
                raise PlanError(
                    f"{where}: dimension {dimension} has size 1 and cannot be sharded: None fits"
                )
            placements[axis] = dims[dimension][0]
    if not divides_evenly(tuple(placements), tensor.sizes, problem.mesh):
        raise PlanError(
            f"{spec} does not shard {tensor.name}, of factors {tensor.sizes}, evenly: "
            f"{_uneven(problem, tensor, placements)}"
        )
    return tuple(placements)


def _uneven(problem: Problem, tensor: Tensor, placements: Sequence[int]) -> str:
    """The dimension with too few elements for its mesh axes, and the number of shards that fit."""
    mesh = problem.mesh
    for number, positions in enumerate(tensor.array_dims or ()):
        axes = [axis for axis, placement in enumerate(placements) if placement in positions]
        parts = math.prod(mesh.sizes[axis] for axis in axes)
        if axes and tensor.sizes[positions[0]] % parts:
            names = " x ".join(f"{mesh.names[axis]} {mesh.sizes[axis]}" for axis in axes)
            most = math.gcd(tensor.sizes[positions[0]], parts)
            return (
                f"dimension {number} is sharded in units of {tensor.sizes[positions[0]]}, which "
                f"{names} = {parts} does not divide; at most {most} of these parts would fit"
            )
    return "a dimension of size 0"


def _axes(problem: Problem, names: Sequence[str], context: str, remedy: str = "") -> list[int]:
    known = problem.mesh.names
    unknown = [name for name in names if name not in known]
    if unknown:
        say = f"; {remedy}" if remedy else ""
        raise PlanError(f"{context}: the mesh has axes {', '.join(known)}, not {unknown[0]!r}{say}")
    return [known.index(name) for name in names]
