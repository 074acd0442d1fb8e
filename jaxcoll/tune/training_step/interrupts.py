"""Signals during a step: handled when the caller has its results.

A step that donates its arguments leaves its caller with nothing but its results. A signal handler
that raises inside the step, as Ctrl-C does, would lose both, and leave a half-written note of the
step. So signals that come while a step runs and is noted are held, and handled just after it: when
the next step begins, or a moment later where none does. A second one of the same kind is
handled at once, for whoever does not want to wait.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# Those whose handlers may raise: of a terminal, alarms, and schedulers that end a job. To look for
# the handlers of all signals would take 60 us per step, these take 10.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1")
    if hasattr(signal, name)
)
# Until signals are sent again where no step begins: the caller stores the results meanwhile.
_DELAY_SECONDS = 0.05


class Held:
    """A context in which signals with handlers in Python wait; of no effect but in the main thread.

    Python runs handlers in the main thread alone.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self._timer: threading.Timer | None = None

    def deliver(self) -> None:
        """Handle the signals that were held; what their handlers raise is raised here."""
        if self._came and threading.current_thread() is threading.main_thread():
            if self._timer is not None:
                self._timer.cancel()
            self._send()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                # Others are left alone: without a handler, or handled outside of Python.
                if callable(handler := signal.getsignal(number)):
                    self._handlers[number] = handler
                    signal.signal(number, self._hold)
        except BaseException:  # by the handler of one that is not held yet
            self._restore()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        if self._came:
            self._timer = threading.Timer(_DELAY_SECONDS, self._send)
            self._timer.daemon = True
            self._timer.start()

    def _restore(self) -> None:
        try:
            while self._handlers:
                number = next(iter(self._handlers))
                signal.signal(number, self._handlers[number])
                del self._handlers[number]
        except BaseException:  # by a handler that was just restored
            self._restore()
            raise

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if number in self._came:
            self._handlers[number](number, frame)
        else:
            self._came.append(number)

    def _send(self) -> None:
        """Send the signals to the main thread again, which also ends a sleep there."""
        came, self._came = self._came, []
        for number in came:
            signal.pthread_kill(threading.main_thread().ident or 0, number)
