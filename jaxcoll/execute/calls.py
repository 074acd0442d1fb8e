"""Calls: what stands between a function and its primitive.

Which ranks an axis name means, which schedule they run, and what operands they take.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


# ---------------------------------------------------------------------- axes


def names_of(axis_name: AxisName) -> tuple[str, ...]:
    """The names of an axis or several, all of them bound."""
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


def is_vmapped(names: tuple[str, ...]) -> bool:
    """Whether some axis is one of ``vmap``: its ranks share a device, and nothing has to travel."""
    return any(name not in internals.mesh_axes() for name in names)


def axes_of(names: tuple[str, ...]) -> Axes:
    """The axes of a mesh, in the order given."""
    sizes = internals.axis_sizes()
    canonical = tuple(name for name in internals.mesh_axes() if name in names)
    return Axes(names, tuple(sizes[name] for name in names), canonical)


def size_of(names: tuple[str, ...]) -> int:
    """Ranks along some axes, of a mesh or of ``vmap``."""
    sizes = internals.axis_sizes()
    return math.prod(sizes[name] for name in names)


def group_size(axes: Axes, groups: Groups) -> int:
    """Ranks in a group."""
    return axes.num_ranks if groups is None else len(groups[0])


# ---------------------------------------------------------------------- running


@dataclasses.dataclass(frozen=True)
class Call:
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
    names = names_of(axis_name)
    if is_vmapped(names) or not names:
        raise CollectiveError(f"one or more axes of a mesh are needed, got {axis_name!r}")
    return Call(kind, choice, axes_of(names)).resolve(x)


def joined(call: Call, leaves: list[jax.Array]) -> list[jax.Array]:
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


def array(leaf, function: str):
    """An operand as an array of a dtype that can travel."""
    # Python scalars and NumPy arrays stay concrete, as in jax.lax, where they have a constant sum.
    leaf = leaf if isinstance(leaf, (jax.Array, Tracer)) else np.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise CollectiveError(f"{function} does not take arrays of {leaf.dtype}; unwrap them first")
    return leaf


def summable(leaf, function: str, bools: bool = False):
    """An operand that can be added; booleans as int32 where a function allows them."""
    leaf = array(leaf, function)
    if leaf.dtype == bool:
        if not bools:
            raise CollectiveError(f"{function} cannot add booleans; cast them to an integer type")
        return leaf.astype(np.int32)
    return leaf


def vary(leaf, axes: Axes):
    """An operand typed as varying over the axes."""
    leaf = jnp.asarray(leaf)
    pending = internals.unreduced(leaf) & set(axes.over)
    if pending:
        raise CollectiveError(
            f"the operand is an unreduced sum over {sorted(pending)}; use jax.lax for those"
        )
    return primitives.vary(leaf, axes.over)


def dimension_of(dimension: int, ndim: int, name: str, leaf) -> int:
    """A dimension counted from the front."""
    if not -ndim <= dimension < ndim:
        raise CollectiveError(f"{name}={dimension} is not a dimension for shape {leaf.shape}")
    return dimension % ndim


def check_divides(leaf, dimension: int, size: int, tiled: bool, what: str) -> None:
    """Refuse a dimension that cannot be cut into ``size`` parts."""
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
