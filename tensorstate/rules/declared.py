"""Functions whose sharding rule the user declares, by the names of their dimensions.

A kernel is opaque to tracing: nothing says that heads are independent in it, and batching rules
tell only how it is called. A declared kernel is one operator with the labels of the declaration,
and a device runs the function itself on its shards. The function's own gradient is one operator
too: a label that an operand lacks is summed over in the operand's gradient.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcoll import jax_internals
from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.placements import RingStrategy
from tensorstate.rules.ring import Attention, Blocks, attend, attention_of, found, gradients
from tensorstate.rules.sharding_rule import (
    AbstractArray,
    LocalEqn,
    LocalShard,
    PrimitiveRule,
    ShardingRule,
)

# Elements of every dimension on which a function is tried: half of them is still more than one.
TRIED = 4

Names = tuple[str, ...]


class Declaration(NamedTuple):
    """A function of arrays, with the labels of its operands and results.

    Attributes:
        function: returns a tuple.
        operands, results: the label of every dimension.
        whole: labels that every device has as a whole; ``None`` if they are found by trying.
        tried: the declaration that is tried to find them; for a gradient, that of its function.
        summed: labels of operands alone over which the function sums.
        attention: the softmax attention whose queries and keys may be sharded together.
    """

    function: Callable[..., tuple[Any, ...]]
    operands: tuple[Names, ...]
    results: tuple[Names, ...]
    whole: frozenset[str] | None
    tried: Declaration | None = None
    summed: frozenset[str] = frozenset()
    attention: Attention | None = None


def declare(
    function: Callable[..., Any],
    labels: str,
    *,
    whole: str | None = None,
    summed: str = "",
    ring: str = "",
    scale: float | None = None,
    causal: bool | None = None,
) -> Callable[..., Any]:
    """Give a function a rule by which plans shard it; returns the function with that rule.

    Args:
        function: a function of arrays that returns an array or a tuple of them, such as an
            attention kernel or a grouped product. It must run on shards as on whole operands.
        labels: one for every dimension, as in ``"b q h d, b k h d, b k h d -> b q h d"``. A label
            that all results have may be sharded, unless it is ``whole``: along it, every part of a
            result must depend on the same part of the operands that have it, and on the others.
        whole: labels that stay whole, such as ``"k d"``. By default, labels along which the
            function returns other values on halves of small random arrays than on whole ones.
        summed: labels that no result has and that may be sharded: results are then the sums of the
            results on parts of the operands, as over ``"k"`` of a product ``"m k, k n -> m n"``.
        ring: labels of the queries and of the keys of softmax attention, as ``"q k"``, that may be
            sharded together: ring attention. Keys and values then go round the devices. Queries may
            also be sharded alone, even under a causal mask, with all keys gathered. Both cases use
            the products of ``rules.ring``; with whole sequences the function runs.
        scale, causal: those of that attention; by default found with the function on small arrays.

    Raises:
        PlanError: labels are no such pattern, or both whole and summed; or, while a step is traced,
            numbers of dimensions differ, the function does not run on small arrays, or the results
            of one with ``ring`` are not those of softmax attention.
    """
    checks.function(function, "the declared function", PlanError)
    operands, results = _parsed(labels)
    known = {name for names in operands for name in names}
    given = None if whole is None else frozenset(checks.text(whole, "whole", PlanError).split())
    if given is not None and not given <= known:
        raise PlanError(f"whole={whole!r} names {min(given - known)!r}, which {labels!r} lacks")

    added = _summed(summed, operands, results, given or frozenset(), labels)
    attention = _ring(ring, operands, results, given or frozenset(), labels)
    given_scale = checks.optional(scale, checks.positive, "scale", PlanError)
    causal = checks.optional(causal, checks.flag, "causal", PlanError)
    if attention is not None:
        factor = None if given_scale is None else float(given_scale)
        attention = attention._replace(scale=factor, causal=causal)
    elif (given_scale, causal) != (None, None):
        raise PlanError("scale= and causal= are those of an attention declared with ring=")

    @functools.wraps(function)
    def several(*arrays):
        made = function(*arrays)
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    forward = Declaration(several, operands, results, given, None, added, attention)

    call = _differentiable(forward)
    return functools.wraps(function)(lambda *arrays: call(*arrays))


def _differentiable(forward: Declaration) -> Callable[..., Any]:
    """The function, with a gradient that is one operator too."""
    results = forward.results

    # ``custom_vjp`` is needed because the primitive has no rule of differentiation. The gradient is
    # bound as a primitive too, so that it stays one operator; ``jax.vjp`` would trace the inside of
    # the kernel.
    @jax.custom_vjp
    def call(*arrays):
        made = declared_p.bind(*arrays, declaration=forward)
        return tuple(made) if len(results) > 1 else made[0]

    def backward(arrays, cotangents):
        cotangents = cotangents if len(results) > 1 else (cotangents,)
        moved = tuple(k for k, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.inexact))
        gradients = iter(
            declared_p.bind(*arrays, *cotangents, declaration=_transposed(forward, moved))
        )
        return tuple(next(gradients) if k in moved else None for k in range(len(arrays)))

    call.defvjp(lambda *arrays: (call(*arrays), arrays), backward)
    return call


def _parsed(labels: object) -> tuple[tuple[Names, ...], tuple[Names, ...]]:
    """The labels of operands and of results."""
    text = checks.text(labels, "labels", PlanError)
    sides = [[tuple(part.split()) for part in side.split(",")] for side in text.split("->")]
    every = [name for side in sides for names in side for name in names]
    repeated = any(len(set(names)) < len(names) for side in sides for names in side)
    if len(sides) != 2 or repeated or not all(map(str.isidentifier, every)):
        raise PlanError(
            f"labels must name every dimension of operands and results, as "
            f"'b q h d, b k h d, b k h d -> b q h d', got {checks.shown(text)}"
        )
    operands, results = map(tuple, sides)
    unknown = {n for names in results for n in names} - {n for names in operands for n in names}
    if unknown:
        raise PlanError(f"the results of {text!r} have {min(unknown)!r}, which no operand has")
    return operands, results


def _summed(
    summed: object,
    operands: Sequence[Names],
    results: Sequence[Names],
    whole: frozenset[str],
    labels: str,
) -> frozenset[str]:
    """The labels that are summed over, checked."""
    asked = frozenset(checks.text(summed, "summed", PlanError).split() if summed != "" else ())
    of_operands, of_results = ({n for names in side for n in names} for side in (operands, results))
    unfit = asked - (of_operands - of_results - whole)
    if unfit:
        raise PlanError(
            f"summed={summed!r} must name labels of operands that no result of {labels!r} has and "
            f"that do not stay whole, got {min(unfit)!r}"
        )
    return asked


def _ring(
    ring: object,
    operands: tuple[Names, ...],
    results: tuple[Names, ...],
    whole: frozenset[str],
    labels: str,
) -> Attention | None:
    """The attention whose queries and keys are named, checked; ``None`` if none are named."""
    names = tuple(checks.text(ring, "ring", PlanError).split() if ring != "" else ())
    if not names:
        return None
    if names[0] in whole:
        raise PlanError(f"ring={ring!r} shards {names[0]!r}: leave it out of whole=")
    return attention_of(operands, results, names, labels)


@functools.cache
def _transposed(forward: Declaration, moved: tuple[int, ...]) -> Declaration:
    """The gradient of a function with respect to its operands of real numbers."""
    count = len(forward.operands)

    def gradients(*arrays):
        given, cotangents = list(arrays[:count]), arrays[count:]

        def of_moved(*changed):
            for k, x in zip(moved, changed, strict=True):
                given[k] = x
            return forward.function(*given)

        _, pull = jax.vjp(of_moved, *(arrays[k] for k in moved))
        return pull(tuple(cotangents))

    operands = (*forward.operands, *forward.results)
    results = tuple(forward.operands[k] for k in moved)
    attention = forward.attention if len(moved) == count else None
    return Declaration(gradients, operands, results, forward.whole, forward, attention=attention)


# ---------------------------------------------------------------------- the primitive


def _abstract(*operands: Any, declaration: Declaration) -> list[Any]:
    dims = [len(operand.shape) for operand in operands]
    if dims != [len(names) for names in declaration.operands]:
        raise PlanError(
            f"a declared function has operands of {_text(declaration.operands)}, and is called "
            f"with {', '.join(str(list(operand.shape)) for operand in operands)}"
        )
    sizes: dict[str, int] = {}
    for names, operand in zip(declaration.operands, operands, strict=True):
        for name, size in zip(names, operand.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise PlanError(
                    f"a declared function has operands of {_text(declaration.operands)}, and is "
                    f"called with {name} of {sizes[name]} and of {size}"
                )
    structs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    made = jax.eval_shape(declaration.function, *structs)
    if [len(x.shape) for x in made] != [len(names) for names in declaration.results]:
        raise PlanError(
            f"a declared function has results of {_text(declaration.results)}, and returns "
            f"{', '.join(str(list(x.shape)) for x in made)}"
        )
    return made


def _text(sides: Sequence[Names]) -> str:
    return ", ".join(map(" ".join, sides))


def _batch(operands: Sequence[Any], dims: Sequence[Any], *, declaration: Declaration) -> Any:
    """The function itself under ``vmap``: its rule has no label for the new dimension."""
    made = jax.vmap(declaration.function, tuple(dims))(*operands)
    return made, (0,) * len(made)


declared_p = jax_internals.define_function(
    "declared",
    lambda *arrays, declaration: declaration.function(*arrays),
    _abstract,
    _batch,
)

# ---------------------------------------------------------------------- the rule


def sharding_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """The labels of the declaration; labels that a gradient lacks are summed over."""
    declaration: Declaration = params["declaration"]
    tried = declaration.tried or declaration
    whole = declaration.whole
    if whole is None:
        dtypes = tuple(argument.dtype for argument in arguments[: len(tried.operands)])
        whole = _found_whole(tried, dtypes)
    names = dict.fromkeys(itertools.chain.from_iterable(declaration.operands))
    number = {name: k for k, name in enumerate(names)}
    # A label that some result of the function lacks is summed over in a way that only the user
    # knows: a softmax over all keys does not follow from those over parts. It stays whole unless it
    # is ``summed``.
    missing = {n for n in names if any(n not in of_result for of_result in tried.results)}
    whole = whole | (missing - tried.summed)
    attention = declaration.attention
    if attention is not None:
        whole -= {attention.queries}
    # In a gradient this is a plain sum. For "b q h d, b k h d -> b q h d" with a weight "h d", the
    # gradient of the weight is the sum over b and q, which may be sharded, with partial results.
    summed = {n for n in names if any(n not in of_result for of_result in declaration.results)}
    sizes = {
        name: size
        for of_operand, argument in zip(declaration.operands, arguments, strict=True)
        for name, size in zip(of_operand, argument.shape, strict=True)
    }
    operations, counted, unseen, ring = 2, sizes, {}, None
    if attention is not None:
        # Two products forward; in a gradient these two again, and five more.
        operations = 4 if declaration.tried is None else 14
        counted = {n: size for n, size in sizes.items() if n not in (attention.heads or ())[1:]}
        queries, keys = number[attention.queries], number[attention.keys]
        ring = RingStrategy(len(number), queries, keys, 1 if declaration.tried is None else 2)
        unseen = {ring.label: math.gcd(sizes[attention.queries], sizes[attention.keys])}
        _found(declaration, attention, sizes, [argument.dtype for argument in arguments])
    return ShardingRule(
        "einsum",
        tuple(tuple(number[n] for n in of_operand) for of_operand in declaration.operands),
        tuple(tuple(number[n] for n in of_result) for of_result in declaration.results),
        {number[n]: "sum" for n in summed - whole},
        need_replication=frozenset(number[n] for n in whole),
        flops=operations * math.prod(counted.values()),
        unseen=unseen,
        pairing=ring,
    )


@functools.cache
def _found_whole(declaration: Declaration, dtypes: tuple[np.dtype, ...]) -> frozenset[str]:
    """The labels of all results along which halves do not give the halves of the results."""
    # The function is tried on numbers, since no jaxpr of a kernel would tell. Integers are indices
    # or
    # masks: 0 or 1 is within the bounds of everything they may index.
    draw = np.random.default_rng(0)
    arrays = [
        (
            draw.integers(0, 2, [TRIED] * len(names))
            if dtype.kind in "biu"
            else draw.normal(size=[TRIED] * len(names))
        ).astype(dtype)
        for names, dtype in zip(declaration.operands, dtypes, strict=True)
    ]
    everywhere = set(declaration.results[0]).intersection(*declaration.results)
    attention = declaration.attention
    # Half of the heads of queries do not fit all heads of keys.
    grouped = frozenset(attention.heads or ()) if attention is not None else frozenset[str]()
    everywhere -= grouped
    try:
        run = jax.jit(declaration.function)  # one program: a single operation compiles as long
        full = run(*arrays)
        found = {n for n in everywhere if not _independent(declaration, run, arrays, full, n)}
        return grouped | found
    except Exception as error:  # from a kernel that does not take these sizes or devices
        name = getattr(declaration.function, "__name__", "the function")
        raise PlanError(
            f"{name}, declared as {_text(declaration.operands)} -> {_text(declaration.results)}, "
            f"does not run on arrays of {TRIED} elements per dimension, by which the labels that "
            f"stay whole are found: name them by whole= ({error})"
        ) from error


def _independent(
    declaration: Declaration,
    run: Callable[..., Collection[Any]],
    arrays: Sequence[np.ndarray],
    full: Collection[Any],
    name: str,
) -> bool:
    """Whether halves along a label give the halves of all results."""
    parts = []
    for half in (slice(None, TRIED // 2), slice(TRIED // 2, None)):
        pairs = zip(arrays, declaration.operands, strict=True)
        mine = [x[tuple(half if n == name else slice(None) for n in names)] for x, names in pairs]
        parts.append(run(*mine))
    for names, whole, *halves in zip(declaration.results, full, *parts, strict=True):
        joined = np.concatenate(halves, axis=names.index(name)).astype(np.float64)
        if not np.allclose(joined, np.asarray(whole, np.float64), rtol=1e-2, atol=1e-3):
            return False
    return True


def _run_local(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    declaration: Declaration = equation.params["declaration"]
    a = declaration.attention
    if a is None:
        return declaration.function(*arrays)
    names = itertools.chain.from_iterable(declaration.operands)
    every = itertools.chain.from_iterable(equation.arguments)
    labels = dict(zip(names, every, strict=True))
    sizes = {name: shard.global_size(of_name) for name, of_name in labels.items()}
    a = _found(declaration, a, sizes, [x.dtype for x in arrays])
    # The user's kernel counts queries from 0: on a shard of them its causal mask would be wrong.
    if not (shard.ring or (a.causal and shard.is_sharded(labels[a.queries]))):
        return declaration.function(*arrays)
    blocks = Blocks(shard.global_indices(labels[a.queries]), shard.ring)
    if declaration.tried is None:
        return [attend(a, arrays, blocks)]
    return gradients(a, arrays[:-1], arrays[-1], blocks)


def _found(
    declaration: Declaration, a: Attention, sizes: Mapping[str, int], dtypes: Sequence[np.dtype]
) -> Attention:
    """The attention of a declaration, for operands of these sizes and dtypes."""
    function = (declaration.tried or declaration).function
    return found(a, function, tuple(sizes.items()), tuple(dtypes[:3]))


RULES: dict[str, PrimitiveRule] = {"declared": PrimitiveRule(sharding_rule, _run_local)}
