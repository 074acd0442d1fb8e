"""Compiles a plan of a GPT of one layer for one target and prints its collectives, as JSON.

Arguments: the target's name, and the sides of the mesh. Runs in a process of its own, which has the
compilers on its path; see ``test_targets``.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from jax.sharding import Mesh as Devices

from experiments.models import load_model
from jaxcoll import aot
from tensorstate.collective_costs import AlphaBetaCosts
from tensorstate.execution.placement_table import lax_collectives, scheduled_collectives
from tensorstate.execution.sharded_step import apply
from tensorstate.hardware import HARDWARE
from tensorstate.ir.placements import MeshShape
from tensorstate.plan import solve_baseline
from tensorstate.problem.problem import Problem
from tensorstate.tracing.trace_step import trace


def main(name: str, data: int, model: int) -> None:
    """Megatron's plan, by JAX's collectives and by schedules."""
    chips = np.asarray(aot.target(name).devices, object).reshape(data, model)
    gpt = load_model("gpt", layers=1)
    mesh = MeshShape.of({"data": data, "model": model})
    network = AlphaBetaCosts(mesh, (1e-6, 1e-6), (5e10, 5e10))
    problem = Problem(trace(gpt.step, gpt.abstract_args), network, HARDWARE["TPU v5e"])
    found = solve_baseline(problem, "megatron")
    # By name: of so few bytes the default is what XLA does itself.
    rings = scheduled_collectives(lambda kind, axis, nbytes: "ring")
    for how, collectives in (("native", lax_collectives), ("scheduled", rings)):
        devices = Devices(chips, mesh.names)
        applied = apply(problem, found.decisions, found.cost, devices, collectives)
        text = applied.jit().lower(*gpt.abstract_args).compile().as_text()
        names = ("all-reduce", "collective-permute")
        counts = {name: text.count(f" {name}(") + text.count(f" {name}-start(") for name in names}
        print(json.dumps({"how": how, **counts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
