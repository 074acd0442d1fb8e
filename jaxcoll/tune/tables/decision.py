"""Decisions: the configuration in use for a task."""

from __future__ import annotations

import dataclasses
import json
import math

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.spaces.config import Config


def positive_seconds(seconds: float) -> float:
    """A time as a float.

    Raises:
        TuneError: not a positive finite number.
    """
    try:
        return float(checks.positive(seconds, "a time", TuneError))
    except TuneError:
        raise TuneError(
            f"a time must be a positive finite number of seconds, got {checks.shown(seconds)}; "
            "tell a failed trial with quarantine()"
        ) from None


@dataclasses.dataclass(frozen=True)
class Decision:
    """The row of a task in the configuration table (AutoCCL, Section 5.1).

    Attributes:
        default: the configuration without tuning.
        tuned: the configuration in use, or None while the default is.
        seconds: time of the configuration in use, or None where it was not measured.
        generation: counts the decisions about this task, from 1.

    Raises:
        TuneError: a time that is not positive and finite, or a generation below 1.
    """

    default: Config
    tuned: Config | None = None
    seconds: float | None = None
    generation: int = 1

    def __post_init__(self) -> None:
        for name in ("default", "tuned"):
            value = getattr(self, name)
            if name == "default" or value is not None:
                checks.instance(value, Config, name, TuneError)
        checks.put(
            self,
            generation=checks.integer(self.generation, "generation", TuneError, least=1),
            seconds=checks.optional(self.seconds, positive_seconds),
        )

    @property
    def in_use(self) -> Config:
        """The tuned configuration, or the default where there is none."""
        return self.default if self.tuned is None else self.tuned

    def precedence(self) -> tuple:
        """The key by which the first of two decisions about one task wins: see ``Table.merge``."""
        seconds = math.inf if self.seconds is None else self.seconds
        written = [self.in_use.to_json(), self.default.to_json()]
        return -self.generation, seconds, json.dumps(written, sort_keys=True)
