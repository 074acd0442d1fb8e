"""The part of an operator that one device has, in one microbatch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax


class MicrobatchSlice(NamedTuple):
    """A turn of a loop over microbatches.

    The batch is shared out among devices first; a turn takes the same slice of every share, so that
    each device cuts its own.

    Attributes:
        index: of the turn.
        count: of all turns.
        batch_shards: equal parts of the batch, of each of which the turn takes ``1 / count``.
    """

    index: Any
    count: int
    batch_shards: int

    def global_indices(self, place: Any, size: int) -> Any:
        """Places in a whole batch of ``size`` of places in the microbatch."""
        part = size // (self.batch_shards * self.count)
        return (place // part * self.count + self.index) * part + place % part

    def to_microbatch(self, place: Any, size: int) -> tuple[Any, Any]:
        """Places in the microbatch of places in the whole batch, and whether it has them."""
        part = size // (self.batch_shards * self.count)
        nth = place // part
        return nth // self.count * part + place % part, nth % self.count == self.index

    def slice_batch(self, x: Any, position: int, devices: int = 1) -> Any:
        """The microbatch of a device's array, of whose batch ``devices`` have a part each."""
        shape = x.shape
        shares = (self.batch_shards // devices, self.count, -1)
        x = x.reshape(*shape[:position], *shares, *shape[position + 1 :])
        x = lax.dynamic_index_in_dim(x, self.index, position + 1, keepdims=False)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])

    def join_batch(self, slices: Any, position: int, devices: int = 1) -> Any:
        """The array of which ``slice_batch`` made ``slices``: the first dimension counts turns."""
        shape = slices.shape[1:]
        shares = (self.batch_shards // devices, -1)
        x = slices.reshape(self.count, *shape[:position], *shares, *shape[position + 1 :])
        x = jnp.moveaxis(x, 0, position + 1)
        return x.reshape(*shape[:position], -1, *shape[position + 1 :])


@dataclasses.dataclass(frozen=True, slots=True)
class LocalShard:
    """The part of an operator's labels that one device has: see ``rules``.

    Attributes:
        sizes: elements of every label.
        counts: devices (and turns) among which every label is shared out.
        indices: number of this device's part of each label that is shared out among devices.
        microbatch: of a loop over microbatches, if the operator is cut by one.
        batch: the label that the loop cuts.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    indices: Mapping[int, Any]
    microbatch: MicrobatchSlice | None = None
    batch: int | None = None

    @classmethod
    def all_of(cls, sizes: Sequence[int]) -> LocalShard:
        """The whole."""
        return cls(tuple(sizes), (1,) * len(sizes), {})

    def local_size(self, label: int) -> int:
        """Elements of a label that the device has."""
        return self.sizes[label] // self.counts[label]

    def size(self, labels: Sequence[int]) -> int:
        return math.prod(self.local_size(label) for label in labels)

    def global_size(self, labels: Sequence[int]) -> int:
        return math.prod(self.sizes[label] for label in labels)

    def is_sharded(self, labels: Sequence[int]) -> bool:
        return any(self.counts[label] > 1 for label in labels)

    def start(self, label: int) -> Any:
        """The first of the device's elements of a label, or of its microbatch."""
        return self.indices[label] * self.local_size(label) if label in self.indices else 0

    def global_indices(self, labels: Sequence[int]) -> Any:
        places = jnp.zeros((), jnp.int32)
        for label in labels:
            own = jnp.arange(self.local_size(label), dtype=jnp.int32) + self.start(label)
            if self.microbatch is not None and label == self.batch:
                own = self.microbatch.global_indices(own, self.sizes[label])
            places = (places[..., None] * self.sizes[label] + own).astype(jnp.int32)
        return places.reshape(self.size(labels))

    def to_local(self, index: Any, labels: Sequence[int]) -> tuple[Any, Any]:
        place, has = jnp.zeros_like(index), jnp.ones(index.shape, bool)
        stride = self.global_size(labels)
        for label in labels:
            stride //= self.sizes[label]
            own = index // stride % self.sizes[label]
            if self.microbatch is not None and label == self.batch:
                own, now = self.microbatch.to_microbatch(own, self.sizes[label])
                has &= now
            own -= self.start(label)
            has &= (own >= 0) & (own < self.local_size(label))
            place = place * self.local_size(label) + own
        return jnp.where(has, place, 0), has

    def is_first_shard(self, labels: Sequence[int]) -> Any:
        parts = [self.indices[label] == 0 for label in labels if label in self.indices]
        if self.microbatch is not None and self.batch in labels:
            parts.append(self.microbatch.index == 0)
        return jnp.all(jnp.stack(list(map(jnp.asarray, parts)))) if parts else jnp.asarray(True)
