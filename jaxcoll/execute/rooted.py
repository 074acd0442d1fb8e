"""The collectives with a root: broadcast, reduce, gather and scatter.

Arguments, errors and calls that are handed to ``jax.lax``: as in ``jaxcoll.execute.functions``.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from jaxcoll.errors import CollectiveError
from jaxcoll.execute.calls import (
    AxisName,
    Call,
    array,
    axes_of,
    check_divides,
    dimension_of,
    is_symbolic,
    is_vmapped,
    names_of,
    summable,
    vary,
)
from jaxcoll.execute.choice.selection import Choice
from jaxcoll.numerics import checks


def pbroadcast(
    x, axis_name: AxisName, source: int, *, schedule: Choice = None, lowering: str = "auto"
):
    """The array of rank ``source`` on all ranks of an axis. See ``jax.lax.pbroadcast``.

    Args:
        x: a pytree of arrays.
        schedule: of broadcast with root ``source``.
    """
    if is_symbolic(x):
        return lax.pbroadcast(x, axis_name, source)
    return _rooted("broadcast", x, axis_name, source, schedule, lowering)


broadcast = pbroadcast


def reduce(
    x,
    axis_name: AxisName,
    root: int,
    *,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The sum over the ranks of an axis at rank ``root``, zeros elsewhere.

    Args:
        x: a pytree of arrays of any shape.
        schedule: of reduce with that root.
    """
    return _rooted("reduce", x, axis_name, root, schedule, lowering, accum_dtype)


def gather(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """The arrays of all ranks of an axis, stacked, at rank ``root``; zeros elsewhere.

    Args:
        x: a pytree of arrays of shape (...).
        schedule: of gather with that root.

    Returns:
        Arrays of shape (ranks, ...).
    """
    stacked = jax.tree.map(lambda leaf: array(leaf, "gather")[None], x)
    return _rooted("gather", stacked, axis_name, root, schedule, lowering)


def scatter(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """The i-th part of the array of rank ``root``, at rank i.

    Args:
        x: a pytree of arrays of shape (ranks, ...); only that of the root counts.
        schedule: of scatter with that root.

    Returns:
        Arrays of shape (...).
    """
    parts = _rooted("scatter", x, axis_name, root, schedule, lowering)
    return jax.tree.map(lambda part: part.reshape(part.shape[1:]), parts)


def _rooted(kind, x, axis_name, root, schedule, lowering, accum_dtype=None):
    names = names_of(axis_name)
    if is_vmapped(names) or not names:
        raise CollectiveError(f"{kind} runs over axes of a mesh, got {checks.shown(axis_name)}")
    if is_symbolic(x):
        shapes = sorted({str(np.shape(leaf)) for leaf in jax.tree.leaves(x)})
        raise CollectiveError(f"{kind} needs shapes known while tracing, got {', '.join(shapes)}")
    axes = axes_of(names)
    is_index = isinstance(root, (int, np.integer)) and not isinstance(root, bool)
    if not is_index or not 0 <= root < axes.num_ranks:
        raise CollectiveError(
            f"the root of {kind} must be an index of {axes}, a Python integer known while tracing, "
            f"got {checks.shown(root)}"
        )
    call = Call(kind, schedule, axes, root=int(root), lowering=lowering, accum_dtype=accum_dtype)

    def one(leaf):
        leaf = summable(leaf, kind) if kind == "reduce" else array(leaf, kind)
        if kind == "scatter":
            dimension_of(0, leaf.ndim, "the leading dimension", leaf)
            check_divides(leaf, 0, axes.num_ranks, False, f"scatter over {axes}")
        return call(vary(leaf, axes))

    return jax.tree.map(one, x)
