"""A step compiled once with all candidates of all tasks, of which each call chooses.

It keeps the avals, shardings and donation of the jitted step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxcoll.configurations import Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.tune.training_step.background import compiled
from jaxcoll.tune.training_step.programs import Candidates, is_sharding
from jaxcoll.tune.training_step.regression import Choice

# The prefix of named scopes, which tell the task of an operation in a compiled program.
SCOPE = "jaxcoll.configurations"


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
        shardings = jax.tree.leaves(self._compiled.output_shardings, is_leaf=is_sharding)
        return max((len(s.addressable_devices) for s in shardings), default=1)

    @property
    def stages(self) -> tuple[Any, Any]:
        """The lowered and the compiled program."""
        return self._lowered, self._compiled

    def __call__(self, choice: Choice, args: tuple, kwargs: dict) -> Any:
        """The result of the step with one candidate per task."""
        leaves = jax.tree.leaves((args, kwargs))
        return self._compiled(tuple(np.int32(i) for i in choice), *leaves)
