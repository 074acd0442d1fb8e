"""Sharded steps: whatever was decided, the results are those of one device."""

from __future__ import annotations

import functools
import math
import random
import re
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from experiments.models import load_model
from jaxcoll import topologies
from jaxcoll.synth import Direct, Ring
from tensorstate.collective_costs import AlphaBetaCosts, ScheduleCosts
from tensorstate.cost.cost import estimate_cost
from tensorstate.cost.reshard_plan import Decisions
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.execution.sharded_step import ShardedStep, abstract_args, apply
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import REPLICATED, MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.step_search import search
from tensorstate.tracing.trace_step import trace
from tests.tensorstate.oracle import QUICK, assert_alike, jitted, on_devices
from tests.tensorstate.solvers import recomputing

LINE = {"data": 8}
PLANE = {"data": 2, "model": 4}
CUBE = {"data": 2, "model": 2, "more": 2}
# Models of one layer, where a second has the same operators again: to compile them is most of a
# test. Layers that are scanned are compiled once however many there are.
SHALLOW: dict[str, dict[str, Any]] = {
    **{name: {"layers": 1} for name in ("gpt", "moe", "vit")},
    "vgg": {"channels": ((8,), (16,))},
}


@functools.cache
def traced(name: str, unroll: bool = False, **sizes: Any):
    model = load_model(name, **sizes)
    return model, trace(model.step, model.abstract_args, loops="unroll" if unroll else "keep")


def problem_of(
    name: str, axes: dict[str, int], network=None, unroll: bool = False, **sizes: Any
) -> Problem:
    mesh = MeshShape.of(axes)
    ones = (1.0,) * len(axes)
    graph = traced(name, unroll, **sizes)[1]
    return Problem(graph, network or AlphaBetaCosts(mesh, ones, ones), HARDWARE["CPU"])


def devices(axes: dict[str, int]) -> jax.sharding.Mesh:
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto)


def drawn(problem: Problem, seed: int) -> Decisions:
    """Any strategy for every class, and a third of the forward pass recomputed."""
    draw = random.Random(seed)
    whole = [
        [w for w in strategies.all if min(w) >= REPLICATED] for strategies in problem.strategies
    ]
    forward = [e.index for e in problem.graph.nodes if e.phase == "forward"]
    recomputed = frozenset(node for node in forward if draw.random() < 0.3)
    return Decisions(
        tuple(draw.choice(strategies) for strategies in whole), recomputing(recomputed)
    )


@functools.cache
def on_one_device(name: str, steps: int, **sizes: Any):
    """Arguments of a model's step, and the results of so many steps."""
    model, _ = traced(name, **sizes)
    alone = jax.jit(model.step, compiler_options=QUICK)
    params, state, batch = args = model.init(0)
    results = []
    for _ in range(steps):
        params, state, loss = alone(params, state, batch)
        results.append((params, state, loss))
    return args, results


def check(name: str, applied: ShardedStep, steps: int = 1, **sizes: Any) -> jax.stages.Compiled:
    """The compiled step, which has the values of one device."""
    run = jitted(applied).lower(*traced(name, **sizes)[0].abstract_args).compile()
    (params, state, batch), results = on_one_device(name, steps, **sizes)
    for expected in results:
        params, state, loss = run(*on_devices((params, state, batch), applied))
        assert_alike(jax.device_get((params, state, loss)), expected, 1e-4)
    return run


SLOW_PLANS = [(0, LINE), (0, CUBE), (1, LINE), (1, PLANE)]


@pytest.mark.parametrize(
    ("seed", "axes"),
    [(0, PLANE), (1, CUBE), *(pytest.param(*plan, marks=pytest.mark.slow) for plan in SLOW_PLANS)],
    ids=["0-2x4", "1-2x2x2", "0-8", "0-2x2x2", "1-8", "1-2x4"],
)
@pytest.mark.in_every_run("1-2x2x2")
def test_any_plan_of_a_perceptron(seed, axes):
    problem = problem_of("mlp", axes)
    decisions = drawn(problem, seed)
    check(
        "mlp",
        apply(
            problem, decisions, estimate_cost(problem, decisions), devices(axes), lax_collectives
        ),
    )


@pytest.mark.parametrize("kinds", ["Explicit Explicit", "Explicit Auto", "Auto Explicit"])
@pytest.mark.in_every_run("Explicit Auto")
def test_any_plan_on_a_mesh_with_explicit_axes(kinds):
    """Some tensors are sharded along both axes, a few of them along one dimension."""
    problem = problem_of("mlp", PLANE)
    decisions = drawn(problem, 1)
    types = tuple(jax.sharding.AxisType[kind] for kind in kinds.split())
    mesh = jax.make_mesh(tuple(PLANE.values()), tuple(PLANE), axis_types=types)
    cost = estimate_cost(problem, decisions)
    check("mlp", apply(problem, decisions, cost, mesh, lax_collectives))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("gpt", 0), ("llama", 0), ("vgg", 0)])
def test_any_plan_of_a_model(name, seed):
    """The other models have theirs in microbatches, which runs the same and the loop around it."""
    sizes = SHALLOW.get(name, {})
    problem = problem_of(name, PLANE, **sizes)
    decisions = drawn(problem, seed)
    cost = estimate_cost(problem, decisions)
    check(name, apply(problem, decisions, cost, devices(PLANE), lax_collectives), **sizes)


@pytest.mark.slow
def test_collectives_run_by_schedules_of_the_network():
    network = ScheduleCosts(
        topologies.torus(2, 4), MeshShape.of(PLANE), candidates=((Ring(), 1), (Direct(), 1))
    )
    problem = problem_of("mlp", PLANE, network)
    decisions = drawn(problem, 2)
    check(
        "mlp", apply(problem, decisions, estimate_cost(problem, decisions), devices(PLANE)), steps=2
    )


def data_parallel(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Every class that has the batch is sharded by it, and nothing else is."""
    graph = problem.graph
    batch = [graph.tensors[i] for i in graph.inputs if graph.tensors[i].role == "input"]
    factors = {tensor.dims[0] for tensor in batch if tensor.name.startswith("batch")}
    strategies = []
    for class_id in range(len(graph.node_classes)):
        node = problem.node(class_id)
        labels = {}
        for member in node.members:
            operator = graph.operators[member.operator]
            for use in (*operator.operands, *operator.results):
                for label, factor in zip(use.labels, graph.tensors[use.tensor].dims, strict=True):
                    labels[member.labels[label]] = factor
        if node.tensor is not None:
            labels = dict(enumerate(graph.tensors[node.tensor].dims))
        shared = [label for label, factor in labels.items() if factor in factors]
        fits = [label for label in shared if label not in node.need_replication]
        strategies.append((fits[0],) if fits else (REPLICATED,))
    return tuple(strategies)


def test_data_parallelism_sums_gradients_and_donates_parameters():
    problem = problem_of("mlp", LINE)
    decisions = Decisions(data_parallel(problem))
    cost = estimate_cost(problem, decisions)
    applied = apply(problem, decisions, cost, devices(LINE), lax_collectives)
    assert applied.donate_argnums == (0, 1)
    specs = [sharding.spec for sharding in jax.tree.leaves(applied.in_shardings[2])]
    assert specs == [PartitionSpec("data"), PartitionSpec("data", None)]
    model, _ = traced("mlp")
    compiled = applied.jit().lower(*model.abstract_args).compile()
    assert {kind for kind, _ in cost.count_by_collective} == {"all_reduce"}
    assert "all-reduce" in compiled.as_text()
    assert "all-gather" not in compiled.as_text()
    memory = compiled.memory_analysis()
    state = jax.tree.leaves(model.abstract_args[:2])
    assert memory.alias_size_in_bytes == sum(x.size * x.dtype.itemsize for x in state)
    check("mlp", applied, steps=3)


# A group is spelled by its devices, or by the mesh and the axis along which it lies.
COLLECTIVE = re.compile(
    r" = (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all)\(.*"
    r"replica_groups=(?:\{\{([\d,]*)\}|mesh\[.*?\] \{'(\w+)'\})"
)


def compiled_bytes(text: str) -> dict[tuple[str, int], int]:
    """Bytes of the larger buffer of all collectives, by kind and size of their groups."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for shapes, kind, class_id, axis in COLLECTIVE.findall(text):
        size = PLANE[axis] if axis else len(class_id.split(","))
        for shape in re.findall(r"[fsu]32\[([\d,]*)\]", shapes):
            count = math.prod(int(n) for n in shape.split(",") if n)
            found[kind, size] += 4 * count * (size if kind == "reduce-scatter" else 1)
    return dict(found)


@pytest.mark.parametrize("name", ["zero2", "fsdp", "megatron"])
@pytest.mark.in_every_run("fsdp", "megatron")
def test_compiled_bytes_are_the_predicted_ones(name):
    """Gathers of the backward pass included, which XLA would take from the forward pass."""
    problem = problem_of("mlp", PLANE)
    found = solve_baseline(problem, name)
    applied = apply(problem, found.decisions, found.cost, devices(PLANE), lax_collectives)
    text = str(check("mlp", applied).as_text())
    sizes = problem.mesh.sizes
    priced = {
        (k.replace("_", "-"), sizes[axis]): n
        for (k, axis), n in found.cost.bytes_by_collective.items()
    }
    assert compiled_bytes(text) == priced


def test_recomputed_tensors_are_not_saved():
    """Less temporary memory, the same results."""
    model = load_model("mlp", widths=[64] * 9, batch=4096)
    problem = Problem(
        trace(model.step, model.abstract_args),
        AlphaBetaCosts(MeshShape.of({"data": 1}), (1.0,), (1.0,)),
        HARDWARE["CPU"],
    )
    strategies = tuple((REPLICATED,) for _ in problem.graph.node_classes)
    forward = {e.index for e in problem.graph.nodes if e.phase == "forward"}
    temporary, results = [], []
    for recomputed in (frozenset(), _chains(problem, forward)):
        decisions = Decisions(strategies, recomputing(recomputed))
        applied = apply(
            problem,
            decisions,
            estimate_cost(problem, decisions),
            devices({"data": 1}),
            lax_collectives,
        )
        compiled = applied.jit(donate=False).lower(*model.abstract_args).compile()
        temporary.append(compiled.memory_analysis().temp_size_in_bytes)
        results.append(compiled(*on_devices(model.init(0), applied)))
    assert_alike(results[1], results[0])
    assert temporary[1] < 0.5 * temporary[0]


def _chains(problem: Problem, forward: set[int]) -> frozenset[int]:
    """All operators but the products: the others cost little to recompute."""
    return frozenset(i for i in forward if problem.graph.nodes[i].kind == "elementwise")


def test_annotations_say_what_they_leave_open():
    model, _ = traced("mlp")
    problem = problem_of("mlp", LINE)
    plain = Decisions(data_parallel(problem))
    applied = apply(problem, plain, estimate_cost(problem, plain), devices(LINE), lax_collectives)
    assert applied.not_expressible == ()
    run = applied.jit_with_io_shardings(model.step, donate=False)
    args = model.init(0)
    assert_alike(jax.device_get(run(*args)), jax.jit(model.step)(*args), 1e-4)

    forward = frozenset(e.index for e in problem.graph.nodes if e.phase == "forward")
    recomputed = Decisions(plain.strategies, recomputing(forward))
    applied = apply(
        problem, recomputed, estimate_cost(problem, recomputed), devices(LINE), lax_collectives
    )
    with pytest.warns(UserWarning, match=r"express that \d+ groups of operators are recomputed"):
        applied.jit_with_io_shardings(model.step)


def test_a_mesh_of_other_axes_is_refused():
    problem = problem_of("mlp", PLANE)
    decisions = drawn(problem, 0)
    with pytest.raises(PlanError, match=r"a mesh of \{'data': 2, 'model': 4\}"):
        apply(problem, decisions, estimate_cost(problem, decisions), devices(LINE))


def test_other_arguments_are_refused():
    problem = problem_of("mlp", LINE)
    decisions = drawn(problem, 0)
    applied = apply(
        problem, decisions, estimate_cost(problem, decisions), devices(LINE), lax_collectives
    )
    with pytest.raises(PlanError, match="the tree of arguments"):
        applied.step(np.zeros(4))
    leaves, tree = jax.tree.flatten(abstract_args(problem.traced))
    for number, leaf in enumerate(leaves):
        other = np.int16 if leaf.dtype != np.int16 else np.int32
        for bad in (
            jax.ShapeDtypeStruct(leaf.shape, other),
            jax.ShapeDtypeStruct((*leaf.shape, 2), leaf.dtype),
        ):
            changed = jax.tree.unflatten(tree, [*leaves[:number], bad, *leaves[number + 1 :]])
            name = problem.traced.tensors[problem.traced.inputs[number]].name
            with pytest.raises(PlanError, match=rf"{re.escape(name)} is .* cast it"):
                jax.eval_shape(applied.step, *changed)


def test_donated_arrays_that_are_passed_again_are_named():
    """After a call that took them, and twice in one call: a tied table with two names."""

    def step(params, x):
        total = (x @ params["embed"]).sum() + params["head"].sum()
        return jax.tree.map(lambda p: p - total, params), total

    row = np.ones((8, 4), np.float32)
    args = {"embed": row, "head": row}, np.ones((2, 8), np.float32)
    mesh = {"data": 2}
    network = AlphaBetaCosts(MeshShape.of(mesh), (1.0,), (1e9,))
    plan = search(step, jax.eval_shape(lambda: args), mesh=mesh, network=network, hardware="CPU")
    applied = plan.apply()
    run = applied.jit()
    params, x = on_devices(args, applied)
    with pytest.raises(PlanError, match=r"0\['embed'\] and 0\['head'\] are one array.*jnp.copy"):
        run({"embed": params["head"], "head": params["head"]}, x)
    params, x = on_devices(args, applied)
    again, _ = run(params, x)
    with pytest.raises(PlanError, match=r"0\['\w+'\] was donated to an earlier call.*donate=False"):
        run(params, x)
    assert float(run(again, x)[1]) != 0


def test_tied_arguments_have_their_own_placements():
    """One array as two arguments, pinned apart, in every form of the plan."""

    def step(params, tokens):
        def loss(params):
            return jnp.square(params["embed"][tokens] @ params["head"].T).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    table = jnp.linspace(-1.0, 1.0, 128).reshape(16, 8)
    args = {"embed": table, "head": table}, jnp.arange(8).reshape(2, 4)
    plan = search(
        step,
        jax.eval_shape(lambda: args),
        mesh=PLANE,
        network=AlphaBetaCosts(MeshShape.of(PLANE), (1e-9,) * 2, (1e11,) * 2),
        hardware="CPU",
        pin={"params/embed": ("model", None), "params/head": (None, "model")},
    )
    for applied in (plan.apply(collectives=lax_collectives), plan.constrain()):
        placed = on_devices(args, applied)
        specs = [placed[0][name].sharding.spec for name in ("embed", "head")]
        assert specs == [PartitionSpec("model", None), PartitionSpec(None, "model")]
        assert_alike(jax.device_get(jitted(applied)(*placed)), jax.jit(step)(*args), 1e-5)


def test_a_result_fed_back_in_another_sharding_is_refused_with_what_to_do():
    """A state that products make is not known to be an argument's new value: it lies as made."""

    def step(weights, hidden, x):
        hidden = jnp.tanh(hidden @ weights + x)
        return weights * 0.9, hidden

    size = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    network = AlphaBetaCosts(MeshShape.of(PLANE), (0.0, 0.0), (1e9, 1e9))
    pin = {"weights": (), "hidden": (), "x": ("data",)}
    plan = search(step, (size,) * 3, mesh=PLANE, network=network, hardware="CPU", pin=pin)
    applied = plan.apply(devices(PLANE), lax_collectives)
    run, x = applied.jit(donate=False), jnp.eye(8)
    weights, hidden = run(x, x, x)
    assert not hidden.is_fully_replicated
    with pytest.raises(
        PlanError, match=r"argument 1 is P.*ShardedStep.put; .* updates="
    ) as refused:
        run(weights, hidden, x)
    assert len(str(refused.value)) <= 300
    assert_alike(run(*applied.put((weights, hidden, x))), step(weights, hidden, x))
