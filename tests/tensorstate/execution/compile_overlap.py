"""Compiles FSDP of layers for one target by schedules, and prints what is in flight, as JSON.

Of six layers one after another, of twelve in a scan, and of twelve small ones one after another.

Arguments: the target's name. Runs in a process of its own, which has the compilers on its path; see
``test_targets``.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh as Devices

from jaxcoll import aot
from tensorstate.collective_costs import ScheduleCosts
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace

BATCH = 8192
# Layers, their width, and whether they are scanned.
STEPS = ((6, 1024, False), (12, 1024, True), (12, 256, False))


def step(params, x):
    """One step of gradient descent."""

    def loss(params):
        hidden = x
        if isinstance(params, list):
            for weights in params:
                hidden = jax.nn.relu(hidden @ weights)
        else:
            hidden, _ = jax.lax.scan(lambda h, w: (jax.nn.relu(h @ w), None), x, params)
        return jnp.square(hidden.astype(jnp.float32)).mean()

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def main(name: str) -> None:
    """The plan's timeline, and the compiled program, of every step."""
    for layers, width, is_scan in STEPS:
        print(json.dumps(compiled(aot.target(name), layers, width, is_scan)))


def compiled(target: aot.Target, layers: int, width: int, is_scan: bool) -> dict[str, float]:
    """Figures of the timeline and of the compiled program."""
    mesh = MeshShape.of({"data": len(target.devices)})
    weights = jax.ShapeDtypeStruct((width, width), jnp.bfloat16)
    stack = jax.ShapeDtypeStruct((layers, width, width), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((BATCH, width), jnp.bfloat16)
    arguments = stack if is_scan else [weights] * layers, x
    device = HARDWARE["H100" if target.platform == "gpu" else "TPU v5e"]
    problem = Problem(trace(step, arguments), ScheduleCosts(target.topology, mesh), device)
    plan = solve_baseline(problem, "fsdp")
    devices = Devices(np.asarray(target.devices, object), mesh.names)
    applied = apply(problem, plan.decisions, plan.cost, devices, timeline=plan.timeline)
    found = aot.summarize(applied.jit().lower(*arguments).compile())
    hidden = plan.cost.communication - plan.timeline.exposed_seconds
    return {
        "hidden": hidden / plan.cost.communication,
        "matmuls": found.matmuls,
        "covered": found.covered_matmuls,
        "in flight": found.in_flight,
        "launches": found.launches,
        "sent": sum(plan.cost.count_by_collective.values()),
        "temporaries": found.temp_bytes,
        "predicted": plan.cost.memory.peak - plan.cost.memory.inputs + plan.timeline.held,
    }


if __name__ == "__main__":
    main(sys.argv[1])
