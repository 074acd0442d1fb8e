"""Gradient transformations that reduce by schedules: ``jc.optax``.

All ``update`` functions are called inside ``jax.shard_map`` over a mesh with the axis they name,
and take the gradients of the rank's own part of the batch::

    optimizer = optax.chain(jc.optax.all_reduce_gradients("data"), optax.adam(1e-3))

**Which gradients are a rank's own.** With ``check_vma=True``, the default of ``jax.shard_map``,
``jax.grad`` with respect to parameters that are the same on all ranks sums over the ranks by
itself: such parameters are cast where they meet the rank's data, and the transpose of that cast is
a sum. It runs as XLA's own all-reduce, leaf by leaf, and nothing remains to be reduced. So
differentiate copies that may differ::

    own = jax.lax.pcast(params, "data", to="varying")
    loss, gradients = jax.value_and_grad(loss_fn)(own, batch)

Gradients that do not vary over the axis are refused, since whether they are sums, means or plain
copies cannot be told. With ``check_vma=False`` there is no such cast, gradients are a rank's own,
and nothing can be checked.
"""

from __future__ import annotations

import optax

from jaxcoll.execute.buckets import BUCKET_BYTES, WINDOW, Order, in_buckets
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.choice.selection import Choice
from jaxcoll.training.leaf_sums import LeafSums, check_options, check_own
from jaxcoll.training.overlap import overlap
from jaxcoll.training.sharded_optimizer import ZeroState, reshard_zero, state_specs, zero

__all__ = [
    "BUCKET_BYTES",
    "WINDOW",
    "ZeroState",
    "all_reduce_gradients",
    "overlap",
    "reshard_zero",
    "state_specs",
    "zero",
]


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: str | None = None,
    leaf_order: Order = "reverse",
    lowering: str = "auto",
    window: int = WINDOW,
) -> optax.GradientTransformation:
    """Gradients averaged (or summed) over the ranks of an axis, in buckets.

    In place of ``jax.lax.pmean(gradients, axis_name)``; usually first in an ``optax.chain``. The
    results are typed as the same on all ranks. It has no state. Where ``jax.lax`` would run a
    bucket, its leaves are not joined: all go to ``jax.lax`` in one call.

    Args:
        axis_name: an axis of the mesh, or several.
        schedule: as for ``jc.psum``, run for every bucket.
        mean: whether to divide by the number of ranks.
        bucket_bytes: leaves of one dtype are sent together up to this many bytes; 0 for every leaf
            alone, which is for leaves that a mesh axis in Auto mode shards further: joining those
            would make XLA gather them.
        accum_dtype: the dtype in which gradients are sent and added, instead of their own.
        order: "fixed" for sums whose bits do not depend on buckets, as for ``jc.psum``.
        leaf_order: in which leaves become available: "reverse", "tree", or a function of a leaf's
            path (``jaxcoll.execute.buckets.plan_buckets``).
        lowering: as for ``jc.psum``.
        window: most buckets in flight at once, each of which holds its buffers; the next one begins
            when the first of them is done. 0 for no limit.

    Raises:
        CollectiveError: an unknown ``order``; from ``update``: gradients that are the same on all
            ranks already (see above), or what ``jc.psum`` refuses.
    """
    check_options(axis_name, mean, bucket_bytes, window)

    sums = LeafSums(axis_name, schedule, mean, accum_dtype, order, lowering)

    def update(updates, state, params=None):
        del params
        check_own(updates, axis_name)
        done = in_buckets(sums, updates, bucket_bytes, leaf_order, window=window, apart=sums.apart)
        return done, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
