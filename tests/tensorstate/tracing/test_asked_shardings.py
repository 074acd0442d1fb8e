"""Shardings that a step asks for are pins of the value and of its gradient."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tests.tensorstate.oracle import assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

SIZES = {"data": 2, "model": 2}
NETWORK = ts.AlphaBetaCosts(ts.MeshShape.of(SIZES), (1e-6, 1e-6), (1e9, 1e9))
FREE = P.UNCONSTRAINED


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 2), ("data", "model"), (kind,) * 2, devices=jax.devices()[:4])


AUTO, EXPLICIT = mesh(AxisType.Auto), mesh(AxisType.Explicit)


def step(constrain, product):
    """A step of two layers, whose hidden values and results are constrained."""

    def run(params, x):
        def loss(params):
            hidden = constrain(jnp.tanh(product(x, params["up"])), 0)
            return jnp.sum(constrain(product(hidden, params["down"]), 1) ** 2)

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value

    return run


ARGS = {"up": s(8, 16), "down": s(16, 8)}, s(4, 8)


def by_constraint(first, second):
    shardings = NamedSharding(AUTO, first), NamedSharding(AUTO, second)
    return step(lambda h, k: jax.lax.with_sharding_constraint(h, shardings[k]), jnp.matmul)


def by_reshard(first, second):
    return step(lambda h, k: jax.sharding.reshard(h, (first, second)[k]), jnp.matmul)


def by_out_sharding(first, second):
    specs = iter((first, second, first, second))

    def product(a, b):
        return jnp.einsum("bi,ij->bj", a, b, out_sharding=next(specs))

    return step(lambda h, k: h, product)


def searched(function, args=ARGS, **options):
    context = contextlib.nullcontext() if options.pop("auto", False) else jax.set_mesh(EXPLICIT)
    with context:
        graph = ts.trace(function, args, **options)
    return ts.search(graph, mesh=SIZES, network=NETWORK, hardware="CPU")


def asked(plan) -> dict[str, list[tuple]]:
    """The axes that pins ask for, by phase, in the order of execution."""
    found: dict[str, list[tuple]] = {}
    for operator in plan.graph.operators:
        if operator.pin is not None:
            found.setdefault(operator.phase, []).append(tuple(dim.axes for dim in operator.pin))
    return found


@pytest.mark.parametrize("write", [by_constraint, by_reshard, by_out_sharding])
def test_values_and_gradients_are_as_asked(write):
    """By every way to write it; and the step still does what it does on one device."""
    plan = searched(write(P("data", "model"), P("model", None)), auto=write is by_constraint)
    hidden, result = (("data",), ("model",)), (("model",), ())
    assert asked(plan) == {"forward": [hidden, result], "backward": [result, hidden]}
    problem = plan.problem
    for node in problem.graph.nodes:
        operator = problem.graph.operators[node.members[0].operator] if node.members else None
        if operator is not None and operator.pin is not None:
            wanted = {axis: dim.labels for dim in operator.pin for axis in dim.axes or ()}
            strategy = plan.decisions.strategies[node.class_id]
            for name, placement in zip(problem.mesh.names, strategy, strict=True):
                assert ((placement,) if placement >= 0 else ()) == wanted.get(name, ())
    keys = iter(jax.random.split(jax.random.key(0), 3))
    args = jax.tree.map(lambda shape: jax.random.normal(next(keys), shape.shape), ARGS)
    applied = plan.apply(AUTO, lax_collectives)
    found = jitted(applied)(*on_devices(args, applied))
    expected = jax.jit(step(lambda h, k: h, jnp.matmul))(*args)
    assert_alike(jax.device_get(found), jax.device_get(expected), 1e-5)
    assert plan.check().agrees


def test_a_free_dimension_is_the_searchs():
    plan = searched(by_constraint(P("data", FREE), P(FREE, None)), auto=True)
    assert asked(plan)["forward"] == [(("data",), None), (None, ())]


def typed(*spec, shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(EXPLICIT, P(*spec)))


def test_arguments_keep_the_types_of_explicit_axes():
    """Under which an ambiguous product needs an ``out_sharding``, as the user wrote."""

    def contracted(x, w):
        return jnp.matmul(x, w, out_sharding=P("data", None)).sum()

    args = typed("data", "model", shape=(4, 8)), typed("model", None, shape=(8, 4))
    assert asked(searched(contracted, args))["forward"] == [(("data",), ())]
    with jax.set_mesh(EXPLICIT), pytest.raises(PlanError, match="ambiguous how the output"):
        ts.trace(lambda x, w: (x @ w).sum(), args)


def test_indexing_asks_for_its_result_alone():
    """JAX replicates the types of its operands, by ``auto_axes``, within which XLA shards them."""

    def lookup(table, rows):
        return (table.at[rows].get(out_sharding=P("data", None)) ** 2).sum()

    args = typed("model", "data", shape=(8, 4)), typed("data", shape=(4,), dtype=jnp.int32)
    plan = searched(jax.grad(lookup), args)
    assert asked(plan) == {"forward": [(("data",), ())], "backward": [(("data",), ())]}


def test_a_reshard_to_the_sharding_by_type_is_asked_for():
    def kept(x):
        return jax.sharding.reshard(jnp.tanh(x), P("data", None)).sum()

    plan = searched(kept, [typed("data", None, shape=(4, 8))])
    assert asked(plan) == {"forward": [(("data",), ())]}


def test_steps_are_planned_for_devices_that_are_not_attached():
    """Constants are computed where the step is traced, not on the mesh."""
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.sharding.AbstractMesh((64, 2), ("data", "model"), axis_types=kinds)

    def lookup(table, rows):
        return (table.at[rows].get(out_sharding=P("data", None)) / jnp.sqrt(8.0)).sum()

    with jax.sharding.use_abstract_mesh(mesh):
        graph = ts.trace(lookup, (s(128, 4), jax.ShapeDtypeStruct((64,), jnp.int32)))
    network = ts.AlphaBetaCosts(ts.MeshShape(("data", "model"), (64, 2)), (1e-6,) * 2, (1e9,) * 2)
    assert asked(ts.search(graph, mesh=mesh, network=network))["forward"] == [(("data",), ())]


@pytest.mark.parametrize("kind", ["by type", "by type alone", "set", "Auto", "outside"])
def test_a_step_is_the_same_wherever_it_is_given(kind, tmp_path):
    """It is traced where it was planned: pins depend on types, and types on the mesh."""
    mesh = AUTO if kind == "Auto" else EXPLICIT
    inside = jax.set_mesh(mesh) if kind in ("by type", "set", "Auto") else contextlib.nullcontext()
    args = typed("data", "model", shape=(4, 8)), typed(None, "model", shape=(4, 8))
    plain = s(4, 8), s(4, 8)

    def loss(x, y):
        x = jnp.where(x > 0, x, jnp.ones(8)) * y
        if kind == "set":
            x = jax.sharding.reshard(x, P("model"))
        if kind == "Auto":
            x = jax.lax.with_sharding_constraint(x, P("model"))
        return jnp.sum(jnp.tanh(x) ** 2)

    with inside:
        given = args if kind.startswith("by type") else plain
        graph = ts.trace(jax.grad(loss), given)
    plan = ts.search(graph, mesh=SIZES, network=NETWORK, hardware="CPU")
    plan.save(tmp_path / "plan.json")
    saved = ts.load(tmp_path / "plan.json")
    for here in (None, EXPLICIT, AUTO):
        with contextlib.nullcontext() if here is None else jax.set_mesh(here):
            plan.explicit(jax.grad(loss))
            for given in (args, plain):
                assert str(saved.on(jax.grad(loss), given)) == str(plan)


@pytest.mark.parametrize("form", ["apply", "constrain", "explicit"])
@pytest.mark.parametrize("inside", [EXPLICIT, AUTO])
@pytest.mark.in_every_run("inside0-explicit", "inside1-constrain", "inside0-apply")
def test_every_form_runs_inside_of_any_mesh(form, inside):
    plan = searched(by_constraint(P("data", "model"), P("model", None)), auto=True)
    keys = iter(jax.random.split(jax.random.key(0), 3))
    args = jax.tree.map(lambda shape: jax.random.normal(next(keys), shape.shape), ARGS)
    expected = jax.jit(step(lambda h, k: h, jnp.matmul))(*args)
    with jax.set_mesh(inside):
        made = getattr(plan, form)()
        found = made.jit()(*on_devices(args, made))
    assert_alike(jax.device_get(found), jax.device_get(expected), 1e-5)


def test_layers_with_other_pins_are_of_other_classes():
    def layers(x):
        for spec in (P("data", None), P(None, "data")):
            x = jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(AUTO, spec))
        return x

    graph = ts.trace(layers, [s(4, 4)])
    pinned = {operator.index for operator in graph.operators if operator.pin is not None}
    nodes = [n for n in graph.nodes if n.members and n.members[0].operator in pinned]
    assert len({node.class_id for node in nodes}) == len(pinned) == 2


def test_pins_can_be_left_to_the_search():
    function = by_constraint(P("data", "model"), P("model", None))
    free = searched(function, auto=True, constraints="drop")
    assert not asked(free)
    assert free.cost.serial_seconds <= searched(function, auto=True).cost.serial_seconds


OTHER = jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:2])


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (NamedSharding(OTHER, P("rows")), r"P\('rows', None\).*axes data, model, not 'rows'.*drop"),
        (NamedSharding(AUTO, P(("model", "data"))), "come in the order of the mesh"),
        (jax.sharding.SingleDeviceSharding(jax.devices()[0]), "names no mesh axes"),
    ],
)
def test_pins_that_no_plan_can_keep(sharding, message):
    def pinned(x):
        return jax.lax.with_sharding_constraint(x * 2, sharding).sum()

    with pytest.raises(PlanError, match=message):
        searched(pinned, [s(4, 4)], auto=True)


def test_a_mesh_that_does_not_divide():
    def pinned(x):
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(AUTO, P("data"))).sum()

    network = ts.AlphaBetaCosts(ts.MeshShape.of({"data": 3}), (1e-6,), (1e9,))
    with pytest.raises(PlanError, match=r"of an array of 4 x 4, which .* does not shard evenly"):
        ts.search(ts.trace(pinned, [s(4, 4)]), mesh={"data": 3}, network=network)


def test_callbacks_are_replicated_and_named():
    """Whatever their batching rules: whether they act along a dimension is not known."""

    def calling(x):
        y = jax.pure_callback(np.cumsum, s(16), x.reshape(-1), vmap_method="expand_dims")
        return (x * y.reshape(4, 4)).sum()

    plan = searched(calling, [s(4, 4)], auto=True)
    assert [*plan.graph.replicated] == ["pure_callback"]
    assert "replicated for want of a rule: pure_callback" in str(plan)
    x = jnp.arange(16.0).reshape(4, 4)
    assert float(plan.apply(AUTO).jit()(x)) == float(calling(x))
