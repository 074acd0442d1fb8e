"""Sums that advance under the backward pass: the same gradients, in an order written down."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from pathlib import Path

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.execute.lowerings.rounds import permute_program
from tests.claims.printed import assert_claimed
from tests.elsewhere import compiled_elsewhere
from tests.execute.harness import integers, mesh_of, sharded

N, DEPTH, WIDTH = 8, 4, 4


@functools.cache
def schedule(name: str = "bucket") -> jc.Schedule:
    return jc.synthesize(jc.topologies.torus(2, 4), "all_reduce", name, chunks=1)


def linear(params, x):
    return x @ params["kernel"] + params["bias"]


def loss(x, y):
    return ((x - y) ** 2).sum()


def weights(depth: int = DEPTH):
    """Small integers: every gradient is an integer that float32 holds exactly."""
    rng = np.random.default_rng(0)
    return [
        {
            "kernel": rng.integers(-1, 2, (WIDTH, WIDTH)).astype(np.float32),
            "bias": rng.integers(-1, 2, WIDTH).astype(np.float32),
        }
        for _ in range(depth)
    ]


def batch():
    return integers((N, WIDTH), np.float32, 1), integers((N, WIDTH), np.float32, 2)


def ours(params, x, y, axis="x", **options):
    value_and_grad = jc.optax.overlap([linear] * len(params), loss, axis, **options)
    value, gradients = value_and_grad(params, x, y)
    return lax.psum(value, axis), gradients


def theirs(params, x, y, axis="x", mean=True):
    def whole(params):
        h = x
        for p in params:
            h = linear(p, h)
        return loss(h, y)

    own = jax.tree.map(lambda p: lax.pcast(p, axis, to="varying"), params)
    value, gradients = jax.value_and_grad(whole)(own)
    return lax.psum(value, axis), (lax.pmean if mean else lax.psum)(gradients, axis)


def assert_same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


SPECS = (P(), P("x"), P("x"))


@pytest.mark.parametrize(
    ("options", "check_vma"),
    [
        ({"schedule": schedule()}, True),
        ({"schedule": schedule("tacos"), "bucket_bytes": 0}, False),
        ({"mean": False, "accum_dtype": np.float32}, True),
        ({"schedule": "direct"}, True),
        ({"schedule": "halving", "order": "fixed"}, True),
        ({"order": "fixed"}, False),
    ],
)
@pytest.mark.in_every_run("options1-False", "options2-True", "options4-True")
def test_gradients_are_those_of_value_and_grad(options, check_vma):
    run = functools.partial(ours, **options)
    reference = functools.partial(theirs, mean=options.get("mean", True))
    a = sharded(run, mesh_of(N), SPECS, P(), check_vma=check_vma)(weights(), *batch())
    b = sharded(reference, mesh_of(N), SPECS, P())(weights(), *batch())
    assert_same(a, b)


@pytest.mark.parametrize("depth", [1, 2])
def test_few_layers(depth):
    a = sharded(ours, mesh_of(N), SPECS, P())(weights(depth), *batch())
    assert_same(a, sharded(theirs, mesh_of(N), SPECS, P())(weights(depth), *batch()))


def test_one_rank():
    a = sharded(ours, mesh_of(1), SPECS, P())(weights(), *batch())
    assert_same(a, sharded(theirs, mesh_of(1), SPECS, P())(weights(), *batch()))


def test_all_groups_along_an_axis_share_a_schedule():
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    grouped = jc.axis_schedule(
        mesh, "data", "all_reduce", "bucket", topology=jc.topologies.torus(4, 2)
    )
    specs = (P(), P("data"), P("data"))
    run = functools.partial(ours, axis="data", schedule=grouped)
    reference = functools.partial(theirs, axis="data")
    a = sharded(run, mesh, specs, P())(weights(), *batch())
    assert_same(a, sharded(reference, mesh, specs, P())(weights(), *batch()))


def test_tokens_embedded_then_trees_and_a_model_of_flax():
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            return x + linen.tanh(linen.Dense(WIDTH)(x))

    block = Block()
    layers = [
        lambda p, tokens: {"h": p["table"][tokens], "kept": tokens},
        lambda p, x: {**x, "h": block.apply(p, x["h"])},
        jax.checkpoint(lambda p, x: block.apply(p, x["h"])),
    ]
    inits = [block.init(jax.random.key(i), jnp.zeros((1, WIDTH))) for i in (1, 2)]
    params = [{"table": jnp.ones((7, WIDTH)), "unused": jnp.ones((0, 2))}, *inits]
    tokens, y = integers((N, 3), np.int32), np.ones((N, 3, WIDTH), np.float32)

    def step(params, x, y):
        _, gradients = jc.optax.overlap(layers, loss, "x", schedule=schedule())(params, x, y)

        def whole(params):
            h = x
            for layer, p in zip(layers, params, strict=True):
                h = layer(p, h)
            return loss(h, y)

        own = jax.tree.map(lambda p: lax.pcast(p, "x", to="varying"), params)
        return gradients, lax.pmean(jax.grad(whole)(own), "x")

    a, b = sharded(step, mesh_of(N), SPECS, P())(params, tokens, y)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_it_trains():
    optimizer = optax.sgd(1e-4)

    def step(params, state, x, y):
        value, gradients = ours(params, x, y, schedule=schedule())
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params, state, found = weights(), optimizer.init(weights()), []
    run = sharded(step, mesh_of(N), (P(), *SPECS), P())
    for _ in range(5):
        params, state, value = run(params, state, *batch())
        found.append(float(value))
    assert found == sorted(found, reverse=True)


# ---------------------------------------------------------------------- the order


def program_order(run, *arguments) -> list[str]:
    """Products, permutes and barriers in the order of the program."""
    traced = jax.make_jaxpr(run)(*arguments)
    text = jax.jit(run).lower(*arguments).as_text()
    names = {"dot_general": "dot", "ppermute": "permute", "optimization_barrier": "barrier"}

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in names:
                yield names[eqn.primitive.name]
            for value in eqn.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from walk(inner)

    order = list(walk(traced.jaxpr))
    # XLA is given the same order.
    ops = (
        "stablehlo.dot_general",
        "stablehlo.collective_permute",
        "stablehlo.optimization_barrier",
    )
    found = [
        name
        for line in text.splitlines()
        for op, name in zip(ops, names.values(), strict=True)
        if op in line
    ]
    assert found == order
    return order


def test_permutes_stand_between_the_products_of_the_backward_pass():
    def step(params, x, y):
        return ours(params, x, y, schedule=schedule())[1]

    run = jax.shard_map(step, mesh=mesh_of(N), in_specs=SPECS, out_specs=P())
    order = program_order(run, weights(), *batch())
    assert order[:DEPTH] == ["dot"] * DEPTH  # the forward pass
    segments = [part.split() for part in " ".join(order[DEPTH:]).split("barrier")]
    shapes = [[key for key, _ in itertools.groupby(segment)] for segment in segments]
    # The last layer's products, its first step, and the products of the layer before beside it;
    # behind a barrier for each further layer the next steps, and its products beside them.
    assert shapes[:DEPTH] == [["dot", "permute", "dot"], *[["permute", "dot"]] * 2, ["permute"]]
    assert [segment.count("dot") for segment in segments[:DEPTH]] == [4, 2, 1, 0]
    # Each layer adds a sum that is under way: its steps run beside those of the others.
    steps = [len(rounds) for rounds in permute_program(schedule()).steps]
    assert [segment.count("permute") for segment in segments[: DEPTH - 1]] == [
        sum(steps[: i + 1]) for i in range(DEPTH - 1)
    ]
    # Then nothing but the steps that are left, one barrier each.
    assert len(segments) == DEPTH + len(steps)
    assert sum(segment.count("permute") for segment in segments) == DEPTH * sum(steps)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda p, x, y: jc.optax.overlap([], loss, "x"), CollectiveError, "got none"),
        (lambda p, x, y: ours(p, x, y, axis="z"), CollectiveError, "axis 'z' is not bound"),
        (
            lambda p, x, y: jc.optax.overlap([linear], loss, "x")(p, x, y),
            CollectiveError,
            "params for each of 1 layers, got 4",
        ),
        (
            lambda p, x, y: jc.optax.overlap([linear] * 4, lambda h: h, "x")(p, x),
            CollectiveError,
            r"loss must be a scalar, got shape \(1, 4\)",
        ),
        (
            lambda p, x, y: ours(
                p,
                x,
                y,
                schedule=jc.synthesize(jc.topologies.ring(4), "all_reduce", "ring", chunks=1),
            ),
            ScheduleError,
            "is for 4 ranks",
        ),
        (
            lambda p, x, y: ours(p, x, y, accum_dtype=np.int32),
            CollectiveError,
            "accum_dtype=int32 cannot hold sums of float",
        ),
    ],
)
def test_bad_arguments_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        sharded(call, mesh_of(N), SPECS, P())(weights(), *batch())


# ---------------------------------------------------------------------- compiled for a TPU


@pytest.mark.slow
@pytest.mark.targets("tpu")
def test_a_tpu_runs_the_steps_under_the_products():
    [found] = compiled_elsewhere(Path(__file__).with_name("compile_overlap.py"))
    assert set(found["native"]) == {"M"}  # one all-reduce, after all products

    def begun_of(order: str) -> tuple[int, int]:
        """How many permutes start before the last product, of how many."""
        return order[: order.rindex("M")].count("s"), order.count("s")

    def begun(order: str) -> float:
        return operator.truediv(*begun_of(order))

    assert_claimed(
        "docs/training.md",
        r"(\d+) of (\d+) permutes start before the last product of [\w ]+, against (\d+) without",
        [*begun_of(found["overlapped"]), begun_of(found["by_leaf"])[0]],
    )

    # By themselves, sums have their first steps under the products; here later ones, too.
    assert begun(found["overlapped"]) > 1.5 * begun(found["by_leaf"])
    assert begun(found["overlapped"]) > 0.3
    # Buckets of gradients are not cut into pieces, so that by themselves they are begun early, too.
    assert begun(found["by_leaf"]) > 0.1
    assert found["by_leaf"].count("s") == found["overlapped"].count("s")
    # Whole steps run: they are received, not only sent, while products are left to do.
    overlapped = found["overlapped"]
    assert overlapped[: overlapped.rindex("M")].count("d") > overlapped.count("s") / 5
    # All products of the backward pass but those of the last layer stand beside a permute.
    back = re.sub("^M+", "", overlapped)
    assert len(re.findall("s+M+", back)) >= 6 - 1
