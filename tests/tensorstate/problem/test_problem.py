"""Tensor groups and costs of a problem, against those of single tensors."""

from __future__ import annotations

import gc
import weakref

import pytest

from experiments.models import load_model
from tensorstate import Auto, SearchOptions
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import find_tensor_groups
from tensorstate.solver.overlap import search_overlapped
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.steps import STEPS
from tests.tensorstate.tiny import TINY, graph


@pytest.mark.parametrize("name", [*TINY, "attention", "gradient_of_layers", "experts", "dropout"])
def test_every_tensor_between_nodes_is_in_one_group(name):
    one = graph(name) if name in TINY else trace(STEPS[name][0], STEPS[name][1:])
    tensor_groups = find_tensor_groups(one)
    uses_after_loop = {edge.tensor for edge in one.edges}
    uses_after_loop |= {e.tensor for e in one.nodes if e.tensor is not None}
    uses_after_loop |= {out.view.tensor for out in one.outputs if out.view.tensor is not None}
    assert sorted(t for group in tensor_groups for t in group.tensors) == sorted(uses_after_loop)
    read = {
        (tensor, consumer)
        for group in tensor_groups
        for tensor, consumers in zip(group.tensors, group.consumers, strict=True)
        for consumer_class, nodes in zip(group.consumer_classes, consumers, strict=True)
        if consumer_class.ports
        for consumer in nodes
    }
    assert read == {(edge.tensor, edge.target) for edge in one.edges}
    for group in tensor_groups:
        for tensor, producer in zip(group.tensors, group.producers, strict=True):
            assert one.nodes[producer].class_id == group.class_id
            assert one.tensors[tensor].sizes == group.sizes


def test_new_values_have_the_placements_of_the_inputs_they_replace():
    one = graph("linear")
    (group,) = [
        f
        for f in find_tensor_groups(one)
        if any(d.class_id is not None and not d.ports for d in f.consumer_classes)
    ]
    (consumer_class,) = [
        d for d in group.consumer_classes if d.class_id is not None and not d.ports
    ]
    (w,) = [e for e in one.nodes if e.tensor is not None and one.tensors[e.tensor].name == "w"]
    assert consumer_class.class_id == w.class_id
    assert consumer_class.after_forward


def test_groups_do_not_grow_with_depth():
    problems = []
    for layers in (6, 9):
        model = load_model("mlp", widths=[16] * (layers + 1))
        mesh = MeshShape.of({"data": 2})
        one = trace(model.step, model.abstract_args)
        problems.append(Problem(one, AlphaBetaCosts(mesh, (0.0,), (1e9,)), HARDWARE["CPU"]))
    assert len(problems[0].tensor_groups) == len(problems[1].tensor_groups)
    assert len(problems[0].graph.node_classes) == len(problems[1].graph.node_classes)
    assert sum(f.multiplicity for f in problems[1].tensor_groups) > sum(
        f.multiplicity for f in problems[0].tensor_groups
    )


@pytest.mark.parametrize("name", TINY)
def test_memory_traffic_is_sharded(name):
    """Half the bytes along a label that all tensors of a node have; never less than half."""
    mesh = MeshShape.of({"data": 2})
    problem = Problem(graph(name), AlphaBetaCosts(mesh, (0.0,), (1e9,)), HARDWARE["CPU"])
    for class_id, strategies in enumerate(problem.strategies):
        full, seconds = (
            f(class_id, (REPLICATED,)) for f in (problem.memory_traffic, problem.seconds)
        )
        for strategy in strategies.all:
            assert full / 2 <= problem.memory_traffic(class_id, strategy) <= full
            assert seconds / 2 <= problem.seconds(class_id, strategy) * (1 + 1e-12)
            assert problem.seconds(class_id, strategy) <= seconds


def test_a_problem_is_freed_after_its_search():
    """Programs keep what strategies cost, and those of discounted collectives keep the same."""
    mesh = MeshShape.of({"data": 2, "model": 2})
    problem = Problem(
        graph("tanh"), AlphaBetaCosts(mesh, (1e-6,) * 2, (1e9,) * 2), HARDWARE["H100"]
    )
    discounted = problem.discounted({problem.tensor_groups[0]: (0.5, 0.5)})
    assert discounted.seconds is problem.seconds
    candidates = [strategies.all for strategies in problem.strategies]
    found = search_overlapped(problem, candidates, SearchOptions(objective="overlap"), Auto())
    assert found.cost.timeline().seconds > 0
    kept = weakref.ref(problem)
    del problem, discounted, found
    gc.collect()
    assert kept() is None


def test_a_slice_reads_only_its_own_bytes():
    """Time grows linearly with scanned layers, though each is a slice of the stacked layers."""
    spent = []
    for layers in (4, 8):
        model = load_model("llama", layers=layers)
        one = trace(model.step, model.abstract_args)
        mesh = MeshShape.of({"data": 2})
        problem = Problem(one, AlphaBetaCosts(mesh, (0.0,), (1e9,)), HARDWARE["CPU"])
        slices = [
            problem.multiplicity(class_id) * problem.seconds(class_id, (REPLICATED,))
            for class_id in range(len(one.node_classes))
            if any(
                one.operators[m.operator].primitive == "scan_row"
                for m in problem.node(class_id).members
            )
        ]
        assert slices
        spent.append(sum(slices))
    assert spent[1] == pytest.approx(2 * spent[0], rel=0.05)
