"""A schedule played over links gives what ``jax.lax`` gives, wherever in a program it stands."""

from __future__ import annotations

import socket
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import engine
from tests.execute.harness import mesh_of
from tests.execute.lowerings.player import is_compiled

pytestmark = pytest.mark.skipif(not is_compiled(), reason="needs a C++ compiler")

BY_LINKS: dict[str, Any] = {"schedule": "ring", "lowering": "links"}
ALONG = P(("x", "y"))


def results(body, x, out=ALONG, **options):
    mesh = mesh_of(2, 4)
    program = jax.shard_map(body, mesh=mesh, in_specs=ALONG, out_specs=out, **options)
    return jax.tree.map(np.asarray, jax.jit(program)(x))


def check(body, x, out: Any = ALONG, **options):
    """``body(psum)`` is the same for ours and that of ``jax.lax``."""

    def ours(v, axes, **more):
        return jc.psum(v, axes, **BY_LINKS, **more)

    got = results(body(ours), x, out, **options)
    jax.tree.map(np.testing.assert_array_equal, got, results(body(jax.lax.psum), x, out, **options))


@pytest.mark.parametrize("axes", ["x", "y", ("x", "y"), ("y", "x")], ids=str)
def test_along_axes(axes):
    check(lambda psum: lambda v: psum(v, axes) + 0 * v, jnp.arange(88.0))


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "int8", "uint8", "int16", "uint32", "complex64"]
)
def test_numbers_of_types(dtype):
    check(lambda psum: lambda v: psum(v, "y") + 0 * v, jnp.arange(80).astype(dtype))


def test_types_say_that_the_result_is_the_same_everywhere():
    check(lambda psum: lambda v: psum(v, ("x", "y")), jnp.arange(80.0), P())


def test_calls_of_one_function_do_not_mix():
    def body(psum):
        inner = jax.jit(lambda v: psum(v, "y"))
        return lambda v: inner(v) + 3 * inner(v * v) + 0 * v

    check(body, jnp.arange(80.0))


def test_many_calls_and_those_in_a_loop():
    def body(psum):
        def step(carry, _):
            total = psum(carry, "y") + 0 * carry
            return total % 7, total

        return lambda v: (sum(psum(v * i, "y") for i in range(12)) + 0 * v,
                          jax.lax.scan(step, v, None, length=5)[1])  # fmt: skip

    check(body, jnp.arange(80.0), (ALONG, P(None, ("x", "y"))))


def test_derivatives_batches_and_groups():
    check(lambda psum: jax.grad(lambda v: jnp.sum(psum(v**2, "y"))), jnp.arange(80.0))
    check(
        lambda psum: lambda v: jax.vmap(lambda u: psum(u, "y"))(v) + 0 * v,
        jnp.arange(80.0).reshape(40, 2),
    )
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    check(
        lambda psum: lambda v: psum(v, ("x", "y"), axis_index_groups=groups) + 0 * v,
        jnp.arange(80.0),
        check_vma=False,
    )


def test_maxima_keep_nans():
    x = jnp.arange(80.0).at[5].set(jnp.nan)
    got = results(lambda v: jc.pmax(v, "y", **BY_LINKS) + 0 * v, x)
    rows = np.asarray(x).reshape(2, 4, 10)
    want = np.broadcast_to(rows.max(1, keepdims=True), rows.shape) + 0 * rows
    np.testing.assert_array_equal(got, want.ravel())


@pytest.mark.parametrize("synthesizer", ["tacos", "direct"])
def test_blocks_of_ranks(synthesizer):
    by = {"schedule": synthesizer, "lowering": "links"}
    x = jnp.arange(8 * 64.0)

    def compared(ours, theirs):
        np.testing.assert_array_equal(results(ours, x), results(theirs, x))

    axes = ("x", "y")
    compared(
        lambda v: jc.all_gather(v, axes, tiled=True, **by),
        lambda v: jax.lax.all_gather(v, axes, tiled=True),
    )
    compared(
        lambda v: jc.psum_scatter(v, axes, tiled=True, **by),
        lambda v: jax.lax.psum_scatter(v, axes, tiled=True),
    )
    compared(
        lambda v: jc.all_to_all(v, axes, 0, 0, tiled=True, **by),
        lambda v: jax.lax.all_to_all(v, axes, 0, 0, tiled=True),
    )


def test_what_it_cannot_add_is_refused_by_name():
    with pytest.raises(CollectiveError, match="links: it cannot add complex64"):
        results(lambda v: jc.pmax(v, "y", **BY_LINKS) + 0 * v, jnp.arange(80).astype("complex64"))


HELLO = 72  # bytes
OF_ANOTHER_JOB = struct.pack("<I", engine.build.source_number()) + bytes(HELLO - 4)


@pytest.mark.parametrize(
    ("said", "answer"),
    [(b"", b""), (b"GET / HTTP/1.0\r\n\r\n", b""), (bytes(HELLO), b"v"), (OF_ANOTHER_JOB, b"t")],
)
def test_a_stranger_is_refused_and_changes_nothing(said, answer):
    check(lambda psum: lambda v: psum(v, "y") + 0 * v, jnp.arange(80.0))
    host, port, *_ = engine._address()
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == answer
    check(lambda psum: lambda v: psum(v, "y") + 0 * v, jnp.arange(80.0))


@pytest.mark.parametrize("said", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_is_seconds(said, monkeypatch):
    monkeypatch.setenv("JAXCOLL_TIMEOUT", said)
    with pytest.raises(
        CollectiveError, match=f"JAXCOLL_TIMEOUT must be a number of seconds above 0, got '{said}'"
    ):
        engine.timeout()


def test_a_library_of_another_source_is_not_used(monkeypatch):
    monkeypatch.setattr(engine.build, "source_number", lambda: 1)
    assert "of another version" in str(engine.library.__wrapped__())
