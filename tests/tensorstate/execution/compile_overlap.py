"""Compiles FSDP of six layers for one target by schedules, and prints what is in flight, as JSON.

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
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import HARDWARE, ScheduleCosts
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace

LAYERS, WIDTH, BATCH = 6, 1024, 8192


def step(params, x):
    """One step of gradient descent."""

    def loss(params):
        hidden = x
        for weights in params:
            hidden = jax.nn.relu(hidden @ weights)
        return jnp.square(hidden.astype(jnp.float32)).mean()

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def main(name: str) -> None:
    """The plan's timeline, and the compiled program."""
    target = aot.target(name)
    mesh = MeshShape.of({"data": len(target.devices)})
    weights = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)
    arguments = [weights] * LAYERS, jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)
    device = HARDWARE["H100" if target.platform == "gpu" else "TPU v5e"]
    problem = Problem(trace(step, arguments), ScheduleCosts(target.topology, mesh), device)
    plan = solve_baseline(problem, "fsdp")
    devices = Devices(np.asarray(target.devices, object), mesh.names)
    applied = apply(problem, plan.decisions, plan.cost, devices, timeline=plan.timeline)
    found = aot.summarize(applied.jit().lower(*arguments).compile())
    hidden = plan.cost.communication - plan.timeline.exposed_seconds
    print(
        json.dumps(
            {
                "hidden": hidden / plan.cost.communication,
                "matmuls": found.matmuls,
                "covered": found.covered_matmuls,
                "in flight": found.in_flight,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
