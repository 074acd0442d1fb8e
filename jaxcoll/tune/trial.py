"""The configurations that a JAX backend can run a task by, and trials of them, one by one.

The space is the counterpart of AutoCCL's Table 2: the algorithm is ``jax.lax``'s own, the default's
or a synthesizer's schedule; the protocol is the lowering; the transport is how the backend carries
out permutes; channels are parts that run side by side. Configurations that would not run, or would
run the same program as another one, are left out before anything is compiled.

``candidates`` are the few configurations that are worth a place in one program. The first is always
the default, the second that of ``jax.lax`` if it has the collective. The others are sorted by
estimated time, with the best configuration of each subspace before the second best of any, because
an estimate ranks resources of one implementation better than implementations.

The tasks of a step are found by tracing it once. A task's collective then runs on a mesh axis,
alone or together with a computation in the same program, as in training.

A configuration is compiled, compared once with ``jax.lax`` on test buffers, and only then timed.
The test buffers hold small whole numbers, whose sums are exact in every dtype, so results must be
equal bit by bit.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.collective import Collective
from jaxcoll.configurations import Config, Parameter, Task
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.errors import CollectiveError, TopologyError, TuneError
from jaxcoll.execute import functions
from jaxcoll.execute.choice import cheapest, in_force, measured_costs
from jaxcoll.execute.choice.cliques import clique_conflict
from jaxcoll.execute.choice.defaults import default_topology, is_small, schedule_of
from jaxcoll.execute.choice.options import compiler_options
from jaxcoll.execute.choice.stated import Place
from jaxcoll.execute.choice.transports import alternatives
from jaxcoll.execute.lowerings.rounds import permute_program
from jaxcoll.execute.primitives import MOST_STRAIGHT_PERMUTES
from jaxcoll.kinds import kind_of, names_in
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
    # Slow ones that take minutes have no variants; of equal schedules only the first is kept.
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
    """At most so many configurations of a space, the default first."""
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
# Nor on ``jax.lax`` beyond this. It is the one candidate that does not trust the stated network;
# but on a torus of cables, where it takes six times as long, that step was most of a search's loss.
_LAX_WORTH_A_STEP = 3.0


def candidates_on(place: Place, task: Task, most: int = 15) -> tuple[Config | None, ...]:
    """At most so many ways to run a task on a network, with the default (None) first.

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


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A call of a task in a step.

    Attributes:
        run_by: runs the call by a configuration.
        shape: shape of a rank's operand.
        mesh: names and sizes of the mesh axes around the call.
    """

    task: Task
    run_by: in_force.RunBy
    shape: tuple[int, ...]
    mesh: tuple[tuple[str, int], ...]


class Recorder:
    """Runs every task by the default, counts its calls and notes the first of them."""

    def __init__(self) -> None:
        self.calls: collections.Counter[Task] = collections.Counter()
        self.found: dict[Task, Occurrence] = {}

    def run(self, task: Task, x: jax.Array, run_by: in_force.RunBy) -> jax.Array:
        """The result by the default."""
        mesh = jax.sharding.get_abstract_mesh()
        sizes = tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        self.found.setdefault(task, Occurrence(task, run_by, x.shape, sizes))
        self.calls[task] += 1
        return run_by(x, None)


def tasks_of(step: Callable, *args, **kwargs) -> dict[Task, int]:
    """The tasks of a step with their numbers of calls, in the order of their first calls.

    Only calls that leave ``schedule=`` and ``lowering=`` open are tasks. A call in the body of a
    loop counts once.

    Args:
        step: a function that JAX can trace; if jitted, it stays so.
        args, kwargs: arrays or ``jax.ShapeDtypeStruct``; nothing is computed.

    Raises:
        TuneError: the step is not a function.
    """
    checks.function(step, "step", TuneError)
    recorder = Recorder()
    with in_force.choosing(recorder):
        jax.eval_shape(step, *args, **kwargs)
    return dict(recorder.calls)


COLLECTIVES = tuple(names_in("lax"))

# Collectives as StableHLO names them.
_COLLECTIVE = re.compile(r"stablehlo\.(all_\w+|reduce_scatter|collective_\w+)")


@dataclasses.dataclass(frozen=True)
class Program:
    """A collective compiled with a configuration.

    Attributes:
        config: the configuration.
        run: the compiled program, with one argument.
        compile_seconds: the time of tracing and compiling.
    """

    config: Config
    run: Callable[[jax.Array], Any]
    compile_seconds: float


class Trial:
    """The collective of one task along a mesh axis.

    Args:
        collective: one of ``COLLECTIVES``.
        nbytes: bytes of the larger of a rank's input and output, rounded up to whole elements per
            rank.
        mesh: the mesh of devices.
        axis: the axis along which the collective runs, the same collective on every slice of the
            mesh.
        dtype: a numeric dtype.
        seed: seed of the test buffers.
        beside: a computation in the same program: a function of a rank's part of the operand that
            calls no collective, and whose result has at least one dimension. Times include both.

    Raises:
        TuneError: the collective is unknown, the mesh does not have the axis, the size is below 1,
            the dtype holds no numbers, or the computation calls a collective.
    """

    def __init__(
        self,
        collective: str,
        nbytes: int,
        mesh: Mesh,
        axis: str,
        *,
        dtype=jnp.float32,
        seed: int = 0,
        beside: Callable[[jax.Array], jax.Array] | None = None,
    ):
        self.collective = checks.choice(collective, COLLECTIVES, "collective", TuneError)
        checks.instance(mesh, Mesh, "mesh", TuneError)
        if axis not in mesh.axis_names:
            raise TuneError(f"the mesh has the axes {mesh.axis_names}, not {axis!r}")
        if not jnp.issubdtype(dtype, jnp.number):
            raise TuneError(f"dtype must be one of numbers, got {np.dtype(dtype)}")
        self.mesh, self.axis = mesh, axis
        self._beside = beside
        self._ranks = mesh.shape[axis]
        # Programs that are compiled and checked so far.
        self.programs: dict[Config, Program] = {}
        self._together: dict[Program, int] = {}
        self.operand = self._operand(
            checks.integer(nbytes, "nbytes", TuneError, least=1),
            np.dtype(dtype),
            checks.seed(seed, TuneError),
        )
        if beside is not None:
            self._check_beside(beside)
        (self.task,) = tasks_of(self._traced, self.operand)

    def checked(self, config: Config) -> Program:
        """The program of a configuration, checked to equal ``jax.lax``.

        It is compiled and compared only once, even if several searches ask for it.

        Raises:
            TuneError: as ``compile`` and ``check``.
        """
        if config not in self.programs:
            program = self.compile(config)
            self.check(program)
            self.programs[config] = program
        return self.programs[config]

    def compile(self, config: Config) -> Program:
        """The program of a configuration.

        Raises:
            TuneError: it does not compile.
        """
        started = time.perf_counter()
        choices = in_force.Fixed({self.task: config})
        try:
            with in_force.choosing(choices):
                # A new function, because JAX would otherwise reuse a program that another thread
                # compiles.
                lowered = jax.jit(functools.partial(self._traced)).lower(self.operand)
                run = lowered.compile(self.compiler_options(config))
        except Exception as error:  # any error of XLA or a synthesizer about this configuration
            raise TuneError(f"{config} does not compile: {error}") from error
        return Program(config, run, time.perf_counter() - started)

    def compiler_options(self, config: Config) -> dict[str, str | bool] | None:
        """XLA's options for a configuration; None if it names no transport."""
        transport = config.get("transport")
        if transport is None:
            return None
        algorithm, schedules = str(config.get("algorithm", "default")), []
        if algorithm not in ("native", "default"):
            chunks, parts = (int(config.get(name, 1)) for name in ("chunks", "parts"))
            schedule = schedule_of(collective_of(self.task), algorithm, chunks, self.task.nbytes)
            # Parts that run at the same time count as that many schedules.
            schedules = [schedule] * int(config.get("in_flight", parts))
        return compiler_options(self.mesh, *schedules, transport=str(transport))

    def check(self, program: Program) -> None:
        """Compare a program with the collective of ``jax.lax``.

        Raises:
            TuneError: it fails, or its result differs in type, sharding or value.
        """
        try:
            found = self._collected(program.run(self.operand))
        except Exception as error:  # any error of the runtime about this configuration
            raise TuneError(f"{program.config} does not run: {error}") from error
        native = jax.typeof(self._native)
        if jax.typeof(found) != native or found.sharding != self._native.sharding:
            raise TuneError(
                f"{program.config} returns {jax.typeof(found)} with {found.sharding}, jax.lax "
                f"{native} with {self._native.sharding}"
            )
        if not all(
            np.array_equal(mine.data, theirs.data)
            for mine, theirs in zip(
                found.addressable_shards, self._native.addressable_shards, strict=True
            )
        ):
            raise TuneError(f"{program.config} gives another result than jax.lax")

    def seconds(self, programs: Sequence[Program], rounds: int) -> np.ndarray:
        """Seconds per call, with a row per round and a column per program.

        The programs of a round run one after another, in another order in each round, so that other
        load on the machine affects all of them. First calls are not timed.

        Raises:
            TuneError: ``rounds`` is below 1.
        """
        calls = [functools.partial(program.run, self.operand) for program in programs]
        for program, call in zip(programs, calls, strict=True):
            if program not in self._together:
                self._together[program] = measured_costs.calls_together(call)
        return measured_costs.in_alternation(calls, [self._together[p] for p in programs], rounds)

    # ------------------------------------------------------------------ the collective

    @functools.cached_property
    def _native(self) -> jax.Array:
        return self._collected(self.compile(NATIVE).run(self.operand))

    def _collected(self, results: Any) -> jax.Array:
        """The result of the collective, without that of the computation beside it."""
        return results if self._beside is None else results[0]

    def _check_beside(self, beside: Callable[[jax.Array], jax.Array]) -> None:
        """Refuse a computation with a collective of its own, at any depth."""
        # XLA would merge it with the trial's if both are the same, and the time would mean nothing.
        spec = PartitionSpec(self.axis)
        mapped = jax.shard_map(beside, mesh=self.mesh, in_specs=spec, out_specs=spec)
        found = set(_COLLECTIVE.findall(jax.jit(mapped).lower(self.operand).as_text()))
        if found:
            raise TuneError(
                "the computation beside calls no collective, got one that runs "
                f"{', '.join(sorted(found))}"
            )

    def _traced(self, x: jax.Array) -> Any:
        spec = PartitionSpec(self.axis)
        # A sum is the same on all ranks; other results are laid out along the axis.
        out = PartitionSpec() if kind_of(self.collective).is_whole else spec
        mapped = functools.partial(jax.shard_map, mesh=self.mesh, in_specs=spec)
        if (beside := self._beside) is None:
            return mapped(self._call, out_specs=out)(x)
        return mapped(lambda x: (self._call(x), beside(x)), out_specs=(out, spec))(x)

    def _call(self, x: jax.Array) -> jax.Array:
        match kind_of(self.collective).lax:
            case "all_gather":
                return functions.all_gather(x, self.axis, tiled=True)
            case "psum_scatter":
                return functions.psum_scatter(x, self.axis, tiled=True)
            case "all_to_all":
                return functions.all_to_all(x, self.axis, 0, 0, tiled=True)
            case _:
                return functions.psum(x, self.axis)

    def _operand(self, nbytes: int, dtype: np.dtype, seed: int) -> jax.Array:
        per_rank = -(-nbytes // dtype.itemsize)
        shards = -(-per_rank // self._ranks)
        is_shard = kind_of(self.collective).starts_with_shard
        length = shards if is_shard else shards * self._ranks
        # Sums over up to 128 ranks stay below 256, which every float holds exactly.
        drawn = np.random.default_rng(seed).integers(0, 3, self._ranks * length, np.int8)
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axis))
        whole = drawn.astype(dtype)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
