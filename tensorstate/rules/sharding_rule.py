"""What a rule says of a primitive: which dimensions are one, what is reduced, and how it runs."""

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
        shape: of the whole array.
        dtype: of its elements.
        value: of a constant, a scalar that is repeated over the whole shape; else ``None``.
    """

    shape: tuple[int, ...]
    dtype: Any
    value: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class ShardingRule:
    """An equation in labels, one for each dimension of its arguments and results.

    Dimensions with the same label have the same size and are sharded together. ``None`` stands for
    a dimension of size 1 that is none of the others.

    Attributes:
        kind: see ``tensorstate.ir.graph.Operator``, as for the others.
        arguments, results: labels of every dimension.
        reductions: labels over which it reduces, and how.
        linear: sets of arguments in which it is linear together.
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
    """What a runner is given besides its arrays.

    Attributes:
        primitive, params: to bind, as traced for whole arrays.
        arguments, results: for every dimension the labels that make it up.
        outputs: results of the whole equation.
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
    """Bind the primitive as it was traced: for those whose parameters name no sizes."""
    return bind_with(equation, arrays)


def bind_with(equation: LocalEqn, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    """Bind the primitive with some parameters changed."""
    out = equation.primitive.bind(*arrays, **{**equation.params, **changed})
    return out if equation.primitive.multiple_results else [out]


@dataclasses.dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """How a primitive is read and run.

    Attributes:
        sharding_rule: its signature, from whole arguments, results and parameters.
        run_local: its results on one device's blocks.
        origin: "written" by hand; inferred as "elementwise", or by "dimensions" that JAX's own
            rules show to be independent; or "replicated", for want of anything better.
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
    """The signature of what is not known: every dimension stands alone and is whole."""
    labels = label_counter()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return ShardingRule("opaque", ins, outs, need_replication=frozenset(range(next(labels))))


FALLBACK_RULE = PrimitiveRule(replicated_rule, origin="replicated")
