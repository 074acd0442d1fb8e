"""A function of whole arrays, run by ranks that have parts of them.

The function is traced on whole shapes, so all that it decides by shapes, names or dtypes is as on
one device. Then its operations run one by one on a rank's parts:

- an operation of whole arrays, as it is;
- one that acts on every element by itself, on rows; whole operands are cut;
- a sum or another reduction over all elements, on rows without their padding, and again on the
  results of all ranks;
- a reshape changes what is said of a row, and nothing in it;
- calls and branches, inside;
- any other, as it is, on operands that are gathered before.

The last makes every function right that has a meaning on one device: an operation that is not known
here costs an all_gather of its operands and cannot be wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.primitives import vary
from jaxcoll.training import names_of
from jaxcoll.training.parts import Cut, Part, Ranks, Value, Whole, is_value, whole

# Each element of the result depends on the elements at the same place alone. Operands of an
# operation that is missing here are gathered: too short a list is slow, and too long a one wrong.
_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp clz complex conj
    convert_element_type copy copy_p cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    imag integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter not or
    population_count pow real reduce_precision rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor
    """
_ELEMENTWISE = frozenset(_NAMES.split())

_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim"})


def _limits(dtype) -> tuple[Any, Any]:
    """The least and the largest value of a dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf, jnp.inf
    return (
        (False, True)
        if jnp.issubdtype(dtype, jnp.bool_)
        else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    )


# What padding is for a reduction: an element that changes nothing.
_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda dtype: 0,
    "reduce_prod": lambda dtype: 1,
    "reduce_max": lambda dtype: _limits(dtype)[0],
    "reduce_min": lambda dtype: _limits(dtype)[1],
    "reduce_and": lambda dtype: True,
    "reduce_or": lambda dtype: False,
}


def run(function: Callable, ranks: Ranks, *args: Any) -> Any:
    """The results of a function of whole arrays.

    Args:
        function: a function of pytrees; values that it closes over are the same on all ranks.
        args: pytrees whose entries are a ``Value`` where the function gets an array; others are
            given to it as they are.

    Returns:
        The function's results, a ``Value`` in place of each array; gradients of integers
        (``float0``), which hold nothing, as they are.

    Raises:
        CollectiveError: a result is not the same on all ranks, if ``shard_map`` knows.
    """
    entries, structure = jax.tree.flatten(args, is_leaf=is_value)
    places = [i for i, entry in enumerate(entries) if is_value(entry)]
    results: list[Any] = []
    shaped: list[Any] = []

    def flat(*arrays):
        given = list(entries)
        for i, array in zip(places, arrays, strict=True):
            given[i] = array
        leaves, out = jax.tree.flatten(function(*jax.tree.unflatten(structure, given)))
        shaped.append(out)
        results.extend(leaves)
        return [leaf for leaf in leaves if not _is_static(leaf)]

    closed = jax.make_jaxpr(flat)(*(_type(ranks, entries[i]) for i in places))
    jaxpr, constants = jax_internals.parts_of(closed)
    for atom in jaxpr.outvars:
        over = jax_internals.varying_of(atom.aval)
        if over:
            raise CollectiveError(
                f"the inner optimizer of zero gives an array of shape {atom.aval.shape} that "
                f"varies over axis {min(over)!r}, where its gradients and parameters do not: an "
                "extra argument, as value=, or a value that it closes over is a rank's own. Reduce "
                f"that first, as by jax.lax.pmean(value, {min(over)!r})"
            )
    found = iter(_evaluate(ranks, jaxpr, constants, [entries[i] for i in places]))
    leaves = [leaf if _is_static(leaf) else next(found) for leaf in results]
    return jax.tree.unflatten(shaped[0], leaves)


def _is_static(leaf) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def _type(ranks: Ranks, value: Value) -> jax.ShapeDtypeStruct:
    """The type of a whole array."""
    if isinstance(value, Whole):
        return jax_internals.shape_like(value.shape, value.array)
    held = next(x for x in (value.row, value.block, value.whole) if x is not None)
    same = (*names_of(ranks.axis_name), *value.cut.names)
    return jax_internals.shape_like(value.shape, held, same)


def _evaluate(
    ranks: Ranks, jaxpr, constants: Sequence[Any], operands: Sequence[Value]
) -> list[Value]:
    """The results of a jaxpr."""
    values: dict[Any, Value] = dict(zip(jaxpr.constvars, map(whole, constants), strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom) -> Value:
        if isinstance(atom, jax_internals.Literal):
            return whole(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
        return values[atom]

    for eqn in jaxpr.eqns:
        given = [read(atom) for atom in eqn.invars]
        values.update(zip(eqn.outvars, _results(ranks, eqn, given), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(ranks: Ranks, eqn, given: list[Value]) -> Sequence[Value]:
    """The results of an equation."""
    name, shape = eqn.primitive.name, eqn.outvars[0].aval.shape if eqn.outvars else ()
    if name == "broadcast_in_dim" and given[0].shape == () and isinstance(given[0], Whole):
        return [Whole(given[0].array, shape)]
    cuts = {value.cut for value in given if isinstance(value, Part)}
    if not cuts:
        return _as_it_is(ranks, eqn, given)
    inner = jax_internals.call_of(eqn)
    if inner is not None:
        return _evaluate(ranks, inner.jaxpr, inner.constants, given[inner.operands])
    if name == "cond":
        return _branches(ranks, eqn, given)
    if len(cuts) > 1:
        return _as_it_is(ranks, eqn, given)
    (cut,) = cuts
    if name in _ELEMENTWISE and shape == cut.shape:
        # Newer JAX repeats dimensions of one element by itself.
        given = [_repeated(ranks, value, cut.shape) for value in given]
        result = Part(cut, _run(eqn, [ranks.row(value, cut) for value in given]))
        if all(isinstance(value, Whole) or value.block is not None for value in given):
            # The blocks of parameters are here: results of blocks alone need not be gathered.
            # XLA computes of the two what is used.
            result.block = _run(eqn, [ranks.block(value, cut) for value in given])
        return [result]
    if name in _RESHAPES and len(given) == 1 and math.prod(shape) == math.prod(cut.shape):
        seen = dataclasses.replace(cut, shape=shape)
        return [dataclasses.replace(given[0], cut=seen, whole=None)]
    if name in _NEUTRAL and shape == ():
        return [whole(_reduced(ranks, eqn, cut, given[0]))]
    if name == "dot_general" and _is_inner_product(eqn):
        return [whole(_inner_product(ranks, eqn, cut, given))]
    return _as_it_is(ranks, eqn, given)


def _repeated(ranks: Ranks, value: Value, shape: tuple[int, ...]) -> Value:
    if value.shape in ((), shape):
        return value
    return whole(jnp.broadcast_to(ranks.whole(value), shape))


def _as_it_is(ranks: Ranks, eqn, given: Sequence[Value]) -> Sequence[Value]:
    return [whole(x) for x in jax_internals.run_equation(eqn, [ranks.whole(x) for x in given])]


def _run(eqn, rows: Sequence[jax.Array], **params) -> jax.Array:
    """The result of an equation on rows, typed as varying over the same axes."""
    over = sorted(frozenset().union(*map(jax_internals.varying, rows)))
    operands = [vary(jnp.asarray(x), over) for x in rows]
    (result,) = jax_internals.run_equation(eqn, operands, **params)
    return result


def _without_padding(ranks: Ranks, row: jax.Array, cut: Cut, neutral: Any) -> jax.Array:
    padding = ranks.is_padding(cut)
    return row if padding is None else jnp.where(padding, jnp.asarray(neutral, row.dtype), row)


def _reduced(ranks: Ranks, eqn, cut: Cut, value: Value) -> jax.Array:
    """The reduction over all elements of an array."""
    row = ranks.row(value, cut)
    row = _without_padding(ranks, row, cut, _NEUTRAL[eqn.primitive.name](row.dtype))
    # Gathered and then reduced by every rank: any reduction can be, each with the NaNs of its
    # own, and no rank has other bits than the others.
    parts = ranks.combined(_run(eqn, [row], axes=(0,)), cut)
    return _run(eqn, [parts], axes=(0,))


def _is_inner_product(eqn) -> bool:
    """Whether a product sums over all dimensions of both operands, in their order."""
    (left, right), _ = eqn.params["dimension_numbers"]
    every = tuple(range(len(eqn.invars[0].aval.shape)))
    return eqn.outvars[0].aval.shape == () and tuple(left) == tuple(right) == every


def _inner_product(ranks: Ranks, eqn, cut: Cut, given: Sequence[Value]) -> jax.Array:
    rows = [_without_padding(ranks, ranks.row(value, cut), cut, 0) for value in given]
    over_rows = (((0,), (0,)), ((), ()))
    return ranks.combined(_run(eqn, rows, dimension_numbers=over_rows), cut).sum(0)


def _branches(ranks: Ranks, eqn, given: Sequence[Value]) -> Sequence[Value]:
    """The results of a ``cond``: rows where any branch has a part, whole elsewhere."""
    index, *operands = given
    branches = [
        functools.partial(_evaluate, ranks, *jax_internals.parts_of(branch))
        for branch in eqn.params["branches"]
    ]
    shapes = [jax.eval_shape(branch, operands) for branch in branches]
    kinds = [_Kind.common(values) for values in zip(*shapes, strict=True)]

    def of_kinds(branch, operands):
        return [kind.of(ranks, x) for kind, x in zip(kinds, branch(operands), strict=True)]

    switch = [functools.partial(of_kinds, branch) for branch in branches]
    arrays = lax.switch(ranks.whole(index), switch, operands)
    return [kind.value(x) for kind, x in zip(kinds, arrays, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What all branches return of a value: a row of a cut, or where there is none the whole."""

    cut: Cut | None
    varying: tuple[str, ...]

    @classmethod
    def common(cls, values: Sequence[Value]) -> _Kind:
        cuts = {value.cut for value in values if isinstance(value, Part)}
        arrays = [x for value in values for x in jax.tree.leaves(value)]
        over = frozenset[str]().union(*map(jax_internals.varying, arrays))
        return cls(cuts.pop() if len(cuts) == 1 else None, tuple(sorted(over)))

    def of(self, ranks: Ranks, value: Value) -> jax.Array:
        if self.cut is None:
            return ranks.whole(value)
        return vary(ranks.row(value, self.cut), self.varying)

    def value(self, array: jax.Array) -> Value:
        return whole(array) if self.cut is None else Part(self.cut, array)
