"""Processes: one of them decides, and all of them act on the same decision at the same step.

Every process runs the same steps, so its count of steps is a clock that all share. At agreed steps,
the *checkpoints*, each process reports to the leader (process 0); the leader decides from all
reports and publishes one decision, which names the next checkpoint. No process passes a checkpoint
without the decision made there, so no two of them ever run different programs, however far one of
them is ahead (AutoCCL, Sec. 5.2: Coordinator and Executors; theirs broadcasts by a collective).

Reports and decisions go through the key-value service that ``jax.distributed.initialize`` connects
the processes to; they use no device. A process that does not report in time ends the tuning of all
with the same error, which the leader publishes as the decision. Where the leader itself ends, JAX
ends the others, since its service runs in process 0.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax

from jaxcoll.errors import TuneError
from jaxcoll.execute import jax_internals
from jaxcoll.numerics import checks

TIMEOUT_SECONDS = 20.0
# Processes start, and compile their first step, at different speeds.
FIRST_TIMEOUT_SECONDS = 300.0

Message = dict[str, Any]  # a JSON object
Decide = Callable[[list[Message]], Message]

# All processes make their tuners in the same order, since they run the same program.
_number = itertools.count()


class Coordinator(Protocol):
    """Joins the processes of a tuner."""

    @property
    def is_leader(self) -> bool:
        """Whether this process decides."""
        ...

    def exchange(self, report: Message, decide: Decide, seconds: float | None = None) -> Message:
        """The decision at this checkpoint, the same on all processes.

        Args:
            report: what this process tells the leader.
            decide: called on the leader alone, with the reports of all processes in their order.
            seconds: to wait for the others instead of the timeout.
        """
        ...

    def wait(self, outputs: Any, what: str) -> None:
        """Blocks until arrays are computed."""
        ...


class Alone:
    """The coordinator of a program in one process."""

    is_leader = True

    def exchange(self, report: Message, decide: Decide, seconds: float | None = None) -> Message:
        """What this process decides."""
        return decide([report])

    def wait(self, outputs: Any, what: str) -> None:
        """Blocks until arrays are computed."""
        jax.block_until_ready(outputs)


class Connected:
    """The coordinator of several processes; see the module.

    Args:
        timeout: seconds after which a process that does not report, or a step that does not end,
            is an error.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS):
        self._timeout = float(checks.positive(timeout, "timeout", TuneError))
        self._me, self._count = jax.process_index(), jax.process_count()
        self._prefix = f"jaxcoll/tune/{next(_number)}"
        self._checkpoint = 0

    @property
    def is_leader(self) -> bool:
        """Whether this is process 0."""
        return self._me == 0

    def exchange(self, report: Message, decide: Decide, seconds: float | None = None) -> Message:
        """The leader's decision from the reports of all processes.

        Raises:
            TuneError: on all processes, when one of them does not report in time, or is in another
                program; on those that wait for the leader, when it does not decide in time.
        """
        turn, self._checkpoint = self._checkpoint, self._checkpoint + 1
        seconds = self._timeout if seconds is None else seconds
        if not self.is_leader:
            return self._follow(turn, report, seconds)
        try:
            decision = decide(self._reports(turn, report, seconds))
        except Exception as error:
            self._publish(turn, {"error": f"process 0 stopped tuning: {error}"})
            raise
        self._publish(turn, {"decision": decision})
        self._forget(turn - 1)
        return decision

    def wait(self, outputs: Any, what: str) -> None:
        """Blocks until arrays are computed.

        Raises:
            TuneError: they are not within the timeout, since another process stalls or ended.
        """
        if not _ready_within(outputs, self._timeout):
            raise TuneError(
                f"{what} did not end within {self._timeout:g} s on process {self._me}: another "
                "process stalls or has ended"
            )

    # ------------------------------------------------------------------ messages

    def _follow(self, turn: int, report: Message, seconds: float) -> Message:
        jax_internals.publish(f"{self._prefix}/{turn}/{self._me}", json.dumps(report))
        # The leader's own timeout ends first, and its error says which process did not report.
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

    def _reports(self, turn: int, mine: Message, seconds: float) -> list[Message]:
        reports, deadline = [mine], time.monotonic() + seconds
        for process in range(1, self._count):
            left = max(0.1, deadline - time.monotonic())
            found = jax_internals.fetch(f"{self._prefix}/{turn}/{process}", left)
            if found is None:
                raise TuneError(
                    f"process {process} did not report within {seconds:g} s at checkpoint "
                    f"{turn} of the tuner: it stalls or has ended"
                )
            reports.append(json.loads(found))
        return reports

    def _publish(self, turn: int, message: Message) -> None:
        jax_internals.publish(f"{self._prefix}/{turn}/decision", json.dumps(message))

    def _forget(self, turn: int) -> None:
        """Deletes the messages of a checkpoint that all processes have passed."""
        if turn >= 0:
            jax_internals.discard(f"{self._prefix}/{turn}/")


def coordinator(timeout: float = TIMEOUT_SECONDS) -> Coordinator:
    """The coordinator of this program: of one process, or of all that JAX has connected."""
    return Connected(timeout) if jax.process_count() > 1 else Alone()


def _ready_within(outputs: Any, seconds: float) -> bool:
    """Whether arrays are computed in time; what their computation raises is raised here."""
    raised: list[BaseException] = []

    def block() -> None:
        try:
            jax.block_until_ready(outputs)
        except BaseException as error:  # handed to the thread that waits
            raised.append(error)

    # A daemon, since a computation that waits for a process that has ended never returns.
    thread = threading.Thread(target=block, name="jaxcoll-tune-wait", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()
