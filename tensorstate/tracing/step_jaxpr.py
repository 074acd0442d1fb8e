"""Runs the user's function on abstract arguments, and explains errors in the user's terms.

A function may change an argument in place, as steps on ``flax.nnx`` models do. Under ``jax.jit``
such a change would be lost. Here the changed arguments become the first results of the step, as if
it had been written with ``nnx.split`` and ``nnx.merge``. A function that is written in this way
returns its changes itself, and its results are not extended. For a step under ``jax.jit`` or
``nnx.jit`` the function inside is used.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import linecache
import re
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType

from jaxcoll import jax_internals
from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.trace_context import TraceContext
from tensorstate.ir.trees import path_name
from tensorstate.tracing.new_values import shape_text

_DATA_DEPENDENT = (
    jax.errors.ConcretizationTypeError,  # also the base class for bool() and int() of tracers
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)
# Variables of ``flax.nnx`` that an evaluation changes, too.
_NOT_TRAINED = ("BatchStat", "Cache", "Intermediate", "Perturbation", "RngState")
_SHOWN = 4  # leaves of an argument in an error
_JAX = str(Path(jax.__file__).parent)

# Characters of a library's error that a refusal quotes.
_SAID = 110


class StepJaxpr(NamedTuple):
    """A traced function.

    Attributes:
        closed: its jaxpr.
        shapes: the abstract arguments, with ``jax.ShapeDtypeStruct`` for arrays.
        out_shape: the result, in the same form; a tuple that starts with the arguments changed in
            place.
        changed: numbers of the arguments that the function changes in place.
        context: the context in which it was traced.
    """

    closed: Any
    shapes: tuple[Any, ...]
    out_shape: Any
    changed: tuple[int, ...]
    context: TraceContext


def step_jaxpr(
    step_fn: Callable[..., Any], args: Sequence[Any], context: TraceContext | None = None
) -> StepJaxpr:
    """The jaxpr of a function of abstract arguments.

    Args:
        context: the context in which the function is traced, with the types of its arguments; that
            of the caller by default.

    Raises:
        PlanError: arguments are not arrays or do not fit; or the function returns nothing, stores
            values outside of it, has its own collectives, or has data-dependent control flow or
            shapes.
    """
    step_fn = unjitted(step_fn)
    shapes = tuple(jax.tree.map_with_path(_shape, arg) for arg in args)
    if context is None:
        context = TraceContext.here(shapes)
    else:
        shapes = context.typed(shapes)
    changed: list[int] = []

    # ``make_jaxpr`` unflattens the arguments, so ``pure`` has its own nnx objects: a change in
    # place appears as different leaves of these, and never reaches the caller's objects.
    def pure(*given):
        before = [jax.tree.leaves(arg) for arg in given]
        result = step_fn(*given)
        returned = set(map(id, jax.tree.leaves(result)))
        changed[:] = [i for i, arg in enumerate(given) if _is_lost(arg, before[i], returned)]
        if not changed:
            return result
        rest = () if result is None else result if type(result) is tuple else (result,)
        return (*(given[i] for i in changed), *rest)

    before = held_tracers(step_fn)
    known = frozenset(map(id, before.values()))
    with context.entered():
        closed, out_shape = _jaxpr(pure, shapes)
    for name, tracer in held_tracers(step_fn).items():
        if id(tracer) not in known:
            raise PlanError(
                f"the step stores a value in {name!r}, which is outside of it, expected a pure "
                "function: this happens once, as it is traced, and not in every step. Return the "
                "value instead"
            )
    if not jax.tree.leaves(out_shape):
        raise PlanError(
            "the step returns no array and changes no flax.nnx object among its arguments, so "
            "there is nothing to plan: return the new parameters, the new optimizer state and the "
            "loss. With nnx: def pure(state, batch): model, optimizer = nnx.merge(graphdef, "
            "state); step(model, optimizer, batch); return nnx.state((model, optimizer))"
        )
    return StepJaxpr(closed, shapes, out_shape, tuple(changed), context)


# ---------------------------------------------------------------------- arguments


def _shape(path, leaf) -> jax.ShapeDtypeStruct:
    try:
        aval = jax.typeof(leaf)
        return _struct(aval.shape, aval.dtype, getattr(aval, "sharding", None))
    except (TypeError, AttributeError, OverflowError):
        pass
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        name = path_name(path) or "the argument itself"
        remedy = "close over other values, as with functools.partial"
        if isinstance(leaf, _nnx_kinds("Pytree", "Object", "Variable")):
            remedy = "give its state, graphdef, state = nnx.split(model), and merge it in the step"
        raise PlanError(
            f"an abstract argument has {checks.shown(leaf)} at {name}, expected arrays or "
            f"jax.ShapeDtypeStruct: {remedy}"
        )
    return _struct(leaf.shape, leaf.dtype, getattr(leaf, "sharding", None))


def _struct(shape, dtype, sharding: Any) -> jax.ShapeDtypeStruct:
    """The type of an array; its sharding is part of it only under Explicit axes."""
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or AxisType.Explicit not in getattr(mesh, "axis_types", ()):
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _argument_text(argument: Any) -> str:
    """An argument in a few words: its type and some of its leaves, at any depth."""
    leaves = [shape_text(leaf) for leaf in jax.tree.leaves(argument)]
    if isinstance(argument, jax.ShapeDtypeStruct):
        return leaves[0]
    more = [f"and {len(leaves) - _SHOWN} more"] if len(leaves) > _SHOWN else []
    return f"{type(argument).__name__} of {', '.join(leaves[:_SHOWN] + more) or 'no arrays'}"


def _nnx_kinds(*names: str) -> tuple[type, ...]:
    """Classes of ``flax.nnx`` by name, if Flax is loaded and has them."""
    nnx = sys.modules.get("flax.nnx")
    return tuple(getattr(nnx, name) for name in names if hasattr(nnx, name))


def _is_lost(arg: Any, before: list[Any], returned: set[int]) -> bool:
    """Whether a step has changed an argument in place, and does not return its new value itself.

    Args:
        before: the leaves that the argument had.
        returned: identities of the leaves of the result.
    """
    pairs = itertools.zip_longest(jax.tree.leaves(arg), before)
    new = {id(x) for x, y in pairs if x is not y}
    if not new:
        return False
    # A model is changed for its caller, who loses everything that is not returned. A state, as from
    # ``nnx.split``, is changed because ``nnx.merge`` does not copy it: a step that returns a part
    # of it has chosen that part, and counters of random numbers change in every evaluation.
    if _holds(arg, "Pytree", "Object"):
        return not returned.issuperset(new)
    variables, kept = _nnx_kinds("Variable"), _nnx_kinds(*_NOT_TRAINED)
    trained = [
        node
        for node in jax.tree.leaves(arg, is_leaf=lambda node: isinstance(node, variables))
        if isinstance(node, variables) and not isinstance(node, kept)
    ]
    is_trained = not new.isdisjoint(map(id, jax.tree.leaves(trained)))
    return is_trained and returned.isdisjoint(new)


def _holds(tree: Any, *names: str) -> bool:
    """Whether a tree has objects of some classes of ``flax.nnx``."""
    kinds = _nnx_kinds(*names)
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kinds))
    return any(isinstance(node, kinds) for node in nodes)


# ---------------------------------------------------------------------- the call


def unjitted(step_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that ``jax.jit`` or ``nnx.jit`` runs.

    A step and its jitted form give the same plan. Within ``jax.jit`` a model that is changed in
    place is a copy, whose changes are lost; within ``nnx.jit`` everything seems changed.
    """
    nnx = sys.modules.get("flax.nnx")
    makers = (jax.jit,) if nnx is None else (jax.jit, nnx.jit)
    jitted = tuple(type(make(lambda: None)) for make in makers)
    while isinstance(step_fn, jitted):
        step_fn = step_fn.__wrapped__  # pyright: ignore[reportAttributeAccessIssue]
    return step_fn


def _jaxpr(function, shapes):
    """The jaxpr of a function, and the shapes of its results."""
    try:
        return jax.make_jaxpr(function, return_shape=True)(*shapes)
    except _DATA_DEPENDENT as error:
        raise PlanError(
            "the step's control flow or shapes depend on the values of its arguments, expected a "
            f"function that jax.jit can trace (use jnp.where, lax.cond or masks): {_cause(error)}"
        ) from error
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise PlanError(
            f"the step contains {_collective(error)}, which plans add themselves ({error}): write "
            "the step as for one device, with the mean over the whole batch"
        ) from error
    except jax.errors.UnexpectedTracerError as error:
        raise PlanError(
            f"the step uses a value that leaked from an earlier trace, expected a pure function: "
            f"{_cause(error)}"
        ) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(
            f"the step does not take these abstract arguments: {_cause(error)}; given: "
            f"{', '.join(map(_argument_text, shapes)):.100}"
        ) from error
    except Exception as error:
        # An error of JAX's Explicit axes or of Flax, which may not be installed.
        if type(error).__name__ == "ShardingTypeError":
            raise PlanError(
                f"the step does not fit the types of its arguments: {_cause(error)}"
            ) from error
        if type(error).__name__ != "TraceContextError":
            raise
        raise PlanError(
            f"the step changes a flax.nnx object that it closes over: pass it as an argument of "
            f"the step, as in step(model, optimizer, batch) ({_cause(error)})"
        ) from error


def _cause(error: Exception) -> str:
    """The beginning of a library's message, and the line of the user that called it."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _SAID else f"{text[: _SAID - 3]}..."
    of_user = [
        f"{file}:{line}"
        for file, line, _ in _frames(error.__traceback__)
        if not file.startswith(_folders())
    ]
    return f"{text} ({of_user[-1]})" if of_user else text


def _folders() -> tuple[str, ...]:
    """The folders of libraries, and of this package, whose lines say nothing about a step."""
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return str(Path(__file__).parents[1]), *installed


def _collective(error: NameError) -> str:
    """The collective whose axis has no name here, with the user's line that calls it.

    JAX removes its own frames from tracebacks by default; then the line itself names the function.
    """
    frames = [*_frames(error.__traceback__)]
    of_user = [k for k, (file, _, _) in enumerate(frames) if not file.startswith(_JAX)]
    if not of_user:
        return "a collective"
    file, line, _ = frames[of_user[-1]]
    called = re.search(r"\b(?:lax|jax)\.(\w+)\(", linecache.getline(file, line))
    inside = [name for _, _, name in frames[of_user[-1] + 1 :]]
    name = called[1] if called else next(iter(inside), "")
    return f"the collective {name!r} ({file}:{line})" if name else f"a collective ({file}:{line})"


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


# ---------------------------------------------------------------------- stored values


# The most values that are followed, nearest first: a step may reach a whole program, and 20,000
# values took a second per trace. A training script of Flax and Optax reaches some hundreds.
MAX_VALUES = 2_000

# Packages whose functions and objects never hold values of a step.
_LIBRARIES = frozenset(
    ("jax", "jaxlib", "numpy", "flax", "optax", "tensorstate", "jaxcoll", "builtins")
)
_LEAVES = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, jax.Array)


def held_tracers(step: Callable[..., Any]) -> dict[str, jax_internals.Tracer]:
    """Traced values that a step has stored outside of it, each with the expression that reads it.

    Tracing calls a step once, so a value that it stores is a tracer. A step reaches such places
    through the variables that it closes over, the globals that it names, the object whose method it
    is, and the functions that it calls in any of these ways. From there values are followed through
    containers and attributes of objects.
    """
    found: dict[str, jax_internals.Tracer] = {}
    pending = deque([("", step)])
    # References keep intermediate objects alive, so that no id is used twice.
    seen = dict[int, Any]()
    while pending and len(seen) < MAX_VALUES:
        name, value = pending.popleft()
        if isinstance(value, jax_internals.Tracer):
            found.setdefault(name, value)
        elif not isinstance(value, _LEAVES) and id(value) not in seen:
            seen[id(value)] = value
            pending.extend(_inside(name, value))
    return found


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The values that a value leads to, with expressions. It does not call code of its class."""
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
    """The variables of a function that are not local."""
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
