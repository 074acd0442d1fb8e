"""Flows: every tensor in one, every reader in its demands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from experiments.models import load_model
from tensorstate.problem.tensor_groups import flows_of
from tensorstate.tracing.trace_step import trace


@pytest.mark.parametrize("name", ["mlp", "gpt", "moe"])
def test_nothing_is_lost(name):
    model = load_model(name)
    graph = trace(model.step, model.abstract_args)
    flows = flows_of(graph)
    tensors = [tensor for flow in flows for tensor in flow.tensors]
    assert len(tensors) == len(set(tensors))
    read = {
        (tensor, reader)
        for flow in flows
        for tensor, readers in zip(flow.tensors, flow.readers, strict=True)
        for nodes in readers
        for reader in nodes
    }
    assert {(edge.tensor, edge.target) for edge in graph.edges} <= read
    for flow in flows:
        assert len(flow.makers) == len(flow.readers) == flow.multiplicity
        assert len(set(flow.demands)) == len(flow.demands)
        for readers in flow.readers:
            for demand, nodes in zip(flow.demands, readers, strict=True):
                assert {graph.nodes[one].class_id for one in nodes} <= {demand.class_id}
                assert bool(nodes) == (demand.class_id is not None)


def test_entities_of_a_class_that_read_alike_are_all_readers():
    def step(x, w, v):
        return jnp.sin(x @ w), jnp.sin(x @ v)

    shapes = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 3
    graph = trace(step, shapes, updates={})
    flow = next(flow for flow in flows_of(graph) if graph.inputs[0] in flow.tensors)
    products = [e.index for e in graph.nodes if e.kind == "einsum"]
    assert graph.nodes[products[0]].class_id == graph.nodes[products[1]].class_id
    ((readers,),) = flow.readers
    assert sorted(readers) == products


def test_rows_of_a_stack_do_not_grow_with_it():
    """Scanned layers take as many flows and demands however many there are."""
    found = []
    for layers in (6, 9):
        model = load_model("llama", layers=layers)
        flows = flows_of(trace(model.step, model.abstract_args))
        found.append((len(flows), sum(len(flow.demands) for flow in flows)))
    assert found[0] == found[1]
