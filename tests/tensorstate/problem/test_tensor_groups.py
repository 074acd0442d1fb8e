"""Tensor groups: every tensor is in one, and every consumer in its consumer classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from experiments.models import load_model
from tensorstate.problem.tensor_groups import find_tensor_groups
from tensorstate.tracing.trace_step import trace


@pytest.mark.parametrize("name", ["mlp", "gpt", "moe"])
def test_every_tensor_and_consumer_is_in_one_group(name):
    model = load_model(name)
    graph = trace(model.step, model.abstract_args)
    tensor_groups = find_tensor_groups(graph)
    tensors = [tensor for group in tensor_groups for tensor in group.tensors]
    assert len(tensors) == len(set(tensors))
    read = {
        (tensor, consumer)
        for group in tensor_groups
        for tensor, consumers in zip(group.tensors, group.consumers, strict=True)
        for nodes in consumers
        for consumer in nodes
    }
    assert {(edge.tensor, edge.target) for edge in graph.edges} <= read
    for group in tensor_groups:
        assert len(group.producers) == len(group.consumers) == group.multiplicity
        assert len(set(group.consumer_classes)) == len(group.consumer_classes)
        for consumers in group.consumers:
            for consumer_class, nodes in zip(group.consumer_classes, consumers, strict=True):
                assert {graph.nodes[one].class_id for one in nodes} <= {consumer_class.class_id}
                assert bool(nodes) == (consumer_class.class_id is not None)


def test_all_nodes_of_a_consumer_class_are_consumers():
    def step(x, w, v):
        return jnp.sin(x @ w), jnp.sin(x @ v)

    shapes = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 3
    graph = trace(step, shapes, updates={})
    group = next(group for group in find_tensor_groups(graph) if graph.inputs[0] in group.tensors)
    products = [e.index for e in graph.nodes if e.kind == "einsum"]
    assert graph.nodes[products[0]].class_id == graph.nodes[products[1]].class_id
    ((consumers,),) = group.consumers
    assert sorted(consumers) == products


def test_groups_of_a_stack_do_not_grow_with_it():
    """The number of groups and consumer classes does not depend on the number of scanned layers."""
    found = []
    for layers in (6, 9):
        model = load_model("llama", layers=layers)
        tensor_groups = find_tensor_groups(trace(model.step, model.abstract_args))
        found.append(
            (len(tensor_groups), sum(len(group.consumer_classes) for group in tensor_groups))
        )
    assert found[0] == found[1]
