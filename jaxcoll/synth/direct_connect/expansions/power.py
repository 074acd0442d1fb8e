"""Cartesian power: a box of ranks with the base along every dimension (Section 3.5.3)."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds.moore import Cost
from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.synth.direct_connect.expansions.expansion import Expansion
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers
from jaxcoll.topologies.generative.operations import cartesian_power, product_arcs


@dataclasses.dataclass(frozen=True)
class CartesianPower(Expansion):
    """(G, A) to (G^n, A_G^n): one dimension after another, each n-th of a shard in its own order.

    Part i of every shard is gathered along dimension i first, then along i + 1, and so on around
    (Definition 14), so that all dimensions are busy in every step.

    T_L becomes n T_L, and T_B becomes T_B N/(N - 1) (N^n - 1)/N^n (Theorem 12): bandwidth
    optimality is kept (Corollary 12.1).

    Attributes:
        exponent: n, at least 2.

    Raises:
        TopologyError: a smaller exponent.
    """

    exponent: int

    name: ClassVar[str] = "cartesian_power"

    def __post_init__(self) -> None:
        checks.integer_fields(self, TopologyError, "exponent", least=2)

    def digraph(self, base: Digraph) -> Digraph:
        """G^n."""
        return cartesian_power(base, self.exponent)

    def size(self, size: int, degree: int) -> tuple[int, int]:
        """N^n ranks of degree nd."""
        return size**self.exponent, degree * self.exponent

    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """n T_L and T_B N/(N - 1) (N^n - 1)/N^n (Theorem 12)."""
        ranks = size**self.exponent
        factor = Fraction(size * (ranks - 1), (size - 1) * ranks)
        return Cost(base.steps * self.exponent, base.inverse_bandwidth * factor)

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """See ``Expansion.sends``."""
        n = self.exponent
        number = arc_numbers(*product_arcs((base.digraph,) * n))
        parts = [self._phase(base, number, part, phase) for part in range(n) for phase in range(n)]
        return base.chunks * n, base.steps * n, Sends.joined(parts)

    def _phase(self, base: Gather, number: np.ndarray, part: int, phase: int) -> Sends:
        """A phase of one part: blocks gathered along earlier dimensions move along the next."""
        n, side, send = self.exponent, base.digraph.size, base.sends
        sides = (side,) * n
        dimension = (part + phase) % n
        gathered = [(part + earlier) % n for earlier in range(phase)]
        vertices = np.arange(side**n).reshape(sides)
        # Axes: line along the dimension, send, origin along the dimensions gathered before.
        lines = np.moveaxis(vertices, dimension, -1).reshape(-1, side)
        first_arc = (dimension * len(lines) + np.arange(len(lines))) * base.digraph.num_arcs
        origin = _cleared(lines, gathered, sides)[:, send.owner, None]
        block = np.zeros(1, np.int64)
        for d in gathered:
            block = (block[:, None] + np.arange(side) * side ** (n - 1 - d)).ravel()
        return Sends.of(
            (phase * base.steps + send.step)[:, None],
            number[first_arc[:, None, None] + send.arc[:, None]],
            origin + block,
            (part * base.chunks + send.index)[:, None],
        )


def _cleared(vertices: np.ndarray, dimensions: list[int], sides: tuple[int, ...]) -> np.ndarray:
    """Vertices of a box with some coordinates set to 0."""
    places = list(np.unravel_index(vertices, sides))
    for d in dimensions:
        places[d] = np.zeros_like(places[d])
    return np.ravel_multi_index(places, sides)
