"""The program of a rank that tunes a step: ``python -m experiments.wires.tuning ROWS BYTES STEPS``.

Started once per rank by ``emulate`` (``benchmarks/tune_wires.py``). A training step of one sum
begins by the default and tunes itself; then all that it could have chosen is timed in alternation.
"""

from __future__ import annotations

import json
import sys
import time

import jax
import jax.numpy as jnp

import jaxcoll as jc
from experiments.wires.rank import AXIS, WIDTH, Rank
from jaxcoll.execute.choice import in_force

_RATE = 1e-3
_CALLS = 5  # of each candidate in the sweep


def averaged(weights: jax.Array) -> jax.Array:
    """Weights after a step along the mean of the ranks' gradients."""
    gradient = weights * (1 + jax.lax.axis_index(AXIS))
    return weights - _RATE * jc.pmean(gradient, AXIS)


def main(rows_path: str, nbytes: str, most: str) -> None:
    """Tunes the step until it is settled; rank 0 writes a line of JSON."""
    jax.distributed.initialize()
    rank = Rank()
    weights = jnp.ones(int(nbytes) // WIDTH)
    everywhere = jax.sharding.PartitionSpec()
    step = jax.jit(
        jax.shard_map(
            averaged, mesh=rank.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
        )
    )
    with jc.use_topology(rank.network):
        tuned, seconds = jc.tune.online(step), []
        weights = jax.block_until_ready(tuned(weights))  # compiles
        begun = time.perf_counter()
        while not tuned.done and len(seconds) < int(most):
            started = time.perf_counter()
            weights = jax.block_until_ready(tuned(weights))
            seconds.append(time.perf_counter() - started)
        until = time.perf_counter() - begun
        report = tuned.report()
        x = rank.numbers(int(nbytes) // WIDTH)
        programs = {}
        for task, configs in report.recording.candidates.items():
            for config in configs:
                choices = in_force.Fixed({} if config is None else {task: config})
                with in_force.choosing(choices):
                    programs[str(config)] = rank.compiled(lambda v: jc.psum(v, AXIS), True, x)
        swept, _ = rank.timed(programs, x, _CALLS) if programs else ({}, {})
    if jax.process_index() == 0:
        line = {
            "done": tuned.done,
            "seconds": until,
            "step seconds": seconds,
            "chosen": ", ".join(map(str, report.chosen.values())),
            "swept": swept,
        }
        with open(rows_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
