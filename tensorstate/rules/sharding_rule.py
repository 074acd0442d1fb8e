"""What a rule says of a primitive: which dimensions are one, what is reduced, and how it runs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tensorstate.ir.graph import Kind, Reduce
from tensorstate.rules.local_shard import LocalBlock

Labels = tuple[int | None, ...]


class Argument(NamedTuple):
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
class Signature:
    """An equation in labels, one for each dimension of its arguments and results.

    Dimensions with the same label have the same size and are sharded together. ``None`` stands for
    a dimension of size 1 that is none of the others.

    Attributes:
        kind: see ``tensorstate.ir.graph.Operator``, as for the others.
        arguments, results: labels of every dimension.
        reduced: labels over which it reduces, and how.
        linear: sets of arguments in which it is linear together.
        frozen: labels that cannot be sharded.
        flops: floating-point operations.
    """

    kind: Kind
    arguments: tuple[Labels, ...]
    results: tuple[Labels, ...]
    reduced: Mapping[int, Reduce] = dataclasses.field(default_factory=dict)
    linear: tuple[frozenset[int], ...] = ()
    frozen: frozenset[int] = frozenset()
    flops: int = 0


class Equation(NamedTuple):
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
    outputs: tuple[Argument, ...]


Describe = Callable[[Sequence[Argument], Sequence[Argument], Mapping[str, Any]], Signature]
Run = Callable[[Equation, Sequence[Any], LocalBlock], Sequence[Any]]


def bind(equation: Equation, arrays: Sequence[Any], block: LocalBlock) -> Sequence[Any]:
    """Bind the primitive as it was traced: for those whose parameters name no sizes."""
    return bind_with(equation, arrays)


def bind_with(equation: Equation, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    """Bind the primitive with some parameters changed."""
    out = equation.primitive.bind(*arrays, **{**equation.params, **changed})
    return out if equation.primitive.multiple_results else [out]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How a primitive is read and run.

    Attributes:
        describe: its signature, from whole arguments, results and parameters.
        run: its results on one device's blocks.
        origin: "written" by hand; inferred as "elementwise", or by "dimensions" that JAX's own
            rules show to be independent; or "replicated", for want of anything better.
    """

    describe: Describe
    run: Run = bind
    origin: Literal["written", "elementwise", "dimensions", "replicated"] = "written"


def elements(argument: Argument) -> int:
    """Number of elements."""
    return math.prod(argument.shape)


def is_zero(argument: Argument) -> bool:
    """Whether it is the constant 0."""
    return argument.value is not None and bool(argument.value == 0)


def fresh() -> itertools.count[int]:
    """A source of labels."""
    return itertools.count()


def replicate(
    arguments: Sequence[Argument], results: Sequence[Argument], params: Mapping[str, Any]
) -> Signature:
    """The signature of what is not known: every dimension stands alone and is whole."""
    labels = fresh()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return Signature("opaque", ins, outs, frozen=frozenset(range(next(labels))))


FALLBACK_RULE = Rule(replicate, origin="replicated")
