"""Baselines, on models that compute in another dtype than that of their parameters."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import optax
import pytest

from experiments.models import load_model
from tensorstate import HARDWARE, AlphaBetaCosts, MeshShape, Milp, solve_baseline, trace
from tensorstate.problem.baselines import Baselines
from tensorstate.problem.problem import Problem
from tensorstate.report.parallelism import parallelism_by_axis
from tests.tensorstate.steps import I32, s

MESH = MeshShape.of({"model": 8})


def problem_of(name: str, alpha: float = 5e-6, **changed) -> Problem:
    model = load_model(name, **changed)
    graph = trace(model.step, model.abstract_args)
    return Problem(graph, AlphaBetaCosts(MESH, (alpha,), (2e11,)), HARDWARE["A100"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_residual_stream_has_the_width_of_embeddings(dtype):
    problem = problem_of("llama", dtype=dtype)
    (width,) = Baselines(problem).residual_stream_factors
    table = next(t for t in problem.graph.tensors if t.name == "params/tokens/embedding")
    assert table.dims[1] == width
    norm = next(t for t in problem.graph.tensors if t.name == "params/norm/scale")
    assert norm.dims == (width,)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.in_every_run("3")
def test_sequence_parallelism_repeats_gathers_in_the_backward_pass(layers):
    """AutoCCL's Table 1: 6L + 3 gathers, 4L + 1 sums, and the embedding's, which is saved."""
    problem = problem_of("llama_3_1_8b", layers=layers)
    found = solve_baseline(problem, "megatron-sp")
    large = 2 * 8192 * 4096 * 2
    counts: Counter[str] = Counter()
    for reshard in found.cost.reshards:
        for step, num_repeats in reshard.counted_steps:
            if step.nbytes == large and step.kind != "slice":
                counts[step.kind] += reshard.multiplicity * num_repeats
    assert counts == {"all_gather": 6 * layers + 3, "reduce_scatter": 4 * layers + 2}


@pytest.mark.slow
def test_repeated_gathers_save_memory_and_cost_time():
    problem = problem_of("llama_3_1_8b", layers=1)
    plain, cut = solve_baseline(problem, "megatron"), solve_baseline(problem, "megatron-sp")
    assert cut.cost.memory.saved < 0.9 * plain.cost.memory.saved
    assert cut.cost.communication > plain.cost.communication


# ---------------------------------------------------------- bytes that a person's strategy sends


# Bytes alone decide: with latency, fewer and larger collectives may be the faster ones.
NO_LATENCY = 1e-12


def sent(problem: Problem, name: str) -> dict[str, int]:
    """Bytes of the collectives of tensors, by kind; the loss's sum is left out."""
    cost = solve_baseline(problem, name).cost
    total: Counter[str] = Counter()
    for reshard in cost.reshards:
        for step, num_repeats in reshard.counted_steps:
            if step.kind != "slice" and problem.graph.tensors[reshard.tensors[0]].sizes:
                total[step.kind] += reshard.multiplicity * num_repeats * step.nbytes
    return dict(total)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.in_every_run("True")
def test_mixed_precision_sends_the_dtype_of_the_model(scan):
    """A small Llama, by hand: a scan over its layers sends the same, layer by layer."""
    layers, width, hidden, vocabulary = 2, 32, 64, 64
    problem = problem_of("llama", NO_LATENCY, layers=layers, scan=scan, dtype="bfloat16")
    attention = 2 * width * width + 2 * width * width // 2  # two key and value heads of four
    matrices = layers * (attention + 3 * width * hidden) + 2 * vocabulary * width
    scales = (2 * layers + 1) * width
    assert 4 * (matrices + scales) == sum(
        problem.graph.tensors[i].nbytes
        for i in problem.graph.inputs
        if problem.graph.tensors[i].role == "parameter"
    )
    gradients = 2 * matrices + 4 * scales  # scales stay in float32
    embedding = 2 * vocabulary * width  # no gradient passes through it: it is gathered once
    assert sent(problem, "ddp") == {"all_reduce": gradients}
    assert sent(problem, "zero1") == {
        "reduce_scatter": gradients,
        "all_gather": 4 * (matrices + scales),
    }
    assert sent(problem, "fsdp") == {
        "reduce_scatter": gradients,
        "all_gather": 2 * gradients - embedding,
    }


WIDTH, HIDDEN, RANK, BATCH = 64, 256, 4, 128


def lora(merged: bool):
    """A perceptron with a frozen base, of which the first product is adapted."""
    optimizer = optax.adam(1e-3)

    def step(params, state, base, batch):
        def loss(params):
            x = batch["x"]
            if merged:
                hidden = x @ (base["up"] + params["a"] @ params["b"])
            else:
                hidden = x @ base["up"] + (x @ params["a"]) @ params["b"]
            y = jax.nn.gelu(hidden + base["bias"]) @ base["down"] + base["last"]
            return jnp.mean((y - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {"a": s(WIDTH, RANK), "b": s(RANK, HIDDEN)}
    base = {
        "up": s(WIDTH, HIDDEN), "bias": s(HIDDEN), "down": s(HIDDEN, WIDTH), "last": s(WIDTH),
    }  # fmt: skip
    batch = {"x": s(BATCH, WIDTH), "y": s(BATCH, WIDTH)}
    return step, (params, jax.eval_shape(optimizer.init, params), base, batch)


@pytest.mark.parametrize("merged", [False, True])
def test_lora_reduces_what_it_trains_and_shards_its_base_as_parameters(merged):
    step, args = lora(merged)
    graph = trace(step, args)
    roles = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    frozen = [f"base/{name}" for name in args[2]]
    assert {roles[name] for name in (*frozen, "params/a", "params/b")} == {"parameter"}
    assert {roles[name] for name in ("batch/x", "batch/y")} == {"input"}
    problem = Problem(graph, AlphaBetaCosts(MESH, (NO_LATENCY,), (2e11,)), HARDWARE["A100"])
    trained = 4 * (WIDTH * RANK + RANK * HIDDEN)
    assert sent(problem, "ddp") == {"all_reduce": trained}
    if merged:  # how the base is added to it before or after it is gathered is a choice
        return
    base = 4 * (2 * WIDTH * HIDDEN + HIDDEN + WIDTH)
    read_again = 4 * (WIDTH * HIDDEN + RANK * HIDDEN)  # by the gradient of what feeds them
    assert sent(problem, "fsdp") == {
        "reduce_scatter": trained,
        "all_gather": base + trained + read_again,
    }


@pytest.mark.parametrize(
    ("frozen", "batch"),
    [
        ({"codes": s(16, 8, dtype=jnp.int8)}, {"x": s(32, 16)}),
        ({"codes": s(16, 8)}, {"x": s(32, 16), "weight_of_example": s(32)}),
        ({"codes": s(16, 8)}, {"x": s(32, 16), "class_of_example": s(32, dtype=I32)}),
        ({"codes": s(16, 8)}, {"x": s(32, 16), "noise": s(2, dtype=jnp.uint32)}),
    ],
    ids=["8-bit", "weighted", "classes", "unused"],
)
def test_frozen_parameters_are_known_by_their_dimensions(frozen, batch):
    def step(params, frozen, batch):
        def loss(params):
            hidden = jnp.tanh(batch["x"] @ frozen["codes"].astype(jnp.float32))
            each = ((hidden @ params) ** 2).sum(1) * batch.get("weight_of_example", 1.0)
            return (each * batch.get("class_of_example", 1)).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return params - gradient, value

    graph = trace(step, (s(8, 8), frozen, batch))
    roles = {graph.tensors[i].name: graph.tensors[i].role for i in graph.inputs}
    assert roles.pop("frozen/codes") == roles.pop("params") == "parameter"
    assert {*roles.values()} == {"input"}


# ---------------------------------------------------------------------- ties


def two_matrices(params, x):
    """Layers of two matrices in a scan, and their new values."""

    def layer(h, w):
        return h + jnp.tanh(h @ w["up"]) @ w["down"], None

    def loss(params):
        return jnp.square(jax.lax.scan(layer, x, params)[0]).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def test_of_ties_a_baseline_is_the_plain_one_and_as_fast():
    """On axes of one speed, whichever dimensions of matrices are sharded sends the same bytes."""
    params = {"up": s(7, 16, 32), "down": s(7, 32, 16)}
    mesh = MeshShape.of({"data": 2, "model": 4})
    network = AlphaBetaCosts(mesh, (1e-7, 1e-7), (1e9, 1e9))
    problem = Problem(trace(two_matrices, (params, s(64, 16))), network, HARDWARE["H100"])
    plan = solve_baseline(problem, "fsdp")
    specs = {str(spec) for spec in plan.specs.arguments[0].values()}
    assert len(specs) == 1
    compared = plan.compare("fsdp").plans["fsdp"]
    assert compared.timeline.seconds == plan.timeline.seconds
    strategies = Baselines(problem).strategies({"data": "fsdp", "model": "fsdp"})
    first = Milp(gap=1e-3).solve(problem, strategies)
    assert first.objective == pytest.approx(plan.cost.serial_seconds)
    assert plan.timeline.seconds <= 1.001 * first.cost.timeline(None).seconds


# ---------------------------------------------------------------------- what the batch is


def drawing(draw):
    """A step that trains a perceptron on rows that it draws, and keeps a buffer of rows."""

    def step(params, buffer, key):
        x = draw(buffer, key)

        def loss(params):
            return jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]).mean()

        gradients = jax.grad(loss)(params)
        buffer = jax.lax.dynamic_update_slice(buffer, jnp.tanh(buffer[:2]), (0, 0))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), buffer

    params = {"up": s(8, 32), "down": s(32, 8)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    return trace(step, (params, s(256, 8), key))


@pytest.mark.parametrize(
    "draw",
    [
        lambda buffer, key: buffer[jax.random.randint(key, (64,), 0, len(buffer))],
        lambda buffer, key: jax.random.normal(key, (64, 8)),
        lambda buffer, key: jax.random.permutation(key, buffer)[:64],
    ],
    ids=["rows of a buffer", "noise", "shuffled rows"],
)
def test_examples_that_a_step_draws_are_a_batch(draw):
    problem = Problem(drawing(draw), AlphaBetaCosts(MESH, (1e-9,), (1e12,)), HARDWARE["CPU"])
    (found,) = {
        tensor.dims[0]
        for operator in problem.graph.operators
        if operator.kind == "einsum" and operator.phase == "forward"
        for tensor in [problem.graph.tensors[operator.results[0].tensor]]
        if tensor.sizes == (64, 32)
    }
    assert found in Baselines(problem).batch
    # All of the products is divided, where it was repeated by every device.
    plan = solve_baseline(problem, "ddp")
    assert parallelism_by_axis(problem, plan.decisions, plan.cost)["model"][0].endswith("DDP")
    assert "a part of the batch and all parameters, whose gradients are summed" in plan.sentence()


def test_rows_that_stay_from_step_to_step_are_no_batch_beside_one():
    """The keys of a queue are not examples, though the queries are multiplied with them."""

    def step(w, queue, x):
        keys = jnp.tanh(x @ w)
        gradient = jax.grad(lambda w: (jnp.tanh(x @ w) @ queue.T).sum())(w)
        return w - 0.1 * gradient, jax.lax.dynamic_update_slice(queue, keys, (0, 0))

    graph = trace(step, (s(8, 16), s(256, 16), s(64, 8)))
    problem = Problem(graph, AlphaBetaCosts(MESH, (1e-9,), (1e12,)), HARDWARE["CPU"])
    by_name = {graph.tensors[i].name: graph.tensors[i] for i in graph.inputs}
    assert by_name["queue"].role == "input"
    assert Baselines(problem).batch == {by_name["x"].dims[0]}
