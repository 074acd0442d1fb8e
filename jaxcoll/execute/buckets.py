"""Buckets: the leaves of a tree in a few vectors, in the order in which they become available.

A collective costs its latency once per call, so small leaves are sent together. A leaf is never
split: it becomes available as a whole. A leaf waits only for the other leaves of its bucket, so the
first buckets can leave while the last gradients are still being computed (Li et al., "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, Sec. 3.2.3).

The program fixes the order of buckets by barriers, which make values wait for others that they do
not depend on. Types are restored behind each barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.primitives import vary
from jaxcoll.numerics import checks


def after(values: list[jax.Array], done: Any) -> list[jax.Array]:
    """``values``, which XLA may use only once ``done``, a pytree of arrays, has been computed."""
    held, _ = lax.optimization_barrier((values, done))
    return typed_like(held, values)


def typed_like(held: Iterable[jax.Array], before: Iterable[jax.Array]) -> list[jax.Array]:
    """Results of a barrier with the types of its operands.

    A barrier of JAX 0.10 types all its results as varying over every axis that any operand varies
    over; the values themselves do not change.
    """
    return [
        same(new, jax_internals.varying(new) - jax_internals.varying(old))
        for new, old in zip(held, before, strict=True)
    ]


def same(x: jax.Array, over: Iterable[str]) -> jax.Array:
    """``x`` typed as the same on all ranks that differ in the mesh axes ``over`` only.

    The caller must know that the value is the same, since nothing checks it.
    """
    wanted = set(over)
    names = tuple(name for name in jax_internals.mesh_axes() if name in wanted)
    if not names:
        return x
    sizes = jax_internals.axis_sizes()
    return _SAME.bind(x, axes=Axes(names, tuple(sizes[name] for name in names), names))


# Only a primitive can declare that a value is the same on all ranks.
_SAME = jax_internals.define(
    "jaxcoll_same",
    shape=lambda shape, **_: shape,
    out_varying=lambda varying, *, axes: varying - set(axes.names),
    transpose=lambda cotangent, *, axes: vary(cotangent, axes.names),
    batch=lambda x, dimension, **params: (_SAME.bind(x, **params), dimension),
    run=lambda x, **_: x,
    platforms={},
)


# The size of PyTorch's DistributedDataParallel: large enough for any network's bandwidth, and small
# enough that the first buckets of a network leave long before its last gradients are computed.
BUCKET_BYTES = 25 * 2**20

# Buckets in flight at once. A step of most schedules uses one or two of a rank's four to six links,
# and none at the ends of a bucket; other buckets in flight use the idle links. More than four
# gained nothing in programs compiled for TPU slices (``scripts/bench targets``), and each holds
# buffers.
WINDOW = 4

Order = str | Callable[[tuple], Any]


def plan_buckets(
    leaves: Sequence[tuple[tuple, Any]], nbytes: int, leaf_order: Order = "reverse"
) -> list[list[int]]:
    """Indices into ``leaves``, bucket by bucket: the leaves that share each bucket.

    Leaves are taken in order. A leaf that would make the open bucket of its dtype larger than
    ``nbytes`` closes it and opens the next. Buckets are sorted by their last leaves. Leaves that
    vary over different mesh axes do not share a bucket, since the result would vary over all of
    these axes, and neither do leaves with weak and strong types.

    Args:
        leaves: the path and array of each leaf, as from ``jax.tree.leaves_with_path``; shapes and
            dtypes are enough.
        nbytes: the most bytes of a bucket with several leaves; 0 gives every leaf its own bucket.
        leaf_order: "reverse", last leaf first, which is about the order in which gradients become
            available; "tree", first leaf first; or a function of a leaf's path whose least value
            comes first.

    Raises:
        CollectiveError: ``nbytes`` is not an integer of at least 0, or the order is unknown.
    """
    nbytes = checks.integer(nbytes, "bucket_bytes", CollectiveError, least=0)
    done: list[list[int]] = []
    opened: dict[tuple, tuple[list[int], int]] = {}
    ordered = _in_order([path for path, _ in leaves], leaf_order)
    for i in ordered:
        leaf = leaves[i][1]
        size = leaf.size * leaf.dtype.itemsize
        # Joining a leaf that Explicit axes shard with other leaves would move its shards.
        if isinstance(leaf, jax.Array) and jax_internals.explicit_sharding(leaf)[1]:
            done.append([i])
            continue
        # A vector of several leaves varies over the axes of all of them, and its type is not weak.
        key: tuple = (leaf.dtype,)
        if isinstance(leaf, jax.Array):
            key += jax_internals.varying(leaf), jax.typeof(leaf).weak_type
        members, filled = opened.pop(key, ([], 0))
        if members and (filled + size > nbytes or nbytes == 0):
            done.append(members)
            members, filled = [], 0
        opened[key] = ([*members, i], filled + size)
    done += [members for members, _ in opened.values()]
    # A bucket is complete when its last leaf is, so the last leaf decides its place in the order.
    position = {i: nth for nth, i in enumerate(ordered)}
    return sorted(done, key=lambda members: position[members[-1]])


def _in_order(paths: list[tuple], leaf_order: Order) -> Sequence[int]:
    if callable(leaf_order):
        return sorted(range(len(paths)), key=lambda i: leaf_order(paths[i]))
    if not isinstance(leaf_order, str) or leaf_order not in ("reverse", "tree"):
        raise CollectiveError(
            "leaf_order must be 'reverse', 'tree' or a function of a path, got "
            f"{checks.shown(leaf_order)}"
        )
    return range(len(paths))[::-1] if leaf_order == "reverse" else range(len(paths))


def in_buckets(
    function: Callable[[jax.Array], jax.Array],
    tree: Any,
    nbytes: int = BUCKET_BYTES,
    leaf_order: Order = "reverse",
    rows: Callable[[jax.Array], jax.Array] | None = None,
    window: int = 0,
    apart: Callable[[list[jax.Array]], bool] = lambda leaves: False,
) -> Any:
    """Apply a function to every leaf of a tree, one bucket after another.

    Args:
        function: applied to every bucket; it must treat each column independently. Without ``rows``
            it keeps shapes, and gets a vector, or the only leaf of a bucket unchanged; with
            ``apart`` it also takes lists.
        tree: a pytree of arrays and numbers; ``float0`` leaves (gradients of integers) stay as they
            are.
        nbytes, leaf_order: as for ``plan_buckets``.
        rows: reshapes each leaf so that shapes differ only in the last dimension, along which they
            are concatenated. Results are split along it and keep that shape.
        window: the most buckets in flight at once: bucket i starts when bucket i - ``window`` is
            complete. 0 means no limit.
        apart: whether the function gets the leaves of a bucket as a list, without copying them;
            without a window it gets the leaves of all such buckets in one call.

    Raises:
        CollectiveError: as for ``plan_buckets``, or ``window`` is not an integer of at least 0.
    """
    checks.function(function, "what is applied to buckets", CollectiveError)
    checks.optional(rows, checks.function, "rows", CollectiveError)
    window = checks.integer(window, "window", CollectiveError, least=0)
    found, structure = jax.tree.flatten_with_path(tree)
    leaves = [leaf if is_void(leaf) else jnp.asarray(leaf) for _, leaf in found]
    kept = [i for i, leaf in enumerate(leaves) if not is_void(leaf)]
    done: list[list[jax.Array]] = []
    alone: list[int] = []
    for members in plan_buckets([(found[i][0], leaves[i]) for i in kept], nbytes, leaf_order):
        here = [leaves[kept[i]] for i in members]
        if apart(here):
            alone += [kept[i] for i in members]
            continue
        # Only the barrier keeps XLA from starting all buckets at once, each with its own buffers.
        if 0 < window <= len(done):
            here = after(here, done[-window])
        if rows is not None:
            results = _side(function, map(rows, here))
        elif len(here) == 1:  # unchanged, since flattening would copy it
            results = [function(here[0])]
        else:
            flat = _side(function, (leaf.reshape(-1) for leaf in here))
            results = [part.reshape(leaf.shape) for part, leaf in zip(flat, here, strict=True)]
        done.append(results)
        for i, result in zip(members, results, strict=True):
            leaves[kept[i]] = result
    if alone:
        shaped = [leaves[i] if rows is None else rows(leaves[i]) for i in sorted(alone)]
        for i, result in zip(sorted(alone), function(shaped), strict=True):  # type: ignore[arg-type]
            leaves[i] = result
    return jax.tree.unflatten(structure, leaves)


def is_void(leaf) -> bool:
    """Whether a leaf is the gradient of an integer, which holds nothing."""
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def _side(function, parts: Iterable[jax.Array]) -> list[jax.Array]:
    parts = list(parts)
    result = function(lax.concatenate(parts, parts[0].ndim - 1))
    ends = np.cumsum([part.shape[-1] for part in parts])
    return jnp.split(result, ends[:-1], axis=-1)
