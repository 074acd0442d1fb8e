"""From a training step to its factor graph, with phases of operators and roles of tensors.

JAX's jaxpr is inlined, factors are propagated through it, tensors and operators are built, and
identical nodes of identical layers are put in one class.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import (
    Consumer,
    Graph,
    LoopForm,
    Operator,
    Output,
    Tensor,
)
from tensorstate.ir.trace_context import OUTSIDE, TraceContext
from tensorstate.ir.trees import path_name
from tensorstate.tracing.build import GraphParts, build
from tensorstate.tracing.flat import drop_remat
from tensorstate.tracing.inline import inline
from tensorstate.tracing.new_values import leaf_difference, new_values
from tensorstate.tracing.node_classes import group_nodes
from tensorstate.tracing.padding import checked_sizes, pad_program
from tensorstate.tracing.phases import phases, phases_in_steps
from tensorstate.tracing.roles import roles
from tensorstate.tracing.step_jaxpr import StepJaxpr, step_jaxpr


def trace(
    step_fn: Callable[..., Any],
    abstract_args: Sequence[Any],
    *,
    updates: Mapping[int, int] | None = None,
    unknown: Literal["replicate", "refuse"] = "replicate",
    checkpoints: Literal["keep", "drop"] = "keep",
    constraints: Literal["keep", "drop"] = "keep",
    loops: LoopForm | int = "keep",
    pad_to: Mapping[int, int] | None = None,
) -> Graph:
    """Trace a training step, without running it, into its factor graph.

    Args:
        step_fn: any function that JAX can trace, of arrays and trees of them. Losses, gradients and
            optimizers are all found by tracing.
        abstract_args: its arguments: trees of arrays or of ``jax.ShapeDtypeStruct``. Nothing is
            computed with arrays, and nothing is allocated.
        updates: maps the number of a result to the number of the argument whose new value it is.
            By default the first result, or part of one, with the structure, shapes and dtypes of
            an argument that is computed from it element by element is its new value (see
            ``tensorstate.tracing.new_values``).
        unknown: the treatment of a primitive that has no rule, written or inferred: "replicate"
            runs it on full arrays on every device (see ``Graph.replicated``), "refuse" raises.
        checkpoints: the treatment of ``jax.checkpoint``: "keep" what it reruns in the backward
            pass, or "drop" it, so that only the search decides how tensors are kept.
        constraints: the treatment of shardings that the step asks for, by
            ``with_sharding_constraint``, ``reshard`` or ``out_sharding=``: "keep" them as pins of
            the value and of its gradient, or "drop" them, so that the search decides.
        loops: the treatment of ``lax.scan`` and ``lax.while_loop``: "keep" them, so that a body is
            traced and decided once; "pair" them too, so that the scan of the backward pass reads
            the tensors of the forward scan's body, which the search may keep in its own way; or
            "unroll" scans, so that every iteration has its own. An integer pairs and splits them,
            each into that number of runs of iterations that are decided as one: if a memory limit
            is between two plans of all layers, some runs are kept in another way. Stacked
            parameters and gradients are then copied once. All scans with ``checkpoints="drop"`` are
            unrolled, and short ones that accumulate gradients. Other scans over whole steps, with a
            backward pass in their body, are loops of the forward pass, whose tensors the search
            does not keep in its own way.
        pad_to: maps sizes of dimensions of arguments to larger ones, to which they are padded with
            zeros, so that mesh axes divide them: ``{50257: 50264}`` for a vocabulary on 8 devices.
            Added rows are masked wherever they would change a result.

    Raises:
        PlanError: the arguments are not arrays or do not fit the function; the function has side
            effects, its own collectives or data-dependent shapes, or returns nothing; a loop is too
            long to unroll; updates do not fit; a primitive without a rule is refused; or a
            dimension cannot be padded, with the line that mixes its rows.
    """
    checks.choice(unknown, ("refuse", "replicate"), "unknown", PlanError)
    checks.choice(checkpoints, ("keep", "drop"), "checkpoints", PlanError)
    checks.choice(constraints, ("keep", "drop"), "constraints", PlanError)
    runs = checks.integer(loops, "loops", PlanError, least=2) if isinstance(loops, int) else 1
    form = "pair" if isinstance(loops, int) else loops
    checks.choice(form, ("keep", "pair", "unroll"), "loops", PlanError)
    checks.optional(updates, checks.instance, Mapping, "updates", PlanError)
    sizes = checked_sizes(pad_to)
    options = _Options(updates, unknown, checkpoints, constraints, form, runs, sizes, strict=True)
    return _trace(step_fn, abstract_args, options)


class _Options(NamedTuple):
    """The options of ``trace``, and whether a dimension that cannot be padded is refused."""

    updates: Mapping[int, int] | None = None
    unknown: str = "replicate"
    checkpoints: str = "keep"
    constraints: str = "keep"
    loops: LoopForm = "keep"
    runs: int = 1
    pad_to: Mapping[int, int] = MappingProxyType({})
    strict: bool = False
    context: TraceContext | None = None


def _trace(step_fn: Callable[..., Any], abstract_args: Sequence[Any], options: _Options) -> Graph:
    checks.function(step_fn, "the step", PlanError)
    if not isinstance(abstract_args, (list, tuple)):
        raise PlanError(
            f"abstract_args must be a list of the step's arguments, got "
            f"{checks.shown(abstract_args)}"
        )

    def traced() -> Graph:
        step = step_jaxpr(step_fn, abstract_args, options.context)
        loops = options.loops if options.checkpoints == "keep" else "unroll"
        # Constants are computed on this machine, for any devices that the step is traced for.
        with OUTSIDE.entered():
            program = inline(step.closed, options.constraints == "keep", loops, options.runs)
            program = drop_remat(program) if options.checkpoints == "drop" else program
            names = _argument_names(step_fn, len(abstract_args))
            return _graph_of(step, names, options, program)

    # A separate call, whose garbage is freed before the collection that follows the pause.
    with _gc_paused():
        return traced()


def graph_of(
    step: Callable[..., Any] | Graph,
    abstract_args: Sequence[Any] | None,
    loops: LoopForm = "keep",
    pad_to: Mapping[int, int] = MappingProxyType({}),
    strict: bool = False,
    context: TraceContext | None = None,
) -> Graph:
    """The graph of a step that was traced earlier, or is traced now.

    Args:
        loops: as for ``trace``, if the step is traced now.
        pad_to: as for ``trace``, if the step is traced now.
        strict: whether a dimension that cannot be padded is refused, instead of left as it is.
        context: the context in which it is traced, with the types of its arguments; by default the
            present one.

    Raises:
        PlanError: arguments are given with a graph, or missing with a function, or as for
            ``trace``.
    """
    if isinstance(step, Graph):
        if abstract_args is not None:
            raise PlanError("a graph has its own arguments; do not give abstract_args with it")
        return step
    if abstract_args is None:
        raise PlanError(
            "abstract_args must be given with a step that is a function; give its arguments as a "
            "tuple of jax.ShapeDtypeStruct"
        )
    options = _Options(loops=loops, pad_to=pad_to, strict=strict, context=context)
    return _trace(step, abstract_args, options)


@contextlib.contextmanager
def _gc_paused():
    """Pause cyclic garbage collection, which takes three quarters of the time on a large graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _graph_of(step: StepJaxpr, names: Sequence[str], options: _Options, program) -> Graph:
    results = list(step.out_shape) if type(step.out_shape) is tuple else [step.out_shape]
    in_offsets, out_offsets = _leaf_offsets(step.shapes), _leaf_offsets(results)
    # For each leaf of the results, the leaf of the arguments whose new value it is.
    if options.updates is None:
        pairs = new_values(program, step.shapes, results)
    else:
        _check_updates(step, results, options.updates)
        pairs = {
            out_offsets[result] + i: in_offsets[arg] + i
            for result, arg in options.updates.items()
            for i in range(in_offsets[arg + 1] - in_offsets[arg])
        }
    leaf_names = _names(step.shapes, names), _names(step.out_shape, None)
    # Before ``build``, because masks are equations, whose operators the search shards and prices.
    padded = None
    if options.pad_to:
        padded = pad_program(program, options.pad_to, pairs, leaf_names)
        program = padded.program
    parts = build(program, options.unknown)
    changed = tuple(names[i] for i in step.changed)
    graph = _graph(parts, *leaf_names, pairs, program.constants, step, changed)
    if padded is None:
        return graph
    if options.strict:
        padded.check(options.pad_to)
    return dataclasses.replace(graph, padding=padded.padding(options.pad_to, graph.tensors))


# ---------------------------------------------------------------------- updates


def _check_updates(step: StepJaxpr, results, updates: Mapping[int, int]) -> None:
    """Refuse numbers of results whose leaves differ from those of the arguments.

    Raises:
        PlanError: a pair differs; the error names it.
    """
    args = step.shapes
    for result, arg in updates.items():
        for number in (result, arg):
            checks.integer(number, "a number in updates", PlanError)
        if not (0 <= result < len(results) and 0 <= arg < len(args)):
            raise PlanError(
                f"updates={dict(updates)} must map numbers of results to numbers of arguments, "
                f"counted from 0: the step has {len(args)} arguments and {len(results)} results"
            )
        if difference := leaf_difference(results[result], args[arg]):
            raise PlanError(
                f"updates={dict(updates)}: result {result} is not of the structure, shapes and "
                f"dtypes of argument {arg}: {difference}"
            )
    if len(set(updates.values())) < len(updates):
        raise PlanError(
            f"updates={dict(updates)}: two results update the same argument; name one of them"
        )


def _leaf_offsets(trees) -> list[int]:
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
        parts = [path_name((key,)) for key in path]
        if first is not None:
            parts[0] = first[int(parts[0])]
        names.append("/".join(parts) or "result")
    return names


# ---------------------------------------------------------------------- graph


def _graph(
    parts: GraphParts,
    input_names: Sequence[str],
    output_names: Sequence[str],
    updates: Mapping[int, int],
    constants: Sequence[tuple[Any, np.ndarray]],
    step: StepJaxpr,
    changed: tuple[str, ...],
) -> Graph:
    """Tensors and operators with their roles and phases, and the nodes that they form."""
    tensors, operators = _with_phases(parts, input_names, updates)
    outputs = tuple(
        Output(name, view, updates.get(i))
        for i, (name, view) in enumerate(zip(output_names, parts.outputs, strict=True))
    )
    nodes, node_classes, edges = group_nodes(tensors, operators, outputs, loops=parts.loops)
    first = len(input_names)
    return Graph(
        tensors=tuple(tensors),
        operators=tuple(operators),
        inputs=tuple(range(first)),
        constants=tuple((first + i, value) for i, (_, value) in enumerate(constants)),
        outputs=outputs,
        factors=parts.factors,
        nodes=nodes,
        node_classes=node_classes,
        edges=edges,
        in_tree=jax.tree.structure(step.shapes),
        out_tree=jax.tree.structure(step.out_shape),
        changed=changed,
        loops=parts.loops,
        context=step.context,
    )


def _with_phases(
    parts: GraphParts, input_names: Sequence[str], updates: Mapping[int, int]
) -> tuple[list[Tensor], list[Operator]]:
    """Tensors with roles, consumers and the names of inputs, and operators with phases."""
    in_order = phases(parts.tensors, parts.operators)
    operators = [
        operator if phase == operator.phase else dataclasses.replace(operator, phase=phase)
        for operator, phase in zip(parts.operators, in_order, strict=True)
    ]
    consumers: list[list[Consumer]] = [[] for _ in parts.tensors]
    for operator in operators:
        for k, use in enumerate(operator.operands):
            consumers[use.tensor].append(Consumer(operator.index, k, operator.phase))
    tensor_roles = roles(parts, phases_in_steps(parts, operators), updates, input_names)
    names = [*input_names, *(tensor.name for tensor in parts.tensors[len(input_names) :])]
    tensors = [
        dataclasses.replace(tensor, role=role, name=name, consumers=tuple(uses))
        for tensor, role, name, uses in zip(
            parts.tensors, tensor_roles, names, consumers, strict=True
        )
    ]
    return tensors, operators
