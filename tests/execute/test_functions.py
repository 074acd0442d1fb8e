"""The functions against ``jax.lax``: values, shapes, types, gradients, refusals."""

from __future__ import annotations

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.paths import Edges
from jaxcoll.trees import TreeFlow
from tests.execute.harness import integers, mesh_of, schedule_of, sharded

SCHEDULES = [
    None,
    "ring",
    ("torus", "bucket", 1),
    ("torus", "bucket", 4),
    ("mesh", "tacos", 2),
    ("complete", "direct", 1),
]


def schedule(case, n=8, kind="all_gather"):
    if isinstance(case, tuple):
        network, synthesizer, chunks = case
        return schedule_of(network, n, kind, synthesizer, chunks)
    return case


def same(ours, theirs, x, in_specs, out_specs, mesh=None):
    mesh = mesh_of(8) if mesh is None else mesh
    # Both in one program: compiling is what takes the time.
    both = sharded(lambda v: (ours(v), theirs(v)), mesh, in_specs, (out_specs, out_specs))
    got, want = both(x)
    assert jax.tree.map(lambda v: (v.shape, v.dtype), got) == jax.tree.map(
        lambda v: (v.shape, v.dtype), want
    )
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.in_every_run("None", "ring", "case3")
def test_psum(case):
    shapes = [(), (1,), (5, 3), (16, 7), (0, 3)]
    dtypes = [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.complex64]
    x = [integers((8, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    s = schedule(case)

    def each(psum):
        return lambda v: [psum(leaf[0]) for leaf in v]

    ours = each(lambda v: jc.psum(v, "x", schedule=s))
    same(ours, each(lambda v: lax.psum(v, "x")), x, P("x"), P())


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.in_every_run("None", "ring", "case4")
def test_all_gather(case):
    options = [{"axis": 0}, {"axis": 1, "tiled": True}, {"axis": -1}]
    s = schedule(case)

    def each(gather, **more):
        return lambda v: [gather(v, "x", **o, **more) for o in options]

    x = integers((8 * 3, 5), jnp.float32)
    same(each(jc.all_gather, schedule=s), each(lax.all_gather), x, P("x"), P("x"))


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.in_every_run("None", "ring", "case2")
def test_psum_scatter(case):
    options = [{}, {"scatter_dimension": 1}, {"scatter_dimension": 1, "tiled": True}]
    s = schedule(case)

    def each(scatter, **more):
        return lambda v: [scatter(v, "x", **o, **more) for o in options]

    x = integers((8 * 8, 8, 3), jnp.float32)
    same(each(jc.psum_scatter, schedule=s), each(lax.psum_scatter), x, P("x"), P("x"))


def test_pmean_and_pytrees():
    x = {"a": integers((8, 3), jnp.float32), "b": integers((8, 2, 2), jnp.float32)}
    same(lambda v: jc.pmean(v, "x"), lambda v: lax.pmean(v, "x"), x, P("x"), P())


def test_small_leaves_of_a_tree_travel_together():
    mesh = mesh_of(2, 4)
    leaves = {
        "a": integers((8, 300), jnp.float32),
        "b": integers((8, 5, 2), jnp.float32, seed=1),
        "c": integers((8, 7), jnp.int32),
        "d": integers((8, 1 << 19), jnp.float32),
        "e": integers((8, 3), jnp.float32, seed=2),
    }
    specs = {name: P(("x", "y")) for name in leaves} | {"b": P("y")}
    outs = {name: P("x") for name in leaves} | {"b": P()}

    def run(psum):
        return sharded(lambda v: psum(v, "y"), mesh, (specs,), outs)

    got, want = run(jc.psum)(leaves), run(lax.psum)(leaves)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    # Over four ranks a sum takes four rounds: "a" and "e" together, "b", which varies over fewer
    # axes, and "c"; five for "d", which is long, so that a step of it is split.
    bucket = run(functools.partial(jc.psum, schedule="bucket"))
    jax.tree.map(np.testing.assert_array_equal, bucket(leaves), want)
    text = bucket.lower(leaves).as_text()
    assert text.count("stablehlo.collective_permute") == 3 * 4 + 5
    gradient = jax.grad(lambda v: run(jc.psum)(v)["a"].sum() + run(jc.psum)(v)["e"].sum())
    assert (gradient(leaves | {"c": np.zeros((8, 7), np.float32)})["a"] == 4 / 4).all()


@pytest.mark.parametrize("schedule_", ["bucket", "ring"])
def test_gradient_of_psum(schedule_):
    x = integers((16, 3), jnp.float32)

    def loss(reduce):
        inner = sharded(lambda v: reduce(jnp.sin(v)) ** 2, mesh_of(8), P("x"), P())
        return jax.grad(lambda v: inner(v).sum())(x)

    ours = loss(lambda v: jc.psum(v, "x", schedule=schedule_))
    np.testing.assert_allclose(ours, loss(lambda v: lax.psum(v, "x")), rtol=1e-5)


def test_the_schedule_of_a_named_lowering_depends_on_the_size():
    def permutes(size):
        x = jax.ShapeDtypeStruct((8, size), jnp.float32)
        f = sharded(lambda v: jc.psum(v, "x", lowering="ssa"), mesh_of(8), P("x"), P())
        return f.lower(x).as_text().count("collective_permute")

    assert permutes(1000) == 6
    assert permutes(4 << 20) == permutes(1 << 18) == 14


def test_refusals():
    x = integers((8, 8), jnp.float32)

    def call(function, **options):
        return sharded(function, mesh_of(8), P("x"), P("x"), **options)(x)

    with pytest.raises(ScheduleError, match="is for 4 ranks, but axis 'x' of 8 has 8"):
        call(lambda v: jc.psum(v, "x", schedule=schedule_of("ring", 4, "all_gather", "ring")))
    with pytest.raises(CollectiveError, match="axis 'q' is not bound here"):
        call(lambda v: jc.psum(v, "q"))
    with pytest.raises(NameError, match="axis 'q' is not bound here"):
        jc.psum(x, "q")
    unequal = jc.Collective("all_gather", 8, 1, shares=(2, *[1] * 7))
    shares = jc.synthesize(topologies.switch(8), unequal)
    with pytest.raises(ScheduleError, match=r"Only jc\.ragged_all_to_all runs"):
        call(lambda v: jc.all_gather(v, "x", schedule=shares))
    s = schedule_of("ring", 8, "all_gather", "ring")
    with pytest.raises(ScheduleError, match="all_to_all cannot run"):
        call(lambda v: jc.all_to_all(v, "x", 1, 1, tiled=True, schedule=s))
    with pytest.raises(CollectiveError, match="unknown synthesizer 'rign'"):
        call(lambda v: jc.psum(v, "x", schedule="rign"))
    with pytest.raises(CollectiveError, match="min_congestion is not defined for all_reduce; it"):
        call(lambda v: jc.psum(v, "x", schedule="min_congestion"))


def paths_around(ring):
    """From every rank the path around a ring, as trees."""
    n = ring.num_ranks
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(ring.src, ring.dst, strict=True))}
    edge = [link[(r + i) % n, (r + i + 1) % n] for r in range(n) for i in range(n - 1)]
    return TreeFlow(
        ring,
        1,
        (1,) * n,
        np.arange(n),
        np.ones(n, np.int64),
        Edges.from_links(ring),
        np.arange(n + 1) * (n - 1),
        np.asarray(edge),
        Fraction(n - 1) / ring.exact_bandwidth[0],
    )


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_maxima_over_groups_have_the_types_of_lax(name, check_vma):
    seen = {}

    def called(module, **options):
        def inner(v):
            groups = [[0, 3, 1, 2], [4, 5, 7, 6]]
            out = getattr(module, name)(v, "x", axis_index_groups=groups, **options)
            seen[module] = jax.typeof(out)
            if check_vma and not seen[module].mat.varying:
                out = lax.pcast(out, "x", to="varying")
            return out

        return sharded(inner, mesh_of(8), P("x"), P("x"), check_vma=check_vma)(np.arange(16))

    np.testing.assert_array_equal(called(jc, schedule="ring"), called(lax))
    assert seen[jc] == seen[lax]


def test_trees_and_duals_are_taken_as_schedules():
    x = integers((8 * 4, 3), jnp.float32)
    trees = paths_around(topologies.ring(8))
    same(
        lambda v: (jc.psum(v, "x", schedule=trees), jc.all_gather(v, "x", schedule=trees)[None]),
        lambda v: (lax.psum(v, "x"), lax.all_gather(v, "x")[None]),
        x,
        P("x"),
        (P(), P("x")),
    )
    broadcast = schedule_of("mesh", 8, "broadcast", "hops", 1, None, 2)
    reduce = lambda v: jc.reduce(v, "x", 2, schedule=broadcast)  # noqa: E731
    got = sharded(reduce, mesh_of(8), P("x"), P("x"))(x)
    np.testing.assert_array_equal(got[8:12], x.reshape(8, 4, 3).sum(0))
    one_way = schedule_of("one-way", 8, "all_gather", "tacos")
    with pytest.raises(ScheduleError, match="do not all have one the other way"):
        sharded(lambda v: jc.psum(v, "x", schedule=one_way), mesh_of(8), P("x"), P())(x)


def test_what_32_bits_cannot_index_is_refused():
    x = jax.ShapeDtypeStruct((8, 2**29), jnp.int8)
    gather = functools.partial(jc.all_gather, axis_name="x", schedule="direct")
    with pytest.raises(CollectiveError, match="4294967296 elements per rank"):
        sharded(gather, mesh_of(8), P("x"), P("x")).lower(x)


def test_one_rank():
    def each(m):
        return lambda v: (
            m.psum(v, "x"),
            m.pmean(v, "x"),
            m.all_gather(v, "x"),
            m.psum_scatter(v, "x", tiled=True),
        )

    x = integers((1, 4), jnp.float32)
    same(each(jc), each(lax), x, P("x"), (P(), P(), P("x"), P("x")), mesh_of(1))
