"""The collectives of ``jax.lax`` where a schedule would stand.

``Native`` takes the place of a schedule in a primitive (``primitives``), so that transposes,
batching and types are the same whichever runs, also where ``jax.lax`` has no rule of its own:
groups under ``check_vma`` or ``vmap``, several axes under ``vmap``.
"""

from __future__ import annotations

import dataclasses

import jax
from jax import lax
from jax.sharding import PartitionSpec

from jaxcoll.collective import ROOTED, Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute import jax_internals
from jaxcoll.execute.axes import Axes
from jaxcoll.execute.lowerings.rounds import PermuteProgram


@dataclasses.dataclass(frozen=True)
class Native:
    """A collective run by ``jax.lax``.

    Raises:
        CollectiveError: one with a root, of which ``jax.lax`` has none with these types.
    """

    collective: Collective

    def __post_init__(self) -> None:
        if not is_native(self.collective.kind):
            raise CollectiveError(
                f"jax.lax has no {self.collective.kind} with a root; choose another algorithm"
            )

    def reverse(self) -> Native:
        """That of the dual collective, as ``Schedule.reverse``."""
        return Native(self.collective.dual())

    @property
    def program(self) -> PermuteProgram:
        """A program without permutes, for the shapes of operand and result."""
        return PermuteProgram(self.collective, 0, (self.collective.num_ranks,), ())


def is_native(kind: str) -> bool:
    """Whether ``jax.lax`` has the collective."""
    return kind not in ROOTED


_SUMS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}


def run(x: jax.Array, axes: Axes, collective: Collective, op: str) -> jax.Array:
    """The collective on an operand as ``primitives.bind`` has it, its blocks leading.

    Called where types are no longer checked: ``jax.lax`` refuses groups where they are.
    """
    kind, names = collective.kind, axes.names
    is_whole = len(collective.groups) == 1 and collective.groups[0] == tuple(range(axes.num_ranks))
    groups = None if is_whole else collective.groups
    with jax_internals.vma_unchecked():
        if kind == "all_reduce":
            return _SUMS[op](x, names, axis_index_groups=groups)
        if kind == "all_gather":
            return lax.all_gather(x, names, axis_index_groups=groups, tiled=True)
        if kind == "reduce_scatter":

            def scattered(x):
                return lax.psum_scatter(x, names, axis_index_groups=groups, tiled=True)

            if jax_internals.explicit_axes():  # beside them that of JAX 0.12 fails to lower
                return jax_internals.as_auto_axes(scattered, PartitionSpec())(x)
            return scattered(x)
        return lax.all_to_all(x, names, 0, 0, axis_index_groups=groups, tiled=True)
