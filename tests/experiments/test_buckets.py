"""Buckets change how often one reduces, not what comes out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.buckets import bucket_shape, reduce_in_buckets


def tree():
    return {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": [jnp.arange(5, dtype=jnp.int32), jnp.float32(7.0)],
        "c": jnp.arange(4, dtype=jnp.bfloat16),
        "empty": jnp.zeros((0, 3)),
    }


@pytest.mark.parametrize("nbytes", [1, 4, 8, 12, 1 << 20])
def test_every_element_is_reduced_once(nbytes):
    calls = []

    def double(bucket):
        assert bucket.ndim == 1
        assert bucket.nbytes <= max(nbytes, bucket.dtype.itemsize)
        calls.append(bucket.dtype)
        return 2 * bucket

    result = reduce_in_buckets(tree(), double, nbytes)
    assert jax.tree.structure(result) == jax.tree.structure(tree())
    for before, after in zip(jax.tree.leaves(tree()), jax.tree.leaves(result), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        np.testing.assert_array_equal(after, 2 * before)
    for dtype, elements in ((jnp.float32, 7), (jnp.int32, 5), (jnp.bfloat16, 4)):
        expected, _ = bucket_shape(elements, jnp.dtype(dtype).itemsize, nbytes)
        assert calls.count(dtype) == expected


def test_a_tree_without_leaves_stays():
    assert reduce_in_buckets({"none": []}, lambda bucket: bucket, 4) == {"none": []}


@pytest.mark.parametrize(
    ("elements", "nbytes", "shape"),
    [(10, 40, (1, 10)), (10, 39, (2, 5)), (11, 16, (3, 4)), (3, 1, (3, 1)), (1, 1000, (1, 1))],
)
def test_buckets_are_equal_and_no_more_than_needed(elements, nbytes, shape):
    assert bucket_shape(elements, 4, nbytes) == shape
