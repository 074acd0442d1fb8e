"""Forces XLA to execute operators in the order of the plan.

All results of ``lax.optimization_barrier`` depend on all of its operands. Three properties of it
matter. XLA removes an operand whose result has no other consumer
(``AlgebraicSimplifierVisitor::HandleOptimizationBarrier``), so that a token which is only waited
for is lost: hence two barriers per token. An array is live until all barriers that take it have
executed: hence the token is one element of the array. On CPU every barrier has its own table of
pointers for the whole program: hence as few barriers as possible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.ir.graph import Graph


def completion_scalar(x: jax.Array) -> jax.Array:
    """A token: one element of an array, available when the array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())


def wait_for(arrays: Sequence[jax.Array], *tokens: jax.Array) -> list[jax.Array]:
    """The arrays, none available before all of them and all the tokens are."""
    waiting = list(arrays)
    for _ in range(2 if waiting and tokens else 0):
        waiting = lax.optimization_barrier((*waiting, *tokens))[: len(waiting)]
    return list(waiting)


def materialize(x: jax.Array) -> jax.Array:
    """The array, not fused into its consumers."""
    return lax.optimization_barrier((x,))[0]


class ExecutionOrder:
    """Delays arrays until the last result before them is available.

    A barrier takes the last token and the one before it, so that every token but the last is taken
    by two barriers.

    Attributes:
        num_events: number of results that arrays can wait for.
    """

    def __init__(self):
        self.num_events = 0
        self._last_result: jax.Array | None = None
        self._tokens: list[jax.Array] = []  # the last two tokens, the latest first

    def advance(self, result: jax.Array) -> None:
        """Arrays that are delayed from here on wait for a result."""
        self.num_events += 1
        self._last_result = result

    @property
    def latest(self) -> list[jax.Array]:
        """The token of the last event, if any."""
        if self._last_result is not None:
            self._tokens = [completion_scalar(self._last_result), *self._tokens[:1]]
            self._last_result = None
        return self._tokens[:1]

    def delay(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays, none available before all of them and the last event are."""
        latest = self.latest
        if len(self._tokens) < 2:
            return wait_for(arrays, *latest)
        return list(lax.optimization_barrier((*arrays, *self._tokens))[: len(arrays)])


def updated_args(graph: Graph) -> dict[int, set[int]]:
    """By gradient, the arguments that it updates.

    A gradient reaches its argument's new value through operators on tensors of that size.
    """
    args: dict[int, set[int]] = defaultdict(set)
    for out in graph.outputs:
        if out.updates is None or out.view.tensor is None:
            continue
        updated, pending, seen = graph.inputs[out.updates], [out.view.tensor], set()
        while pending:
            tensor = graph.tensors[pending.pop()]
            if tensor.producer is None or tensor.index in seen:
                continue
            seen.add(tensor.index)
            operator = graph.operators[tensor.producer]
            if operator.phase != "optimizer":
                args[tensor.index].add(updated)
                continue
            same = [use.tensor for use in operator.operands]
            pending += [t for t in same if graph.tensors[t].size == tensor.size]
    return args
