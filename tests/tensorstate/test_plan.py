"""The public search: arguments, reports, comparisons, names."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate
from jaxcoll import topologies
from tensorstate import (
    HARDWARE,
    AlphaBetaCosts,
    Auto,
    CoordinateDescent,
    MeshShape,
    Milp,
    PlanError,
    search,
    solve_baseline,
    trace,
)
from tensorstate.keeping.table import allowed
from tensorstate.report import text as report
from tensorstate.report.parallelism import (
    expert_factors,
    parallelism_by_axis,
    parallelism_name,
)
from tensorstate.report.text import common_pattern

MESH = {"data": 2, "model": 4}
NETWORK = AlphaBetaCosts(MeshShape.of(MESH), (1e-9, 1e-9), (1e11, 4e11))
WIDTH, BATCH = 256, 512


def optimizer() -> optax.GradientTransformation:
    return optax.adam(1e-3)


def perceptron(params, state, x, y):
    def loss(params):
        hidden = jax.nn.relu(x @ params["up"])
        return jnp.mean((hidden @ params["down"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer().update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def arguments(width=WIDTH, batch=BATCH):
    params = {
        "up": jax.ShapeDtypeStruct((width, 4 * width), jnp.float32),
        "down": jax.ShapeDtypeStruct((4 * width, width), jnp.float32),
    }
    state = jax.eval_shape(optimizer().init, params)
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return params, state, x, x


@pytest.fixture(scope="module")
def graph():
    return trace(perceptron, arguments())


@pytest.fixture(scope="module")
def plan(graph):
    return search(graph, mesh=MESH, network=NETWORK, hardware="CPU")


def test_a_plan_is_proved_and_printed(plan):
    assert plan.gap <= 1e-2
    text = str(plan)
    assert "8 x CPU, mesh data 2 x model 4" in text
    assert f"= {parallelism_name(plan.problem, plan.decisions, plan.cost)}" in text
    for part in ("parameter:", "optimizer:", "input:", "params/up", "memory: [", "gradients"):
        assert part in text


def test_a_value_at_a_prompt_is_one_line_that_says_its_size(plan):
    cost, problem = plan.cost, plan.problem
    reshard = cost.reshards[0]
    values = plan, cost, problem, problem.graph, plan.result, plan.result.decisions, reshard
    for value in (*values, plan.compare("ddp"), cost.memory, problem.mesh):
        text = repr(value)
        assert text.startswith(f"{type(value).__name__}("), text
        assert "\n" not in text
        assert len(text) <= 120, text
        assert any(character.isdigit() for character in text), text


def test_no_baseline_is_better(plan):
    comparison = plan.compare()
    assert next(iter(comparison.plans)) == "this plan"
    assert len(comparison.plans) == 7
    for found in comparison.plans.values():
        assert found.cost.serial_seconds >= plan.cost.serial_seconds * (1 - 1e-2)
    assert "megatron-sp" in str(comparison)
    small = search(
        plan.graph, mesh=MESH, network=NETWORK, hardware="CPU", memory_limit=plan.cost.memory.peak
    )
    assert "does not fit" in str(small.compare("ddp"))


def test_the_limit_is_the_memory_of_the_device(graph, plan):
    """Unless another is given, or none."""
    least = 0.9 * plan.cost.memory.peak
    small = dataclasses.replace(HARDWARE["CPU"], memory=least)
    options = {"mesh": MESH, "network": NETWORK, "hardware": small}
    assert plan.memory_limit == HARDWARE["CPU"].memory
    fitting = search(graph, recompute=True, **options)
    assert fitting.memory_limit == least
    assert fitting.cost.memory.peak <= least
    free = search(graph, memory_limit=math.inf, **options)
    assert free.memory_limit is None
    assert free.cost.memory.peak > least
    assert free.result.bound <= fitting.result.objective


def test_baselines_obey_the_limit_and_recompute_as_the_plan_does(plan):
    """Where one fits into less memory it does, and takes more time; the others say so."""
    free = solve_baseline(plan.problem, "zero2")
    limit = 0.98 * free.cost.memory.peak
    fitting = solve_baseline(plan.problem, "zero2", memory_limit=limit, recompute=True)
    assert fitting.cost.memory.peak <= limit
    assert fitting.cost.serial_seconds > free.cost.serial_seconds
    keepings = allowed(recompute=True)
    options = dataclasses.replace(plan.options, memory_limit=limit, keepings=keepings)
    rows = dataclasses.replace(plan, options=options).compare("zero2")
    assert rows.plans["zero2"].cost.memory.peak <= limit
    options = dataclasses.replace(options, memory_limit=0.9 * free.cost.memory.peak)
    rows = dataclasses.replace(plan, options=options).compare("zero2")
    assert rows.plans["zero2"].cost.memory.peak == free.cost.memory.peak
    assert str(rows).splitlines()[-1].endswith("does not fit")
    with pytest.raises(PlanError, match=r"no plan fits .* the least is about .* recompute=True"):
        solve_baseline(plan.problem, "zero2", memory_limit=1e3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ddp", {"data": ["DDP"], "model": ["DDP"]}),
        ("zero2", {"data": ["ZeRO-2"], "model": ["ZeRO-2"]}),
        ("fsdp", {"data": ["ZeRO-3 (FSDP)"], "model": ["ZeRO-3 (FSDP)"]}),
        ("megatron", {"data": ["DDP"], "model": ["Megatron"]}),
        ("fsdp + megatron", {"data": ["ZeRO-3 (FSDP)"], "model": ["Megatron"]}),
    ],
)
def test_names_are_found_again(plan, name, expected):
    found = solve_baseline(plan.problem, name)
    assert parallelism_by_axis(plan.problem, found.decisions, found.cost) == expected


def test_a_batch_whose_gradients_are_not_summed_is_not_called_ddp(plan):
    found = solve_baseline(plan.problem, "ddp")
    unsummed = dataclasses.replace(found.cost, reshards=())
    by_axis = parallelism_by_axis(plan.problem, found.decisions, unsummed)
    assert by_axis == {"data": ["batch sharded"], "model": ["batch sharded"]}


def routed(w, x):
    scores = jax.nn.softmax(x[0, :, :4])
    hidden = jnp.einsum("tei,eio->teo", scores[..., None] * x[0][:, None], w)
    return jnp.einsum("teo,te->to", hidden, scores).sum()


def ensemble(w, x):
    return jnp.mean(jax.vmap(lambda w, x: jnp.tanh(x @ w))(w, x) ** 2)


def modes(w, x):
    """Every mode of a spectrum has a weight, and is put at its constant place."""
    of_modes = jnp.einsum("bxi,oix->box", x[:, :8], w)
    spectrum = jnp.zeros((4, 4, 16)).at[:, :, :8].set(of_modes)
    return jnp.abs(jnp.fft.ifft(spectrum, axis=-1)).sum()


def critic(w, x):
    """A penalty on the gradient by the input: the weight itself is repeated for every example."""
    images = jnp.concatenate([x.reshape(4, 4, 4, 8)] * 2, axis=2)
    slope = jax.grad(lambda images: jnp.tensordot(jnp.tanh(images), w, 3).sum())(images)
    return jnp.square(jnp.square(slope).sum((1, 2, 3)) - 1).sum()


@pytest.mark.parametrize(("step", "experts"), [(routed, 1), (ensemble, 0), (modes, 0), (critic, 0)])
def test_experts_are_distinguished_from_heads_and_from_ensembles(step, experts):
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 8, 8), (4, 16, 8))]

    def train(params, state, x):
        value, gradient = jax.value_and_grad(step)(params, x)
        return params - gradient, state, value

    graph = trace(train, (shapes[0], (), shapes[1]))
    made = search(
        graph, mesh={"x": 4}, network=AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    )
    assert len(expert_factors(made.problem)) == experts


def test_weights_of_experts_are_sharded_and_not_gathered():
    """So all else, with replicated weights, is no FSDP; nor are the moments of experts ZeRO-2."""

    def step(params, moments, x):
        def loss(params):
            h = x
            for _ in range(8):
                h = jnp.tanh(h @ params["dense"])
            scores = jax.nn.softmax(h[:, :4])
            sent = jnp.einsum("te,ti->eti", scores, h)
            hidden = jnp.einsum("eti,eio->eto", sent, params["experts"])
            return jnp.square(jnp.einsum("eto,te->to", hidden, scores)).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments, value

    shapes = {"dense": (32, 32), "experts": (4, 32, 32)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    args = params, params, jax.ShapeDtypeStruct((16, 32), jnp.float32)
    network = AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    pins: dict[str, Any] = {"*/experts": jax.P("x"), "*/dense": jax.P(), "x": jax.P("x")}
    plan = search(step, args, mesh={"x": 4}, network=network, hardware="CPU", pin=pins)
    # What else is done, and which has more tensors, depends on the operators that a version of JAX
    # traces.
    names = parallelism_by_axis(plan.problem, plan.decisions, plan.cost)["x"]
    assert "partly expert parallel" in names
    assert not [name for name in names if "FSDP" in name or "ZeRO" in name]
    assert "shard of" not in plan.sentence()


def test_an_ensemble_is_sharded_by_its_members():
    """Nothing is gathered, and a count of each member's steps makes members no examples."""

    def step(params, counts, x):
        def loss(w, x):
            return jnp.square(jnp.tanh(jnp.tanh(x @ w) @ w)).mean()

        def member(params, count, x):
            value, gradient = jax.value_and_grad(loss)(params, x)
            return params - gradient, count + 1, value

        return jax.vmap(member, (0, 0, None))(params, counts, x)

    args = [
        jax.ShapeDtypeStruct((4, 64, 64), jnp.float32),
        jax.ShapeDtypeStruct((4,), jnp.int32),
        jax.ShapeDtypeStruct((16, 64), jnp.float32),
    ]
    network = AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    plan = search(step, tuple(args), mesh={"x": 4}, network=network, hardware="CPU")
    names = parallelism_by_axis(plan.problem, plan.decisions, plan.cost)
    assert names == {"x": ["ensemble parallel"]}
    assert "each has a part of the members of an ensemble" in plan.sentence()
    ddp = solve_baseline(plan.problem, "ddp")
    assert ddp.specs.arguments[2] == jax.P("x", None)


def small_perceptron(params, x, y):
    def loss(params):
        return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def test_features_are_no_sequence():
    """Split along the features of its input, or of its targets, a perceptron is Megatron's."""
    shapes = {"up": (64, 16), "down": (16, 32), "x": (8, 64), "y": (8, 32)}
    one = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {name: one.pop(name) for name in ("up", "down")}
    network = AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    pins = {"params/up": ("x",), "params/down": (None, "x"), "*": (None, "x")}
    args = params, *one.values()
    plan = search(small_perceptron, args, mesh={"x": 4}, network=network, pin=pins)
    assert parallelism_by_axis(plan.problem, plan.decisions, plan.cost) == {"x": ["Megatron"]}


def test_moments_of_one_state_are_sharded_as_its_parameters():
    """As in Flax's TrainState, whose parameters and moments are parts of one argument."""

    def step(state, x):
        new, value = small_perceptron(state["params"], x, x[:, :32])
        updates, opt = optax.adam(0.1).update(new, state["opt"]["adam"], state["params"])
        return {"params": optax.apply_updates(new, updates), "opt": {"adam": opt}}, value

    params = {"up": jnp.ones((64, 16)), "down": jnp.ones((16, 32))}
    state = {"params": params, "opt": {"adam": optax.adam(0.1).init(params)}}
    network = AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    plan = search(
        step,
        jax.eval_shape(lambda: (state, jnp.ones((8, 64)))),
        mesh={"x": 4},
        network=network,
        pin={"state/**/up": ("x",), "state/**/down": ()},
    )
    (line,) = [line for line in str(plan).splitlines() if line.startswith("optimizer: ")]
    assert line.endswith("per device, sharded as the parameters")


def test_factored_moments_are_listed_only_where_they_are_not_as_the_parameters():
    """Adafactor keeps rows and columns of a matrix, which have not the sizes of a parameter."""

    def step(params, state, x):
        value, gradient = jax.value_and_grad(lambda w: jnp.square(jnp.tanh(x @ w)).mean())(params)
        rows = 0.9 * state["rows"] + jnp.square(gradient).mean(1)
        return params - gradient / jnp.sqrt(rows)[:, None], {"rows": rows}, value

    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((64, 16), (64,), (8, 64))]
    network = AlphaBetaCosts(MeshShape.of({"x": 4}), (0.0,), (1e9,))
    for spec, end in {jax.P(): "parameters", jax.P("x"): ", but for"}.items():
        pins: dict[str, Any] = {"params": jax.P(), "state/rows": spec}
        plan = search(
            step, (args[0], {"rows": args[1]}, args[2]), mesh={"x": 4}, network=network, pin=pins
        )
        (line,) = [line for line in str(plan).splitlines() if line.startswith("optimizer: ")]
        assert line.endswith(end)


def test_explain(plan):
    text = plan.explain("params/up")
    assert text.startswith("params/up: parameter of 1.05 MB")
    assert "placements:" in text
    assert "read by dot_general (forward)" in text
    assert "becomes params/up" not in text
    with pytest.raises(PlanError, match="no tensor is called 'params/left'"):
        plan.explain("params/left")


def test_topologies_have_costs(graph):
    made = search(graph, mesh=MESH, topology=topologies.torus(2, 4), hardware="A100")
    assert math.isfinite(made.cost.serial_seconds)


@pytest.mark.slow
def test_a_network_that_lost_a_link_costs_what_it_costs(graph):
    """The wires that are left carry what the lost one did."""
    whole = topologies.torus(2, 4)
    torn = whole.without(links=[(0, 1), (1, 0)])
    slow = whole.scaled({(0, 1): 0.1, (1, 0): 0.1})
    costs = [
        search(graph, mesh={"data": 8}, topology=network).cost.communication
        for network in (whole, torn, slow)
    ]
    assert costs[0] < min(costs[1:])


@pytest.mark.slow
def test_three_axes_are_searched_one_by_one(graph):
    mesh = {"a": 2, "b": 2, "c": 2}
    network = AlphaBetaCosts(MeshShape.of(mesh), (1e-9,) * 3, (1e11, 1e11, 1e11))
    found = search(graph, mesh=mesh, network=network, hardware="CPU").result
    assert found.method == "descent"
    assert 0 < found.bound <= found.objective
    best = search(graph, mesh=mesh, network=network, hardware="CPU", solver=Milp()).result
    assert best.objective <= found.objective * (1 + 1e-2)
    assert found.bound <= best.objective


def deep(params, x):
    def loss(params):
        hidden = x
        for _ in range(3):
            hidden = hidden + jnp.tanh(jnp.sin(hidden) * 2.0) * jnp.exp(-hidden)
        return jnp.mean((hidden @ params) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    return params - gradient, value


def test_the_compiled_step_has_the_predicted_cost(graph):
    """Collectives, bytes and the memory of arguments, on 8 devices."""
    made = search(graph, mesh=MESH, network=NETWORK, hardware="CPU", pin={"x": ("data", "model")})
    checked = made.check(*arguments())
    assert checked.agrees, str(checked)
    assert made.check() == checked


def test_limits_only_cost():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (8192, 64))]
    graph = trace(deep, shapes)

    def limited(limit):
        return search(
            graph,
            mesh={"x": 8},
            network=AlphaBetaCosts(MeshShape.of({"x": 8}), (1e-9,), (1e11,)),
            hardware="CPU",
            memory_limit=limit,
            recompute=True,
        )

    first = limited(1e9)
    costs = [first.cost.serial_seconds]
    for share in (0.95, 0.9):
        made = limited(share * first.cost.memory.peak)
        assert made.cost.memory.peak <= share * first.cost.memory.peak * (1 + 1e-6)
        assert made.cost.serial_seconds >= costs[-1] * (1 - 1e-2)
        costs.append(made.cost.serial_seconds)
    said = r"no plan fits into .* the least is about .* largest (at the peak )?are"
    with pytest.raises(PlanError, match=said):
        limited(0.1 * first.cost.memory.peak)


@pytest.mark.parametrize("share", [0.9, pytest.param(0.7, marks=pytest.mark.slow), 0.5])
@pytest.mark.slow
def test_full_layers_fit(share):
    """Many identical layers, of which the relaxation takes fractions: rounded, they still fit."""

    def layers(params, x):
        def loss(params):
            hidden = x
            for kernel in params:
                hidden = jnp.tanh(jnp.sin(hidden @ kernel) * 2.0)
            return jnp.mean(hidden**2)

        value, gradients = jax.value_and_grad(loss)(params)
        return [p - g for p, g in zip(params, gradients, strict=True)], value

    kernel = jax.ShapeDtypeStruct((32, 32), jnp.float32)
    graph = trace(layers, ([kernel] * 8, jax.ShapeDtypeStruct((4096, 32), jnp.float32)))
    mesh = {"x": 4}
    given = {
        "mesh": mesh,
        "network": AlphaBetaCosts(MeshShape.of(mesh), (1e-9,), (1e11,)),
        "hardware": HARDWARE["CPU"],
    }
    limit = share * search(graph, **given).cost.memory.peak
    made = search(graph, memory_limit=limit, recompute=True, **given)
    assert made.cost.memory.peak <= limit
    assert made.cost.kept.rerun
    assert made.gap < 0.05


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"mesh": {}}, "at least one axis"),
        ({"mesh": {"x": 0}}, "along mesh axis .x. must be an integer of at least 1"),
        ({"network": None}, "either topology"),
        ({"topology": topologies.ring(8)}, "either topology"),
        ({"mesh": {"x": 8}}, "prices a mesh of"),
        ({"hardware": "abacus"}, "no hardware is called 'abacus'; known: A100"),
        ({"objective": "least"}, "objective must be"),
        ({"solver": "milp"}, "solver must be Milp, CoordinateDescent or Auto"),
        ({"memory_limit": 0}, "memory_limit must be a .* above 0"),
        ({"memory_limit": 1e3}, r"no plan fits into 1\.0 kB"),
        ({"abstract_args": ()}, "do not give abstract_args"),
    ],
)
def test_refused(graph, changed, expected):
    given = {"mesh": MESH, "network": NETWORK, "hardware": HARDWARE["CPU"], **changed}
    with pytest.raises(PlanError, match=expected):
        search(graph, **given)


def test_a_limit_below_the_arguments_is_refused_before_a_search(graph, monkeypatch):
    """In the model's names, with what would fit."""
    monkeypatch.setattr(Auto, "solve", None)
    inputs = sum(graph.tensors[i].nbytes for i in graph.inputs)
    given = {"mesh": MESH, "network": NETWORK, "hardware": HARDWARE["CPU"]}
    expected = (
        r"no plan fits into .*: the least is about .* for arguments alone .* "
        r"largest are (params|state)/\S*(up|down).*, or 1[67] devices or more"
    )
    with pytest.raises(PlanError, match=expected):
        search(graph, memory_limit=inputs // 16, **given)


def test_a_limit_below_an_element_of_each_input_names_no_number_of_devices(graph):
    """A device holds an element of every input at least, on however many devices."""
    given = {"mesh": MESH, "network": NETWORK, "hardware": HARDWARE["CPU"]}
    with pytest.raises(PlanError, match=r"may fit$"):
        search(graph, memory_limit=1, **given)


def test_limits_that_only_pins_exceed_say_so(graph):
    """More devices would not help: a forbidden tensor is replicated on all."""
    given = {"mesh": MESH, "network": NETWORK, "hardware": HARDWARE["CPU"]}
    inputs = sum(graph.tensors[i].nbytes for i in graph.inputs)
    with pytest.raises(PlanError, match=r"or without pin= and forbid= the arguments take"):
        search(graph, memory_limit=inputs / 4, forbid={"**": ("data", "model")}, **given)


def test_a_limit_below_what_must_be_live_is_refused_before_a_search(graph, monkeypatch):
    """A little above the arguments; and the least that is named is below every plan's memory."""
    monkeypatch.setattr(Auto, "solve", None)
    inputs = sum(graph.tensors[i].nbytes for i in graph.inputs)
    given = {"mesh": MESH, "network": NETWORK, "hardware": HARDWARE["CPU"]}
    expected = r"no plan fits into .*: at least .* are live at once.* largest are .*(up|down|x|y)"
    with pytest.raises(PlanError, match=expected):
        search(graph, memory_limit=1.1 * inputs / 8, **given)


@pytest.mark.parametrize("hardware", ["CPU", "H100"])
@pytest.mark.parametrize("step", [lambda x: x, lambda x: jnp.ones(3), lambda x: (jnp.ones(3), x)])
def test_a_step_that_computes_nothing_takes_no_time(step, hardware):
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    plan = search(step, (shape,), mesh=MESH, network=NETWORK, hardware=hardware)
    assert plan.timeline.seconds == plan.cost.serial_seconds == 0
    assert "0 ns per step" in str(plan)


@pytest.mark.parametrize("solver", [Auto, CoordinateDescent, Milp])
@pytest.mark.parametrize(
    "limits", [{"gap": -1e-3}, {"gap": math.nan}, {"gap": True}, {"time_limit": 0}]
)
def test_solvers_refuse_limits_that_are_not_numbers_in_range(solver, limits):
    (name,) = limits
    with pytest.raises(PlanError, match=f"{name} must be a number"):
        solver(**limits)


def test_the_package_shows_its_public_names_only():
    assert set(dir(tensorstate)) == {*tensorstate.__all__, "__doc__"}
    for name in tensorstate.__all__:
        assert getattr(tensorstate, name) is not None


def test_a_function_needs_arguments_and_a_network_its_ranks():
    with pytest.raises(PlanError, match="abstract_args must be given"):
        search(perceptron, mesh=MESH, network=NETWORK)
    with pytest.raises(PlanError, match="as many devices as the topology has ranks"):
        search(perceptron, arguments(), mesh=MESH, topology=topologies.ring(4))


def test_common_patterns():
    assert common_pattern(["a/0/w", "a/1/w"]) == "a/*/w"
    assert common_pattern(["a"]) == "a"
    assert common_pattern(["a/0", "b"]) == "a/0 and others"


# ---------------------------------------------------------------------- microbatches


@pytest.fixture(scope="module")
def pipelined_plan(graph, plan):
    """Four fifths of the memory of the plan without a limit."""
    limit = 0.8 * plan.cost.memory.peak
    options = {"network": NETWORK, "hardware": "CPU", "memory_limit": limit}
    return search(graph, mesh=MESH, microbatches="auto", **options)


@pytest.mark.slow
def test_a_memory_limit_is_met_in_microbatches(graph, plan, pipelined_plan):
    """If no plan without microbatches fits, or if recomputation costs more."""
    limit = pipelined_plan.memory_limit
    assert plan.microbatches == 1
    assert pipelined_plan.microbatches > 1
    assert pipelined_plan.cost.memory.peak <= limit < plan.cost.memory.peak
    options = {"network": NETWORK, "hardware": "CPU", "memory_limit": limit}
    try:
        solver = Auto(time_limit=2)
        recomputed = search(graph, mesh=MESH, recompute=True, solver=solver, **options)
    except PlanError as error:
        assert "no plan" in str(error)  # noqa: PT017
    else:
        assert pipelined_plan.cost.serial_seconds < recomputed.cost.serial_seconds
    assert pipelined_plan.result.bound <= pipelined_plan.result.objective * (1 + 1e-9)


def test_of_several_numbers_of_microbatches_the_best_is_taken(graph, plan, pipelined_plan):
    options = {
        "network": NETWORK,
        "hardware": "CPU",
        "memory_limit": pipelined_plan.memory_limit,
    }
    single = {}
    for count in (2, 4):
        try:
            single[count] = search(graph, mesh=MESH, microbatches=count, **options).result.objective
        except PlanError:
            single[count] = math.inf
    several = search(graph, mesh=MESH, microbatches=(2, 4), **options)
    # Numbers whose plans cannot be faster by more than the gap are not searched.
    assert several.result.objective <= min(single.values()) * (1 + Auto().gap)
    assert several.result.bound <= min(single.values()) * (1 + 1e-9)
    assert single[several.microbatches] == several.result.objective
    free = search(graph, mesh=MESH, network=NETWORK, hardware="CPU", microbatches="auto")
    assert free.result.objective <= plan.result.objective * (1 + 1e-9)


def test_a_plan_in_microbatches_is_printed(pipelined_plan):
    count = pipelined_plan.microbatches
    text = str(pipelined_plan)
    assert f"mesh data 2 x model 4, {count} microbatches of {BATCH // count} of a batch of" in text
    assert f"{count} microbatches" in text.splitlines()[1]
    assert "resident through the loop" in text
    assert "gradients, summed over microbatches" in text
    explained = pipelined_plan.explain("x")
    assert f"input of {report.size(4 * WIDTH * BATCH)}" in explained
    assert f"split into {count} microbatches of" in explained
    assert "ddp" in str(pipelined_plan.compare("ddp"))


@pytest.mark.slow
def test_a_plan_in_microbatches_runs_as_predicted(pipelined_plan):
    checked = pipelined_plan.check()
    assert checked.agrees, str(checked)
    assert checked.predicted_inputs == checked.compiled_inputs
    assert 0.75 <= checked.predicted_temporaries / checked.compiled_temporaries <= 1.25
    assert search_again(pipelined_plan).cost.serial_seconds == pipelined_plan.cost.serial_seconds


def search_again(plan):
    """The same search by coordinate descent: its costs and bounds are of microbatches too."""
    options = {"network": NETWORK, "hardware": "CPU", "memory_limit": plan.memory_limit}
    found = search(
        plan.graph, mesh=MESH, microbatches=plan.microbatches, solver=CoordinateDescent(), **options
    )
    assert found.result.bound <= plan.result.objective * (1 + 1e-9)
    assert found.cost.memory.peak <= plan.memory_limit
    return plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"microbatches": 3},
            r"a batch of 512 \(x, y\) cannot be split into 3 equal microbatches: .* as 1, 2, 4 do",
        ),
        ({"microbatches": 0}, "an integer of at least 1, got 0"),
        ({"microbatches": "many"}, 'microbatches must be numbers or "auto"'),
        ({"microbatches": ()}, "no number of microbatches"),
        ({"microbatches": 2, "batch": "z"}, "batch='z': expected the name of an input"),
        (
            {"microbatches": (1, 2), "memory_limit": 1e3},
            "no plan fits into 1.0 kB",
        ),
    ],
)
def test_microbatches_that_are_refused(graph, options, message):
    with pytest.raises(PlanError, match=message):
        search(graph, mesh=MESH, network=NETWORK, hardware="CPU", **options)


# ---------------------------------------------------------------------- accumulated gradients


def accumulated(split):
    """Gradients of four parts of the batch, one after the other."""

    def step(params, x):
        def part(total, rows):
            gradients = jax.grad(lambda p: jnp.sum((jnp.tanh(rows @ p["up"]) @ p["down"]) ** 2))
            return jax.tree.map(jnp.add, total, gradients(params)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(part, zeros, split(x))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, total)

    params = {"up": (16, 32), "down": (32, 16)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in params.items()}
    network = AlphaBetaCosts(MeshShape.of({"x": 8}), (1e-6,), (1e9,))
    args = shapes, jax.ShapeDtypeStruct((256, 16), jnp.float32)
    return search(step, args, mesh={"x": 8}, network=network, hardware="CPU")


def test_a_batch_that_is_split_into_too_few_parts_is_named_with_the_remedy():
    short = str(accumulated(lambda x: x.reshape(4, -1, 16)))
    assert ", the batch whole" in short
    (start,) = [k for k, line in enumerate(short.splitlines()) if line.startswith("x is whole on")]
    said = " ".join(line.strip() for line in short.splitlines()[start : start + 3])
    assert "splits its 256 rows into 4 x 64 (" in said
    assert "test_plan.py:" in said
    assert "x.reshape(64, 4, ...).swapaxes(0, 1), or plan one pass with microbatches=4" in said
    # The remedy is one.
    exchanged = accumulated(lambda x: x.reshape(-1, 4, 16).swapaxes(0, 1))
    assert "whole" not in str(exchanged)
    assert exchanged.specs.arguments[1] == P("x", None)


def test_progress_never_restarts(graph):
    told = []
    search(graph, mesh=MESH, network=NETWORK, hardware="CPU", progress=told.append)
    assert len(told) >= 2
    assert [event.done for event in told] == sorted(event.done for event in told)
    best = [event.best for event in told if event.best is not None]
    assert best == sorted(best, reverse=True)
    assert all(event.bound is None or event.bound <= event.best for event in told)


@pytest.mark.parametrize(
    "options",
    [
        {"hardware": "CPU", "share": 0.8},
        {"hardware": "CPU", "share": 0.8, "recompute": True, "offload": True},
        {"hardware": "H100", "share": None},
        {"hardware": "CPU", "share": None, "microbatches": (1, 2)},
    ],
    ids=["limit", "keepings", "schedule", "microbatches"],
)
def test_progress_names_plans_and_bounds_of_the_question_alone(graph, plan, options):
    """Not those without the limit, of shares of collectives, or of one number of microbatches."""
    share, told = options.pop("share"), []
    limit = math.inf if share is None else share * plan.cost.memory.peak
    hardware = dataclasses.replace(HARDWARE[options.pop("hardware")], host_bandwidth=1e9)
    asked = {"mesh": MESH, "network": NETWORK, "hardware": hardware, "plain": False, **options}
    found = search(graph, **asked, memory_limit=limit, progress=told.append)
    best = [event.best for event in told if event.best is not None]
    bounds = [event.bound for event in told if event.bound is not None]
    assert best
    # The program shares costs that a plan pays as a whole, up to the gap.
    assert min(best) >= found.result.objective * 0.99
    assert max(bounds, default=0.0) <= found.result.objective * (1 + 1e-9)


def test_a_gap_says_of_which_plans_it_is():
    def step(weights, x):
        def loss(weights):
            hidden, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
            return jnp.sum(hidden**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return weights - 0.1 * gradients, value

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 16, 16), (8, 16))]
    network = AlphaBetaCosts(MeshShape.of({"x": 2}), (1e-6,), (1e9,))
    own, chosen = (
        search(step, args, mesh={"x": 2}, network=network, hardware="CPU", recompute=recompute)
        for recompute in (False, True)
    )
    assert "of plans with the loops' own residuals; recompute=True chooses them" in str(own)
    assert "residuals" not in str(chosen)
