"""Step 1: how many trees each rank is the root of, and how many each link can carry (Sec. 4.5.1).

The optimum says how fast any schedule can be, and the fewest trees per rank that are as fast. Where
the chunks of a collective cannot be shared out to so many, as few as divide them are taken, and the
links are scaled to be the fastest that so few trees can use (Sec. 4.5.5). A ring of 3 ranks with
links both ways needs 2 trees per rank: with 1, one of its links would idle.

Both ways make the same frozen ``Rates``, from which the further steps go on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jaxcoll.bounds.throughput import Optimum, Scaling, fixed_k, optimum
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics.rational import Number
from jaxcoll.topology import Topology

# Trees per rank that are tried where the chunks per shard do not fit the optimum's (Sec. 4.5.5).
_SCAN = 16

Weights = tuple[Number, ...] | None


@dataclasses.dataclass(frozen=True)
class Rates:
    """A network and what its links are to carry.

    Attributes:
        topology: the network.
        best: how fast anything could be, and the cut that proves it.
        scaling: trees per rank, and trees that each link can carry.
        is_exact: whether some link carries as many trees as ``scaling.U`` allows, as at the
            optimum; links that were trimmed for a fixed k may turn out to be needed less than that.
    """

    topology: Topology
    best: Optimum
    scaling: Scaling
    is_exact: bool = True


def optimal_rates(topology: Topology, weights: Weights = None) -> Rates:
    """The optimum's own number of trees.

    Args:
        weights: size of each rank's shard relative to the others; equal when None.
    """
    best = known_optimum(topology, weights)
    return Rates(topology, best, best.scaling)


def rates_of_trees(topology: Topology, weights: Weights, k: int) -> Rates:
    """As fast as k trees per rank can be (Theorem 34)."""
    best, scaling = known_optimum(topology, weights), _scaling(topology, weights, k)
    return Rates(topology, best, scaling, is_exact=False)


def rates_for_chunks(
    topology: Topology, weights: Weights, chunks: int, k: int | None = None
) -> Rates:
    """The fastest number of trees that divides the chunks, or k.

    The optimum's own where it divides them, otherwise the fastest of up to 16 (Sec. 4.5.5).

    Args:
        chunks: chunks per shard of weight 1.

    Raises:
        CollectiveError: k does not divide the chunks.
    """
    if k is None and chunks % known_optimum(topology, weights).k == 0:
        return optimal_rates(topology, weights)
    if k is None:
        k = _fastest(topology, weights, [d for d in range(1, _SCAN + 1) if chunks % d == 0])
    elif chunks % k:
        raise CollectiveError(
            f"k={k} trees per rank need a multiple of {k} chunks per shard, got {chunks}"
        )
    return rates_of_trees(topology, weights, k)


def numbers_of_trees(topology: Topology, root: int | None = None) -> tuple[int, ...]:
    """Trees per rank of an all_gather: the fastest number of up to 16, then the optimum's own.

    Args:
        root: of a broadcast, to whose trees the numbers then apply.
    """
    ranks = range(topology.num_ranks)
    weights = None if root is None else tuple(int(rank == root) for rank in ranks)
    best = known_optimum(topology, weights)
    if best.k <= _SCAN:
        return (best.k,)
    return _fastest(topology, weights, range(1, _SCAN + 1)), best.k


def _fastest(topology: Topology, weights: Weights, numbers: Sequence[int]) -> int:
    """The number of trees per rank that takes the least time, the least of equals."""
    return min(numbers, key=lambda k: (_scaling(topology, weights, k).inverse, k))


# The same network is asked for again with every number of chunks.


@functools.lru_cache(maxsize=16)
def known_optimum(topology: Topology, weights: Weights) -> Optimum:
    """``optimum``, found once for all calls that follow each other."""
    return optimum(topology, weights)


@functools.lru_cache(maxsize=128)
def _scaling(topology: Topology, weights: Weights, k: int) -> Scaling:
    return fixed_k(topology, k, weights, best=known_optimum(topology, weights))
