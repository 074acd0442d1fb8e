"""An array that ranks share out, as the optimizer of ``zero`` keeps what belongs to a parameter.

A parameter is first cut into blocks, along the dimensions that other manual axes of the mesh shard
(tensor parallelism), if any; then every block, as a vector padded with zeros, into one row for each
of the n ranks that average gradients::

    parameter            blocks over "model"     rows over "data", 2 ranks
    a b c d              a b | c d               a b   c d
    e f g h              e f | g h               e f   g h

Such an array is a ``Part`` on a rank. All others are ``Whole``: every rank has the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll import jax_internals
from jaxcoll.execute import functions
from jaxcoll.execute.calls import AxisName
from jaxcoll.execute.primitives import vary
from jaxcoll.training import names_of, tracked


def shards_of(x, n: int) -> jax.Array:
    """An array as n shards of its elements, padded with zeros: shape (n, elements of a shard)."""
    flat = jnp.asarray(x).reshape(-1)
    return jnp.pad(flat, (0, -flat.size % n)).reshape(n, -1)


@dataclasses.dataclass(frozen=True)
class Cut:
    """How an array is cut.

    Attributes:
        shape: the shape of the whole array, as a program has reshaped it.
        origin: the shape in which it was cut; the elements and their order are the same.
        axes: for every dimension of ``origin``, the mesh axes that cut it into blocks.
        ways: for every dimension of ``origin``, the number of blocks.
    """

    shape: tuple[int, ...]
    origin: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    ways: tuple[int, ...]

    @property
    def block(self) -> tuple[int, ...]:
        """The shape of a block."""
        return tuple(size // ways for size, ways in zip(self.origin, self.ways, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """All axes that cut into blocks, by dimension."""
        return tuple(name for names in self.axes for name in names)

    @property
    def spec(self) -> PartitionSpec:
        """The spec of an array that is cut into the blocks."""
        return PartitionSpec(*(names or None for names in self.axes))

    def width(self, n: int) -> int:
        """The elements of a row on n ranks."""
        return -(-math.prod(self.block) // n)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Whole:
    """An array that every rank has.

    Attributes:
        array: it, or the one scalar that all its elements are.
    """

    array: Any
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def is_uniform(self) -> bool:
        """Whether all elements are one scalar."""
        return np.ndim(self.array) == 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Part:
    """An array of which a rank has its row, its block or both; once gathered, the whole is kept."""

    cut: Cut = dataclasses.field(metadata={"static": True})
    row: Any = None
    block: Any = None
    whole: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self.cut.shape


Value = Whole | Part


def is_value(x) -> bool:
    """Whether an entry of a pytree is an array as it is held here."""
    return isinstance(x, Whole | Part)


def whole(x) -> Whole:
    """An array that every rank has."""
    return Whole(x, np.shape(x))


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The ranks that share arrays out.

    Attributes:
        axis_name: the axes over which blocks are cut into rows.
        gather: the rows of all ranks of these, from a rank's own.
    """

    axis_name: AxisName
    gather: Callable[[jax.Array], jax.Array]

    @property
    def n(self) -> int:
        """How many rows a block has."""
        sizes = jax_internals.axis_sizes()
        return math.prod(sizes[name] for name in names_of(self.axis_name))

    def row(self, value: Value, cut: Cut) -> jax.Array:
        """This rank's row of an array that is cut so."""
        value = self._cut_as(value, cut)
        if isinstance(value, Whole):
            if value.is_uniform:
                return jnp.broadcast_to(value.array, (cut.width(self.n),))
            return self._row_of(self.block(value, cut))
        if value.row is None:
            value.row = self._row_of(value.block)
        return value.row

    def block(self, value: Value, cut: Cut) -> jax.Array:
        """This rank's block of an array that is cut so."""
        value = self._cut_as(value, cut)
        if isinstance(value, Part):
            if value.block is None:
                value.block = joined_shards(self.gather(value.row), cut.block)
            return value.block
        if value.is_uniform:
            return jnp.broadcast_to(value.array, cut.block)
        block = value.array.reshape(cut.origin)
        for i, (names, size) in enumerate(zip(cut.axes, cut.block, strict=True)):
            if names:
                start = lax.axis_index(names) * size
                block = lax.dynamic_slice_in_dim(block, start, size, i)
        return block

    def whole(self, value: Value) -> jax.Array:
        """The array, gathered where this rank has a part of it only."""
        if isinstance(value, Whole):
            return jnp.broadcast_to(value.array, value.shape)
        if value.whole is None:
            cut, block = value.cut, self.block(value, value.cut)
            for i, names in enumerate(cut.axes):
                if names:
                    block = functions.all_gather(block, names, axis=i, tiled=True, to=_to(names))
            value.whole = block.reshape(cut.shape)
        return value.whole

    def combined(self, value: jax.Array, cut: Cut) -> jax.Array:
        """What every rank has computed from its row, side by side: a vector of all ranks."""
        names = (*names_of(self.axis_name), *cut.names)
        return functions.all_gather(vary(value, tracked(names)), names, to=_to(names))

    def is_padding(self, cut: Cut) -> jax.Array | None:
        """Which elements of this rank's row are padding; ``None`` if no rank has any."""
        width, size = cut.width(self.n), math.prod(cut.block)
        if width * self.n == size:
            return None
        return lax.axis_index(self.axis_name) * width + jnp.arange(width) >= size

    def _cut_as(self, value: Value, cut: Cut) -> Value:
        other = isinstance(value, Part) and value.cut != cut
        return whole(self.whole(value)) if other else value

    def _row_of(self, block: jax.Array) -> jax.Array:
        rank = lax.axis_index(self.axis_name)
        return lax.dynamic_index_in_dim(shards_of(block, self.n), rank, 0, keepdims=False)


def joined_shards(shards: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The array of a shape that ``shards_of`` has cut."""
    return shards.reshape(-1)[: math.prod(shape)].reshape(shape)


def _to(names: AxisName) -> str:
    # What all ranks gather is the same on all of them, and typed so. Ranks of vmap are not tracked
    # by types, so none is needed.
    return "invarying" if tracked(names) else "varying"
