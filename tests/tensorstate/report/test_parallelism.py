"""Names of plans are true of the whole plan, by the specs of its arguments."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorstate as ts
from tensorstate.cost.cost import estimate_cost
from tensorstate.report.parallelism import (
    FEATURES,
    UNNAMED,
    parallelism_by_axis,
    parallelism_name,
    sentence,
)
from tests.tensorstate.test_plan import MESH, NETWORK, arguments, perceptron

NAMES = ("ddp", "zero2", "fsdp", "megatron", "fsdp + megatron")


@functools.cache
def plan_of(name: str) -> ts.Plan:
    graph = ts.trace(perceptron, arguments())
    plan = ts.search(graph, mesh=MESH, network=NETWORK, hardware="CPU")
    return ts.solve_baseline(plan.problem, name)


def changed(plan: ts.Plan, changes: dict[int, int]) -> ts.Plan:
    """The plan with other strategies of some classes."""
    strategies = list(plan.decisions.strategies)
    for class_id, number in changes.items():
        choices = plan.problem.strategies[class_id].all
        strategies[class_id] = choices[number % len(choices)]
    decisions = dataclasses.replace(plan.decisions, strategies=tuple(strategies), saved={})
    cost = estimate_cost(plan.problem, decisions)
    result = dataclasses.replace(plan.result, decisions=decisions, cost=cost)
    return dataclasses.replace(plan, result=result)


def class_of(plan: ts.Plan, name: str) -> int:
    """The class of the argument with a name."""
    (class_id,) = [
        plan.graph.nodes[of_class[0]].class_id
        for of_class in plan.graph.node_classes
        if (tensor := plan.graph.nodes[of_class[0]].tensor) is not None
        and plan.graph.tensors[tensor].name == name
    ]
    return class_id


def axes_of(tree) -> list[list[set[str]]]:
    """By array the mesh axes of each dimension that has one; scalars are left out."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
    return [[{e} if isinstance(e, str) else set(e or ()) for e in spec] for spec in leaves]


def said_of(plan: ts.Plan, axis: str) -> dict[str, bool]:
    """By name, whether the specs of the arguments, all matrices, allow it on an axis."""
    params, state, *batch = plan.specs.arguments

    def along(tree, dims=slice(None)):
        return [any(axis in each for each in spec[dims]) for spec in axes_of(tree)]

    has_params, has_state, has_batch = along(params), along(state[0].mu), along(batch, slice(1))
    replicated = not any(has_params) and not any(has_state)
    return {
        "DDP": replicated and all(has_batch),
        "batch sharded": replicated and all(has_batch),
        "ZeRO-2": not any(has_params) and all(has_state) and all(has_batch),
        "ZeRO-2 (parameters gathered once)": all(has_params) and all(has_state) and all(has_batch),
        "ZeRO-3 (FSDP)": all(has_params) and all(has_state) and all(has_batch),
        "Megatron": all(has_params) and not any(has_batch),
        "Megatron with sequence parallelism": all(has_params) and not any(has_batch),
        FEATURES: not any(has_params) and not any(has_batch),
    }


@given(
    st.sampled_from(NAMES), st.dictionaries(st.integers(0, 200), st.integers(0, 100), max_size=3)
)
@settings(max_examples=60, deadline=None)
def test_a_name_without_exceptions_is_true_of_every_argument(name, changes):
    plan = plan_of(name)
    count = len(plan.decisions.strategies)
    try:
        plan = changed(plan, {key % count: number for key, number in changes.items()})
    except ts.PlanError:  # no collectives lead between these placements
        return
    for axis, names in parallelism_by_axis(plan.problem, plan.decisions, plan.cost).items():
        if not names:  # it is said that all do the same
            assert all(axis not in each for spec in axes_of(plan.specs.arguments) for each in spec)
        for each in names:
            is_weak = each.startswith(("mostly ", "partly ")) or each == UNNAMED
            assert is_weak or said_of(plan, axis)[each], each


def test_an_axis_that_shards_no_product_does_not_do_the_same():
    """Of a replicated plan the moments alone are sharded: no parallelism, and not nothing."""
    plan = plan_of("ddp")
    count = range(len(plan.decisions.strategies))
    whole = changed(plan, dict.fromkeys(count, 0))
    assert parallelism_name(whole.problem, whole.decisions, whole.cost) == "replicated"
    class_id = class_of(plan, "state/0/mu/up")
    choices = plan.problem.strategies[class_id].all
    sharded = next(i for i, each in enumerate(choices) if each[0] >= 0)
    other = changed(whole, {class_id: sharded})
    axis = other.problem.mesh.names[0]
    said = parallelism_name(other.problem, other.decisions, other.cost)
    assert said == f"{UNNAMED} on `{axis}`"
    told = sentence(other.problem, other.decisions, other.cost)
    assert f"devices along `{axis}` each has shards of some tensors" in told


def test_an_exception_is_said_in_the_name_and_in_the_sentence():
    """One moment of a plan that shards all: nothing else may be called ZeRO-3 alone."""
    plan = plan_of("fsdp")
    class_id = class_of(plan, "state/0/mu/up")
    whole = plan.problem.strategies[class_id].all.index((-1,) * len(MESH))
    assert parallelism_name(plan.problem, plan.decisions, plan.cost).startswith("ZeRO-3 (FSDP) on")
    other = changed(plan, {class_id: whole})
    said = parallelism_name(other.problem, other.decisions, other.cost)
    assert said.startswith("mostly ZeRO-")
    told = sentence(other.problem, other.decisions, other.cost)
    assert "each mostly has a part of the batch" in told


def test_weights_that_all_devices_have_are_not_said_to_be_sharded():
    """The axis shards the features that products make, and every device has all weights."""
    plan = plan_of("megatron")
    axis = plan.problem.mesh.names[-1]
    assert parallelism_by_axis(plan.problem, plan.decisions, plan.cost)[axis] == ["Megatron"]
    whole = (-1,) * len(MESH)
    changes = {
        class_of(plan, name): plan.problem.strategies[class_of(plan, name)].all.index(whole)
        for name in ("params/up", "params/down")
    }
    other = changed(plan, changes)
    assert parallelism_by_axis(other.problem, other.decisions, other.cost)[axis] == [FEATURES]
    told = sentence(other.problem, other.decisions, other.cost)
    assert f"along `{axis}` each has all parameters and a part of the features" in told


def test_most_weights_are_not_said_to_be_on_every_device_if_they_are_sharded():
    """Modes of a spectrum take few operations and nearly all of the memory."""

    def step(weights, x):
        def loss(weights):
            spectrum = jnp.fft.rfft(x, axis=1)[:, :8]
            mixed = jnp.einsum("bmi,mio->bmo", spectrum.real, weights["modes"])
            spread = jnp.fft.irfft(mixed, n=x.shape[1], axis=1)
            return jnp.square(jnp.tanh(spread @ weights["up"]) @ weights["down"]).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    shapes = {"modes": (8, 32, 32), "up": (32, 16), "down": (16, 32)}
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    args = weights, jax.ShapeDtypeStruct((16, 64, 32), jnp.float32)
    mesh = {"d": 8}
    plan = ts.search(
        ts.trace(step, args),
        mesh=mesh,
        network=ts.AlphaBetaCosts(ts.MeshShape.of(mesh), (1e-9,), (1e9,)),
        hardware="CPU",
        pin={"x": ("d", None, None), "weights/modes": ("d", None, None)},
    )
    names = parallelism_by_axis(plan.problem, plan.decisions, plan.cost)["d"]
    assert names == ["partly DDP", "partly Megatron"]
