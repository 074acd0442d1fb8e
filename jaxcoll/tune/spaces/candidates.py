"""Candidates: the few configurations of a task that are worth a place in one program.

The first is always the default, the second that of ``jax.lax`` where it has the collective. The
others come by estimated time, the best configuration of each subspace before the second best of
any: an estimate ranks resources of one implementation better than implementations.
"""

from __future__ import annotations

import itertools

from jaxcoll.execute.choice.configured import schedule_of
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.task import Task
from jaxcoll.tune.spaces.backend_space import collective_of
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.spaces.space import Space, Subspace

# Seconds per permute and per byte that a rank sends: the ratio is that of eight CPU devices, and
# near that of GPUs (10 us against 100 GB/s), where both are shorter.
_PERMUTE = 30e-6
_BYTE = 1 / 2e9


def candidates(task: Task, space: Space, most: int = 15) -> tuple[Config, ...]:
    """At most so many configurations of a space, the default first."""
    native = Config({**space.default, "algorithm": "native"})
    found = [space.default] + [config for config in (native,) if config in space]
    ranked = (_ranked(task, space, subspace) for subspace in space.subspaces)
    sweeps = itertools.zip_longest(*ranked)
    for sweep in sweeps:
        for _, config in sorted(filter(None, sweep), key=lambda pair: pair[0]):
            if len(found) >= most:
                return tuple(found)
            if config not in found:
                found.append(config)
    return tuple(found)


def estimate(task: Task, config: Config) -> float:
    """About how many seconds a task takes by a configuration; 0 for ``jax.lax`` and the default."""
    if config["algorithm"] in ("native", "default"):
        return 0.0
    chunks, parts = int(config.get("chunks", 1)), int(config.get("parts", 1))
    collective = collective_of(task)
    program = permute_program(
        schedule_of(collective, str(config["algorithm"]), chunks, task.nbytes)
    )
    rows = sum(rounds.size for step in program.steps for rounds in step)
    row_bytes = task.nbytes / (task.group_size * chunks)
    return _PERMUTE * parts * program.num_permutes + _BYTE * rows * row_bytes


def _ranked(task: Task, space: Space, subspace: Subspace) -> list[tuple[float, Config]]:
    """The valid configurations of a subspace by estimated time."""
    valid = [config for config in subspace.configs() if config in space]
    return sorted(((estimate(task, c), c) for c in valid), key=lambda pair: pair[0])
