"""Times of an algorithm on large tori of Fugaku, from those on a small one.

One latency per link does not carry a start-up from 64 nodes to 512: that of Fujitsu's ``3dtorus``
grows from 57 us to 330, by more than its steps and by less than its ranks. A law of three terms
does. A step along a ring has a start-up; so has every block that a node passes on, one of each
other node; and blocks of some bytes reach a part of the links' speed:

    seconds = steps * step + (ranks - 1) * block + bytes / (links * part(bytes of a block))

All are read from times on the small torus: ``step`` from the smallest size of recursive doubling,
which has log2(ranks) steps and passes on no blocks, ``block`` from that of the algorithm itself,
and ``part`` from its larger sizes, with lines between logarithms. Links are those of the data
sheet: a node's six interfaces.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.measured import Curve


@dataclasses.dataclass(frozen=True)
class BlockLaw:
    """The law of an all_gather whose nodes pass on the blocks of all others around rings.

    Attributes:
        step, block: seconds of a step, and of a block.
        bandwidth: bytes per second of a node's links.
        sizes: bytes of a block, ascending.
        parts: shares of the links' speed that blocks of each size reach, at most 1.
    """

    step: float
    block: float
    bandwidth: float
    sizes: np.ndarray
    parts: np.ndarray

    @classmethod
    def of(cls, curve: Curve, doubling: Curve, sides: Sequence[int], bandwidth: float) -> BlockLaw:
        """The law that times on one torus state.

        Args:
            curve: the curve of the algorithm.
            doubling: the curve of recursive doubling on as many ranks.
            sides: the sides of the torus.
            bandwidth: bytes per second of a node's links.
        """
        step = float(doubling.seconds.min()) / math.log2(doubling.ranks)
        block = max(0.0, float(curve.seconds.min()) - _steps(sides) * step) / (curve.ranks - 1)
        start = _steps(sides) * step + (curve.ranks - 1) * block
        least = curve.nbytes * (curve.ranks - 1) / curve.ranks / bandwidth
        # The smallest size has no time left beside its start-up: it says nothing of the speed.
        shown = curve.seconds > start
        parts = np.minimum(1.0, least[shown] / (curve.seconds[shown] - start))
        return cls(step, block, bandwidth, curve.nbytes[shown] / curve.ranks, parts)

    def seconds(self, nbytes: float, sides: Sequence[int]) -> float:
        """The time of a size on a torus of some sides."""
        ranks = math.prod(sides)
        part = math.exp(np.interp(math.log(nbytes / ranks), np.log(self.sizes), np.log(self.parts)))
        moved = nbytes * (ranks - 1) / ranks / self.bandwidth
        return _steps(sides) * self.step + (ranks - 1) * self.block + moved / part


def _steps(sides: Sequence[int]) -> int:
    """The number of steps of rings along one dimension after another."""
    return sum(side - 1 for side in sides)
