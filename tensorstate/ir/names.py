"""Tensors in the names of the model, for messages: results are named after their inputs."""

from __future__ import annotations

from tensorstate.ir.graph import Graph


def described(graph: Graph, tensor: int) -> str:
    """A tensor in the model's names: of a result, by the nearest input that it comes from.

    A gradient is named after the parameter that it updates, another result after the nearest
    parameter, or else argument, that it is computed from: "dot_general after params/up".
    """
    found = graph.tensors[tensor]
    if found.producer is None:
        return found.name
    updated = _updated_input(graph, tensor) if found.role == "gradient" else None
    if updated is not None:
        return f"gradient of {updated}"
    producer = graph.operators[found.producer]
    what = (
        f"gradient at {producer.primitive}" if producer.phase == "backward" else producer.primitive
    )
    nearest = _nearest_input(graph, tensor)
    return what if nearest is None else f"{what} after {nearest}"


def _updated_input(graph: Graph, tensor: int) -> str | None:
    """The input whose new value is computed from a tensor by the fewest operators."""
    updates = {
        output.view.tensor: graph.tensors[graph.inputs[output.updates]]
        for output in graph.outputs
        if output.updates is not None
    }
    pending, seen = [tensor], {tensor}
    for current in pending:  # grows while it is read
        input_tensor = updates.get(current)
        if input_tensor is not None and input_tensor.role == "parameter":
            return input_tensor.name
        for consumer in graph.tensors[current].consumers:
            for use in graph.operators[consumer.operator].results:
                if use.tensor not in seen:
                    seen.add(use.tensor)
                    pending.append(use.tensor)
    return None


def _nearest_input(graph: Graph, tensor: int) -> str | None:
    """The parameter, or else the argument, from which the fewest operators lead to a tensor."""
    pending, seen, other = [tensor], {tensor}, None
    for current in pending:
        found = graph.tensors[current]
        if found.producer is None:
            if found.role == "parameter":
                return found.name
            other = other or (found.name if found.role == "input" and found.sizes else None)
            continue
        for use in graph.operators[found.producer].operands:
            if use.tensor not in seen:
                seen.add(use.tensor)
                pending.append(use.tensor)
    return other
