"""Holds XLA to the order in which a plan runs operators.

What comes out of ``lax.optimization_barrier`` is there no sooner than all that goes into it. Three
things about barriers are easily overlooked. XLA takes out of a barrier what nothing else reads
(``AlgebraicSimplifierVisitor::HandleOptimizationBarrier``), so that whoever only waits for it waits
no more: hence two barriers that wait for everything. An array stays in memory until all barriers
that wait for it have been passed: hence to wait for one number of it. And on CPU every barrier has
a table of pointers of its own all through the program: hence no more of them than needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax


def moment(x: jax.Array) -> jax.Array:
    """A number that is known once an array is."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    return lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())


def after(arrays: Sequence[jax.Array], *moments: jax.Array) -> list[jax.Array]:
    """Arrays that are there no sooner than one another, and than moments."""
    found = list(arrays)
    for _ in range(2 if found and moments else 0):
        found = lax.optimization_barrier((*found, *moments))[: len(found)]
    return list(found)


def apart(x: jax.Array) -> jax.Array:
    """An array that is made by itself, rather than by what reads it."""
    return lax.optimization_barrier((x,))[0]


class Clock:
    """Holds arrays back until what was last made before is there.

    Whoever waits for a moment waits for the one before as well, at which something was held, so
    that two barriers wait for every moment but the last.

    Attributes:
        ticks: how often something was made to wait for.
    """

    def __init__(self):
        self.ticks = 0
        self._made: jax.Array | None = None
        self._moments: list[jax.Array] = []  # the last that something waits for, and that before

    def tick(self, made: jax.Array) -> None:
        """What is held from here on waits for an array."""
        self.ticks += 1
        self._made = made

    @property
    def now(self) -> list[jax.Array]:
        """The moment of the last tick, if there was one."""
        if self._made is not None:
            self._moments = [moment(self._made), *self._moments[:1]]
            self._made = None
        return self._moments[:1]

    def hold(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Arrays that are there no sooner than one another, and than the last tick."""
        now = self.now
        if len(self._moments) < 2:
            return after(arrays, *now)
        return list(lax.optimization_barrier((*arrays, *self._moments))[: len(arrays)])
