"""Sums that do not know how many ranks there are: equal bits, near the exact sums."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import aot
from jaxcoll.errors import CollectiveError
from tests.execute.harness import mesh_of, sharded

UNIT = {"float32": 2.0**-35, "bfloat16": 2.0**-20, "float16": 2.0**-20}


def numbers(*shape, dtype: Any = "float32", seed: int = 0, spread: float = 2.0) -> np.ndarray:
    """Floats of several magnitudes, whose sums depend on the order."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-spread, spread, shape)
    return x.astype(dtype)


def differing(a, b) -> int:
    """Elements that are not the same bits."""
    a, b = (np.ascontiguousarray(v) for v in (a, b))
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    return int((a.view(f"u{a.dtype.itemsize}") != b.view(f"u{b.dtype.itemsize}")).sum())


local_sum = jax.jit(lambda x: jc.invariant_sum(x, ()))
SAME = P()


def divided(x, ranks: int, out: Any = SAME, function: Any = None, **options):
    """The sum of the addends in the leading dimension, shared out to some ranks."""
    function = function or (lambda v: jc.invariant_sum(v, "x", **options))
    return np.asarray(sharded(function, mesh_of(ranks), P("x"), out)(x))


# ---------------------------------------------------------------------- what the sum is


@settings(max_examples=40)
@given(
    dtype=st.sampled_from(list(UNIT)),
    addends=st.sampled_from([1, 2, 3, 16, 300]),
    spread=st.sampled_from([0.0, 2.0, 4.0]),
    seed=st.integers(0, 99),
)
def test_sums_are_within_the_bound_of_the_exact_ones_in_any_order(dtype, addends, spread, seed):
    x = numbers(addends, 20, dtype=dtype, seed=seed, spread=spread)
    got = np.asarray(local_sum(x))
    exact = [sum(map(Fraction, column.astype(float).tolist())) for column in x.T]
    unit, eps = UNIT[dtype], float(jnp.finfo(dtype).eps)
    for found, wanted, column in zip(got.astype(float), exact, x.T.astype(float), strict=True):
        bound = addends * unit * abs(column).max() + eps / 2 * abs(float(wanted))
        # A subnormal float16 is rounded to a multiple of 2**-24.
        assert abs(Fraction(found) - wanted) <= bound * (1 + 1e-9) + 2.0**-25 * (dtype == "float16")
    shuffled = np.random.default_rng(seed).permutation(x)
    assert differing(got, local_sum(shuffled)) == 0


@given(seed=st.integers(0, 99), dtype=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_sums_of_near_exponents_are_rounded_once(seed, dtype):
    """Within 11 binary places a sum of 16 is exact in float64, which rounds as the result does."""
    rng = np.random.default_rng(seed)
    x = (rng.uniform(1, 2, (16, 50)) * 2.0 ** rng.integers(0, 8, (16, 50))).astype(dtype)
    x = np.where(rng.random(x.shape) < 0.5, -x, x)
    exact = x.astype(np.float64).sum(0)
    wanted = exact.astype(np.float32) if dtype == "float32" else exact.astype(dtype)
    assert differing(local_sum(x), wanted) == 0


def test_ties_go_to_even_and_carries_reach_the_exponent():
    ulp = 2.0**-23
    cases = [
        ([1, ulp / 2], 1),  # a tie, to even
        ([1 + ulp, ulp / 2], 1 + 2 * ulp),
        ([1, ulp / 2, 2.0**-34], 1 + ulp),  # just above the tie
        ([2 - ulp, ulp / 2], 2),  # carried into the exponent
        ([-1, -ulp / 2, -(2.0**-34)], -1 - ulp),
        ([1, -1, 2.0**-34], 2.0**-34),  # cancelled to the last bit
    ]
    for addends, wanted in cases:
        x = np.asarray(addends, np.float32)
        assert differing(local_sum(x), np.asarray(wanted, np.float32)) == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_not_finite(dtype):
    most = float(jnp.finfo(dtype).max)
    inf, nan = np.inf, np.nan
    columns = {
        (1, nan): nan,
        (inf, 1): inf,
        (-inf, most): -inf,
        (inf, -inf): nan,
        (inf, nan): nan,
        (inf, inf): inf,
        (most, most): inf,
        (-most, -most): -inf,
        (most, most, -most): most,
        (-most, most, -most, -most, most): -most,
    }
    for column, wanted in columns.items():
        # In every order, and as all rows of a wider sum.
        for order in itertools.islice(itertools.permutations(column), 6):
            got = float(local_sum(np.asarray(order, dtype)))
            assert got == wanted or (np.isnan(got) and np.isnan(wanted)), (order, got)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_subnormal_numbers_and_zeros_count_as_what_they_are(dtype):
    kind = jnp.finfo(dtype)
    least, normal = kind.smallest_subnormal, kind.tiny
    bits = np.dtype(f"u{kind.bits // 8}")

    def of(*patterns):
        return np.asarray(patterns, bits).view(dtype)

    step = 1 << kind.nmant  # the bits of the least normal number
    sign = 1 << (kind.bits - 1)
    assert float(np.asarray(of(1), dtype)[0]) == float(least)
    cases = [
        (of(1, 1, 1), of(3)),
        (of(1, sign | 1), of(0)),
        (of(step - 1, 1), of(step)),
        (of(step, sign | 1), of(step - 1)),
        (of(sign | 5, sign | 2), of(sign | 7)),
        (of(sign, sign), of(0)),
        (of(0, sign), of(0)),
    ]
    assert float(normal) == float(of(step)[0])
    for addends, wanted in cases:
        assert np.asarray(local_sum(addends)).reshape(1).view(bits)[0] == wanted.view(bits)[0]


def test_float64_has_99_bits():
    with jax.enable_x64(True):
        x = numbers(16, 30, dtype=np.float64, spread=8)
        got = np.asarray(jc.invariant_sum(x, ()))
        assert got.dtype == np.float64
        for found, column in zip(got, x.T, strict=True):
            exact = sum(map(Fraction, column.tolist()))
            bound = 16 * 2.0**-99 * abs(column).max() + 2.0**-53 * abs(float(exact))
            assert abs(Fraction(found) - exact) <= bound * (1 + 1e-9)
        assert differing(got, jc.invariant_sum(x[::-1], ())) == 0
        narrow = np.asarray(jc.invariant_sum(x.astype(np.float32), ()))
    assert differing(narrow, local_sum(x.astype(np.float32))) == 0


# ---------------------------------------------------------------------- who adds


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_number_of_ranks_gives_the_same_bits(dtype):
    x = numbers(240, 301, dtype=dtype)
    wanted = local_sum(x)
    for ranks in (1, 2, 3, 4, 5, 8, 16):
        assert differing(divided(x, ranks), wanted) == 0
    assert differing(divided(x[:, ::-1], 16)[::-1], wanted) == 0
    plain = sharded(lambda v: lax.psum(v.sum(0), "x"), mesh_of(4), P("x"), P())(x)
    assert differing(np.asarray(plain), wanted) > 30


@pytest.mark.parametrize("schedule", ["ring", "tacos", "bfb", "multitree", "halving", "direct"])
def test_any_schedule_gives_the_same_bits(schedule):
    x = numbers(16, 301)
    wanted = local_sum(x)
    for ranks in (4, 8, 16):
        assert differing(divided(x, ranks, schedule=schedule), wanted) == 0

    def one_each(v):
        # Another place in another buffer, beside another leaf.
        padded = jnp.concatenate([jnp.ones(1000), v[0], jnp.ones(77)])
        total, _ = jc.psum([padded, v[0, :5]], "x", schedule=schedule, order="invariant")
        return total[1000:-77]

    assert differing(divided(x, 16, function=one_each), wanted) == 0


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_agree_bit_for_bit(dtype, check_vma):
    n = 8
    x = numbers(n, n, 40, dtype=dtype)
    wanted = np.asarray(local_sum(x))

    def all_of(v):
        own, index = v[0], lax.axis_index("x")
        total = jc.psum(own, "x", order="invariant")
        part = jc.psum_scatter(own, "x", order="invariant")
        tiled = jc.psum_scatter(own, "x", scatter_dimension=1, tiled=True, order="invariant")
        mapped = jax.vmap(lambda u: jc.psum(u, "x", order="invariant"), 1, 1)(own)
        scattered = jax.vmap(lambda u: jc.psum_scatter(u, "x", order="invariant"), 1, 0)(own)
        mean = jc.pmean(own, "x", order="invariant") * n
        rest = lax.dynamic_slice_in_dim(total, index * 5, 5, 1)
        return (
            jnp.stack([total, mapped, mean])[None],
            jnp.stack([part, scattered, total[index]])[None],
            jnp.stack([tiled, rest])[None],
        )

    mesh = mesh_of(n)
    whole, parts, tiled = sharded(all_of, mesh, P("x"), P("x"), check_vma=check_vma)(x)
    for each in np.asarray(whole).reshape(-1, n, 40):
        assert differing(each, wanted) == 0
    for r in range(n):
        for each in np.asarray(parts)[r]:
            assert differing(each, wanted[r]) == 0
        assert differing(tiled[r, 0], tiled[r, 1]) == 0
    on_one = jax.vmap(
        lambda v: (
            jc.psum(v, "i", order="invariant"),
            jc.psum_scatter(v, "i", order="invariant"),
        ),
        axis_name="i",
    )(x)
    assert differing(on_one[0][3], wanted) == 0
    assert differing(on_one[1], wanted) == 0


def test_groups_several_axes_integers_and_wider_dtypes():
    x = numbers(8, 50)
    groups = [[0, 3, 5, 6], [7, 1, 2, 4]]

    def grouped(v):
        return jc.psum(v, "x", axis_index_groups=groups, order="invariant")

    rows = divided(x, 8, P("x"), grouped)
    for group in groups:
        assert differing(rows[group[2]], local_sum(x[group])) == 0

    def grouped_part(v):
        cut = v.reshape(1, -1)[:, :48].reshape(4, 12)
        return jc.psum_scatter(cut, "x", axis_index_groups=groups, order="invariant")[None]

    parts = divided(x, 8, P("x"), grouped_part)
    for group in groups:
        whole = np.asarray(local_sum(x[group]))[:48].reshape(4, 12)
        assert differing(parts[group], whole) == 0
    two = sharded(
        lambda v: jc.psum(v[0, 0], ("y", "x"), order="invariant"), mesh_of(2, 4), P("x", "y"), P()
    )(x.reshape(2, 4, 50))
    assert differing(two, local_sum(x)) == 0
    tree = {"i": np.arange(80, dtype=np.int32).reshape(8, 10), "b": x > 0, "x": x}
    got = sharded(
        lambda v: jax.tree.map(lambda y: y[0], jc.psum(v, "x", order="invariant")),
        mesh_of(8), P("x"), P(),
    )(tree)  # fmt: skip
    np.testing.assert_array_equal(got["i"], tree["i"].sum(0))
    np.testing.assert_array_equal(got["b"], (x > 0).sum(0))
    counted = divided(tree["i"], 8, function=lambda v: jc.psum(v[0], "x", order="invariant"))
    np.testing.assert_array_equal(counted, got["i"])
    narrow = numbers(8, 50, dtype="bfloat16")
    wide = divided(narrow, 8, accum_dtype=jnp.float32)
    assert differing(wide, np.asarray(local_sum(narrow.astype(np.float32))).astype("bfloat16")) == 0


def test_more_than_a_thousand_addends_of_a_rank():
    x = numbers(2**15, 3, spread=1)
    wanted = local_sum(x)
    assert differing(divided(x, 4), wanted) == 0
    exact = [float(sum(map(Fraction, column.astype(float).tolist()))) for column in x.T]
    np.testing.assert_allclose(wanted, exact, rtol=2.0**-23)
    # All bits of both words: as many as words have room for, on one rank and on several.
    full = np.full((2**15, 1), 2 - 2.0**-23, np.float32)
    assert differing(local_sum(full), full[0] * 2**15) == 0
    assert differing(divided(full[: 2**14], 16), full[0] * 2**14) == 0
    with pytest.raises(CollectiveError, match="at most 32768 addends"):
        jc.invariant_sum(np.ones(2**15 + 1, np.float32), ())


@pytest.mark.parametrize("check_vma", [True, False])
def test_derivatives_are_those_of_the_sum(check_vma):
    x = numbers(4, 4, 6)

    def of(sum_of, scatter_of):
        def loss(v):
            total, part = sum_of(v), scatter_of(v)
            return (total * jnp.arange(6.0)).sum() + (part * jnp.arange(1, 7.0)).sum()

        return lambda v: jax.grad(loss)(v[0])[None]

    ours = of(
        lambda v: jc.psum(v, "x", order="invariant"),
        lambda v: jc.psum_scatter(v, "x", order="invariant"),
    )
    theirs = of(lambda v: lax.psum(v, "x"), lambda v: lax.psum_scatter(v, "x"))
    mesh = mesh_of(4)
    got, wanted = (sharded(f, mesh, P("x"), P("x"), check_vma=check_vma)(x) for f in (ours, theirs))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    local = jax.grad(lambda v: (jc.invariant_sum(v, ()) * jnp.arange(6.0)).sum())(x[0])
    np.testing.assert_array_equal(local, np.tile(np.arange(6), (4, 1)))


@pytest.mark.parametrize(("dtype", "each"), [(jnp.float32, 9), (jnp.bfloat16, 5)])
def test_bytes_on_the_wire(dtype, each):
    """For each element: 2.25 times those of a float32, and 2.5 times those of a bfloat16."""
    n, shape = 8, jax.ShapeDtypeStruct((8, 8 * 1024), dtype)
    ways = 8 * 1024 * (n - 1) // n

    def wire_bytes(function):
        compiled = aot.compile_for(
            mesh_of(n), lambda v: function(v[0]), [shape], [P("x")], P("x"), check_vma=False
        )
        return aot.summarize(compiled).wire_bytes

    def total(v, **options):
        return jc.psum(v, "x", schedule="ring", **options)

    def part(v, **options):
        return jc.psum_scatter(v, "x", tiled=True, schedule="ring", **options)

    # XLA on CPUs sends a plain bfloat16 as a float32, so plain sums are not measured.
    assert wire_bytes(lambda v: total(v, order="invariant")) == 2 * ways * each
    # Exponents go to all ranks, words to one.
    assert wire_bytes(lambda v: part(v, order="invariant")) == ways * (each + 1)


def test_gradients_do_not_know_the_ranks():
    """What users want it for: one batch, on any number of ranks, in the same bits."""
    x, y = numbers(48, 5, spread=0), numbers(48, 5, seed=1, spread=0)

    def gradient(x, y):
        # One operation at a time: XLA may round those of an example otherwise in other batches.
        error = lax.optimization_barrier(x * 0.7) - y
        return jc.invariant_sum(lax.optimization_barrier(error) * x, "x")

    found = [
        np.asarray(sharded(gradient, mesh_of(n), P("x"), P(), check_vma=False)(x, y))
        for n in (1, 3, 8, 16)
    ]
    assert [differing(each, found[0]) for each in found] == [0] * 4


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: jc.psum(v + 1j, "x", order="invariant"), "integers and for floats.*complex64"),
        (lambda v: jc.psum(v.astype(jnp.float8_e4m3fn), "x", order="invariant"), "of 16 bits"),
        (lambda v: jc.psum(v, "x", order="stable"), "'invariant', for sums that no order"),
        (lambda v: jc.psum(v, "x", order="invariant", wire_dtype=jnp.bfloat16), "leave one"),
        (lambda v: jc.invariant_sum(v[:0], "x"), "of at least one addend"),
        (lambda v: jc.invariant_sum(v, "x", axis=3), "axis=3 is not a dimension"),
        (lambda v: jc.invariant_sum(v, "y"), "axis 'y' is not bound"),
    ],
)
def test_what_cannot_be_is_refused_while_tracing(function, message):
    mapped = jax.shard_map(
        function, mesh=mesh_of(4), in_specs=P("x"), out_specs=P(), check_vma=False
    )
    with pytest.raises(CollectiveError, match=message):
        jax.eval_shape(mapped, jax.ShapeDtypeStruct((4, 8), jnp.float32))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_element_of_many_differs(dtype):
    """By four synthesizers and on 1 to 16 ranks: 10^7 sums of each dtype."""
    x = numbers(16, 600_000, dtype=dtype)
    wanted, compared = local_sum(x), 0
    for ranks, schedule in itertools.product(
        (2, 4, 8, 16), ("ring", "tacos", "bfb", "halving", None)
    ):
        assert differing(divided(x, ranks, schedule=schedule), wanted) == 0
        compared += wanted.size
    assert compared > 10**7
