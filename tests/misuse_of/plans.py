"""Misuse of tensorstate: of searches, of their arguments, and of plans."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import tensorstate as ts
from jaxcoll import topologies
from tensorstate.cost.cost import SearchOptions
from tensorstate.export.plan_file import plan_file
from tensorstate.saved_plan import SavedPlan
from tests.misuse import fields_of

ARGS = (
    jax.ShapeDtypeStruct((8, 8), jnp.float32),
    jax.ShapeDtypeStruct((4, 8), jnp.float32),
)


def step(w, x):
    value, gradient = jax.value_and_grad(lambda w: jnp.tanh(x @ w).sum())(w)
    return w - 0.1 * gradient, value


def _zeros(abstract):
    return jnp.zeros(abstract.shape, abstract.dtype)


GRAPH = ts.trace(step, ARGS)
MESH = ts.MeshShape.of({"data": 2})
NETWORK = ts.AlphaBetaCosts(MESH, (1e-6,), (1e9,))
PAIR = topologies.ring(2, alpha=1e-6, bandwidth=1e9)
SEARCH: dict[str, Any] = {
    "mesh": {"data": 2}, "topology": None, "network": NETWORK, "hardware": "CPU",
    "memory_limit": None, "recompute": False, "offload": False, "microbatches": 1, "batch": None,
    "stages": None, "padding": False, "pin": None, "forbid": None, "objective": "sum",
    "solver": ts.CoordinateDescent(), "progress": None,
}  # fmt: skip
PLAN = ts.search(GRAPH, **SEARCH)

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ts.trace": (
        ts.trace,
        {
            "step_fn": step, "abstract_args": ARGS, "updates": None, "unknown": "replicate",
            "checkpoints": "keep", "constraints": "keep", "loops": "keep", "pad_to": None,
        },
    ),
    "ts.declare": (ts.declare, {"function": jnp.dot, "labels": "a, a ->", "whole": "a"}),
    "ts.search": (ts.search, {"step": GRAPH, "abstract_args": None, **SEARCH}),
    "ts.search.padding": (
        lambda **given: ts.search(step, ARGS, **{**SEARCH, "padding": {8: given["longer"]}}),
        {"longer": 10},
    ),
    "ts.search.pins": (
        lambda **given: ts.search(GRAPH, **{**SEARCH, "pin": {"w": given["spec"]}}),
        {"spec": P(None, "data")},
    ),
    "ts.search.devices": (
        lambda **given: ts.search(
            GRAPH, **{**SEARCH, **given, "mesh": None, "network": None, "topology": PAIR}
        ),
        {"devices": 2},
    ),
    "ts.search.forbidden": (
        lambda **given: ts.search(GRAPH, **{**SEARCH, "forbid": {"w": given["axes"]}}),
        {"axes": ("data",)},
    ),
    "ts.search.sizes": (
        lambda **given: ts.search(GRAPH, **{**SEARCH, "mesh": {"data": given["size"]}}),
        {"size": 2},
    ),
    "ts.search.network": (
        lambda **given: ts.search(GRAPH, **{**SEARCH, "network": None, **given}),
        {"topology": topologies.ring(2)},
    ),
    "ts.search_mesh": (
        ts.search_mesh,
        {
            "step": GRAPH, "abstract_args": None, "topology": topologies.ring(2),
            "grid_shape": (2,), "axes": ("data",), "seed": 0, "hardware": "CPU",
            "solver": ts.CoordinateDescent(), "executor": None, "progress": None,
        },
    ),
    "ts.mesh_assignments": (ts.mesh_assignments, {"grid_shape": (2, 2), "axes": ("x", "y")}),
    "ts.reprice": (ts.reprice, {"plan": PLAN, "network": NETWORK}),
    "ts.solve_baseline": (
        ts.solve_baseline,
        {
            "problem": PLAN.problem, "name": "ddp", "objective": "sum", "memory_limit": None,
            "recompute": False, "offload": False, "solver": ts.CoordinateDescent(),
        },
    ),
    "ts.Problem": (
        ts.Problem,
        {
            "graph": GRAPH, "network": NETWORK, "hardware": ts.HARDWARE["CPU"], "microbatches": 1,
            "batch": None, "stages": None, "num_stages": None,
        },
    ),
    "ts.MeshShape.of": (ts.MeshShape.of, {"sizes": {"data": 2}}),
    "ts.Hardware": (ts.Hardware, fields_of(ts.HARDWARE["CPU"])),
    "ts.Hardware.measure": (
        ts.Hardware.measure, {"mesh": None, "cache": None, "seconds": 20.0, "progress": None}
    ),
    "ts.AlphaBetaCosts": (ts.AlphaBetaCosts, fields_of(NETWORK)),
    "ts.ScheduleCosts": (
        ts.ScheduleCosts,
        {
            "topology": topologies.ring(2), "mesh": MESH, "device_order": (0, 1),
            "candidates": (), "seed": 0,
        },
    ),
    "ts.SearchOptions": (SearchOptions, fields_of(SearchOptions())),
    "ts.Milp": (ts.Milp, {"gap": 0.1, "time_limit": 1.0}),
    "ts.CoordinateDescent": (ts.CoordinateDescent, {"gap": 0.1, "time_limit": 1.0}),
    "ts.Auto": (ts.Auto, {"gap": 0.1, "time_limit": 1.0}),
    "ts.load": (ts.load, {"path": "/nowhere/to/read", "max_bytes": 1000}),
    "ts.Plan.save": (PLAN.save, {"path": "/nowhere/to/write"}),
    "ts.Plan.make_mesh": (PLAN.make_mesh, {"devices": None}),
    "ts.Plan.constrain": (PLAN.constrain, {"step_fn": step, "mesh": None}),
    "ts.Plan.explicit": (PLAN.explicit, {"step_fn": step, "mesh": None}),
    "ts.Plan.rules": (PLAN.rules, {"names": {"w": ("in", "out")}, "solver": None}),
    "ts.SavedPlan.on": (
        SavedPlan(plan_file(PLAN.problem, PLAN.result, PLAN.options)).on,
        {
            "step": step, "abstract_args": ARGS, "network": None, "hardware": None,
            "changed": "search",
        },
    ),
    "ts.Plan.html": (PLAN.html, {"title": "Plan"}),
    "ts.Plan.explain": (PLAN.explain, {"tensor": "w"}),
    "ts.Plan.compare": (lambda **given: PLAN.compare(given["name"]), {"name": "ddp"}),
    "ts.Plan.apply": (PLAN.apply, {"mesh": None, "collectives": None}),
    "ts.ShardedStep.put": (PLAN.apply().put, {"arguments": tuple(map(_zeros, ARGS))}),
    "ts.ShardedStep.get": (PLAN.apply().get, {"results": (_zeros(ARGS[0]), jnp.zeros(()))}),
    "ts.ShardedStep.jit": (PLAN.apply().jit, {"donate": True}),
    "ts.scheduled_collectives": (ts.scheduled_collectives, {"schedule_for": NETWORK.schedule}),
}  # fmt: skip

REFUSED: set[str] = {"ts.load", "ts.Plan.save", "ts.Hardware.measure"}
