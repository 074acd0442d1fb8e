"""Beside axes that are not manual nothing is gathered, and results are sharded as those of lax."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll
import jaxcoll as jc
from jaxcoll import CollectiveError
from tests.execute.harness import integers

AUTO = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
AUTO_SQUARE = jax.make_mesh(
    (2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
)
EXPLICIT_SQUARE = jax.make_mesh(
    (2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4]
)
NATIVE = re.compile(r" (all-gather|all-reduce|all-to-all|reduce-scatter)(-start)?\(")

# name: (function of a module, spec of the operand, spec of the result beside "y")
CALLS = {
    "psum": (lambda m: lambda v: m.psum(v, "x"), P("x", "y"), P(None)),
    "psum across": (lambda m: lambda v: m.psum(v, "x"), P(("x", "y")), P(None)),
    "pmean": (lambda m: lambda v: m.pmean(v, "x"), P("x", None, "y"), P(None)),
    "pmax": (lambda m: lambda v: m.pmax(v, "x"), P("x", "y"), P(None)),
    "all_gather": (lambda m: lambda v: m.all_gather(v, "x", tiled=True), P("x", "y"), P("x")),
    "all_gather new": (lambda m: lambda v: m.all_gather(v, "x"), P("x", "y"), P("x")),
    "psum_scatter": (lambda m: lambda v: m.psum_scatter(v, "x", tiled=True), P("x", "y"), P("x")),
    "all_to_all": (lambda m: lambda v: m.all_to_all(v, "x", 0, 2, tiled=True), P("x", "y"), P("x")),
}


def compiled(function, mesh, spec, out, x):
    manual = P("x", *(None,) * (x.ndim - 1))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=manual, out_specs=out, axis_names={"x"})
    return jax.jit(mapped).lower(jax.device_put(x, NamedSharding(mesh, spec))).compile()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("lowering", ["ssa", "scan"])
def test_nothing_is_gathered_over_auto_axes(name, lowering):
    call, spec, out = CALLS[name]
    x = integers((64, 64, 8), np.float32)

    class Ours:
        def __getattr__(self, function):
            return lambda *a, **k: getattr(jc, function)(*a, lowering=lowering, **k)

    ours, theirs = (compiled(call(m), AUTO, spec, out, x) for m in (Ours(), lax))
    assert not NATIVE.findall(str(ours.as_text()))
    placed = jax.device_put(x, NamedSharding(AUTO, spec))
    got, want = ours(placed), theirs(placed)
    np.testing.assert_array_equal(got, want)
    # lax.all_to_all gathers over "y"; otherwise results are sharded in the same way.
    if name != "all_to_all":
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim)
    assert got.addressable_shards[0].data.size <= want.addressable_shards[0].data.size


class ByDirect:
    """The functions of ``jc`` by a schedule of permutes."""

    def __getattr__(self, function):
        return functools.partial(getattr(jc, function), schedule="direct")


@pytest.mark.parametrize("module", [jc, ByDirect()], ids=["default", "direct"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "psum_scatter"])
def test_operands_sharded_over_explicit_axes(name, module):
    call, spec, out = CALLS[name]
    x = integers((64, 64, 8), np.float32)
    placed = jax.device_put(x, NamedSharding(EXPLICIT, spec))
    ours, theirs = (compiled(call(m), EXPLICIT, spec, out, x) for m in (module, lax))
    got, want = ours(placed), theirs(placed)
    np.testing.assert_array_equal(got, want)
    if jax.__version_info__ >= (0, 11):  # before, shard_map itself gathers there, also for lax
        natives = [len(NATIVE.findall(str(each.as_text()))) for each in (ours, theirs)]
        assert natives[0] <= (natives[1] if module is jc else 0)
    if name != "all_gather new":  # of which lax shards the wrong dimension
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim)


def test_gradients_of_sharded_leaves_stay_where_they_are():
    transformation = jaxcoll.optax.all_reduce_gradients("x", bucket_bytes=0, schedule="bucket")
    x = integers((64, 64), np.float32)

    def step(v):
        reduced, _ = transformation.update({"w": v}, transformation.init({}))
        return jax.tree.leaves(reduced)[0]

    program = compiled(step, AUTO, P("x", "y"), P(None), x)
    assert not NATIVE.findall(str(program.as_text()))
    assert jax.tree.leaves(program.output_shardings)[0].spec == P(None, "y")


def test_derivatives_beside_auto_axes():
    x = integers((64, 64, 8), np.float32)

    def loss(m):
        def inner(v):
            return m.psum(jnp.sum(jnp.cos(m.all_gather(v, "x", tiled=True))), "x")

        f = jax.shard_map(inner, mesh=AUTO, in_specs=P("x"), out_specs=P(), axis_names={"x"})
        return jax.jit(jax.grad(f))(jax.device_put(x, NamedSharding(AUTO, P("x", "y"))))

    ours, theirs = loss(jc), loss(lax)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert ours.sharding.spec == P("x", "y")


def test_a_tangent_need_not_be_sharded_as_the_operand():
    x = jax.device_put(integers((8, 4), np.float32), NamedSharding(EXPLICIT, P("x", "y")))

    def pushed(m):
        def inner(v):
            tangent = lax.pcast(jnp.ones(v.shape), "x", to="varying")
            return jax.jvp(lambda u: m.psum(u, "x"), (v,), (tangent,))

        mapped = jax.shard_map(
            inner, mesh=EXPLICIT, in_specs=P("x"), out_specs=P(), axis_names={"x"}
        )
        return jax.jit(mapped)(x)

    jax.tree.map(np.testing.assert_array_equal, pushed(jc), pushed(lax))


def test_a_batch_is_not_sharded_over_an_axis_that_shards_the_operand():
    def inner(v):
        stacked = jnp.stack([v, v], axis=-1)
        f = jax.vmap(lambda u: jc.psum(u, "x"), in_axes=-1, spmd_axis_name="y")
        return f(stacked)

    like = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(EXPLICIT, P("x", "y")))
    mapped = jax.shard_map(inner, mesh=EXPLICIT, in_specs=P("x"), out_specs=P(), axis_names={"x"})
    with pytest.raises(CollectiveError, match="already; leave them out of its spmd_axis_name"):
        jax.eval_shape(mapped, like)


def test_an_untiled_all_to_all_of_a_dimension_sharded_over_explicit_axes():
    x = integers((2, 2, 4), np.float32)

    def called(m):
        mapped = jax.shard_map(
            lambda v: m.all_to_all(v[0], "x", 0, 0)[None],
            mesh=EXPLICIT_SQUARE,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
        )
        return jax.jit(mapped)(jax.device_put(x, NamedSharding(EXPLICIT_SQUARE, P("x", "y"))))

    np.testing.assert_array_equal(called(jc), called(lax))


def test_blocks_sharded_over_auto_axes_are_gathered_once():
    x = integers((2, 2, 8, 8), np.float32)
    placed = jax.device_put(x, NamedSharding(AUTO_SQUARE, P("x", "y")))

    def called(m):
        mapped = jax.shard_map(
            lambda v: m.all_to_all(v[0], "x", 0, 1)[None],
            mesh=AUTO_SQUARE,
            in_specs=P("x"),
            out_specs=P("x"),
            axis_names={"x"},
        )
        return jax.jit(mapped).lower(placed).compile()

    ours, theirs = called(ByDirect()), called(lax)
    assert [found[0] for found in NATIVE.findall(str(ours.as_text()))] == ["all-gather"]
    assert sorted(found[0] for found in NATIVE.findall(str(theirs.as_text()))) == [
        "all-gather",
        "all-to-all",
    ]
    np.testing.assert_array_equal(ours(placed), theirs(placed))
