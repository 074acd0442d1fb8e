"""The functions with a root: broadcast, and reduce, gather and scatter, which ``jax.lax`` lacks.

Their keywords and their errors are those of ``functions``.
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
    check_accumulates,
    check_divides,
    dimension_of,
    is_handed_on,
    is_symbolic,
    is_vmapped,
    opened,
    summable,
    vary,
)
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.layout import Axes
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks


def pbroadcast(
    x, axis_name: AxisName, source: int, *, schedule: Choice = None, lowering: str = "auto"
):
    """Send the array of rank ``source`` to all ranks of an axis. See ``jax.lax.pbroadcast``.

    Args:
        x: a pytree of arrays.
        schedule: a schedule of broadcast with root ``source``.
    """
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
    """Add the arrays of all ranks of an axis at rank ``root``; other ranks get zeros.

    Args:
        x: a pytree of arrays of any shape.
        schedule: a schedule of reduce with that root.
    """
    return _rooted("reduce", x, axis_name, root, schedule, lowering, accum_dtype)


def gather(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """Stack the arrays of all ranks of an axis at rank ``root``; other ranks get zeros.

    Args:
        x: a pytree of arrays of shape (...).
        schedule: a schedule of gather with that root.

    Returns:
        Arrays of shape (ranks, ...).
    """
    stacked = jax.tree.map(lambda leaf: array(leaf, "gather")[None], x)
    return _rooted("gather", stacked, axis_name, root, schedule, lowering)


def scatter(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """Send the i-th part of the array of rank ``root`` to rank i.

    Args:
        x: a pytree of arrays of shape (ranks, ...); only that of the root matters.
        schedule: a schedule of scatter with that root.

    Returns:
        Arrays of shape (...).
    """
    parts = _rooted("scatter", x, axis_name, root, schedule, lowering)
    return jax.tree.map(lambda part: part.reshape(part.shape[1:]), parts)


def _rooted(kind, x, axis_name, root, schedule, lowering, accum_dtype=None):
    row = KINDS[kind]
    names = opened(axis_name, None, schedule, lowering)
    check_accumulates(accum_dtype, jax.tree.leaves(x), kind)
    # jax.lax has only pbroadcast, so no other function can be handed to it.
    is_handed = row.copies and is_handed_on(names, x)
    if not names or (is_vmapped(names) and not is_handed):
        raise CollectiveError(
            f"{kind} runs over axes of a mesh that are manual in jax.shard_map, got "
            f"{checks.shown(axis_name)}"
        )
    if is_symbolic(x) and not is_handed:
        shapes = sorted({str(np.shape(leaf)) for leaf in jax.tree.leaves(x)})
        raise CollectiveError(
            f"{kind} needs shapes known while tracing, got {', '.join(shapes)}; export for "
            "definite shapes"
        )
    axes = axes_of(names)
    is_index = isinstance(root, (int, np.integer)) and not isinstance(root, bool)
    if not is_index or not 0 <= root < axes.num_ranks:
        raise CollectiveError(
            f"the root of {kind} must be an index of {axes}, a Python integer known while tracing, "
            f"got {checks.shown(root)}"
        )
    if is_handed:
        return _handed_on(x, axes, int(root))
    call = Call(kind, schedule, axes, root=int(root), lowering=lowering, accum_dtype=accum_dtype)

    def one(leaf):
        leaf = summable(leaf, kind) if row.adds else array(leaf, kind)
        if row.ends_with_shard:
            dimension_of(0, leaf.ndim, "the leading dimension", leaf)
            check_divides(leaf, 0, axes.num_ranks, False, f"scatter over {axes}")
        return call(vary(leaf, axes))

    return jax.tree.map(one, x)


def _handed_on(x, axes: Axes, root: int):
    """Broadcast arrays over axes that include some of ``vmap``, or arrays of symbolic shapes."""
    if not is_vmapped(axes.names):
        return lax.pbroadcast(x, axes.names, root)
    # One axis after the other, on each from the root's place on it. Over axes of vmap by a gather,
    # which moves nothing there, because jax.lax.pbroadcast fails under vmap in JAX 0.12.
    for name, place in zip(axes.names, np.unravel_index(root, axes.sizes), strict=True):
        if name in axes.canonical:
            x = pbroadcast(x, name, int(place))
            continue

        def own(leaf, name=name, place=int(place)):
            rows = lax.all_gather(array(leaf, "broadcast"), name)
            return lax.index_in_dim(rows, place, keepdims=False)

        x = jax.tree.map(own, x)
    return x
