"""Under jvp, vjp, vmap, remat, control flow, eagerly, on every kind of mesh: as ``jax.lax``."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import ScheduleError
from jaxcoll.execute.layout import Axes
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import bind
from jaxcoll.kinds import those
from tests.execute.harness import expected, integers, mesh_of, schedule_of, sharded

ROOTED = those(lambda kind: kind.has_root)
WITH_DUAL = tuple(sorted(those(lambda kind: kind.dual is not None)))

N = 4
X = integers((N * N, 3), jnp.float32) / 8

# (ours, that of jax.lax) on a (N, 3) array a rank
PAIRS = {
    "psum": (lambda v, **k: jc.psum(v, "x", **k), lambda v: lax.psum(v, "x")),
    "all_gather": (
        lambda v, **k: jc.all_gather(v, "x", axis=1, **k),
        lambda v: lax.all_gather(v, "x", axis=1),
    ),
    "psum_scatter": (
        lambda v, **k: jc.psum_scatter(v, "x", tiled=True, **k),
        lambda v: lax.psum_scatter(v, "x", tiled=True),
    ),
    "all_to_all": (
        lambda v, **k: jc.all_to_all(v, "x", 0, 1, **k),
        # lax.all_to_all(v, "x", 0, 1), of which JAX 0.10.2 cannot take the gradient;
        # with tiled=True XLA of that time refuses to compile what is tested below
        lambda v: lax.all_gather(v, "x")[:, lax.axis_index("x")].T,
    ),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


def by_schedule(pair):
    """Ours by a schedule: without one it would be what ``jax.lax`` has, which is cheaper here."""
    ours, theirs = pair
    return lambda v: ours(v, schedule="direct"), theirs


def close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def varied(v):
    """Weights that differ from rank to rank and from element to element."""
    here = jnp.arange(v.size, dtype=v.dtype).reshape(v.shape)
    return v * jnp.cos(here + lax.axis_index("x"))


def loss(function, check_vma=True):
    def inner(v):
        return lax.psum(jnp.sum(varied(jnp.sin(function(jnp.sin(v))))), "x")

    return sharded(inner, mesh_of(N), P("x"), P(), check_vma=check_vma)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.in_every_run("psum-True", "psum_scatter-False", "all_gather-True", "all_to_all-False")
def test_derivatives(pair, check_vma):
    def derivatives(function):
        f = loss(function, check_vma)
        gradient = jax.grad(f)

        def all_of_them(x):
            return (
                f(x),
                gradient(x),
                jax.jvp(f, (x,), (x,))[1],
                jax.jvp(gradient, (x,), (x,))[1],
                jax.grad(lambda y: jnp.vdot(gradient(y), x))(x),
            )

        return all_of_them

    # Here and below, both in one program: compiling is what takes the time.
    both = [derivatives(function) for function in by_schedule(pair)]
    close(*jax.jit(lambda x: [one(x) for one in both])(X))


@pytest.mark.in_every_run("psum")
def test_vmap_remat_and_control_flow(pair):
    def programs(function):
        def inner(v):
            batched = jax.vmap(function, in_axes=2)(jnp.stack([v, 2 * v], axis=2))
            first = jax.vmap(function)(jnp.stack([v, 3 * v]))

            def body(carry, _):
                return carry + jnp.sum(function(jnp.sin(v) * carry)), None

            start = lax.pcast(jnp.float32(1), "x", to="varying")
            looped = lax.scan(body, start, None, length=2)[0]
            counted = lax.fori_loop(0, 2, lambda i, c: c + jnp.sum(varied(function(c * v))), start)
            chosen = lax.cond(
                jnp.sum(jnp.zeros(())) < 1, lambda: function(v), lambda: 2 * function(v)
            )
            remat = jax.grad(lambda u: jnp.sum(varied(jax.checkpoint(function)(jnp.sin(u)))))(v)
            outs = (batched, first, looped, counted, chosen, remat)
            return jax.tree.map(lambda o: varied(o)[None], outs)

        return inner

    both = [programs(function) for function in by_schedule(pair)]
    close(*sharded(lambda v: [inner(v) for inner in both], mesh_of(N), P("x"), P("x"))(X))


@pytest.mark.in_every_run("psum")
def test_eagerly(pair):
    def eager(function):
        return jax.shard_map(
            lambda v: varied(function(v))[None], mesh=mesh_of(N), in_specs=P("x"), out_specs=P("x")
        )(X)

    ours, theirs = by_schedule(pair)
    close(eager(ours), eager(theirs))


@pytest.mark.parametrize("kind", WITH_DUAL)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.in_every_run(
    "False-all_gather",
    "True-reduce_scatter",
    "False-all_reduce",
    "True-broadcast",
    "False-reduce",
    "True-gather",
    "False-scatter",
    "True-all_to_all",
)
def test_transposes_and_batches_of_every_collective(kind, grouped):
    groups = ((0, 3, 1), (5, 4, 2)) if grouped else None
    root = 1 if kind in ROOTED else None
    synthesizer = "ring" if kind in ("all_gather", "reduce_scatter", "all_reduce") else "hops"
    schedule = schedule_of("ring", 6, kind, synthesizer, 2, groups, root)
    size = len(schedule.collective.groups[0])
    lead = 2 if permute_program(schedule).blocks[0] == 1 else 2 * size
    x = integers((6, lead, 3), jnp.float32, seed=1)
    y = integers(expected(schedule.collective, x).shape, jnp.float32, seed=2)
    axes = Axes(("x",), (6,), ("x",))

    def body(v, w):
        collective = lambda u: bind(u, axes, schedule)  # noqa: E731
        stacked = jnp.stack([v[0], 2 * v[0]], axis=-1)
        batches = [
            jax.vmap(collective, in_axes=d, out_axes=0)(jnp.moveaxis(stacked, -1, d))
            for d in (0, 1, 2)
        ]
        back = jax.vjp(collective, v[0])[1](w[0])[0]
        return [out[None] for out in (back, *batches)]

    back, *batches = sharded(body, mesh_of(6), P("x"), P("x"))(x, y)
    once = expected(schedule.collective, x)
    for batch in batches:
        np.testing.assert_array_equal(batch, np.stack([once, 2 * once], axis=1))
    # The transpose is the one linear map with <A x, y> = <x, A' y> for all x.
    for seed in range(3):
        z = integers(x.shape, jnp.float32, seed=seed)
        assert np.vdot(expected(schedule.collective, z), y) == np.vdot(z, back)


# ---------------------------------------------------------------------- types


def test_results_are_typed_as_those_of_lax():
    x = integers((8, 4), jnp.float32)
    mesh = mesh_of(8)
    for to_p in (
        lambda v: jc.psum(v, "x"),
        lambda v: jc.pmean(v, "x"),
        lambda v: jc.all_gather(v, "x", to="invarying"),
    ):
        assert sharded(to_p, mesh, P("x"), P())(x).sharding.is_fully_replicated
    for not_to_p in (lambda v: jc.all_gather(v, "x"), lambda v: jc.psum_scatter(v[0, :], "x")):
        with pytest.raises(ValueError, match="out_specs"):
            sharded(not_to_p, mesh, P("x", None), P())(integers((64, 8), jnp.float32))


def test_gradient_of_a_gather_typed_as_invarying():
    x = integers((16, 3), jnp.float32) / 4

    def run(gather):
        f = sharded(
            lambda v: jnp.sin(gather(v, "x", tiled=True, to="invarying")), mesh_of(8), P("x"), P()
        )
        weights = jnp.arange(48.0).reshape(16, 3)
        return jax.grad(lambda v: jnp.vdot(f(v), weights))(x)

    close(run(functools.partial(jc.all_gather, schedule="direct")), run(lax.all_gather))


def test_operands_that_do_not_vary():
    x = integers((5,), jnp.float32)

    def run(m):
        f = lambda v: (m.psum(v, "x"), m.all_gather(v, "x"), m.psum(1, "x"), m.psum(2.0, "x"))  # noqa: E731
        return sharded(f, mesh_of(8), P(), (P(), P("x"), P(), P()))(x)

    close(run(jc), run(lax))


def test_gradients_of_replicated_parameters():
    w, x = integers((3,), jnp.float32), integers((8, 3), jnp.float32)

    def run(pmean):
        def inner(w, v):
            loss = lambda w: pmean(jnp.sum((v @ w) ** 2), "x")  # noqa: E731
            return jax.grad(loss)(w)

        return sharded(inner, mesh_of(8), (P(), P("x")), P())(w, x)

    close(run(functools.partial(jc.pmean, schedule="direct")), run(lax.pmean))


# ---------------------------------------------------------------------- meshes


@pytest.mark.parametrize("names", [("x", "y"), ("y", "x"), ("z", "x"), ("z", "y", "x"), ["y", "z"]])
@pytest.mark.in_every_run("names1", "names3", "names4")
def test_tuples_of_axes_in_any_order(names):
    mesh = mesh_of(2, 2, 4)
    size = int(np.prod([mesh.shape[name] for name in names]))
    x = integers((2 * size, 2, 8 * 3), jnp.int32)
    names_ = tuple(names)

    def each(m, v):
        return (
            m.all_gather(v, names_),
            m.psum(v, names),
            m.psum_scatter(v, names_, tiled=True),
            m.all_to_all(v, names_, 0, 2, tiled=True),
        )

    spec = P(None, "y", ("x", "z"))
    outs = (P(None, None, "y", ("x", "z")), spec, spec, spec)
    both = sharded(lambda v: (each(jc, v), each(lax, v)), mesh, spec, (outs, outs), check_vma=False)
    got, want = both(x)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("explicit", [False, True])
def test_one_axis_of_a_mesh_others_manual(explicit):
    mesh = (
        jax.make_mesh((2, 4), ("x", "y"))
        if explicit
        else Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("x", "y"))
    )
    sharding = jax.sharding.NamedSharding(mesh, P("x", "y"))
    x = jax.device_put(integers((4, 8, 3), jnp.float32), sharding)

    def run(m):
        f = lambda v: (m.psum(v, "y"), m.all_gather(v, "x", tiled=True))  # noqa: E731
        return sharded(f, mesh, P("x", "y"), (P("x"), P("x", "y")))(x)

    close(run(jc), run(lax))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_partly_manual_meshes(kind):

    def run(m, kind):
        mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
        # Arguments on Explicit axes are sharded as in_specs say (from JAX 0.12 on they must be).
        sharding = jax.sharding.NamedSharding(mesh, P(None, "y"))
        x = jax.device_put(integers((8, 12, 3), jnp.float32), sharding)
        f = lambda v: (  # noqa: E731
            m.psum(v, "y"),
            m.all_gather(v, "y", tiled=True, axis=1),
            m.psum_scatter(v, "y", scatter_dimension=0, tiled=True),
        )
        outs = (P(None), P(None, "y"), P("y"))
        return sharded(f, mesh, P(None, "y"), outs, axis_names={"y"})(x)

    # lax.psum_scatter of JAX 0.12 fails beside Explicit axes.
    close(run(jc, kind), run(lax, AxisType.Auto))


def test_partly_manual_meshes_with_sharded_operands():
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
        sharding = jax.sharding.NamedSharding(mesh, P("x", "y"))
        x = jax.device_put(integers((8, 12, 3), jnp.float32), sharding)
        got, want = (
            sharded(lambda v: m.psum(v, "y"), mesh, P(None, "y"), P(None), axis_names={"y"})(x)  # noqa: B023
            for m in (jc, lax)
        )
        np.testing.assert_array_equal(got, want)


def test_axes_of_vmap():
    x = integers((4, 3), jnp.float32)
    for f in (
        lambda m: lambda v: m.psum(v, "i"),
        lambda m: lambda v: m.all_gather(v, "i"),
        lambda m: lambda v: m.pmean(v, "i"),
    ):
        close(jax.vmap(f(jc), axis_name="i")(x), jax.vmap(f(lax), axis_name="i")(x))


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 7], [3, 1], [2, 4], [5, 6]]])
def test_groups(groups):
    x = integers((8 * 4, 4), jnp.float32)

    def each(m, v):
        options = {"axis_index_groups": groups}
        return (
            m.psum(v, "x", **options),
            m.pmean(v, "x", **options),
            m.all_gather(v, "x", **options),
            m.psum_scatter(v, "x", tiled=True, **options),
            m.all_to_all(v, "x", 0, 1, tiled=True, **options),
        )

    both = sharded(
        lambda v: (each(jc, v), each(lax, v)), mesh_of(8), P("x"), P("x"), check_vma=False
    )
    close(*both(x))


@pytest.mark.parametrize("name", ["data", "model"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.in_every_run("True-data", "False-model")
def test_one_schedule_for_all_groups_along_an_axis(name, check_vma):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    ranks = np.arange(8).reshape(2, 4)
    groups = tuple(map(tuple, (ranks if name == "model" else ranks.T).tolist()))
    gather = schedule_of("torus", 8, "all_gather", "ring", 2, groups)
    x = integers((8, 8, 3), jnp.float32)

    def each(m, v, **k):
        return (
            m.psum(v, name, **k),
            m.all_gather(v, name, tiled=True, **k),
            m.psum_scatter(jnp.concatenate([v] * 4), name, tiled=True, **k),
            jax.grad(lambda u: jnp.vdot(m.psum(jnp.sin(u), name, **k), jnp.cos(u)))(v),
        )

    axes = P(("data", "model"))
    rest = axes if not check_vma else P("model" if name == "data" else "data")
    specs = (rest, axes, axes, axes)

    def both(v):
        return each(jc, v, schedule=gather), each(lax, v)

    close(*sharded(both, mesh, axes, (specs, specs), check_vma=check_vma)(x))


def test_one_schedule_for_all_groups_must_have_those_of_the_axis():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    other = schedule_of("torus", 8, "all_gather", "ring", 1, ((0, 1), (2, 3), (4, 5), (6, 7)))
    with pytest.raises(ScheduleError, match="is for 8 ranks, but axis 'model' of 4 has 4"):
        sharded(lambda v: jc.psum(v, "model", schedule=other), mesh, P("data"), P("data"))(X)
