"""Sums of gradient leaves: of arrays or lists of them, and whether joining these is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from jaxcoll.execute import functions
from jaxcoll.execute.calls import AxisName, is_by_lax, widened
from jaxcoll.execute.choice.selection import Choice
from jaxcoll.execute.fixed_order import is_fixed


def reduced(
    tree: Any,
    axis_name: AxisName,
    *,
    schedule: Choice,
    mean: bool,
    accum_dtype,
    order: str | None,
    lowering: str = "auto",
) -> Any:
    """The mean or the sum of gradients over the ranks of an axis; a mean is taken before casting.

    Args:
        tree: an array or a pytree of them; others as for ``all_reduce_gradients``.
    """
    wanted = functions.pmean if mean else functions.psum
    wide = jax.tree.map(lambda x: widened(x, accum_dtype), tree)
    total = wanted(wide, axis_name, schedule=schedule, lowering=lowering, order=order)
    if accum_dtype is None:
        return total
    return jax.tree.map(lambda new, old: new.astype(old.dtype), total, tree)


def stay_apart(
    kind: str,
    leaves: Sequence[jax.Array],
    axis_name: AxisName,
    schedule: Choice,
    lowering: str,
    order: str | None,
) -> bool:
    """Whether ``jax.lax`` would run a bucket of leaves, which then are not joined.

    XLA combines the collectives of ``jax.lax`` where it sees fit. Joined leaves are copied twice,
    their bucket takes as much memory again, and the copies take XLA long to compile: zero on 100
    leaves of 0.3 to 160 KB in one bucket took half the time of a step on 8 CPU devices and 5 times
    the compilation; 16 leaves of 1 MiB took 2.4 times the step (``scripts/bench
    training-defaults``). Apart, a program is the one that its author would have written.

    Args:
        kind: of the collective that the bucket is for.
    """
    size = sum(leaf.size for leaf in leaves)
    bucket = jax.ShapeDtypeStruct((size,), leaves[0].dtype)
    return is_by_lax(kind, bucket, axis_name, schedule, lowering, is_fixed(order))
