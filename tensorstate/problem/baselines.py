"""Restrictions of strategies: named baselines, and the constraints of the user.

Baselines: named parallelism strategies, as restrictions of the strategies of node classes.

A baseline fixes some placements and leaves the others to the search, which finds the best plan of
the baseline. So a search without restrictions is never worse than a baseline.

- ``ddp``: parameters and optimizer state replicated, the batch sharded.
- ``zero1``, ``zero2``: optimizer state sharded. The two coincide if a step has one backward pass,
  since gradients are then reduced directly to the optimizer's shards (Rajbhandari et al., 2020).
- ``fsdp`` (ZeRO-3): parameters sharded too; gathered copies are not saved.

  A layer's parameters are gathered alone, also where a scan stacks those of all layers. Under mixed
  precision a shard is cast before it is gathered, and a gradient is reduced before it is cast back:
  both send the dtype in which the model computes, as PyTorch's FSDP2 does with
  ``param_dtype=bfloat16`` and its default ``reduce_dtype``. ``ddp``, ``zero1`` and ``zero2`` reduce
  gradients in that dtype too; what these gather after the optimizer has the dtype of parameters.

  Parameters that the step does not update, as LoRA's base model, are sharded or replicated like the
  others; they have no gradients to reduce.
- ``megatron``: weights sharded, the batch and the residual stream not (Shoeybi et al., 2019).
- ``megatron-sp``: as ``megatron``; elementwise operators may also be sharded along the sequence
  (Korthikanti et al., 2022).

The user's constraints: pinned placements of inputs, and mesh axes that must not shard them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from jax.sharding import NamedSharding, PartitionSpec

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Operator, Role, Tensor
from tensorstate.ir.placements import REPLICATED, Placements, divides_evenly
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import Strategy

DATA = ("ddp", "zero1", "zero2", "fsdp")
MODEL = ("megatron", "megatron-sp")
BASELINES = (*DATA, *MODEL)
# Primitives that cast, cut or stack.
_CUTS = frozenset({"convert_element_type", "slice", "dynamic_slice", "scan_row"})
COPIES = _CUTS | {"concatenate", "scan_stack"}
# A label that no operator has: a sharding that no strategy gives.
NO_LABEL = 2**30


class Baselines:
    """The restrictions of a problem's strategies to baselines.

    Args:
        problem: a training step on a mesh.
    """

    def __init__(self, problem: Problem):
        self.problem, self.graph = problem, problem.graph

    # ------------------------------------------------------------------ factors

    @functools.cached_property
    def batch(self) -> frozenset[int]:
        """Factors of the first position of the batch's tensors."""
        return frozenset(dims[0] for dims in self._inputs() if dims)

    @functools.cached_property
    def sequence(self) -> frozenset[int]:
        """Factors of the second position of the batch's matrices, such as tokens."""
        return frozenset(dims[1] for dims in self._inputs() if len(dims) == 2) - self.batch

    def _inputs(self) -> list[tuple[int, ...]]:
        tensors = (self.graph.tensors[i] for i in self.graph.inputs)
        return [tensor.dims for tensor in tensors if tensor.role == "input"]

    @functools.cached_property
    def residual_stream_factors(self) -> frozenset[int]:
        """Factors of the rows that are gathered from parameters: an embedding's width."""
        factors: set[int] = set()
        for operator in self.graph.operators:
            if operator.kind == "gather" and operator.phase == "forward":
                table = operator.operands[0]
                if is_parameter(self.graph, table.tensor):
                    dims = self.graph.tensors[table.tensor].dims
                    factors |= {
                        factor
                        for factor, label in zip(dims, table.labels, strict=True)
                        if label not in operator.reductions
                        and label not in operator.need_replication
                    }
        return frozenset(factors)

    @functools.cached_property
    def label_factors(self) -> tuple[tuple[int | None, ...], ...]:
        """The factor of every label of every class."""
        return tuple(self._label_factors(g) for g in range(len(self.graph.node_classes)))

    def _label_factors(self, class_id: int) -> tuple[int | None, ...]:
        node = self.problem.node(class_id)
        factor_of: list[int | None] = [None] * len(node.sizes)
        if node.tensor is not None:
            return self.graph.tensors[node.tensor].dims
        for member in node.members:
            operator = self.graph.operators[member.operator]
            for use in (*operator.operands, *operator.results):
                dims = self.graph.tensors[use.tensor].dims
                for factor, label in zip(dims, use.labels, strict=True):
                    factor_of[member.labels[label]] = factor
        return tuple(factor_of)

    @functools.cached_property
    def copies(self) -> Mapping[int, Role]:
        """The classes that only cast, cut or stack: those of parameters, and those of gradients.

        A scan over layers cuts its stacked parameters, and stacks their gradients.
        """
        graph, gradients = self.graph, set[int]()
        for operator in reversed(graph.operators):
            results = {use.tensor for use in operator.results}
            is_read = all(t in gradients or graph.tensors[t].role == "gradient" for t in results)
            if operator.primitive in COPIES and operator.phase == "backward" and is_read:
                gradients.update(results, (use.tensor for use in operator.operands))
        found: dict[int, Role] = {}
        for class_id in range(len(graph.node_classes)):
            members = self.problem.node(class_id).members
            operators = [graph.operators[member.operator] for member in members]
            if not operators or any(o.primitive not in COPIES for o in operators):
                continue
            result = operators[-1].results[0].tensor
            if is_parameter(graph, result):
                found[class_id] = "parameter"
            elif operators[-1].phase == "backward" and result in gradients:
                found[class_id] = "gradient"
        return found

    # ------------------------------------------------------------------ baselines

    def strategies(self, names: Mapping[str, str]) -> tuple[tuple[Strategy, ...], ...]:
        """For every class the strategies that the baseline of each axis allows.

        Args:
            names: a baseline for every axis of the mesh, by the axis's name.
        """
        chosen = [names[axis] for axis in self.problem.mesh.names]
        by_class = []
        for class_id, strategies in enumerate(self.problem.strategies):
            candidates = [
                strategy for strategy in strategies.all if self._allows(chosen, class_id, strategy)
            ]
            # Classes that the baseline shards must be sharded if their sizes divide evenly.
            for axis, name in enumerate(chosen):
                sharded = [
                    strategy
                    for strategy in candidates
                    if self._is_sharded(name, class_id, strategy[axis])
                ]
                candidates = sharded or candidates
            by_class.append(tuple(candidates))
        return tuple(by_class)

    def _allows(self, names: list[str], class_id: int, strategy: Strategy) -> bool:
        pairs = zip(names, strategy, strict=True)
        return all(self._allows_placement(name, class_id, placement) for name, placement in pairs)

    def _is_sharded(self, name: str, class_id: int, placement: int) -> bool:
        """Whether an input or an operator is sharded as the baseline requires."""
        node = self.problem.node(class_id)
        if node.tensor is None:
            if class_id in self.copies:
                return name == "fsdp" and placement >= 0
            if name == "megatron-sp" and node.kind == "loop":  # no gathered rows are stacked
                return placement >= 0
            if name in DATA and node.phase != "optimizer":
                return placement >= 0 and self.label_factors[class_id][placement] in self.batch
            return False
        sharded = {
            "ddp": ("input",),
            "zero1": ("input", "optimizer"),
            "zero2": ("input", "optimizer"),
            "fsdp": ("input", "optimizer", "parameter"),
        }
        role = self.graph.tensors[node.tensor].role
        roles = sharded.get(name, ("parameter",) if len(node.sizes) > 1 else ())
        return placement >= 0 and role in roles

    def _allows_placement(self, name: str, class_id: int, placement: int) -> bool:
        """Whether a baseline allows a placement of a class on its axis."""
        node = self.problem.node(class_id)
        if placement == REPLICATED:
            return True
        factor = self.label_factors[class_id][placement] if placement >= 0 else None
        if node.tensor is not None:
            role = self.graph.tensors[node.tensor].role
            if role == "input":
                return name in DATA and factor in self.batch
            if role == "constant":
                return False
            if name in MODEL:
                return factor not in self.batch | self.residual_stream_factors | self.sequence
            replicated_roles = {"ddp": ("parameter", "optimizer"), "fsdp": ()}
            return role not in replicated_roles.get(name, ("parameter",))
        if node.phase == "optimizer":
            return name != "ddp"
        if placement < REPLICATED:
            return True
        if name in DATA:
            copied = self.copies.get(class_id)
            sharded = {"parameter": ("fsdp",), "gradient": ("fsdp", "zero1", "zero2")}
            return name in sharded.get(copied or "", ()) or factor in self.batch
        if factor in self.batch | self.residual_stream_factors:
            return False
        if factor in self.sequence:
            return name == "megatron-sp" and node.kind != "einsum"
        return True


def is_parameter(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is a parameter, or one that is cast, pinned, or cut from a stack."""
    source = graph.tensors[tensor]
    while source.producer is not None:
        operator = graph.operators[source.producer]
        if operator.primitive not in _CUTS | {"scan_stack"} and operator.pin is None:
            return False
        source = graph.tensors[operator.operands[0].tensor]
    return source.role == "parameter"


def baseline_by_axis(problem: Problem, name: str) -> dict[str, str]:
    """The baseline of every mesh axis that a name stands for.

    A data-parallel baseline (``DATA``) applies to all axes. A tensor-parallel one (``MODEL``)
    applies to the last axis, with ``ddp`` on the others. ``"fsdp + megatron"`` joins one of each.

    Raises:
        PlanError: an unknown name, or two data-parallel or two tensor-parallel baselines.
    """
    parts = [part.strip() for part in checks.text(name, "a baseline", PlanError).split("+")]
    unknown = [part for part in parts if part not in BASELINES]
    if unknown:
        known = ", ".join(BASELINES)
        raise PlanError(f"no baseline is called {checks.shown(unknown[0])}; known: {known}")
    data = [part for part in parts if part in DATA]
    model = [part for part in parts if part in MODEL]
    if len(data) > 1 or len(model) > 1:
        raise PlanError(
            f"{name!r} names two baselines of one kind: join one of {DATA} and one of {MODEL}"
        )
    axes = problem.mesh.names
    by_axis = dict.fromkeys(axes, data[0] if data else "ddp")
    if model:
        by_axis[axes[-1]] = model[0]
    return by_axis


Spec = Sequence[str | Sequence[str] | None]
"""As a ``PartitionSpec``: for every dimension a mesh axis, several (major first), or ``None``."""


def apply_constraints(
    problem: Problem,
    strategies: Sequence[Sequence[Strategy]],
    pin: Mapping[str, Spec],
    forbid: Mapping[str, str | Sequence[str]],
) -> tuple[tuple[Strategy, ...], ...]:
    """The strategies that satisfy the constraints, those that the step itself asks for included.

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
    remaining = [
        _pinned_by_step(problem, class_id, tuple(of_class))
        for class_id, of_class in enumerate(strategies)
    ]
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


def _pinned_by_step(
    problem: Problem, class_id: int, strategies: tuple[Strategy, ...]
) -> tuple[Strategy, ...]:
    """The strategies of a class that shard as the step asks; all of them where it asks nothing.

    Raises:
        PlanError: naming the line: a mesh without the axes, or sizes that do not divide evenly.
    """
    members = problem.node(class_id).members
    operator = problem.graph.operators[members[0].operator] if members else None
    if operator is None or operator.pin is None:
        return strategies
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
    """For every axis the factor of a dimension that it shards: the major ones first, each fully."""
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


def _axes(problem: Problem, names: Sequence[str], context: str, remedy: str = "") -> list[int]:
    known = problem.mesh.names
    unknown = [name for name in names if name not in known]
    if unknown:
        say = f"; {remedy}" if remedy else ""
        raise PlanError(f"{context}: the mesh has axes {', '.join(known)}, not {unknown[0]!r}{say}")
    return [known.index(name) for name in names]
