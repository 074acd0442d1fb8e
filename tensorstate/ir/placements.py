"""Placements of tensors on a device mesh.

On every mesh axis a tensor is replicated, sharded at one of its positions, or partial, which means
that the devices' values must still be reduced (JAX calls this unreduced). Placements are a tuple
with one placement per mesh axis, as in DTensor; Zhao's dissertation, section 5.2.1, calls it the
state of a tensor. If several axes shard one position, the first of these axes shards it first, so
only the placement on the last of them can change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import named
from jaxcoll.numerics import checks
from tensorstate.errors import PlanError

# Placements other than sharding. The placement that shards a position is the position itself, 0 or
# above. So ``placement >= 0`` tells whether it is sharded, and ``placement < REPLICATED`` whether
# it is partial. For example, on a mesh (data, model) a weight [in, out] of a column-parallel layer
# is (REPLICATED, 1), and the result of the row-parallel layer behind it is (0, SUM) before its
# all-reduce.
REPLICATED = -1
SUM, MAX, MIN = -2, -3, -4
PARTIAL = {"sum": SUM, "max": MAX, "min": MIN}

# The most devices of a mesh, as many as a ``Topology`` may have ranks; also the most microbatches.
MOST_DEVICES = 2**22

Placements = tuple[int, ...]
"""One per mesh axis: a position, ``REPLICATED``, or the pending reduction of partial values."""


class MeshShape(NamedTuple):
    """Names and sizes of the axes of a device mesh; the last axis varies fastest over devices."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> MeshShape:
        """The mesh with these axes.

        Raises:
            PlanError: there is no axis, or a name or a size is of another type or below 1.
        """
        checks.instance(sizes, Mapping, "mesh", PlanError)
        for name, size in sizes.items():
            checks.text(name, "the name of a mesh axis", PlanError)
            what = f"the number of devices along mesh axis {checks.shown(name)}"
            checks.integer(size, what, PlanError, least=1, most=MOST_DEVICES)
        if not sizes:
            raise PlanError(
                "a mesh has at least one axis, got none; give sizes by name, as in {'data': 8}"
            )
        mesh = cls(tuple(sizes), tuple(map(int, sizes.values())))
        if mesh.num_devices > MOST_DEVICES:
            raise PlanError(f"a mesh has at most {MOST_DEVICES} devices, got {mesh}")
        return mesh

    @property
    def text(self) -> str:
        """The axes with their sizes, as in "data 2 x model 4"."""
        return " x ".join(f"{named(n)} {s}" for n, s in zip(self.names, self.sizes, strict=True))

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    @property
    def long_axes(self) -> tuple[int, ...]:
        """The axes with more than one device."""
        return tuple(axis for axis, size in enumerate(self.sizes) if size > 1)

    def replica_groups(self, axes: Sequence[int]) -> np.ndarray:
        """The devices of every group along ``axes``, one row per group, in HLO's numbering."""
        # HLO numbers devices by their positions in the mesh, not by ``device.id``.
        others = [axis for axis in range(len(self.sizes)) if axis not in axes]
        devices = np.arange(self.num_devices).reshape(self.sizes).transpose([*others, *axes])
        return devices.reshape(-1, math.prod(self.sizes[axis] for axis in axes))

    def num_shards(self, placements: Placements) -> int:
        """Number of shards of a tensor with these placements."""
        return math.prod(
            size for size, placement in zip(self.sizes, placements, strict=True) if placement >= 0
        )


def all_placements(
    sizes: Sequence[int], mesh: MeshShape, partial: Sequence[int] = ()
) -> Iterator[Placements]:
    """All placements of a tensor of these sizes, with the partial placements in ``partial``."""
    placements_on_axis = (REPLICATED, *partial, *range(len(sizes)))
    for placements in itertools.product(placements_on_axis, repeat=len(mesh.sizes)):
        if divides_evenly(placements, sizes, mesh):
            yield placements


def divides_evenly(placements: Placements, sizes: Sequence[int], mesh: MeshShape) -> bool:
    """Whether the number of shards divides the size of every position.

    A position of size 0 cannot be sharded: XLA refuses to gather along a dimension of size 0.
    """
    return all(
        sizes[position] and sizes[position] % num_shards(placements, position, mesh) == 0
        for position in {placement for placement in placements if placement >= 0}
    )


def num_shards(placements: Placements, position: int, mesh: MeshShape) -> int:
    """Number of shards of a position."""
    return math.prod(
        s for s, placement in zip(mesh.sizes, placements, strict=True) if placement == position
    )


class PinnedDim(NamedTuple):
    """A dimension of an array whose sharding the step itself asks for.

    Attributes:
        labels: the operator's labels whose product the dimension is, major first.
        axes: names of the mesh axes that shard it, major first; ``None`` if any may.
    """

    labels: tuple[int, ...]
    axes: tuple[str, ...] | None


class RingStrategy(NamedTuple):
    """A strategy that shards two labels of an operator together, one of which goes round a ring.

    Every device has a block of both labels, and the blocks of ``keys`` visit all devices along the
    mesh axes that the strategy shards (see ``rules.ring``).

    Attributes:
        label: the label that stands for the strategy; no tensor has it.
        queries, keys: the labels that it shards.
        passes: number of times that the operands with ``keys`` go round the ring.
    """

    label: int
    queries: int
    keys: int
    passes: int

    @property
    def pair(self) -> tuple[int, int]:
        """The labels that it shards, that of the result first."""
        return self.queries, self.keys

    def relabelled(self, label: int, first: int, second: int) -> RingStrategy:
        """The same strategy in other labels."""
        return RingStrategy(label, first, second, self.passes)


class Exchange(NamedTuple):
    """A strategy that shards rows together with their owners, along one axis.

    Every device has a block of the rows and some of the owners: the experts of a grouped product,
    or the rows of a table in which others are looked up. Rows are sent to their owners, and results
    back to where the rows are (see ``rules.exchange``).

    Attributes:
        label: the label that stands for the strategy; no tensor has it.
        rows, owners: the labels that it shards.
        is_lookup: whether rows belong to others by an index, the first operand with ``rows``.
    """

    label: int
    rows: int
    owners: int
    is_lookup: bool = False

    @property
    def pair(self) -> tuple[int, int]:
        """The labels that it shards."""
        return self.rows, self.owners

    def relabelled(self, label: int, first: int, second: int) -> Exchange:
        """The same strategy in other labels."""
        return Exchange(label, first, second, self.is_lookup)


Pairing = RingStrategy | Exchange
"""A strategy that shards two labels together, and sends within the operator."""
