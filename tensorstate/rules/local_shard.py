"""The index range of an operator that one device computes, in one microbatch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


class MicrobatchSlice(NamedTuple):
    """One iteration of the loop over microbatches.

    The batch is sharded among devices first. A microbatch takes the same slice of every shard, so
    that no device needs examples of another.

    Attributes:
        index: number of the microbatch.
        count: number of all microbatches.
        batch_shards: shards of the batch; the microbatch takes ``1 / count`` of each.
    """

    index: Any
    count: int
    batch_shards: int

    def global_indices(self, index: Any, size: int) -> Any:
        """Convert indices in the microbatch to indices in the full batch of ``size`` examples."""
        part = size // (self.batch_shards * self.count)
        return (index // part * self.count + self.index) * part + index % part

    def to_microbatch(self, index: Any, size: int) -> tuple[Any, Any]:
        """Convert indices in the full batch to the microbatch, with a mask of those inside it."""
        part = size // (self.batch_shards * self.count)
        nth = index // part
        return nth // self.count * part + index % part, nth % self.count == self.index

    def slice_batch(self, x: Any, position: int, devices: int = 1) -> Any:
        """The microbatch of a device's array, whose batch is sharded over ``devices``."""
        shape = x.shape
        shards = (self.batch_shards // devices, self.count, -1)
        x = x.reshape(*shape[:position], *shards, *shape[position + 1 :])
        x = lax.dynamic_index_in_dim(x, self.index, position + 1, keepdims=False)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])

    def join_batch(self, slices: Any, position: int, devices: int = 1) -> Any:
        """Inverse of ``slice_batch``: the first dimension of ``slices`` numbers microbatches."""
        shape = slices.shape[1:]
        shards = (self.batch_shards // devices, -1)
        x = slices.reshape(self.count, *shape[:position], *shards, *shape[position + 1 :])
        x = jnp.moveaxis(x, 0, position + 1)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])


@dataclasses.dataclass(frozen=True, slots=True)
class LocalShard:
    """The index range of each of an operator's labels that one device computes.

    Attributes:
        sizes: elements of every label.
        counts: shards of every label; for the batch, times the number of microbatches.
        indices: number of this device's shard, for each label that is sharded among devices.
        microbatch: the iteration of the microbatch loop, if the loop splits the operator.
        batch: the label that the loop splits.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    indices: Mapping[int, Any]
    microbatch: MicrobatchSlice | None = None
    batch: int | None = None

    @classmethod
    def full(cls, sizes: Sequence[int]) -> LocalShard:
        """The full index range of labels of these sizes, as on a single device."""
        return cls(tuple(sizes), (1,) * len(sizes), {})

    def local_size(self, label: int) -> int:
        """Local elements of a label."""
        return self.sizes[label] // self.counts[label]

    def size(self, labels: Sequence[int]) -> int:
        """Local elements of a dimension that is the product of labels."""
        return math.prod(self.local_size(label) for label in labels)

    def global_size(self, labels: Sequence[int]) -> int:
        """Elements of a dimension that is the product of labels, on all devices together."""
        return math.prod(self.sizes[label] for label in labels)

    def is_sharded(self, labels: Sequence[int]) -> bool:
        """Whether the device has only a part of a dimension that is the product of labels."""
        return any(self.counts[label] > 1 for label in labels)

    def start(self, label: int) -> Any:
        """The first local index of a label, counted in the microbatch for the batch."""
        return self.indices[label] * self.local_size(label) if label in self.indices else 0

    def global_indices(self, labels: Sequence[int]) -> Any:
        """The global index of each local element of a dimension that is the product of labels."""
        indices = jnp.zeros((), jnp.int32)
        for label in labels:
            along = jnp.arange(self.local_size(label), dtype=jnp.int32) + self.start(label)
            if self.microbatch is not None and label == self.batch:
                along = self.microbatch.global_indices(along, self.sizes[label])
            indices = (indices[..., None] * self.sizes[label] + along).astype(jnp.int32)
        return indices.reshape(self.size(labels))

    def to_local(self, index: Any, labels: Sequence[int]) -> tuple[Any, Any]:
        """Convert global indices to local ones, with a mask of the local elements; 0 elsewhere."""
        local, is_local = jnp.zeros_like(index), jnp.ones(index.shape, bool)
        stride = self.global_size(labels)
        for label in labels:
            stride //= self.sizes[label]
            along = index // stride % self.sizes[label]
            if self.microbatch is not None and label == self.batch:
                along, in_microbatch = self.microbatch.to_microbatch(along, self.sizes[label])
                is_local &= in_microbatch
            along -= self.start(label)
            is_local &= (along >= 0) & (along < self.local_size(label))
            local = local * self.local_size(label) + along
        return jnp.where(is_local, local, 0), is_local

    def is_first_shard(self, labels: Sequence[int]) -> Any:
        """Whether this is the first shard of the labels, in the first microbatch."""
        firsts = [self.indices[label] == 0 for label in labels if label in self.indices]
        if self.microbatch is not None and self.batch in labels:
            firsts.append(self.microbatch.index == 0)
        return jnp.all(jnp.stack(list(map(jnp.asarray, firsts)))) if firsts else jnp.asarray(True)
