"""Whatever optax has updates shards as it updates whole parameters."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from tests.execute.harness import mesh_of, sharded
from tests.training import optax_names

N, STEPS = 4, 20


def weights():
    """Matrices and vectors that four ranks divide or not, fewer elements than ranks, none, bf16."""
    rng = np.random.default_rng(5)
    return {
        "kernel": jnp.asarray(rng.standard_normal((5, 7)), jnp.float32),
        "even": jnp.asarray(rng.standard_normal((8, 4)), jnp.float32),
        "layer": {
            "bias": jnp.asarray(rng.standard_normal(3), jnp.float32),
            "half": jnp.asarray(rng.standard_normal((2, 9)), jnp.bfloat16),
        },
        "scale": jnp.float32(0.5),
        "empty": jnp.zeros((0, 2)),
    }


def loss(params, step):
    """The same on every rank, so that means over ranks are exact: others test those."""
    total = 0.0
    for i, x in enumerate(jax.tree.leaves(params)):
        # A gradient of zeros in some steps: decay, noise and moments still act.
        scale = jnp.where((step + i) % 5 == 3, 0.0, 1.0 + i)
        target = jnp.sin(1.0 + jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
        total += scale * jnp.mean((x - target) ** 2) if x.size else 0.0
    return total


def trained(transformation, params, function, own=lambda params: params):
    """Parameters after all steps; ``own`` gives those that a rank differentiates."""

    def body(carry, step):
        params, state = carry
        # Of optax.lookahead there are two copies of each, and one is differentiated.
        here = getattr(params, "fast", params)
        value, gradients = jax.value_and_grad(loss)(here, step)
        _, mine = jax.value_and_grad(loss)(own(here), step)
        at_step = functools.partial(loss, step=step)
        extra = {"value": value, "grad": gradients, function: at_step}
        updates, state = transformation.update(mine, state, params, **extra)
        return (optax.apply_updates(params, updates), state), None

    return lax.scan(body, (params, transformation.init(params)), jnp.arange(STEPS))[0][0]


def both(name, params, n=N, **options):
    """Final parameters with whole updates, and with those of ``zero`` on ``n`` ranks."""
    plain = optax.with_extra_args_support(optax_names.make(name))
    if name == "optax.lookahead":
        params = optax.LookaheadParams.init_synced(params)
    # A line search refuses arguments that it does not know.
    function = "obj_fn" if "sophia" in name or "hutchinson" in name else "value_fn"
    ours = jc.optax.zero("x", plain)

    def own(params):
        return jax.tree.map(lambda x: lax.pcast(x, "x", to="varying"), params)

    def on_ranks(params):
        return trained(ours, params, function, own)

    mapped = jax.shard_map(on_ranks, mesh=mesh_of(n), in_specs=P(), out_specs=P(), **options)
    # XLA leaves bfloat16 unrounded inside of what it fuses, which differs between programs.
    exact = {"xla_allow_excess_precision": False}
    alone = jax.jit(lambda params: trained(plain, params), compiler_options=exact)
    return alone(params), jax.jit(mapped, compiler_options=exact)(params)


@pytest.mark.parametrize("name", optax_names.names())
def test_shards_train_as_whole_parameters(name):
    expected, found = both(name, weights())
    worst = 0
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        if a.size: worst = max(worst, float(np.max(np.abs(a-b)/(1+np.abs(b)))))
    print("WORST", name, worst)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        tolerance = max(1e-6, 8 * float(jnp.finfo(a.dtype).eps) if a.dtype == jnp.bfloat16 else 0)
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
