"""Agreement of processes: one decides, and all act on the decision at the same step.

Every process runs the same steps, so its count of steps is a clock that all share. At agreed steps,
the *checkpoints*, each process reports to the leader (process 0); the leader decides from all
reports and publishes one decision, which names the next checkpoint. No process passes a checkpoint
without the decision made there, so no two of them ever run different programs, even if one of them
is far ahead (AutoCCL, Sec. 5.2: Coordinator and Executors; theirs broadcasts by a collective).

Reports and decisions use the key-value service that ``jax.distributed.initialize`` connects the
processes to; they use no device. A process that does not report in time ends the tuning of all with
the same error, which the leader publishes as the decision. If the leader itself ends, JAX ends the
others, since its service runs in process 0.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import jax

from jaxcoll import jax_internals
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune.training_step import State
from jaxcoll.tune.training_step.regression import Choice, TimedStep

TIMEOUT_SECONDS = 20.0
# Processes start, and compile their first step, at different speeds.
FIRST_TIMEOUT_SECONDS = 300.0

# All processes make their tuners in the same order, since they run the same program.
_number = itertools.count()


# ---------------------------------------------------------------------- messages


@dataclasses.dataclass(frozen=True)
class Message:
    """A message between processes, with values that JSON holds; lists come back as tuples."""

    def dumps(self) -> str:
        """The message as JSON text."""
        return json.dumps(self.to_json())

    @classmethod
    def loads(cls, text: str) -> Self:
        """The message that ``dumps`` has written."""
        return cls.from_json(_as_tuples(json.loads(text)))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON holds them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """The message with the fields of ``to_json``."""
        return cls(**fields)


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_tuples(each) for name, each in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True)
class Start(Message):
    """The leader's table and machine, by which all processes look tasks up; others send neither."""

    table: str = ""
    hardware: str = ""
    jax: str = ""


@dataclasses.dataclass(frozen=True)
class Progress(Message):
    """A process's report to the leader at a checkpoint.

    Attributes:
        is_ready: whether its background work is complete.
        has_failed: whether that work ended in an error.
        steps: the steps that were timed since the last checkpoint.
        candidates: the candidates of each task, once they are prepared; None is the default.
        refused: (task, candidate) positions that must not run.
        has_switch: whether one program holds all candidates.
    """

    is_ready: bool
    has_failed: bool = False
    steps: tuple[TimedStep, ...] = ()
    candidates: tuple[tuple[Task, tuple[Config | None, ...]], ...] = ()
    refused: tuple[tuple[int, int], ...] = ()
    has_switch: bool = False

    def to_json(self) -> dict[str, Any]:
        tasks = [
            (task.to_json(), [None if c is None else c.to_json() for c in configs])
            for task, configs in self.candidates
        ]
        return super().to_json() | {"candidates": tasks}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        candidates = tuple(
            (Task.from_json(task), tuple(None if c is None else Config(c) for c in configs))
            for task, configs in fields["candidates"]
        )
        steps = tuple(TimedStep(*step) for step in fields["steps"])
        whole: dict[str, Any] = {**fields, "candidates": candidates, "steps": steps}
        return cls(**whole)


@dataclasses.dataclass(frozen=True)
class Decision(Message):
    """The actions of all processes until the next checkpoint.

    Attributes:
        state: state of the tuner.
        program: "plain" or "switch".
        choices: a candidate per task for each step; the list is repeated.
        steps: number of steps until the next checkpoint.
        compile: choices to be compiled as plain programs meanwhile.
        compare: for each step in turn, the (task, candidate) pairs that all processes then compare
            with ``jax.lax`` together.
        chosen: the winner, if this message decides it.
    """

    state: State
    program: str
    choices: tuple[Choice, ...]
    steps: int
    compile: tuple[Choice, ...] = ()
    compare: tuple[tuple[tuple[int, int], ...], ...] = ()
    chosen: Choice | None = None

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        whole: dict[str, Any] = {**fields, "state": State(fields["state"])}
        return cls(**whole)


M = TypeVar("M", bound=Message)
D = TypeVar("D", bound=Message)


# ---------------------------------------------------------------------- coordinator


class Coordinator:
    """Connects the processes of a tuner: all that JAX has connected, or the only one.

    Args:
        timeout: seconds after which it is an error that a process does not report, or that a step
            does not end.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS):
        self._timeout = float(checks.positive(timeout, "timeout", TuneError))
        self._me, self._count = jax.process_index(), jax.process_count()
        self._prefix = f"jaxcoll/tune/{next(_number)}"
        self._checkpoint = 0

    @property
    def is_leader(self) -> bool:
        """Whether this process decides, that is, whether it is process 0."""
        return self._me == 0

    def exchange(
        self,
        mine: M,
        decide: Callable[[Sequence[M]], D],
        answer: type[D],
        seconds: float | None = None,
    ) -> D:
        """The leader's decision at this checkpoint, the same on all processes.

        Args:
            mine: the message of this process to the leader.
            decide: called on the leader alone, with the messages of all processes in their order.
            answer: the type that ``decide`` returns.
            seconds: time to wait for the others instead of the timeout.

        Raises:
            TuneError: on all processes, if one of them does not report in time, or runs another
                program; on those that wait for the leader, if it does not decide in time.
        """
        if self._count == 1:
            return decide([mine])
        turn, self._checkpoint = self._checkpoint, self._checkpoint + 1
        seconds = self._timeout if seconds is None else seconds
        if not self.is_leader:
            return answer.loads(self._followed(turn, mine, seconds))
        try:
            decision = decide(self._reports(turn, mine, seconds))
        except Exception as error:
            self._publish(turn, {"error": f"process 0 stopped tuning: {error}"})
            raise
        self._publish(turn, {"decision": decision.dumps()})
        if turn:  # all processes have passed the previous checkpoint
            jax_internals.discard(f"{self._prefix}/{turn - 1}/")
        return decision

    def wait(self, outputs: Any, what: str) -> None:
        """Block until arrays are computed.

        Raises:
            TuneError: they are not ready within the timeout, because another process stalls or
                ended.
        """
        if self._count == 1:
            jax.block_until_ready(outputs)
        elif not _ready_within(outputs, self._timeout):
            raise TuneError(
                f"{what} did not end within {self._timeout:g} s on process {self._me}: another "
                "process stalls or has ended"
            )

    def _followed(self, turn: int, mine: Message, seconds: float) -> str:
        """The leader's decision, as text."""
        jax_internals.publish(f"{self._prefix}/{turn}/{self._me}", mine.dumps())
        # The leader's own timeout ends first, and its error names the process that did not report.
        found = jax_internals.fetch(f"{self._prefix}/{turn}/decision", 1.25 * seconds)
        if found is None:
            raise TuneError(
                f"process 0 did not decide within {1.25 * seconds:g} s at checkpoint {turn} "
                f"of the tuner; process {self._me} waits for it"
            )
        message = json.loads(found)
        if "error" in message:
            raise TuneError(message["error"])
        return message["decision"]

    def _reports(self, turn: int, mine: M, seconds: float) -> list[M]:
        # One deadline for all, since one each could take hours with a thousand processes.
        reports, deadline = [mine], time.monotonic() + seconds
        for process in range(1, self._count):
            left = max(0.1, deadline - time.monotonic())
            found = jax_internals.fetch(f"{self._prefix}/{turn}/{process}", left)
            if found is None:
                raise TuneError(
                    f"process {process} did not report within {seconds:g} s at checkpoint "
                    f"{turn} of the tuner: it stalls or has ended"
                )
            reports.append(type(mine).loads(found))
        return reports

    def _publish(self, turn: int, envelope: dict[str, str]) -> None:
        jax_internals.publish(f"{self._prefix}/{turn}/decision", json.dumps(envelope))


def _ready_within(outputs: Any, seconds: float) -> bool:
    """Whether arrays are computed in time; errors of their computation are raised here."""
    raised: list[BaseException] = []

    def block() -> None:
        try:
            jax.block_until_ready(outputs)
        except BaseException as error:  # passed to the thread that waits
            raised.append(error)

    # A daemon, since a computation that waits for a process that has ended never returns.
    thread = threading.Thread(target=block, name="jaxcoll-tune-wait", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()
