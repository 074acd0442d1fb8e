"""Replays: a step that runs the programs of an earlier run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import active
from jaxcoll.numerics import checks
from jaxcoll.tune.training_step.programs import (
    SwitchProgram,
    abstract,
    choices_of,
)
from jaxcoll.tune.training_step.regression import Choice
from jaxcoll.tune.training_step.report import Recording


def replay(step: Callable, recording: Recording) -> Replayed:
    """A step that runs, step by step, the programs of an earlier run; nothing is measured.

    Its results are bitwise those of the earlier run from the same state on the same data.

    Args:
        step: what ``jax.jit`` returns, the same as then.
        recording: ``report().recording`` of the earlier run's step.

    Raises:
        TuneError: a step that is not jitted, or something else than a recording.
    """
    if not isinstance(step, jax.stages.Wrapped):
        raise TuneError(f"replay runs what jax.jit returns, got {checks.shown(step)}")
    return Replayed(step, checks.instance(recording, Recording, "recording", TuneError))


class Replayed:
    """A step that runs what an earlier run recorded, program by program."""

    def __init__(self, step: Any, recording: Recording):
        functools.update_wrapper(self, step, updated=())
        self._step, self._recording = step, recording
        self._left = self._recorded()
        self._switch: SwitchProgram | None = None

    def __call__(self, *args, **kwargs):
        """One step; after the last recorded one, as that one."""
        return self.run(*next(self._left), args, kwargs)

    def run(self, program: str, choice: Choice, args: tuple, kwargs: dict) -> Any:
        """One step by a program, "plain" or "switch", and a candidate per task of the recording."""
        if program == "plain":
            choices = choices_of(self._recording.candidates, choice) if any(choice) else None
            with active.choosing(choices):
                return self._step(*args, **kwargs)
        if self._switch is None:
            types = abstract((args, kwargs))
            self._switch = SwitchProgram(self._step, self._recording.candidates, *types)
        return self._switch(choice, args, kwargs)

    def _recorded(self) -> Iterator[tuple[str, Choice]]:
        program, choice = "plain", ()
        for program, choice, count in self._recording.runs:
            for _ in range(count):
                yield program, choice
        while True:
            yield program, choice
