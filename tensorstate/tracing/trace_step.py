"""From a training step to its factor graph, with phases of operators and roles of tensors.

JAX's jaxpr is inlined, factors are propagated through it, tensors and operators are built, and
identical nodes of identical layers are put in one class. Phases and roles are read from the name
stacks that ``jax.grad`` leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import itertools
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
    Phase,
    Role,
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
    tensor_roles = roles(parts, phases_in_steps(parts, operators), updates, len(input_names))
    names = [*input_names, *(tensor.name for tensor in parts.tensors[len(input_names) :])]
    tensors = [
        dataclasses.replace(tensor, role=role, name=name, consumers=tuple(uses))
        for tensor, role, name, uses in zip(
            parts.tensors, tensor_roles, names, consumers, strict=True
        )
    ]
    return tensors, operators


# ---------------------------------------------------------------------- phases


def phases(tensors: Sequence[Tensor], operators: Sequence[Operator]) -> list[Phase]:
    """The phase of every operator.

    Operators that ``jax.grad`` differentiated, and all that they depend on (such as gradients
    inside of a loss), run in the forward pass. Of the others, those that it transposed or reran
    belong to the backward pass, and the remaining ones to the optimizer. All operators of a
    function without gradients run in the forward pass. A whole loop runs in one phase.
    """
    phase_of = _phases_by_stack(operators)
    if all(phase is None for phase in phase_of):
        return [*itertools.repeat("forward", len(phase_of))]
    bodies: dict[int, list[int]] = {}
    for i, operator in enumerate(operators):
        if operator.loops:
            bodies.setdefault(operator.loops[0], []).append(i)
    before = _before_the_loss(tensors, operators, phase_of, bodies)
    by_stack: list[Phase] = ["backward" if p == "backward" else "optimizer" for p in phase_of]
    for body in bodies.values():
        if not before[body[0]]:
            is_backward = any(phase_of[i] == "backward" for i in body)
            for i in body:
                by_stack[i] = "backward" if is_backward else "optimizer"
    return ["forward" if b else phase for b, phase in zip(before, by_stack, strict=True)]


def phases_in_steps(parts: GraphParts, operators: Sequence[Operator]) -> list[Phase]:
    """The phases of ``phases``; in loops over whole steps, of each operator within its step.

    Such a loop, as of an update by minibatches, has both passes in its body, and what follows them:
    which of its tensors are gradients, and which the optimizer's, is seen there alone.
    """
    phase_of, inside = _phases_by_stack(operators), dict[int, set[Phase | None]]()
    for operator, phase in zip(operators, phase_of, strict=True):
        for loop in operator.loops:
            inside.setdefault(loop, set()).add(phase)
    before = _before_the_loss(parts.tensors, operators, phase_of, {})
    of_steps: list[Phase] = []
    for operator, phase, is_before in zip(operators, phase_of, before, strict=True):
        if not any(inside[loop] >= {"forward", "backward"} for loop in operator.loops):
            of_steps.append(operator.phase)
        else:
            after: Phase = "backward" if phase == "backward" else "optimizer"
            of_steps.append("forward" if is_before else after)
    return of_steps


def _phases_by_stack(operators: Sequence[Operator]) -> list[Phase | None]:
    """Phases as ``jax.grad`` names them: f under jvp(f), its transposition under transpose()."""
    return [
        "backward"
        if o.eqn.remat_region is not None or "transpose(" in o.source.stack
        else ("forward" if "jvp(" in o.source.stack else None)
        for o in operators
    ]


def _before_the_loss(
    tensors: Sequence[Tensor],
    operators: Sequence[Operator],
    phase_of: Sequence[Phase | None],
    bodies: Mapping[int, Sequence[int]],
) -> list[bool]:
    """Whether the forward pass depends on each operator, or consists of it.

    Such operators are forward, whatever their stack says: of a penalty on the gradient of the
    input, the inner transposition runs before the outer loss is known.

    Args:
        bodies: by outermost loop the operators that run in one phase.
    """
    before = [phase == "forward" for phase in phase_of]
    pending, seen = [i for i, is_before in enumerate(before) if is_before], set[int]()
    while pending:
        operator = operators[pending.pop()]
        needed = [p for use in operator.operands if (p := tensors[use.tensor].producer) is not None]
        if operator.loops and operator.loops[0] not in seen:
            seen.add(operator.loops[0])
            needed += bodies.get(operator.loops[0], ())
        for p in needed:
            if not before[p]:
                before[p] = True
                pending.append(p)
    return before


def roles(
    parts: GraphParts, phase_of: Sequence[Phase], updates: Mapping[int, int], inputs: int
) -> list[Role]:
    """The role of every tensor.

    Parameters are updated and read by the model, or frozen.

    Args:
        parts: tensors, operators and results.
        phase_of: the phases of operators.
        updates: maps outputs to the inputs whose new values they are.
        inputs: the number of inputs, which are the first tensors; other tensors without a producer
            are constants.
    """
    tensors, operators = parts.tensors, parts.operators
    consumers: list[set[Phase]] = [set() for _ in tensors]
    for operator, phase in zip(operators, phase_of, strict=True):
        for use in operator.operands:
            consumers[use.tensor].add(phase)
    updated = set(updates.values())
    assigned: list[Role] = []
    for index, tensor in enumerate(tensors):
        if index < inputs:
            # An updated counter or random key is an input, because it has no gradient.
            dtype, role = tensor.dtype, "input"
            if index in updated and isinstance(dtype, np.dtype) and dtype.kind not in "biu":
                trained = not consumers[index].isdisjoint(("forward", "backward"))
                role = "parameter" if trained else "optimizer"
            assigned.append(role)
        elif tensor.producer is None:
            assigned.append("constant")
        elif not tensor.sizes:
            assigned.append("scalar/output")
        elif phase_of[tensor.producer] == "optimizer":
            assigned.append("optimizer")
        elif phase_of[tensor.producer] == "backward" and "optimizer" in consumers[index]:
            assigned.append("gradient")
        else:
            assigned.append("activation")
    for index in _moments_before_a_loss(parts, updates, assigned):
        assigned[index] = "optimizer"
    for index in _frozen(parts, phase_of, assigned, consumers):
        assigned[index] = "parameter"
    for output, updated_input in updates.items():
        result = parts.outputs[output].tensor
        if result is not None and tensors[result].producer is not None:
            assigned[result] = assigned[updated_input]
    return assigned


# What a parameter may go through before the model reads it.
_CASTS = frozenset({"convert_element_type", "slice", "reshape", "squeeze"})


def _moments_before_a_loss(
    parts: GraphParts, updates: Mapping[int, int], assigned: Sequence[Role]
) -> list[int]:
    """The optimizer's state among the parameters of a step of several losses.

    A critic that is updated before the loss of a generator reads it is updated in the forward pass
    of that loss, and so its moments are read there. But no loss is differentiated through what
    reads them; their new values depend on gradients; and all that reads them has their size, as
    nothing does that reads a bias of a network which only follows another.
    """
    tensors, operators = parts.tensors, parts.operators
    phase_of = _phases_by_stack(operators)
    of_gradients, in_model, read_otherwise = set[int](), set[int](), set[int]()
    for operator, phase in zip(operators, phase_of, strict=True):
        read = {use.tensor for use in operator.operands}
        if phase == "backward" or not of_gradients.isdisjoint(read):
            of_gradients.update(use.tensor for use in operator.results)
        if phase is not None:
            in_model |= read
        sizes = {tensors[use.tensor].dims for use in operator.results}
        if operator.kind != "elementwise":
            read_otherwise |= read
        else:
            read_otherwise |= {t for t in read if sizes != {tensors[t].dims}}
    for operator in reversed(operators):
        if operator.primitive in _CASTS and any(u.tensor in in_model for u in operator.results):
            in_model.update(use.tensor for use in operator.operands)
    return [
        tensor
        for output, tensor in updates.items()
        if assigned[tensor] == "parameter"
        and parts.outputs[output].tensor in of_gradients
        and tensor not in in_model | read_otherwise
    ]


def _frozen(
    parts: GraphParts,
    phase_of: Sequence[Phase],
    assigned: Sequence[Role],
    consumers: Sequence[set[Phase]],
) -> list[int]:
    """The inputs that are parameters although the step does not update them, as in LoRA.

    They have no batch dimension, and hold numbers that a gradient passes through, or 8-bit codes of
    such numbers. The batch is the first dimension of most other inputs. A dimension that parameters
    have too, or that a product of the forward pass sums over, is one of features; it is the batch
    only if no other dimension is left.
    """
    tensors = parts.tensors
    own = [
        i
        for i, role in enumerate(assigned)
        if role == "input" and tensors[i].dims and isinstance(tensors[i].dtype, np.dtype)
        if not consumers[i].isdisjoint(("forward", "backward"))
    ]
    trained = {f for i, role in enumerate(assigned) if role == "parameter" for f in tensors[i].dims}
    if not own or not trained:
        return []
    summed = {
        tensors[use.tensor].dims[use.labels.index(label)]
        for operator, phase in zip(parts.operators, phase_of, strict=True)
        if phase == "forward" and operator.kind in ("einsum", "window")
        for label in operator.reductions
        for use in operator.operands
        if label in use.labels
    }
    # For the factor of a first dimension: whether an input with it has indices, and the dimensions
    # of all inputs with it. In LoRA, tokens [batch, sequence] are indices; base weights [width,
    # hidden] are not, and products of the forward pass sum over their first factor.
    evidence: dict[int, list[int]] = {}
    for i in own:
        has_indices, dims = evidence.setdefault(tensors[i].dims[0], [0, 0])
        is_index = tensors[i].dtype.kind in "bi" and not _may_be_weight(tensors[i].dtype)
        evidence[tensors[i].dims[0]] = [has_indices or is_index, dims + len(tensors[i].dims)]
    batch = max(evidence, key=lambda f: (f not in trained, f not in summed, *evidence[f]))
    data = {i for i in own if batch in tensors[i].dims} | _shuffled(parts)
    is_feature = trained | summed
    multiplied = _multiplied(parts, phase_of, assigned)
    data |= {i for i in multiplied if tensors[i].dims[0] not in is_feature}
    return [i for i in own if i not in data and _may_be_weight(tensors[i].dtype)]


# What draws or sorts indices: ``jax.random.permutation`` does both.
_DRAWING = frozenset({"random_bits", "random_permutation", "threefry2x32", "sort"})


def _shuffled(parts: GraphParts) -> set[int]:
    """The tensors of which rows are taken by indices that were drawn or sorted: examples.

    Every such array has a first dimension of its own, since its rows are no longer those of others.
    Of an embedding rows are taken by tokens, which are given.
    """
    drawn, found = set[int](), set[int]()
    for operator in parts.operators:
        operands = [use.tensor for use in operator.operands]
        if operator.primitive in _DRAWING or not drawn.isdisjoint(operands):
            drawn.update(use.tensor for use in operator.results)
        if operator.kind == "gather" and not drawn.isdisjoint(operands[1:]):
            found.add(operands[0])
    return found


def _multiplied(parts: GraphParts, phase_of: Sequence[Phase], assigned: Sequence[Role]) -> set[int]:
    """The inputs whose rows are multiplied by a trained parameter: a model multiplies data so.

    Features of the nodes of a graph are such: no index or label has their first dimension, since
    rows are taken of them and added at nodes.
    """
    tensors = parts.tensors
    # For results that are computed element by element, or put beside others row by row as a
    # coordinate is beside a time, the inputs of their rows.
    made_of = {i: {i} for i, role in enumerate(assigned) if role in ("input", "parameter")}
    found = set[int]()
    for operator, phase in zip(parts.operators, phase_of, strict=True):
        operands = [(use, made_of.get(use.tensor, set())) for use in operator.operands]
        is_unary = operator.kind == "elementwise" and len(operator.operands) == 1
        if is_unary or operator.primitive == "concatenate":
            for result in operator.results:
                rows = (made for use, made in operands if use.labels[:1] == result.labels[:1])
                made_of[result.tensor] = set().union(*rows)
        if operator.kind != "einsum" or phase != "forward" or len(operands) != 2:
            continue
        for (use, inputs), (_, others) in (operands, operands[::-1]):
            is_kept = bool(use.labels) and all(use.labels[0] in r.labels for r in operator.results)
            if is_kept and any(assigned[i] == "parameter" for i in others):
                found |= {
                    i
                    for i in inputs
                    if assigned[i] == "input"
                    and tensors[i].dims[:1] == tensors[use.tensor].dims[:1]
                }
    return found


def _may_be_weight(dtype: Any) -> bool:
    """Whether an input of this dtype may be a parameter; wider integers are indices."""
    return dtype.kind not in "biu" or (dtype.kind in "iu" and dtype.itemsize == 1)
