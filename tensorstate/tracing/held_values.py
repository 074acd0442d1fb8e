"""Traced values that a step has stored outside of it, each by the expression that reads it.

Tracing calls a step once, so a value that it stores is stored once, and is a tracer. A step reaches
such a place through the variables that it closes over, the globals that it names, the object whose
method it is, and the functions that it calls by any of these. From there values are followed
through containers and attributes of objects.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

# Values that are followed at most, nearest first: a step may reach a whole program, and 20,000
# values took a second per trace. A training script of Flax and Optax reaches some hundreds.
MAX_VALUES = 2_000

# Packages whose functions and objects hold nothing of a step.
_LIBRARIES = frozenset(
    ("jax", "jaxlib", "numpy", "flax", "optax", "tensorstate", "jaxcoll", "builtins")
)
_LEAVES = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, jax.Array)


def held_tracers(step: Callable[..., Any]) -> dict[str, Tracer]:
    """By expression the traced values that a step can reach."""
    found: dict[str, Tracer] = {}
    pending = deque([("", step)])
    # References keep what is made on the way alive, so that no number is given twice.
    seen = dict[int, Any]()
    while pending and len(seen) < MAX_VALUES:
        name, value = pending.popleft()
        if isinstance(value, Tracer):
            found.setdefault(name, value)
        elif not isinstance(value, _LEAVES) and id(value) not in seen:
            seen[id(value)] = value
            pending.extend(_inside(name, value))
    return found


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values that a value leads to, with expressions. No code of its class is called."""
    if isinstance(value, functools.partial):
        yield from ((name, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield name.rpartition(".")[0] or "self", value.__self__
        yield name, value.__func__
    elif isinstance(value, types.FunctionType):
        if not _is_library(value):
            yield from _variables(value)
            yield from ((f"{value.__name__}.{key}", x) for key, x in list(vars(value).items()))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((f"{name}[{k}]", item) for k, item in enumerate(list(value)))
    elif isinstance(value, type):
        if not _is_library(value):
            yield from (
                (f"{value.__name__}.{key}", item) for key, item in list(vars(value).items())
            )
    elif inspect.getattr_static(value, "__wrapped__", None) is not None:  # jax.jit
        yield name, value.__wrapped__
    elif not isinstance(value, types.ModuleType) and not _is_library(type(value)):
        yield from ((f"{name or 'self'}.{key}", item) for key, item in _attributes(value))
        yield from ((kind.__name__, kind) for kind in type(value).__mro__)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of a function that are not its own."""
    code, known = function.__code__, function.__globals__
    yield from ((name, known[name]) for name in code.co_names if name in known)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # still empty
            yield name, cell.cell_contents


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes that an object stores, in a dictionary or in slots."""
    for kind in type(value).__mro__:
        for key, member in vars(kind).items():
            is_slot = isinstance(member, types.MemberDescriptorType)
            if key == "__dict__" and (is_slot or isinstance(member, types.GetSetDescriptorType)):
                yield from list(member.__get__(value).items())
            elif is_slot:
                with contextlib.suppress(AttributeError):  # not set
                    yield key, member.__get__(value)


def _is_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) or "builtins"
    return module.partition(".")[0] in _LIBRARIES
