"""``order="invariant"`` over the ranks of an axis: ``psum``, ``psum_scatter``, ``invariant_sum``.

``invariant`` computes the sums; this module connects them with axes, schedules and derivatives.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import invariant
from jaxcoll.execute.calls import (
    AxisName,
    Call,
    Groups,
    array,
    axes_of,
    check_accumulates,
    counted,
    dimension_of,
    group_size,
    is_symbolic,
    is_vmapped,
    joined,
    narrowed,
    opened,
    vary,
    widened,
)
from jaxcoll.execute.choice import Choice
from jaxcoll.execute.encoded import place_in_group, straight_through
from jaxcoll.execute.layout import Axes, move
from jaxcoll.kinds import kind_of

_SCATTER, _GATHER = kind_of("all_reduce").phase_names


@dataclasses.dataclass(frozen=True)
class InvariantCall:
    """Sums of addends over some axes.

    Attributes:
        names: names of the axes, all bound; none for addends of one device.
        groups, schedule, lowering, accum_dtype: as for the public functions.
    """

    names: tuple[str, ...]
    groups: Groups = None
    schedule: Choice = None
    lowering: str = "auto"
    accum_dtype: Any = None

    @property
    def _axes(self) -> Axes:
        return axes_of(self.names)

    @property
    def _ranks(self) -> int:
        return group_size(self._axes, self.groups) if self.names else 1

    @property
    def _is_invarying(self) -> bool:
        """Whether sums are typed as the same on all ranks."""
        is_typed = jax_internals.checks_vma() and not is_vmapped(self.names)
        return is_typed and self.groups is None

    def psum(self, leaves: list[jax.Array]) -> list[jax.Array]:
        """The sums over the leading dimensions of leaves and over the ranks."""
        wide = [widened(leaf, self.accum_dtype) for leaf in leaves]
        is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in wide]
        floats = [leaf for leaf, yes in zip(wide, is_float, strict=True) if yes]
        # Sums of integers are exact without conversion.
        others = [
            leaf.sum(0, dtype=leaf.dtype)
            for leaf, yes in zip(wide, is_float, strict=True)
            if not yes
        ]
        found = {True: iter(self._floats(floats)), False: iter(self._added(others))}
        sums = [next(found[yes]) for yes in is_float]
        return [
            narrowed(total, leaf, self.accum_dtype)
            for total, leaf in zip(sums, leaves, strict=True)
        ]

    def _floats(self, leaves: list[jax.Array]) -> list[jax.Array]:
        if not leaves:
            return []
        varied = self._varied(leaves)
        shapes = [leaf.shape for leaf in leaves]

        def back(cotangents, _):
            if self._is_invarying:
                own = self._varied(cotangents)
            else:
                own = self._floats([x[None] for x in cotangents])
            return [jnp.broadcast_to(x, shape) for x, shape in zip(own, shapes, strict=True)]

        return straight_through(lambda x, _: self._summed(x), back, varied)

    def __call__(self, blocks: jax.Array) -> jax.Array:
        """This rank's sum of shape (1, ...) of blocks of shape (ranks, ...)."""
        if jnp.issubdtype(blocks.dtype, jnp.integer):
            return self._of(_SCATTER)(blocks)
        wide = widened(blocks, self.accum_dtype)
        found = straight_through(
            lambda x, _: self._scattered(x), lambda x, _: self._of(_GATHER)(x), wide
        )
        return narrowed(found, blocks, self.accum_dtype)

    def is_left_to_lax(self, x: jax.Array) -> bool:
        """Always False: its sums of floats depend on the number of ranks."""
        del x
        return False

    def _varied(self, leaves: list[jax.Array]) -> list[jax.Array]:
        if not self.names or is_vmapped(self.names):
            return leaves
        return [vary(leaf, self._axes) for leaf in leaves]

    def _summed(self, leaves: list[jax.Array]) -> list[jax.Array]:
        return invariant.total(leaves, self._ranks, self._largest, self._added)

    def _scattered(self, blocks: jax.Array) -> jax.Array:
        def own(codes):
            # The codes of this rank's block; words need those of all blocks on all ranks.
            place = place_in_group(self._axes, self.groups)
            return lax.dynamic_slice_in_dim(self._varied([codes])[0], place, 1, 0)

        def scattered(words):
            # Blocks lead, so a block's words are put side by side.
            return [move(self._of(_SCATTER)(move(x, 1, 0)), 1, 0) for x in words]

        (found,) = invariant.total([blocks[None]], self._ranks, self._largest, scattered, own)
        return found

    def _largest(self, codes: list[jax.Array]) -> list[jax.Array]:
        return self._over_ranks("max", lax.pmax, codes)

    def _added(self, words: list[jax.Array]) -> list[jax.Array]:
        return self._over_ranks("sum", lax.psum, words)

    def _over_ranks(self, op: str, native: Any, leaves: list[jax.Array]) -> list[jax.Array]:
        if not self.names:
            return leaves
        if is_vmapped(self.names):
            return native(leaves, self.names, axis_index_groups=self.groups)
        return joined(self._of("all_reduce", op), self._varied(leaves))

    def _of(self, kind: str, op: str = "sum") -> Call:
        invarying = self._is_invarying and kind_of(kind).sums_for_all
        typed = None, self.lowering, invarying, None, op
        return Call(kind, self.schedule, self._axes, self.groups, *typed)


def check_leaves(leaves, function: str) -> None:
    """Refuse operands that have no invariant sums.

    Raises:
        CollectiveError: a leaf has complex numbers, floats of 8 bits, or symbolic dimensions.
    """
    for leaf in leaves:
        dtype = counted(array(leaf, function), function).dtype
        if not jnp.issubdtype(dtype, jnp.integer):
            invariant.form_of(dtype, 1, 1)
        if is_symbolic(leaf):
            raise CollectiveError(
                f"order='invariant' counts the addends of {function} while it is traced, and takes "
                f"no symbolic dimensions, got shape {leaf.shape}; export for definite shapes"
            )


def invariant_sum(
    x,
    axis_name: AxisName,
    *,
    axis: int = 0,
    axis_index_groups: Groups = None,
    schedule: Choice = None,
    lowering: str = "auto",
    accum_dtype=None,
):
    """The sum over a dimension and over the ranks of an axis, independent of the rank of each part.

    The bits of a sum depend only on its addends: not on the number of ranks that share them or on
    their order, nor on the schedule, the size of the buffer or an element's place in it. So a batch
    of gradients, one for each example, has the same sum on 1 and on 16 ranks::

        per_example = jax.vmap(jax.grad(loss), (None, 0))(params, batch)  # of this rank's examples
        gradient = jc.invariant_sum(per_example, "data")

    A local ``jnp.sum`` before a ``psum`` would already have rounded. ``jc.psum(x, axis_name,
    order="invariant")`` is the sum with one addend on each rank. See ``execute.invariant`` for the
    method, the error, and NaN, Inf, subnormal numbers and zeros.

    Args:
        x: a pytree of arrays, either of floats of 16 bits or more or of integers, with this rank's
            addends along ``axis``. There may be 2**15 addends in all, on 2**10 ranks; for float16
            and bfloat16 the bits of sums of up to 2**10 addends and of more may differ.
        axis_name: an axis of the mesh, or several; ``()`` for the sum of one device's addends, also
            outside of ``jax.shard_map``.
        axis: the dimension of addends, of any size except 0.
        axis_index_groups, schedule, lowering: as for ``jc.psum``.
        accum_dtype: a wider dtype for addends and sums; the result is rounded to the dtype of
            ``x``.

    Returns:
        Arrays without that dimension, the same on all ranks of a group.

    Raises:
        CollectiveError: the dimension has no addends or too many, or as for ``jc.psum``.
    """
    leaves, structure = jax.tree.flatten(x)
    names = opened(axis_name, axis_index_groups, schedule, lowering)
    check_accumulates(accum_dtype, leaves, "invariant_sum")
    check_leaves(leaves, "invariant_sum")
    call = InvariantCall(names, axis_index_groups, schedule, lowering, accum_dtype)

    def lead(leaf):
        leaf = counted(array(leaf, "invariant_sum"), "invariant_sum")
        leaf = move(leaf, dimension_of(axis, leaf.ndim, "axis", leaf), 0)
        if not leaf.shape[0]:
            raise CollectiveError(
                "invariant_sum adds along a dimension of at least one addend, got shape "
                f"{leaf.shape}"
            )
        return leaf

    return jax.tree.unflatten(structure, call.psum([lead(leaf) for leaf in leaves]))
