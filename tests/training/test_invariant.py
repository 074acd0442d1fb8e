"""Training steps that have the same bits on any number of ranks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from tests.execute.harness import mesh_of, sharded


def numbers(*shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("bucket_bytes", [0, 500])
@pytest.mark.parametrize("check_vma", [True, False])
def test_buckets_and_shards_have_the_bits_of_psum(bucket_bytes, check_vma):
    n = 4
    given = {"a": numbers(n, 30, 7), "b": numbers(n, 5, seed=1) * 1e3}
    params = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), given)
    options: dict[str, Any] = {"order": "invariant", "bucket_bytes": bucket_bytes}
    reduce: Any = jc.optax.all_reduce_gradients("x", **options)
    sharded_sgd: Any = jc.optax.zero("x", optax.scale(1.0), **options, mesh=mesh_of(n))

    def both(tree, state):
        own = jax.tree.map(lambda x: x[0], tree)
        steps, _ = sharded_sgd.update(own, state, params)
        return reduce.update(own, optax.EmptyState())[0], steps

    got = sharded(
        both, mesh_of(n), (P("x"), P("x")), P(), check_vma=check_vma
    )(given, sharded_sgd.init(params))  # fmt: skip
    for found in got:
        for name, x in given.items():
            wanted = np.asarray(jc.invariant_sum(x, ())) / n
            np.testing.assert_array_equal(found[name], wanted)


def test_training_has_the_same_bits_on_1_and_on_16_ranks():
    x, y = numbers(32, 6), numbers(32, 6, seed=1)
    optimizer = optax.sgd(2.0**-4)
    alone = jax.lax.optimization_barrier

    def train(params, state, x, y):
        def step(carry, _):
            params, state = carry
            own = jax.lax.pcast(params, "x", to="varying")
            # One operation at a time: XLA may round those of an example otherwise in other batches.
            each = alone(alone(alone(x * own) - y) * x)
            gradient = jc.invariant_sum(each, "x") / 32
            updates, state = optimizer.update(gradient, state, params)
            moved: Any = optax.apply_updates(params, updates)
            return (moved, state), None

        (params, _), _ = jax.lax.scan(step, (params, state), length=20)
        return params

    params: Any = jnp.ones(6)
    found = [
        np.asarray(
            sharded(train, mesh_of(n), (P(), P(), P("x"), P("x")), P())(
                params, optimizer.init(params), x, y
            )
        )
        for n in (1, 2, 16)
    ]
    assert not np.array_equal(found[0], np.ones(6))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


def test_overlap_refuses_it():
    with pytest.raises(CollectiveError, match="give that to all_reduce_gradients"):
        jc.optax.overlap([jnp.dot], jnp.sum, "x", order="invariant")
