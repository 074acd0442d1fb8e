"""Buckets: which leaves share one, and how many are in flight at once."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.execute.buckets import plan_buckets
from tests.execute.harness import integers, mesh_of, sharded

N, LEAVES = 8, 7


def test_buckets_fill_up_in_order():
    def leaf(elements, dtype: type = np.float32):
        return jax.ShapeDtypeStruct((elements,), dtype)

    leaves = [
        leaf(4), leaf(5), leaf(2, np.float16), leaf(100), leaf(0), leaf(3), leaf(1, np.float16),
    ]  # fmt: skip
    paths = [((i,), x) for i, x in enumerate(leaves)]
    assert plan_buckets(paths, 32) == [[5, 4], [3], [6, 2], [1], [0]]
    assert plan_buckets(paths, 36) == [[5, 4], [3], [6, 2], [1, 0]]
    assert plan_buckets(paths, 32, "tree") == [[0], [1], [3], [4, 5], [2, 6]]
    assert sorted(plan_buckets(paths, 0)) == [[i] for i in range(7)]
    far_first = plan_buckets(paths, 32, lambda path: -path[0])
    assert far_first == plan_buckets(paths, 32)
    assert plan_buckets([], 32) == []


def gradients() -> list[np.ndarray]:
    return [integers((N, 5 + i), np.float32, i) for i in range(LEAVES)]


def reduced(stacked, schedule="bucket", **options) -> Any:
    """The leaves of all ranks averaged, each in a bucket of its own."""
    reduction = jc.optax.all_reduce_gradients("x", schedule=schedule, bucket_bytes=0, **options)
    return reduction.update([leaf[0] for leaf in stacked], optax.EmptyState())[0]


@pytest.mark.parametrize("window", [0, 1, 3, LEAVES - 1, LEAVES, 100])
def test_a_bucket_waits_for_the_one_a_window_before(window):
    mapped = jax.shard_map(
        lambda x: reduced(x, window=window), mesh=mesh_of(N), in_specs=P("x"), out_specs=P()
    )
    eqns = jax.make_jaxpr(mapped)(gradients()).jaxpr.eqns[0].params["jaxpr"].eqns
    maker = {var: i for i, eqn in enumerate(eqns) for var in eqn.outvars}

    def sums_before(i: int) -> set[int]:
        """The all_reduces that equation ``i`` waits for, itself included."""
        found = {i} if eqns[i].primitive.name == "jaxcoll_all_reduce" else set()
        made = [maker[v] for v in eqns[i].invars if not hasattr(v, "val") and v in maker]
        return found.union(*map(sums_before, made))

    sums = [i for i, eqn in enumerate(eqns) if eqn.primitive.name == "jaxcoll_all_reduce"]
    assert len(sums) == LEAVES
    for nth, i in enumerate(sums):
        expected = {i}
        if window:
            expected |= set(sums[nth - window :: -window] if nth >= window else ())
        assert sums_before(i) == expected


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.in_every_run("True")
def test_a_window_changes_no_value_and_no_type(check_vma):
    expected = [leaf.mean(0, keepdims=True)[0] for leaf in gradients()]
    for window in (0, 2):
        run = sharded(
            lambda x, window=window: reduced(x, window=window),
            mesh_of(N),
            P("x"),
            P(),
            check_vma=check_vma,
        )
        for ours, wanted in zip(run(gradients()), expected, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_leaves_that_vary_over_another_axis_keep_to_themselves():
    mesh = mesh_of(4, 2)
    specs = {"both": P(("x", "y")), "first": P("x"), "both too": P(("x", "y"))}
    leaves = {name: integers((8, 3), np.float32, i) for i, name in enumerate(specs)}
    out = {name: P("y") if "both" in name else P() for name in specs}
    for window, nbytes in ((1, 0), (4, 1 << 20)):
        reduction = jc.optax.all_reduce_gradients("x", window=window, bucket_bytes=nbytes)

        def ours(g, reduction=reduction):
            return reduction.update(g, optax.EmptyState())[0]

        a = sharded(ours, mesh, (specs,), out)(leaves)
        b = sharded(lambda g: lax.pmean(g, "x"), mesh, (specs,), out)(leaves)
        for one, other in itertools.zip_longest(jax.tree.leaves(a), jax.tree.leaves(b)):
            np.testing.assert_array_equal(one, other)


def test_a_window_may_be_differentiated_and_mapped():
    def through(x, window):
        def total(leaves):
            return sum((g**2).sum() for g in reduced(leaves, window=window))

        return jax.grad(total)([leaf[:1] for leaf in x])

    run = {w: sharded(lambda x, w=w: through(x, w), mesh_of(N), P("x"), P("x")) for w in (0, 2)}
    for one, other in zip(run[2](gradients()), run[0](gradients()), strict=True):
        np.testing.assert_array_equal(one, other)
