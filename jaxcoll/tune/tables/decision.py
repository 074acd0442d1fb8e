"""Decisions: the configuration in use for a task on a machine, and the sizes that it answers for.

A size that was not tuned runs by the nearest one that was, by ratio (``nearest``); ``size_ranges``
says the same as ranges.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Collection, Mapping

from jaxcoll.configurations.config import Config
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks


@dataclasses.dataclass(frozen=True, order=True)
class Machine:
    """The hardware and the version of jax that a configuration was tuned on.

    The third part of the key of a table, the topology, belongs to the task.

    Attributes:
        hardware: backend, kind of device and, where devices share them, host resources, as
            ``this_machine`` writes them: "cpu: 2 cores" or "gpu: NVIDIA H100 80GB HBM3".
        jax: the version of jax, such as "0.12.0".

    Raises:
        TuneError: a part that is not a non-empty string of one line.
    """

    hardware: str
    jax: str

    def __post_init__(self) -> None:
        for name in ("hardware", "jax"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise TuneError(
                    f"Machine({name}=...) must be a non-empty printable string, got "
                    f"{checks.shown(value)}"
                )

    def __str__(self) -> str:
        return f"{self.hardware}, jax {self.jax}"


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


@dataclasses.dataclass(frozen=True)
class SizeRange:
    """Buffers of ``min_bytes`` to ``max_bytes``, both included; None: without an upper limit."""

    min_bytes: int
    max_bytes: int | None
    config: Config


def nearest(nbytes: int, sizes: Collection[int]) -> int:
    """The size nearest to ``nbytes`` by ratio; of two equally near the smaller one."""
    ordered = sorted(sizes)
    answer = ordered[0]
    for below, above in itertools.pairwise(ordered):
        if nbytes > last_below(below, above):
            answer = above
    return answer


def last_below(below: int, above: int) -> int:
    """The largest size that is nearer by ratio to the smaller of two sizes: their geometric mean,
    rounded down.
    """
    return math.isqrt(below * above)


def size_ranges(decisions: Mapping[int, Decision]) -> tuple[SizeRange, ...]:
    """The ranges from 0 bytes upwards that ``nearest`` implies, joined where neighbours agree."""
    sizes = sorted(decisions)
    ranges: list[SizeRange] = []
    for i, size in enumerate(sizes):
        low = 0 if i == 0 else last_below(sizes[i - 1], size) + 1
        high = None if i == len(sizes) - 1 else last_below(size, sizes[i + 1])
        config = decisions[size].in_use
        if ranges and ranges[-1].config == config:
            low = ranges.pop().min_bytes
        ranges.append(SizeRange(low, high, config))
    return tuple(ranges)
