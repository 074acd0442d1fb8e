"""Arguments of calls that make no use of them, as ``schedule=`` over an axis of ``vmap``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import JaxcollError, execute, synth, topologies
from jaxcoll.errors import CollectiveError
from tests.execute.harness import mesh_of, sharded

SUMS = ("psum", "pmean", "psum_scatter")
OPTIONS = {
    "all_to_all": {"split_axis": 0, "concat_axis": 0},
    "pbroadcast": {"source": 0},
    "reduce": {"root": 0},
    "gather": {"root": 0},
    "scatter": {"root": 0},
}
EVERY = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", *OPTIONS)
ROOTED = ("reduce", "gather", "scatter")

# argument: (what it cannot be, functions that have it)
WRONG = {
    "schedule": ([3, "fastest", synth.Ring, topologies.ring(4), lambda topology: None], EVERY),
    "lowering": (["fastest", None], EVERY),
    "accum_dtype": (["single precision", np.float64], (*SUMS, "reduce")),
    "order": (["any"], SUMS),
    "axis_index_groups": ([[], [[0, 1], [1, 2]], [[0], [1, 2, 3]], [0, 1, 2, 3]], EVERY[:7]),
    "tiled": ([1, "yes"], ("all_gather", "psum_scatter", "all_to_all")),
    "to": (["reduced"], ("all_gather",)),
    "axis": ([1.0, 7], ("all_gather",)),
    "scatter_dimension": ([0.0, 7], ("psum_scatter",)),
    "split_axis": ([1.0, 7], ("all_to_all",)),
    "concat_axis": ([1.0, 7], ("all_to_all",)),
    "source": ([-1, 4, 1.0, True], ("pbroadcast",)),
}
CASES = [
    (function, argument, value)
    for argument, (values, functions) in WRONG.items()
    for value in values
    for function in functions
]
X = jax.ShapeDtypeStruct((4, 4, 4), jnp.float32)


def on_mesh(call):
    mapped = jax.shard_map(
        lambda v: (call(v[0], "x"), v)[1], mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x")
    )
    jax.eval_shape(mapped, X)


def of_constants(call):
    on_mesh(lambda v, axis: call(np.ones(v.shape, v.dtype), axis))


def over_an_axis_of_vmap(call):
    jax.eval_shape(jax.vmap(lambda v: call(v, "x"), axis_name="x"), X)


def over_mixed_axes(call):
    def body(v):
        jax.vmap(lambda u: call(u, ("y", "x")), axis_name="x")(jnp.stack([v[0]] * 2))
        return v

    two = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("y",))
    jax.eval_shape(jax.shard_map(body, mesh=two, in_specs=P("y"), out_specs=P("y")), X)


def of_symbolic_shapes(call):
    (n,) = jax.export.symbolic_shape("n")
    mapped = jax.shard_map(
        lambda v: (call(v[0], "x"), v)[1], mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x")
    )
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((4, 4, n), jnp.float32))


def over_no_axes(call):
    jax.eval_shape(lambda v: call(v, ()), X)


ELSEWHERE = [of_constants, over_an_axis_of_vmap, over_mixed_axes, of_symbolic_shapes, over_no_axes]
# Over no axes nothing is gathered or split, whatever the dimension; and there is no rank to name.
OF_DIMENSIONS = ("axis", "scatter_dimension", "split_axis", "concat_axis", "source")


def refusal(where, call):
    try:
        where(call)
    except JaxcollError as error:
        said = str(error).replace("axes ('y' of 2, 'x' of 2)", "axis 'x' of 4")
        return type(error), said.replace("(4, n)", "(4, 4)")
    return None


@pytest.mark.parametrize("where", ELSEWHERE)
def test_what_is_wrong_on_a_mesh_is_wrong_everywhere(where):
    for function, argument, value in CASES:
        if where is over_no_axes and (argument in OF_DIMENSIONS or function in OPTIONS):
            continue

        def call(v, axis, function=function, argument=argument, value=value):
            options = {**OPTIONS.get(function, {}), argument: value}
            return getattr(execute, function)(v, axis, **options)

        wanted, found = refusal(on_mesh, call), refusal(where, call)
        assert wanted is not None, (function, argument, value)
        if argument == "axis_index_groups" and where is over_no_axes:
            assert found is not None
            assert found[0] is wanted[0]
        else:
            assert found == wanted, (function, argument, value)


# ---------------------------------------------------------------------- accum_dtype

TREE = {
    "half": jnp.bfloat16,
    "float": jnp.float32,
    "complex": jnp.complex64,
    "int": jnp.int32,
    "bool": jnp.bool_,
}


@pytest.mark.parametrize("function", ["psum", "pmean", "psum_scatter", "reduce"])
@pytest.mark.parametrize("schedule", [None, "ring"])
@pytest.mark.in_every_run("None-psum", "ring-pmean", "None-reduce", "ring-psum_scatter")
def test_accum_dtype_is_that_of_the_leaves_of_its_kind(function, schedule):
    options = {"root": 0} if function == "reduce" else {}
    wide = {"accum_dtype": jnp.float32, "schedule": None if function == "reduce" else schedule}

    def called(tree, **more):
        return getattr(execute, function)(tree, "x", **options, **more)

    def both(v):
        kept = [
            name for name in TREE if name != "bool" or function not in ("psum_scatter", "reduce")
        ]
        tree = {name: v[0].astype(TREE[name]) for name in kept}
        alone = {name: called(leaf) for name, leaf in tree.items() if name != "half"}
        alone["half"] = called(tree["half"].astype(jnp.float32)).astype(jnp.bfloat16)
        return jax.tree.map(lambda u: u[None], (called(tree, **wide), alone))

    mapped = sharded(both, mesh_of(4), P("x"), P("x"), check_vma=False)
    got, want = mapped(np.random.default_rng(0).integers(0, 9, (4, 4)).astype(np.float32))
    for name in want:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_array_equal(got[name], want[name])


def test_a_tree_without_a_leaf_of_the_kind_is_refused():
    def call(v):
        return jc.psum({"c": v + 1j, "n": v.astype(int)}, "x", accum_dtype=jnp.float32)

    with pytest.raises(CollectiveError, match="accum_dtype=float32 cannot hold sums of complex64"):
        on_mesh(lambda v, axis: call(v))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("make", ["all_reduce_gradients", "zero"])
def test_gradients_of_several_kinds(make, check_vma):
    if make == "zero":
        transformation = jc.optax.zero("x", optax.identity(), accum_dtype=jnp.float32)
    else:
        transformation = jc.optax.all_reduce_gradients("x", accum_dtype=jnp.float32)

    def step(v):
        own = {"f": v[0].astype(jnp.bfloat16), "c": v[0] * 1j}
        done, _ = transformation.update(own, transformation.init(own))
        return jax.tree.map(lambda u: u[None], done)

    mapped = sharded(step, mesh_of(4), P("x"), P(None), check_vma=check_vma)
    out = mapped(np.arange(16, dtype=np.float32).reshape(4, 4))
    np.testing.assert_array_equal(out["f"][0], [6, 7, 8, 9])
    np.testing.assert_array_equal(out["c"][0], [6j, 7j, 8j, 9j])
    assert out["f"].dtype == jnp.bfloat16


def test_constants_among_gradients_are_those_of_lax():
    seen = {}

    def body(v):
        tree = {"a": 2.5, "b": v, "c": np.int8(3)}
        seen["lax"] = lax.pmean(tree, "x")
        seen["ours"] = jc.optax.all_reduce_gradients("x").update(tree, optax.EmptyState())[0]
        seen["sums"] = jc.optax.all_reduce_gradients("x", mean=False).update(
            tree, optax.EmptyState()
        )[0]
        return v

    mapped = jax.shard_map(
        body, mesh=mesh_of(4), in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((4,), jnp.float32))
    for name in "ac":
        assert (type(seen["ours"][name]), seen["ours"][name]) == (
            type(seen["lax"][name]),
            seen["lax"][name],
        )
    assert isinstance(seen["ours"]["b"], Tracer)
    assert seen["sums"]["a"] == 10


# ---------------------------------------------------------------------- broadcasts on one device


@pytest.mark.parametrize("source", range(3))
def test_pbroadcast_over_an_axis_of_vmap(source):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)

    each = jax.vmap(lambda v: jc.pbroadcast({"a": v, "b": v[0]}, "i", source), axis_name="i")

    got = each(x)
    np.testing.assert_array_equal(got["a"], np.broadcast_to(x[source], x.shape))
    np.testing.assert_array_equal(got["b"], np.broadcast_to(x[source, 0], 3))
    weights = np.arange(12, dtype=np.float32).reshape(3, 4) + 1

    def loss(v):
        return jnp.sum(
            weights * jax.vmap(lambda u: jc.pbroadcast(u, "i", source), axis_name="i")(v)
        )

    wanted = np.zeros_like(x)
    wanted[source] = weights.sum(0)
    np.testing.assert_array_equal(jax.grad(loss)(x), wanted)


# With check_vma jax.lax takes no axis of vmap inside of shard_map (JAX 0.12).
@pytest.mark.parametrize("axes", [("x", "i"), ("i", "x"), ("i", "y", "x")])
def test_pbroadcast_over_axes_of_a_mesh_and_of_vmap(axes):
    sizes = {"x": 4, "y": 2, "i": 3}
    x = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    for source in (0, 5, int(np.prod([sizes[name] for name in axes])) - 1):

        def body(v, source=source):
            inner = jax.vmap(lambda u: jc.pbroadcast(u, axes, source), axis_name="i")
            return inner(v[0, 0])[None, None]

        mapped = sharded(body, mesh_of(4, 2), P("x", "y"), P("x", "y"), check_vma=False)
        places = np.unravel_index(source, [sizes[name] for name in axes])
        at = tuple(
            slice(p := int(places[axes.index(name)]), p + 1) if name in axes else slice(None)
            for name in ("x", "y", "i")
        )
        np.testing.assert_array_equal(mapped(x), np.broadcast_to(x[at], x.shape))
