"""Gradient transformations that reduce by schedules: ``jc.optax``.

All ``update`` functions, and ``init`` of ``zero``, are called inside ``jax.shard_map`` over a mesh
with the axis they name, and take the gradients of the rank's own part of the batch::

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

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import functions, internals
from jaxcoll.execute.buckets import (
    BUCKET_BYTES,
    Order,
    in_buckets,
    is_void,
)
from jaxcoll.execute.calls import AxisName, UnboundAxisError
from jaxcoll.execute.overlap import overlap
from jaxcoll.execute.primitives import vary
from jaxcoll.execute.schedules import Choice

__all__ = ["BUCKET_BYTES", "ZeroState", "all_reduce_gradients", "overlap", "zero"]


def all_reduce_gradients(
    axis_name: AxisName,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: Order = "reverse",
    lowering: str = "auto",
) -> optax.GradientTransformation:
    """Gradients averaged (or summed) over the ranks of an axis, in buckets.

    In place of ``jax.lax.pmean(gradients, axis_name)``; usually first in an ``optax.chain``. The
    results are typed as the same on all ranks. It has no state.

    Args:
        axis_name: an axis of the mesh, or several.
        schedule: as for ``jc.psum``, run for every bucket.
        mean: whether to divide by the number of ranks.
        bucket_bytes: leaves of one dtype travel together up to this many bytes; 0 for every leaf
            alone, which is for leaves that a mesh axis in Auto mode shards further: joining those
            would make XLA gather them.
        accum_dtype: the dtype in which gradients travel and are added, instead of their own.
        order: in which leaves become available: "reverse", "tree", or a function of a leaf's path
            (``jaxcoll.execute.buckets.plan_buckets``).
        lowering: as for ``jc.psum``.

    Raises:
        CollectiveError: from ``update``: gradients that are the same on all ranks already (see
            above), or what ``jc.psum`` refuses.
    """

    def reduce(x: jax.Array) -> jax.Array:
        wide = x if accum_dtype is None else x.astype(accum_dtype)
        wanted = functions.pmean if mean else functions.psum
        total = wanted(wide, axis_name, schedule=schedule, lowering=lowering)
        return total if accum_dtype is None else total.astype(x.dtype)

    def update(updates, state, params=None):
        del params
        _check_own(updates, axis_name)
        return in_buckets(reduce, updates, bucket_bytes, order), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


# ---------------------------------------------------------------------- sharded optimizers


class ZeroState(NamedTuple):
    """State of an optimizer, of which every rank has its part.

    Attributes:
        inner: state of the inner optimizer for this rank's shards, each array with a leading
            dimension of 1: a rank's row of what is kept on all ranks together.
    """

    inner: Any


def zero(
    axis_name: AxisName,
    inner: optax.GradientTransformation,
    *,
    schedule: Choice = None,
    mean: bool = True,
    bucket_bytes: int = BUCKET_BYTES,
    accum_dtype=None,
    order: Order = "reverse",
    lowering: str = "auto",
) -> optax.GradientTransformationExtraArgs:
    """An optimizer whose state is sharded over an axis (ZeRO, stages 1 and 2).

    Gradients are averaged by a reduce_scatter, which leaves each rank its shard of every leaf; the
    inner optimizer updates that shard alone; an all_gather brings the updates to all ranks. The
    bytes on the wire are those of an all_reduce, the state takes a rank's share of the memory
    (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
    2020, Sec. 5).

    The inner optimizer sees the tree of the parameters, each leaf as the vector of its shard, the
    last one padded with zeros. So it must be elementwise: what it does to an element may depend on
    the leaf (its name, a mask, a label) but not on other elements. Adam, AdamW, SGD, Lion and
    RMSprop are; clipping by global norm, LAMB, Adafactor and noise are not.

    Parameters are the same on all ranks, and so are the updates, in type as well. The state differs
    from rank to rank; its spec is ``P(axis_name)``, whatever is in it::

        init = jax.shard_map(optimizer.init, mesh=mesh, in_specs=P(), out_specs=P("data"))
        state = jax.jit(init)(params)

    Args:
        inner: the optimizer.
        schedule: of reduce_scatter or all_gather, the other being the same one backwards; or what
            else ``jc.psum_scatter`` takes.
        axis_name, mean, bucket_bytes, accum_dtype, order, lowering: as for
            ``all_reduce_gradients``; updates travel in their own dtype.

    Raises:
        CollectiveError: from ``init`` or ``update``: the axis is not bound, or as for
            ``all_reduce_gradients``.
    """
    full = optax.with_extra_args_support(inner)

    def init(params) -> ZeroState:
        return _lift(full.init(own_shards(params)))

    def update(updates, state, params=None, **extra):
        _check_own(updates, axis_name)
        n = _ranks(axis_name)
        shards = in_buckets(scatter, updates, bucket_bytes, order, lambda x: _rows(x, n))
        own = None if params is None else own_shards(params)
        steps, inner_state = full.update(shards, _lower(state), own, **extra)
        rows = in_buckets(gather, steps, bucket_bytes, order, lambda x: x)
        return jax.tree.map(_unrows, rows, updates), _lift(inner_state)

    def own_shards(tree):
        n, rank = _ranks(axis_name), lax.axis_index(axis_name)
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(_rows(x, n), rank, 0, False), tree)

    def scatter(rows: jax.Array) -> jax.Array:
        wide = rows if accum_dtype is None else rows.astype(accum_dtype)
        total = functions.psum_scatter(wide, axis_name, schedule=schedule, lowering=lowering)
        total = total / _ranks(axis_name) if mean else total
        return total if accum_dtype is None else total.astype(rows.dtype)

    def gather(row: jax.Array) -> jax.Array:
        # Ranks of vmap are typed alike as it is.
        to = "invarying" if _tracked(axis_name) else "varying"
        return functions.all_gather(row, axis_name, to=to, schedule=schedule, lowering=lowering)

    def _lift(state) -> ZeroState:
        return ZeroState(
            jax.tree.map(lambda x: vary(jnp.asarray(x), _tracked(axis_name))[None], state)
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _lower(state: ZeroState):
    if not isinstance(state, ZeroState):
        raise CollectiveError(
            f"the state of zero is what its init gave, got {type(state).__name__}"
        )
    return jax.tree.map(lambda x: x[0], state.inner)


def _rows(x, n: int) -> jax.Array:
    """A leaf as n rows, one a rank: shape (n, elements of a shard)."""
    flat = jnp.asarray(x).reshape(-1)
    return jnp.pad(flat, (0, -flat.size % n)).reshape(n, -1)


def _unrows(rows: jax.Array, like) -> jax.Array:
    return rows.reshape(-1)[: np.size(like)].reshape(np.shape(like))


# ---------------------------------------------------------------------- axes


def _names(axis_name: AxisName) -> tuple[str, ...]:
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


def _ranks(axis_name: AxisName) -> int:
    sizes = internals.axis_sizes()
    for name in _names(axis_name):
        if name not in sizes:
            raise UnboundAxisError(
                f"axis {name!r} is not bound here; call init and update of zero inside "
                "jax.shard_map over a mesh that has it as a manual axis"
            )
    return math.prod(sizes[name] for name in _names(axis_name))


def _tracked(axis_name: AxisName) -> tuple[str, ...]:
    """The axes over which values are typed as varying or not: those of the mesh, not of vmap."""
    return tuple(name for name in _names(axis_name) if name in internals.mesh_axes())


def _check_own(gradients, axis_name: AxisName) -> None:
    """Refuse gradients that do not vary over the axes, if ``shard_map`` knows."""
    if not internals.checks_vma():
        return
    names = set(_tracked(axis_name))
    for path, leaf in jax.tree.leaves_with_path(gradients):
        if is_void(leaf):
            continue
        same = names - (internals.varying(leaf) if isinstance(leaf, jax.Array) else frozenset())
        if same:
            named = ", ".join(map(repr, sorted(same)))
            raise CollectiveError(
                f"the gradient {jax.tree_util.keystr(path) or 'given'} is the same on all ranks of "
                f"axis {named} already, so it is not a rank's own: under check_vma, jax.grad sums "
                "over the ranks when the parameters are the same on all of them. Differentiate "
                f"with respect to jax.lax.pcast(params, {axis_name!r}, to='varying'), or call "
                "jax.shard_map with check_vma=False"
            )
