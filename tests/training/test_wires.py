"""Gradients by a narrow wire, and the bits that error feedback gives back."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.wires import Int8, Scaled, Wire
from tests.execute.harness import mesh_of, sharded

E4M3 = jnp.float8_e4m3fn
RANKS = 4


def gradients(seed: int) -> dict[str, Any]:
    """Of every rank, in the leading dimension."""
    rng = np.random.default_rng(seed)
    return {
        "a": rng.standard_normal((RANKS, 30, 7)).astype(np.float32),
        "b": rng.standard_normal((RANKS, 5)).astype(np.float32) * 100,
        "c": rng.standard_normal((RANKS, 3)).astype(jnp.bfloat16),
    }


def own(tree):
    return jax.tree.map(lambda x: x[0], tree)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("bucket_bytes", [0, 600, 10**6])
def test_reduced_gradients_are_near_and_the_same_on_all_ranks(bucket_bytes, check_vma):
    given = gradients(0)
    reduce: Any = jc.optax.all_reduce_gradients(
        "x", wire_dtype=Scaled(block=32), bucket_bytes=bucket_bytes
    )
    assert reduce.init(()) == optax.EmptyState()
    got = sharded(
        lambda tree: reduce.update(own(tree), optax.EmptyState())[0],
        mesh_of(RANKS), P("x"), P(), check_vma=check_vma,
    )(given)  # fmt: skip
    for name, x in given.items():
        exact, most = x.astype(np.float32).mean(0), abs(x.astype(np.float32)).max()
        assert got[name].dtype == x.dtype
        # A block of a bucket has elements of several leaves, the largest of them up to 300.
        assert abs(np.asarray(got[name], np.float32) - exact).max() <= max(most / 7, 0.05)


@pytest.mark.parametrize("make", ["all_reduce", "zero", "feedback"])
def test_int8_draws_other_bits_in_every_step(make):
    mesh, given = mesh_of(RANKS), {"a": gradients(0)["a"]}
    params = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), given)
    optimizer: Any = {
        "all_reduce": lambda wire: optax.chain(
            jc.optax.all_reduce_gradients("x", wire_dtype=wire), optax.sgd(1.0)
        ),
        "zero": lambda wire: jc.optax.zero("x", optax.sgd(1.0), wire_dtype=wire, mesh=mesh),
        "feedback": lambda wire: jc.optax.error_feedback("x", wire_dtype=wire, mesh=mesh),
    }[make]

    def steps(seed):
        transform = optimizer(Int8(seed))
        state = transform.init(params)
        spec = {"all_reduce": P(), "zero": P("x"), "feedback": P("x")}[make]
        if make == "feedback":
            spec = jc.optax.FeedbackState(P(), spec)
        run = sharded(
            lambda tree, state: transform.update(own(tree), state, params),
            mesh, (P("x"), spec), (P(), spec),
        )  # fmt: skip
        first, state = run(given, state)
        second, _ = run(given, state)
        return np.asarray(first["a"]), np.asarray(second["a"])

    first, second = steps(3)
    assert not np.array_equal(first, second)
    assert abs(abs(first) - abs(given["a"].mean(0))).max() < 0.1
    again = steps(3)
    np.testing.assert_array_equal(again, (first, second))
    assert not np.array_equal(steps(4)[0], first)


@pytest.mark.parametrize("wire", [E4M3, Int8(0)])
def test_shards_by_a_wire_are_near_and_go_to_another_number_of_ranks(wire):
    given = {name: x for name, x in gradients(0).items() if name != "c"}
    params = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), given)

    def steps_on(ranks, state):
        mesh = mesh_of(ranks)
        optimizer: Any = jc.optax.zero("x", optax.trace(0.5), wire_dtype=wire, mesh=mesh)
        state = optimizer.init(params) if state is None else state
        run = sharded(
            lambda tree, state: optimizer.update(own(tree), state, params),
            mesh, (P("x"), P("x")), (P(), P("x")),
        )  # fmt: skip
        return run(jax.tree.map(lambda x: x[:ranks], given), state)

    first, state = steps_on(RANKS, None)
    state = jc.optax.reshard_zero(state, params, RANKS, 2)
    second, _ = steps_on(2, state)
    for name, x in given.items():
        exact, most = x.mean(0), abs(given["b"]).max()
        assert abs(first[name] - exact).max() <= most / 8
        assert abs(second[name] - x[:2].mean(0) - exact / 2).max() <= most / 4


# ---------------------------------------------------------------------- error feedback


def test_ranks_do_not_lose_the_same_bits():
    """Of equal gradients: ranks 0 and 1 in the shards of the others."""
    fed: Any = jc.optax.error_feedback("x", wire_dtype=Int8(0), mesh=mesh_of(RANKS))
    x = np.tile(gradients(0)["a"][:1], (RANKS, 1, 1))
    spec = jc.optax.FeedbackState(P(), P("x"))
    run = sharded(
        lambda g, state: fed.update(own(g), state)[1], mesh_of(RANKS), (P("x"), spec), spec
    )
    left = np.asarray(run(x, fed.init(x[0])).residual).reshape(RANKS, -1)
    assert (left[0, 110:] != left[1, 110:]).mean() > 0.1


@pytest.mark.parametrize("wire", [E4M3, Int8(0), Scaled(jnp.float8_e5m2, 16)])
@pytest.mark.parametrize("mean", [True, False])
def test_nothing_is_lost_over_all_steps(wire, mean):
    """All reduced gradients and the residuals add up to all exact ones."""
    mesh, steps = mesh_of(RANKS), 5
    fed: Any = jc.optax.error_feedback("x", wire_dtype=wire, mean=mean, bucket_bytes=600, mesh=mesh)
    all_given = [gradients(seed) for seed in range(steps)]
    all_given = [{"a": g["a"], "b": g["b"]} for g in all_given]
    params = jax.tree.map(lambda x: x[0], all_given[0])
    spec = jc.optax.FeedbackState(P(), P("x"))
    run = sharded(
        lambda tree, state: fed.update(own(tree), state), mesh, (P("x"), spec), (P(), spec)
    )
    state = fed.init(params)
    assert jc.optax.state_specs(state, "x").residual == {"a": P("x"), "b": P("x")}
    totals = jax.tree.map(np.zeros_like, params)
    for given in all_given:
        got, state = run(given, state)
        totals = jax.tree.map(lambda t, g: t + np.asarray(g, np.float64), totals, got)
    for name, total in totals.items():
        exact = sum(given[name].astype(np.float64).sum(0) for given in all_given)
        left = np.asarray(state.residual[name], np.float64).sum(0)
        scale = RANKS if mean else 1
        assert abs(left).max() > 1e-3
        np.testing.assert_allclose(total * scale + left, exact, atol=2e-3, rtol=1e-6)


class Coarse(Wire):
    """Seven values for each row, rounded to nearest: small ones are zero in every step."""

    def encode(self, x):
        scale = jnp.max(abs(x), -1, keepdims=True) / 3
        return jnp.concatenate([jnp.round(x / scale), scale], -1)

    def decode(self, sent, size, dtype):
        return (sent[..., :size] * sent[..., size:]).astype(dtype)


def quadratic_loss(transform, state_spec: Any = None, steps: int = 400) -> float:
    """Of one half |p|^2 from ones, each rank with a slope of its own along the first element.

    These slopes cancel in the mean and are ten times what is to be learned.
    """
    optimizer = optax.chain(transform, optax.sgd(0.02))
    slopes = np.zeros((RANKS, 40), np.float32)
    slopes[:, 0] = [10, -10, 10, -10]
    spec = (P() if state_spec is None else state_spec, P())

    def train(params, state, slope):
        def step(carry, _):
            params, state = carry
            gradient = jax.lax.pcast(params, "x", to="varying") + slope[0]
            updates, state = optimizer.update(gradient, state, params)
            moved: Any = optax.apply_updates(params, updates)
            return (moved, state), None

        (params, _), _ = jax.lax.scan(step, (params, state), length=steps)
        return jnp.sum(params**2) / 2

    run = sharded(train, mesh_of(RANKS), (P(), spec, P("x")), P())
    params: Any = jnp.ones(40)
    return float(run(params, optimizer.init(params), slopes))


def test_with_feedback_a_loss_gets_where_exact_gradients_get():
    """Without it, by the same coarse wire, nine elements of the first row are never learned."""
    exact = quadratic_loss(jc.optax.all_reduce_gradients("x"))
    lossy = quadratic_loss(jc.optax.all_reduce_gradients("x", wire_dtype=Coarse()))
    found = {}
    for name, wire in {"coarse": Coarse(), "int8": Int8(0)}.items():
        fed: Any = jc.optax.error_feedback("x", wire_dtype=wire, mesh=mesh_of(RANKS))
        found[name] = quadratic_loss(fed, jc.optax.FeedbackState(P(), P("x")))
    # Residuals are at most half a step of the wire in each direction, and the rate 0.02 of that.
    steps = {"coarse": 10 / 3, "int8": 10 / 126}
    assert exact < 1e-5
    assert lossy > 4.4
    for name, loss in found.items():
        assert loss < exact + 40 / 2 * (2 * 0.02 * steps[name] + exact**0.5) ** 2


def test_what_is_not_finite_leaves_no_residual():
    mesh = mesh_of(RANKS)
    fed: Any = jc.optax.error_feedback("x", wire_dtype=E4M3, mesh=mesh)
    spec = jc.optax.FeedbackState(P(), P("x"))
    run = sharded(
        lambda tree, state: fed.update(own(tree), state), mesh, (P("x"), spec), (P(), spec)
    )
    x = gradients(1)["a"]
    x[2, 0, 0] = np.nan
    got, state = run(x, fed.init(x[0]))
    assert np.isnan(got).any()
    assert np.isfinite(state.residual).all()


def test_feedback_refuses_what_it_cannot_feed():
    mesh = mesh_of(RANKS)
    fed: Any = jc.optax.error_feedback("x", wire_dtype=E4M3)
    with pytest.raises(CollectiveError, match="give error_feedback the mesh"):
        fed.init(jnp.zeros(3))

    def traced(tree, state):
        mapped = jax.shard_map(
            fed.update, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False
        )
        return jax.eval_shape(mapped, tree, state)

    grad = jax.ShapeDtypeStruct((RANKS, 3), jnp.float32)
    with pytest.raises(CollectiveError, match="what init of error_feedback returned, got 'tuple'"):
        traced(grad, (grad,))
    with pytest.raises(CollectiveError, match="call init again"):
        traced(grad, jc.optax.FeedbackState(jax.ShapeDtypeStruct((RANKS,), jnp.int32), grad))
    whole = jax.ShapeDtypeStruct((RANKS, 3), jnp.int32)
    with pytest.raises(CollectiveError, match="takes floats"):
        traced(whole, jc.optax.FeedbackState(jax.ShapeDtypeStruct((RANKS,), jnp.int32), whole))
    with pytest.raises(CollectiveError, match="wire_dtype= must be bfloat16"):
        jc.optax.error_feedback("x", wire_dtype=None)
    with pytest.raises(CollectiveError, match="leave one of them out"):
        jc.optax.all_reduce_gradients("x", wire_dtype=E4M3, order="fixed")
    vmapped = functools.partial(jax.vmap, axis_name="x")
    state = jc.optax.FeedbackState(jnp.zeros(3, jnp.int32), jnp.zeros((3, 1)))
    with pytest.raises(CollectiveError, match="axes of a mesh"):
        vmapped(fed.update)(jnp.ones(3), state)


# ---------------------------------------------------------------------- a language model


def transformer(rng: np.random.Generator, layers: int = 2, width: int = 32, words: int = 64):
    """Parameters of a small decoder, and the loss of a batch of sequences."""

    def matrix(*shape):
        return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)

    params = {
        "embed": matrix(words, width),
        "place": matrix(16, width),
        "layers": [
            {
                "qkv": matrix(width, 3 * width),
                "out": matrix(width, width),
                "up": matrix(width, 4 * width),
                "down": matrix(4 * width, width),
            }
            for _ in range(layers)
        ],
    }

    def normed(x):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)

    def loss_fn(params, tokens):
        x = params["embed"][tokens[:, :-1]] * np.sqrt(width) + params["place"]
        for layer in params["layers"]:
            q, k, v = jnp.split(normed(x) @ layer["qkv"], 3, -1)
            scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(width)
            scores = jnp.where(np.tri(16, dtype=bool), scores, -1e9)
            x += jax.nn.softmax(scores) @ v @ layer["out"]
            x += jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
        logits = normed(x) @ params["embed"].T * np.sqrt(width)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return params, loss_fn


def sequences(rng: np.random.Generator, steps: int, words: int = 64) -> np.ndarray:
    """Walks on a graph of words in which each has three successors."""
    follows = np.random.default_rng(0).integers(0, words, (words, 3))
    walks = [rng.integers(0, words, (steps, RANKS * 8))]
    for _ in range(16):
        walks.append(follows[walks[-1], rng.integers(0, 3, walks[-1].shape)])
    return np.stack(walks, -1)


def trained_loss(transform, state_spec: Any = None, steps: int = 300) -> float:
    """The mean loss of the last fifty steps."""
    rng = np.random.default_rng(1)
    params, loss_fn = transformer(rng)
    batches = sequences(rng, steps)
    optimizer = optax.chain(transform, optax.adam(3e-3))
    spec = (P() if state_spec is None else state_spec, P())

    def step(params, state, tokens):
        varied = jax.lax.pcast(params, "x", to="varying")
        loss, gradient = jax.value_and_grad(loss_fn)(varied, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, jax.lax.pmean(loss, "x")

    run = sharded(step, mesh_of(RANKS), (P(), spec, P("x")), (P(), spec, P()))
    state, found = optimizer.init(params), []
    for tokens in batches:
        params, state, loss = run(params, state, tokens)
        found.append(float(loss))
    assert found[0] > 4
    return float(np.mean(found[-50:]))


@pytest.mark.slow
def test_a_transformer_trains_as_by_exact_gradients():
    """After 300 steps within half a per cent; tests.execute.test_wires counts the bytes, 0.26."""
    exact = trained_loss(jc.optax.all_reduce_gradients("x"))
    float8 = trained_loss(jc.optax.all_reduce_gradients("x", wire_dtype=E4M3))
    fed: Any = jc.optax.error_feedback("x", wire_dtype=Int8(0), mesh=mesh_of(RANKS))
    int8 = trained_loss(fed, jc.optax.FeedbackState(P(), P("x")))
    print(f"loss: exact {exact:.6f}, float8 {float8:.6f}, int8 with feedback {int8:.6f}")
    assert exact < 2
    assert float8 == pytest.approx(exact, rel=5e-3)
    assert int8 == pytest.approx(exact, rel=5e-3)
