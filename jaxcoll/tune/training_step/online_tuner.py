"""The online tuner: a training step that finds its fastest configurations while it trains.

AutoCCL (Xu et al., NSDI 2025, Sec. 5) tunes collectives in the first iterations of training, under
the interference of its computation. All processes run the same steps. At checkpoints, which are
steps known to all of them, the leader decides which choices run until the next one (``leader``,
``processes``); between checkpoints a step only looks up its choice. The states are in the package's
``__init__``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TableWarning, TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.numerics import checks
from jaxcoll.progress import Wanted, by_lines
from jaxcoll.tune.in_use import ByTable, table_at, this_machine
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine
from jaxcoll.tune.training_step import TIMED, TRANSITIONS, Event, State, processes
from jaxcoll.tune.training_step.background import Background
from jaxcoll.tune.training_step.leader import Leader
from jaxcoll.tune.training_step.preparation import Preparation, Spaces
from jaxcoll.tune.training_step.processes import Coordinator, Decision, Progress, Start
from jaxcoll.tune.training_step.programs import (
    abstract,
    choices_of,
    compile_plain,
    is_traced,
    signature,
)
from jaxcoll.tune.training_step.regression import Choice
from jaxcoll.tune.training_step.report import LAX_WINS, History, Report
from jaxcoll.tune.training_step.switch_program import SwitchProgram
from jaxcoll.tune.training_step.timing import Held, TimeSlices, Timing

log = logging.getLogger(__name__)

# After so many steps arguments have the shardings of every later step.
_FIRST_STEPS = 3


def online(
    step: Callable,
    *,
    space: Spaces | None = None,
    candidates: int | None = None,
    table: Table | str | os.PathLike | None = None,
    seed: int = 0,
    steps: int | None = None,
    programs: str = "auto",
    profile: bool | None = None,
    watch_steps: int = 200,
    coordinator: Coordinator | None = None,
    clock: Callable[[], float] = time.perf_counter,
    progress: Wanted = None,
) -> Online:
    """A jitted step that tunes the collectives it calls without ``schedule=`` while it runs.

    Call it as the step itself: arguments, results, shardings and donation are the same. In steps
    that it times, it blocks until the step has ended. Calls that run the same sequence of
    programs give bitwise the same results (``replay``); different schedules add in different
    orders.

    Args:
        step: a function that ``jax.jit`` returned.
        space: (task) -> the configurations to choose from, ``jax_space`` if omitted; or the
            configurations themselves, per task.
        candidates: the most configurations per task that are tried, including the default; if
            omitted 15, or fewer in steps of many tasks, since all of them are compiled.
        table: a table of earlier decisions. Tasks that it answers are not tuned. A path is read at
            first, if the file exists, and written when the step is settled: one file per tuned
            step.
        seed: seed for the order in which candidates are tried.
        steps: the most steps of a search.
        programs: "switch" for one program of all candidates, "plain" for one program each, which is
            needed if a conditional ends the overlap of collectives with computation; "auto" is
            "switch" on CPUs.
        profile: whether to profile the steps of a search. This separates the tasks in fewer steps
            and costs some time at the end of each; only on CPUs. If omitted, steps with several
            tasks are profiled.
        watch_steps: steps between two probes of the settled step.
        coordinator: connects the processes; ``processes.coordinator`` makes one if omitted.
        clock: returns seconds.
        progress: True for a line in the terminal at every change of state, or a function called
            then with a ``jaxcoll.progress.Progress``: the steps done, and the change.

    Raises:
        TuneError: the step is not jitted, or arguments have other types or are out of range.
    """
    _check_arguments(step, space, table, clock, coordinator)
    tell = by_lines(progress, TuneError)
    checks.choice(programs, ("auto", "switch", "plain"), "programs", TuneError)
    switch = programs == "switch" or (programs == "auto" and jax.default_backend() == "cpu")
    profile = checks.optional(profile, checks.flag, "profile", TuneError)
    coordinator = processes.Coordinator() if coordinator is None else coordinator
    leader = Leader(
        seed=checks.seed(seed, TuneError),
        most_steps=checks.optional(steps, checks.integer, "steps", TuneError, least=1),
        watch_steps=checks.integer(watch_steps, "watch_steps", TuneError, least=1),
    )
    most = checks.optional(candidates, checks.integer, "candidates", TuneError, least=1)
    path = None if table is None or isinstance(table, Table) else os.fspath(table)
    if path is not None:
        table = table_at(path, coordinator.is_leader)
    return Online(
        step,
        leader,
        prepare=functools.partial(
            Preparation, step, spaces=space, most=most, as_switch=switch, profile=profile
        ),
        table=Table() if table is None else table,  # type: ignore[arg-type]
        path=path,
        coordinator=coordinator,
        clock=clock,
        tell=tell,
    )


def _check_arguments(
    step: object, space: object, table: object, clock: object, coordinator: object
) -> None:
    """Refuse arguments of ``online`` whose types are not those it documents."""
    if not isinstance(step, jax.stages.Wrapped):
        raise TuneError(
            f"online tunes what jax.jit returns, got {checks.shown(step)}; wrap the step in jax.jit"
        )
    if not (space is None or callable(space) or isinstance(space, Mapping)):
        raise TuneError(
            "space must be a function of a task, or the candidates of each task, got "
            f"{checks.shown(space)}"
        )
    for task, configs in space.items() if isinstance(space, Mapping) else ():
        checks.instance(task, Task, "a key of space", TuneError)
        for config in checks.members(configs, "the candidates of a task", TuneError):
            checks.instance(config, Config, "a candidate", TuneError)
    if not (table is None or isinstance(table, (Table, str, os.PathLike))):
        raise TuneError(f"table must be a Table or the path of one, got {checks.shown(table)}")
    if not callable(clock):
        raise TuneError(f"clock must be a function that returns seconds, got {checks.shown(clock)}")
    if not isinstance(now := clock(), numbers.Real):
        raise TuneError(f"clock must return seconds as a number, got {checks.shown(now)}")
    if coordinator is not None and not callable(getattr(coordinator, "exchange", None)):
        raise TuneError(
            "coordinator must be one that processes.Coordinator() makes, got "
            f"{checks.shown(coordinator)}"
        )


class Online:
    """A step that tunes itself, as ``online`` returns it.

    Attributes:
        table: decisions, and candidates that failed.
    """

    def __init__(
        self,
        step: Any,
        leader: Leader,
        *,
        prepare: Callable[..., Preparation],
        table: Table,
        path: str | None,
        coordinator: Coordinator,
        clock: Callable[[], float],
        tell: Callable[[int, str], None],
    ):
        functools.update_wrapper(self, step, updated=())
        self.table = table
        self._step, self._leader, self._prepare = step, leader, prepare
        self._path, self._coordinator, self._tell = path, coordinator, tell
        self._timing = Timing(clock)
        self._machine = this_machine()
        self._base: in_force.Choices | None = None
        self._work: Background | None = None
        self._slices: TimeSlices | None = None
        self._held = Held()
        self._prepared: Preparation | None = None
        self._refused: list[tuple[int, int]] = []
        self._to_compare: dict[int, Sequence[tuple[int, int]]] = {}  # keys are steps
        self._types: Any = ((), {})
        self._signature: tuple = ()
        self._state, self._program = State.WARM, "plain"
        self._queue: Sequence[Choice] = ((),)
        self._count, self._begun, self._checkpoint = 0, 0, _FIRST_STEPS
        self._chosen: Choice = ()
        self._history = History()

    # ------------------------------------------------------------------ what a caller sees
    def __call__(self, *args, **kwargs):
        """Run one step."""
        self._held.deliver()
        if is_traced((args, kwargs)):
            # The call is part of a program that is being traced, where it cannot be timed.
            note = "a call inside another jit, grad or vmap was not tuned; jit the whole step"
            if note not in self._history.notes:
                self._history.notes.append(note)
            choices = self._choices(self._chosen) if self._count else in_force.current()
            with in_force.choosing(choices):
                return self._step(*args, **kwargs)
        if self._count == 0:
            self._begin()
        if self._count == self._checkpoint:
            with self._held:
                self._synchronize(args, kwargs)
        # For other arguments, such as a last batch, the step's own jit compiles.
        fits = self._state is State.SETTLED or signature(args, kwargs) == self._signature
        # A compiler must not keep Ctrl-C waiting: signals are not held in the first step, nor in
        # one on arguments that are known to be different.
        with self._held if fits and self._count else contextlib.nullcontext():
            return self._one(fits, args, kwargs)

    def _one(self, fits: bool, args: tuple, kwargs: dict) -> Any:
        """Run one step, and note it."""
        # The queue is repeated until the next checkpoint, by a count that all processes share.
        choice = self._queue[(self._count - self._begun) % len(self._queue)]
        program, is_timed = self._program, self._state in TIMED
        if not fits:
            program, choice = "plain", self._chosen
        outputs = self._timing.run(
            functools.partial(self._run, program, choice, args, kwargs, is_timed),
            (program, choice if program == "plain" else ()),
            choice,
            waits=is_timed,
            is_usual=fits,
            profiler=self._preparation.profiler if self._state is State.SEARCH else None,
        )
        self._history.ran(self._state, program, choice)
        wait = functools.partial(self._coordinator.wait, outputs, f"step {self._count}")
        if pairs := self._to_compare.pop(self._count, ()):
            wait()
            self._compare(self._preparation, pairs)
        if self._slices is not None:
            self._slices.after_step(wait)
        self._count += 1
        return outputs

    @property
    def done(self) -> bool:
        """Whether the configurations are chosen."""
        return self._state in (State.SETTLED, State.PROBE)

    @property
    def chosen(self) -> Choice:
        """The position of each task's choice among its candidates; empty before there is one."""
        return self._chosen

    def report(self) -> Report:
        """The programs tried, the configurations chosen so far, and their cost."""
        spent = self._timing.profile_seconds
        return self._history.report(self._state, self._candidates, self._chosen, spent)

    def join(self) -> None:
        """Wait for the compilers in the background; for scripts that end soon."""
        if self._work is not None:
            self._work.join()

    # ------------------------------------------------------------------ running

    @property
    def _candidates(self) -> dict[Task, list[Config | None]]:
        return self._prepared.candidates if self._prepared is not None else {}

    @property
    def _preparation(self) -> Preparation:
        return checks.instance(self._prepared, Preparation, "what was prepared", TuneError)

    @property
    def _switch(self) -> SwitchProgram:
        found = self._preparation.switch
        return checks.instance(found, SwitchProgram, "the program of all candidates", TuneError)

    def _run(self, program: str, choice: Choice, args: tuple, kwargs: dict, is_timed: bool) -> Any:
        """The step's results; if it is timed, it has ended."""
        try:
            if program == "switch":
                outputs = self._switch(choice, args, kwargs)
            else:
                with in_force.choosing(self._choices(choice)):
                    outputs = self._step(*args, **kwargs)
            if is_timed:
                self._coordinator.wait(outputs, f"step {self._count}")
            return outputs
        except TuneError:  # an error of the processes, not of this candidate
            raise
        except Exception as error:
            if any(choice):
                # The default runs from now on. Inputs may already be donated, so this step is lost.
                why = f"step {self._count} failed by {choice}: {error}"
                self._history.notes.append(f"{why}; the default runs from now on")
                self._state = TRANSITIONS[self._state, Event.FAILED]
                self._program, self._queue = "plain", ((),)
                self._chosen, self._checkpoint = (0,) * len(self._candidates), -1
                self._to_compare = {}
            raise

    def _choices(self, choice: Choice) -> in_force.Choices | None:
        return choices_of(self._candidates, choice, self._base) if any(choice) else self._base

    # ------------------------------------------------------------------ checkpoints

    def _begin(self) -> None:
        """Give all processes the leader's table, and its machine, by which tasks are looked up."""
        # If each process read the file, it might differ, or be missing on some hosts: processes
        # that look up different configurations run different programs, and wait forever.
        machine = self._machine
        mine = Start(self.table.dumps(), machine.hardware, machine.jax)
        timeout = processes.FIRST_TIMEOUT_SECONDS
        start = self._coordinator.exchange(Start(), lambda _: mine, Start, timeout)
        if not self._coordinator.is_leader:
            self.table = Table.loads(start.table)
            self._machine = Machine(start.hardware, start.jax)
        # A table in use around the call (``use``) answers tasks that this one does not.
        by_table = ByTable(self.table, self._machine)
        self._base = by_table if self.table.decisions else in_force.current()

    def _synchronize(self, args: tuple, kwargs: dict) -> None:
        """Report to the leader, and carry out its decision."""
        # Only the first time, when arguments have the shardings of every later step.
        if self._work is None and self._state is State.WARM:
            self._types = abstract((args, kwargs))
            self._signature = signature(*self._types)
            args_of, kwargs_of = self._types
            self._work_on(
                functools.partial(
                    self._prepare,
                    args_of,
                    kwargs_of,
                    base=self._base,
                    table=self.table,
                    machine=self._machine,
                )
            )
        is_ready = self._work is None or self._work.done
        if is_ready and self._slices is not None:
            self._history.compiler_seconds += self._slices.seconds
            self._slices = None
        error = self._work.error if self._work is not None and is_ready else None
        if error is not None:
            self._history.notes.append(f"tuning stopped: {error}")
            self._work = None
        elif is_ready and self._work is not None and self._prepared is None:
            self._prepared = prepared = self._work.result
            self._history.compile_seconds += prepared.seconds
            self._history.notes += prepared.notes
            for (task, config), why in prepared.failures.items():
                self._quarantine(task, config, why)
        timed = self._timing.taken()
        self._history.timed += [(self._program, choice, seconds) for choice, seconds, _ in timed]
        progress = Progress(
            is_ready=is_ready,
            has_failed=error is not None,
            steps=tuple(timed),
            candidates=tuple((task, tuple(each)) for task, each in self._candidates.items()),
            refused=tuple(self._refused),
            has_switch=self._prepared is not None and self._prepared.switch is not None,
        )
        self._follow(self._coordinator.exchange(progress, self._leader.decide, Decision))

    def _follow(self, decision: Decision) -> None:
        if decision.state is not self._state:
            log.info("step %d: %s -> %s", self._count, self._state, decision.state)
            self._tell(self._count, f"{self._state} -> {decision.state}")
        was_timed = self._state in (State.SEARCH, State.FINAL)
        self._state, self._program = decision.state, decision.program
        self._queue = decision.choices
        self._begun, self._checkpoint = self._count, self._count + decision.steps
        self._to_compare = dict(enumerate(decision.compare, self._count))
        if decision.compile:
            self._work_on(functools.partial(self._compile, decision.compile))
        if decision.chosen is not None:
            self._chosen = decision.chosen
            default = Config({"algorithm": "default"})
            for (task, configs), i in zip(self._candidates.items(), self._chosen, strict=False):
                self.table.choose(task, default, configs[i], None, self._machine)
            self._save()
            self._history.lax_wins = was_timed and self._preparation.is_lax(self._chosen)
            if self._history.lax_wins:
                self._tell(self._count, LAX_WINS)

    # ------------------------------------------------------------------ in the background

    def _work_on(self, work: Callable[[], Any]) -> None:
        self._work = Background(work)
        self._slices = TimeSlices(self._work)

    def _compile(self, wanted: Sequence[Choice]) -> None:
        started = time.perf_counter()
        args, kwargs = self._types
        for choice in wanted:
            compile_plain(self._step, self._choices(choice), args, kwargs)
        self._history.compile_seconds += time.perf_counter() - started

    # ------------------------------------------------------------------ comparisons, the table

    def _compare(self, prepared: Preparation, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare candidates on test buffers, between two steps, when the devices are idle."""
        started = time.perf_counter()
        for position, candidate in pairs:
            task, configs = list(prepared.candidates.items())[position]
            config = configs[candidate]
            is_equal = functools.partial(prepared.equal, task, candidate)
            if config is not None and (why := self._compared(task, config, is_equal)):
                self._refused.append((position, candidate))
                self._quarantine(task, config, why)
        self._save()  # no trial is running, so none is to blame if the process ends now
        self._history.comparison_seconds += time.perf_counter() - started

    def _compared(self, task: Task, config: Config, is_equal: Callable[..., bool]) -> str:
        """Why a candidate must not be tried, or ""; ``TuneError`` if another process stalls."""
        # Noted first, so that the table remembers a candidate that ends the process or never
        # returns.
        what = f"the comparison of {config} for {task} with jax.lax"
        self.table.begin_trial(task, config, self._machine)
        self._save()
        try:
            equal = is_equal(lambda found: self._coordinator.wait(found, what))
            why = "" if equal else "its result is not that of jax.lax"
        except TuneError:  # an error of the processes, not of this candidate
            raise
        except Exception as error:  # any error of the runtime about this candidate
            why = f"it does not run: {error}"
        self.table.end_trial(task, config, self._machine)
        return why

    def _quarantine(self, task: Task, config: Config, why: str) -> None:
        self._history.failures[task, config] = why
        self.table.quarantine(task, config, why, self._machine)

    def _save(self) -> None:
        if self._path is None or not self._coordinator.is_leader:
            return
        try:
            self.table.save(self._path)
        except OSError as error:  # for example a full disk: training continues
            self._path = None
            self._history.notes.append(f"the table is not written any more: {error}")
            warnings.warn(self._history.notes[-1], TableWarning, stacklevel=2)
