"""Plain plans: the fewer shardings that moves of whole families leave, and their cost."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.models import load_model
from tensorstate import AlphaBetaCosts, MeshShape, Milp, Plan, SearchOptions, search, trace
from tensorstate.cost.cost import estimate_cost
from tensorstate.ir.placements import REPLICATED
from tensorstate.report.inputs import merged_names
from tensorstate.report.text import format_placements
from tensorstate.solver.plain import _Simplifier, simplify
from tests.tensorstate.solvers import solve_milp
from tests.tensorstate.tiny import problems

MESH = {"data": 2, "model": 4}
NETWORK = AlphaBetaCosts(MeshShape.of(MESH), (1e-9,) * 2, (25e9, 50e9))


def specs_of(plan: Plan) -> dict[str, str]:
    """The sharding of every input."""
    problem, found = plan.problem, {}
    for group in problem.tensor_groups:
        if group.is_input:
            strategy = plan.decisions.strategies[group.class_id]
            placements = problem.produced_placements(group, strategy)
            for number in group.tensors:
                tensor = problem.graph.tensors[number]
                found[tensor.name] = format_placements(problem, tensor, placements)
    return found


@functools.cache
def planned(name: str) -> Plan:
    model = load_model(name)
    graph = trace(model.step, model.abstract_args)
    return search(graph, mesh=MESH, network=NETWORK, hardware="CPU")


@settings(max_examples=10)
@given(problems(names=("linear", "twice", "tanh", "layers", "embedding")), st.data())
def test_moves_cost_no_more_than_the_gap_and_keep_the_limit(problem, data):
    every = [strategies.all for strategies in problem.strategies]
    gap = data.draw(st.sampled_from([1e-9, 0.01, 0.3]))
    found = solve_milp(problem, every, gap=1e-6)
    for limit in (None, float(found.cost.memory.peak)):
        options = SearchOptions(memory_limit=limit)
        plain = simplify(problem, every, options, found, gap)
        assert plain.objective <= max(found.objective, found.bound / (1 - gap)) * (1 + 1e-12)
        assert plain.cost.memory.fits(limit)
        assert plain.cost.memory.inputs <= 1.01 * found.cost.memory.inputs
        again = estimate_cost(problem, plain.decisions)
        assert again.serial_seconds == plain.objective
        assert again.memory == plain.cost.memory
        of = _Simplifier(problem, every, options, found, gap)
        assert of.score(plain) <= of.score(found)
        assert plain.bound == found.bound


def test_what_a_move_changes_is_what_the_plan_after_it_costs():
    """The objective and the collectives of a move are found without those that it leaves alone."""
    plan = planned("mlp")
    problem, result = plan.problem, plan.result
    every = [strategies.all for strategies in problem.strategies]
    of = _Simplifier(problem, every, plan.options, result, 0.5)
    tried = 0
    for family in of._families():
        for moves in of._moves_of(family, result.decisions.strategies):
            if moves:
                decisions = of._decided(result.decisions, moves)
                change = of._change(result, decisions, moves)
                assert change is not None
                cost = estimate_cost(problem, decisions)
                assert change[0] == pytest.approx(cost.serial_seconds, rel=1e-9)
                assert change[1] == sum(cost.count_by_collective.values())
                tried += 1
    assert tried > 10


def test_a_parameter_that_stands_out_is_moved_back_with_its_moments():
    plan = planned("mlp")
    problem, result = plan.problem, plan.result
    every = [strategies.all for strategies in problem.strategies]
    alone = next(
        group
        for group in problem.tensor_groups
        if group.is_input
        and problem.graph.tensors[group.tensors[0]].name.endswith("mu/layers/2/bias")
    )
    strategies = list(result.decisions.strategies)
    assert max(strategies[alone.class_id]) >= 0
    strategies[alone.class_id] = (REPLICATED, REPLICATED)
    decisions = dataclasses.replace(result.decisions, strategies=tuple(strategies))
    cost = estimate_cost(problem, decisions)
    odd = dataclasses.replace(result, decisions=decisions, cost=cost, objective=cost.serial_seconds)
    plain = simplify(problem, every, plan.options, odd, 0.01)
    assert plain.decisions.strategies[alone.class_id] == result.decisions.strategies[alone.class_id]
    assert plain.objective <= odd.objective


@pytest.mark.slow
def test_queries_keys_and_values_are_sharded_alike():
    """Their products too: in the plan that the search finds first, values are replicated."""
    specs = specs_of(planned("gpt"))
    for layer in range(2):
        assert len({specs[f"params/layers/{layer}/qkv/{i}/kernel"] for i in range(3)}) == 1
    batch = {spec for name, spec in specs.items() if name.startswith("batch/")}
    assert len(batch) == 1
    for name, spec in specs.items():
        if name.startswith("state/0/mu/"):
            assert spec == specs[name.replace("state/0/mu/", "params/")], name


@pytest.mark.parametrize(
    ("name", "specs", "collectives", "lines"), [("mlp", 3, 23, 36), ("gpt", 6, 140, 42)]
)
def test_plans_are_short(name, specs, collectives, lines):
    """Of the search alone: 5 and 9 shardings, 23 and 170 collectives; printed before, 49 and 67."""
    plan = planned(name)
    counted = Counter(
        spec for name, spec in specs_of(plan).items() if name.startswith(("params/", "state/"))
    )
    assert len(counted) <= specs + 1  # a scalar is replicated
    assert sum(plan.cost.count_by_collective.values()) <= collectives
    text = str(plan)
    assert len(text.splitlines()) <= lines
    assert max(map(len, text.splitlines())) <= 120


def test_a_perceptron_is_read_at_a_glance():
    optimizer = optax.adam(1e-3)

    def step(params, state, x, y):
        def loss(params):
            return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"] - y) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {"up": array(256, 1024), "down": array(1024, 256)}
    args = (params, jax.eval_shape(optimizer.init, params), array(512, 256), array(512, 256))
    plan = search(step, args, mesh=MESH, network=NETWORK, hardware="CPU", solver=Milp())
    assert len(str(plan).splitlines()) <= 27, str(plan)


def test_names_that_differ_in_one_part_are_one_name():
    layers = [f"p/layers_{i}/{part}/w" for i in range(3) for part in ("gate", "up")]
    assert merged_names(layers, layers) == ["p/layers_*/{gate,up}/w"]
    assert merged_names(layers[:4], layers) == ["p/{layers_0,layers_1}/{gate,up}/w"]
    assert merged_names(["a/0", "b", "a/1"], []) == ["a/*", "b"]
    assert merged_names(["a"], ["a"]) == ["a"]
