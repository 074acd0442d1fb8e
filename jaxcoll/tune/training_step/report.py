"""Reports of the online tuner, the history that they are made from, and replays of the history."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.numerics import checks
from jaxcoll.tune.training_step.programs import abstract, choices_of
from jaxcoll.tune.training_step.regression import Choice
from jaxcoll.tune.training_step.switch_program import SwitchProgram

# A program ("plain" or "switch"), a candidate per task, and the number of successive steps.
Run = tuple[str, Choice, int]

LAX_WINS = "jax.lax is the fastest for every collective of this step"


@dataclasses.dataclass(frozen=True)
class Recording:
    """A record of the program of every step; ``jc.tune.replay(step, recording)`` runs the same.

    Attributes:
        candidates: the candidates of each task; None is the default.
        runs: the runs in order.
    """

    candidates: Mapping[Task, Sequence[Config | None]]
    runs: tuple[Run, ...]

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return sum(count for _, _, count in self.runs)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of an online tuner.

    Attributes:
        state: state of the tuner.
        steps: the number of steps in each state.
        chosen: configuration of each task; None for the default.
        default_seconds: median time of the timed steps by the default; None if there were none.
        tuned_seconds: median time of the timed steps by the choice; None if there were none.
        overhead_seconds: the extra time of the timed steps compared with as many steps by the
            default, plus the time of comparisons, profiles and the compilers' time slices.
        comparison_seconds: the part of the overhead for comparisons with ``jax.lax``.
        profile_seconds: the part of the overhead in which steps waited for their profiles.
        compiler_seconds: the part of the overhead in which steps waited for the compilers.
        compile_seconds: time spent by compilers in the background.
        failures: the reason why a candidate of a task is in quarantine.
        lax_wins: whether the choice is ``jax.lax`` for every task, by the times of steps.
        recording: a record of the program of every step.
        notes: other events, in order.
    """

    state: str
    steps: Mapping[str, int]
    chosen: Mapping[Task, Config | None]
    default_seconds: float | None
    tuned_seconds: float | None
    overhead_seconds: float
    comparison_seconds: float
    profile_seconds: float
    compiler_seconds: float
    compile_seconds: float
    failures: Mapping[tuple[Task, Config], str]
    lax_wins: bool
    recording: Recording
    notes: tuple[str, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{state} {count}" for state, count in self.steps.items())
        lines = [f"{self.state} after {sum(self.steps.values())} steps ({counts})"]
        if self.default_seconds is not None and self.tuned_seconds is not None:
            lines.append(
                f"a step takes {self.tuned_seconds * 1e3:.2f} ms, by the default "
                f"{self.default_seconds * 1e3:.2f} ms; tuning cost "
                f"{self.overhead_seconds * 1e3:.0f} ms of steps and {self.compile_seconds:.1f} s "
                "of compilers in the background"
            )
        lines += [f"{task}: {config or 'default'}" for task, config in self.chosen.items()]
        lines += [LAX_WINS] if self.lax_wins else []
        lines += [f"refused {c} for {task}: {why}" for (task, c), why in self.failures.items()]
        return "\n".join([*lines, *self.notes])


class History:
    """The steps, times and failures of an online tuner, for its report."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.runs: list[tuple[str, Choice, int]] = []
        self.timed: list[tuple[str, Choice, float]] = []
        self.failures: dict[tuple[Task, Config], str] = {}
        self.notes: list[str] = []
        self.compile_seconds = 0.0
        self.comparison_seconds = 0.0
        self.compiler_seconds = 0.0
        self.lax_wins = False

    def ran(self, state: str, program: str, choice: Choice) -> None:
        """Note the program that a step ran."""
        self.steps[state] += 1
        if self.runs and self.runs[-1][:2] == (program, choice):
            self.runs[-1] = (program, choice, self.runs[-1][2] + 1)
        else:
            self.runs.append((program, choice, 1))

    def report(
        self, state: str, candidates: dict, chosen: Choice, profile_seconds: float
    ) -> Report:
        """The report so far."""
        # The price of tuning in steps: the time of those that were timed, minus the time of as many
        # steps by the default, which would have run otherwise.
        default = self._median((0,) * len(candidates))
        beyond = 0.0 if default is None else sum(s - default for _, _, s in self.timed)
        return Report(
            state=state,
            steps=dict(self.steps),
            chosen={
                task: configs[i]
                for (task, configs), i in zip(candidates.items(), chosen, strict=False)
            },
            default_seconds=default,
            tuned_seconds=self._median(chosen),
            overhead_seconds=(
                beyond + self.comparison_seconds + profile_seconds + self.compiler_seconds
            ),
            comparison_seconds=self.comparison_seconds,
            profile_seconds=profile_seconds,
            compiler_seconds=self.compiler_seconds,
            compile_seconds=self.compile_seconds,
            failures=dict(self.failures),
            lax_wins=self.lax_wins,
            recording=Recording(
                {task: tuple(configs) for task, configs in candidates.items()}, tuple(self.runs)
            ),
            notes=tuple(self.notes),
        )

    def _median(self, choice: Choice) -> float | None:
        """The median time of a plain program."""
        # Steps of the program of all candidates include its conditionals, so they do not count.
        times = [s for program, c, s in self.timed if program == "plain" and c == choice]
        return statistics.median(times) if times else None


# ---------------------------------------------------------------------- replays


def replay(step: Callable, recording: Recording) -> Replayed:
    """A step that runs, step by step, the programs of an earlier run; nothing is measured.

    Its results are bitwise those of the earlier run from the same state on the same data.

    Args:
        step: the function that ``jax.jit`` returned, the same as in the earlier run.
        recording: ``report().recording`` of the earlier run's step.

    Raises:
        TuneError: the step is not jitted, or the recording has another type.
    """
    if not isinstance(step, jax.stages.Wrapped):
        raise TuneError(f"replay runs what jax.jit returns, got {checks.shown(step)}")
    return Replayed(step, checks.instance(recording, Recording, "recording", TuneError))


class Replayed:
    """A step that runs a recording of an earlier run, program by program."""

    def __init__(self, step: Any, recording: Recording):
        functools.update_wrapper(self, step, updated=())
        self._step, self._recording = step, recording
        runs = [itertools.repeat((program, choice), n) for program, choice, n in recording.runs]
        last = recording.runs[-1][:2] if recording.runs else ("plain", ())
        self._left = itertools.chain(*runs, itertools.repeat(last))
        self._switch: SwitchProgram | None = None

    def __call__(self, *args, **kwargs):
        """Run one step; after the last recorded step, repeat that one."""
        return self.run(*next(self._left), args, kwargs)

    def run(self, program: str, choice: Choice, args: tuple, kwargs: dict) -> Any:
        """Run one step by a program, "plain" or "switch", with a recorded candidate per task."""
        if program == "plain":
            choices = choices_of(self._recording.candidates, choice) if any(choice) else None
            with in_force.choosing(choices):
                return self._step(*args, **kwargs)
        if self._switch is None:
            types = abstract((args, kwargs))
            self._switch = SwitchProgram(self._step, self._recording.candidates, *types)
        return self._switch(choice, args, kwargs)
