"""Plans with microbatches: results of one device, the predicted bytes, in less memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from experiments.models import load_model
from jaxcoll import topologies
from jaxcoll.synth import Direct, Ring
from tensorstate import Plan
from tensorstate.collective_costs import AlphaBetaCosts, ScheduleCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.report.hlo_check import compare_with_hlo
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.execution.test_sharded_step import (
    CUBE,
    LINE,
    PLANE,
    SHALLOW,
    check,
    devices,
    drawn,
    traced,
)
from tests.tensorstate.oracle import LEVEL_0, arguments, assert_alike, jitted, on_devices, report_of
from tests.tensorstate.steps import KEY, s

slow = pytest.mark.slow


@functools.cache
def problem_of(
    name: str, axes: tuple[tuple[str, int], ...], num_repeats: int, **sizes: Any
) -> Problem:
    mesh = MeshShape.of(dict(axes))
    ones = (1.0,) * len(axes)
    network, graph = AlphaBetaCosts(mesh, ones, ones), traced(name, unroll=True, **sizes)[1]
    return Problem(graph, network, HARDWARE["CPU"], num_repeats)


@pytest.mark.parametrize(
    ("axes", "seed", "num_repeats"),
    [pytest.param(LINE, 1, 4, marks=slow), pytest.param(PLANE, 0, 2, marks=slow), (CUBE, 1, 4)],
    ids=["8", "2x4", "2x2x2"],
)
@pytest.mark.slow
def test_any_plan_of_a_perceptron(axes, seed, num_repeats):
    problem = problem_of("mlp", tuple(axes.items()), num_repeats)
    decisions = drawn(problem, seed)
    check(
        "mlp",
        apply(
            problem, decisions, estimate_cost(problem, decisions), devices(axes), lax_collectives
        ),
    )


@slow
def test_collectives_run_by_schedules_in_the_loop():
    candidates = ((Ring(), 1), (Direct(), 1))
    network = ScheduleCosts(topologies.torus(2, 4), MeshShape.of(PLANE), candidates=candidates)
    problem = Problem(traced("mlp")[1], network, HARDWARE["CPU"], 2)
    decisions = drawn(problem, 2)
    check("mlp", apply(problem, decisions, estimate_cost(problem, decisions), devices(PLANE)))


def _every_microbatch(problem: Problem, found: Plan) -> Plan:
    """Parameters gathered and gradients reduced in every microbatch."""
    loop_resident = {}
    for reshard in found.cost.reshards:
        if problem.tensor_groups[reshard.group].is_input:
            loop_resident |= dict.fromkeys(reshard.tensors, reshard.produced_placements)
        elif reshard.after_loop.steps:
            loop_resident |= dict.fromkeys(reshard.tensors, reshard.after_loop.steps[-1].target)
    decisions = dataclasses.replace(found.decisions, loop_resident=loop_resident)
    cost = estimate_cost(problem, decisions)
    result = dataclasses.replace(found.result, decisions=decisions, cost=cost)
    return dataclasses.replace(found, result=result)


def _report(name: str, problem: Problem, found: Plan, axes, **sizes: Any):
    applied = apply(problem, found.decisions, found.cost, devices(axes), lax_collectives)
    model, _ = traced(name, **sizes)
    return applied, report_of(applied, model, problem.mesh, found.cost, LEVEL_0)


@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(n, marks=slow) for n in ("ddp", "zero2", "megatron"))]
)
def test_bytes_of_strategies_are_those_that_were_predicted(strategy):
    """Parameters gathered and gradients reduced once, or in every microbatch."""
    problem = problem_of("mlp", tuple(PLANE.items()), 2)
    once = solve_baseline(problem, strategy)
    often = _every_microbatch(problem, once)
    assert often.cost.memory.loop_resident <= once.cost.memory.loop_resident
    for found in (once, often):
        applied, report = _report("mlp", problem, found, PLANE)
        assert report.agrees, str(report)
        assert report.compiled_inputs == report.predicted_inputs
    check("mlp", applied, 10)
    moved = [sum(found.cost.bytes_by_collective.values()) for found in (once, often)]
    assert moved[0] < moved[1] or strategy == "megatron"


def _stacked_layers(params, x):
    def loss(params):
        hidden = x
        for weight in params:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean(jnp.square(hidden))

    value, gradient = jax.value_and_grad(loss)(params)
    return params - 0.1 * gradient, value


def test_slices_of_parameters_are_gathered_in_every_microbatch():
    """XLA would move the gathers out of the loop, and all microbatches would keep the results."""
    args, mesh = (s(2, 64, 64), s(64, 64)), MeshShape.of(LINE)
    problem = Problem(
        trace(_stacked_layers, args), AlphaBetaCosts(mesh, (1.0,), (1.0,)), HARDWARE["CPU"], 4
    )
    found = solve_baseline(problem, "fsdp")
    applied = apply(problem, found.decisions, found.cost, devices(LINE), lax_collectives)
    report = compare_with_hlo(jitted(applied, LEVEL_0).lower(*args).compile(), mesh, found.cost)
    assert report.agrees, str(report)


def test_bytes_sent_and_stored_by_zero():
    """Gathered once as without microbatches, or per microbatch without a resident copy."""
    plain = solve_baseline(problem_of("mlp", tuple(LINE.items()), 1), "fsdp").cost
    problem = problem_of("mlp", tuple(LINE.items()), 2)
    once = solve_baseline(problem, "fsdp")
    often = _every_microbatch(problem, once).cost
    gathered, scattered = ("all_gather", 0), ("reduce_scatter", 0)
    parameters = once.cost.bytes_by_collective[gathered]
    assert (
        once.cost.bytes_by_collective[scattered]
        == plain.bytes_by_collective[scattered]
        == parameters
    )
    assert often.bytes_by_collective[gathered] == 2 * plain.bytes_by_collective[gathered]
    assert often.bytes_by_collective[scattered] == 2 * parameters
    # Every parameter replicated, and its partial gradient; and the loss.
    assert once.cost.memory.loop_resident == 2 * parameters + 4
    assert often.memory.loop_resident == parameters // 8 + 4


@pytest.mark.slow
def test_the_more_microbatches_the_less_memory():
    """Measured, beside the arguments, and predicted; on two devices."""
    model = load_model("mlp", batch=512)
    graph, mesh = trace(model.step, model.abstract_args), MeshShape.of({"data": 2})
    two = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    measured, predicted = [], []
    for num_repeats in (1, 2, 4):
        problem = Problem(graph, AlphaBetaCosts(mesh, (1.0,), (1.0,)), HARDWARE["CPU"], num_repeats)
        found = solve_baseline(problem, "ddp")
        applied = apply(problem, found.decisions, found.cost, two, lax_collectives)
        report = compare_with_hlo(
            applied.jit().lower(*model.abstract_args).compile(), mesh, found.cost
        )
        assert report.agrees, str(report)
        measured.append(report.compiled_temporaries)
        predicted.append(report.predicted_temporaries)
    for before, after in itertools.pairwise(measured):
        assert after < 0.7 * before
    for before, after in itertools.pairwise(predicted):
        assert after < 0.6 * before


def _step(w, x, key):
    """Dropout, a metric that is a maximum, and results returned per microbatch."""

    def loss(w):
        y = jnp.where(jax.random.bernoulli(key, 0.7, x.shape), jnp.tanh(x @ w), 0)
        return y.mean() + jnp.square(w).mean(), y

    (value, y), gradient = jax.value_and_grad(loss, has_aux=True)(w)
    return w - 0.1 * gradient, value, y.max(), y


@pytest.mark.parametrize(("seed", "num_repeats"), [(0, 2), (1, 4), (3, 4)])
@pytest.mark.in_every_run("0-2")
def test_microbatched_results_and_maxima_are_returned(seed, num_repeats):
    """From batches sharded in any way, of which devices have different parts."""
    shapes = s(16, 16), s(32, 16), KEY
    graph = trace(_step, shapes)
    mesh = MeshShape.of(PLANE)
    network = AlphaBetaCosts(mesh, (1.0, 1.0), (1.0, 1.0))
    problem = Problem(graph, network, HARDWARE["CPU"], num_repeats, batch="x")
    decisions = drawn(problem, seed)
    applied = apply(
        problem, decisions, estimate_cost(problem, decisions), devices(PLANE), lax_collectives
    )
    args = arguments(shapes)
    run = jitted(applied, LEVEL_0)
    found = jax.device_get(run(*on_devices(args, applied)))
    assert_alike(found, jax.jit(_step)(*args), 1e-5)


@slow
@pytest.mark.parametrize("name", ["gpt_scan", "moe", "vit"])
def test_any_plan_of_a_model(name):
    """Of the other models in ``test_sharded_step``."""
    sizes = SHALLOW.get(name, {})
    problem = problem_of(name, tuple(PLANE.items()), 2, **sizes)
    decisions = drawn(problem, 0)
    cost = estimate_cost(problem, decisions)
    check(name, apply(problem, decisions, cost, devices(PLANE), lax_collectives), **sizes)


BOTH = ("megatron-sp", "fsdp")


@slow
@pytest.mark.parametrize(
    ("name", "strategy"),
    list(zip(("gpt", "gpt_scan", "llama", "moe", "vgg", "vit"), itertools.cycle(BOTH))),
)
def test_bytes_of_models_are_those_that_were_predicted(name, strategy):
    """Each by one of both, as ``test_memory`` has every model by each without the loop."""
    sizes = SHALLOW.get(name, {})
    problem = problem_of(name, tuple(PLANE.items()), 2, **sizes)
    found = solve_baseline(problem, strategy)
    _, report = _report(name, problem, found, PLANE, **sizes)
    assert report.agrees, str(report)
    assert report.compiled_inputs == report.predicted_inputs
