"""A traced step on one device: the oracle by which graphs, rules and plans are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tensorstate.errors import PlanError
from tensorstate.execution.microbatch_loop import read_view, run_operator
from tensorstate.execution.step_loop import MirroredReads, by_loop, run_loop
from tensorstate.ir.graph import Graph, Operator
from tensorstate.rules.sharding_rule import LocalShard


def evaluate(graph: Graph, leaves: Sequence[Any]) -> dict[int, Any]:
    """All tensors of a graph, as global arrays, from its arguments; without those inside loops."""
    values: dict[int, Any] = {}
    for index, leaf in (*zip(graph.inputs, leaves, strict=True), *graph.constants):
        values[index] = jnp.asarray(leaf).reshape(graph.tensors[index].sizes)
    _Evaluation(graph, values).run_operators(graph.operators)
    return values


class _Evaluation:
    """Runs operators on global arrays; of the bodies of loops, one iteration after another."""

    def __init__(self, graph: Graph, values: dict[int, Any], depth: int = 0):
        self.graph, self.values, self.depth = graph, values, depth
        self.stacks: dict[int, Any] = {}
        self.mirrored = MirroredReads(graph, lambda _producer: False)  # nothing is recomputed

    def run_operators(self, operators: Sequence[Operator]) -> None:
        """Run operators in order, loops as loops."""
        for number, body in by_loop(operators, self.depth):
            if number is not None:
                self.values.update(run_loop(self, self.graph, number, body))
                continue
            for operator in body:
                arrays = [self.operand(operator, k) for k in range(len(operator.operands))]
                results = run_operator(operator, arrays, self.shard(operator))
                for use, result in zip(operator.results, results, strict=True):
                    self.values[use.tensor] = result

    def operand(self, operator: Operator, k: int, again: bool = False) -> Any:
        return self.values[operator.operands[k].tensor]

    def shard(self, operator: Operator) -> LocalShard:
        return LocalShard.full(operator.sizes)

    def body(self, operators: Sequence[Operator]) -> Callable[[], _Evaluation]:
        return lambda: _Evaluation(self.graph, dict(self.values), self.depth + 1)

    def enter(self, operator: Operator, x: Any, again: bool = False) -> None:
        self.values[operator.results[0].tensor] = x

    def in_turn(self, arrays: list[Any]) -> list[Any]:
        return arrays

    def saved_copy(self, tensor: int) -> Any:
        return self.values[tensor]

    def restore(self, tensor: int, x: Any) -> None:
        self.values[tensor] = x


def interpret(graph: Graph) -> Callable[..., Any]:
    """The step of a graph on one device, with the signature of the traced function."""

    def step(*args):
        leaves, tree = jax.tree.flatten(args)
        if tree != graph.in_tree:
            raise PlanError(f"the step takes arguments of {graph.in_tree}, got {tree}")
        values = evaluate(graph, leaves)
        outputs = [
            read_view(
                out.view,
                None if out.view.tensor is None else values[out.view.tensor],
                out.view.sizes,
            )
            for out in graph.outputs
        ]
        return jax.tree.unflatten(graph.out_tree, outputs)

    return step
