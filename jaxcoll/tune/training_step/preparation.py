"""Preparation: the background work of the online tuner before it tries a candidate.

It finds the tasks of the step and their candidates, and compiles the program of all candidates and
the programs that compare them with ``jax.lax``: one per task, on test buffers, never on training
state. Buffers hold small whole numbers, whose sums are exact in every dtype and order, so results
must be equal bit by bit.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from jaxcoll.configurations import Config, Task
from jaxcoll.configurations.space import Space
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.tune.backend_space import NATIVE, candidates, candidates_on, jax_space
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine
from jaxcoll.tune.training_step.background import compiled
from jaxcoll.tune.training_step.programs import check_same
from jaxcoll.tune.training_step.regression import Choice
from jaxcoll.tune.training_step.switch_program import SwitchProgram
from jaxcoll.tune.training_step.timing import Profiler
from jaxcoll.tune.trial import Occurrence, Recorder

Spaces = Callable[[Task], Space] | Mapping[Task, Sequence[Config]]


# The most candidates of a task; the most of all tasks of a step, because compilers take processor
# time from its steps; and the most of a task if there are many tasks.
_MOST, _MOST_OF_ALL, _FEWEST = 15, 45, 5


def candidates_each(tasks: int) -> int:
    """The default number of candidates per task, for a step of so many tasks."""
    return max(_FEWEST, min(_MOST, _MOST_OF_ALL // max(1, tasks)))


class Preparation:
    """The candidates of a step and their program.

    Args:
        step: a jitted function.
        args, kwargs: types of its arguments.
        base: the choices under which it runs without tuning.
        spaces: the space of a task, or the candidates of tasks by name.
        most: candidates per task, including the default; None for ``candidates_each``.

    Attributes:
        candidates: the candidates of each task to be tuned; the first is None, the default.
        comparisons: the comparison of each of these tasks; tasks that differ only in size share
            one.
        switch: the program of all candidates; None if there is nothing to tune, or if candidates
            are compiled one by one.
        profiler: profiles steps of that program; None if they are not to be profiled.
        failures: candidates that must not be tried, with the reasons.
        seconds: the duration of the preparation.
    """

    def __init__(
        self,
        step: Any,
        args: tuple,
        kwargs: dict,
        *,
        base: in_force.Choices | None,
        spaces: Spaces | None,
        most: int | None,
        table: Table,
        machine: Machine,
        as_switch: bool,
        profile: bool | None = None,
    ):
        # The step is traced once, without computing anything, to find the tasks that it calls.
        started = time.perf_counter()
        recorder = Recorder()
        with in_force.choosing(recorder):
            jax.eval_shape(step, *args, **kwargs)
        self.failures: dict[tuple[Task, Config], str] = {}
        self.notes: list[str] = []
        self.candidates: dict[Task, list[Config | None]] = {}
        self.comparisons: dict[Task, Comparison] = {}
        if isinstance(spaces, Mapping) and (unknown := set(spaces) - set(recorder.found)):
            names = ", ".join(map(str, sorted(unknown)))
            self.notes.append(f"space names tasks that the step does not have: {names}")
        open_tasks = {
            task: call
            for task, call in recorder.found.items()
            if task.group_size > 1 and table.lookup(task, machine) is None
        }
        most = candidates_each(len(open_tasks)) if most is None else most
        for task, call in open_tasks.items():
            configs = self._configs(call, spaces, most, table, machine)
            comparison = Comparison(call, configs)
            for i, why in comparison.refused.items():
                if config := configs[i]:
                    self.failures[task, config] = why
            kept = [c for i, c in enumerate(configs) if i not in comparison.refused or i == 0]
            if len(kept) > 1:
                self.candidates[task] = kept
                if comparison.refused:
                    comparison = Comparison(call, kept)
                self.comparisons[task] = self._like(task) or self._compiled(comparison, call, kept)
        # A comparison that did not compile may have dropped candidates.
        self.candidates = {task: c for task, c in self.candidates.items() if len(c) > 1}
        self.switch = self._switch(step, args, kwargs, base) if as_switch else None
        self.profiler = self._profiler(len(self.candidates) > 1 if profile is None else profile)
        self.seconds = time.perf_counter() - started

    def is_lax(self, choice: Choice) -> bool:
        """Whether all tasks run by ``jax.lax`` under a choice."""
        for (task, configs), i in zip(self.candidates.items(), choice, strict=True):
            config, is_default_lax = configs[i], self.comparisons[task].is_native
            if not (is_default_lax if config is None else config.get("algorithm") == "native"):
                return False
        return True

    def equal(self, task: Task, candidate: int, wait: Callable[[jax.Array], object]) -> bool:
        """Whether a candidate's result on test buffers equals ``jax.lax``'s (``Comparison``)."""
        return self.comparisons[task].equal(candidate, wait)

    def _configs(
        self, call: Occurrence, spaces: Spaces | None, most: int, table: Table, machine: Machine
    ) -> list[Config | None]:
        task, place = call.task, call.run_by.place
        found: Sequence[Config | None]
        if isinstance(spaces, Mapping):
            found = [None, *spaces.get(task, ())]
        elif spaces is None and place.topology is not None:
            found = candidates_on(place, task, most)
        else:
            space = jax_space(task, of_jit=False) if spaces is None else spaces(task)
            checks.instance(space, Space, f"what space returns for {task}", TuneError)
            found = [None if c == space.default else c for c in candidates(task, space, most)]
        kept: list[Config | None] = []
        for config in found:
            if config is not None and table.is_quarantined(task, config, machine):
                self.notes.append(f"skipped {config} for {task}: it failed in an earlier run")
            elif config not in kept:
                kept.append(config)
        return kept

    def _like(self, task: Task) -> Comparison | None:
        """The comparison of a task of another size with the same candidates."""
        # For example a larger bucket of gradients: the schedules are the same, and so is the
        # result.
        for other, comparison in self.comparisons.items():
            same = dataclasses.replace(other, nbytes=task.nbytes) == task
            if same and self.candidates[other] == self.candidates[task]:
                return comparison
        return None

    def _compiled(
        self, comparison: Comparison, call: Occurrence, configs: list[Config | None]
    ) -> Comparison:
        """The compiled comparison; candidates that do not compile are removed from ``configs``."""
        try:
            comparison.compile()
            return comparison
        except Exception:  # one of them does not compile, so find out which
            for config in filter(None, configs[1:]):
                try:
                    Comparison(call, [None, config]).compile()
                except Exception as error:
                    self.failures[call.task, config] = f"it does not compile: {error}"
                    configs.remove(config)
        comparison = Comparison(call, configs)
        comparison.compile()
        return comparison

    def _switch(self, step, args, kwargs, base) -> SwitchProgram | None:
        if not self.candidates:
            return None
        try:
            with in_force.choosing(base):
                switch = SwitchProgram(step, self.candidates, args, kwargs)
                check_same(step, switch.stages, args, kwargs, "the program of all candidates")
            return switch
        except Exception as error:  # there is no such program, or it returns other types
            self.notes.append(f"candidates run as programs of their own: {error}")
        return None

    def _profiler(self, is_wanted: bool) -> Profiler | None:
        if self.switch is None or not is_wanted or jax.default_backend() != "cpu":
            return None
        text = self.switch.stages[1].as_text()
        profiler = Profiler(text, len(self.candidates), self.switch.local_devices)
        if profiler.is_complete:
            return profiler
        self.notes.append("steps are not profiled: the program does not name all of its tasks")
        return None


# ---------------------------------------------------------------------- comparison with jax.lax


class Comparison:
    """Compares the candidates of a task with ``jax.lax``.

    Args:
        call: the task's call.
        configs: the candidates; None is the default.

    Attributes:
        refused: candidates that cannot be traced or change the type of the result, with the
            reasons.
        is_native: whether the default is ``jax.lax`` itself.
    """

    def __init__(self, call: Occurrence, configs: Sequence[Config | None]):
        names = tuple(name for name, _ in call.mesh)
        sizes = tuple(size for _, size in call.mesh)
        self._call, self._names = call, names
        self._mesh = Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), names)
        rooted = kind_of(call.task.collective).has_root
        # ``jax.lax`` has no collectives with a root.
        self._reference = None if rooted else NATIVE
        reference = self._type(self._reference)
        self.is_native = not rooted and self._traced(None) == self._traced(NATIVE)
        self.refused: dict[int, str] = {}
        for i, config in enumerate(configs):
            try:
                found = self._type(config)
            except Exception as error:  # any error that tracing a candidate raises
                self.refused[i] = f"it cannot be traced: {error}"
                continue
            if (found.shape, found.dtype) != (reference.shape, reference.dtype):
                self.refused[i] = (
                    f"it returns {found.dtype}{found.shape}, and jax.lax "
                    f"{reference.dtype}{reference.shape}"
                )
        self._kept = [i for i in range(len(configs)) if i not in self.refused]
        self._configs = configs
        self._equal: dict[int, bool] = {}

    def compile(self) -> None:
        """Compile the program of all candidates that were not refused."""
        program = jax.jit(self._sharded(self._compare, PartitionSpec(self._names)))
        self._compiled = compiled(program.lower(np.int32(0), np.bool(False)))

    def equal(
        self, candidate: int, wait: Callable[[jax.Array], object] = jax.block_until_ready
    ) -> bool:
        """Whether a candidate's result equals that of ``jax.lax`` on every rank.

        The comparison runs once, and its result is kept.

        Args:
            wait: blocks until an array is computed, or raises.
        """
        if candidate not in self._equal:
            # If the default equals ``jax.lax``, a candidate that equals the default does, too, and
            # between processes ``jax.lax`` may take five times as long as both. If the default
            # differs, or is not among the candidates, all are compared with ``jax.lax`` itself.
            by_default = bool(candidate) and self._kept[0] == 0 and self.equal(0, wait)
            which = np.int32(self._kept.index(candidate))
            agrees = self._compiled(which, np.bool(by_default))
            wait(agrees)
            self._equal[candidate] = all(
                bool(np.asarray(shard.data).all()) for shard in agrees.addressable_shards
            )
        return self._equal[candidate]

    # ------------------------------------------------------------------ traced

    def _type(self, config: Config | None) -> jax.ShapeDtypeStruct:
        return jax.eval_shape(self._program(config), np.int32(0))

    def _traced(self, config: Config | None) -> str:
        return str(jax.make_jaxpr(self._program(config))(np.int32(0)))

    def _program(self, config: Config | None):
        return self._sharded(lambda _: self._run(self._operand(), config), PartitionSpec())

    def _sharded(self, function, out_specs):
        return jax.shard_map(
            function,
            mesh=self._mesh,
            in_specs=PartitionSpec(),
            out_specs=out_specs,
            check_vma=False,
        )

    def _compare(self, which: jax.Array, by_default: jax.Array) -> jax.Array:
        x = self._operand()
        by = [functools.partial(self._run, config=config) for config in (self._reference, None)]
        wanted = lax.switch(by_default.astype(np.int32), by, x)
        branches = [functools.partial(self._run, config=self._configs[i]) for i in self._kept]
        agrees = jnp.array_equal(lax.switch(which, branches, x), wanted)
        # All ranks know the result of all, so that all take the same branches next.
        return lax.pmin(agrees.astype(np.int32), self._names)[None]

    def _run(self, x: jax.Array, config: Config | None) -> jax.Array:
        return self._call.run_by(x, config)

    def _operand(self) -> jax.Array:
        """Whole numbers 0, 1 and 2 that differ from rank to rank."""
        # Computed in the program, so that no test buffer is in memory beside the training state.
        rank = lax.axis_index(self._names)
        flat = jnp.arange(int(np.prod(self._call.shape)), dtype=jnp.int32)
        drawn = (flat * 7 + rank * 5 + flat // 3 * rank) % 3
        return drawn.astype(self._call.task.dtype).reshape(self._call.shape)
