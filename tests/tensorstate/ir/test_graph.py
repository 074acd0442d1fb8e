"""Invariants of every graph: tensors, operators, nodes and edges fit together."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from experiments.models import load_model
from tensorstate.ir.graph import Graph
from tensorstate.solver.refusal import described
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.oracle import MODELS
from tests.tensorstate.steps import STEPS, s


@functools.cache
def graph_of(name: str) -> Graph:
    if name in STEPS:
        function, *shapes = STEPS[name]
        return trace(function, shapes)
    model = load_model(name)
    return trace(model.step, model.abstract_args)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in ("gpt", "moe", "vit")))
        for name in [*MODELS, *STEPS]
    ],
)
def test_tensors_and_operators_name_each_other(name):
    graph = graph_of(name)
    seen = set(graph.inputs) | {tensor for tensor, _ in graph.constants}
    for operator in graph.operators:
        assert operator.index == graph.operators.index(operator)
        assert operator.need_replication | operator.reductions.keys() <= set(
            range(len(operator.sizes))
        )
        for k, use in enumerate(operator.operands):
            assert use.tensor in seen  # in the order of execution
            consumer = (operator.index, k, operator.phase)
            assert consumer in graph.tensors[use.tensor].consumers
        for k, use in enumerate(operator.results):
            tensor = graph.tensors[use.tensor]
            assert (tensor.producer, tensor.result) == (operator.index, k)
            assert not operator.reductions.keys() & set(use.labels)
            seen.add(use.tensor)
        for use in (*operator.operands, *operator.results):
            sizes = [operator.sizes[label] for label in use.labels]
            assert tuple(sizes) == graph.tensors[use.tensor].sizes
            assert len(set(use.labels)) == len(use.labels)
    for tensor in graph.tensors:
        assert tuple(graph.factors[factor] for factor in tensor.dims) == tensor.sizes
        assert 1 not in tensor.sizes
    assert len(seen) == len(graph.tensors)


@pytest.mark.parametrize("name", [*MODELS, *STEPS])
def test_views_read_every_position_once(name):
    graph = graph_of(name)
    for operator in graph.operators:
        for view in operator.eqn.inputs:
            positions = [p for one in view.positions for p in one if p is not None]
            known = [] if view.tensor is None else range(len(graph.tensors[view.tensor].sizes))
            assert sorted(positions) == list(known)


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_is_in_one_node_and_reads_by_edges(name):
    graph = graph_of(name)
    members = [m.operator for node in graph.nodes for m in node.members]
    assert sorted(members) == list(range(len(graph.operators)))
    edges = {operand: edge for edge in graph.edges for operand in edge.operands}
    home = {m.operator: (e, m) for e in graph.nodes for m in e.members}
    for node in graph.nodes:
        for member in node.members:
            operator = graph.operators[member.operator]
            for label, size in enumerate(operator.sizes):
                assert node.sizes[member.labels[label]] == size
                if label in operator.need_replication:
                    assert member.labels[label] in node.need_replication
            for k, use in enumerate(operator.operands):
                labels = tuple(member.labels[label] for label in use.labels)
                edge = edges.get((operator.index, k))
                if edge is not None:
                    assert (edge.tensor, edge.target, edge.target_labels) == (
                        use.tensor,
                        node.index,
                        labels,
                    )
                    continue
                producer = graph.tensors[use.tensor].producer
                assert producer is not None
                maker, made = home[producer]
                out = graph.operators[producer].results[graph.tensors[use.tensor].result]
                assert maker is node
                assert tuple(made.labels[label] for label in out.labels) == labels


@pytest.mark.parametrize("name", MODELS)
def test_nodes_of_a_class_are_identical(name):
    graph = graph_of(name)
    assert sorted(index for one in graph.node_classes for index in one) == list(
        range(len(graph.nodes))
    )
    for number, one in enumerate(graph.node_classes):
        looks = set()
        for index in one:
            node = graph.nodes[index]
            assert node.class_id == number
            operators = [graph.operators[m.operator] for m in node.members]
            looks.add(
                (
                    node.kind,
                    node.phase,
                    node.sizes,
                    node.need_replication,
                    tuple(m.labels for m in node.members),
                    tuple(o.primitive.replace("_out", "_in") for o in operators),
                    tuple(tuple(o.reductions.items()) for o in operators),
                    tuple(o.linear for o in operators),
                )
            )
        assert len(looks) == 1


@pytest.mark.parametrize(
    "name", ["gpt", "gpt_scan", "llama", "moe", pytest.param("vit", marks=pytest.mark.slow)]
)
@pytest.mark.in_every_run("gpt_scan", "llama")
def test_layers_are_of_the_same_classes(name):
    """Every further layer adds the same number of nodes, and no classes."""
    graphs = [
        trace(model.step, model.abstract_args)
        for model in (load_model(name, layers=n) for n in (3, 6))
    ]
    assert len(graphs[0].node_classes) == len(graphs[1].node_classes) < 300
    per_layer = (len(graphs[1].nodes) - len(graphs[0].nodes)) / 3
    grown = [
        len(b) - len(a) for a, b in zip(graphs[0].node_classes, graphs[1].node_classes, strict=True)
    ]
    assert sum(grown) == 3 * per_layer
    assert all(count % 3 == 0 for count in grown)


def test_flops_of_a_transformer():
    """6 per parameter and token, and 12 per layer, width, token and attended token."""
    fields = {
        "layers": 3,
        "width": 64,
        "hidden": 256,
        "vocabulary": 128,
        "sequence_length": 32,
        "batch": 2,
    }
    model = load_model("gpt", **fields)
    graph = trace(model.step, model.abstract_args)
    products = sum(o.flops for o in graph.operators if o.kind == "einsum")
    tokens = fields["batch"] * fields["sequence_length"]
    matrices = 3 * (4 * 64 * 64 + 2 * 64 * 256) + 64 * 128
    attention = 12 * 3 * 64 * 32 * tokens
    assert products == 6 * matrices * tokens + attention


def test_the_optimizer_is_one_node_per_parameter():
    graph = graph_of("mlp")
    chains = [e for e in graph.nodes if e.phase == "optimizer" and e.sizes]
    parameters = [i for i in graph.inputs if graph.tensors[i].role == "parameter"]
    assert len(chains) == len(parameters)
    for node in chains:
        updated = {
            graph.tensors[graph.operators[m.operator].results[0].tensor].role for m in node.members
        }
        assert {"parameter", "optimizer"} <= updated


def test_a_sum_of_branches_stands_alone():
    """Placements of the residual stream change at its sums."""
    graph = trace(lambda x, w: (x + (x @ w)) * 2, [s(4, 6), s(6, 6)], updates={})
    kinds = [[graph.operators[m.operator].primitive for m in e.members] for e in graph.nodes]
    assert [one for one in kinds if one] == [["dot_general"], ["add"], ["mul"]]


def test_sizes_of_tensors():
    graph = graph_of("matmul")
    tensor = graph.tensors[graph.inputs[0]]
    assert tensor.size == math.prod((4, 6))
    assert tensor.nbytes == 96
    assert graph.flops == 2 * 4 * 6 * 2


def test_results_are_described_in_the_names_of_the_model():
    """By the parameter that a gradient updates, or the nearest one that a result comes from."""

    def step(params, x):
        def loss(params):
            return jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]).sum()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    array = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = trace(step, ({"up": array, "down": array}, array))
    names = {t.index: described(graph, t.index) for t in graph.tensors}
    assert {names[i] for i in graph.inputs} == {"params/up", "params/down", "x"}
    gradients = {names[t.index] for t in graph.tensors if t.role == "gradient"}
    assert gradients == {"gradient of params/up", "gradient of params/down"}
    first = next(o for o in graph.operators if o.primitive == "dot_general")
    assert names[first.results[0].tensor] == "dot_general after params/up"
    assert not any(name.startswith("t") and name[1:].isdigit() for name in names.values())
