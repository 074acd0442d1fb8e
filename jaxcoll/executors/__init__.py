"""Independent work over any ``concurrent.futures.Executor``, in order, repeated where workers die.

Calls whose work is independent take ``executor=``: None for this process, or an executor of any
library: ``concurrent.futures.ProcessPoolExecutor``, ``mpi4py.futures.MPIPoolExecutor``,
``client.get_executor()`` of Dask. Results come in the order of the jobs and random choices are
seeded by job, so that the number of workers changes nothing but the time.

Dask repeats the jobs of a worker that died; MPI ends the whole program. A pool of processes is
broken by one that was killed, so its unfinished jobs go to a new pool of the same settings.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any, TypeVar

from jaxcoll.errors import JaxcollError, shown

__all__ = ["MOST_REPEATS", "MOST_WORKERS", "checked", "ordered", "processes", "with_workers"]

Job = TypeVar("Job")
Result = TypeVar("Result")

log = logging.getLogger(__name__)

# Pools that may break one after another without one job more being done.
MOST_REPEATS = 3
MOST_WORKERS = 1024


def checked(executor: object, error: type[JaxcollError]) -> Executor | None:
    """The argument ``executor=`` itself, once checked.

    Raises:
        error: neither None nor an executor.
    """
    if executor is None or isinstance(executor, Executor):
        return executor
    advice = "; for a Dask client give client.get_executor()"
    raise error(
        "executor must be a concurrent.futures.Executor, or None for this process, got "
        f"{shown(executor)}{advice if hasattr(executor, 'get_executor') else ''}"
    )


def ordered(
    function: Callable[[Job], Result], jobs: Iterable[Job], executor: Executor | None = None
) -> Iterator[Result]:
    """The result of a function for each job, in the order of the jobs, each once it is known.

    Args:
        function: a function of a module, which processes can import by name.
        jobs: values that can be pickled.
        executor: where it runs; this process when None, a job when its result is asked for.

    Raises:
        JaxcollError: no function, or no executor.
        BrokenExecutor: workers died ``MOST_REPEATS`` times in a row without a result between.
    """
    if not callable(function):
        raise JaxcollError(f"function must be a function of a job, got {shown(function)}")
    return _results(function, jobs, checked(executor, JaxcollError))


def _results(function, jobs: Iterable, executor: Executor | None) -> Iterator:
    if executor is None:
        yield from map(function, jobs)
        return
    todo = list(jobs)
    with contextlib.ExitStack() as own:
        work = _Submitted(function, todo, executor, own)
        for at in range(len(todo)):
            yield work.result(at)


class _Submitted:
    """Jobs that an executor has, and the pools that replaced broken ones."""

    def __init__(self, function, jobs: list, executor: Executor, own: contextlib.ExitStack):
        self._function, self._jobs, self._executor, self._own = function, jobs, executor, own
        self._futures: list[Future | None] = [None] * len(jobs)
        self._taken, self._done, self._deaths = 0, 0, 0
        # Whoever stops listening half-way leaves no jobs behind in a pool that is not ours to end.
        own.callback(self._cancel)
        self._submit(range(len(jobs)))

    def result(self, at: int):
        """The result of a job, which is then forgotten here: results may be large."""
        while True:
            future = self._futures[at]
            try:
                if future is not None:
                    found = future.result()
                    self._futures[at], self._taken = None, at + 1
                    return found
                raise BrokenExecutor("the pool broke before it took the job")
            except BrokenExecutor as error:
                self._repeat(error)

    def _submit(self, places: Iterable[int]) -> None:
        for at in places:
            try:
                self._futures[at] = self._executor.submit(self._function, self._jobs[at])
            except BrokenExecutor:  # a worker died meanwhile; found out when the result is due
                return

    def _repeat(self, error: BrokenExecutor) -> None:
        """Give what was not done to a new pool."""
        lost = [at for at in range(self._taken, len(self._jobs)) if not _is_done(self._futures[at])]
        done = len(self._jobs) - len(lost)
        # Deaths with results in between are bad luck; without any, the job itself may kill workers
        # (by memory, say), and would for ever.
        self._deaths = 1 if done > self._done else self._deaths + 1
        self._done = done
        if self._deaths > MOST_REPEATS or not isinstance(self._executor, ProcessPoolExecutor):
            raise BrokenExecutor(
                f"workers died {self._deaths} times without a result between; {len(lost)} jobs "
                f"were not done, the first is {shown(self._jobs[lost[0]])}"
            ) from error
        log.warning("a worker died; %d of %d jobs are repeated", len(lost), len(self._jobs))
        # A broken pool cannot be mended, and no public attribute says how it was made.
        pool: Any = self._executor
        settings = pool._max_workers, pool._mp_context, pool._initializer, pool._initargs
        self._executor = self._own.enter_context(_ended(ProcessPoolExecutor(*settings)))
        for at in lost:
            self._futures[at] = None
        self._submit(lost)

    def _cancel(self) -> None:
        for future in self._futures:
            if future is not None:
                future.cancel()


def _is_done(future: Future | None) -> bool:
    """Whether a job has an end of its own: a result, or an error that is not the pool's."""
    if future is None or not future.done() or future.cancelled():
        return False
    return not isinstance(future.exception(), BrokenExecutor)


@contextlib.contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes of which none is left behind: not by Ctrl-C, nor by a killed parent.

    They are spawned, not forked, for JAX does not survive a fork; so a script that
    calls this needs ``if __name__ == "__main__":``.

    Raises:
        JaxcollError: a number of workers below 1 or above ``MOST_WORKERS``.
    """
    if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
        raise JaxcollError(f"workers must be 1 to {MOST_WORKERS} processes, got {shown(workers)}")
    # Ctrl-C is sent to every process of a terminal: a worker that it ended would break the pool
    # before the parent has said what is to happen. A parent that is killed says nothing at all.
    context = multiprocessing.get_context("spawn")
    with _ended(ProcessPoolExecutor(workers, context, _follow_parent)) as pool:
        yield pool


@contextlib.contextmanager
def with_workers(workers: int) -> Iterator[Executor | None]:
    """What commands give for ``executor=``: None for one worker, else ``processes``."""
    if type(workers) is int and workers == 1:
        yield None
        return
    with processes(workers) as pool:
        yield pool


@contextlib.contextmanager
def _ended(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """A pool whose jobs are waited for at the end, and whose processes are ended after an error."""
    try:
        yield pool
    except BaseException:
        # Cancelling leaves the jobs that run: their processes would go on for hours after Ctrl-C.
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
        raise
    pool.shutdown(cancel_futures=True)


def _follow_parent() -> None:
    """End this worker with its parent, and leave Ctrl-C, which a terminal sends to both, to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
