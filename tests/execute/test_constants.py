"""Constants keep their types: what Python numbers, NumPy arrays and weak types become."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import mesh_of, sharded


def inside(function, **options):
    """What ``function`` gives for an operand, while it is traced over an axis of eight."""
    seen = []

    def body(v):
        seen.append(function(v))
        return v

    f = jax.shard_map(body, mesh=mesh_of(8), in_specs=P("x"), out_specs=P("x"), **options)
    jax.eval_shape(f, jax.ShapeDtypeStruct((8,), jnp.float32))
    return seen[0]


def test_the_size_of_an_axis_is_an_int():
    assert type(inside(lambda v: jc.psum(1, "x"))) is int
    assert inside(lambda v: (jc.psum(1, "x"), jc.psum(2.5, "x"))) == (8, 20.0)
    assert inside(lambda v: jc.pmean(1, "x")) == 1.0
    assert inside(lambda v: [0] * jc.axis_size("x")) == [0] * 8
    assert inside(lambda v: jc.psum(1, "x", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])) == 4
    tree = inside(lambda v: jc.psum({"a": 1, "b": np.float32(2)}, "x"))
    assert tree == {"a": 8, "b": 16}
    assert tree["b"].dtype == np.float32


@pytest.mark.parametrize("check_vma", [True, False])
def test_products_with_constants_keep_their_dtypes(check_vma):
    def products(m):
        return lambda v: (
            v.astype(jnp.bfloat16) * m.psum(2.5, "x"),
            v.astype(jnp.int8) * m.psum(1, "x"),
            v.astype(jnp.float16) * m.pmean(2.5, "x"),
            v.astype(jnp.float16) * m.all_gather(2.5, "x")[0],
        )

    ours, theirs = (inside(products(m), check_vma=check_vma) for m in (jc, lax))
    for got, want in zip(ours, theirs, strict=True):
        assert (got.dtype, jax.typeof(got)) == (want.dtype, jax.typeof(want))
    assert [str(v.dtype) for v in ours] == ["bfloat16", "int8", "float16", "float16"]


@pytest.mark.parametrize("check_vma", [True, False])
def test_weak_types_survive_where_those_of_lax_do(check_vma):
    def calls(m):
        def each(v):
            weak, wide = lax.broadcast(2.5, ()), lax.broadcast(2.5, (8,))
            return (
                m.psum(weak, "x"),
                m.psum({"a": weak, "b": v, "c": weak}, "x"),
                m.pmean(weak, "x"),
                m.pmax(weak, "x"),
                m.all_gather(weak, "x"),
                m.psum_scatter(wide, "x"),
                m.all_to_all(wide, "x", 0, 0),
            )

        return lambda v: jax.tree.leaves(each(v))

    ours, theirs = (inside(calls(m), check_vma=check_vma) for m in (jc, lax))
    assert [v.weak_type for v in ours] == [v.weak_type for v in theirs]
    assert any(v.weak_type for v in ours)


# ---------------------------------------------------------------------- trees

DTYPES = ("bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64")
SHAPES = st.sampled_from([(), (2,), (0, 2)])


@st.composite
def leaf(draw):
    """What makes a leaf of the array that is traced; all but the last kind are constants."""
    kind = draw(st.sampled_from(["python", "scalar", "numpy", "jax", "weak", "traced", "traced"]))
    if kind == "python":
        constant = draw(st.sampled_from([0, 1, 3, True, 0.5, 2.5, -1.25, 2j]))
        return lambda v: constant
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    if kind == "traced":
        return lambda v: lax.broadcast(v[0], shape).astype(dtype)
    value = np.ones((), jnp.dtype(dtype))[()] if kind == "scalar" else np.ones(shape, dtype)
    if kind == "jax":
        value = jnp.asarray(value)
    if kind == "weak":
        value = jnp.broadcast_to(draw(st.sampled_from([1, 2.5])), shape)
    return lambda v: value


TREES = st.recursive(
    leaf(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    ),
    max_leaves=5,
)


def built(tree, v):
    return jax.tree.map(lambda make: make(v), tree)


def described(x):
    """All that a program can tell of a result: its kind and type, and the value of a constant."""
    if isinstance(x, Tracer):
        aval = jax.typeof(x)
        return "traced", aval.shape, str(aval.dtype), aval.weak_type, aval.mat.varying
    kind = jax.Array if isinstance(x, jax.Array) else type(x)
    weak = isinstance(x, jax.Array) and x.weak_type
    return kind, np.shape(x), str(np.asarray(x).dtype), weak, np.asarray(x).tolist()


CONTEXTS = {
    "shard_map": ("x", {}),
    "unchecked": ("x", {"check_vma": False}),
    "several axes": (("y", "x"), {}),
    "jit": ("x", {"jit": True}),
    "vmap within": ("x", {"vmap": "i"}),
    # With check_vma jax.lax takes no axis of vmap inside of shard_map (JAX 0.12).
    "axis of vmap": ("i", {"vmap": "i", "check_vma": False}),
    "mixed axes": (("x", "i"), {"vmap": "i", "check_vma": False}),
}
GROUPS = {None: None, "groups": [[0, 2], [1, 3]]}


def in_context(context, body):
    """Traces ``body`` of a vector over axes x and y of 4 and 2; returns a function of its axis."""
    _, options = CONTEXTS[context]
    inner = body
    if "vmap" in options:
        inner = lambda v: jax.vmap(body, axis_name="i")(jnp.stack([v, v, v]))[0]  # noqa: E731
    if "jit" in options:
        inner = jax.jit(inner)
    mapped = jax.shard_map(
        inner,
        mesh=mesh_of(4, 2),
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
        check_vma=options.get("check_vma", True),
    )
    jax.eval_shape(mapped, jax.ShapeDtypeStruct((8,), jnp.float32))


@settings(max_examples=60, deadline=None)
@given(
    TREES,
    st.sampled_from(["psum", "pmean", "pmax", "pmin"]),
    st.sampled_from(list(CONTEXTS)),
    st.sampled_from([None, "ring"]),
    st.sampled_from(list(GROUPS)),
)
def test_every_leaf_is_what_lax_makes_of_it(tree, function, context, schedule, grouped):
    axis, options = CONTEXTS[context]
    groups = GROUPS[grouped] if axis == "x" and options == {"check_vma": False} else None
    said = {}

    def body(v):
        for name, call in (
            ("lax", getattr(lax, function)),
            ("ours", lambda *a, **k: getattr(jc, function)(*a, **k, schedule=schedule)),
        ):
            try:
                out = call(built(tree, v), axis, axis_index_groups=groups)
                said[name] = jax.tree.map(described, out, is_leaf=lambda x: x is None)
            except Exception as error:
                if name == "ours" and isinstance(said["lax"], (tuple, dict)):
                    raise
                said[name] = error
        return v

    in_context(context, body)
    # A leaf that jax.lax refuses, as the maximum of complex numbers, is not ours to compare.
    if not isinstance(said["lax"], Exception):
        assert said["ours"] == said["lax"]


@pytest.mark.parametrize("function", ["psum", "pmean", "pmax", "pmin"])
@pytest.mark.in_every_run("psum", "pmax")
def test_values_of_a_tree_of_constants_and_arrays(function):
    def each(m, v, **options):
        tree = (1, 0.5, v.astype(jnp.bfloat16), {"n": np.int8(3), "m": np.ones(2, np.float32)})
        n, w, t, rest = getattr(m, function)(tree, "x", **options)
        if function == "psum":
            assert jnp.zeros(n).shape == (8,)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (1, 2)), (t * w, rest))

    def both(v):
        return each(jc, v, schedule="ring"), each(lax, v)

    mapped = sharded(both, mesh_of(8), P("x"), P("x"), check_vma=False)
    got, want = mapped(np.arange(16.0, dtype=np.float32))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert got[0].dtype == want[0].dtype
    # The type of a maximum is not weak without check_vma.
    assert got[0].dtype == (jnp.bfloat16 if function in ("psum", "pmean") else jnp.float32)


def test_what_is_handed_on():
    perm = [(i, (i + 1) % 8) for i in range(8)]

    def both(v):
        return [(m.axis_index("x")[None], m.ppermute(v, "x", perm)) for m in (jc, lax)]

    got, want = sharded(both, mesh_of(8), P("x"), P("x"))(np.arange(16.0))
    jax.tree.map(np.testing.assert_array_equal, got, want)
