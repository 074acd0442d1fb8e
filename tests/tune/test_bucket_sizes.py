"""The size of gradient buckets, chosen by the time of a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxcoll.tune
from jaxcoll import optax
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import measured_costs

MESH = Mesh(np.array(jax.devices()[:2]), ("x",))
LEAVES = {name: jnp.arange(8.0) for name in "abcd"}


def step_of(nbytes: int):
    """The sum of every leaf, in buckets; donates them."""
    summed = optax.all_reduce_gradients("x", mean=False, bucket_bytes=nbytes, schedule="ring")

    def step(leaves):
        return summed.update(leaves, summed.init(leaves))[0]

    split, whole = PartitionSpec("x"), PartitionSpec()
    return jax.jit(
        jax.shard_map(step, mesh=MESH, in_specs=split, out_specs=whole), donate_argnums=0
    )


@pytest.fixture
def speed(monkeypatch):
    """A clock by which each program in turn takes the given seconds, with 1 % noise."""
    seconds: list[float] = []

    def in_alternation(calls, together, rounds):
        noise = np.random.default_rng(0).normal(1, 0.01, (rounds, len(calls)))
        return np.array(seconds)[: len(calls)] * noise

    monkeypatch.setattr(measured_costs, "in_alternation", in_alternation)
    return seconds


def test_sizes_of_the_same_program_are_measured_once():
    found = jaxcoll.tune.bucket_bytes(step_of, LEAVES, sizes=(0, 31, 32, 64, 100, 10**9), rounds=2)
    # A leaf of a rank has 16 bytes: apart, in pairs, and all four, which is the default's.
    assert list(found.seconds) == [25 << 20, 0, 32]
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.nbytes in found.seconds
    np.testing.assert_array_equal(LEAVES["a"], np.arange(8.0))


def test_the_fastest_is_chosen(speed):
    speed += [3.0, 2.0, 1.0]
    found = jaxcoll.tune.bucket_bytes(step_of, LEAVES, sizes=(0, 32))
    assert found.nbytes == 32
    assert found.seconds[32] == pytest.approx(1.0, rel=0.02)


def test_the_default_stays_where_none_is_faster_beyond_noise(speed):
    speed += [1.0, 0.9999, 1.5]
    assert jaxcoll.tune.bucket_bytes(step_of, LEAVES, sizes=(0, 32)).nbytes == 25 << 20


@pytest.mark.parametrize(
    "change", [{"sizes": (-1,)}, {"sizes": (0.5,)}, {"sizes": 8}, {"rounds": 1}]
)
def test_misuse(change):
    with pytest.raises(TuneError):
        jaxcoll.tune.bucket_bytes(step_of, LEAVES, **change)


def test_all_sizes_give_the_same_results():
    with pytest.raises(TuneError, match="buckets of 7 bytes"):
        jaxcoll.tune.bucket_bytes(
            lambda n: lambda x: x[: 4 if n == 7 else 8], jnp.ones(8), sizes=(7,)
        )
