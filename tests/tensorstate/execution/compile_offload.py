"""Compiles plans that offload for one target and prints their memory, as JSON.

Argument: the target's name. Runs in a process of its own, which has the compilers on its path; see
``test_targets``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import jax
import jax.numpy as jnp
from jax import lax

import tensorstate as ts
from jaxcoll import aot

ROWS, WIDTH, LAYERS = 65536, 1024, 8


def layers(params, x):
    """One after the other."""

    def loss(params):
        h = x
        for kernel in params:
            h = jnp.tanh(h @ kernel)
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)], value


def scan(params, x):
    """In a scan."""

    def loss(params):
        return jnp.mean(lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)[0] ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return params - 0.1 * gradients, value


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def main(name: str) -> None:
    """Both steps in three fifths of the fastest plan's memory, by ``apply`` and ``constrain``."""
    target = aot.target(name)
    axes = ts.MeshShape.of({"x": len(target.devices)})
    asked = {
        "mesh": axes,
        "network": ts.AlphaBetaCosts(axes, (1e-6,), (5e10,)),
        "hardware": dataclasses.replace(
            # As if its copies were held everywhere: what XLA would undo is refused by the forms.
            ts.HARDWARE["TPU v5e" if target.platform == "tpu" else "H100"],
            holds_host_copies=True,
        ),
    }
    x = shape(ROWS, WIDTH)
    steps = {
        "layers": (layers, ([shape(WIDTH, WIDTH)] * LAYERS, x)),
        "scan": (scan, (shape(LAYERS, WIDTH, WIDTH), x)),
    }
    for what, (step, args) in steps.items():
        free = ts.search(step, args, memory_limit=math.inf, **asked)
        limit = 0.6 * free.cost.memory.peak
        plan = ts.search(step, args, memory_limit=limit, offload=True, **asked)
        mesh = target.mesh("x")
        for how in ("apply", "constrain"):
            row = {"step": what, "how": how, "host": plan.cost.memory.host}
            row["predicted"] = plan.cost.memory.peak - plan.cost.memory.inputs
            row["without"] = free.cost.memory.peak - free.cost.memory.inputs
            try:
                form = plan.apply(mesh) if how == "apply" else plan.constrain(step, mesh)
            except ts.PlanError as error:
                print(json.dumps(row | {"refused": str(error)}))
                continue
            compiled = form.jit(donate=False).lower(*args).compile()
            memory = compiled.memory_analysis()
            row["compiled"] = memory.temp_size_in_bytes
            row["compiled host"] = memory.host_temp_size_in_bytes
            row["in the program"] = (compiled.as_text() or "").count("S(5)")
            print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1])
