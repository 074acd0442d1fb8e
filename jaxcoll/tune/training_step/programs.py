"""A step under other choices: its own jit, traced again with one candidate per task.

So these programs keep the signature, avals, shardings and donation of the step. ``switch_program``
has one program for all candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxcoll import jax_internals
from jaxcoll.configurations import Config, Task
from jaxcoll.errors import TuneError
from jaxcoll.execute.choice import in_force
from jaxcoll.tune.training_step.background import compiled
from jaxcoll.tune.training_step.regression import Choice

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
        jax.tree.leaves(c.output_shardings, is_leaf=is_sharding) for c in (compiled, same_compiled)
    )
    for (path, a), (_, b), s, t in zip(infos[0][0], infos[1][0], *shardings, strict=True):
        same = (a.shape, a.dtype) == (b.shape, b.dtype) and s.is_equivalent_to(t, len(a.shape))
        if not same:
            raise TuneError(
                f"{what} changes the result {jax.tree_util.keystr(path)} from {a.dtype}{a.shape} "
                f"with {s} to {b.dtype}{b.shape} with {t}"
            )


def is_sharding(value: Any) -> bool:
    return isinstance(value, jax.sharding.Sharding)
