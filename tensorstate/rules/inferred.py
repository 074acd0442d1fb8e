"""Rules for primitives without a written rule, inferred from JAX's batching rules.

JAX's batching rule of a primitive knows which dimensions are independent. Suppose that ``vmap`` of
the primitive over a dimension, given the primitive on slices without that dimension, traces to the
very equation on full arrays. Then every slice along the dimension is computed independently, and
the dimension can be sharded. One dimension after another is removed in this way; the remaining ones
need replication. A device runs ``vmap`` of the primitive on slices without the removed dimensions,
so that JAX adapts parameters that name sizes or dimensions.

A primitive that JAX batches by broadcasting its operands is assumed to be elementwise, without
proof.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jaxcoll import jax_internals
from tensorstate.ir import jaxprs
from tensorstate.rules import elementwise
from tensorstate.rules.sharding_rule import (
    FALLBACK_RULE,
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
    bind,
    label_counter,
    num_elements,
)

# The most pairings of the operands' dimensions that are tried, each by traces of ``vmap``. Three
# operands of rank 4 have 124 pairings; most are skipped, since their sizes differ.
MAX_CANDIDATES = 256


class Layer(NamedTuple):
    """The number, in every operand and result, of a dimension that ``vmap`` maps.

    ``None`` stands for an operand without the dimension.
    """

    operands: tuple[int | None, ...]
    results: tuple[int, ...]


class Slice(NamedTuple):
    """A primitive on one slice: its parameters and operands without the mapped dimensions.

    Attributes:
        params: parameters of the primitive.
        operands, results: their shapes and types.
    """

    params: Mapping[str, Any]
    operands: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]


def infer(
    primitive: Any,
    arguments: Sequence[AbstractArray],
    results: Sequence[AbstractArray],
    params: Mapping[str, Any],
) -> PrimitiveRule:
    """The rule of an equation whose primitive has none; ``FALLBACK_RULE`` if none is found."""
    if jax_internals.broadcasts(primitive) and _broadcast_shape(arguments, results):
        return PrimitiveRule(elementwise.sharding_rule, bind, "elementwise")
    if primitive.name in jaxprs.FOREIGN:
        return FALLBACK_RULE  # their batching rules tell how they are called, not what they do
    if primitive.name in jaxprs.CONTROL_FLOW:
        return FALLBACK_RULE  # vmap replaces their jaxprs, so equations cannot be compared
    operands, outcomes = tuple(map(_struct, arguments)), tuple(map(_struct, results))
    try:
        return _by_dimensions(primitive, operands, outcomes, tuple(params.items()))
    except TypeError:  # unhashable parameters
        return _by_dimensions.__wrapped__(primitive, operands, outcomes, tuple(params.items()))


@functools.lru_cache(1024)
def _by_dimensions(
    primitive: Any, operands, results, params: tuple[tuple[str, Any], ...]
) -> PrimitiveRule:
    layers, last = mapped(primitive, Slice(dict(params), operands, results))
    if not layers:
        return FALLBACK_RULE
    return PrimitiveRule(_describe(layers), _run(primitive, layers, last.params), "dimensions")


def _struct(argument: AbstractArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(argument.shape, argument.dtype)


def _broadcast_shape(arguments: Sequence[AbstractArray], results: Sequence[AbstractArray]) -> bool:
    """Whether all results have the shape to which the operands broadcast."""
    shape = results[0].shape
    return all(result.shape == shape for result in results) and all(
        not argument.shape
        or (
            len(argument.shape) == len(shape)
            and all(n in (1, size) for n, size in zip(argument.shape, shape, strict=True))
        )
        for argument in arguments
    )


# ---------------------------------------------------------------------- the proof


def mapped(primitive: Any, full: Slice) -> tuple[list[Layer], Slice]:
    """The dimensions along which a primitive computes every slice independently, outermost first.

    Returns:
        The dimensions, and the primitive on one slice along all of them.
    """
    # For example, take ``cholesky`` of [8, 4, 4]. For a slice [4, 4], mapped over the first
    # dimension, JAX's batching rule gives cholesky of [8, 4, 4] again, so 8 may be sharded. For a
    # slice [8, 4], mapped over the second or the third dimension, it refuses, so these stay whole.
    layers: list[Layer] = []
    while (peeled := _peeled(primitive, full)) is not None:
        layer, full = peeled
        layers.append(layer)
    return layers, full


def _peeled(primitive: Any, full: Slice) -> tuple[Layer, Slice] | None:
    """A dimension that can be mapped, if any, and the primitive on slices without it."""
    for dims in itertools.islice(_candidates(full.operands), MAX_CANDIDATES):
        operands = tuple(itertools.starmap(_without, zip(full.operands, dims, strict=True)))
        for params in _fewer(full.params, next(d for d in dims if d is not None)):
            batched = _batched(primitive, params, operands, dims, full)
            if batched is not None:
                return batched
    return None


def _candidates(operands: Sequence[jax.ShapeDtypeStruct]) -> Iterator[tuple[int | None, ...]]:
    """Choices of dimensions of equal size, one or ``None`` per operand, fewest ``None`` first."""
    choices = [[*range(len(operand.shape)), None] for operand in operands]
    candidates = []
    for dims in itertools.islice(itertools.product(*choices), 64 * MAX_CANDIDATES):
        pairs = zip(operands, dims, strict=True)
        sizes = {operand.shape[d] for operand, d in pairs if d is not None}
        if len(sizes) == 1 and min(sizes) > 1:
            candidates.append(dims)
    yield from sorted(candidates, key=lambda dims: sum(d is None for d in dims))


def _without(operand: jax.ShapeDtypeStruct, dimension: int | None) -> jax.ShapeDtypeStruct:
    if dimension is None:
        return operand
    shape = (*operand.shape[:dimension], *operand.shape[dimension + 1 :])
    return jax.ShapeDtypeStruct(shape, operand.dtype)


def _fewer(params: Mapping[str, Any], dimension: int) -> Iterator[dict[str, Any]]:
    """Guesses of a slice's parameters: unchanged, with dimensions renumbered, or without a size.

    ``vmap`` of a guess is compared with the full equation afterwards.
    """
    # Nothing tells which of a primitive's parameters number dimensions, and which are sizes. On
    # slices along dimension 0, ``axis=2`` becomes 1 and ``shape=(8, 4)`` becomes (4,). A wrong
    # guess costs only a trace.
    options = []
    for value in params.values():
        guesses = [value]
        if type(value) is int and value > dimension:
            guesses.append(value - 1)
        elif type(value) is tuple and value and all(type(item) in (int, tuple) for item in value):
            guesses.append((*value[:dimension], *value[dimension + 1 :]))
            if all(type(item) is int for item in value):
                guesses.append(tuple(item - (item > dimension) for item in value))
        options.append([guess for k, guess in enumerate(guesses) if guess not in guesses[:k]])
    for chosen in itertools.islice(itertools.product(*options), 64):
        yield dict(zip(params, chosen, strict=True))


def _batched(
    primitive: Any,
    params: Mapping[str, Any],
    operands: tuple[jax.ShapeDtypeStruct, ...],
    dims: tuple[int | None, ...],
    full: Slice,
) -> tuple[Layer, Slice] | None:
    """The layer and its slice, if ``vmap`` of the slice is the full equation; else ``None``."""

    def run(*arrays: Any) -> Any:
        return primitive.bind(*arrays, **params)

    try:
        results = jax.tree.leaves(jax.eval_shape(run, *operands))
        jaxpr, _ = jax_internals.parts_of(jax.make_jaxpr(jax.vmap(run, dims))(*full.operands))
    except Exception:  # a primitive may refuse wrong guesses by any exception
        return None
    equations: list[_Traced] = []
    outputs = _inline(jaxpr, [*jaxpr.invars], equations)
    if not equations:
        return None
    # The equations must be the primitive itself, with the same operands and parameters, followed
    # only by transposes. A batching rule that loops or calls another primitive proves nothing.
    first, *moves = equations
    same = (
        first.primitive is primitive
        and first.inputs == [*jaxpr.invars]
        and _equal(first.params, full.params)
    )
    out_dims = _out_dims(first, moves, outputs) if same else None
    if out_dims is None:
        return None
    shapes = [jax.ShapeDtypeStruct(result.shape, result.dtype) for result in results]
    without = [_without(result, d) for result, d in zip(full.results, out_dims, strict=True)]
    if shapes != without:
        return None
    return Layer(dims, out_dims), Slice(params, operands, tuple(shapes))


def _equal(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    try:
        return a.keys() == b.keys() and all(bool(a[key] == b[key]) for key in a)
    except (TypeError, ValueError):  # arrays among them
        return False


class _Traced(NamedTuple):
    """An equation outside all calls."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: list[Any]
    outputs: list[Any]


def _inline(jaxpr: Any, arguments: Sequence[Any], equations: list[_Traced]) -> list[Any]:
    """Append the equations of a jaxpr, calls inlined, and return its results."""
    names = dict(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jax_internals.Literal) else names.get(atom, atom)

    for eqn in jaxpr.eqns:
        inputs, inner = [read(atom) for atom in eqn.invars], jax_internals.call_of(eqn)
        if inner is None:
            equations.append(_Traced(eqn.primitive, eqn.params, inputs, [*eqn.outvars]))
        else:
            outputs = _inline(inner.jaxpr, inputs[inner.operands], equations)
            names.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _out_dims(
    equation: _Traced, moves: Sequence[_Traced], outputs: Sequence[Any]
) -> tuple[int, ...] | None:
    """The mapped dimension of every result of an equation.

    After the equation, ``vmap`` moves this dimension to the front by transposes. Returns ``None``
    if it does anything else.
    """
    moved: dict[Any, tuple[Any, int]] = {}
    for move in moves:
        if move.primitive.name != "transpose" or move.inputs[0] not in equation.outputs:
            return None
        permutation = tuple(move.params["permutation"])
        first = permutation[0]
        if permutation[1:] != tuple(d for d in range(len(permutation)) if d != first):
            return None
        moved[move.outputs[0]] = move.inputs[0], first
    sources = [moved.get(output, (output, 0)) for output in outputs]
    if [output for output, _ in sources] != equation.outputs:
        return None
    return tuple(dimension for _, dimension in sources)


# ---------------------------------------------------------------------- the rule


def _describe(layers: Sequence[Layer]) -> Callable[..., ShardingRule]:
    def sharding_rule(
        arguments: Sequence[AbstractArray],
        results: Sequence[AbstractArray],
        params: Mapping[str, Any],
    ) -> ShardingRule:
        """A label for every mapped dimension; all others need replication."""
        labels = label_counter()
        names = [next(labels) for _ in layers]

        def labelled(argument: AbstractArray, mapped: Sequence[int | None]) -> tuple[int, ...]:
            remaining = [*range(len(argument.shape))]
            label_of = {}
            for name, dimension in zip(names, mapped, strict=True):
                if dimension is not None:
                    label_of[remaining.pop(dimension)] = name
            return tuple(
                label_of[d] if d in label_of else next(labels) for d in range(len(argument.shape))
            )

        ins = tuple(
            labelled(argument, [layer.operands[k] for layer in layers])
            for k, argument in enumerate(arguments)
        )
        outs = tuple(
            labelled(result, [layer.results[k] for layer in layers])
            for k, result in enumerate(results)
        )
        need_replication = frozenset(range(len(names), next(labels)))
        return ShardingRule(
            "opaque",
            ins,
            outs,
            need_replication=need_replication,
            flops=sum(map(num_elements, results)),
        )

    return sharding_rule


def _run(primitive: Any, layers: Sequence[Layer], params: Mapping[str, Any]):
    def run(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
        def function(*slices: Any) -> tuple[Any, ...]:
            out = primitive.bind(*slices, **params)
            return tuple(out) if primitive.multiple_results else (out,)

        for layer in reversed(layers):
            function = jax.vmap(function, layer.operands, layer.results)
        return function(*arrays)

    return run
