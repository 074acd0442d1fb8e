"""The models of the studies: their graphs are their training steps, at any depth in seconds."""

from __future__ import annotations

import pytest

from experiments.models import build_model, load_model
from experiments.study import ConfigError
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.oracle import assert_same, check_operators, distinct

TINY = ("mlp", "gpt", "gpt_scan", "llama", "moe", "vgg", "vit")
VARIANTS = {
    **{name: (name, {}) for name in TINY},
    "moe": ("moe", {"layers": 1}),
    "vit": ("vit", {"layers": 1}),
    "mlp accumulated": ("mlp", {"grad_accumulation": 4}),
    "gpt dropout": ("gpt", {"dropout": 0.1, "layers": 1}),
    "gpt bfloat16": ("gpt", {"dtype": "bfloat16", "layers": 1}),
    "gpt_scan accumulated": ("gpt_scan", {"grad_accumulation": 2}),
    "llama remat": ("llama", {"remat": True}),
    "llama unrolled": ("llama", {"scan": False, "remat": True}),
}


# Each stands for another that does the same in more layers, or at another place.
QUICK = ("mlp accumulated",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in VARIANTS],
)
def test_graphs_are_the_training_steps(name):
    """Loss, parameters and optimizer state after one step."""
    model_name, changed = VARIANTS[name]
    model = load_model(model_name, **changed)
    graph = trace(model.step, model.abstract_args)
    rtol = 3e-2 if changed.get("dtype") == "bfloat16" else 2e-5
    assert_same(graph, model.step, model.init(0), rtol)


@pytest.mark.slow
def test_every_sharded_operator_equals_the_full_operator():
    """Sharded by each label, and given partial sums; operators that models share, once."""
    graphs = [trace(*_traced(name)) for name in TINY]
    checked = [check_operators(graph, operators) for graph, operators in distinct(*graphs)]
    assert sum(checked) > 1500
    assert min(checked) > 50


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as published: 8.03, 34.4 and 405.9 billion; VGG-19 143.67 million
        ("llama_3_1_8b", 8_030_261_248),
        ("yi_1_5_34b", 34_388_917_248),
        ("llama_3_405b", 405_853_388_800),
        ("vgg_19", 143_667_240),
    ],
)
def test_published_sizes(name, parameters):
    assert load_model(name).parameters == parameters


def test_heads_experts_and_vocabulary_can_be_sharded():
    """The dimensions of tensor and expert parallelism, in spite of the model's reshapes."""
    graphs = {name: trace(*_traced(name)) for name in ("llama", "moe")}
    for name, path, sizes in [
        ("llama", "params/layers/query/kernel", (2, 32, 2, 2, 8)),
        ("llama", "params/tokens/embedding", (64, 32)),
        ("moe", "params/layers/0/experts/up", (4, 32, 64)),
    ]:
        graph = graphs[name]
        (node,) = [
            e for e in graph.nodes if e.tensor is not None and graph.tensors[e.tensor].name == path
        ]
        assert node.sizes == sizes
        assert not node.need_replication
    dispatched = [o for o in graphs["moe"].operators if o.kind == "einsum" and 4 in o.sizes]
    assert any(o.sizes[use.labels[0]] == 4 for o in dispatched for use in o.results)


def _traced(name: str):
    model = load_model(name)
    return model.step, model.abstract_args


def test_roles_of_a_training_step():
    graph = trace(*_traced("gpt"))
    roles = {graph.tensors[i].name.split("/")[0]: graph.tensors[i].role for i in graph.inputs}
    assert roles == {"params": "parameter", "state": "optimizer", "batch": "input"}
    parameters = [
        graph.tensors[i].sizes for i in graph.inputs if graph.tensors[i].role == "parameter"
    ]
    gradients = [t.sizes for t in graph.tensors if t.role == "gradient"]
    assert sorted(map(sorted, gradients)) == sorted(map(sorted, parameters))
    assert {out.name for out in graph.outputs if out.updates is None} == {"2"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"family": "rnn"}, "unknown model.family 'rnn'"),
        ({"family": "mlp", "widths": [4], "batch": 2, "grad_accumulation": 1}, "model.widths"),
        ({"family": "mlp", "widths": [4, 2], "batch": 2}, "model.grad_accumulation is missing"),
    ],
)
def test_models_that_cannot_be_built(values, message):
    with pytest.raises(ConfigError, match=message):
        build_model(values)
    with pytest.raises(ConfigError, match="no model 'rnn'; known: gpt"):
        load_model("rnn")


def test_switches_are_true_or_false():
    with pytest.raises(ConfigError, match=r"model\.scan must be true or false, got 1"):
        load_model("llama", scan=1)
    with pytest.raises(ConfigError, match=r"model\.batch must be an integer, got True"):
        load_model("llama", batch=True)
