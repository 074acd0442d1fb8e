"""Trials of configurations, one by one, and the tasks of a step.

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
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.execute import functions
from jaxcoll.execute.choice import in_force, measured_costs
from jaxcoll.execute.choice.defaults import schedule_of
from jaxcoll.execute.choice.options import compiler_options
from jaxcoll.kinds import kind_of, names_in
from jaxcoll.numerics import checks
from jaxcoll.tune.backend_space import NATIVE, collective_of


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
            raise TuneError(f"dtype must be a dtype of numbers, got {np.dtype(dtype)}")
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
                "the computation beside must not call collectives, got one that runs "
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
        shard = -(-per_rank // self._ranks)
        is_shard = kind_of(self.collective).starts_with_shard
        length = shard if is_shard else shard * self._ranks
        # Sums over up to 128 ranks stay below 256, which every float holds exactly.
        drawn = np.random.default_rng(seed).integers(0, 3, self._ranks * length, np.int8)
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axis))
        whole = drawn.astype(dtype)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
