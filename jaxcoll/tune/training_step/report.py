"""Reports of the online tuner: programs tried, configurations chosen, and their cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxcoll.task import Task
from jaxcoll.tune.spaces.config import Config
from jaxcoll.tune.training_step.regression import Choice

# A program ("plain" or "switch"), a candidate per task, and how many steps in succession ran so.
Run = tuple[str, Choice, int]


@dataclasses.dataclass(frozen=True)
class Recording:
    """What every step ran: ``jc.tune.replay(step, recording)`` runs the same.

    Attributes:
        candidates: of each task; None is the default.
        runs: in order.
    """

    candidates: Mapping[Task, Sequence[Config | None]]
    runs: tuple[Run, ...]

    @property
    def steps(self) -> int:
        """How many steps were recorded."""
        return sum(count for _, _, count in self.runs)


@dataclasses.dataclass(frozen=True)
class Report:
    """How an online tuner did.

    Attributes:
        state: of the tuner.
        steps: how many steps each state took.
        chosen: configuration of each task; None for the default.
        default_seconds: median step by the default, of those that were timed; None if none was.
        tuned_seconds: median step by the choice, likewise.
        overhead_seconds: of the timed steps, beyond as many steps by the default, and of the
            comparisons and profiles.
        comparison_seconds: of the overhead, those of the comparisons with ``jax.lax``.
        profile_seconds: of the overhead, those in which steps waited for their profiles.
        compile_seconds: spent by compilers in the background.
        failures: why a candidate of a task is in quarantine.
        recording: what every step ran.
        notes: what else happened, in order.
    """

    state: str
    steps: Mapping[str, int]
    chosen: Mapping[Task, Config | None]
    default_seconds: float | None
    tuned_seconds: float | None
    overhead_seconds: float
    comparison_seconds: float
    profile_seconds: float
    compile_seconds: float
    failures: Mapping[tuple[Task, Config], str]
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
        lines += [f"refused {c} for {task}: {why}" for (task, c), why in self.failures.items()]
        return "\n".join([*lines, *self.notes])
