"""The functions: those of ``jax.lax`` under the same names and signatures, run by schedules.

All are called inside ``jax.shard_map``. They take what ``jax.lax`` takes, give what it gives, and
add three keywords:

- ``schedule``: a ``Schedule`` for as many ranks as the axis has, rank r being the device whose
  ``lax.axis_index(axis_name)`` is r; or one for all ranks of the mesh (in the order of
  ``mesh.devices.flat``, as in ``Topology.from_mesh``) with the groups along the axis as its groups,
  which then all run by it at once; or a synthesizer, its name, or a function of (topology,
  collective), run once on a default topology; or ``None`` for the default.
- ``lowering``: "auto" or the name of a lowering.
- ``accum_dtype`` (sums only): the dtype in which values travel and are added, instead of their own.

Sums are taken in the order of the schedule: bitwise the same on all ranks and from run to run, but
for floats not bitwise those of ``jax.lax``.

All errors are raised while tracing, before any communication: ``CollectiveError`` for an axis that
is not bound, groups that do not cover it, dimensions that do not divide, or a dtype that cannot be
summed; ``ScheduleError`` for a schedule that does not fit or does not verify.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import internals, primitives
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.buckets import in_buckets
from jaxcoll.execute.processes import agree
from jaxcoll.execute.schedules import Choice, choose
from jaxcoll.schedule import Schedule

# Leaves are joined up to this many bytes: as many as take about as long to move as rounds cost.
JOINED_BYTES = 1 << 20

AxisName = str | Sequence[str]
Groups = Sequence[Sequence[int]] | None


class UnboundAxisError(CollectiveError, NameError):
    """An axis name that is not bound where a collective is called."""


# ---------------------------------------------------------------------- sums


def psum(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The sum over the ranks of an axis, on all of them. See ``jax.lax.psum``.

    Small leaves of one dtype travel together.

    Args:
        x: a pytree of arrays of any shape; booleans are summed as int32.
        schedule: of all_reduce, or an all_gather or reduce_scatter to derive one from.

    Returns:
        Arrays of the shapes of ``x``, typed as invarying over the axis if ``check_vma``.
    """
    names = _names(axis_name)
    if not names:
        return x
    if _is_vmapped(names):
        return lax.psum(x, axis_name, axis_index_groups=axis_index_groups)
    axes = _axes(names)
    invarying = internals.checks_vma() and axis_index_groups is None
    call = _Call(
        "all_reduce", schedule, axes, axis_index_groups, None, lowering, invarying, accum_dtype
    )

    leaves, structure = jax.tree.flatten(x)
    leaves = [_summable(leaf, "psum", bools=True) for leaf in leaves]
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    totals = _joined(call, [_vary(leaves[i], axes) for i in traced])
    size = _group_size(axes, axis_index_groups)
    sums = [leaf if isinstance(leaf, Tracer) else leaf * size for leaf in leaves]
    for i, total in zip(traced, totals, strict=True):
        sums[i] = total
    return jax.tree.unflatten(structure, sums)


def pmean(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The mean over the ranks of an axis, on all of them. See ``psum`` and ``jax.lax.pmean``."""
    total = psum(
        x,
        axis_name,
        axis_index_groups=axis_index_groups,
        schedule=schedule,
        lowering=lowering,
        accum_dtype=accum_dtype,
    )
    names = _names(axis_name)
    size = len(axis_index_groups[0]) if axis_index_groups else _size(names)
    return jax.tree.map(lambda v: v / size, total)


def psum_scatter(
    x,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The sum over the ranks of an axis, each keeping its part. See ``jax.lax.psum_scatter``.

    Args:
        x: a pytree of arrays whose ``scatter_dimension`` is the size of a group, or if ``tiled`` a
            multiple of it.
        schedule: of reduce_scatter, or an all_gather to run backwards.

    Returns:
        Arrays without that dimension, or if ``tiled`` with one shorter by the size of a group.
    """
    names = _names(axis_name)
    if not names:
        return x
    if _is_vmapped(names):
        return lax.psum_scatter(
            x,
            axis_name,
            scatter_dimension=scatter_dimension,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
    axes = _axes(names)
    call = _Call(
        "reduce_scatter",
        schedule,
        axes,
        axis_index_groups,
        lowering=lowering,
        accum_dtype=accum_dtype,
    )
    size = _group_size(axes, axis_index_groups)

    def one(leaf):
        leaf = _vary(_summable(leaf, "psum_scatter"), axes)
        dimension = _dimension(scatter_dimension, leaf.ndim, "scatter_dimension", leaf)
        _check_divides(leaf, dimension, size, tiled, f"psum_scatter over {axes}")
        moved = jnp.moveaxis(leaf, dimension, 0)
        part = call(moved)
        return jnp.moveaxis(part, 0, dimension) if tiled else part.reshape(part.shape[1:])

    return jax.tree.map(one, x)


# ---------------------------------------------------------------------- moves


def all_gather(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    schedule: Choice = None,
    lowering: str = "auto",
):
    """The arrays of all ranks of an axis, side by side, on all of them. See ``jax.lax.all_gather``.

    Args:
        x: a pytree of arrays.
        axis: where the new dimension of the size of a group goes, or if ``tiled`` which dimension
            grows by that factor.
        to: "varying", or "invarying" for a result typed as the same on all ranks.
        schedule: of all_gather, or a reduce_scatter to run backwards.
    """
    if to not in ("varying", "invarying"):
        raise CollectiveError(f"all_gather gives to='varying' or 'invarying', got {to!r}")
    names = _names(axis_name)
    if not names:
        return x
    if _is_vmapped(names):
        return lax.all_gather(
            x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to
        )
    axes = _axes(names)
    if to == "invarying" and axis_index_groups is not None:
        raise CollectiveError(
            "groups of an axis gather different results, which to='invarying' would call the same"
        )
    invarying = to == "invarying" and internals.checks_vma()
    call = _Call("all_gather", schedule, axes, axis_index_groups, None, lowering, invarying)

    def one(leaf):
        leaf = _vary(_array(leaf, "all_gather"), axes)
        dimension = _dimension(axis, leaf.ndim + (not tiled), "axis", leaf)
        moved = jnp.moveaxis(leaf, dimension, 0) if tiled else leaf[None]
        return jnp.moveaxis(call(moved), 0, dimension)

    return jax.tree.map(one, x)


def all_to_all(
    x,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups = None,
    tiled: bool = False,
    schedule: Choice = None,
    lowering: str = "auto",
):
    """Every rank's i-th part to rank i. See ``jax.lax.all_to_all``.

    Args:
        x: a pytree of arrays whose ``split_axis`` is the size of a group, or if ``tiled`` a
            multiple of it.
        schedule: of all_to_all.
    """
    names = _names(axis_name)
    if not names:
        return x
    if _is_vmapped(names):
        return lax.all_to_all(
            x,
            axis_name,
            split_axis,
            concat_axis,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
    axes = _axes(names)
    call = _Call("all_to_all", schedule, axes, axis_index_groups, lowering=lowering)
    size = _group_size(axes, axis_index_groups)

    def one(leaf):
        leaf = _vary(_array(leaf, "all_to_all"), axes)
        split = _dimension(split_axis, leaf.ndim, "split_axis", leaf)
        concat = _dimension(concat_axis, leaf.ndim, "concat_axis", leaf)
        _check_divides(leaf, split, size, tiled, f"all_to_all over {axes}")
        moved = jnp.moveaxis(leaf, split, 0)
        out = call(moved)
        if not tiled:
            return jnp.moveaxis(out, 0, concat)
        each = (size, out.shape[0] // size, *out.shape[1:])
        parts = jnp.moveaxis(out.reshape(each), 1, split + 1)
        joined = jnp.moveaxis(parts, 0, concat)
        shape = list(leaf.shape)
        shape[split] //= size
        shape[concat] *= size
        return joined.reshape(shape)

    return jax.tree.map(one, x)


def pbroadcast(
    x, axis_name: AxisName, source: int, *, schedule: Choice = None, lowering: str = "auto"
):
    """The array of rank ``source`` on all ranks of an axis. See ``jax.lax.pbroadcast``.

    Args:
        x: a pytree of arrays.
        schedule: of broadcast with root ``source``.
    """
    return _rooted("broadcast", x, axis_name, source, schedule, lowering)


broadcast = pbroadcast


def reduce(
    x,
    axis_name: AxisName,
    root: int,
    *,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The sum over the ranks of an axis at rank ``root``, zeros elsewhere.

    Args:
        x: a pytree of arrays of any shape.
        schedule: of reduce with that root.
    """
    return _rooted("reduce", x, axis_name, root, schedule, lowering, accum_dtype)


def gather(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """The arrays of all ranks of an axis, stacked, at rank ``root``; zeros elsewhere.

    Args:
        x: a pytree of arrays of shape (...).
        schedule: of gather with that root.

    Returns:
        Arrays of shape (ranks, ...).
    """
    stacked = jax.tree.map(lambda leaf: _array(leaf, "gather")[None], x)
    return _rooted("gather", stacked, axis_name, root, schedule, lowering)


def scatter(x, axis_name: AxisName, root: int, *, schedule: Choice = None, lowering: str = "auto"):
    """The i-th part of the array of rank ``root``, at rank i.

    Args:
        x: a pytree of arrays of shape (ranks, ...); only that of the root counts.
        schedule: of scatter with that root.

    Returns:
        Arrays of shape (...).
    """
    parts = _rooted("scatter", x, axis_name, root, schedule, lowering)
    return jax.tree.map(lambda part: part.reshape(part.shape[1:]), parts)


def _rooted(kind, x, axis_name, root, schedule, lowering, accum_dtype=None):
    names = _names(axis_name)
    if _is_vmapped(names) or not names:
        raise CollectiveError(f"{kind} runs over axes of a mesh, got {axis_name!r}")
    axes = _axes(names)
    if not 0 <= int(root) < axes.num_ranks:
        raise CollectiveError(f"the root of {kind} must be an index of {axes}, got {root}")
    call = _Call(kind, schedule, axes, root=int(root), lowering=lowering, accum_dtype=accum_dtype)

    def one(leaf):
        leaf = _summable(leaf, kind) if kind == "reduce" else _array(leaf, kind)
        if kind == "scatter":
            _dimension(0, leaf.ndim, "the leading dimension", leaf)
            _check_divides(leaf, 0, axes.num_ranks, False, f"scatter over {axes}")
        return call(_vary(leaf, axes))

    return jax.tree.map(one, x)


# ---------------------------------------------------------------------- axes


def _names(axis_name: AxisName) -> tuple[str, ...]:
    names = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    sizes = internals.axis_sizes()
    for name in names:
        if isinstance(name, int):
            raise CollectiveError(
                f"axis_name={axis_name!r} names the positional dimension {name}; sum over it with "
                "jnp.sum first"
            )
        if name not in sizes:
            bound = ", ".join(map(repr, sizes)) or "none"
            raise UnboundAxisError(
                f"axis {name!r} is not bound here (bound: {bound}); call this inside jax.shard_map "
                "over a mesh that has it as a manual axis"
            )
    if len(set(names)) < len(names):
        raise CollectiveError(f"axis_name={axis_name!r} names an axis twice")
    return names  # type: ignore[return-value]


def _is_vmapped(names: tuple[str, ...]) -> bool:
    """Whether some axis is one of ``vmap``: its ranks share a device, and nothing has to travel."""
    return any(name not in internals.mesh_axes() for name in names)


def _axes(names: tuple[str, ...]) -> Axes:
    sizes = internals.axis_sizes()
    canonical = tuple(name for name in internals.mesh_axes() if name in names)
    return Axes(names, tuple(sizes[name] for name in names), canonical)


def _size(names: tuple[str, ...]) -> int:
    sizes = internals.axis_sizes()
    return math.prod(sizes[name] for name in names)


def _group_size(axes: Axes, groups: Groups) -> int:
    return axes.num_ranks if groups is None else len(groups[0])


# ---------------------------------------------------------------------- running


@dataclasses.dataclass(frozen=True)
class _Call:
    """A collective with all but its operand."""

    kind: str
    choice: Choice
    axes: Axes
    groups: Groups = None
    root: int | None = None
    lowering: str = "auto"
    invarying: bool = False
    accum_dtype: Any = None

    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = x.dtype if self.accum_dtype is None else np.dtype(self.accum_dtype)
        if dtype != x.dtype:
            return self._local(x.astype(dtype)).astype(x.dtype)
        return self._local(x)

    def _local(self, x: jax.Array) -> jax.Array:
        """Run on what a device holds, where Explicit axes shard ``x`` further."""
        spec, explicit = internals.explicit_sharding(x)
        if not explicit:
            return self._run(x)
        if self.kind not in ("all_reduce", "broadcast", "reduce"):
            raise CollectiveError(
                f"{self.kind} over {self.axes}: the operand is sharded over the Explicit axes "
                f"{sorted(explicit)} as well; make these manual too (axis_names= of shard_map), or "
                "jax.reshard it first"
            )
        return jax.shard_map(self._run, in_specs=spec, out_specs=spec, axis_names=explicit)(x)

    def _run(self, x: jax.Array) -> jax.Array:
        axes, chosen = self.resolve(x)
        return primitives.bind(x, axes, chosen, lowering=self.lowering, invarying=self.invarying)

    def resolve(self, x: jax.Array) -> tuple[Axes, Schedule]:
        """The axes that a collective of an operand runs over, and by which schedule."""
        axes, groups = self.axes, self.groups
        if isinstance(self.choice, Schedule) and groups is None and self.root is None:
            axes = _axes_of_schedule(self.choice, axes)
            groups = self.choice.collective.groups if axes.names != axes.over else None
        ranks = self.axes.num_ranks if groups is None else len(groups[0])
        nbytes = x.size * x.dtype.itemsize * (ranks if self.kind == "all_gather" else 1)
        chosen = choose(self.choice, self.kind, axes, groups, self.root, nbytes)
        agree(chosen, axes, self.lowering)
        return axes, chosen


def resolve(kind: str, x: jax.Array, axis_name: AxisName, choice: Choice) -> tuple[Axes, Schedule]:
    """What a collective of ``x`` without groups or root would run: on which axes, which schedule.

    Raises:
        CollectiveError: as the function of that kind, and for axes of ``vmap``.
    """
    names = _names(axis_name)
    if _is_vmapped(names) or not names:
        raise CollectiveError(f"one or more axes of a mesh are needed, got {axis_name!r}")
    return _Call(kind, choice, _axes(names)).resolve(x)


def _joined(call: _Call, leaves: list[jax.Array]) -> list[jax.Array]:
    """Sums of leaves, small ones side by side where that changes neither types nor shardings."""
    if not internals.is_fully_manual():
        return [call(leaf) for leaf in leaves]
    alike: dict[object, list[int]] = {}
    for i, leaf in enumerate(leaves):
        is_small = leaf.size * leaf.dtype.itemsize < JOINED_BYTES
        alike.setdefault(internals.varying(leaf) if is_small else i, []).append(i)
    for members in alike.values():
        sums = in_buckets(call, [leaves[i] for i in members], JOINED_BYTES, "tree")
        for i, total in zip(members, sums, strict=True):
            leaves[i] = total
    return leaves


def _axes_of_schedule(schedule: Schedule, axes: Axes) -> Axes:
    """The axes, or all of the mesh where the schedule serves all groups along them at once."""
    names, sizes = internals.mesh_axes(), internals.axis_sizes()
    mesh = Axes(names, tuple(sizes[name] for name in names), names, axes.names)
    if schedule.collective.num_ranks == axes.num_ranks != mesh.num_ranks:
        return axes
    return mesh if frozenset(schedule.collective.groups) == mesh.groups() else axes


# ---------------------------------------------------------------------- operands


def _array(leaf, function: str):
    # Python scalars and NumPy arrays stay concrete, as in jax.lax, where they have a constant sum.
    leaf = leaf if isinstance(leaf, (jax.Array, Tracer)) else np.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise CollectiveError(f"{function} does not take arrays of {leaf.dtype}; unwrap them first")
    return leaf


def _summable(leaf, function: str, bools: bool = False):
    leaf = _array(leaf, function)
    if leaf.dtype == bool:
        if not bools:
            raise CollectiveError(f"{function} cannot add booleans; cast them to an integer type")
        return leaf.astype(np.int32)
    return leaf


def _vary(leaf, axes: Axes):
    leaf = jnp.asarray(leaf)
    pending = internals.unreduced(leaf) & set(axes.over)
    if pending:
        raise CollectiveError(
            f"the operand is an unreduced sum over {sorted(pending)}; use jax.lax for those"
        )
    return primitives.vary(leaf, axes.over)


def _dimension(dimension: int, ndim: int, name: str, leaf) -> int:
    if not -ndim <= dimension < ndim:
        raise CollectiveError(f"{name}={dimension} is not a dimension for shape {leaf.shape}")
    return dimension % ndim


def _check_divides(leaf, dimension: int, size: int, tiled: bool, what: str) -> None:
    length = leaf.shape[dimension]
    if tiled and length % size:
        raise CollectiveError(
            f"{what} cuts dimension {dimension} of shape {leaf.shape} into {size} parts, and "
            f"{length} is not a multiple of {size}"
        )
    if not tiled and length != size:
        raise CollectiveError(
            f"{what} needs dimension {dimension} of shape {leaf.shape} to be {size}, got {length}; "
            "tiled=True takes any multiple"
        )
