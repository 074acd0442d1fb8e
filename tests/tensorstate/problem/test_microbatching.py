"""Steps in microbatches: joined and accumulated results equal those of the full batch."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.models import load_model
from tensorstate.errors import PlanError
from tensorstate.execution.microbatch_loop import read_view, run_operator
from tensorstate.ir.graph import Operator
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM
from tensorstate.problem.microbatching import MicrobatchSplit, batch_factor, split_microbatches
from tensorstate.rules.sharding_rule import LocalShard, MicrobatchSlice
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.one_device import interpret
from tests.tensorstate.oracle import MODELS, QUICK, arguments, assert_alike
from tests.tensorstate.steps import I32, KEY, STEPS, s

COMBINE = {SUM: jnp.add, MAX: jnp.maximum, MIN: jnp.minimum}


def in_microbatches(microbatch_split: MicrobatchSplit, count: int, batch_shards: int):
    """The step as a loop over microbatches, followed by the operators after the loop."""
    graph = microbatch_split.traced

    def shard(operator: Operator, microbatch: MicrobatchSlice) -> LocalShard:
        label = microbatch_split.labels[operator.index]
        counts = tuple(count if i == label else 1 for i in range(len(operator.sizes)))
        return LocalShard(
            operator.sizes, counts, {}, microbatch if label is not None else None, label
        )

    def run(operator: Operator, values, how: LocalShard) -> None:
        arrays = [values[use.tensor] for use in operator.operands]
        results = run_operator(operator, arrays, how)
        values.update({u.tensor: x for u, x in zip(operator.results, results, strict=True)})

    def step(*args):
        inputs = {i: jnp.asarray(value) for i, value in graph.constants}
        inputs |= zip(graph.inputs, jax.tree.leaves(args), strict=True)
        inputs = {i: x.reshape(graph.tensors[i].sizes) for i, x in inputs.items()}
        num_repeats = []
        for t in range(count):
            microbatch = MicrobatchSlice(t, count, batch_shards)
            values = {
                i: microbatch.slice_batch(x, microbatch_split.batch_placements[i])
                if microbatch_split.batch_placements[i] >= 0
                else x
                for i, x in inputs.items()
            }
            for operator, stage in zip(graph.operators, microbatch_split.stages, strict=True):
                if stage == "loop":
                    run(operator, values, shard(operator, microbatch))
            num_repeats.append(values)
        values = {
            i: joined(
                [values[i] for values in num_repeats],
                microbatch_split.batch_placements[i],
                batch_shards,
            )
            for i in num_repeats[0]
        }
        for operator, stage in zip(graph.operators, microbatch_split.stages, strict=True):
            if stage == "after":
                run(operator, values, LocalShard.full(operator.sizes))
        outputs = [
            read_view(
                o.view, None if o.view.tensor is None else values[o.view.tensor], o.view.sizes
            )
            for o in graph.outputs
        ]
        return jax.tree.unflatten(graph.out_tree, outputs)

    return step


def joined(parts, placement: int, batch_shards: int):
    """The value of a tensor after the loop."""
    if placement == REPLICATED:
        return parts[-1]
    if placement >= 0:
        if jnp.issubdtype(parts[0].dtype, jax.dtypes.prng_key):
            return None
        return MicrobatchSlice(0, len(parts), batch_shards).join_batch(jnp.stack(parts), placement)
    return functools.reduce(COMBINE[placement], parts)


slow = pytest.mark.slow
X, W = s(8, 4), s(4, 4)


@pytest.mark.parametrize("name", [MODELS[0], *(pytest.param(n, marks=slow) for n in MODELS[1:])])
@pytest.mark.slow
def test_models_in_microbatches_equal_the_full_batch(name):
    # Two layers, unrolled, of the smallest; of the others one, as compiling them takes the time.
    model = load_model(name, **({"layers": 1} if name in ("gpt", "llama", "moe", "vit") else {}))
    graph = trace(model.step, model.abstract_args, loops="unroll")
    step = in_microbatches(split_microbatches(graph), 4, 2)
    args = model.init(0)
    found = jax.jit(step, compiler_options=QUICK)(*args)
    assert_alike(found, jax.jit(interpret(graph), compiler_options=QUICK)(*args), 1e-4)


def _sgd(loss):
    def step(w, x, *more):
        value, gradient = jax.value_and_grad(loss)(w, x, *more)
        return w - 0.1 * gradient, value

    return step


def _accuracy(w, x, y):
    """A metric of the auxiliary output of the loss."""

    def loss(w):
        logits = x @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean(), logits

    (value, logits), gradient = jax.value_and_grad(loss, has_aux=True)(w)
    return w - gradient, value, (logits.argmax(-1) == y).mean(), logits


def _noisy(w, x, key):
    """Dropout, and indices of the examples in the batch."""
    keep = jax.random.bernoulli(key, 0.7, x.shape)
    weights = jnp.arange(x.shape[0], dtype=x.dtype) / 10
    return (jnp.where(keep, jnp.tanh(x @ w), 0) * weights[:, None]).sum()


def _mixed(w, x):
    """Sums, a maximum and a minimum over the batch; a sum in bfloat16."""
    y = jnp.tanh(x @ w)
    low = (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).sum()
    return y.sum() / (1 + jnp.square(y).sum()), y.max(), y.min(), low, y * 2


SPLITTABLE = {
    "linear": (_sgd(lambda w, x: jnp.square(x @ w).mean()), W, X),
    "regularized": (_sgd(lambda w, x: jnp.tanh(x @ w).mean() + jnp.square(w).sum()), W, X),
    "clipped": (
        lambda w, x: (g := jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)) / jnp.linalg.norm(g),
        W,
        X,
    ),
    "dropout": (_sgd(_noisy), W, X, KEY),
    "accuracy": (_accuracy, W, X, s(8, dtype=I32)),
    "folded": (_sgd(lambda w, x: jnp.tanh(x.reshape(-1, 4) @ w).sum()), W, s(8, 2, 4)),
    "embedding": (_sgd(lambda t, i: jnp.square(t[i]).mean()), W, s(8, 3, dtype=I32)),
    "attention": (
        _sgd(lambda w, x: STEPS["attention"][0](x, w, w, w, w).sum()),
        s(8, 8),
        s(8, 4, 8),
    ),
    "convolution": (
        _sgd(lambda k, x: STEPS["convolution"][0](x, k).sum()),
        s(3, 3, 2, 4),
        s(8, 4, 4, 2),
    ),
    "recomputed": (
        _sgd(lambda w, x: jax.checkpoint(lambda w: jnp.tanh(jnp.sin(x @ w)))(w).sum()),
        W,
        X,
    ),
    "mixed": (_mixed, W, X),
    "layers": (STEPS["gradient_of_layers"][0], s(8, 6), s(3, 6, 6)),
    "loss": (STEPS["gradient_of_loss"][0], s(8, 3, 4), s(8, 3, dtype=I32)),
}


@functools.cache
def cut(name: str) -> MicrobatchSplit:
    """Split along the leading dimension of 8 of the last argument that has one."""
    function, *shapes = SPLITTABLE[name]
    graph = trace(function, shapes, loops="unroll")
    inputs = [graph.tensors[i] for i in graph.inputs]
    return split_microbatches(graph, next(t.dims[0] for t in inputs[::-1] if t.sizes[:1] == (8,)))


@pytest.mark.parametrize("name", SPLITTABLE)
@given(count=st.sampled_from((2, 4, 8)), batch_shards=st.sampled_from((1, 2, 4)))
@settings(max_examples=2, deadline=None)
@pytest.mark.in_every_run(
    "attention",
    "dropout",
    "loss",
    "mixed",
    "regularized",
    "clipped",
    "recomputed",
    "linear",
    "folded",
)
@pytest.mark.slow_members("dropout", "attention")
def test_microbatches_equal_the_full_batch(name, count, batch_shards):
    function, *shapes = SPLITTABLE[name]
    batch_shards = min(batch_shards, 8 // count)
    args = arguments(shapes)
    found = jax.jit(in_microbatches(cut(name), count, batch_shards), compiler_options=QUICK)(*args)
    tolerance = 2e-2 if name == "mixed" else 1e-4
    assert_alike(found, jax.jit(function, compiler_options=QUICK)(*args), tolerance)


def _batch_norm(w, x):
    y = x @ w
    return jnp.square(y - y.mean(0)).sum()


def _counted(w, x, mask):
    """A mean over a number of examples that depends on the data."""
    return (jnp.tanh(x @ w).sum(-1) * mask).sum() / mask.sum()


REFUSED = {
    "batch norm": (
        _batch_norm,
        (W, X),
        r"sub \(.*test_microbatching.*_batch_norm.*on all examples through reduce_sum",
    ),
    "greatest": (lambda w, x: (jnp.exp(x @ w - (x @ w).max())).sum(), (W, X), "through reduce_max"),
    "counted": (_counted, (W, X, s(8)), r"(mul|div) \(.*_counted.*through reduce_sum \(.*_counted"),
    "contrast": (
        lambda w, x: jnp.tanh((x @ w) @ x.T).sum(),
        (W, X),
        "dot_general .*different examples",
    ),
    "sorted": (
        lambda w, x: jnp.sort(x @ w, axis=0)[0].sum(),
        (W, X),
        "sort .*all examples at once",
    ),
    "shifted": (lambda w, x: ((x @ w)[1:] - x[:-1]).sum(), (W, X), "slice .*all examples at once"),
    "gram": (lambda w, x: ((x @ w).T @ (x @ w)).max(), (W, X), "through dot_general"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_need_the_full_batch_are_named(name):
    loss, shapes, message = REFUSED[name]
    graph = trace(_sgd(loss), shapes)
    x = graph.tensors[graph.inputs[1]]
    with pytest.raises(PlanError, match=message):
        split_microbatches(graph, x.dims[0])


def test_the_batch_is_the_most_frequent_first_factor_of_inputs():
    model = load_model("gpt")
    graph = trace(model.step, model.abstract_args)
    inputs = {graph.tensors[i].name: graph.tensors[i] for i in graph.inputs}
    assert {t.dims[0] for n, t in inputs.items() if n.startswith("batch/")} == {batch_factor(graph)}
    with pytest.raises(PlanError, match="no argument of the step is a batch"):
        batch_factor(trace(lambda w: w - jax.grad(lambda w: jnp.square(w).sum())(w), (W,)))


def test_microbatches_have_equal_sizes():
    microbatch_split = cut("linear")
    with pytest.raises(PlanError, match=r"a batch of 8 \(.*\) cannot be split into 3 equal"):
        microbatch_split.microbatch(3)


@pytest.mark.parametrize("name", [*MODELS[:4], "vgg"])
@pytest.mark.in_every_run("mlp", "gpt_scan", "vgg")
def test_a_microbatch_is_a_smaller_step(name):
    """Operators in the loop have the sizes of a microbatch; node classes stay the same."""
    model = load_model(name)
    graph = trace(model.step, model.abstract_args)
    microbatch_split = split_microbatches(graph)
    microbatch = microbatch_split.microbatch(2)
    assert len(microbatch.nodes) <= len(graph.nodes) + 4
    assert len(microbatch.node_classes) <= len(graph.node_classes) + 4
    for operator, full, label in zip(
        microbatch.operators, graph.operators, microbatch_split.labels, strict=True
    ):
        assert full.flops == (operator.flops if label is None else 2 * operator.flops)
    for tensor, full, placement in zip(
        microbatch.tensors, graph.tensors, microbatch_split.batch_placements, strict=True
    ):
        assert full.size == tensor.size * (2 if placement >= 0 else 1)
    gradients = {t.name for t in graph.tensors if t.role == "gradient"}
    assert gradients
    assert {
        microbatch_split.batch_placements[t.index] for t in graph.tensors if t.role == "gradient"
    } == {SUM}
