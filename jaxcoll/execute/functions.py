"""The functions: those of ``jax.lax`` under the same names and signatures, run by schedules.

All are called inside ``jax.shard_map``. They take what ``jax.lax`` takes, give what it gives, and
add these keywords:

- ``schedule``: a ``Schedule`` for as many ranks as the axis has, rank r being the device whose
  ``lax.axis_index(axis_name)`` is r; or one for all ranks of the mesh (in the order of
  ``mesh.devices.flat``, as in ``Topology.from_mesh``) with the groups along the axis as its groups,
  which then all run by it at once; or a synthesizer, its name ("auto" for the fastest), or a
  function of (topology, collective), run once on the stated topology (``jc.use_topology``) or a
  default one; or ``None`` for the cheapest of ``jax.lax`` itself and the schedules.
- ``lowering``: "auto" or the name of a lowering.
- ``accum_dtype`` (sums only): the dtype in which values are sent and added, instead of their own:
  a floating dtype for floats, one that has all their values for integers and complex numbers.
- ``order`` (sums only): "fixed" for sums whose bits depend on the contributions alone, not on the
  size of the buffer or an element's place in it (``execute.fixed_order``); ``None`` for any order.

Calls that leave ``schedule`` and ``lowering`` open are handed to ``jax.lax`` where that is
cheapest: always, unless a table of tuning is in use or a network is known. So are three kinds of
calls in any case: sums of constants (Python numbers, NumPy arrays),
which need no communication; axes of ``vmap``, whose ranks share a device; and operands with
symbolic dimensions, which cannot be split inside ``shard_map``. docs/execution.md lists every case
that is mirrored, passed through or refused.

Sums are taken in the order of the schedule: bitwise the same on all ranks and from run to run, but
for floats not bitwise those of ``jax.lax``.

All errors are raised while tracing, before any communication: ``CollectiveError`` for an axis that
is not bound, groups that do not cover it, dimensions that do not divide, or a dtype that cannot be
summed; ``ScheduleError`` for a schedule that does not fit or does not verify.

Those with a root come last: broadcast, reduce, gather and scatter, which ``jax.lax`` lacks.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxcoll.errors import CollectiveError
from jaxcoll.execute import fixed_order, jax_internals
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
    is_symbolic,
    is_vmapped,
    joined,
    names_of,
    summable,
    vary,
)
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.layout import divide, merge, move, sharded_as
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks

# ---------------------------------------------------------------------- sums


def psum(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
    order: str | None = None,
):
    """The sum over the ranks of an axis, on all of them. See ``jax.lax.psum``.

    Small leaves of one dtype are sent together.

    Args:
        x: a pytree of arrays of any shape; booleans are summed as int32.
        schedule: of all_reduce, or an all_gather or reduce_scatter to derive one from.
        order: with "fixed" a schedule must have one order of addition (``jaxcoll.sum_orders``).

    Returns:
        Arrays of the shapes of ``x``, typed as invarying over the axis if ``check_vma``.
    """
    return _reduced("sum", x, axis_name, axis_index_groups, schedule, lowering, accum_dtype, order)


def pmean(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
    order: str | None = None,
):
    """The mean over the ranks of an axis, on all of them. See ``psum`` and ``jax.lax.pmean``."""
    total = _reduced("sum", x, axis_name, axis_index_groups, schedule, lowering, accum_dtype, order)
    size = lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    mean = jax.tree.map(lambda v: v / size, total)
    # Merged with a sum that uses it, the quotient would not be rounded; by a power of two it is
    # exact.
    is_exact = size & (size - 1) == 0
    return mean if order is None or is_exact else fixed_order.rounded(mean)


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


def _reduced(op, x, axis_name, groups, schedule, lowering, accum_dtype=None, order=None):
    """Leaves summed, or their maxima or minima, in the way of ``jax.lax``."""
    is_fixed = fixed_order.is_fixed(order)
    names = names_of(axis_name)
    if not names:  # over no axes there is one rank, as for jax.lax
        return x
    native = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op]
    handed = functools.partial(native, axis_name=axis_name, axis_index_groups=groups)
    if is_handed_on(names, x):
        if is_fixed:
            handed = _fixed_on_one_device(x, axis_name, groups)
        return accumulated(handed, x, accum_dtype, f"p{op}")
    axes = axes_of(names)
    group_size(axes, groups)  # for its errors
    leaves, structure = jax.tree.flatten(x)
    if op == "sum":
        leaves = [counted(leaf, "psum") for leaf in leaves]
        # A sum of constants is one, n times itself: jax.lax returns Python numbers for such, which
        # programs use as static sizes (lax.psum(1, axis_name)).
        if not any(isinstance(leaf, Tracer) for leaf in leaves):
            return handed(jax.tree.unflatten(structure, leaves))
    # jax.lax types maxima over groups as it types those over an axis, though groups may differ.
    invarying = jax_internals.checks_vma() and (groups is None or op != "sum")
    call = Call(
        "all_reduce", schedule, axes, groups, None, lowering, invarying, accum_dtype, op, is_fixed
    )
    varied = [vary(array(leaf, f"p{op}"), axes) for leaf in leaves]
    # Per leaf: large gradients may be faster by a schedule and small ones by ``jax.lax``.
    by_lax = [i for i, leaf in enumerate(varied) if call.is_left_to_lax(leaf)]
    others = [i for i in range(len(varied)) if i not in set(by_lax)]
    # One call of jax.lax for all leaves, as a program without jaxcoll has it.
    sums = accumulated(handed, [varied[i] for i in by_lax], accum_dtype, f"p{op}")
    sums += joined(call, [varied[i] for i in others])
    for i, total in zip(by_lax + others, sums, strict=True):
        varied[i] = total
    return jax.tree.unflatten(structure, varied)


def _fixed_on_one_device(x, axis_name, groups):
    """Sums in a fixed order over ranks that share a device, as those of ``vmap`` do."""
    if is_symbolic(x):
        raise CollectiveError(
            "order='fixed' does not take operands of symbolic dimensions, which cannot be cut "
            "inside shard_map; export for definite shapes, or leave order= out"
        )

    def one(leaf):
        rows = lax.all_gather(leaf, axis_name, axis_index_groups=groups)
        return fixed_order.sum_of_rows(rows)

    return functools.partial(jax.tree.map, one)


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
    order: str | None = None,
):
    """The sum over the ranks of an axis, each keeping its part. See ``jax.lax.psum_scatter``.

    Args:
        x: a pytree of arrays whose ``scatter_dimension`` is the size of a group, or if ``tiled`` a
            multiple of it.
        schedule: of reduce_scatter, or an all_gather to run backwards.
        order: as for ``psum``, whose blocks these then are, bit for bit.

    Returns:
        Arrays without that dimension, or if ``tiled`` with one shorter by the size of a group.
    """
    is_fixed = fixed_order.is_fixed(order)
    checks.flag(tiled, "tiled", CollectiveError)
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
        if is_fixed:
            # The sum as psum takes it, and of it this rank's part, so that the bits are those of
            # psum. Ranks share a device: no bytes are sent for nothing.
            whole = _fixed_on_one_device(x, axis_name, axis_index_groups)
            ranks, index = lax.axis_size(axis_name), lax.axis_index(axis_name)

            def own(leaf):
                size = leaf.shape[scatter_dimension] // ranks if tiled else 1
                part = lax.dynamic_slice_in_dim(leaf, index * size, size, scatter_dimension)
                return part if tiled else lax.squeeze(part, (scatter_dimension,))

            return accumulated(
                lambda leaf: jax.tree.map(own, whole(leaf)), x, accum_dtype, "psum_scatter"
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
        is_fixed=is_fixed,
    )
    size = group_size(axes, axis_index_groups)

    def one(leaf):
        leaf = vary(summable(leaf, "psum_scatter"), axes)
        dimension = dimension_of(scatter_dimension, leaf.ndim, "scatter_dimension", leaf)
        check_divides(leaf, dimension, size, tiled, f"psum_scatter over {axes}")
        if call.is_left_to_lax(leaf):
            # Tiled: jax.lax has no batching rule for the other form.
            native = functools.partial(
                lax.psum_scatter, axis_name=names, scatter_dimension=dimension, tiled=True
            )
            part = accumulated(native, leaf, accum_dtype, "psum_scatter")
            return part if tiled else lax.squeeze(part, (dimension,))
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
    checks.flag(tiled, "tiled", CollectiveError)
    if not isinstance(to, str) or to not in ("varying", "invarying"):
        raise CollectiveError(
            f"all_gather gives to='varying' or 'invarying', got "
            f"{checks.shown(to)}; use jax.lax for 'reduced'"
        )
    names = names_of(axis_name)
    if not names:
        return x
    if is_handed_on(names, x):
        return lax.all_gather(
            x, axis_name, axis_index_groups=axis_index_groups, axis=axis, tiled=tiled, to=to
        )
    axes = axes_of(names)
    # Without check_vma all types are the same, but in old JAX the derivative depends on ``to``.
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
        if call.is_left_to_lax(leaf):
            return lax.all_gather(leaf, names, axis=dimension, tiled=tiled, to=to)
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
    checks.flag(tiled, "tiled", CollectiveError)
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
        if call.is_left_to_lax(leaf):
            if tiled:
                return lax.all_to_all(leaf, names, split, concat, tiled=True)
            # By way of the tiled one, which has all derivatives: the parts are concatenated along a
            # new dimension of size 1, where untiled the new dimension would stand.
            place = concat if concat <= split else concat + 1
            split += place <= split
            leaf = lax.expand_dims(leaf, (place,))
            return lax.squeeze(lax.all_to_all(leaf, names, split, place, tiled=True), (split,))
        blocks = call(divide(leaf, split, size) if tiled else move(leaf, split, 0))
        out = merge(blocks, concat) if tiled else move(blocks, 0, concat)
        return sharded_as(out, leaf) if tiled and split == concat else out

    return jax.tree.map(one, x)


def pbroadcast(
    x, axis_name: AxisName, source: int, *, schedule: Choice = None, lowering: str = "auto"
):
    """The array of rank ``source`` on all ranks of an axis. See ``jax.lax.pbroadcast``.

    Args:
        x: a pytree of arrays.
        schedule: of broadcast with root ``source``.
    """
    if is_symbolic(x):
        return lax.pbroadcast(x, axis_name, source)
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
    stacked = jax.tree.map(lambda leaf: array(leaf, "gather")[None], x)
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
    # jax.lax has none of these but pbroadcast, so nothing can be handed to it.
    names = names_of(axis_name)
    if is_vmapped(names) or not names:
        raise CollectiveError(f"{kind} runs over axes of a mesh, got {checks.shown(axis_name)}")
    if is_symbolic(x):
        shapes = sorted({str(np.shape(leaf)) for leaf in jax.tree.leaves(x)})
        raise CollectiveError(f"{kind} needs shapes known while tracing, got {', '.join(shapes)}")
    axes = axes_of(names)
    is_index = isinstance(root, (int, np.integer)) and not isinstance(root, bool)
    if not is_index or not 0 <= root < axes.num_ranks:
        raise CollectiveError(
            f"the root of {kind} must be an index of {axes}, a Python integer known while tracing, "
            f"got {checks.shown(root)}"
        )
    call = Call(kind, schedule, axes, root=int(root), lowering=lowering, accum_dtype=accum_dtype)

    def one(leaf):
        leaf = summable(leaf, kind) if kind_of(kind).adds else array(leaf, kind)
        if kind_of(kind).ends_with_shard:
            dimension_of(0, leaf.ndim, "the leading dimension", leaf)
            check_divides(leaf, 0, axes.num_ranks, False, f"scatter over {axes}")
        return call(vary(leaf, axes))

    return jax.tree.map(one, x)
