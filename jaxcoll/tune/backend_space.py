"""The configurations that a JAX backend can run a task by, and the few that are worth a trial.

The space is the counterpart of AutoCCL's Table 2: the algorithm is ``jax.lax``'s own, the default's
or a synthesizer's schedule; the protocol is the lowering; the transport is how the backend carries
out permutes; channels are parts that run side by side. Configurations that would not run, or would
run the same program as another one, are left out before anything is compiled.

``candidates`` are the few configurations that are worth a place in one program. The first is always
the default, the second that of ``jax.lax`` if it has the collective. The others are sorted by
estimated time, with the best configuration of each subspace before the second best of any, because
an estimate ranks resources of one implementation better than implementations.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import jax

from jaxcoll.collective import Collective
from jaxcoll.configurations import Config, Parameter, Task
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.errors import CollectiveError, TopologyError, TuneError
from jaxcoll.execute.choice import cheapest
from jaxcoll.execute.choice.cliques import clique_conflict
from jaxcoll.execute.choice.defaults import default_topology, is_small, schedule_of
from jaxcoll.execute.choice.stated import Place
from jaxcoll.execute.choice.transports import alternatives
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import MOST_STRAIGHT_PERMUTES
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import without_numba
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.registry import REGISTRY

BACKENDS = ("cpu", "gpu", "tpu")
NATIVE = Config({"algorithm": "native"})

# Smaller messages take a round's latency, independent of their size.
_LEAST_PART_BYTES = 8 << 10
_LEAST_CHUNK_BYTES = 256
_MOST_CHUNKS = 16
_PARTS = (1, 2, 4, 8)

# Seconds per permute and per byte that a rank sends. The ratio is that of eight CPU devices, and
# close to that of GPUs (10 us against 100 GB/s), where both are shorter.
_PERMUTE = 30e-6
_BYTE = 1 / 2e9


def jax_space(task: Task, backend: str | None = None, *, of_jit: bool = True) -> Space:
    """The configurations of a task; the default is the one that runs without tuning.

    Implementation parameters are ``algorithm`` and ``lowering``; resources are ``chunks`` per
    shard, ``parts`` of the operand, and the number of them ``in_flight`` (``Settings`` of
    ``execute.choice.configured`` describes each). On GPUs and TPUs further subspaces name a
    ``transport``; on CPUs there is none to choose.

    Args:
        backend: name of the backend as in ``jax.default_backend``; that of this process if omitted.
        of_jit: whether configurations may need XLA options of the outermost ``jit``. Those belong
            to a whole program, so several tasks of one step cannot choose them.

    Raises:
        TuneError: JAX does not have the backend.
    """
    checks.instance(task, Task, "task", TuneError)
    checks.flag(of_jit, "of_jit", TuneError)
    backend = jax.default_backend() if backend is None else backend
    checks.choice(backend, BACKENDS, "backend", TuneError)
    counts = tuple(n for n in _PARTS if n == 1 or task.nbytes >= n * _LEAST_PART_BYTES)
    parts = (Parameter("parts", counts, "resource"), Parameter("in_flight", counts, "resource"))
    subspaces = [Subspace(_implementation("default", "auto"), parts)]
    if kind_of(task.collective).lax is not None:
        subspaces += [
            Subspace(implementation, parts)
            for implementation in _by_transports("native", "auto", backend, of_jit)
        ]
    for algorithm, chunks in _schedules(task):
        for lowering in ("ssa", "scan", "pallas") if backend == "tpu" else ("ssa", "scan"):
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
    """An implementation by the backend's default transport, then by each alternative one."""
    default = _implementation(algorithm, lowering)
    names = alternatives(backend, lowering, of_jit=of_jit)
    return [default, *(default.replace(transport=name) for name in names)]


def collective_of(task: Task) -> Collective:
    """The task's collective, with groups of consecutive ranks."""
    size, count = task.group_size, task.num_groups
    groups = tuple(tuple(range(g * size, (g + 1) * size)) for g in range(count))
    root = 0 if kind_of(task.collective).has_root else None
    return Collective(task.collective, size * count, 1, groups, root)  # type: ignore[arg-type]


def _schedules(task: Task) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every synthesizer defined for a task and its chunk counts."""
    # Synthesizers that take minutes have no variants and are left out. Of equal schedules only the
    # first is kept.
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
        with without_numba(is_small(collective, name)):
            series = kind().worth_trying(Problem(topology, collective))
        counts.update(count for some in series for count in some if count <= most)
        yield name, tuple(sorted(counts))


def _is_valid(task: Task, backend: str, config: Config) -> bool:
    """Whether a configuration runs a program that no other one does, and compiles in seconds."""
    parts, in_flight = int(config["parts"]), int(config["in_flight"])
    if in_flight > parts:
        return False
    if backend == "cpu" and config["lowering"] == "scan" and in_flight > 1:
        # XLA cannot distinguish the permutes of two loops by name or time, and aborts the process
        # if they meet: 3 of 4 runs of an all_reduce of 64 MB by "cascade" in 3 chunks.
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
    if transport == "cliques" and _deadlocks(schedule):
        return False
    # Longer straight-line code takes long to compile; the loop of the same schedule does not.
    permutes = permute_program(schedule).num_permutes
    return config["lowering"] != "ssa" or parts * permutes <= MOST_STRAIGHT_PERMUTES


# A space asks this for every number of parts and flights, 16 times per schedule.
@functools.lru_cache(maxsize=256)
def _deadlocks(schedule: Schedule) -> bool:
    """Whether the permutes of a schedule deadlock in cliques."""
    return clique_conflict([permute_program(schedule)]) is not None


# ---------------------------------------------------------------------- candidates


def candidates(task: Task, space: Space, most: int = 15) -> tuple[Config, ...]:
    """At most ``most`` configurations of a space, the default first."""
    # An estimate ranks resources of one implementation better than implementations, so all
    # subspaces first give their best, then all their second best.
    native = Config({**space.default, "algorithm": "native"})
    found = [space.default] + [config for config in (native,) if config in space]
    ranked = []
    for subspace in space.subspaces:
        valid = [config for config in subspace.configs() if config in space]
        timed = [(estimate(task, config), config) for config in valid]
        ranked.append(sorted(timed, key=lambda pair: pair[0]))
    for sweep in itertools.zip_longest(*ranked):
        for _, config in sorted(filter(None, sweep), key=lambda pair: pair[0]):
            if len(found) >= most:
                return tuple(found)
            if config not in found:
                found.append(config)
    return tuple(found)


def estimate(task: Task, config: Config) -> float:
    """The estimated seconds of a task by a configuration; 0 for ``jax.lax`` and the default."""
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


# A step is not spent on a schedule whose predicted time is this many times that of the best one:
# predictions on emulated cables were within a fifth of most times from 1 MiB on, and within three
# fifths at 64 KiB (docs/experiments.md, the study "wires").
_WORTH_A_STEP = 1.6
# The same for ``jax.lax``. It may take more, as the one candidate that does not trust the stated
# network; but on a torus of cables, where it takes six times as long, a single step of it was most
# of a search's loss.
_LAX_WORTH_A_STEP = 3.0


def candidates_on(place: Place, task: Task, most: int = 15) -> tuple[Config | None, ...]:
    """At most ``most`` ways to run a task on a network, with the default (None) first.

    Then comes ``jax.lax``, which is the default unless a schedule is faster beyond doubt, except if
    it is predicted to take many times as long as the best; then, among the schedules that the
    default is chosen from, those that are predicted to be nearly as fast as the best, the fastest
    first.

    Args:
        place: a place with a topology.
    """
    found = cheapest.candidates_at(place, task.nbytes)
    least = min((each.seconds for each in found), default=0.0)
    configs: list[Config | None] = [None]
    configs += [
        NATIVE for each in found if each.is_native and each.seconds <= _LAX_WORTH_A_STEP * least
    ]
    configs += [
        Config({"algorithm": each.label, "chunks": each.chunks})
        for each in sorted(found, key=lambda each: each.seconds)
        if isinstance(each.runs, Schedule) and each.seconds <= _WORTH_A_STEP * least
    ]
    return tuple(configs[:most])
