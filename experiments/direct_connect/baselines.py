"""Times of all_reduces on the paper's baselines by its cost model (Secs. 3.8.2 and A.1.2)."""

from __future__ import annotations

import dataclasses

from experiments.limits import NotNegative, Positive
from jaxcoll.bounds.moore import Cost, bandwidth_optimum

MIB = 2**20  # 1 MB of the paper


@dataclasses.dataclass(frozen=True)
class Machine:
    """Constants of the cost model."""

    alpha_us: NotNegative  # microseconds a step
    constant_us: NotNegative  # microseconds a collective
    bandwidth_gbit: Positive  # B, Gbit/s of all links of a rank together

    def buffer_us(self, nbytes: float) -> float:
        """M/B in microseconds."""
        return nbytes * 8e-3 / self.bandwidth_gbit

    def time_us(self, cost: Cost, nbytes: float, phases: int = 2) -> float:
        """An all_reduce, by all_gathers of a cost; or one phase of it."""
        moved = float(cost.inverse_bandwidth) * self.buffer_us(nbytes)
        return phases * (cost.steps * self.alpha_us + moved) + self.constant_us


def shifted_ring(n: int) -> Cost:
    """Two rings, both ways, each with a part of the data: n - 1 steps."""
    return Cost(n - 1, bandwidth_optimum(n))


def shifted_bfb_ring(n: int) -> Cost:
    """The same rings by BFB: floor(n / 2) steps."""
    return Cost(n // 2, bandwidth_optimum(n))


def traditional_torus(side: int) -> Cost:
    """A square torus, a ring for each dimension: 2 (side - 1) steps."""
    return Cost(2 * (side - 1), bandwidth_optimum(side * side))


def double_tree_us(
    machine: Machine, n: int, nbytes: float, *, at_once: bool, phases: int = 2
) -> float:
    """Double binary trees, half of the data each, with the best number of pieces.

    A piece descends floor(log2 n) levels, of one step where a rank sends to both children at once
    and of two where it does not; then a piece arrives every step. Links carry half of the data at
    B/4. Pieces are powers of two: so the paper's 1434 us at 1024 ranks, of two steps a level.
    """
    height = (n.bit_length() - 1) * (1 if at_once else 2)
    moved = 2 * machine.buffer_us(nbytes)
    best = min(
        (height + pieces - 1) * (machine.alpha_us + moved / pieces)
        for pieces in (2**i for i in range(15))
    )
    return phases * best + machine.constant_us
