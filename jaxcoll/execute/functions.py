"""The functions: those of ``jax.lax`` under the same names and signatures, run by schedules.

All are called inside ``jax.shard_map``. They take what ``jax.lax`` takes, give what it gives, and
add three keywords:

- ``schedule``: a ``Schedule`` for as many ranks as the axis has, rank r being the device whose
  ``lax.axis_index(axis_name)`` is r; or one for all ranks of the mesh (in the order of
  ``mesh.devices.flat``, as in ``Topology.from_mesh``) with the groups along the axis as its groups,
  which then all run by it at once; or a synthesizer, its name, or a function of (topology,
  collective), run once on a default topology; or ``None`` for the default.
- ``lowering``: "auto" or the name of a lowering.
- ``accum_dtype`` (sums only): the dtype in which values are sent and added, instead of their own:
  a floating dtype for floats, one that has all their values for integers and complex numbers.

Three kinds of calls are handed to ``jax.lax``: sums of constants (Python numbers, NumPy arrays),
which need no communication; axes of ``vmap``, whose ranks share a device; and operands with
symbolic dimensions, which cannot be split inside ``shard_map``. docs/execution.md lists every case
that is mirrored, passed through or refused.

Sums are taken in the order of the schedule: bitwise the same on all ranks and from run to run, but
for floats not bitwise those of ``jax.lax``.

All errors are raised while tracing, before any communication: ``CollectiveError`` for an axis that
is not bound, groups that do not cover it, dimensions that do not divide, or a dtype that cannot be
summed; ``ScheduleError`` for a schedule that does not fit or does not verify.
"""

from __future__ import annotations

import functools

import jax
from jax import lax
from jax.core import Tracer

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.blocks import divide, merge, move
from jaxcoll.execute.calls import (
    AxisName,
    Call,
    Groups,
    accumulated,
    array,
    axes_of,
    check_divides,
    counted,
    dimension_of,
    group_size,
    is_handed_on,
    joined,
    names_of,
    summable,
    vary,
)
from jaxcoll.execute.choice.selection import Choice

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

    Small leaves of one dtype are sent together.

    Args:
        x: a pytree of arrays of any shape; booleans are summed as int32.
        schedule: of all_reduce, or an all_gather or reduce_scatter to derive one from.

    Returns:
        Arrays of the shapes of ``x``, typed as invarying over the axis if ``check_vma``.
    """
    settings = (axis_index_groups, schedule, lowering, accum_dtype)
    return _reduced("sum", x, axis_name, *settings)


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
    size = lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    return jax.tree.map(lambda v: v / size, total)


def pmax(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
):
    """The maximum over the ranks of an axis, on all of them. See ``jax.lax.pmax``.

    Small leaves of one dtype are sent together. NaN wherever a rank has NaN. Like ``jax.lax.pmax``
    it has no derivative.

    Args:
        x: a pytree of arrays of any shape.
        schedule: as for ``psum``.
    """
    return _reduced("max", x, axis_name, axis_index_groups, schedule, lowering)


def pmin(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
):
    """The minimum over the ranks of an axis, on all of them. See ``pmax`` and ``jax.lax.pmin``."""
    return _reduced("min", x, axis_name, axis_index_groups, schedule, lowering)


def _reduced(op, x, axis_name, groups, schedule, lowering, accum_dtype=None):
    """Leaves summed, or their maxima or minima, in the way of ``jax.lax``."""
    names = names_of(axis_name)
    if not names:
        return x
    native = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op]
    handed = functools.partial(native, axis_name=axis_name, axis_index_groups=groups)
    if is_handed_on(names, x):
        return accumulated(handed, x, accum_dtype, f"p{op}")
    axes = axes_of(names)
    group_size(axes, groups)
    leaves, structure = jax.tree.flatten(x)
    if op == "sum":
        leaves = [counted(leaf, "psum") for leaf in leaves]
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return handed(jax.tree.unflatten(structure, leaves))
    invarying = jax_internals.checks_vma() and groups is None
    call = Call("all_reduce", schedule, axes, groups, None, lowering, invarying, accum_dtype, op)
    varied = [vary(array(leaf, f"p{op}"), axes) for leaf in leaves]
    return jax.tree.unflatten(structure, joined(call, varied))


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
    names = names_of(axis_name)
    if not names:
        return x
    if is_handed_on(names, x):
        handed = functools.partial(
            lax.psum_scatter,
            axis_name=axis_name,
            scatter_dimension=scatter_dimension,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
        return accumulated(handed, x, accum_dtype, "psum_scatter")
    axes = axes_of(names)
    call = Call(
        "reduce_scatter",
        schedule,
        axes,
        axis_index_groups,
        lowering=lowering,
        accum_dtype=accum_dtype,
    )
    size = group_size(axes, axis_index_groups)

    def one(leaf):
        leaf = vary(summable(leaf, "psum_scatter"), axes)
        dimension = dimension_of(scatter_dimension, leaf.ndim, "scatter_dimension", leaf)
        check_divides(leaf, dimension, size, tiled, f"psum_scatter over {axes}")
        blocks = divide(leaf, dimension, size) if tiled else move(leaf, dimension, 0)
        return lax.squeeze(call(blocks), (0,))

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
        raise CollectiveError(
            f"all_gather gives to='varying' or 'invarying', got {to!r}; use jax.lax for 'reduced'"
        )
    names = names_of(axis_name)
    if not names:
        return x
    if is_handed_on(names, x):
        return lax.all_gather(
            x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to
        )
    axes = axes_of(names)
    invarying = to == "invarying" and (
        jax_internals.checks_vma() or jax_internals.INVARYING_UNCHECKED
    )
    if invarying and axis_index_groups is not None:
        raise CollectiveError(
            "groups of an axis gather different results, which to='invarying' would call the same"
        )
    group_size(axes, axis_index_groups)
    call = Call("all_gather", schedule, axes, axis_index_groups, None, lowering, invarying)

    def one(leaf):
        leaf = vary(array(leaf, "all_gather"), axes)
        dimension = dimension_of(axis, leaf.ndim + (not tiled), "axis", leaf)
        blocks = call(lax.expand_dims(leaf, (0,)))
        return merge(blocks, dimension) if tiled else move(blocks, 0, dimension)

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
    names = names_of(axis_name)
    if not names:
        return x
    if is_handed_on(names, x):
        return lax.all_to_all(
            x,
            axis_name,
            split_axis,
            concat_axis,
            axis_index_groups=axis_index_groups,
            tiled=tiled,
        )
    axes = axes_of(names)
    call = Call("all_to_all", schedule, axes, axis_index_groups, lowering=lowering)
    size = group_size(axes, axis_index_groups)

    def one(leaf):
        leaf = vary(array(leaf, "all_to_all"), axes)
        split = dimension_of(split_axis, leaf.ndim, "split_axis", leaf)
        concat = dimension_of(concat_axis, leaf.ndim, "concat_axis", leaf)
        check_divides(leaf, split, size, tiled, f"all_to_all over {axes}")
        blocks = call(divide(leaf, split, size) if tiled else move(leaf, split, 0))
        return merge(blocks, concat) if tiled else move(blocks, 0, concat)

    return jax.tree.map(one, x)
