"""Constants keep their types: what Python numbers, NumPy arrays and weak types become."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
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


def test_what_is_handed_on():
    perm = [(i, (i + 1) % 8) for i in range(8)]

    def both(v):
        return [(m.axis_index("x")[None], m.ppermute(v, "x", perm)) for m in (jc, lax)]

    got, want = sharded(both, mesh_of(8), P("x"), P("x"))(np.arange(16.0))
    jax.tree.map(np.testing.assert_array_equal, got, want)
