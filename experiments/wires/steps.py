"""The program of a rank that times steps: ``python -m experiments.wires.steps ROWS CALLS``.

Started once per rank by ``emulate`` (``benchmarks/wire_steps.py``). Each step is written once, for
the functions of ``jax.lax`` and for those of ``jaxcoll`` without ``schedule=``.
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

_BUCKETS, _WIDTH, _ROWS = 10, 320, 32
_LAYERS, _WIDE = 4, 512
_RATE = 1e-3


def buckets(by: Any) -> Callable[[jax.Array], jax.Array]:
    """Data parallel: ten layers of 400 kB, whose gradients are averaged one by one."""

    def loss(layers: list[jax.Array], batch: jax.Array) -> jax.Array:
        for layer in layers:
            batch = jnp.tanh(batch @ layer)
        return jnp.mean(batch**2)

    def step(batch: jax.Array) -> jax.Array:
        near = jnp.eye(_WIDTH) * 0.9
        layers = [near + 0.01 * k for k in range(_BUCKETS)]
        found = jax.grad(loss)(layers, batch.reshape(_ROWS, _WIDTH) / 1000)
        means = [by.pmean(gradient, AXIS) for gradient in found]
        new = [layer - _RATE * mean for layer, mean in zip(layers, means, strict=True)]
        return jnp.stack(new)

    return step


def sharded(by: Any) -> Callable[[jax.Array], jax.Array]:
    """FSDP: four layers of 1 MiB in shards, gathered on the way there, summed on the way back."""

    def loss(shards: jax.Array) -> jax.Array:
        batch = jnp.ones((_ROWS, _WIDE)) * (1 + jax.lax.axis_index(AXIS))
        for shard in shards:
            layer = by.all_gather(shard, AXIS, tiled=True).reshape(_WIDE, _WIDE)
            batch = jnp.tanh(batch @ layer / _WIDE)
        return jnp.mean(batch**2)

    def step(x: jax.Array) -> jax.Array:
        shards = x.reshape(_LAYERS, -1) / 1000
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
