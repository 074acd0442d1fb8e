"""The functions of ``jax.lax`` under the same names and signatures, run by schedules.

All are called inside ``jax.shard_map``. They take the arguments of ``jax.lax``, return the same
results, and add these keywords:

- ``schedule``: a ``Schedule`` for as many ranks as the axis has, where rank r is the device whose
  ``lax.axis_index(axis_name)`` is r; or one for all ranks of the mesh (in the order of
  ``mesh.devices.flat``, as in ``Topology.from_mesh``) whose groups are those along the axis, all of
  which then run by it at once; or a synthesizer, its name ("auto" for the fastest), or a function
  of (topology, collective), run once on the stated topology (``jc.use_topology``) or a default one;
  or ``None`` for the cheapest of ``jax.lax`` itself and the schedules.
- ``lowering``: "auto" or the name of a lowering.
- ``accum_dtype`` (sums only): the dtype in which values are sent and added, instead of their own: a
  floating dtype for floats, a dtype that has all their values for integers and complex numbers.
  Leaves of another kind are added in their own dtype.
- ``order`` (sums only): "fixed" for sums whose bits depend only on the contributions, not on the
  size of the buffer or an element's place in it (``execute.fixed_order``); "invariant" for sums
  that depend neither on these nor on the schedule and the number of ranks, at 2.25 times the bytes
  (``execute.invariant``); ``None`` for any order.
- ``wire_dtype`` (sums, ``all_gather``, ``all_to_all``): the form to which floats are rounded on the
  way, for fewer bytes: bfloat16, float8_e4m3fn, or another wire (``execute.wires``). Sums are then
  an all_to_all and an all_gather (``execute.encoded``), in ``accum_dtype``, float32 by default.

Calls that leave ``schedule`` and ``lowering`` open are handed to ``jax.lax`` if that is cheapest:
always, unless a table of tuning is in use or a network is known. Three kinds of calls are always
handed to it: sums of constants (Python numbers, NumPy arrays), leaf by leaf, which need no
communication; axes of ``vmap``, whose ranks share a device; and operands with symbolic dimensions,
which cannot be split inside ``shard_map``. docs/execution.md lists every case that is mirrored,
passed through or refused.

Sums are taken in the order of the schedule: bitwise the same on all ranks and in every run, but for
floats not bitwise equal to those of ``jax.lax``.

All errors are raised while tracing, before any communication: ``CollectiveError`` for an axis that
is not bound, groups that do not cover it, dimensions that do not divide, or a dtype that cannot be
summed; ``ScheduleError`` for a schedule that does not fit or does not verify.

Functions with a root are in ``rooted``, and slices of unequal sizes in ``ragged``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import fixed_order
from jaxcoll.execute.calls import (
    AxisName,
    Call,
    Groups,
    accumulated,
    array,
    axes_of,
    check_accumulates,
    check_divides,
    counted,
    dimension_of,
    group_size,
    is_handed_on,
    is_symbolic,
    joined,
    opened,
    summable,
    vary,
)
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.encoded import EncodedCall, check_operands, check_order
from jaxcoll.execute.invariant_sums import InvariantCall, check_leaves
from jaxcoll.execute.layout import Axes, divide, merge, move, sharded_as
from jaxcoll.execute.wires import wire_of
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
    wire_dtype=None,
):
    """The sum over the ranks of an axis, on all of them. See ``jax.lax.psum``.

    Small leaves of one dtype are sent together.

    Args:
        x: a pytree of arrays of any shape; booleans are summed as int32.
        schedule: a schedule of all_reduce, or an all_gather or reduce_scatter to derive one from.
        order: with "fixed" the schedule must have one order of addition
            (``jaxcoll.simulation.sum_orders``); with "invariant" any schedule will do.
        wire_dtype: each contribution is rounded once, and then their sum. The error of an element
            is therefore at most the sum of the wire's ``bound`` for both, for any number of ranks.
            For float8_e4m3fn that is a 16th of the sum of their magnitudes and a 16th of the
            result; for ``Int8`` a 126th of the largest of each block of 128. A NaN or Inf makes the
            whole block NaN, on all ranks. ``schedule`` is then one of all_to_all or all_gather, or
            serves both.

    Returns:
        Arrays of the shapes of ``x``, typed as invarying over the axis if ``check_vma``.
    """
    how = _How(schedule, lowering, accum_dtype, order, wire_dtype)
    return _reduced("sum", x, axis_name, axis_index_groups, how)


def pmean(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
    order: str | None = None,
    wire_dtype=None,
):
    """The mean over the ranks of an axis, on all of them. See ``psum`` and ``jax.lax.pmean``."""
    how = _How(schedule, lowering, accum_dtype, order, wire_dtype)
    total = _reduced("sum", x, axis_name, axis_index_groups, how)
    size = lax.psum(1, axis_name, axis_index_groups=axis_index_groups)
    mean = jax.tree.map(lambda v: v / size, total)
    # If it were merged with a sum that uses it, the quotient would not be rounded; a quotient by a
    # power of two is exact.
    is_exact = size & (size - 1) == 0
    if order is None or is_exact:
        return mean
    return jax.tree.map(
        lambda v: fixed_order.rounded(v) if isinstance(v, jax_internals.Tracer) else v, mean
    )


def pmax(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
):
    """The maximum over the ranks of an axis, on all of them. See ``jax.lax.pmax``.

    Small leaves of one dtype are sent together. The result is NaN if any rank has NaN. Like
    ``jax.lax.pmax`` it has no derivative.

    Args:
        x: a pytree of arrays of any shape.
        schedule: as for ``psum``.
    """
    return _reduced("max", x, axis_name, axis_index_groups, _How(schedule, lowering))


def pmin(
    x,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
):
    """The minimum over the ranks of an axis, on all of them. See ``pmax`` and ``jax.lax.pmin``."""
    return _reduced("min", x, axis_name, axis_index_groups, _How(schedule, lowering))


@dataclasses.dataclass(frozen=True)
class _How:
    """The keywords that say how a call runs, checked.

    Attributes:
        schedule, lowering, accum_dtype, order, wire_dtype: as given.
    """

    schedule: Choice
    lowering: str
    accum_dtype: Any = None
    order: str | None = None
    wire_dtype: Any = None

    def __post_init__(self) -> None:
        check_order(self.order, self.wire_dtype)

    def call(self, kind: str, axes: Axes, groups: Groups, op: str = "sum", invarying: bool = False):
        """A collective without its operand."""
        if self.wire_dtype is not None:
            wire, typed = wire_of(self.wire_dtype), (self.lowering, invarying, self.accum_dtype)
            return EncodedCall(kind, self.schedule, axes, groups, wire, *typed)
        if fixed_order.is_invariant(self.order):
            return self.invariant(axes.names, groups)
        is_fixed = fixed_order.is_fixed(self.order)
        typed = (self.lowering, invarying, self.accum_dtype)
        return Call(kind, self.schedule, axes, groups, None, *typed, op, is_fixed)

    def invariant(self, names: tuple[str, ...], groups: Groups) -> InvariantCall:
        """Sums that do not depend on the number of ranks."""
        return InvariantCall(names, groups, self.schedule, self.lowering, self.accum_dtype)

    def scattered_on_one_device(
        self, leaf, *, axis_name, scatter_dimension, axis_index_groups, tiled
    ):
        """This rank's part of a sum in an order, taken as psum takes it, bit for bit."""
        # Ranks share a device, so no bytes are sent needlessly.
        if fixed_order.is_fixed(self.order):
            whole = _fixed_on_one_device(leaf, axis_name, axis_index_groups)(leaf)
        else:
            plain = dataclasses.replace(self, accum_dtype=None)
            whole = _reduced("sum", leaf, axis_name, axis_index_groups, plain)
        ranks, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
        size = leaf.shape[scatter_dimension] // ranks if tiled else 1
        part = lax.dynamic_slice_in_dim(whole, index * size, size, scatter_dimension)
        return part if tiled else lax.squeeze(part, (scatter_dimension,))

    def check(self, leaves: list, function: str) -> None:
        """Refuse operands, without constants, that cannot be sent or added with these keywords."""
        check_accumulates(self.accum_dtype, leaves, function)
        if fixed_order.is_invariant(self.order):
            check_leaves(leaves, function)
        if self.wire_dtype is not None:
            wire_of(self.wire_dtype)
            check_operands(leaves, function)


def _reduced(op: str, x, axis_name: AxisName, groups: Groups, how: _How):
    """Sum leaves, or take their maxima or minima, as ``jax.lax`` does."""
    names = opened(axis_name, groups, how.schedule, how.lowering)
    leaves, structure = jax.tree.flatten(x)
    kept = list(range(len(leaves)))
    if op == "sum":
        leaves = [counted(leaf, "psum") for leaf in leaves]
        # The sum of a constant is itself a constant, n times the number. jax.lax returns Python
        # numbers for these, which programs use as static sizes (lax.psum(1, axis_name)), also next
        # to arrays.
        kept = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax_internals.Tracer)]
    how.check([leaves[i] for i in kept], f"p{op}")
    if not names:  # without axes there is one rank, as for jax.lax
        return x
    native = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op]
    handed = functools.partial(native, axis_name=axis_name, axis_index_groups=groups)
    for i in sorted(set(range(len(leaves))) - set(kept)):
        leaves[i] = handed(leaves[i])
    if fixed_order.is_invariant(how.order):
        own = [array(leaves[i], f"p{op}")[None] for i in kept]
        for i, total in zip(kept, how.invariant(names, groups).psum(own), strict=True):
            leaves[i] = total
        return jax.tree.unflatten(structure, leaves)
    if is_handed_on(names, [leaves[i] for i in kept]):
        if fixed_order.is_fixed(how.order):
            handed = _fixed_on_one_device(leaves, axis_name, groups)
        sums = accumulated(handed, [leaves[i] for i in kept], how.accum_dtype, f"p{op}")
        for i, total in zip(kept, sums, strict=True):
            leaves[i] = total
        return jax.tree.unflatten(structure, leaves)
    axes = axes_of(names)
    # jax.lax types maxima over groups as it types those over an axis, although groups may differ.
    invarying = jax_internals.checks_vma() and (groups is None or op != "sum")
    call = how.call("all_reduce", axes, groups, op, invarying)
    for i in kept:
        leaves[i] = vary(array(leaves[i], f"p{op}"), axes)
    # Per leaf: large gradients may be faster by a schedule and small ones by ``jax.lax``.
    by_lax = [i for i in kept if call.is_left_to_lax(leaves[i])]
    others = [i for i in kept if i not in set(by_lax)]
    # One call of jax.lax for all leaves, as in a program without jaxcoll.
    sums = accumulated(handed, [leaves[i] for i in by_lax], how.accum_dtype, f"p{op}")
    sums += joined(call, [leaves[i] for i in others])  # type: ignore[arg-type]
    for i, total in zip(by_lax + others, sums, strict=True):
        leaves[i] = total
    return jax.tree.unflatten(structure, leaves)


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
    wire_dtype=None,
):
    """The sum over the ranks of an axis; each keeps its part. See ``jax.lax.psum_scatter``.

    Args:
        x: a pytree of arrays whose ``scatter_dimension`` is the size of a group, or if ``tiled`` a
            multiple of it.
        schedule: a schedule of reduce_scatter, or an all_gather to run backwards.
        order: as for ``psum``; the results are its blocks, bit for bit.
        wire_dtype: as for ``psum``, without the second rounding; ``schedule`` is one of all_to_all.

    Returns:
        Arrays without that dimension, or if ``tiled`` with it divided by the size of a group.
    """
    how = _How(schedule, lowering, accum_dtype, order, wire_dtype)
    checks.flag(tiled, "tiled", CollectiveError)
    names = opened(axis_name, axis_index_groups, schedule, lowering)
    how.check(jax.tree.leaves(x), "psum_scatter")
    if not names:
        return x
    axes = axes_of(names)
    call = how.call("reduce_scatter", axes, axis_index_groups)
    size = group_size(axes, axis_index_groups)
    is_handed = is_handed_on(names, x)

    def one(leaf):
        leaf = summable(leaf, "psum_scatter")
        dimension = dimension_of(scatter_dimension, leaf.ndim, "scatter_dimension", leaf)
        check_divides(leaf, dimension, size, tiled, f"psum_scatter over {axes}")
        if is_handed:
            parts = functools.partial(
                lax.psum_scatter if order is None else how.scattered_on_one_device,
                axis_name=axis_name,
                scatter_dimension=dimension,
                axis_index_groups=axis_index_groups,
                tiled=tiled,
            )
            return accumulated(parts, leaf, accum_dtype, "psum_scatter")
        leaf = vary(leaf, axes)
        if call.is_left_to_lax(leaf):
            # The tiled form, because jax.lax has no batching rule for the other one.
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
    wire_dtype=None,
):
    """The arrays of all ranks of an axis, side by side, on all of them. See ``jax.lax.all_gather``.

    Args:
        x: a pytree of arrays.
        axis: the place of the new dimension, whose size is that of a group; if ``tiled`` the
            dimension that grows by that factor.
        to: "varying", or "invarying" for a result typed as the same on all ranks.
        schedule: a schedule of all_gather, or a reduce_scatter to run backwards.
        wire_dtype: every value is rounded once; its error is at most the wire's ``bound``.
    """
    checks.flag(tiled, "tiled", CollectiveError)
    if not isinstance(to, str) or to not in ("varying", "invarying"):
        raise CollectiveError(
            f"to= of all_gather must be 'varying' or 'invarying', got {checks.shown(to)}; "
            "use jax.lax for 'reduced'"
        )
    how = _How(schedule, lowering, wire_dtype=wire_dtype)
    names = opened(axis_name, axis_index_groups, schedule, lowering)
    how.check(jax.tree.leaves(x), "all_gather")
    if not names:
        return x
    axes = axes_of(names)
    # Without check_vma all types are the same, but in old JAX the derivative depends on ``to``.
    invarying = to == "invarying" and (
        jax_internals.checks_vma() or jax_internals.INVARYING_UNCHECKED
    )
    if invarying and axis_index_groups is not None:
        raise CollectiveError(
            "groups of an axis gather different results, which to='invarying' would call the same"
        )
    call = how.call("all_gather", axes, axis_index_groups, invarying=invarying)
    is_handed = is_handed_on(names, x)

    def one(leaf):
        leaf = array(leaf, "all_gather")
        dimension = dimension_of(axis, leaf.ndim + (not tiled), "axis", leaf)
        if is_handed:
            return lax.all_gather(
                leaf,
                axis_name,
                axis_index_groups=axis_index_groups,
                axis=dimension,
                tiled=tiled,
                to=to,
            )
        leaf = vary(leaf, axes)
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
    wire_dtype=None,
):
    """Send every rank's i-th part to rank i. See ``jax.lax.all_to_all``.

    Args:
        x: a pytree of arrays whose ``split_axis`` is the size of a group, or if ``tiled`` a
            multiple of it.
        schedule: a schedule of all_to_all.
        wire_dtype: as for ``all_gather``.
    """
    checks.flag(tiled, "tiled", CollectiveError)
    how = _How(schedule, lowering, wire_dtype=wire_dtype)
    names = opened(axis_name, axis_index_groups, schedule, lowering)
    how.check(jax.tree.leaves(x), "all_to_all")
    if not names:
        return x
    axes = axes_of(names)
    call = how.call("all_to_all", axes, axis_index_groups)
    size = group_size(axes, axis_index_groups)
    is_handed = is_handed_on(names, x)

    def one(leaf):
        leaf = array(leaf, "all_to_all")
        split = dimension_of(split_axis, leaf.ndim, "split_axis", leaf)
        concat = dimension_of(concat_axis, leaf.ndim, "concat_axis", leaf)
        check_divides(leaf, split, size, tiled, f"all_to_all over {axes}")
        if is_handed:
            return lax.all_to_all(
                leaf,
                axis_name,
                split,
                concat,
                axis_index_groups=axis_index_groups,
                tiled=tiled,
            )
        leaf = vary(leaf, axes)
        if call.is_left_to_lax(leaf):
            if tiled:
                return lax.all_to_all(leaf, names, split, concat, tiled=True)
            # By means of the tiled form, which has all derivatives: the parts are concatenated
            # along a new dimension of size 1, at the place of the new dimension of the untiled
            # form.
            place = concat if concat <= split else concat + 1
            split += place <= split
            leaf = lax.expand_dims(leaf, (place,))
            return lax.squeeze(lax.all_to_all(leaf, names, split, place, tiled=True), (split,))
        blocks = call(divide(leaf, split, size) if tiled else move(leaf, split, 0))
        out = merge(blocks, concat) if tiled else move(blocks, 0, concat)
        return sharded_as(out, leaf) if tiled and split == concat else out

    return jax.tree.map(one, x)
