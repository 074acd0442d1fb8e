"""Programs of a step: one with all candidates, or plain ones with one candidate per task.

All of them keep the avals, shardings and donation of the jitted step. The plain programs are the
step's own jit, traced under other choices, so they also keep its signature.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.tune.training_step.regression import Choice

# The niceness of background threads. Steps leave processor time to compilers while devices wait for
# each other, so a higher priority would slow the steps and hardly speed up the compilers.
_NICE = 19

# The prefix of named scopes, which tell the task of an operation in a compiled program.
SCOPE = "jaxcoll.configurations"

# The candidates of each task; None is the default configuration.
Candidates = Mapping[Task, Sequence[Config | None]]


def abstract(tree: Any) -> Any:
    """The types of arguments, with shardings for committed arrays; other leaves are unchanged."""
    return jax.tree.map(_abstract, tree)


def signature(args: tuple, kwargs: dict) -> tuple:
    """The structure and types that a program is compiled for, from arrays or ``abstract`` ones."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    types = []
    for leaf in leaves:
        # An array that is not committed goes wherever the program runs.
        is_free = isinstance(leaf, jax.Array) and not leaf.committed
        sharding = None if is_free else getattr(leaf, "sharding", None)
        dtype = str(getattr(leaf, "dtype", type(leaf)))
        types.append((getattr(leaf, "shape", ()), dtype, sharding))
    return structure, types


def is_traced(tree: Any) -> bool:
    """Whether some leaf belongs to a program that is being traced."""
    return any(isinstance(leaf, jax_internals.Tracer) for leaf in jax.tree.leaves(tree))


def _abstract(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    sharding = leaf.sharding if leaf.committed else None
    return jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding, weak_type=jax.typeof(leaf).weak_type
    )


def choices_of(
    candidates: Candidates, choice: Choice, base: in_force.Choices | None = None
) -> in_force.Choices | None:
    """The choices under which a step runs one candidate per task; other tasks run by ``base``."""
    chosen = zip(candidates.items(), choice, strict=True)
    fixed = {task: configs[i] for (task, configs), i in chosen if configs[i] is not None}
    return Layered(fixed, base) if fixed else base  # type: ignore[arg-type]


class Layered(in_force.Fixed):
    """A configuration per task; tasks not listed run by other choices, or by the default."""

    def __init__(self, configs: Mapping[Task, Config], base: in_force.Choices | None = None):
        super().__init__(configs)
        self._base = base

    def run(self, task: Task, x: jax.Array, run_by: in_force.RunBy) -> jax.Array:
        """The result of running the task by its configuration."""
        if task in self.configs or self._base is None:
            return super().run(task, x, run_by)
        return self._base.run(task, x, run_by)

    def __eq__(self, other: object) -> bool:
        is_layered = isinstance(other, Layered)
        return is_layered and (self._key, self._base) == (other._key, other._base)

    def __hash__(self) -> int:
        return hash((self._key, self._base))


def compile_plain(
    step: Any, choices: in_force.Choices | None, args: tuple, kwargs: dict
) -> tuple[Any, Any]:
    """Compile the step under choices, so that its next call under them compiles nothing.

    Returns:
        The lowered and the compiled program.
    """
    with in_force.choosing(choices):
        lowered = step.lower(*args, **kwargs)
        return lowered, compiled(lowered)


def check_same(step: Any, found: Any, args: tuple, kwargs: dict, what: str) -> None:
    """Refuse a program whose results differ from the step's in structure, avals or shardings.

    Raises:
        TuneError: a result differs; the text names it.
    """
    lowered, compiled = compile_plain(step, in_force.current(), args, kwargs)
    same_lowered, same_compiled = found
    infos = [jax.tree.flatten_with_path(low.out_info) for low in (lowered, same_lowered)]
    if infos[0][1] != infos[1][1]:
        raise TuneError(f"{what} changes the structure of the results; it must return the same")
    shardings = (
        jax.tree.leaves(c.output_shardings, is_leaf=_is_sharding) for c in (compiled, same_compiled)
    )
    for (path, a), (_, b), s, t in zip(infos[0][0], infos[1][0], *shardings, strict=True):
        same = (a.shape, a.dtype) == (b.shape, b.dtype) and s.is_equivalent_to(t, len(a.shape))
        if not same:
            raise TuneError(
                f"{what} changes the result {jax.tree_util.keystr(path)} from {a.dtype}{a.shape} "
                f"with {s} to {b.dtype}{b.shape} with {t}"
            )


def _is_sharding(value: Any) -> bool:
    return isinstance(value, jax.sharding.Sharding)


# ---------------------------------------------------------------------- all candidates


class _Switched:
    """Runs every task by the candidate whose number is an operand of the program."""

    def __init__(
        self,
        candidates: Candidates,
        which: Sequence[jax.Array],
        base: in_force.Choices | None,
    ):
        self._base = base
        self._branches = {
            task: (index, configs, f"{SCOPE}{position}")
            for position, ((task, configs), index) in enumerate(
                zip(candidates.items(), which, strict=True)
            )
        }

    def run(self, task: Task, x: jax.Array, run_by: in_force.RunBy) -> jax.Array:
        if task not in self._branches:
            return run_by(x, None) if self._base is None else self._base.run(task, x, run_by)
        index, configs, name = self._branches[task]
        branches = [lambda x, config=config: run_by(x, config) for config in configs]
        with jax.named_scope(name):
            return lax.switch(index, branches, x)

    def forget(self) -> None:
        """Drop the tracers, since caches of JAX keep this object as a key."""
        self._branches = {}


class SwitchProgram:
    """A step compiled once with all candidates of all tasks; operands of each call choose.

    Args:
        step: a jitted function.
        candidates: the candidates of each task.
        args, kwargs: types of the arguments, as returned by ``abstract``.

    Raises:
        TuneError: the step has static arguments, so that one program cannot hold all candidates.
    """

    def __init__(self, step: Any, candidates: Candidates, args: tuple, kwargs: dict):
        default = step.lower(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        infos = jax.tree.leaves(default.args_info)
        if len(infos) != len(leaves):
            raise TuneError("the step has static arguments; its candidates are compiled one by one")
        donated = [1 + i for i, info in enumerate(infos) if info.donated]

        base = in_force.current()

        # The operands are the candidates' numbers, followed by the step's own leaves. So one
        # compilation serves every choice, and donated leaves are one place further on.
        def traced(which, *flat):
            args, kwargs = jax.tree.unflatten(structure, flat)
            choices = _Switched(candidates, which, base)
            try:
                with in_force.choosing(choices):
                    return step(*args, **kwargs)
            finally:
                choices.forget()

        # XLA would choose shardings of results for this program; those of the step must be kept.
        shardings = compiled(default).output_shardings
        switched = jax.jit(traced, donate_argnums=donated, out_shardings=shardings)
        self._lowered = switched.lower(tuple(np.int32(0) for _ in candidates), *leaves)
        self._compiled = compiled(self._lowered)

    @property
    def local_devices(self) -> int:
        """Number of devices of this process that run the program."""
        shardings = jax.tree.leaves(self._compiled.output_shardings, is_leaf=_is_sharding)
        return max((len(s.addressable_devices) for s in shardings), default=1)

    @property
    def stages(self) -> tuple[Any, Any]:
        """The lowered and the compiled program."""
        return self._lowered, self._compiled

    def __call__(self, choice: Choice, args: tuple, kwargs: dict) -> Any:
        """The result of the step with one candidate per task."""
        leaves = jax.tree.leaves((args, kwargs))
        return self._compiled(tuple(np.int32(i) for i in choice), *leaves)


# ---------------------------------------------------------------------- in the background


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
