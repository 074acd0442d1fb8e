"""Reducing a tree of arrays in buckets: few large collectives instead of one for every leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def reduce_in_buckets(tree: Any, reduce: Callable[[jax.Array], jax.Array], nbytes: int) -> Any:
    """The tree with every element reduced.

    Leaves of the same dtype are laid end to end and cut into equal buckets of at most ``nbytes``,
    the last one padded with zeros; each is reduced by one call.

    Args:
        tree: of arrays.
        reduce: an elementwise reduction of a vector over ranks.
        nbytes: largest bytes of a bucket; at least one element is put in each.
    """
    leaves, structure = jax.tree.flatten(tree)
    reduced = list(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        members = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        vector = jnp.concatenate([leaves[i].ravel() for i in members])
        if not vector.size:
            continue
        count, size = bucket_shape(vector.size, dtype.itemsize, nbytes)
        padded = jnp.pad(vector, (0, count * size - vector.size)).reshape(count, size)
        whole = jnp.concatenate([reduce(bucket) for bucket in padded])[: vector.size]
        ends = np.cumsum([leaves[i].size for i in members])[:-1]
        for i, part in zip(members, jnp.split(whole, ends), strict=True):
            reduced[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, reduced)


def bucket_shape(elements: int, itemsize: int, nbytes: int) -> tuple[int, int]:
    """Number of buckets, and elements of each, for a vector of one element at least."""
    count = -(-elements // max(nbytes // itemsize, 1))
    return count, -(-elements // count)
