"""Beside axes that are not manual nothing is gathered, and results are sharded as those of lax."""

from __future__ import annotations

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


class Scheduled:
    """The functions by a schedule that is none of the defaults."""

    def __getattr__(self, function):
        name = "direct" if function == "all_to_all" else "ring"
        return lambda *a, **k: getattr(jc, function)(*a, schedule=name, **k)


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
@pytest.mark.in_every_run("ssa-*", "scan-psum", "scan-all_to_all")
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


@pytest.mark.parametrize("name", [name for name in CALLS if name != "psum_scatter"])
def test_operands_sharded_over_explicit_axes(name):
    call, spec, out = CALLS[name]
    x = integers((64, 64, 8), np.float32)
    placed = jax.device_put(x, NamedSharding(EXPLICIT, spec))
    ours, theirs = (compiled(call(m), EXPLICIT, spec, out, x) for m in (Scheduled(), lax))
    got, want = ours(placed), theirs(placed)
    np.testing.assert_array_equal(got, want)
    if jax.__version_info__ >= (0, 11):  # before, shard_map itself gathers there, also for lax
        assert not NATIVE.findall(str(ours.as_text()))
    if name != "all_gather new":  # of which lax shards the wrong dimension
        assert got.sharding.is_equivalent_to(want.sharding, got.ndim)


def test_gradients_of_sharded_leaves_stay_where_they_are():
    transformation = jaxcoll.optax.all_reduce_gradients("x", bucket_bytes=0, schedule="ring")
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

    ours, theirs = loss(Scheduled()), loss(lax)
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

    jax.tree.map(np.testing.assert_array_equal, pushed(Scheduled()), pushed(lax))


def test_a_batch_that_vmap_shards_over_an_axis_that_shards_the_operand():
    x = integers((8, 4), np.float32)

    def called(m):
        def inner(v):
            stacked = jnp.stack([v] * 4, axis=-1)
            f = jax.vmap(lambda u: m.psum(u, "x"), in_axes=-1, out_axes=-1, spmd_axis_name="y")
            return f(stacked)

        mapped = jax.shard_map(
            inner, mesh=EXPLICIT, in_specs=P("x"), out_specs=P(), axis_names={"x"}
        )
        return jax.jit(mapped)(jax.device_put(x, NamedSharding(EXPLICIT, P("x", "y"))))

    np.testing.assert_array_equal(called(Scheduled()), called(lax))


THREE = {
    "psum": lambda m, axis: lambda v: m.psum(v, axis),
    "all_gather": lambda m, axis: lambda v: m.all_gather(v, axis, axis=1, tiled=True),
    "psum_scatter": lambda m, axis: (
        lambda v: m.psum_scatter(v, axis, scatter_dimension=1, tiled=True)
    ),
    "all_to_all": lambda m, axis: lambda v: m.all_to_all(v, axis, 2, 1, tiled=True),
}


# Where an axis that shards the operand stands in the mesh before the manual ones, XLA aborts the
# process on a ``shard_map`` inside this one that leaves an axis to XLA.
@pytest.mark.parametrize("name", THREE)
@pytest.mark.parametrize(
    ("axis", "by", "kinds"),
    [("y", "x", "EEE"), ("z", "x", "EEE"), ("z", "y", "EEE"), ("z", "x", "EAE"), ("z", "y", "AEA")],
)
@pytest.mark.in_every_run(
    "z-x-EAE-*", "z-y-AEA-psum", "y-x-EEE-all_gather", "z-y-EEE-all_to_all", "z-x-EEE-psum_scatter"
)
def test_axes_that_stand_after_one_that_shards_the_operand(name, axis, by, kinds):
    x = integers((8, 4, 8), np.float32)

    def called(module, kinds):
        types = tuple({"E": AxisType.Explicit, "A": AxisType.Auto}[kind] for kind in kinds)
        mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=types)
        placed = jax.device_put(x, NamedSharding(mesh, P(axis, by)))
        mapped = jax.shard_map(
            THREE[name](module, axis),
            mesh=mesh,
            in_specs=P(axis),
            out_specs=P(None if name == "psum" else axis),
            axis_names={axis},
        )
        return jax.jit(mapped)(placed)

    np.testing.assert_array_equal(called(Scheduled(), kinds), called(lax, "AAA"))


def along_x(mesh, body):
    """A body that is manual over axis x alone."""
    return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


def test_an_untiled_all_to_all_of_a_dimension_sharded_over_explicit_axes():
    x = integers((2, 2, 4), np.float32)

    def called(m):
        mapped = along_x(EXPLICIT_SQUARE, lambda v: m.all_to_all(v[0], "x", 0, 0)[None])
        return jax.jit(mapped)(jax.device_put(x, NamedSharding(EXPLICIT_SQUARE, P("x", "y"))))

    np.testing.assert_array_equal(called(Scheduled()), called(lax))


def test_blocks_sharded_over_auto_axes_are_gathered_once():
    x = integers((2, 2, 8, 8), np.float32)
    placed = jax.device_put(x, NamedSharding(AUTO_SQUARE, P("x", "y")))

    def called(m):
        mapped = along_x(AUTO_SQUARE, lambda v: m.all_to_all(v[0], "x", 0, 1)[None])
        return jax.jit(mapped).lower(placed).compile()

    ours, theirs = called(Scheduled()), called(lax)
    assert [found[0] for found in NATIVE.findall(str(ours.as_text()))] == ["all-gather"]
    assert sorted(found[0] for found in NATIVE.findall(str(theirs.as_text()))) == [
        "all-gather",
        "all-to-all",
    ]
    np.testing.assert_array_equal(ours(placed), theirs(placed))


@pytest.mark.parametrize("lowering", ["ssa", "scan"])
def test_what_is_cut_and_sharded_over_auto_axes_is_gathered_once(lowering):
    x = integers((64, 64, 8), np.float32)

    def counted(scatter, **options):
        def inner(v):
            return scatter(v, "x", scatter_dimension=1, tiled=True, **options)

        program = compiled(inner, AUTO, P("x", "y"), P("x"), x)
        found = [match[0] for match in NATIVE.findall(str(program.as_text()))]
        return found.count("all-gather"), program(
            jax.device_put(x, NamedSharding(AUTO, P("x", "y")))
        )

    ours, got = counted(jc.psum_scatter, schedule="ring", lowering=lowering)
    theirs, want = counted(lax.psum_scatter)
    assert ours == theirs == 1
    np.testing.assert_array_equal(got, want)
