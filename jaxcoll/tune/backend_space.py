"""The configuration space of a task on a JAX backend.

The counterpart of AutoCCL's Table 2: the algorithm is ``jax.lax``'s own, the default's or a
synthesizer's schedule; the protocol is the lowering; the transport is how the backend carries out
permutes; channels are parts that run side by side. Configurations that would not run, or would run
the same program as another, are left out before anything is compiled.

``candidates`` are the few of them that are worth a place in one program. The first is always the
default, the second that of ``jax.lax`` where it has the collective. The others come by estimated
time, the best configuration of each subspace before the second best of any: an estimate ranks
resources of one implementation better than implementations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import jax

from jaxcoll.collective import ROOTED, Collective
from jaxcoll.configurations.config import Config, Parameter, Task
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.errors import CollectiveError, TopologyError, TuneError
from jaxcoll.execute.choice.configured import default_topology, is_small, schedule_of
from jaxcoll.execute.choice.stated import alternatives, clique_conflict
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import MOST_STRAIGHT_PERMUTES
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import interpreted
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.registry import REGISTRY

BACKENDS = ("cpu", "gpu", "tpu")

# Smaller messages take a round's latency whatever their size.
_LEAST_PART_BYTES = 8 << 10
_LEAST_CHUNK_BYTES = 256
_MOST_CHUNKS = 16
_PARTS = (1, 2, 4, 8)

# Seconds per permute and per byte that a rank sends: the ratio is that of eight CPU devices, and
# near that of GPUs (10 us against 100 GB/s), where both are shorter.
_PERMUTE = 30e-6
_BYTE = 1 / 2e9


def jax_space(task: Task, backend: str | None = None, *, of_jit: bool = True) -> Space:
    """The configurations of a task; the default is the one that runs without tuning.

    Implementation parameters are ``algorithm`` and ``lowering``; resources are ``chunks`` per
    shard, ``parts`` of the operand, and how many of them are ``in_flight`` (``execute.configured``
    says what each does). On GPUs and TPUs further subspaces name a ``transport``; on CPUs there is
    none to choose.

    Args:
        backend: as ``jax.default_backend`` names it; that of this process when omitted.
        of_jit: whether configurations may need XLA options of the outermost ``jit``. Those belong
            to a whole program, so that several tasks of one step cannot choose them.

    Raises:
        TuneError: a backend that JAX has not.
    """
    checks.instance(task, Task, "task", TuneError)
    checks.flag(of_jit, "of_jit", TuneError)
    backend = jax.default_backend() if backend is None else backend
    checks.choice(backend, BACKENDS, "backend", TuneError)
    parts = _parts(task)
    subspaces = [Subspace(_implementation("default", "auto"), parts)]
    if task.collective not in ROOTED:
        subspaces += [
            Subspace(implementation, parts)
            for implementation in _by_transports("native", "auto", backend, of_jit)
        ]
    for algorithm, chunks in _schedules(task):
        for lowering in _lowerings(backend):
            resources = (Parameter("chunks", chunks, "resource"), *parts)
            subspaces += [
                Subspace(implementation, resources)
                for implementation in _by_transports(algorithm, lowering, backend, of_jit)
            ]
    default = subspaces[0].config([0] * len(parts))
    return Space(tuple(subspaces), default, functools.partial(_is_valid, task, backend))


def _implementation(algorithm: str, lowering: str) -> Config:
    return Config({"algorithm": algorithm, "lowering": lowering})


def _by_transports(algorithm: str, lowering: str, backend: str, of_jit: bool) -> list[Config]:
    """An implementation by the backend's default transport, then by each alternative."""
    default = _implementation(algorithm, lowering)
    names = alternatives(backend, lowering, of_jit=of_jit)
    return [default, *(default.replace(transport=name) for name in names)]


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

    Those that take minutes have no variants; of those with the same schedule the
    first is kept.
    """
    collective, seen = collective_of(task), set()
    topology = default_topology(collective.num_ranks)
    shard = task.nbytes // task.group_size
    most = max(1, min(_MOST_CHUNKS, shard // _LEAST_CHUNK_BYTES))
    for name, kind in REGISTRY.items():
        if not kind.variants():
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
            series = kind().worth_trying(Problem(topology, collective))
        counts.update(count for some in series for count in some if count <= most)
        yield name, tuple(sorted(counts))


def _is_valid(task: Task, backend: str, config: Config) -> bool:
    """Whether a configuration runs a program that no other does, and that compiles in seconds."""
    parts, in_flight = int(config["parts"]), int(config["in_flight"])
    if in_flight > parts:
        return False
    if backend == "cpu" and config["lowering"] == "scan" and in_flight > 1:
        # XLA tells the permutes of two loops apart by neither name nor time, and aborts the process
        # where they meet: 3 of 4 runs of an all_reduce of 64 MB by "cascade" in 3 chunks.
        return False
    transport = config.get("transport")
    if transport == "apart":
        return parts > 1
    if config["lowering"] != "ssa" and transport != "cliques":
        return True
    try:
        schedule = schedule_of(
            collective_of(task), str(config["algorithm"]), int(config["chunks"]), task.nbytes
        )
    except (CollectiveError, TopologyError):
        return False
    program = permute_program(schedule)
    if transport == "cliques" and clique_conflict([program]) is not None:
        return False
    return config["lowering"] != "ssa" or parts * program.num_permutes <= MOST_STRAIGHT_PERMUTES


# ---------------------------------------------------------------------- candidates


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
