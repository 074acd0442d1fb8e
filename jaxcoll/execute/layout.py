"""The axes a collective runs over, and the layout of its operand as rows.

``Axes`` are the mesh axes, and the numbering of ranks on them. A layout packs an operand into the
lines that make up a program's rows, and unpacks the result.

A row is a number of lines; a line is the part of an array at one index of its leading dimension.
Any elements may share a line, since a collective treats all elements of a block in the same way. On
devices that hold a whole operand a line is one element, or on TPUs a number of whole tiles.

If axes of the mesh are in Auto mode, XLA may shard every dimension over them, and this is unknown
while tracing. A dimension of m = q * r elements that can be sharded q ways is then split with a
stride: the r neighbours in one q-th go to r different lines. So every line has an equal part of
every shard, and for any sharding of the dimension no element moves to another shard.

``divide`` and ``merge`` split a dimension into one block per rank, and join the blocks again. They
keep the sharding over Explicit axes outside the ``shard_map`` as ``jax.lax`` does: the axes of a
dimension still shard it after it has shrunk or grown.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import PartitionSpec

from jaxcoll import jax_internals
from jaxcoll.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class Axes:
    """Named mesh axes in the order the user gave them.

    Rank r is the device whose ``lax.axis_index(names)`` is r. ``lax.ppermute``, however, numbers
    devices in the order of the mesh's axes, whatever order it is given; ``permute`` translates.

    Attributes:
        names: axis names, the last one fastest.
        sizes: number of ranks along each axis.
        canonical: the names in the order of the mesh.
        over: the axes that the collective gathers or sums over; fewer than ``names`` if a schedule
            serves all groups along an axis at once.
        auto: sizes of the mesh axes in Auto mode, over which XLA may shard the ranks' arrays.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    canonical: tuple[str, ...]
    over: tuple[str, ...] = ()
    auto: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.over:
            object.__setattr__(self, "over", self.names)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes)

    def groups(self) -> frozenset[tuple[int, ...]]:
        """The groups of ranks that differ only in ``over``, each in the order of ``over``."""
        over = [self.names.index(name) for name in self.over]
        across = [i for i in range(len(self.names)) if i not in over]
        ranks = np.arange(self.num_ranks).reshape(self.sizes).transpose(*across, *over)
        size = math.prod(self.sizes[i] for i in over)
        return frozenset(tuple(int(r) for r in row) for row in ranks.reshape(-1, size))

    def rank(self) -> jax.Array:
        """This device's rank, an int32 scalar."""
        return lax.axis_index(self.names[0] if len(self.names) == 1 else self.names)

    def permute(self, x: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
        """Send ``x`` along ``pairs``; each rank returns the array it receives, or zeros if none."""
        number = self._number
        return lax.ppermute(x, self.canonical, [(number[src], number[dst]) for src, dst in pairs])

    @functools.cached_property
    def _number(self) -> list[int]:
        """The number that ``ppermute`` gives to each rank."""
        order = [self.names.index(name) for name in self.canonical]
        numbers = np.empty(self.num_ranks, np.int64)
        ranks = np.arange(self.num_ranks).reshape(self.sizes).transpose(order)
        numbers[ranks.ravel()] = np.arange(self.num_ranks)
        return [int(number) for number in numbers]

    def __str__(self) -> str:
        if len(self.names) == 1:
            return f"axis {self.names[0]!r} of {self.sizes[0]}"
        sized = ", ".join(f"{n!r} of {s}" for n, s in zip(self.names, self.sizes, strict=True))
        return f"axes ({sized})"


Pairs = Sequence[tuple[int, int]]

# This attribute makes XLA put the collectives of a function that is not inlined into one NCCL
# group, which is one kernel; by default XLA runs them one by one (openxla/xla#23790).
_GROUP = {"_collectives_group": "", "inlineable": "false"}


def permute_together(
    axes: Axes, sources: Sequence[jax.Array], pairs: Sequence[Pairs], target: str
) -> list[jax.Array]:
    """The rows received in each round of one step, as ``axes.permute`` gives them.

    On GPUs two or more rounds become one group, hence one launch, unless the target is
    "gpu_ungrouped". CPUs and TPUs have no groups; on TPUs independent permutes are in flight
    together anyway.

    Args:
        sources: the rows that this rank sends in each round.
        pairs: who sends to whom in each round.
        target: "cpu", "gpu", "gpu_ungrouped" or "tpu".
    """

    def permute_all(*values):
        return [axes.permute(v, p) for v, p in zip(values, pairs, strict=True)]

    if target != "gpu" or len(sources) < 2:
        return permute_all(*sources)
    with set_xla_metadata(**_GROUP):
        return jax.jit(permute_all)(*sources)


@dataclasses.dataclass(frozen=True)
class Setting:
    """The ranks, rows and target of a program that a lowering runs.

    Attributes:
        axes: the axes of the ranks.
        width: number of array lines in a row.
        target: "cpu", "gpu", "gpu_ungrouped" or "tpu".
        op: combines two rows where the program adds them.
        schedule: the schedule that the program was made from; ``None`` if it is not known.
    """

    axes: Axes
    width: int
    target: str
    op: Callable = lax.add
    schedule: Schedule | None = None


Size = Any  # an int, or a symbolic dimension of jax.export


@dataclasses.dataclass(frozen=True)
class Layout:
    """The division of blocks of one shape into rows.

    Attributes:
        shape: shape of a block.
        kept: for each dimension the part of it that every line has, a divisor of its size.
        rows: number of rows in a block.
    """

    shape: tuple[Size, ...]
    kept: tuple[Size, ...]
    rows: int

    @functools.cached_property
    def cut(self) -> tuple[Size, ...]:
        """The number of lines into which each dimension is cut."""
        # A symbolic dimension is kept or cut as a whole, and a size of 0 is not divided.
        parts = zip(self.shape, self.kept, strict=True)
        return tuple(1 if is_same(m, q) else m if is_same(q, 1) else m // q for m, q in parts)

    @functools.cached_property
    def lines(self) -> Size:
        """Number of lines in a block, without padding."""
        return math.prod(self.cut)

    @functools.cached_property
    def padded(self) -> Size:
        """Number of lines in a block, padded to a multiple of ``rows``."""
        return -(-self.lines // self.rows) * self.rows

    @functools.cached_property
    def is_symbolic(self) -> bool:
        """Whether the number of lines is known only when the program runs."""
        return not isinstance(self.lines, int)

    @property
    def width(self) -> int:
        """Number of lines in a row, as the lowerings count them."""
        return 1 if self.is_symbolic else self.padded // self.rows

    @property
    def _inner(self) -> tuple[Size, ...]:
        return tuple(q for q in self.kept if not is_same(q, 1))

    @functools.cached_property
    def _split(self) -> tuple[list[Size], list[int]]:
        """The sizes of a block's dimensions, each kept and cut, and the order with cuts first.

        Parts of one element are left out, so a block that is cut along its leading dimensions is
        not transposed.
        """
        # A dimension of q * r elements, q kept, becomes (q, r), with q the slower: element i goes
        # to line i % r, so the r neighbours in one q-th go to r different lines.
        sizes, cuts, keeps = [], [], []
        for q, r in zip(self.kept, self.cut, strict=True):
            for part, places in ((q, keeps), (r, cuts)):
                if not is_same(part, 1):
                    places.append(len(sizes))
                    sizes.append(part)
        return sizes, cuts + keeps

    def pack(self, x: jax.Array, blocks: int) -> jax.Array:
        """Lines of blocks that follow one another.

        Args:
            x: an array of ``blocks * size`` elements, whose leading dimension runs over the blocks
                first.

        Returns:
            Shape (blocks * padded lines, ...); (blocks * rows, ...) if the number is symbolic,
            where a row is one line.
        """
        # Every dimension is split, and the cuts are moved to the front and joined: (blocks, lines,
        # *kept).
        sizes, order = self._split
        x = lax.reshape(x, (blocks, *sizes))
        x = lax.transpose(x, (0, *(1 + i for i in order)))
        x = lax.reshape(x, (blocks, self.lines, *self._inner))
        if not is_same(self.padded, self.lines):
            padding = [
                (0, 0, 0),
                (0, self.padded - self.lines, 0),
                *((0, 0, 0),) * len(self._inner),
            ]
            x = lax.pad(x, jnp.zeros((), x.dtype), padding)
        if self.is_symbolic:
            return lax.reshape(x, (blocks * self.rows, self.padded // self.rows, *self._inner))
        return lax.reshape(x, (blocks * self.padded, *self._inner))

    def unpack(self, lines: jax.Array, blocks: int, shape: tuple[Size, ...]) -> jax.Array:
        """The array of some shape whose blocks ``pack`` would turn into these lines."""
        sizes, order = self._split
        x = lax.reshape(lines, (blocks, self.padded, *self._inner))
        if not is_same(self.padded, self.lines):
            x = lax.slice_in_dim(x, 0, self.lines, axis=1)
        x = lax.reshape(x, (blocks, *(sizes[i] for i in order)))
        back = sorted(range(len(order)), key=order.__getitem__)
        return lax.reshape(lax.transpose(x, (0, *(1 + i for i in back))), shape)


# ---------------------------------------------------------------------- layouts


def flat(shape: Sequence[Size], rows: int) -> Layout:
    """Lines of one element each."""
    return Layout(tuple(shape), (1,) * len(shape), rows)


def in_tiles(shape: Sequence[Size], rows: int) -> Layout | None:
    """Lines of whole tiles: the leading dimensions are cut until they make whole rows.

    TPUs store arrays as tiles of 8 x 128 elements over the last two dimensions. Flattening an array
    copies it there, but arrays that are sent in whole tiles need no flattening.

    Returns:
        The layout; ``None`` if tiles would be cut, or the array is flat.
    """
    if any(not isinstance(size, int) for size in shape):
        return None
    # Leading dimensions are cut completely, so a line is a slice of the last ones; its tiles are
    # whole if 8 and 128 divide these. If one dimension is left, the tile's second one is made of
    # the lines of a row.
    merged = 1
    for d, size in enumerate(shape[:-1]):
        merged *= size
        rest = tuple(shape[d + 1 :])
        if merged % rows == 0:
            second = merged // rows if len(rest) == 1 else rest[-2]
            is_whole = rest[-1] % 128 == second % 8 == 0
            return Layout(tuple(shape), (1,) * (d + 1) + rest, rows) if is_whole else None
    return None


def keeping_shards(shape: Sequence[Size], rows: int, ways: Sequence[int]) -> Layout:
    """Lines with an equal part of every shard, whichever of the mesh axes ``ways`` shard the block.

    It cuts the first dimension that makes whole rows by itself, or else as many as needed.
    """
    # A dimension of symbolic size is kept whole, since it is not known how it could be cut.
    kept = [_shards(size, ways) if isinstance(size, int) else size for size in shape]
    whole = list(shape)
    for d, (size, q) in enumerate(zip(shape, kept, strict=True)):
        if isinstance(size, int) and (size // q) % rows == 0:
            whole[d] = q
            return Layout(tuple(shape), tuple(whole), rows)
    lines = 1
    for d, (size, q) in enumerate(zip(shape, kept, strict=True)):
        whole[d] = q
        lines *= size // q if isinstance(size, int) else 1
        if lines % rows == 0:
            break
    return Layout(tuple(shape), tuple(whole), rows)


def _shards(size: int, ways: Sequence[int]) -> int:
    """The least number of parts that make up every even sharding over some of the axes."""
    # On axes of 2 and 4, a dimension of 12 may be cut 2 or 4 ways, not 8: 4 parts serve both.
    counts = {
        math.prod(some) for n in range(len(ways) + 1) for some in itertools.combinations(ways, n)
    }
    return math.lcm(*(count for count in counts if size % count == 0))


# ---------------------------------------------------------------------- sizes


def is_same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for all values of symbolic dimensions."""
    return bool(a == b)


def at_least(size: Size, bound: int) -> bool:
    """Whether a size is at least a bound; False if that depends on a symbolic dimension."""
    try:
        return bool(size >= bound)
    except jax_internals.InconclusiveSize:
        return False


def divide(x: jax.Array, dimension: int, parts: int) -> jax.Array:
    """Shape (..., parts * s, ...) as (parts, ..., s, ...).

    Axes in Auto mode that shard the dimension are gathered here, once. Otherwise XLA would gather
    as many shards as make a block, and the rest when a result that is sharded over a part of an
    axis leaves the program.
    """
    if jax_internals.auto_sizes() and not jax_internals.explicit_axes():
        free: list = [PartitionSpec.UNCONSTRAINED] * x.ndim
        free[dimension] = None
        x = lax.with_sharding_constraint(x, PartitionSpec(*free))
    size = x.shape[dimension] // parts
    shape = (*x.shape[:dimension], parts, size, *x.shape[dimension + 1 :])
    spec = _spec(x)
    if spec is not None:
        # The parts are not sharded; each keeps the axes that sharded the whole dimension.
        if size % jax_internals.ways(spec[dimension]) and not jax_internals.RESHARD_ABORTS:
            # Otherwise the shards of a block would be unequal.
            spec[dimension] = None
            x = jax.reshard(x, PartitionSpec(*spec))
        spec.insert(dimension, None)
    return move(_reshape(x, shape, spec), dimension, 0)


def merge(blocks: jax.Array, dimension: int) -> jax.Array:
    """Shape (parts, ..., s, ...) as (..., parts * s, ...)."""
    x = move(blocks, 0, dimension)
    parts, size = x.shape[dimension : dimension + 2]
    shape = (*x.shape[:dimension], parts * size, *x.shape[dimension + 2 :])
    spec = _spec(x)
    if spec is not None:
        del spec[dimension]
    return _reshape(x, shape, spec)


def sharded_as(x: jax.Array, like: jax.Array) -> jax.Array:
    """``x`` with the Explicit sharding of an array of its shape, which ``divide`` may remove."""
    spec, explicit = jax_internals.explicit_sharding(like)
    if explicit == jax_internals.explicit_sharding(x)[1] or jax_internals.RESHARD_ABORTS:
        return x
    return jax.reshard(x, spec)


def move(x: jax.Array, source: int, destination: int) -> jax.Array:
    """``x`` with a dimension in another place; unlike ``jnp.moveaxis`` without a jitted function.

    The tangents of a jitted function take on the weak types of its operands.
    """
    order = [d for d in range(x.ndim) if d != source]
    order.insert(destination, source)
    return lax.transpose(x, order)


def _spec(x: jax.Array) -> list | None:
    """The Explicit axes that shard each dimension; ``None`` if there are none."""
    spec, explicit = jax_internals.explicit_sharding(x)
    return [*spec, *(None,) * (x.ndim - len(spec))] if explicit else None


def _reshape(x: jax.Array, shape: tuple, spec: list | None) -> jax.Array:
    sharding = None if spec is None else PartitionSpec(*spec)
    return lax.reshape(x, shape, out_sharding=sharding)
