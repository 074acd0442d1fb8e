"""The program of a rank that times steps: ``python -m experiments.wires.steps ROWS CALLS``.

``emulate`` starts it once per rank (``benchmarks/wire_steps.py``). The same code makes both
programs of a step: it takes its collectives from ``jax.lax``, or from ``jaxcoll`` without
``schedule=``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoll as jc
from experiments.wires.rank import AXIS, DEFAULT, LAX, Rank

# Data parallel: ten layers whose gradients have 400 kB each, and rows of a batch.
_BUCKETS, _WIDTH, _ROWS = 10, 320, 32
# FSDP: four layers of 1 MiB each.
_LAYERS, _WIDE = 4, 512
_RATE = 1e-3
# ``Rank.numbers`` are whole numbers below this; a step takes them as numbers from 0 to 1.
_BELOW = 1000


def buckets(by: Any) -> Callable[[jax.Array], jax.Array]:
    """Data parallel: ten layers of 400 kB; each gradient is averaged in a call of its own."""

    def loss(layers: list[jax.Array], batch: jax.Array) -> jax.Array:
        for layer in layers:
            batch = jnp.tanh(batch @ layer)
        return jnp.mean(batch**2)

    def step(batch: jax.Array) -> jax.Array:
        near_identity = jnp.eye(_WIDTH) * 0.9
        layers = [near_identity + 0.01 * k for k in range(_BUCKETS)]
        found = jax.grad(loss)(layers, batch.reshape(_ROWS, _WIDTH) / _BELOW)
        means = [by.pmean(gradient, AXIS) for gradient in found]
        new = [layer - _RATE * mean for layer, mean in zip(layers, means, strict=True)]
        return jnp.stack(new)

    return step


def sharded(by: Any) -> Callable[[jax.Array], jax.Array]:
    """FSDP: four sharded layers of 1 MiB; the forward pass gathers them, the backward pass sums."""

    def loss(shards: jax.Array) -> jax.Array:
        # Every rank has a batch of its own, so that a gradient that is not summed shows.
        batch = jnp.ones((_ROWS, _WIDE)) * (1 + jax.lax.axis_index(AXIS))
        for shard in shards:
            layer = by.all_gather(shard, AXIS, tiled=True).reshape(_WIDE, _WIDE)
            batch = jnp.tanh(batch @ layer / _WIDE)
        return jnp.mean(batch**2)

    def step(x: jax.Array) -> jax.Array:
        shards = x.reshape(_LAYERS, -1) / _BELOW
        return (shards - _RATE * jax.grad(loss)(shards)).ravel()

    return step


STEPS = {"ten buckets": buckets, "FSDP": sharded}


def main(rows_path: str, calls: str) -> None:
    """Times both steps; rank 0 writes a line of JSON per step."""
    jax.distributed.initialize()
    rank = Rank()
    lengths = {"ten buckets": _ROWS * _WIDTH, "FSDP": _LAYERS * _WIDE**2 // rank.mesh.size}
    for name, make in STEPS.items():
        x = rank.numbers(lengths[name])
        programs = {LAX: rank.compiled(make(jax.lax), False, x)}
        with jc.use_topology(rank.network):
            programs[DEFAULT] = rank.compiled(make(jc), False, x)
        seconds, values = rank.timed(programs, x, int(calls))
        np.testing.assert_allclose(values[DEFAULT], values[LAX], rtol=1e-4, atol=1e-6)
        if jax.process_index() == 0:
            with open(rows_path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": name, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
