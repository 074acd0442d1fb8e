"""Runs operators: on whole arrays, or on the blocks that one device has of them.

A tensor is kept as an array with one dimension a position. An operator reads it as the traced
equation did, by a transpose, a broadcast and a reshape, and its primitive is bound with whatever
parameters name sizes set to those of the block.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.errors import PlanError
from tensorstate.graph import Graph, Operator, View
from tensorstate.order import after
from tensorstate.rules import Argument, Equation


class Turn(NamedTuple):
    """A turn of a loop over microbatches.

    The batch is shared out among devices first; a turn takes the same slice of every share, so that
    each device cuts its own.

    Attributes:
        index: of the turn.
        count: of all turns.
        shares: equal parts of the batch, of each of which the turn takes ``1 / count``.
    """

    index: Any
    count: int
    shares: int

    def whole(self, place: Any, size: int) -> Any:
        """Places in a whole batch of ``size`` of places in the microbatch."""
        part = size // (self.shares * self.count)
        return (place // part * self.count + self.index) * part + place % part

    def piece(self, place: Any, size: int) -> tuple[Any, Any]:
        """Places in the microbatch of places in the whole batch, and whether it has them."""
        part = size // (self.shares * self.count)
        turn = place // part
        return turn // self.count * part + place % part, turn % self.count == self.index

    def take(self, x: Any, position: int, devices: int = 1) -> Any:
        """The microbatch of a device's array, of whose batch ``devices`` have a part each."""
        shape = x.shape
        shares = (self.shares // devices, self.count, -1)
        x = x.reshape(*shape[:position], *shares, *shape[position + 1 :])
        x = lax.dynamic_index_in_dim(x, self.index, position + 1, keepdims=False)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])

    def join(self, pieces: Any, position: int, devices: int = 1) -> Any:
        """The array of which ``take`` made ``pieces``: the first dimension counts turns."""
        shape = pieces.shape[1:]
        shares = (self.shares // devices, -1)
        x = pieces.reshape(self.count, *shape[:position], *shares, *shape[position + 1 :])
        x = jnp.moveaxis(x, 0, position + 1)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])


@dataclasses.dataclass(frozen=True, slots=True)
class LocalBlock:
    """The part of an operator's labels that one device has: see ``rules.Block``.

    Attributes:
        sizes: elements of every label.
        counts: devices (and turns) among which every label is shared out.
        indices: number of this device's part of each label that is shared out among devices.
        turn: of a loop over microbatches, if the operator is cut by one.
        batch: the label that the loop cuts.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    indices: Mapping[int, Any]
    turn: Turn | None = None
    batch: int | None = None

    @classmethod
    def all_of(cls, sizes: Sequence[int]) -> LocalBlock:
        """The whole."""
        return cls(tuple(sizes), (1,) * len(sizes), {})

    def local(self, label: int) -> int:
        """Elements of a label that the device has."""
        return self.sizes[label] // self.counts[label]

    def size(self, labels: Sequence[int]) -> int:
        return math.prod(self.local(label) for label in labels)

    def whole(self, labels: Sequence[int]) -> int:
        return math.prod(self.sizes[label] for label in labels)

    def split(self, labels: Sequence[int]) -> bool:
        return any(self.counts[label] > 1 for label in labels)

    def start(self, label: int) -> Any:
        """The first of the device's elements of a label, or of its microbatch."""
        return self.indices[label] * self.local(label) if label in self.indices else 0

    def positions(self, labels: Sequence[int]) -> Any:
        places = jnp.zeros((), jnp.int32)
        for label in labels:
            own = jnp.arange(self.local(label), dtype=jnp.int32) + self.start(label)
            if self.turn is not None and label == self.batch:
                own = self.turn.whole(own, self.sizes[label])
            places = (places[..., None] * self.sizes[label] + own).astype(jnp.int32)
        return places.reshape(self.size(labels))

    def locate(self, index: Any, labels: Sequence[int]) -> tuple[Any, Any]:
        place, has = jnp.zeros_like(index), jnp.ones(index.shape, bool)
        stride = self.whole(labels)
        for label in labels:
            stride //= self.sizes[label]
            own = index // stride % self.sizes[label]
            if self.turn is not None and label == self.batch:
                own, now = self.turn.piece(own, self.sizes[label])
                has &= now
            own -= self.start(label)
            has &= (own >= 0) & (own < self.local(label))
            place = place * self.local(label) + own
        return jnp.where(has, place, 0), has

    def is_first(self, labels: Sequence[int]) -> Any:
        parts = [self.indices[label] == 0 for label in labels if label in self.indices]
        if self.turn is not None and self.batch in labels:
            parts.append(self.turn.index == 0)
        return jnp.all(jnp.stack(list(map(jnp.asarray, parts)))) if parts else jnp.asarray(True)


def run_operator(
    operator: Operator, arrays: Sequence[Any], block: LocalBlock, moment: Any = None
) -> list[Any]:
    """What an operator makes of one device's blocks of its operands.

    Args:
        arrays: an array for each of ``operator.operands``, one dimension a position.
        block: the part of the operator's labels that the device has.
        moment: an array before which no zeros are made to scatter into; XLA would make them as the
            program begins, and keep them.

    Returns:
        An array for each of ``operator.results``, one dimension a position.
    """
    call = operator.call
    given = iter(arrays)
    arguments = [
        read(view, next(given) if view.tensor is not None else None, sizes)
        for view, sizes in zip(call.inputs, _sizes(call.input_labels, block), strict=True)
    ]
    if operator.kind == "scatter" and moment is not None and call.inputs[0].tensor is None:
        zero = after([jnp.asarray(call.inputs[0].value)], moment)[0]
        arguments[0] = lax.full_like(arguments[0], zero)
    outputs = tuple(Argument(view.shape, view.dtype) for view in call.outputs)
    equation = Equation(call.primitive, call.params, call.input_labels, call.output_labels, outputs)
    results = call.rule.run(equation, arguments, block)
    return [
        result.reshape([size for one in sizes for size in one])
        for result, sizes in zip(results, _sizes(call.output_labels, block), strict=True)
    ]


def _sizes(labels, block: LocalBlock) -> list[list[list[int]]]:
    return [[[block.local(label) for label in one] for one in dims] for dims in labels]


def read(view: View, array: Any, sizes: Sequence[Sequence[int]]) -> Any:
    """An array of the traced program, read from its tensor.

    Args:
        array: the tensor's, one dimension a position; ``None`` for a constant.
        sizes: for every dimension what it is the product of, on this device.
    """
    shape = [math.prod(one) for one in sizes]
    if array is None:
        return lax.full(shape, view.value, view.dtype)
    positions = [position for one in view.positions for position in one]
    order = [position for position in positions if position is not None]
    if order != sorted(order):
        array = lax.transpose(array, order)
    if len(order) < len(positions):
        flat = [size for one in sizes for size in one]
        at = [i for i, position in enumerate(positions) if position is not None]
        array = lax.broadcast_in_dim(array, flat, at)
    return array.reshape(shape)


def values_of(graph: Graph, leaves: Sequence[Any]) -> dict[int, Any]:
    """All tensors of a graph, whole, from its arguments."""
    values: dict[int, Any] = {}
    for index, leaf in (*zip(graph.inputs, leaves, strict=True), *graph.constants):
        values[index] = jnp.asarray(leaf).reshape(graph.tensors[index].sizes)
    for operator in graph.operators:
        arrays = [values[use.tensor] for use in operator.operands]
        results = run_operator(operator, arrays, LocalBlock.all_of(operator.sizes))
        for use, result in zip(operator.results, results, strict=True):
            values[use.tensor] = result
    return values


def interpret(graph: Graph) -> Callable[..., Any]:
    """The step that a graph stands for, on one device: what the traced function does."""

    def step(*args):
        leaves, tree = jax.tree.flatten(args)
        if tree != graph.in_tree:
            raise PlanError(f"the step takes arguments of {graph.in_tree}, got {tree}")
        values = values_of(graph, leaves)
        outputs = [
            read(
                out.view,
                None if out.view.tensor is None else values[out.view.tensor],
                out.view.sizes,
            )
            for out in graph.outputs
        ]
        return jax.tree.unflatten(graph.out_tree, outputs)

    return step
