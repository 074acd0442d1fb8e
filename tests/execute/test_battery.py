"""Drawn at random: collective, shape, dtype, network, synthesizer, lowering. As ``jax.lax``."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import integers, mesh_of, schedule_of, sharded

FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)
DTYPES = (*FLOATS, jnp.int32, jnp.int8, jnp.uint32, jnp.complex64, jnp.bool_)
GATHERS = [("ring", "ring"), ("mesh", "bucket"), ("torus", "bucket"), ("mesh", "tacos")]
GATHERS += [("star", "tacos"), ("complete", "direct"), ("star", "hops")]
QUICK = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: the function's name and options, the operand on a rank, and how it is run."""

    function: str
    options: tuple
    n: int
    shape: tuple[int, ...]
    dtype: Any
    network: str
    synthesizer: str
    chunks: int
    lowering: str

    def schedule(self):
        kinds = {"psum": "all_reduce", "pmean": "all_reduce", "psum_scatter": "reduce_scatter"}
        kind = kinds.get(self.function, self.function)
        synthesizer = self.synthesizer
        if kind == "all_to_all":
            synthesizer = "hops" if self.synthesizer == "hops" else "direct"
        elif synthesizer == "hops" and kind == "all_reduce":
            kind = "all_gather"  # from which the all_reduce is derived
        return schedule_of(self.network, self.n, kind, synthesizer, self.chunks)


@st.composite
def cases(draw):
    function = draw(st.sampled_from(["psum", "pmean", "all_gather", "psum_scatter", "all_to_all"]))
    # Division by a power of two is exact, so that means can be compared bitwise.
    n = draw(st.sampled_from([2, 4, 8] if function == "pmean" else [2, 3, 4, 6, 8]))
    # lax.all_gather of nothing does not compile, so empty arrays are for psum alone.
    smallest = 0 if function == "psum" else 1
    shape = tuple(draw(st.lists(st.integers(smallest, 5), max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    options = {}
    if function == "all_gather":
        options["tiled"] = draw(st.booleans()) and bool(shape)
        rank = len(shape) + (not options["tiled"])
        options["axis"] = draw(st.integers(-rank, rank - 1))
    if function in ("psum_scatter", "all_to_all"):
        tiled = options["tiled"] = draw(st.booleans())
        at = draw(st.integers(0, len(shape)))
        size = n * draw(st.integers(1, 3)) if tiled else n
        shape = (*shape[:at], size, *shape[at:])
        if function == "psum_scatter":
            options["scatter_dimension"] = at
            dtype = jnp.float32 if dtype == jnp.bool_ else dtype
        else:
            options["split_axis"] = at
            # Untiled, lax.all_to_all has no gradient unless the two are the same.
            options["concat_axis"] = draw(st.integers(0, len(shape) - 1)) if tiled else at
    network, synthesizer = draw(st.sampled_from(GATHERS))
    if n % 2 and network in ("mesh", "torus"):
        network = "ring"
    if network == "ring" and synthesizer in ("bucket", "tacos"):
        synthesizer = "tacos"
    return Case(
        function,
        tuple(options.items()),
        n,
        shape,
        dtype,
        network,
        synthesizer,
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["ssa", "scan"])),
    )


def check(case: Case) -> None:
    """Values, and gradients where they exist, equal those of ``jax.lax`` bitwise."""
    schedule, options = case.schedule(), dict(case.options)
    x = integers((case.n, *case.shape), case.dtype, seed=2)
    differentiable = jnp.issubdtype(case.dtype, jnp.inexact)

    def both(v):
        out = []
        ours = {"schedule": schedule, "lowering": case.lowering}
        for module, extra in ((jc, ours), (lax, {})):

            def function(u, module=module, extra=extra):
                return getattr(module, case.function)(u, "x", **options, **extra)

            value = function(v[0])
            out.append(value[None])
            if differentiable:
                weights = jnp.arange(value.size).reshape(value.shape) % 5
                out.append(jax.vjp(function, v[0])[1](weights.astype(value.dtype))[0][None])
        return out

    out = sharded(both, mesh_of(case.n), P("x"), P("x"), check_vma=False)(x)
    half = len(out) // 2
    for got, want in zip(out[:half], out[half:], strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got, want)


@QUICK
@given(cases())
def test_as_lax(case):
    check(case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@LONG
@given(cases())
def test_as_lax_at_length(case):
    check(case)


# Every schedule by one lowering; by the other where it is slow.
IN_64_BITS = {(None, "ssa"), ("tacos", "scan")}


@pytest.mark.parametrize(
    ("schedule", "lowering"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in IN_64_BITS))
        for case in itertools.product([None, "bucket", "forestcoll", "tacos"], ["ssa", "scan"])
    ],
)
def test_in_64_bits(schedule, lowering):
    def both(v):
        ours = {"schedule": schedule, "lowering": lowering}
        return [
            [
                m.psum(v[0], "x", **k),
                m.all_gather(v[0], "x", **k),
                m.psum_scatter(v[0], "x", **k),
                m.pmax(v[0], "x", **k),
            ]
            for m, k in ((jc, ours), (lax, {}))
        ]

    with jax.enable_x64(True):
        for dtype in (jnp.int64, jnp.float32):
            x = integers((4, 4, 3), dtype)
            mapped = sharded(
                lambda v: jax.tree.map(lambda u: u[None], both(v)), mesh_of(4), P("x"), P("x")
            )
            got, want = mapped(x)
            for a, b in zip(got, want, strict=True):
                assert a.dtype == b.dtype == dtype
                np.testing.assert_array_equal(a, b)


def test_empty_arrays():
    def every(v):
        v = v[0]
        gathered = jc.all_gather(v, "x"), jc.all_gather(v, "x", axis=1, tiled=True)
        scattered = jc.psum_scatter(v, "x"), jc.psum_scatter(v, "x", tiled=True)
        swapped = jc.all_to_all(v, "x", 0, 0), jc.all_to_all(v, "x", 0, 1, tiled=True)
        return [out[None] for out in (*gathered, *scattered, *swapped)]

    out = sharded(every, mesh_of(4), P("x"), P("x"))(np.zeros((4, 4, 0), np.int32))
    shapes = [(4, 4, 0), (4, 0), (0,), (1, 0), (4, 0), (1, 0)]
    assert [v.shape for v in out] == [(4, *shape) for shape in shapes]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("accum_dtype", [None, jnp.float32])
def test_rounding_of_sums_is_bounded(dtype, accum_dtype):
    n = 8
    x = np.random.default_rng(0).normal(size=(n, 333)).astype(np.float32).astype(dtype)
    f = lambda v: jc.psum(v[0], "x", accum_dtype=accum_dtype)[None]  # noqa: E731
    program = sharded(f, mesh_of(n), P("x"), P("x"), check_vma=False)
    out = program(x)
    assert out.dtype == dtype
    exact = x.astype(np.float64)
    sent = accum_dtype or dtype
    eps = float(jnp.finfo(sent).eps)
    bound = n * eps * np.abs(exact).sum(0) + float(jnp.finfo(dtype).eps) * np.abs(exact.sum(0))
    assert (np.abs(np.asarray(out, np.float64) - exact.sum(0)) <= bound).all()
    # Bitwise the same on all ranks and from run to run.
    again = program(x)
    for rank in range(n):
        np.testing.assert_array_equal(out[rank], out[0])
        np.testing.assert_array_equal(again[rank], out[0])
