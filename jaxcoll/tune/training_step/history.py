"""The history of an online tuner, from which its report is made."""

from __future__ import annotations

import statistics
from collections import Counter

from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.training_step.regression import Choice
from jaxcoll.tune.training_step.report import Recording, Report


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

    def ran(self, state: str, program: str, choice: Choice) -> None:
        """Note what a step ran."""
        self.steps[state] += 1
        if self.runs and self.runs[-1][:2] == (program, choice):
            program, choice, count = self.runs.pop()
            self.runs.append((program, choice, count + 1))
        else:
            self.runs.append((program, choice, 1))

    def report(
        self, state: str, candidates: dict, chosen: Choice, profile_seconds: float
    ) -> Report:
        """The report so far."""
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
            overhead_seconds=beyond + self.comparison_seconds + profile_seconds,
            comparison_seconds=self.comparison_seconds,
            profile_seconds=profile_seconds,
            compile_seconds=self.compile_seconds,
            failures=dict(self.failures),
            recording=Recording(
                {task: tuple(configs) for task, configs in candidates.items()}, tuple(self.runs)
            ),
            notes=tuple(self.notes),
        )

    def _median(self, choice: Choice) -> float | None:
        """The median time of a plain program."""
        times = [s for program, c, s in self.timed if program == "plain" and c == choice]
        return statistics.median(times) if times else None
