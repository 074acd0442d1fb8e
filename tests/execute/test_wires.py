"""Fewer bytes on the wire: what arrives is within the bound, and never silently finite."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import aot
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.wires import Cast, Int8, Scaled, Wire, wire_of
from tests.elsewhere import ROOT
from tests.execute.harness import mesh_of, schedule_of, sharded

E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
WIRES: dict[str, Any] = {
    "bfloat16": Cast(),
    "float16": Cast(jnp.float16),
    "e4m3": Scaled(),
    "e5m2": Scaled(E5M2, 7),
    "int8": Int8(5),
    "int8 of 3": Int8(jax.random.key(1), 3),
}
BLOCKED = {name: wire for name, wire in WIRES.items() if not isinstance(wire, Cast)}


def numbers(*shape, dtype: Any = np.float32, seed: int = 0, spread: float = 3.0) -> np.ndarray:
    """Floats of many magnitudes, of which some are zero."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)
    return np.where(rng.random(shape) < 0.1, 0, x).astype(dtype)


@functools.partial(jax.jit, static_argnames="name")
def there(x, name):
    """Rows as they arrive."""
    wire = WIRES[name]
    return wire.decode(lax.optimization_barrier(wire.encode(x)), x.shape[-1], x.dtype)


def run(function, x, mesh, out: Any = None, **options):
    """What every rank gets of its row: the rows of a result."""
    mapped = sharded(lambda v: function(v[0])[None], mesh, P("x"), out or P("x"), **options)
    return np.asarray(mapped(x))


# ---------------------------------------------------------------------- wires


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(WIRES)),
    size=st.sampled_from([1, 2, 127, 128, 300]),
    scale=st.integers(-30, 30),
    seed=st.integers(0, 99),
)
def test_what_arrives_is_within_the_bound(name, size, scale, seed):
    bounded = scale if name != "float16" else min(scale, 0)  # its range is 65504
    x = numbers(3, size, seed=seed) * np.float32(10.0**bounded)
    error = abs(np.asarray(there(x, name), np.float64) - x)
    assert (error <= np.asarray(WIRES[name].bound(x))).all()
    assert (np.sign(there(x, name)) * np.sign(x) >= 0).all()


@pytest.mark.parametrize("name", WIRES)
def test_the_largest_and_smallest_floats_stay_finite(name):
    least, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    if name == "float16":
        most = np.float32(65504)
    elif name == "bfloat16":
        most = np.float32(jnp.finfo(jnp.bfloat16).max)
    x = np.array([[most, -most, 1, 0], [least, -least, 0, least / 4], [0, 0, 0, 0]], np.float32)
    got = np.asarray(there(x, name), np.float64)
    assert (abs(got - x) <= np.asarray(WIRES[name].bound(x), np.float64)).all()
    assert np.isfinite(got).all()
    assert (got[2] == 0).all()


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_becomes_nan_and_no_other_does(name, bad):
    block = BLOCKED[name].block
    x = numbers(1, 3 * block, spread=1)
    x[0, block + block // 2] = bad
    lost = np.isnan(there(x, name)[0])
    assert lost.tolist() == [False] * block + [True] * block + [False] * block


def test_casts_keep_nan_and_inf_and_overflow_to_inf():
    x = np.array([[np.nan, np.inf, -np.inf, 1e6, -3.4e38, 1]], np.float32)
    np.testing.assert_array_equal(
        there(x, "float16"), np.array([[np.nan, np.inf, -np.inf, np.inf, -np.inf, 1]])
    )
    np.testing.assert_array_equal(np.isfinite(there(x, "bfloat16")[0]), [0, 0, 0, 1, 0, 1])


@given(seed=st.integers(0, 99), name=st.sampled_from(["bfloat16", "e4m3", "e5m2"]))
def test_what_has_been_on_a_wire_is_not_rounded_again(seed, name):
    once = there(numbers(2, 300, seed=seed), name)
    np.testing.assert_array_equal(there(once, name), once)


def test_random_rounding_is_fair_and_the_seed_decides_it():
    # Of a block with a scale of 1: 0.3 of the way from 5 to 6.
    x = np.full((1, 128 * 400), 5.3, np.float32)
    x[0, ::128] = 127
    x = jnp.asarray(x)
    values = np.asarray(there(x, "int8")).reshape(-1, 128)[:, 1:]
    assert set(np.unique(values)) == {5, 6}
    count = values.size
    assert abs(values.mean() - 5.3) < 5 * np.sqrt(0.3 * 0.7 / count)
    kept, other = Int8(5).encode(x), Int8(6).encode(x)
    np.testing.assert_array_equal(kept, Int8(jax.random.PRNGKey(5)).encode(x))
    assert not np.array_equal(kept, other)


def test_float64_has_its_range_and_other_scales():
    with jax.enable_x64(True):
        x = jnp.asarray(numbers(2, 200, dtype=np.float64) * 1e200)
        for name in BLOCKED:
            wire = BLOCKED[name]
            got = wire.decode(wire.encode(x), 200, x.dtype)
            assert (abs(got - x) <= wire.bound(x)).all()
        assert Scaled().nbytes(200, jnp.float64) == 200 + 2 * 8
    assert Scaled().nbytes(200) == Int8(0).nbytes(200, jnp.bfloat16) == 200 + 2 * 4
    assert Cast().nbytes(200) == 400


# ---------------------------------------------------------------------- collectives


def bound_of_sum(wire, rows: np.ndarray) -> np.ndarray:
    """The bound of ``psum``: of every contribution, then of a sum that is so much larger."""
    n = len(rows)
    shards = np.pad(rows.astype(np.float32), ((0, 0), (0, -rows.shape[1] % n))).reshape(n, n, -1)
    first = np.asarray(wire.bound(shards), np.float64).sum(0)
    eps = n * np.finfo(np.float32).eps
    total = abs(shards.astype(np.float64).sum(0)) + first + eps * abs(shards).sum(0)
    # In a block of larger magnitudes every error may be larger.
    second = np.asarray(wire.bound(total.astype(np.float32)), np.float64)
    return (total - abs(shards.sum(0)) + second * 1.01).reshape(-1)[: rows.shape[1]]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["bfloat16", "e4m3", "int8"])
@pytest.mark.parametrize("n", [3, 8])
def test_sums_are_within_the_bound_and_the_same_on_all_ranks(n, name, check_vma):
    x, mesh, wire = numbers(n, 1003, spread=1), mesh_of(n), WIRES[name]

    def both(v):
        total = jc.psum(v, "x", wire_dtype=wire)
        mean = jc.pmean(v, "x", wire_dtype=wire)
        part = jc.psum_scatter(v[: 125 * n].reshape(n, -1), "x", wire_dtype=wire)
        return jnp.concatenate([total, mean, part])

    rows = run(both, x, mesh, check_vma=check_vma)
    totals, means, parts = np.split(rows, [1003, 2006], axis=1)
    exact, most = x.astype(np.float64).sum(0), bound_of_sum(wire, x)
    assert (totals == totals[0]).all()
    assert (means == means[0]).all()
    assert (abs(totals[0] - exact) <= most).all()
    assert (abs(means[0] * n - exact) <= most * 1.001).all()
    cut = x[:, : 125 * n].reshape(n, n, -1)
    once = np.asarray(wire.bound(cut), np.float64).sum(0) * 1.001 + 1e-4
    assert (abs(parts - cut.astype(np.float64).sum(0)) <= once).all()


@given(
    name=st.sampled_from(["bfloat16", "e4m3", "int8"]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    seed=st.integers(0, 9),
)
@settings(max_examples=8)
def test_moves_are_within_the_bound(name, dtype, seed):
    n, wire = 4, WIRES[name]
    x = numbers(n, n, 50, dtype=dtype, seed=seed, spread=1)

    def both(v):
        gathered = jc.all_gather(v, "x", axis=1, wire_dtype=wire)
        exchanged = jc.all_to_all(v, "x", 0, 0, wire_dtype=wire)
        return jnp.concatenate([gathered.reshape(-1), exchanged.reshape(-1)])

    rows = run(both, x, mesh_of(n)).astype(np.float32)
    gathered, exchanged = np.split(rows, [n * n * 50], axis=1)
    x = x.astype(np.float32)
    rounding = float(jnp.finfo(dtype).eps) / 2
    whole = np.asarray(wire.bound(x.reshape(n, -1))).reshape(x.shape) * 1.01 + abs(x) * rounding
    parts = np.asarray(wire.bound(x)) * 1.01 + abs(x) * rounding
    for got in gathered.reshape(n, n, n, 50):
        assert (abs(got.swapaxes(0, 1) - x) <= whole).all()
    for r, got in enumerate(exchanged.reshape(n, n, 50)):
        assert (abs(got - x[:, r]) <= parts[:, r]).all()


def test_each_rank_and_each_leaf_draws_bits_of_its_own():
    n = 4
    x = np.tile(numbers(1, 2000, spread=0.3), (n, 1))
    drawn = run(lambda v: jc.all_gather(v, "x", wire_dtype=Int8(0)), x, mesh_of(n))[0]
    assert all(not np.array_equal(drawn[0], row) for row in drawn[1:])
    again = run(lambda v: jc.all_gather(v, "x", wire_dtype=Int8(0)), x, mesh_of(n))[0]
    np.testing.assert_array_equal(again, drawn)
    pair = run(lambda v: jnp.stack(jc.all_gather([v, v], "x", wire_dtype=Int8(0))), x, mesh_of(n))[
        0
    ]
    assert not np.array_equal(pair[0], pair[1])


def test_errors_of_equal_contributions_cancel():
    """A quarter is left in the mean of sixteen, since each rank rounds by its own bits."""
    own, wire = np.full((1, 1600), 0.3, np.float32), Int8(1)
    own[0, ::100] = 1
    rows = np.tile(own, (16, 1)).reshape(16, 16, 100)
    found = run(lambda v: jc.psum_scatter(v, "x", wire_dtype=wire), rows, mesh_of(16))
    alone = np.asarray(wire.decode(wire.encode(jnp.asarray(own)), 1600, own.dtype))
    error = np.sqrt(np.mean((found / 16 - 0.3)[..., 1:] ** 2))
    assert error < 0.5 * np.sqrt(np.mean((alone - own) ** 2))


def test_groups_several_axes_and_schedules():
    x = numbers(8, 300, spread=1)
    wire = Scaled()
    groups = [[0, 3, 5, 6], [7, 1, 2, 4]]
    rows = run(lambda v: jc.psum(v, "x", axis_index_groups=groups, wire_dtype=wire), x, mesh_of(8))
    for group in groups:
        most = bound_of_sum(wire, x[group])
        assert (rows[group] == rows[group[0]]).all()
        assert (abs(rows[group[0]] - x[group].astype(np.float64).sum(0)) <= most).all()
    plain = run(lambda v: jc.psum(v, "x", wire_dtype=wire), x, mesh_of(8))
    two = sharded(
        lambda v: jc.psum(v[0, 0], ("x", "y"), wire_dtype=wire), mesh_of(2, 4), P("x", "y"), P()
    )(x.reshape(2, 4, 300))
    np.testing.assert_array_equal(two, plain[0])
    gather = schedule_of("torus", 8, "all_gather", "bucket")
    exchange = schedule_of("torus", 8, "all_to_all", "direct")
    for choice in (
        "direct",
        gather,
        exchange,
        lambda topology, collective: gather if collective.traits.copies else exchange,
    ):
        forced = run(
            lambda v, s=choice: jc.psum(v, "x", schedule=s, wire_dtype=wire), x, mesh_of(8)
        )
        np.testing.assert_array_equal(forced, plain)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_vmap_is_a_loop(check_vma):
    n, x = 4, numbers(4, 3, 4, 40, spread=1)

    def all_of(v, key):
        wire = Int8(key)
        return (
            jc.psum(v, "x", wire_dtype=wire)[0],
            jc.psum_scatter(v, "x", wire_dtype=wire),
            jc.all_gather(v[0, :10], "x", tiled=True, wire_dtype=wire),
            jc.all_to_all(v, "x", 0, 0, wire_dtype=wire)[0],
        )

    keys = jax.random.split(jax.random.key(0), 3)

    def both(v):
        mapped = jax.vmap(all_of)(v, keys)
        each = [all_of(v[i], keys[i]) for i in range(3)]
        looped = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
        return jnp.stack([jnp.stack(mapped), jnp.stack(looped)])

    rows = run(both, x, mesh_of(n), check_vma=check_vma)
    np.testing.assert_array_equal(rows[:, 0], rows[:, 1])


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["psum", "psum_scatter", "all_gather", "all_to_all"])
def test_the_gradient_is_the_transposed_collective_by_the_wire(name, check_vma):
    """Of values that the wire does not change, it is that of ``jax.lax``."""
    n = 4
    arguments = {"all_to_all": (0, 0)}.get(name, ())
    x = np.random.default_rng(0).integers(-7, 8, (n, n, 40)).astype(np.float32)

    def gradient(function, v, **options):
        def loss(u):
            y = function(u, "x", *arguments, **options)
            weights = jnp.arange(y.size, dtype=jnp.float32).reshape(y.shape) % 8
            return (weights * y).sum()

        return jax.grad(loss)(v)

    def both(v):
        wired = gradient(getattr(jc, name), v, wire_dtype=E4M3)
        return jnp.stack([wired, gradient(getattr(lax, name), v)])

    rows = run(both, x, mesh_of(n), check_vma=check_vma)
    np.testing.assert_array_equal(rows[:, 0], rows[:, 1])

    def second(v):
        return jax.grad(lambda u: (gradient(getattr(jc, name), u, wire_dtype=E4M3) ** 2).sum())(v)

    assert (run(second, x, mesh_of(n), check_vma=check_vma) == 0).all()


def test_what_is_not_finite_on_one_rank_is_nan_on_all():
    x = numbers(4, 1024, spread=0)
    x[1, 3] = np.inf
    totals = run(lambda v: jc.psum(v, "x", wire_dtype=E4M3), x, mesh_of(4))
    lost = np.isnan(totals)
    assert (lost == lost[0]).all()
    assert lost[0].nonzero()[0].tolist() == list(range(128))
    totals = run(lambda v: jc.psum(v, "x", wire_dtype=jnp.bfloat16), x, mesh_of(4))
    assert np.isinf(totals[:, 3]).all()
    assert np.isfinite(np.delete(totals, 3, 1)).all()


@pytest.mark.parametrize(
    ("wire", "share"),
    [(jnp.bfloat16, 0.5), (E4M3, 0.27), (Int8(0), 0.27), (Scaled(E5M2, 32), 0.29)],
)
def test_bytes_on_the_wire(wire, share):
    n, shape = 8, jax.ShapeDtypeStruct((8, 64 * 1024), jnp.float32)

    def wire_bytes(function):
        compiled = aot.compile_for(
            mesh_of(n), lambda v: function(v[0]), [shape], [P("x")], P(), check_vma=False
        )
        return aot.summarize(compiled).wire_bytes

    plain = wire_bytes(lambda v: jc.psum(v, "x", schedule="ring"))
    assert plain == 2 * 4 * 64 * 1024 * (n - 1) // n
    narrow = wire_bytes(lambda v: jc.psum(v, "x", schedule="direct", wire_dtype=wire))
    assert 0.25 < narrow / plain <= share


def test_a_wire_of_ones_own():
    class Halves(Wire):
        """Multiples of a half, as int16."""

        def encode(self, x):
            return jnp.round(2 * x).astype(jnp.int16)

        def decode(self, sent, size, dtype):
            return sent.astype(dtype) / 2

    x = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
    for wire in (Halves(), type("Duck", (), dict(vars(Halves)) | {"folded": lambda s, d: s})()):
        got = run(lambda v, w=wire: jc.psum(v / 4, "x", wire_dtype=w), x, mesh_of(4))
        each = np.round(x / 2).sum(0) / 2
        np.testing.assert_array_equal(got[0], each)
    assert Halves().nbytes(10) == 20


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: jc.psum(v.astype(jnp.int32), "x", wire_dtype=E4M3), "takes floats"),
        (lambda v: jc.psum(v > 0, "x", wire_dtype=E4M3), "takes floats"),
        (lambda v: jc.all_gather(v + 1j, "x", wire_dtype=E4M3), "got complex64"),
        (lambda v: jc.psum([v, v.astype(jnp.int8)], "x", wire_dtype=jnp.bfloat16), "got int8"),
        (lambda v: jc.psum(v, "x", wire_dtype=jnp.int8), r"needs a seed.*Int8\(seed\)"),
        (lambda v: jc.psum(v, "x", wire_dtype=jnp.float32), "wire_dtype= must be bfloat16"),
        (lambda v: jc.psum(v, "x", wire_dtype="small"), "got 'small'"),
        (lambda v: jc.psum(v, "x", wire_dtype=Scaled), "was the class Scaled"),
        (lambda v: jc.psum(v, "x", wire_dtype=Int8(1.5)), "an integer or a key"),
        (lambda v: jc.psum(v, "x", wire_dtype=Int8(True)), "an integer or a key"),
        (lambda v: jc.psum(v, "x", wire_dtype=Scaled(block=0)), "block must be an integer"),
        (lambda v: jc.psum(v, "x", wire_dtype=Scaled(jnp.float32)), "Scaled sends"),
        (lambda v: jc.psum(v, "x", wire_dtype=Cast(E4M3)), "Scaled"),
        (lambda v: jc.psum(v, "x", wire_dtype=E4M3, order="fixed"), "leave one of them out"),
    ],
)
def test_what_cannot_be_is_refused_while_tracing(function, message):
    mapped = jax.shard_map(
        function, mesh=mesh_of(4), in_specs=P("x"), out_specs=P(), check_vma=False
    )
    with pytest.raises(CollectiveError, match=message):
        jax.eval_shape(mapped, jax.ShapeDtypeStruct((4, 8), jnp.float32))


def test_schedules_that_add_on_the_way_are_refused():
    schedule = schedule_of("torus", 8, "all_reduce", "bucket")
    mapped = jax.shard_map(
        lambda v: jc.psum(v, "x", schedule=schedule, wire_dtype=E4M3),
        mesh=mesh_of(8), in_specs=P("x"), out_specs=P(),
    )  # fmt: skip
    with pytest.raises(ScheduleError, match="each hop would round"):
        jax.eval_shape(mapped, jax.ShapeDtypeStruct((8, 8), jnp.float32))


def test_explicit_axes_that_shard_an_operand_are_refused():
    mesh = Mesh(
        np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2
    )
    mapped = jax.shard_map(
        lambda v: jc.psum(v, "x", wire_dtype=E4M3),
        mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"},
    )  # fmt: skip
    x = jax.device_put(np.ones((4, 8), np.float32), jax.NamedSharding(mesh, P("x", "y")))
    with jax.set_mesh(mesh), pytest.raises(CollectiveError, match="Explicit axes shard"):
        jax.jit(mapped)(x)


def test_empty_operands_and_constants():
    x = np.zeros((4, 0, 4), np.float32)

    def all_of(v):
        gathered = jc.all_gather(v, "x", wire_dtype=E4M3)
        assert gathered.shape == (4, 0, 4)
        part = jc.psum_scatter(v, "x", scatter_dimension=1, wire_dtype=E4M3)
        assert part.shape == (0,)
        assert jc.psum(2.0, "x", wire_dtype=E4M3) == 8
        return jc.psum(v, "x", wire_dtype=E4M3)

    assert run(all_of, x, mesh_of(4)).shape == (4, 0, 4)


def test_dtypes_name_wires():
    assert wire_of("bfloat16") == Cast()
    assert wire_of(np.dtype(E5M2)) == Scaled(E5M2)
    assert wire_of(WIRES["int8"]) is WIRES["int8"]


@pytest.mark.parametrize(("wire", "part"), [(Scaled(), 16), (Scaled(E5M2), 8), (Int8(0), 126)])
@pytest.mark.parametrize("x", [1e-36, 2e-36, 1e-34, 6e-34, 7e-34, 3e-30])
def test_blocks_of_tiny_numbers_do_not_vanish(wire, part, x):
    """Their scale is a normal number, though its quotient by the largest float8 is none."""
    arrived = wire.decode(wire.encode(jnp.float32([[x]])), 1, jnp.float32)
    assert abs(float(arrived[0, 0]) - x) <= max(x / part, float(jnp.finfo(jnp.float32).tiny))


def test_a_wire_may_be_made_before_any_device_is_known():
    """As in a file of settings that is imported before ``jax.distributed.initialize``."""
    code = (
        "import jax, jaxcoll as jc\n"
        "wires = jc.execute.wires.Int8(0), jc.execute.wires.wire_of(jax.numpy.bfloat16)\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"
