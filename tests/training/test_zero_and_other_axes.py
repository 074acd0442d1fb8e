"""``zero`` where other manual axes shard the parameters: as on one device, saved and restored."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from tests.execute.harness import integers, mesh_of, sharded

STEPS = 10
SPECS = {"up": P(None, "y"), "bias": P("y"), "down": P("y"), "last": P()}


def weights():
    rng = np.random.default_rng(0)
    shapes = {"up": (6, 8), "bias": (8,), "down": (8, 3), "last": (3,)}
    return {
        name: jnp.asarray(0.3 * rng.standard_normal(shape), jnp.float32)
        for name, shape in shapes.items()
    }


def data():
    x = np.random.default_rng(1).standard_normal((16, 6)).astype(np.float32)
    return x, np.sin(x.sum(1, keepdims=True) + np.arange(3)).astype(np.float32)


def loss(params, x, y, together=lambda h: h):
    hidden = jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"]
    return jnp.mean((together(hidden) + params["last"] - y) ** 2)


def inner():
    """Looks at ranks of arrays, at whole leaves and at all of them."""
    return optax.chain(
        optax.clip_by_global_norm(0.1),
        optax.scale_by_factored_rms(min_dim_size_to_factor=3),
        optax.lamb(1e-2, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    )


@functools.cache
def alone():
    """Losses and parameters of one device."""
    params, optimizer = weights(), inner()

    def step(carry, _):
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, *data())
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    (params, _), losses = jax.jit(lambda p: lax.scan(step, (p, optimizer.init(p)), length=STEPS))(
        params
    )
    return losses, params


@jax.custom_vjp
def summed(x):
    """The sum over y of rows of a product, where types do not say how it is differentiated."""
    return lax.psum(x, "y")


summed.defvjp(lambda x: (lax.psum(x, "y"), None), lambda _, gradient: (gradient,))


def trained(mesh, axes, with_mesh, check_vma):
    """Losses and parameters on a mesh, whose ``axes`` share the batch, saved halfway."""
    ours = jc.optax.zero(axes, inner(), specs=SPECS, mesh=mesh if with_mesh else None)
    shapes = jax.eval_shape(jc.optax.zero(axes, inner(), specs=SPECS, mesh=mesh).init, weights())
    state_specs = jc.optax.state_specs(shapes, axes, SPECS)

    def step(params, state, x, y):
        own = jax.tree.map(lambda v: lax.pcast(v, axes, to="varying"), params)
        together = functools.partial(lax.psum, axis_name="y") if check_vma else summed
        value, gradients = jax.value_and_grad(loss)(own, x, y, together)
        updates, state = ours.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, lax.pmean(value, axes)

    def placed(tree, specs):
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        return jax.device_put(tree, shardings)

    batch = P(axes)
    run = sharded(
        step,
        mesh,
        (SPECS, state_specs, batch, batch),
        (SPECS, state_specs, P()),
        check_vma=check_vma,
    )
    params = placed(weights(), SPECS)
    init = (
        ours.init
        if with_mesh
        else sharded(ours.init, mesh, (SPECS,), state_specs, check_vma=check_vma)
    )
    state, losses = init(params), []
    assert jax.tree.map(lambda x: x.shape, state) == jax.tree.map(lambda x: x.shape, shapes)
    for i in range(STEPS):
        if i == STEPS // 2:
            # What a checkpoint has: the values of global arrays, and how they are sharded.
            saved = jax.tree.map(np.asarray, (params, state))
            params, state = placed(saved[0], SPECS), placed(saved[1], state_specs)
        params, state, value = run(params, state, *data())
        losses.append(value)
    return losses, params


@pytest.mark.parametrize(
    ("sides", "axes", "with_mesh", "check_vma"),
    [
        pytest.param((4, 2), "x", True, True),
        pytest.param((4, 2), "x", False, False, marks=pytest.mark.slow),
        pytest.param((4, 2), "x", False, True, marks=pytest.mark.slow),
        pytest.param((2, 2, 2), ("x", "z"), True, True, marks=pytest.mark.slow),
        pytest.param((2, 2, 2), ("z", "x"), False, False, marks=pytest.mark.slow),
    ],
)
def test_training_and_a_checkpoint_are_those_of_one_device(sides, axes, with_mesh, check_vma):
    losses, params = trained(mesh_of(*sides), axes, with_mesh, check_vma)
    np.testing.assert_allclose(losses, alone()[0], rtol=2e-6)
    for name, expected in alone()[1].items():
        np.testing.assert_allclose(params[name], expected, rtol=2e-6, atol=2e-6)


def test_two_axes_may_shard_one_parameter_and_the_state_moves_to_other_ranks():
    """Rows for 4 ranks, for 2 and back, of a parameter that two axes cut along two dimensions."""
    mesh, specs = mesh_of(4, 2, 2), {"w": P("z", "y"), "v": P(("y", "z"))}
    params = {"w": jnp.arange(60.0).reshape(6, 10), "v": jnp.arange(12.0)}
    # The first moment of one step is a tenth of the gradient, which is the parameter here.
    ours = jc.optax.zero("x", optax.adam(1e-2), specs=specs, mesh=mesh)
    state_specs = jc.optax.state_specs(jax.eval_shape(ours.init, params), "x", specs)

    def step(params, state):
        own = jax.tree.map(lambda v: lax.pcast(v, "x", to="varying"), params)
        return ours.update(own, state, params)[1]

    state = sharded(step, mesh, (specs, state_specs), state_specs)(params, ours.init(params))
    assert jc.optax.state_specs({"s": state, "w": params["w"]}, "x", specs)["w"] == P()
    there = jc.optax.reshard_zero(state, params, 4, 2, specs=specs, mesh=mesh)
    back = jc.optax.reshard_zero(there, params, 2, 4, specs=specs, mesh=mesh)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a, b)
    for ranks, mu in ((4, state.inner[0].mu), (2, there.inner[0].mu)):
        for name, whole in params.items():
            blocks = np.split(np.asarray(mu[name]), 4, axis=1)
            if name == "w":
                parts = [p for half in np.split(whole, 2) for p in np.split(half, 2, axis=1)]
            else:
                parts = np.split(whole, 4)
            for block, part in zip(blocks, parts, strict=True):
                assert block.shape[0] == ranks
                found = block.reshape(-1)[: part.size].reshape(part.shape)
                np.testing.assert_allclose(found, 0.1 * part, rtol=1e-6)


# ---------------------------------------------------------------------- refusals


def updated(specs, given, check_vma=True, **options):
    """An update on 2 x 2 ranks whose parameter is sharded as in ``given``."""
    ours = jc.optax.zero("x", optax.adam(1e-2), specs=specs, **options)

    def step(w):
        own = lax.pcast(w, "x", to="varying")
        found: Any = ours.update({"w": own}, ours.init({"w": w}), {"w": w})[0]
        return found["w"]

    return sharded(step, mesh_of(2, 2), (given,), given, check_vma=check_vma)(
        integers((4, 6), np.float32)
    )


@pytest.mark.parametrize(
    ("specs", "given", "check_vma", "match"),
    [
        (None, P("y"), True, r"\['w'\] varies over axis 'y', and specs= of zero does not shard"),
        (P(), P("y"), True, "varies over axis 'y'"),
        (P("y"), P(), True, r"\['w'\] is the same on all ranks of axis 'y', over which specs="),
        (None, P("y"), False, "whether axis 'y' shards parameters cannot be known without"),
        (P("x"), P(), True, "specs= of zero names axis 'x', over which zero itself"),
        (P("q"), P("y"), True, "over axis 'q', and the axes here are 'x', 'y'"),
        (P(None, None, "y"), P(), True, "for 3 dimensions"),
        ({"v": P("y")}, P("y"), True, "a tree of them with the structure of the parameters"),
        ({"w": "y"}, P("y"), True, "takes a PartitionSpec for every parameter, got 'y'"),
    ],
)
def test_specs_that_are_not_those_of_the_parameters_are_refused(specs, given, check_vma, match):
    with pytest.raises(CollectiveError, match=match):
        updated(specs, given, check_vma)


def test_parameters_that_are_the_same_may_be_said_to_be():
    expected = updated(None, P())
    np.testing.assert_array_equal(updated(P(), P(), check_vma=False), expected)


def test_a_state_of_other_specs_is_refused():
    params = {"w": jnp.ones((4, 6))}
    mesh = mesh_of(2, 2)
    state = jc.optax.zero("x", optax.adam(1e-2), specs=P(None, "y"), mesh=mesh).init(params)
    ours = jc.optax.zero("x", optax.adam(1e-2))

    def step(params, state):
        return ours.update(jax.tree.map(lambda v: lax.pcast(v, "x", to="varying"), params), state)

    specs = jc.optax.state_specs(state, "x", P(None, "y"))
    with pytest.raises(CollectiveError, match=r"a shard of 6 elements at .*, and 12 are those of"):
        sharded(step, mesh, (P(), specs), (P(), P("x")))(params, state)
    uneven = {"w": jnp.ones((4, 5))}
    with pytest.raises(CollectiveError, match=r"shape \(4, 5\), which specs= of zero cuts in"):
        jc.optax.zero("x", optax.adam(1e-2), specs=P(None, "y"), mesh=mesh).init(uneven)
    other = jc.optax.zero("x", optax.adam(1e-2), mesh=mesh).init(uneven)
    with pytest.raises(CollectiveError, match=r"a shard of 10 elements.*, and 12 are"):
        sharded(step, mesh, (P(), P("x")), (P(), P("x")))(params, other)
