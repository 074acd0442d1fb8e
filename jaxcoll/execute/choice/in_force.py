"""Which configuration a call runs by that names no schedule, while a program is traced.

A call without ``schedule=`` and ``lowering=`` is a task. While a program is traced inside
``choosing(choices)``, each such call asks ``choices`` how to run. ``choices`` belongs to the thread
that traces, and it is part of the key of every jit cache, so a program that was traced under other
choices, or under none, is never reused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Protocol

import jax

from jaxcoll import jax_internals
from jaxcoll.configurations import Task
from jaxcoll.execute.choice.stated import Place

# The values of a configuration, by the names of its parameters; ``None`` is the default.
Config = Mapping[str, Hashable]


class RunBy(Protocol):
    """Runs a call on an operand by a configuration. All configurations return the same type."""

    @property
    def place(self) -> Place:
        """The collective, on the network that is stated or known."""
        ...

    def __call__(self, x: jax.Array, config: Config | None, /) -> jax.Array: ...


class Choices(Protocol):
    """Decides how tasks run. Hashable: equal objects must decide equally."""

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result of running a task on an operand."""
        ...

    def __hash__(self) -> int: ...


class Fixed:
    """A configuration per task, compared by content; tasks not listed run by the default."""

    def __init__(self, configs: Mapping[Task, Config]):
        self.configs = dict(configs)
        self._key = frozenset((t, frozenset(c.items())) for t, c in self.configs.items())

    def run(self, task: Task, x: jax.Array, run_by: RunBy) -> jax.Array:
        """The result of running the task by its configuration."""
        return run_by(x, self.configs.get(task))

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Fixed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)


def current() -> Choices | None:
    """The choices under which this thread traces, if any."""
    return jax_internals.choices_context.value


@contextlib.contextmanager
def choosing(choices: Choices | None) -> Iterator[None]:
    """Trace under these choices; ``None`` restores the defaults."""
    with jax_internals.choices_context(choices):
        yield
