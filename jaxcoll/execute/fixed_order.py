"""Sums in a fixed order, whose bits depend only on the contributions, for ``order="fixed"``.

An element's sum is bracketed in the same way at any place in a buffer: the schedule has one order
of addition (``jaxcoll.simulation.sum_orders``), and XLA is kept from two changes to the additions:

- A product that is summed is rounded first. LLVM contracts a product and a sum into one operation
  that rounds once. That happens on the ranks that add their own contribution, but not on those that
  send it: for ``psum(a * b)`` by ``rhd`` on 8 CPU devices, 277 of 1,000 elements differed from the
  same ones in a buffer of 100,003 (JAX 0.12). ``reduce_precision`` does not prevent it, but a
  barrier does.
- Sums of narrow dtypes are rounded after every addition. XLA may keep the value in float32 between
  two additions.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.schedules import sum_orders

FIXED, INVARIANT = "fixed", "invariant"


def is_fixed(order: str | None) -> bool:
    """Whether ``order=`` asks for a fixed order.

    Raises:
        CollectiveError: it is not "fixed", "invariant" or ``None``.
    """
    if order not in (None, FIXED, INVARIANT):
        raise CollectiveError(
            "order= must be 'fixed', for sums in one order of addition, 'invariant', for "
            f"sums that no order and no number of ranks changes, or None; got {order!r}"
        )
    return order == FIXED


def is_invariant(order: str | None) -> bool:
    """Whether ``order=`` asks for sums that depend neither on an order nor on the number of ranks.

    Raises:
        CollectiveError: as for ``is_fixed``.
    """
    is_fixed(order)
    return order == INVARIANT


def is_fixed_by_lax() -> bool:
    """Whether ``jax.lax`` itself adds every element in one order here, at any size.

    XLA does so between CPU devices of one process: contributions are added in the order of the
    ranks, bfloat16 in float32 (JAX 0.10 and 0.12, tested in ``tests/execute/test_fixed_order.py``).
    Between processes gloo adds chunk by chunk; the order of NCCL and TPUs is not documented.
    """
    return jax_internals.platform() == "cpu" and jax.process_count() == 1


@functools.lru_cache(maxsize=256)
def check_fixed(schedule: Schedule) -> None:
    """Refuse a schedule whose sums depend on the place of an element in the buffer.

    Raises:
        ScheduleError: it adds in several orders.
    """
    orders = sum_orders(schedule)
    if orders > 1:
        raise ScheduleError(
            f"order='fixed' needs a schedule that adds all chunks in one order, and {schedule} has "
            f"{orders}; leave schedule= out, or give 'halving', which has one for any ranks"
        )


def rounded(x: Any) -> Any:
    """The same arrays, as values that XLA cannot merge into the operations that use them."""
    # One barrier per leaf: a common one would make each leaf wait for all others.
    leaves, structure = jax.tree.flatten(x)
    return jax.tree.unflatten(structure, [lax.optimization_barrier(leaf) for leaf in leaves])


def rounded_on_rank(x: jax.Array, rank: jax.Array, target: str) -> jax.Array:
    """``rounded`` for a rank's operand, even if XLA fuses across barriers.

    XLA does not fuse across a conditional, and does not know that ranks are not negative.
    """
    # The other branch is never taken, but must differ, or XLA would drop the conditional.
    if target == "cpu" and jax_internals.FUSES_ACROSS_BARRIERS:
        return lax.cond(rank >= 0, lambda v: v, lax.neg, x)
    return rounded(x)


def add(a: jax.Array, b: jax.Array) -> jax.Array:
    """The sum, rounded to its dtype."""
    total = lax.add(a, b)
    # The type alone does not cause rounding: XLA drops casts of bfloat16 to float32 and back
    # between two additions that it fuses. It keeps reduce_precision.
    if not jnp.issubdtype(total.dtype, jnp.floating) or total.dtype.itemsize >= 4:
        return total
    kept = jnp.finfo(total.dtype)
    return lax.reduce_precision(total, kept.nexp, kept.nmant)


def sum_of_rows(rows: jax.Array) -> jax.Array:
    """The sum over the leading dimension, in the order of the synthesizer ``halving``."""
    # Three rows are added as (0 + 1) + 2: the first half is the larger one.
    rows = rounded(rows)

    def of(start: int, end: int) -> jax.Array:
        if end - start == 1:
            return lax.index_in_dim(rows, start, 0, keepdims=False)
        middle = start + (end - start + 1) // 2
        return add(of(start, middle), of(middle, end))

    return of(0, rows.shape[0])
