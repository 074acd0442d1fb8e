"""Sums in a fixed order: bit for bit those of one bracketing, wherever an element lies."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError, ScheduleError
from tests.execute.harness import mesh_of, sharded


def numbers(*shape, dtype: Any = np.float32, seed=0) -> np.ndarray:
    """Floats whose sums depend on the order."""
    values = np.random.default_rng(seed).standard_normal(shape) * 10.0
    return values.astype(dtype)  # in NumPy: a conversion by JAX is a program of its own


def tree_sum(rows):
    """The order of ``halving``: first half, the longer one, and second half."""
    if len(rows) == 1:
        return rows[0]
    middle = -(-len(rows) // 2)
    total = tree_sum(rows[:middle]) + tree_sum(rows[middle:])
    return total.astype(rows.dtype)


def differing(a, b) -> int:
    """Elements that are not the same bits."""
    a, b = (np.ascontiguousarray(v) for v in (a, b))
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    bits = f"u{a.dtype.itemsize}"
    return int((a.view(bits) != b.view(bits)).sum())


SAME = P()


def run(function, x, mesh, out=SAME, **options):
    """The result of a function of each rank's row, on the ranks of the axis x."""
    return np.asarray(sharded(lambda v: function(v[0]), mesh, P("x"), out, **options)(x))


FIXED: dict[str, Any] = {"order": "fixed", "schedule": "halving"}


# ---------------------------------------------------------------------- one bracketing


@settings(max_examples=10)
@given(
    n=st.sampled_from([2, 3, 5, 7, 8]),
    size=st.integers(1, 300),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    lowering=st.sampled_from(["ssa", "scan", "auto"]),
)
def test_sums_are_those_of_the_tree(n, size, dtype, lowering):
    x = numbers(n, size, dtype=dtype, seed=size)
    got = run(lambda v: jc.psum(v, "x", lowering=lowering, **FIXED), x, mesh_of(n))
    assert differing(got, tree_sum(x)) == 0


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("size", [3, 1000, 70_000])
@pytest.mark.in_every_run("*-float32-8", "1000-*-5", "70000-bfloat16-2", "3-float16-*")
def test_between_cpu_devices_lax_adds_in_the_order_of_ranks(n, dtype, size):
    """Of whatever size, which is why it may stand in for a schedule there."""
    x = numbers(n, size, dtype=dtype, seed=size)
    wide = x.astype(np.float32) if dtype == "bfloat16" else x
    chain = functools.reduce(np.add, wide).astype(x.dtype)
    assert differing(run(lambda v: jc.psum(v, "x", order="fixed"), x, mesh_of(n)), chain) == 0
    if size % n == 0:
        parts = run(
            lambda v: jc.psum_scatter(v, "x", tiled=True, order="fixed"), x, mesh_of(n), P("x")
        )
        assert differing(parts, chain) == 0


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("order", [{"order": "fixed"}, FIXED])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.in_every_run("False-order1-8", "True-order1-3", "True-order0-8", "False-order0-3")
def test_psum_scatter_and_pmean_agree_with_psum(n, order, check_vma):
    x, mesh = numbers(n, 5 * n), mesh_of(n)
    options = {"check_vma": check_vma}
    total = run(lambda v: jc.psum(v, "x", **order), x, mesh, **options)
    mean = run(lambda v: jc.pmean(v, "x", **order), x, mesh, **options)
    parts = run(lambda v: jc.psum_scatter(v, "x", tiled=True, **order), x, mesh, P("x"), **options)
    assert differing(parts, total) == 0
    # XLA may divide by multiplying by the inverse, which is exact for powers of two only.
    np.testing.assert_allclose(mean, total / np.float32(n), rtol=0 if n == 8 else 2e-7)


def test_groups_add_alike_in_psum_and_psum_scatter():
    x, groups = numbers(8, 36), [(6, 0, 3, 5), (7, 1, 2, 4)]
    for options in ({}, {"schedule": "halving"}):
        kept = {"axis_index_groups": groups, "order": "fixed", **options}

        def both(v, kept=kept):
            total = jc.psum(v, "x", **kept)
            part = jc.psum_scatter(v, "x", tiled=True, **kept)
            return jnp.concatenate([total, part])[None]

        got = run(both, x, mesh_of(8), P("x"))
        for group in groups:
            for place, rank in enumerate(group):
                part = slice(9 * place, 9 * (place + 1))
                assert differing(got[rank, 36:], got[rank, :36][part]) == 0
                assert differing(got[rank, :36], got[group[0], :36]) == 0


def test_groups_add_in_the_order_of_their_ranks():
    x, groups = numbers(8, 33), [(6, 0, 3, 5), (7, 1, 2, 4)]
    psum = functools.partial(jc.psum, axis_name="x", axis_index_groups=groups, **FIXED)
    got = run(lambda v: psum(v)[None], x, mesh_of(8), P("x"))
    for group in groups:
        for rank in group:
            assert differing(got[rank], tree_sum(x[list(group)])) == 0


def test_one_schedule_for_all_groups_of_a_mesh():
    mesh, x = mesh_of(2, 4), numbers(2, 4, 21)
    schedule = jc.axis_schedule(mesh, "y", "all_reduce", jc.synth.Halving())

    def step(v):
        return jc.psum(v[0, 0], "y", schedule=schedule, order="fixed")[None]

    got = np.asarray(sharded(step, mesh, P("x", "y"), P("x"))(x))
    for i in range(2):
        assert differing(got[i], tree_sum(x[i])) == 0


def test_ranks_of_vmap_add_in_the_same_order():
    x = numbers(6, 30)
    total = jax.jit(jax.vmap(lambda v: jc.psum(v, "i", order="fixed"), axis_name="i"))(x)
    parts = jax.vmap(lambda v: jc.psum_scatter(v, "i", tiled=True, order="fixed"), axis_name="i")
    cut = jax.vmap(lambda v: jc.psum_scatter(v, "i", order="fixed"), axis_name="i")
    assert differing(total[0], tree_sum(x)) == 0
    assert differing(np.ravel(jax.jit(parts)(x)), tree_sum(x)) == 0
    assert differing(jax.jit(cut)(x.reshape(6, 6, 5)), tree_sum(x).reshape(6, 5)) == 0


def test_batches_are_one_longer_buffer():
    x = numbers(8, 7, 11)
    batched = run(jax.vmap(lambda v: jc.psum(v, "x", **FIXED)), x, mesh_of(8))
    assert differing(batched, tree_sum(x)) == 0


def test_accum_dtype_is_the_dtype_of_the_order():
    x = numbers(8, 100, dtype="bfloat16")
    got = run(lambda v: jc.psum(v, "x", accum_dtype=jnp.float32, **FIXED), x, mesh_of(8))
    assert differing(got, tree_sum(x.astype(np.float32)).astype(x.dtype)) == 0


def test_64_bits():
    with jax.enable_x64(True):
        x = numbers(5, 77, dtype=np.float64)
        got = run(lambda v: jc.psum(v, "x", **FIXED), x, mesh_of(5))
        assert differing(got, tree_sum(x)) == 0


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradients_are_those_of_any_sum(check_vma):
    """A cast, or a sum in the same order of the cotangents, which here differ between ranks."""
    x, weights = numbers(4, 9), numbers(4, 9, seed=1)

    def gradient(v, w, **order):
        return jax.grad(lambda v: (jc.psum(v, "x", **order) * w).sum())(v)

    def step(v, w):
        return gradient(v[0], w[0], **FIXED)[None], gradient(v[0], w[0])[None]

    specs = (P("x"), P("x"))
    fixed, free = sharded(step, mesh_of(4), specs, specs, check_vma=check_vma)(x, weights)
    np.testing.assert_allclose(fixed, free, rtol=1e-5)
    if not check_vma:
        assert differing(np.asarray(fixed)[0], tree_sum(weights)) == 0


def test_explicit_axes():
    mesh = jax.make_mesh((2, 4), ("y", "x"), (AxisType.Explicit,) * 2, devices=jax.devices()[:8])
    x = numbers(4, 6, 8)
    with jax.set_mesh(mesh):
        given_ = jax.device_put(x, P("x", None, "y"))
        step = jax.shard_map(
            lambda v: jc.psum(v[0], "x", order="fixed", schedule="halving"),
            in_specs=P("x"),
            out_specs=P(),
            axis_names={"x"},
        )
        got = np.asarray(jax.jit(step)(given_))
    assert differing(got, tree_sum(x)) == 0


# ---------------------------------------------------------------------- no size, place or bucket

SIZES = (1, 2, 7, 31, 100, 513, 1000, 4097, 9973, 20_000, 32_768, 50_001, 77_777, 100_000, 150_001)
SIZES += (262_144, 333_333, 500_000, 750_007, 999_999)


def changed(mesh, x, **options) -> int:
    """Elements of x that differ when they are summed in buffers of other sizes, at other places."""

    def psum(v):
        return jc.psum(v, "x", **options)

    whole = run(psum, x, mesh)
    found = np.zeros(whole.shape, bool)
    for size in SIZES:
        start = (x.shape[1] - size) // 2
        here = slice(start, start + size)
        found[here] |= run(psum, x[:, here], mesh) != whole[here]
    return int(found.sum())


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, "halving", "rhd"])
def test_no_element_of_a_million_depends_on_the_buffer(schedule):
    assert changed(mesh_of(8), numbers(8, 10**6), schedule=schedule, order="fixed") == 0


@pytest.mark.slow
def test_ring_changes_a_third_of_a_million_elements():
    """What ``order="fixed"`` is for, and that the count above can fail."""
    assert changed(mesh_of(8), numbers(8, 10**6), schedule="ring") > 300_000


# Sizes of leaves, and bytes of buckets.
LAYOUTS = (((1000,), 1 << 20), ((1, 999), 0), ((250,) * 4, 2000), ((3, 47) * 4 + (800,), 400))


@pytest.mark.parametrize(
    ("schedule", "layouts"),
    [
        (None, LAYOUTS),
        ("halving", LAYOUTS[::3]),
        pytest.param("halving", LAYOUTS, marks=pytest.mark.slow),
    ],
)
@pytest.mark.in_every_run("None-layouts0")
def test_buckets_and_leaves_do_not_matter(schedule, layouts):
    """All layouts of the same numbers, in all buckets, reduced or sharded, and leaf by leaf."""
    x, mesh = numbers(4, 1000), mesh_of(4)

    def leaves_of(v, sizes):
        return jnp.split(v[0], np.cumsum(sizes)[:-1])

    @functools.cache
    def transformed(transformation, sizes):
        def step(v):
            leaves = leaves_of(v, sizes)
            params = [jnp.zeros(len(leaf)) for leaf in leaves]
            state = transformation.init(params)
            return jnp.concatenate(transformation.update(leaves, state, params)[0])

        return np.asarray(sharded(step, mesh, P("x"), P())(x))

    mean = run(lambda v: jc.pmean(v, "x", order="fixed", schedule=schedule), x, mesh)
    kept = {"order": "fixed", "schedule": schedule}
    for sizes, bucket in layouts:
        reduced = jc.optax.all_reduce_gradients("x", bucket_bytes=bucket, **kept)
        assert differing(transformed(reduced, sizes), mean) == 0
        zero = jc.optax.zero("x", optax.identity(), bucket_bytes=bucket, **kept)
        assert differing(transformed(zero, sizes), mean) == 0
        tree = run(
            lambda v, sizes=sizes: jnp.concatenate(
                jc.pmean(jnp.split(v, np.cumsum(sizes)[:-1]), "x", **kept)
            ),
            x,
            mesh,
        )
        assert differing(tree, mean) == 0


@pytest.mark.parametrize("lowering", ["ssa", "scan"])
def test_products_are_rounded_before_they_are_added(lowering):
    """On ranks that send a product and on those that add their own: LLVM contracts the latter."""
    a, b = numbers(8, 1000), numbers(8, 1000, seed=1)
    # Tests compile without LLVM's optimizations, of which this is one.
    options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    step = jax.shard_map(
        lambda a, b: jc.psum(a[0] * b[0], "x", lowering=lowering, **FIXED),
        mesh=mesh_of(8),
        in_specs=P("x"),
        out_specs=P(),
    )
    got = np.asarray(jax.jit(step, compiler_options=options)(a, b))
    assert differing(got, tree_sum(a * b)) == 0


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("schedule", ["ring", "tacos", "direct", jc.synth.Ring()])
def test_schedules_of_several_orders_are_refused(schedule):
    with pytest.raises(ScheduleError, match=r"in one order.* has [0-9]+; .*'halving'"):
        run(lambda v: jc.psum(v, "x", order="fixed", schedule=schedule), numbers(8, 8), mesh_of(8))


@pytest.mark.parametrize(
    "call",
    [
        lambda order: jc.psum(jnp.ones(3), "x", order=order),
        lambda order: jc.pmean(jnp.ones(3), "x", order=order),
        lambda order: jc.psum_scatter(jnp.ones(3), "x", order=order),
        lambda order: jc.optax.all_reduce_gradients("x", order=order),
        lambda order: jc.optax.zero("x", optax.sgd(1.0), order=order),
        lambda order: jc.optax.overlap([lambda p, x: x], jnp.sum, "x", order=order),
    ],
)
@pytest.mark.parametrize("order", ["fixd", "Fixed", "reverse", "", True, 1, jnp.sum])
def test_other_orders_are_refused(call, order):
    with pytest.raises(CollectiveError, match=r"order= must be 'fixed'.* or None; got"):
        call(order)
