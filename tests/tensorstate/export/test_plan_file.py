"""Plans that are saved are the same plans in another process, and for their own step only."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from jaxcoll import topologies
from jaxcoll.errors import FormatError
from tensorstate.collective_costs import CANDIDATES
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import lax_collectives
from tensorstate.export.plan_file import plan_file
from tensorstate.export.plan_json import dumps, loads
from tests.io.mutations import refuses
from tests.tensorstate.oracle import assert_alike, jitted, on_devices
from tests.tensorstate.steps import s

SIZES = {"data": 2, "model": 2}
MESH = ts.MeshShape.of(SIZES)
ORDER = (3, 1, 0, 2)
TORUS = topologies.torus(2, 2, alpha=1e-6, bandwidth=1e9)
NETWORKS = {
    "alpha-beta": ts.AlphaBetaCosts(MESH, (1e-6, 1e-6), (1e9, 2e9)),
    "links": ts.ScheduleCosts(TORUS, MESH, device_order=ORDER, candidates=CANDIDATES[:3]),
    "charged": ts.ScheduleCosts(TORUS, MESH, execution="cpu"),
}
ARGS = {"up": s(8, 16), "down": s(16, 8)}, s(8, 8)


def step(params, x):
    def loss(params):
        return jnp.sum((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


GRAPH = ts.trace(step, ARGS)


def searched(network: Any = "alpha-beta", **options):
    hardware = "CPU devices" if network == "charged" else "CPU"
    costs = NETWORKS.get(network, network)
    given = {"mesh": SIZES, "network": costs, "hardware": hardware, **options}
    return ts.search(GRAPH, pin={"x": ("data",)}, **given)


def text(plan) -> str:
    return dumps(plan_file(plan.problem, plan.result, plan.options))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"microbatches": 2},
        {"recompute": True, "memory_limit": 3000.0},
        {"memory_limit": math.inf},
    ],
)
@pytest.mark.in_every_run("options1-alpha-beta", "options2-charged", "options3-links")
def test_a_saved_plan_is_the_plan(network, options, tmp_path):
    plan = searched(network, **options)
    plan.save(tmp_path / "plan.json")
    saved = ts.load(tmp_path / "plan.json")
    again = saved.on(step, ARGS)
    assert str(again) == str(plan)
    assert again.options == plan.options
    assert dataclasses.asdict(again.decisions) == dataclasses.asdict(plan.decisions)
    assert text(again) == text(plan) == (tmp_path / "plan.json").read_text()
    assert saved.specs["x"] == P("data", None)
    assert again.problem.hardware == plan.problem.hardware
    assert f"mesh data 2 x model 2: {str(plan).split('time: ')[1].split(' per')[0]}" in str(saved)
    first, second = again.problem.network, plan.problem.network
    if isinstance(first, ts.ScheduleCosts) and isinstance(second, ts.ScheduleCosts):
        assert first.topology == second.topology
        assert (first.device_order, first.candidates) == (second.device_order, second.candidates)


@pytest.mark.slow
def test_it_runs_in_another_process(tmp_path):
    plan = searched("links")
    plan.save(tmp_path / "plan.json")
    program = f"""
import jax
jax.config.update("jax_num_cpu_devices", 4)
import numpy as np, tensorstate as ts
from tests.tensorstate.export.test_plan_file import ARGS, step, drawn
plan = ts.load({str(tmp_path / "plan.json")!r}).on(step, ARGS)
applied = plan.apply(None, ts.lax_collectives)
found = applied.jit()(*jax.device_put(drawn(), applied.in_shardings))
print(float(found[1]), [device.id for device in plan.make_mesh().devices.flat])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    value, ids = done.stdout.split(" ", 1)
    assert float(value) == pytest.approx(float(step(*drawn())[1]), rel=1e-5)
    assert ids.strip() == str([*ORDER])


def drawn():
    keys = iter(jax.random.split(jax.random.key(0), 3))
    return jax.tree.map(lambda shape: jax.random.normal(next(keys), shape.shape), ARGS)


# ---------------------------------------------------------------------- other steps


def other(params, x):
    def loss(params):
        return jnp.sum((jnp.sin(x @ params["up"]) @ params["down"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), value


def longer(params, x):
    params, value = step(params, x)
    return jax.tree.map(jnp.negative, params), value


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (step, (ARGS[0], s(4, 8)), r"argument x is float32\[4, 8\], .* for float32\[8, 8\]"),
        (step, ({**ARGS[0], "bias": s(8, 8)}, s(8, 8)), "params/bias .* is not in the plan"),
        (lambda params, y: step(params, y), ARGS, "argument y of .* is not in the plan"),
        (lambda params, x: step(params, x)[0], ARGS, "result|no result"),
        (other, ARGS, r"operator \d+ is sin of .*test_plan_file.py.*the plan has tanh"),
        (longer, ARGS, r"operator \d+ is neg of .*longer.*with which the plan's step has ended"),
    ],
)  # fmt: skip
def test_the_difference_of_another_step_is_named(function, args, message):
    saved = ts.SavedPlan(loads(text(searched())))
    with pytest.raises(PlanError, match=f"made for another step: .*({message})"):
        saved.on(function, args, changed="refuse")


def test_a_shorter_step_ends_before_the_plan():
    plan = searched()
    planned = plan_file(plan.problem, plan.result, plan.options)
    shorter = dataclasses.replace(planned, operators=(*planned.operators, planned.operators[-1]))
    difference = shorter.operator_difference(GRAPH)
    assert difference is not None
    assert difference.startswith(f"it ends before operator {len(planned.operators)}, ")


class Own(ts.CollectiveCostModel):
    """A cost model of which no file holds anything."""

    mesh = MESH

    def collective_seconds(self, kind, axis, nbytes):
        return 1e-9 * nbytes

    def schedule(self, kind, axis, nbytes):
        return None


def test_what_a_file_cannot_hold_is_given_again():
    plan = searched(Own())
    saved = ts.SavedPlan(loads(text(plan)))
    with pytest.raises(PlanError, match="give network="):
        saved.on(GRAPH)
    assert str(saved.on(GRAPH, network=Own())) == str(plan)
    wrong = ts.AlphaBetaCosts(ts.MeshShape.of({"data": 4}), (0.0,), (1.0,))
    with pytest.raises(PlanError, match="the network prices"):
        saved.on(GRAPH, network=wrong)


test_files_that_no_search_wrote = refuses(
    lambda text: ts.SavedPlan(loads(text)).on(GRAPH),
    (FormatError, PlanError),
    lambda: text(searched()),
    [
        ("plan/1", "plan/2", 'whose "format" is'),
        ('"strategies": [[', '"strategies": [[7,', "a placement for each of 2"),
        ('"strategies": [', '"strategies": [[7,7],', "other classes"),
        ('"data","model"],"sizes"', '"data","data"],"sizes"', "one size for each axis"),
        ('"saved": []', '"saved": [[9999,0,0]]', "tensor 9999 .* no copy"),
        ('"recomputed": [', '"recomputed": [99999', "recomputes nodes"),
        ('"hardware": "CPU"', '"hardware": "H1000"', "H1000"),
        ('"method":"milp"', '"method":"milp","extra":1', "has no field 'extra'"),
        ('[["data"],[]]', '[["rows"],[]]', "along axes of the mesh"),
        ('[["data"],[]]', '[[],["data"]]', "for x, but its decisions make it"),
        ('["data","model"],"sizes"', '["model","data"],"sizes"', "states .* its decisions make it"),
        ('"seconds":', '"seconds":-', "seconds must not be negative"),
        ('"memory":', '"memory":-', "memory must not be negative"),
    ],
)


def test_figures_of_edited_files_are_those_of_their_decisions():
    """Decisions that a step may have are a plan; their cost is not read from the file."""
    plan = searched()
    planned = plan_file(plan.problem, plan.result, plan.options)
    free = next(
        (class_id, other)
        for class_id, strategy in enumerate(planned.decisions.strategies)
        for other in plan.problem.strategies[class_id].all
        if other != strategy and plan.graph.nodes[plan.graph.node_classes[class_id][0]].members
    )
    strategies = [*planned.decisions.strategies]
    strategies[free[0]] = free[1]
    decisions = dataclasses.replace(planned.decisions, strategies=tuple(strategies))
    edited = loads(dumps(dataclasses.replace(planned, decisions=decisions)))
    again = ts.SavedPlan(edited).on(GRAPH)
    assert again.result.objective == again.timeline.seconds > plan.result.objective
    assert math.isinf(again.result.bound)
    assert not math.isinf(plan.result.bound)
    cheaper = dataclasses.replace(planned, found={**planned.found, "objective": 1e-9})
    again = ts.SavedPlan(loads(dumps(cheaper))).on(GRAPH)
    assert again.result.objective == plan.result.objective
    slower = ts.AlphaBetaCosts(MESH, (1e-3, 1e-3), (1e9, 2e9))
    assert math.isinf(ts.SavedPlan(planned).on(GRAPH, network=slower).result.bound)


# ---------------------------------------------------------------------- shardings and devices


def test_specs_are_shardings_of_jit():
    plan = searched()
    specs = plan.specs
    args = jax.device_get(drawn())
    with jax.set_mesh(plan.make_mesh()):
        run = jax.jit(step, in_shardings=specs.arguments, out_shardings=specs.results)
        found = run(*args)
    assert_alike(jax.device_get(found), jax.device_get(step(*drawn())), 1e-5)
    assert specs.arguments[1] == P("data", None)
    assert jax.tree.structure(specs.results) == jax.tree.structure(found)
    (product,) = [spec for name, spec in specs.activations.items() if name.startswith("tanh")]
    assert len(product) == 2


def test_devices_are_in_the_order_that_was_priced():
    plan = searched("links")
    assert [device.id for device in plan.make_mesh().devices.flat] == [*ORDER]
    applied = plan.apply(None, lax_collectives)
    found = jitted(applied)(*on_devices(drawn(), applied))
    assert_alike(jax.device_get(found), jax.device_get(step(*drawn())), 1e-5)
    others = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    with pytest.warns(match="another order than the plan was priced for"):
        plan.apply(others)


def test_plans_need_their_devices():
    with pytest.raises(PlanError, match="for 4 devices, got 3"):
        searched().make_mesh(jax.devices()[:3])
    many = ts.MeshShape.of({"data": 2048, "model": 4})
    network = ts.AlphaBetaCosts(many, (1e-6, 1e-6), (1e9, 1e9))
    abstract = jax.sharding.AbstractMesh((2048, 4), ("data", "model"))
    plan = ts.search(GRAPH, mesh=abstract, network=network)
    assert ts.SavedPlan(loads(text(plan))).on(GRAPH).problem.mesh == many
    with pytest.raises(PlanError, match="for 8192 devices, JAX has"):
        plan.apply()
