"""The active configurations: how calls that leave their schedule open are run while tracing.

A call without ``schedule=`` and ``lowering=`` is a task. While a program is traced inside
``choosing(choices)``, each such call asks ``choices`` how to run. ``choices`` belongs to the thread
that traces, and it is part of the key of every jit cache: a program that was traced under other
choices, or under none, is never reused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Protocol

import jax

from jaxcoll.task import Task

# The values of a configuration by the names of its parameters (see ``configured``); ``None`` is
# the default.
Config = Mapping[str, Hashable]
# Runs the call on an operand by a configuration. All configurations return the same type.
RunBy = Callable[[jax.Array, Config | None], jax.Array]


class Choices(Protocol):
    """Decides how tasks run. Hashable: equal objects must decide equally."""

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result of a task on an operand."""
        ...

    def __hash__(self) -> int: ...


class Fixed:
    """A configuration per task, compared by content; tasks not listed run by the default."""

    def __init__(self, configs: Mapping[Task, Config]):
        self.configs = dict(configs)
        self._key = frozenset((t, frozenset(c.items())) for t, c in self.configs.items())

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result by the configuration of the task."""
        return run_by(x, self.configs.get(task))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Fixed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)


_active = jax.make_user_context(default_value=None)


def current() -> Choices | None:
    """The choices under which this thread traces, if any."""
    return _active.value


@contextlib.contextmanager
def choosing(choices: Choices | None) -> Iterator[None]:
    """Trace under these choices; ``None`` restores the defaults."""
    with _active(choices):
        yield
