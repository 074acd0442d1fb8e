"""Axes: the mesh axes a collective runs over, and how its ranks are numbered on them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


@dataclasses.dataclass(frozen=True)
class Axes:
    """Named mesh axes in the order the user gave them.

    Rank r is the device whose ``lax.axis_index(names)`` is r. ``lax.ppermute`` numbers devices in
    the order of the mesh's axes instead, whatever order it is given, hence ``permute``.

    Attributes:
        names: axis names, the last one fastest.
        sizes: ranks along each of them.
        canonical: the names in the order of the mesh.
        over: the axes that the collective gathers or sums over; fewer than ``names`` when a
            schedule serves all groups along an axis at once.
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
        """The groups that differ in ``over`` only, each in the order that ``over`` gives it."""
        over = [self.names.index(name) for name in self.over]
        across = [i for i in range(len(self.names)) if i not in over]
        ranks = np.arange(self.num_ranks).reshape(self.sizes).transpose(*across, *over)
        size = math.prod(self.sizes[i] for i in over)
        return frozenset(tuple(int(r) for r in row) for row in ranks.reshape(-1, size))

    def rank(self) -> jax.Array:
        """This device's rank, an int32 scalar."""
        return lax.axis_index(self.names[0] if len(self.names) == 1 else self.names)

    def permute(self, x: jax.Array, pairs: Sequence[tuple[int, int]]) -> jax.Array:
        """Send ``x`` along ``pairs``; returns what each rank receives, zeros where nothing."""
        number = self._number
        return lax.ppermute(x, self.canonical, [(number[src], number[dst]) for src, dst in pairs])

    @functools.cached_property
    def _number(self) -> list[int]:
        """The number ``ppermute`` gives to each rank."""
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

# Makes XLA put the collectives of a function that is not inlined into one NCCL group, which is one
# kernel; on its own it runs them one by one (openxla/xla#23790).
_GROUP = {"_collectives_group": "", "inlineable": "false"}


def permute_together(
    axes: Axes, sources: Sequence[jax.Array], pairs: Sequence[Pairs], target: str
) -> list[jax.Array]:
    """The rows received in each round of one step, as ``axes.permute`` gives them.

    On GPUs two rounds or more become one group, hence one launch, unless the target is
    "gpu_ungrouped". CPU and TPU know no groups; on TPU permutes that do not depend on each other
    are in flight together as they are.

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
