"""Buckets: the leaves of a tree in few vectors, in the order in which they become available.

A collective costs latency once a call, so small leaves travel together. A leaf is never divided: it
becomes available as a whole, and JAX orders a call after everything in its vector. What the gradient
of a later layer waits for is thus the leaves of its own bucket and no others (Li et al., "PyTorch
Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, Sec. 3.2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import internals

# Of PyTorch's DistributedDataParallel; large enough for any network's bandwidth, and small enough
# that the first buckets of a network leave long before its last gradients are there.
BUCKET_BYTES = 25 * 2**20

Order = str | Callable[[tuple], Any]


def plan_buckets(
    leaves: Sequence[tuple[tuple, jax.Array]], nbytes: int, order: Order = "reverse"
) -> list[list[int]]:
    """Which leaves share a bucket: indices into ``leaves``, bucket by bucket.

    Leaves are taken in order. One that would make the open bucket of its dtype larger than
    ``nbytes`` closes it and opens the next. Buckets come in the order in which they close.

    Args:
        leaves: (path, array) of each leaf, as ``jax.tree.leaves_with_path`` gives them; shapes and
            dtypes are enough.
        nbytes: most bytes of a bucket of several leaves; 0 puts every leaf in one of its own.
        order: "reverse", last leaf first, which is about the order in which gradients become
            available; "tree", first leaf first; or a function of a leaf's path whose least value
            comes first.

    Raises:
        CollectiveError: ``nbytes`` is no integer of at least 0, or an unknown order.
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise CollectiveError(f"bucket_bytes must be an integer of at least 0, got {nbytes!r}")
    done: list[list[int]] = []
    opened: dict[Any, tuple[list[int], int]] = {}
    for i in _in_order([path for path, _ in leaves], order):
        leaf = leaves[i][1]
        size = leaf.size * leaf.dtype.itemsize
        if not _can_share(leaf):
            done.append([i])
            continue
        members, filled = opened.pop(leaf.dtype, ([], 0))
        if members and (filled + size > nbytes or nbytes == 0):
            done.append(members)
            members, filled = [], 0
        opened[leaf.dtype] = ([*members, i], filled + size)
    return done + [members for members, _ in opened.values()]


def _in_order(paths: list[tuple], order: Order) -> Sequence[int]:
    if order == "reverse":
        return range(len(paths))[::-1]
    if order == "tree":
        return range(len(paths))
    if callable(order):
        return sorted(range(len(paths)), key=lambda i: order(paths[i]))
    raise CollectiveError(f"order is 'reverse', 'tree' or a function of a path, got {order!r}")


def _can_share(leaf) -> bool:
    """Whether a leaf may be laid beside others: joining those sharded further would move them."""
    return not isinstance(leaf, jax.core.Tracer) or not internals.explicit_sharding(leaf)[1]


def in_buckets(
    function: Callable[[jax.Array], jax.Array],
    tree: Any,
    nbytes: int = BUCKET_BYTES,
    order: Order = "reverse",
) -> Any:
    """The tree with a function applied to every element, a bucket at a time.

    Args:
        function: elementwise (over the ranks of an axis, say); from an array to one of its shape.
            It sees vectors, or the only leaf of a bucket as it is.
        tree: of arrays and numbers; ``float0`` leaves (gradients of integers) stay as they are.
        nbytes, order: as for ``plan_buckets``.
    """
    found, structure = jax.tree.flatten_with_path(tree)
    leaves = [leaf if _is_void(leaf) else jnp.asarray(leaf) for _, leaf in found]
    kept = [i for i, leaf in enumerate(leaves) if not _is_void(leaf)]
    for members in plan_buckets([(found[i][0], leaves[i]) for i in kept], nbytes, order):
        here = [kept[i] for i in members]
        parts = _apart(function(_joined([leaves[i] for i in here])), [leaves[i] for i in here])
        for i, part in zip(here, parts, strict=True):
            leaves[i] = part
    return jax.tree.unflatten(structure, leaves)


def _is_void(leaf) -> bool:
    return getattr(leaf, "dtype", None) == jax.dtypes.float0


def _joined(leaves: list[jax.Array]) -> jax.Array:
    return leaves[0] if len(leaves) == 1 else lax.concatenate([x.reshape(-1) for x in leaves], 0)


def _apart(vector: jax.Array, like: list[jax.Array]) -> list[jax.Array]:
    if len(like) == 1:
        return [vector]
    parts = split_columns(vector, [leaf.size for leaf in like])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True)]


def split_columns(x: jax.Array, sizes: Sequence[int]) -> list[jax.Array]:
    """Consecutive parts of the last dimension, of the given sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(lax.slice_in_dim(x, start, start + size, axis=-1))
        start += size
    return parts
