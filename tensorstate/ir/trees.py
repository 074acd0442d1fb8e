"""Trees of arguments and results, which are equal if their leaves have equal paths.

The structure of a state that a function creates, such as Flax's ``TrainState`` or an
``nnx.Optimizer``, contains functions of its optimizer, and each call creates new ones. JAX
considers two such states to have different structures, although their leaves correspond.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import Any

import jax
import numpy as np

from tensorstate.errors import PlanError


def path_name(path: Any) -> str:
    """The path of a leaf in a tree, with parts joined by slashes."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def first_difference(given: Any, wanted: Any) -> str | None:
    """The first leaf that only one of two trees has, in words; ``None`` if there is none."""
    if jax.tree.structure(given) == jax.tree.structure(wanted):
        return None
    ours, theirs = _paths(given), _paths(wanted)
    if ours == theirs:
        node, leaf = _other_node(jax.tree.structure(given), jax.tree.structure(wanted))
        name = path_name(ours[leaf]) if leaf < len(ours) else ""
        return None if node is None else f"has another {node:.60} around {name or 'the top'!r:.100}"
    missing = collections.Counter(theirs)
    missing.subtract(ours)
    for path in ours:
        if missing[path] < 0:
            return f"has a leaf {path_name(path) or 'at the top'!r:.100} that it should not"
    for path in theirs:
        if missing[path] > 0:
            return f"has no leaf {path_name(path) or 'at the top'!r:.100}"
    return "has its leaves in another order"


def as_planned(given: Any, wanted: Any, what: str) -> Any:
    """A tree with the leaves of the given one, in the structure of another.

    Args:
        wanted: a tree with that structure.
        what: the name of the tree in a refusal.

    Raises:
        PlanError: only one of the trees has some leaf; the error names the first one.
    """
    leaves, structure = jax.tree.flatten(given)
    planned = jax.tree.structure(wanted)
    if structure == planned:
        return given
    if (difference := first_difference(given, wanted)) is not None:
        raise PlanError(
            f"the tree of {what} {difference}, against the step as it was planned: give {what} as "
            "the step was searched with them, or search again"
        )
    return jax.tree.unflatten(planned, leaves)


def _other_node(given: Any, wanted: Any, leaf: int = 0) -> tuple[str | None, int]:
    """The name of the first node's type that differs, and the number of the first leaf in it."""
    ours, theirs = given.node_data(), wanted.node_data()
    if ours is None or theirs is None:
        return None, leaf
    if not _same(ours, theirs, set()):
        return ours[0].__name__, leaf
    for one, other in zip(given.children(), wanted.children(), strict=True):
        node, at = _other_node(one, other, leaf)
        if node is not None:
            return node, at
        leaf += one.num_leaves
    return None, leaf


def _same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether everything except the leaves is equal; functions are compared by name."""
    if a is b or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, types.FunctionType):
        return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)
    if isinstance(a, types.MethodType):
        return _same((a.__func__, a.__self__), (b.__func__, b.__self__), seen)
    if isinstance(a, functools.partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), seen)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return [*a] == [*b] and all(_same(x, b[key], seen) for key, x in a.items())
    if type(a).__eq__ is not object.__eq__:
        return bool(np.all(a == b))
    return hasattr(a, "__dict__") and _same(vars(a), vars(b), seen)


def _paths(tree: Any) -> list[Any]:
    return [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
