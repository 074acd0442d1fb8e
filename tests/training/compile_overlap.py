"""Compiles a training step for a TPU slice and prints what runs in which order, as JSON.

Runs in a process of its own, which has the compilers on its path; see ``test_overlap``.
"""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import aot
from jaxcoll.aot.hlo import Module, parse

DEPTH, WIDTH, BATCH = 6, 512, 2048


def layer(params, x):
    return jnp.tanh(x @ params)


def loss(x, y):
    return ((x - y) ** 2).mean()


def plain(params, x, y, reduce):
    def whole(params):
        h = x
        for p in params:
            h = layer(p, h)
        return loss(h, y)

    return reduce(jax.grad(whole)(lax.pcast(params, "i", to="varying")))


def order_of(module: Module) -> str:
    """Letters in the order in which things run: s(tart) and d(one) of permutes, M(atmuls)."""

    def multiplies(instruction) -> bool:
        called = re.findall(r"calls=%?([\w.\-]+)", instruction.attributes)
        return instruction.opcode in ("dot", "convolution") or any(
            multiplies(inner) for name in called for inner in module.computations[name]
        )

    def letter(instruction) -> str:
        _, permute, what = instruction.opcode.rpartition("collective-permute-")
        return what[0] if permute else "M" * multiplies(instruction)

    return "".join(letter(i) for i in module.computations[module.entry])


def main() -> None:
    target = aot.target("v5e:4x4", wrap=True)
    schedule = jc.synthesize(target.topology, "all_reduce", "bucket", chunks=1)
    alone = jc.optax.all_reduce_gradients("i", schedule=schedule, bucket_bytes=0)
    value_and_grad = jc.optax.overlap([layer] * DEPTH, loss, "i", schedule=schedule)

    def by_leaf(*arguments):
        *params, x, y = arguments
        return plain(params, x, y, lambda g: alone.update(g, optax.EmptyState())[0])

    def native(*arguments):
        *params, x, y = arguments
        return plain(params, x, y, lambda g: lax.pmean(g, "i"))

    def overlapped(*arguments):
        *params, x, y = arguments
        return value_and_grad(params, x, y)[1]

    n = len(target.devices)
    sides = [(WIDTH, WIDTH)] * DEPTH + [(n * BATCH, WIDTH)] * 2
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in sides]
    specs = [P()] * DEPTH + [P("i")] * 2
    # More in flight than the compiler allows by itself: all sums' steps at once.
    options = {"xla_max_concurrent_async_collective_permutes": "32"}
    found = {}
    for step in (native, by_leaf, overlapped):
        compiled = aot.compile_for(
            target.mesh(), step, shapes, specs, [P()] * DEPTH, options=options
        )
        text = compiled.as_text()
        found[step.__name__] = order_of(parse(text or ""))
    print(json.dumps({"steps": schedule.num_steps, **found}))


if __name__ == "__main__":
    main()
