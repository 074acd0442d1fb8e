"""The configuration space of a task on a JAX backend.

The counterpart of AutoCCL's Table 2: the algorithm is ``jax.lax``'s own, the default's or a
synthesizer's schedule; the protocol is the lowering; channels are parts that run side by side.
What would not run, and what would run the same program as another configuration, is left out before
anything is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax

from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError, TopologyError, TuneError
from jaxcoll.execute.choice.configured import schedule_of
from jaxcoll.execute.choice.defaults import default_topology, is_small
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import MOST_STRAIGHT_PERMUTES
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import interpreted
from jaxcoll.synth.registry import REGISTRY, chunk_counts
from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config, Parameter
from jaxcoll.tune.spaces.space import Space, Subspace

BACKENDS = ("cpu", "gpu", "tpu")

# Smaller messages take a round's latency whatever their size.
_LEAST_PART_BYTES = 8 << 10
_LEAST_CHUNK_BYTES = 256
_MOST_CHUNKS = 16
_PARTS = (1, 2, 4, 8)


def jax_space(task: Task, backend: str | None = None) -> Space:
    """What a task can be run with; the default is what runs without tuning.

    Implementation parameters are ``algorithm`` and ``lowering``; resources are ``chunks`` per
    shard, ``parts`` of the operand, and how many of them are ``in_flight`` (``execute.configured``
    says what each does).

    Args:
        backend: as ``jax.default_backend`` names it; that of this process when omitted.

    Raises:
        TuneError: a backend that JAX has not.
    """
    backend = jax.default_backend() if backend is None else backend
    checks.choice(backend, BACKENDS, "backend", TuneError)
    parts = _parts(task)
    subspaces = [Subspace(_implementation("default", "auto"), parts)]
    if task.collective not in ROOTED:
        subspaces.append(Subspace(_implementation("native", "auto"), parts))
    for algorithm, chunks in _schedules(task):
        for lowering in _lowerings(backend):
            resources = (Parameter("chunks", chunks, "resource"), *parts)
            subspaces.append(Subspace(_implementation(algorithm, lowering), resources))
    default = subspaces[0].config([0] * len(parts))
    return Space(tuple(subspaces), default, functools.partial(_is_valid, task))


def _implementation(algorithm: str, lowering: str) -> Config:
    return Config({"algorithm": algorithm, "lowering": lowering})


def _lowerings(backend: str) -> tuple[str, ...]:
    return ("ssa", "scan", "pallas") if backend == "tpu" else ("ssa", "scan")


def _parts(task: Task) -> tuple[Parameter, ...]:
    counts = tuple(n for n in _PARTS if n == 1 or task.nbytes >= n * _LEAST_PART_BYTES)
    return Parameter("parts", counts, "resource"), Parameter("in_flight", counts, "resource")


def collective_of(task: Task) -> Collective:
    """The task's collective, its groups of consecutive ranks."""
    size, count = task.group_size, task.num_groups
    groups = tuple(tuple(range(g * size, (g + 1) * size)) for g in range(count))
    root = 0 if task.collective in ROOTED else None
    return Collective(task.collective, size * count, 1, groups, root)  # type: ignore[arg-type]


def _schedules(task: Task) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every synthesizer defined for a task and its chunk counts.

    Those that take minutes have no variants in the registry; of those with the same schedule the
    first is kept.
    """
    collective, seen = collective_of(task), set()
    topology = default_topology(collective.num_ranks)
    shard = task.nbytes // task.group_size
    most = max(1, min(_MOST_CHUNKS, shard // _LEAST_CHUNK_BYTES))
    for name, entry in REGISTRY.items():
        if not entry.variants:
            continue
        try:
            schedule = schedule_of(collective, name, 1, task.nbytes)
        except (CollectiveError, TopologyError):
            continue
        if schedule.digest in seen:
            continue
        seen.add(schedule.digest)
        counts = {1}
        with interpreted(is_small(collective, name)):
            series = chunk_counts(entry.make(), topology, collective)
        counts.update(count for some in series for count in some if count <= most)
        yield name, tuple(sorted(counts))


def _is_valid(task: Task, config: Config) -> bool:
    """Whether a configuration runs a program that no other does, and that compiles in seconds."""
    parts = int(config["parts"])
    if int(config["in_flight"]) > parts:
        return False
    if config["lowering"] != "ssa":
        return True
    try:
        schedule = schedule_of(
            collective_of(task), str(config["algorithm"]), int(config["chunks"]), task.nbytes
        )
    except (CollectiveError, TopologyError):
        return False
    return parts * permute_program(schedule).num_permutes <= MOST_STRAIGHT_PERMUTES
