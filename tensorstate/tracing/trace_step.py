"""From a training step to its factor graph."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from tensorstate.errors import PlanError
from tensorstate.ir.graph import Consumer, Graph, Operator, Output, Phase, Tensor
from tensorstate.tracing.build import Body, Operation, build
from tensorstate.tracing.flat_jaxpr import drop_remat
from tensorstate.tracing.inline import inline_and_unroll
from tensorstate.tracing.node_classes import group_nodes
from tensorstate.tracing.phases import phases, roles

_DATA_DEPENDENT = (
    jax.errors.ConcretizationTypeError,  # truth values and integers of arrays are such too
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)


def trace(
    step_fn: Callable[..., Any],
    abstract_args: Sequence[Any],
    *,
    updates: Mapping[int, int] | None = None,
    unknown: Literal["replicate", "refuse"] = "replicate",
    checkpoints: Literal["keep", "drop"] = "keep",
) -> Graph:
    """The factor graph of a training step, traced without running it.

    Args:
        step_fn: any function that JAX can trace, of arrays and trees of them. Losses, gradients and
            optimizers are all found by tracing.
        abstract_args: its arguments: trees of arrays or of ``jax.ShapeDtypeStruct``. Nothing is
            computed with arrays, and nothing is allocated.
        updates: for numbers of results, the number of the argument whose new value it is. Left
            out, the first result that has the structure, shapes and dtypes of an argument is its
            new value.
        unknown: what to do with a primitive that has no rule and for which none can be inferred:
            "replicate" it, which means to run it on whole arrays on every device (see
            ``Graph.replicated``), or "refuse" it.
        checkpoints: what to do with ``jax.checkpoint``: "keep" what it makes again in the backward
            pass, or "drop" that, so that the search alone decides what is made again.

    Raises:
        PlanError: for arguments that are no arrays or do not fit the function, a function with side
            effects, collectives of its own or shapes that depend on data, loops too long to
            unroll, updates that do not fit, and a primitive without a rule if those are refused.
    """
    if unknown not in ("refuse", "replicate"):
        raise PlanError(f"unknown={unknown!r}: expected 'refuse' or 'replicate'")
    if checkpoints not in ("keep", "drop"):
        raise PlanError(f"checkpoints={checkpoints!r}: expected 'keep' or 'drop'")
    with _uncollected():
        return _trace(step_fn, tuple(abstract_args), updates, unknown, checkpoints == "drop")


@contextlib.contextmanager
def _uncollected():
    """Without cyclic garbage collection, which would look at all of a large graph time and again.

    It takes three quarters of the time otherwise.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _trace(step_fn, args: tuple[Any, ...], updates, unknown: str, drop: bool) -> Graph:
    shapes = [jax.tree.map_with_path(_shape, arg) for arg in args]
    closed, out_shape = _jaxpr(step_fn, shapes)
    program = drop_remat(inline_and_unroll(closed)) if drop else inline_and_unroll(closed)
    body = build(program, unknown)

    in_tree = jax.tree.structure(tuple(shapes))
    out_tree = jax.tree.structure(out_shape)
    results = _elements(out_shape)
    pairs = _leaf_updates(shapes, results, _pairs(shapes, results, updates))
    return _graph(
        body,
        _names(tuple(shapes), _argument_names(step_fn, len(args))),
        _names(out_shape, None),
        pairs,
        [value for _, value in program.constants],
        in_tree,
        out_tree,
    )


def _shape(path, leaf) -> jax.ShapeDtypeStruct:
    try:
        aval = jax.typeof(leaf)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    except (TypeError, AttributeError):
        pass
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        name = _path(path) or "the argument itself"
        raise PlanError(
            f"an abstract argument has {leaf!r} at {name}, expected arrays or "
            "jax.ShapeDtypeStruct: close over what is no array"
        )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _jaxpr(step_fn, shapes):
    """The jaxpr of a function, and the shapes of what it returns."""
    try:
        return jax.make_jaxpr(step_fn, return_shape=True)(*shapes)
    except _DATA_DEPENDENT as error:
        raise PlanError(
            "the step's control flow or shapes depend on the values of its arguments, expected a "
            f"function that jax.jit can trace (use jnp.where, lax.cond or masks): {error}"
        ) from error
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise PlanError(
            f"the step has a collective of its own, which plans add themselves ({error}): write "
            "the step as for one device"
        ) from error
    except jax.errors.UnexpectedTracerError as error:
        raise PlanError(
            f"the step uses a value that an earlier trace left behind, expected a pure function: "
            f"{error}"
        ) from error
    except (TypeError, ValueError) as error:
        given = ", ".join(str(jax.tree.map(_described, shape)) for shape in shapes)
        raise PlanError(
            f"the step does not take these abstract arguments: {error} (given: {given[:500]})"
        ) from error


def _described(shape: jax.ShapeDtypeStruct) -> str:
    return f"{shape.dtype}{list(shape.shape)}"


# ---------------------------------------------------------------------- updates


def _elements(out_shape) -> list[Any]:
    """What a function returns, one after the other; one thing is one."""
    return list(out_shape) if type(out_shape) is tuple else [out_shape]


def _pairs(args, results, updates: Mapping[int, int] | None) -> dict[int, int]:
    """Of every result that is the new value of an argument, that argument."""
    if updates is None:
        return _found_pairs(args, results)
    for result, arg in updates.items():
        if not (0 <= result < len(results) and 0 <= arg < len(args)):
            raise PlanError(
                f"updates={dict(updates)}: the step has {len(args)} arguments and "
                f"{len(results)} results, counted from 0"
            )
        if not _alike(results[result], args[arg]):
            raise PlanError(
                f"updates={dict(updates)}: result {result} is not of the structure, shapes and "
                f"dtypes of argument {arg}: {_different(results[result], args[arg])}"
            )
    if len(set(updates.values())) < len(updates):
        raise PlanError(f"updates={dict(updates)}: two results update the same argument")
    return dict(updates)


def _found_pairs(args, results) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for i, arg in enumerate(args):
        if not jax.tree.leaves(arg):
            continue
        alike = (k for k, result in enumerate(results) if k not in pairs and _alike(result, arg))
        if (first := next(alike, None)) is not None:
            pairs[first] = i
    return pairs


def _alike(a, b) -> bool:
    return _different(a, b) is None


def _different(a, b) -> str | None:
    """The first difference of two trees, in words."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return "the structures differ"
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{_described(x)} is not {_described(y)} at {_path(path) or 'the top'}"
    return None


def _leaf_updates(args, results, pairs: Mapping[int, int]) -> dict[int, int]:
    """Of every leaf of the results that is the new value of a leaf of the arguments, that one."""
    in_starts, out_starts = _starts(args), _starts(results)
    return {
        out_starts[result] + i: in_starts[arg] + i
        for result, arg in pairs.items()
        for i in range(len(jax.tree.leaves(args[arg])))
    }


def _starts(trees) -> list[int]:
    return [0, *np.cumsum([len(jax.tree.leaves(tree)) for tree in trees]).tolist()]


# ---------------------------------------------------------------------- names


def _argument_names(step_fn, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(step_fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in parameters if p.kind in positional][:count]
    return names + [f"arg{i}" for i in range(len(names), count)]


def _names(tree, first: Sequence[str] | None) -> list[str]:
    """Paths of the leaves of a tree; ``first`` names its elements."""
    names = []
    for path, _ in jax.tree.leaves_with_path(tree):
        parts = [_path((key,)) for key in path]
        if first is not None:
            parts[0] = first[int(parts[0])]
        names.append("/".join(parts) or "result")
    return names


def _path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


# ---------------------------------------------------------------------- graph


def _graph(
    body: Body,
    input_names: Sequence[str],
    output_names: Sequence[str],
    updates: Mapping[int, int],
    constants: Sequence[np.ndarray],
    in_tree,
    out_tree,
) -> Graph:
    """Tensors and operators with their roles and phases, and the entities that they form."""
    when = phases(body)
    what = roles(body, when, body.outputs, updates, len(input_names))
    consumers: list[list[Consumer]] = [[] for _ in body.values]
    operators = []
    for index, (operation, phase) in enumerate(zip(body.operations, when, strict=True)):
        for k, use in enumerate(operation.operands):
            consumers[use.tensor].append(Consumer(index, k, phase))
        operators.append(_operator(index, operation, phase))
    tensors = []
    for index, value in enumerate(body.values):
        given = index < len(body.array_dims)
        name = input_names[index] if index < len(input_names) else f"t{index}"
        tensors.append(
            Tensor(
                index,
                value.dims,
                value.sizes,
                value.dtype,
                what[index],
                name,
                value.producer,
                value.result,
                tuple(consumers[index]),
                body.array_dims[index] if given else None,
            )
        )
    outputs = tuple(
        Output(name, view, updates.get(i))
        for i, (name, view) in enumerate(zip(output_names, body.outputs, strict=True))
    )
    nodes, node_classes, edges = group_nodes(tensors, operators, outputs)
    first = len(input_names)
    return Graph(
        tensors=tuple(tensors),
        operators=tuple(operators),
        inputs=tuple(range(first)),
        constants=tuple((first + i, value) for i, value in enumerate(constants)),
        outputs=outputs,
        factors=body.factors,
        nodes=nodes,
        node_classes=node_classes,
        edges=edges,
        in_tree=in_tree,
        out_tree=out_tree,
    )


def _operator(index: int, operation: Operation, phase: Phase) -> Operator:
    return Operator(
        index,
        operation.kind,
        operation.primitive,
        operation.sizes,
        operation.operands,
        operation.results,
        operation.reductions,
        operation.linear,
        operation.need_replication,
        operation.flops,
        phase,
        operation.source,
        operation.call,
    )
