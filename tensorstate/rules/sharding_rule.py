"""The parts of a rule: shared and reduced dimensions, and the function that runs local shards."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tensorstate.ir.graph import Kind, Reduce
from tensorstate.rules.local_shard import LocalShard

Labels = tuple[int | None, ...]


class AbstractArray(NamedTuple):
    """An argument or result of an equation.

    Attributes:
        shape: of the full array.
        dtype: of its elements.
        value: of a constant, a scalar that is repeated over the full shape; else ``None``.
    """

    shape: tuple[int, ...]
    dtype: Any
    value: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class ShardingRule:
    """An equation in labels, one for each dimension of its arguments and results.

    Dimensions with the same label have the same size and are sharded together. ``None`` stands for
    a dimension of size 1 that shares no label. (JAX's ``SdyShardingRule`` calls labels factors.)

    Attributes:
        kind: see ``tensorstate.ir.graph.Operator``, also for the attributes below.
        arguments, results: labels of every dimension.
        reductions: labels over which it reduces, with the reduction.
        linear: sets of arguments in which it is jointly linear.
        need_replication: labels that cannot be sharded.
        flops: floating-point operations.
    """

    kind: Kind
    arguments: tuple[Labels, ...]
    results: tuple[Labels, ...]
    reductions: Mapping[int, Reduce] = dataclasses.field(default_factory=dict)
    linear: tuple[frozenset[int], ...] = ()
    need_replication: frozenset[int] = frozenset()
    flops: int = 0


class LocalEqn(NamedTuple):
    """The equation that a ``RunLocal`` function runs on local shards.

    Attributes:
        primitive, params: to bind, as traced for full arrays.
        arguments, results: for every dimension the labels whose product it is, major first.
        outputs: results of the full equation.
    """

    primitive: Any
    params: Mapping[str, Any]
    arguments: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    outputs: tuple[AbstractArray, ...]


DescribeRule = Callable[
    [Sequence[AbstractArray], Sequence[AbstractArray], Mapping[str, Any]], ShardingRule
]
RunLocal = Callable[[LocalEqn, Sequence[Any], LocalShard], Sequence[Any]]


def bind(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """Bind the primitive as it was traced: for primitives whose parameters name no sizes."""
    return bind_with(equation, arrays)


def bind_with(equation: LocalEqn, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    """Bind the primitive with some parameters changed."""
    out = equation.primitive.bind(*arrays, **{**equation.params, **changed})
    return out if equation.primitive.multiple_results else [out]


@dataclasses.dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """How a primitive is sharded and run.

    Attributes:
        sharding_rule: makes its ``ShardingRule`` from full arguments, results and parameters.
        run_local: computes its results on one device's shards.
        origin: "written" by hand; inferred as "elementwise", or by "dimensions" that JAX's own
            batching rules prove independent; or "replicated", if no rule could be inferred.
    """

    sharding_rule: DescribeRule
    run_local: RunLocal = bind
    origin: Literal["written", "elementwise", "dimensions", "replicated"] = "written"


def num_elements(argument: AbstractArray) -> int:
    """Number of elements."""
    return math.prod(argument.shape)


def is_zero(argument: AbstractArray) -> bool:
    """Whether it is the constant 0."""
    return argument.value is not None and bool(argument.value == 0)


def label_counter() -> itertools.count[int]:
    """A source of labels."""
    return itertools.count()


def replicated_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """The rule of an unknown primitive: no dimension is shared, and all are replicated."""
    labels = label_counter()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return ShardingRule("opaque", ins, outs, need_replication=frozenset(range(next(labels))))


FALLBACK_RULE = PrimitiveRule(replicated_rule, origin="replicated")
