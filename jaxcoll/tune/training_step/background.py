"""Work on threads of low priority, while training goes on: compilers above all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from jaxcoll import jax_internals

# The niceness of background threads. Steps leave processor time to compilers while devices wait for
# each other, so a higher priority would slow the steps and hardly speed up the compilers.
_NICE = 19


class Background:
    """One piece of work on a thread of low priority, while training goes on.

    Args:
        work: the function to call.
        is_compiler: whether the work hardly runs Python, so that it can have the lowest priority
            without slowing any step.
    """

    def __init__(self, work: Callable[[], Any], is_compiler: bool = False):
        self._work, self._is_compiler = work, is_compiler
        self._settings = jax_internals.thread_settings()
        self.result: Any = None
        self.error: Exception | None = None
        # Not a daemon: if the interpreter ended while a compiler runs, the process would crash at
        # exit.
        self._thread = threading.Thread(target=self._run, name="jaxcoll-tune")
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the work has ended, with or without an error."""
        return not self._thread.is_alive()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the work ends, at most for some seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        lower_priority(self._is_compiler)
        try:
            with self._settings():
                self.result = self._work()
        except Exception as error:  # reported by the caller that asks for the result
            self.error = error


def compiled(lowered: Any) -> Any:
    """Compile a lowered program at the lowest priority."""
    work = Background(lowered.compile, is_compiler=True)
    work.join()
    if work.error is not None:
        raise work.error
    return work.result


def lower_priority(is_compiler: bool = False) -> None:
    """Lower the priority of this thread where the system has priorities per thread (Linux).

    Compilers run only when a processor is idle otherwise. Threads that run Python must not have
    that lowest priority: they hold the interpreter's lock, and on a busy machine a step would wait
    for it.
    """
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, _NICE)
        if is_compiler:
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):
        return
