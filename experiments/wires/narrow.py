"""The program of a rank that times narrow sums: ``-m experiments.wires.narrow ROWS CALLS``.

Started once per rank by ``emulate`` (``benchmarks/narrow_sums.py``). A megabyte of float32 on each
rank is summed by ``jax.lax``, by ``jc.psum`` as it is, on each wire, and in the invariant order.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcoll as jc
from experiments.wires.rank import AXIS, DEFAULT, LAX, Rank
from jaxcoll.execute.wires import Int8

LENGTH = 1 << 18
Sum = Callable[[jax.Array], jax.Array]


def sums() -> Mapping[str, Sum]:
    """The sums that are compared, by name."""
    wires: Mapping[str, Any] = {
        "bfloat16": jnp.bfloat16,
        "float8_e4m3fn": jnp.float8_e4m3fn,
        "int8": Int8(0),
    }
    found = {LAX: functools.partial(jax.lax.psum, axis_name=AXIS)}
    found[DEFAULT] = functools.partial(jc.psum, axis_name=AXIS)
    for name, wire in wires.items():
        found[f"wire_dtype={name}"] = functools.partial(jc.psum, axis_name=AXIS, wire_dtype=wire)
    found['order="invariant"'] = functools.partial(jc.psum, axis_name=AXIS, order="invariant")
    return found


def addends(ranks: int) -> np.ndarray:
    """Of every rank; normal numbers, like gradients."""
    return np.random.default_rng(0).standard_normal((ranks, LENGTH)).astype(np.float32)


def error(found: np.ndarray, given: np.ndarray) -> float:
    """The root of the mean square error, over that of the sums."""
    exact = given.astype(np.float64).sum(0)
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


def main(rows_path: str, calls: str) -> None:
    """Times the sums; rank 0 writes one line of JSON."""
    jax.distributed.initialize()
    rank = Rank()
    given = addends(rank.mesh.size)
    sharding = jax.NamedSharding(rank.mesh, jax.sharding.PartitionSpec(AXIS))
    x = jax.make_array_from_callback(
        (given.size,), sharding, lambda index: given.reshape(-1)[index]
    )
    with jc.use_topology(rank.network):
        programs = {name: rank.compiled(run, True, x) for name, run in sums().items()}
    seconds, values = rank.timed(programs, x, int(calls))
    if jax.process_index() == 0:
        errors = {name: error(value, given) for name, value in values.items()}
        with open(rows_path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"seconds": seconds, "errors": errors}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
