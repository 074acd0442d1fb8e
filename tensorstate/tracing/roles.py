"""The roles of tensors: parameters, the optimizer's state, data, gradients and activations.

Nobody says which argument is which. Parameters are the arguments that the step updates from
gradients and the model reads; exceptions are found by the operators before and after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorstate.ir.graph import Operator, Phase, Role
from tensorstate.tracing.build import GraphParts
from tensorstate.tracing.phases import phases_by_stack


def roles(
    parts: GraphParts, phase_of: Sequence[Phase], updates: Mapping[int, int], names: Sequence[str]
) -> list[Role]:
    """The role of every tensor.

    Parameters are updated and read by the model, or frozen.

    Args:
        parts: tensors, operators and results.
        phase_of: the phases of operators.
        updates: maps outputs to the inputs whose new values they are.
        names: the paths of the inputs, which are the first tensors; other tensors without a
            producer are constants.
    """
    tensors, operators = parts.tensors, parts.operators
    consumers: list[set[Phase]] = [set() for _ in tensors]
    for operator, phase in zip(operators, phase_of, strict=True):
        for use in operator.operands:
            consumers[use.tensor].add(phase)
    updated = set(updates.values())
    assigned: list[Role] = []
    for index, tensor in enumerate(tensors):
        if index < len(names):
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
    for index in _unread(parts, updates, names, assigned):
        assigned[index] = "parameter"
    for index in _carried_data(parts, phase_of, updates, assigned):
        assigned[index] = "input"
    for index in set(_frozen(parts, phase_of, assigned, consumers)) - updated:
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
    phase_of, of_gradients = phases_by_stack(operators), _of_gradients(operators)
    in_model, read_otherwise = set[int](), set[int]()
    for operator, phase in zip(operators, phase_of, strict=True):
        read = {use.tensor for use in operator.operands}
        if phase is not None:
            in_model |= read
        sizes = {tensors[use.tensor].dims for use in operator.results}
        if operator.kind != "elementwise":
            read_otherwise |= read
        else:
            read_otherwise |= {t for t in read if sizes != {tensors[t].dims}}
    # JAX computes what no iteration of a scan changes before it, as the half of a weight, and then
    # without a phase. Unlike a new value of the critic it does not depend on gradients.
    for operator in reversed(operators):
        results = {use.tensor for use in operator.results}
        is_before = operator.kind == "elementwise" and results.isdisjoint(of_gradients)
        if (is_before or operator.primitive in _CASTS) and not results.isdisjoint(in_model):
            in_model.update(use.tensor for use in operator.operands)
    return [
        tensor
        for output, tensor in updates.items()
        if assigned[tensor] == "parameter"
        and parts.outputs[output].tensor in of_gradients
        and tensor not in in_model | read_otherwise
    ]


def _of_gradients(operators: Sequence[Operator]) -> set[int]:
    """The tensors that are computed from gradients, and these themselves."""
    found = set[int]()
    for operator, phase in zip(operators, phases_by_stack(operators), strict=True):
        if phase == "backward" or not found.isdisjoint(use.tensor for use in operator.operands):
            found.update(use.tensor for use in operator.results)
    return found


def _carried_data(
    parts: GraphParts,
    phase_of: Sequence[Phase],
    updates: Mapping[int, int],
    assigned: Sequence[Role],
) -> list[int]:
    """The inputs that a step updates without gradients and leaves to the next one as data.

    Parameters multiply their rows, as those of the states of simulated environments; or they have
    the batch, as the states of a recurrent network; or rows of them are overwritten, as of a
    replay buffer or of a queue of keys. An average of parameters or of activations is none of
    these.
    """
    of_gradients = _of_gradients(parts.operators)
    carried = {
        tensor: result
        for output, tensor in updates.items()
        if assigned[tensor] in ("parameter", "optimizer")
        and (result := parts.outputs[output].tensor) not in of_gradients
    }
    if not carried or not of_gradients:
        return []
    without: list[Role] = [*assigned]
    for tensor in carried:
        without[tensor] = "input"
    tensors, multiplied = parts.tensors, _multiplied(parts, phase_of, without)
    trained = {f for i, role in enumerate(without) if role == "parameter" for f in tensors[i].dims}
    given = {i for i, role in enumerate(without) if role == "input"} - set(updates.values())
    labels = {i for i in given if tensors[i].dims and not _may_be_weight(tensors[i].dtype)}
    batch = {tensors[i].dims[0] for i in labels | given & multiplied} - trained
    return sorted(
        i
        for i, result in carried.items()
        if i in multiplied or batch & {*tensors[i].dims} or _is_overwritten(parts, result, i)
    )


# What puts rows where others were, beside ``_CASTS``; no average is among them.
_MOVES = frozenset(
    {"concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "rev", "scatter"}
)


def _is_overwritten(parts: GraphParts, result: int | None, tensor: int) -> bool:
    """Whether a new value has elements of the old one, and others instead of the rest."""
    pending, seen, is_moved = [result], set[int](), False
    while pending:
        reached = pending.pop()
        if reached is None or reached in seen:
            continue
        seen.add(reached)
        producer = parts.tensors[reached].producer
        operator = None if producer is None else parts.operators[producer]
        if operator is not None and operator.primitive in _MOVES | _CASTS:
            is_moved = is_moved or operator.primitive in _MOVES
            pending += [use.tensor for use in operator.operands]
    return is_moved and tensor in seen


def _unread(
    parts: GraphParts, updates: Mapping[int, int], names: Sequence[str], assigned: Sequence[Role]
) -> list[int]:
    """The parameters that the optimizer alone reads, as those of a layer whose result nobody needs.

    Their new values are computed from moments, which do not depend on them; and most of the inputs
    beside them that the step updates are parameters.
    """
    tensors = parts.tensors
    state = {i: assigned[i] for i in updates.values() if assigned[i] in ("parameter", "optimizer")}
    made_of = {i: {i} for i in state}
    for operator in parts.operators:
        if operator.kind == "elementwise":
            made = (made_of.get(use.tensor, set()) for use in operator.operands)
            of_all = set().union(*made)
            made_of.update((use.tensor, of_all) for use in operator.results)
    results = {tensor: parts.outputs[output].tensor for output, tensor in updates.items()}
    read = {i: made_of.get(tensor, set()) for i, tensor in results.items() if tensor is not None}
    paths = {i: names[i].split("/") for i in state}

    def is_beside_parameters(tensor: int) -> bool:
        path = paths[tensor]
        for length in range(len(path) - 1, 0, -1):
            beside = [r for i, r in state.items() if paths[i][:length] == path[:length]]
            if "parameter" in beside:
                return 2 * beside.count("parameter") > len(beside)
        return False

    return [
        i
        for i, role in state.items()
        if role == "optimizer"
        and any(
            state[j] == "optimizer" and tensors[j].dims == tensors[i].dims and i not in read[j]
            for j in read.get(i, set()) - {i}
        )
        and is_beside_parameters(i)
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
    # A weight of each example, as a mask is, has the first dimension of its label or its features.
    labels = (i for i in own if not _may_be_weight(tensors[i].dtype))
    rows = {tensors[i].dims[0] for i in {*data, *labels}} - is_feature
    data |= {i for i in own if tensors[i].dims[0] in rows}
    return [i for i in own if i not in data and _may_be_weight(tensors[i].dtype)]


# What draws or sorts indices: ``jax.random.permutation`` does both.
DRAWING = frozenset({"random_bits", "random_permutation", "threefry2x32", "sort"})


def _shuffled(parts: GraphParts) -> set[int]:
    """The tensors of which rows are taken by indices that were drawn or sorted: examples.

    Every such array has a first dimension of its own, since its rows are no longer those of others.
    Of an embedding rows are taken by tokens, which are given.
    """
    drawn, found = set[int](), set[int]()
    for operator in parts.operators:
        operands = [use.tensor for use in operator.operands]
        if operator.primitive in DRAWING or not drawn.isdisjoint(operands):
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
        if is_unary or operator.primitive in ("concatenate", "carry_in"):
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
