"""The parts of a rule: shared and reduced dimensions, and the function that runs local shards.

A local shard is the index range of an operator that one device computes, in one microbatch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import lax

from tensorstate.ir.graph import Kind, Reduce
from tensorstate.ir.placements import Pairing


class MicrobatchSlice(NamedTuple):
    """One iteration of the loop over microbatches.

    The batch is sharded among devices first. A microbatch takes the same slice of every shard, so
    that no device
    needs examples of another: if two devices have eight examples, the first of two microbatches has
    0, 1, 4 and 5.

    Attributes:
        index: number of the microbatch.
        count: number of all microbatches.
        batch_shards: number of shards of the batch; the microbatch takes ``1 / count`` of each.
    """

    index: Any
    count: int
    batch_shards: int

    def global_indices(self, index: Any, size: int) -> Any:
        """Convert indices in the microbatch to indices in the full batch of ``size`` examples."""
        # In the example of the class, a part is two examples: index 2, the third of the first
        # microbatch, is in part 1 of it, which is part 2 of the batch, the first part of the second
        # device.
        part = size // (self.batch_shards * self.count)
        return (index // part * self.count + self.index) * part + index % part

    def to_microbatch(self, index: Any, size: int) -> tuple[Any, Any]:
        """Convert indices in the full batch to the microbatch, with a mask of those inside it."""
        part = size // (self.batch_shards * self.count)
        nth = index // part
        return nth // self.count * part + index % part, nth % self.count == self.index

    def slice_batch(self, x: Any, position: int, devices: int = 1) -> Any:
        """The microbatch of a device's array, whose batch is sharded over ``devices``."""
        shape, shards = x.shape, self.batch_shards // devices
        # Sizes are computed instead of -1, which cannot be inferred for an array without elements.
        size = shape[position] // self.count
        cut = (shards, self.count, size // shards)
        x = x.reshape(*shape[:position], *cut, *shape[position + 1 :])
        x = lax.dynamic_index_in_dim(x, self.index, position + 1, keepdims=False)
        return x.reshape(*shape[:position], size, *shape[position + 1 :])

    def join_batch(self, slices: Any, position: int, devices: int = 1) -> Any:
        """Inverse of ``slice_batch``: the first dimension of ``slices`` numbers microbatches."""
        shape, shards = slices.shape[1:], self.batch_shards // devices
        size = shape[position]
        cut = (shards, size // shards)
        x = slices.reshape(self.count, *shape[:position], *cut, *shape[position + 1 :])
        x = jnp.moveaxis(x, 0, position + 1)
        return x.reshape(*shape[:position], self.count * size, *shape[position + 1 :])


class Along(NamedTuple):
    """A mesh axis along which rows are exchanged, as a device sees it.

    Attributes:
        name, size: name and size of the axis.
        strides: by label, how far the shards of neighbours along the axis are apart.
        is_padded: whether slices are sent as blocks of ``jax.lax.all_to_all``, as long as a device
            has rows; otherwise they go by ``jc.ragged_all_to_all``.
    """

    name: str
    size: int
    strides: Mapping[int, int]
    is_padded: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LocalShard:
    """The index range of each of an operator's labels that one device computes.

    Attributes:
        sizes: the number of elements of every label.
        counts: the number of shards of every label; for the batch, times the number of
            microbatches.
        indices: number of this device's shard, for each label that is sharded among devices.
        microbatch: the iteration of the microbatch loop, if the loop splits the operator.
        batch: the label that the loop splits.
        ring: names of the mesh axes around which blocks go (see ``placements.RingStrategy``).
        exchange: the mesh axis along which rows go to their experts (see ``placements.Exchange``).
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    indices: Mapping[int, Any]
    microbatch: MicrobatchSlice | None = None
    batch: int | None = None
    ring: tuple[str, ...] = ()
    exchange: Along | None = None

    @classmethod
    def full(cls, sizes: Sequence[int]) -> LocalShard:
        """The full index range of labels of these sizes, as on a single device."""
        return cls(tuple(sizes), (1,) * len(sizes), {})

    def local_size(self, label: int) -> int:
        """The number of local elements of a label."""
        return self.sizes[label] // self.counts[label]

    def size(self, labels: Sequence[int]) -> int:
        """The number of local elements of a dimension that is the product of labels."""
        return math.prod(self.local_size(label) for label in labels)

    def global_size(self, labels: Sequence[int]) -> int:
        """The number of elements of a dimension that is the product of labels, on all devices."""
        return math.prod(self.sizes[label] for label in labels)

    def is_sharded(self, labels: Sequence[int]) -> bool:
        """Whether the device has only a part of a dimension that is the product of labels."""
        return any(self.counts[label] > 1 for label in labels)

    def start(self, label: int) -> Any:
        """The first local index of a label, counted in the microbatch for the batch."""
        return self.indices[label] * self.local_size(label) if label in self.indices else 0

    def global_indices(self, labels: Sequence[int]) -> Any:
        """The global index of each local element of a dimension that is the product of labels."""
        # One axis per label, flattened at the end. In a dimension of 4 heads of 8, a device with
        # heads 2 and 3 has 16 to 31, but a device with the first half of every head has 0 to 3, 8
        # to 11 and so on, which no start and length can express.
        indices = jnp.zeros((), jnp.int32)
        for label in labels:
            along = jnp.arange(self.local_size(label), dtype=jnp.int32) + self.start(label)
            if self.microbatch is not None and label == self.batch:
                along = self.microbatch.global_indices(along, self.sizes[label])
            # With 64-bit types, the number of a microbatch is wider.
            indices = (indices[..., None] * self.sizes[label] + along).astype(jnp.int32)
        return indices.reshape(self.size(labels))

    def to_local(self, index: Any, labels: Sequence[int]) -> tuple[Any, Any]:
        """Convert global indices to local ones, with a mask of the local elements; 0 elsewhere."""
        local, is_local = jnp.zeros_like(index), jnp.ones(index.shape, bool)
        # A label without elements holds no index, and must not be a divisor of zero.
        sizes = {label: max(1, self.sizes[label]) for label in labels}
        stride = math.prod(sizes.values())
        for label in labels:
            stride //= sizes[label]
            along = index // stride % sizes[label]
            if self.microbatch is not None and label == self.batch:
                along, in_microbatch = self.microbatch.to_microbatch(along, self.sizes[label])
                is_local &= in_microbatch
            along -= self.start(label)
            is_local &= (along >= 0) & (along < self.local_size(label))
            local = local * self.local_size(label) + along
        # Rows of other devices are read as row 0 and masked: an index outside the shard would be
        # clamped, wrapped or filled, depending on the mode of the gather.
        return jnp.where(is_local, local, 0), is_local

    def at_place(self, place: Any) -> LocalShard:
        """The shard of the device at another place of the axis along which rows are exchanged."""
        if self.exchange is None:
            return self
        by = place - lax.axis_index(self.exchange.name)
        moved = {label: self.indices[label] + by * n for label, n in self.exchange.strides.items()}
        return dataclasses.replace(self, indices={**self.indices, **moved})

    def is_first_shard(self, labels: Sequence[int]) -> Any:
        """Whether this is the first shard of the labels, in the first microbatch."""
        firsts = [self.indices[label] == 0 for label in labels if label in self.indices]
        if self.microbatch is not None and self.batch in labels:
            firsts.append(self.microbatch.index == 0)
        return jnp.all(jnp.stack(list(map(jnp.asarray, firsts)))) if firsts else jnp.asarray(True)


# ---------------------------------------------------------------------- rules


Labels = tuple[int | None, ...]


class AbstractArray(NamedTuple):
    """An argument or result of an equation.

    Attributes:
        shape: the shape of the full array.
        dtype: the type of its elements.
        value: the value of a constant, a scalar that is repeated over the full shape; else
            ``None``.
    """

    shape: tuple[int, ...]
    dtype: Any
    value: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class ShardingRule:
    """An equation in labels, one for each dimension of its arguments and results.

    Dimensions with the same label have the same size and are sharded together. ``None`` stands for
    a dimension of size 1 that shares no label. (JAX's ``SdyShardingRule`` calls labels factors.)

    Attributes:
        kind: see ``tensorstate.ir.graph.Operator``, also for the attributes below.
        arguments, results: labels of every dimension.
        reductions: labels over which it reduces, with the reduction.
        linear: sets of arguments in which it is jointly linear.
        need_replication: labels that cannot be sharded.
        flops: floating-point operations.
        unseen: sizes of labels that no dimension has: the terms of a sum that is known, or a
            pairing.
        pairing: a strategy of two labels together, in labels of the rule.
    """

    kind: Kind
    arguments: tuple[Labels, ...]
    results: tuple[Labels, ...]
    reductions: Mapping[int, Reduce] = dataclasses.field(default_factory=dict)
    linear: tuple[frozenset[int], ...] = ()
    need_replication: frozenset[int] = frozenset()
    flops: int = 0
    unseen: Mapping[int, int] = dataclasses.field(default_factory=dict)
    pairing: Pairing | None = None


class LocalEqn(NamedTuple):
    """The equation that a ``RunLocal`` function runs on local shards.

    Attributes:
        primitive, params: the primitive and parameters to bind, as traced for full arrays.
        arguments, results: for every dimension the labels whose product it is, major first.
        outputs: results of the full equation.
    """

    primitive: Any
    params: Mapping[str, Any]
    arguments: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    outputs: tuple[AbstractArray, ...]


DescribeRule = Callable[
    [Sequence[AbstractArray], Sequence[AbstractArray], Mapping[str, Any]], ShardingRule
]
RunLocal = Callable[[LocalEqn, Sequence[Any], LocalShard], Sequence[Any]]


def bind(equation: LocalEqn, arrays: Sequence[Any], shard: LocalShard) -> Sequence[Any]:
    """Bind the primitive as it was traced, which fits primitives whose parameters name no sizes."""
    return bind_with(equation, arrays)


def bind_with(equation: LocalEqn, arrays: Sequence[Any], **changed: Any) -> Sequence[Any]:
    """Bind the primitive with some parameters changed."""
    out = equation.primitive.bind(*arrays, **{**equation.params, **changed})
    return out if equation.primitive.multiple_results else [out]


@dataclasses.dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """How a primitive is sharded and run.

    Attributes:
        sharding_rule: makes its ``ShardingRule`` from full arguments, results and parameters.
        run_local: computes its results on one device's shards.
        origin: "written" by hand; inferred as "elementwise", or by "dimensions" that JAX's own
            batching rules prove independent; or "replicated", if no rule could be inferred.
        applies: whether it is for an equation of these arguments and parameters.
    """

    sharding_rule: DescribeRule
    run_local: RunLocal = bind
    origin: Literal["written", "elementwise", "dimensions", "replicated"] = "written"
    applies: Callable[[Sequence[AbstractArray], Mapping[str, Any]], bool] = lambda *_: True


def num_elements(argument: AbstractArray) -> int:
    """The number of elements of an array."""
    return math.prod(argument.shape)


def is_zero(argument: AbstractArray) -> bool:
    """Whether it is the constant 0."""
    return argument.value is not None and bool(argument.value == 0)


def label_counter() -> itertools.count[int]:
    """A source of labels."""
    return itertools.count()


def replicated_rule(
    arguments: Sequence[AbstractArray], results: Sequence[AbstractArray], params: Mapping[str, Any]
) -> ShardingRule:
    """The rule of an unknown primitive: no dimension is shared, and all are replicated."""
    # Each dimension still has a label: operands are read by labels, and a dimension of the result
    # is a factor that later operators may shard again.
    labels = label_counter()
    ins = tuple(tuple(next(labels) for _ in argument.shape) for argument in arguments)
    outs = tuple(tuple(next(labels) for _ in result.shape) for result in results)
    return ShardingRule("opaque", ins, outs, need_replication=frozenset(range(next(labels))))


FALLBACK_RULE = PrimitiveRule(replicated_rule, origin="replicated")
