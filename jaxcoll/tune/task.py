"""The tasks of a program: found by tracing it once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import jax

from jaxcoll.configurations.task import Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import configured
from jaxcoll.numerics import checks

__all__ = ["Task", "tasks_of"]


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """A call of a task as a step contains it.

    Attributes:
        run_by: runs the call by a configuration.
        shape: of a rank's operand.
        mesh: names and sizes of the axes of the mesh around the call.
    """

    task: Task
    run_by: configured.RunBy
    shape: tuple[int, ...]
    mesh: tuple[tuple[str, int], ...]


class Recorder:
    """Runs every task by the default, counts its calls and notes the first of them."""

    def __init__(self) -> None:
        self.calls: collections.Counter[Task] = collections.Counter()
        self.found: dict[Task, Occurrence] = {}

    def run(self, task: Task, x: jax.Array, run_by: configured.RunBy) -> jax.Array:
        """The result by the default."""
        mesh = jax.sharding.get_abstract_mesh()
        sizes = tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        self.found.setdefault(task, Occurrence(task, run_by, x.shape, sizes))
        self.calls[task] += 1
        return run_by(x, None)


def tasks_of(step: Callable, *args, **kwargs) -> dict[Task, int]:
    """The tasks of a step and how often its program calls each, in the order of their first calls.

    Only calls that leave ``schedule=`` and ``lowering=`` open are tasks. A call in the body of a
    loop counts once.

    Args:
        step: a function that JAX can trace; if jitted, it stays so.
        args, kwargs: arrays or ``jax.ShapeDtypeStruct``; nothing is computed.

    Raises:
        TuneError: no function.
    """
    checks.function(step, "step", TuneError)
    recorder = Recorder()
    with configured.choosing(recorder):
        jax.eval_shape(step, *args, **kwargs)
    return dict(recorder.calls)
