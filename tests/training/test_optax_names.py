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
from tests.execute.harness import mesh_of
from tests.training import optax_names

N, STEPS = 4, 20
# By itself, without a line search, it turns a change of 1e-7 into one of 0.2 in twenty steps.
FEW_STEPS = {"optax.scale_by_lbfgs": 3}
# Its products of matrices sum in an order that XLA takes from the processor. Parameters grow to 13,
# and in float32 an element of 0.2 then differs by 3e-6 on some processors: with more digits, and
# held to more of them, the same test tells a wrong update from rounding on all.
IN_DOUBLE = frozenset(("optax.contrib.scale_by_muon",))


def weights(scale=(), empty=(0, 2), half=jnp.float32):
    """Matrices and vectors that four ranks divide or not, fewer elements than ranks, and none."""
    rng = np.random.default_rng(5)

    def draw(*shape, dtype=jnp.float32):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    return {
        "kernel": draw(5, 7),
        "even": draw(8, 4),
        "layer": {"bias": draw(3), "half": draw(2, 9, dtype=half)},
        "scale": draw(*scale),
        "empty": draw(*empty),
    }


def loss(params, step):
    """A square at every leaf, of zero gradient in some steps: decay and noise still act."""
    total = 0.0
    for i, x in enumerate(jax.tree.leaves(params)):
        scale = jnp.where((step + i) % 5 == 3, 0.0, (1.0 + i) / max(1, x.size))
        total += scale * jnp.sum((x - 0.5) ** 2)
    return total


def trained(name, transformation, params, own=lambda gradients: gradients):
    """Parameters after all steps; ``own`` types gradients as a rank's own.

    They are the same on every rank, so that means are exact: others test those.
    """

    def body(carry, step):
        params, state = carry
        # Of optax.lookahead there are two copies of each, and one is differentiated.
        here = getattr(params, "fast", params)
        at_step = functools.partial(loss, step=step)
        value, gradients = jax.value_and_grad(at_step)(here)
        if name in ("optax.contrib.dpsgd", "optax.contrib.differentially_private_aggregate"):
            # Of several examples each.
            gradients = jax.tree.map(lambda g: jnp.stack([g, 2 * g, -g]), gradients)
        # Line searches and sam refuse what they do not know.
        function = "obj_fn" if "sophia" in name or "hutchinson" in name else "value_fn"
        extra = {"value": value, "grad": gradients, function: at_step}
        if name.endswith(".sam"):
            extra = {}
        updates, state = transformation.update(own(gradients), state, params, **extra)
        return (optax.apply_updates(params, updates), state), None

    carry, done = (params, jax.tree.map(jnp.asarray, transformation.init(params))), 0
    after, _ = jax.eval_shape(body, carry, 0)
    types = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (after, carry)]
    if types[0] != types[1]:  # some states have other types after the first step
        (carry, _), done = body(carry, 0), 1
    return lax.scan(body, carry, jnp.arange(done, FEW_STEPS.get(name, STEPS)))[0][0]


def given_to(name, **kinds):
    """The transformation and the parameters: as many kinds of leaves as it takes by itself."""
    plain, refusals = optax.with_extra_args_support(optax_names.make(name)), list[Exception]()
    for scale, empty in [(s, e) for s in ((), (1,)) for e in ((0, 2), (1, 2))]:
        params = weights(scale, empty, **kinds)
        if name == "optax.lookahead":
            params = optax.LookaheadParams.init_synced(params)
        try:
            after = jax.eval_shape(functools.partial(trained, name, plain), params)
            if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, params):
                raise ValueError("parameters get other shapes")
        except (TypeError, ValueError, ZeroDivisionError, IndexError) as refused:
            refusals.append(refused)
        else:
            return plain, params
    raise refusals[-1]


def check(name, plain, params, tolerance):
    """Compare the parameters after training with those of four ranks."""
    ours = jc.optax.zero("x", plain)

    def on_ranks(params):
        own = functools.partial(jax.tree.map, lambda x: lax.pcast(x, "x", to="varying"))
        return trained(name, ours, params, own)

    mapped = jax.shard_map(on_ranks, mesh=mesh_of(N), in_specs=P(), out_specs=P())
    expected = jax.jit(functools.partial(trained, name, plain))(params)
    found = jax.jit(mapped)(params)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        values = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance)


FAST = ("optax.multi_transform", "optax.apply_if_finite")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
        for name in optax_names.names()
    ],
)
def test_shards_train_as_whole_parameters(name):
    if name not in IN_DOUBLE:
        check(name, *given_to(name), 1e-6)
        return
    with jax.enable_x64(True):
        plain, params = given_to(name)
        check(name, plain, jax.tree.map(lambda x: x.astype(float), params), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "lamb", "adafactor", "contrib.muon", "apply_if_finite"])
def test_a_leaf_may_be_of_another_dtype(name):
    # XLA rounds bfloat16 where it ends a fusion, and programs differ in that.
    name = f"optax.{name}"
    check(name, *given_to(name, half=jnp.bfloat16), 8 * float(jnp.finfo(jnp.bfloat16).eps))


def test_every_name_can_be_made():
    names = optax_names.names()
    assert len(names) > 100
    assert {"optax.adamw", "optax.MultiSteps", "optax.contrib.muon"} < {*names}
    for name in names:
        optax.with_extra_args_support(optax_names.make(name))
