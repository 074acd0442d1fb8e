"""Step 1: how fast any schedule can be, and with how few trees per rank (Sec. 4.5.2).

The optimum itself is found in ``bounds.throughput`` (Algorithm 1), because it is a bound as well.
It needs a certain number of trees per rank. If that number does not divide the chunks of a shard,
another one is taken which does, and the links are scaled to carry as much of so many trees as they
can (Sec. 4.5.5).
"""

from __future__ import annotations

import dataclasses

from jaxcoll.bounds.throughput import Optimum, Scaling, fastest, known_optimum
from jaxcoll.errors import CollectiveError
from jaxcoll.topology import Topology

Weights = tuple[int, ...] | None

# The most trees per rank that are tried in place of the optimum's number (Sec. 4.5.5).
_MOST_TRIED = 16


@dataclasses.dataclass(frozen=True)
class Rates:
    """A network, and the number of trees that each link is to carry.

    Attributes:
        topology: the network.
        best: the best rate of any schedule, and the cut that proves it.
        scaling: trees per rank, and trees that each link can carry.
        is_exact: whether the trees fill some link, as they do at the optimum. With another number
            of trees, capacities are rounded down to whole trees, and no link need be full.
    """

    topology: Topology
    best: Optimum
    scaling: Scaling
    is_exact: bool = True


def rates_for_chunks(
    topology: Topology, weights: Weights, chunks: int, k: int | None = None
) -> Rates:
    """Rates for chunks that a whole number of trees per rank can share.

    Args:
        weights: size of each rank's shard relative to the others; equal when None.
        chunks: chunks per shard of weight 1.
        k: trees per rank. When None, the optimum's number if it divides the chunks, and otherwise
            the fastest divisor of up to 16 (Sec. 4.5.5).

    Raises:
        CollectiveError: k does not divide the chunks.
    """
    best = known_optimum(topology, weights)
    # A tree is a whole number of chunks, so the chunks of a shard must be a multiple of the trees
    # per rank. The optimum's own number of trees loses nothing; any other rounds what a link can
    # carry down to whole trees (Theorem 34), at most 1/(k min b) seconds per byte (Theorem 35).
    if k is None and chunks % best.k == 0:
        return Rates(topology, best, best.scaling)
    if k is not None and chunks % k:
        raise CollectiveError(
            f"k={k} trees per rank need a multiple of {k} chunks per shard, got {chunks}"
        )
    numbers = [d for d in range(1, _MOST_TRIED + 1) if chunks % d == 0] if k is None else [k]
    return Rates(topology, best, fastest(topology, best, numbers), is_exact=False)


def numbers_of_trees(topology: Topology, root: int | None = None) -> tuple[int, ...]:
    """Numbers of trees per rank worth trying: the fastest of up to 16, then the optimum's own.

    Args:
        root: the root of a broadcast, to whose trees the numbers then apply.
    """
    ranks = range(topology.num_ranks)
    weights = None if root is None else tuple(int(rank == root) for rank in ranks)
    best = known_optimum(topology, weights)
    if best.k <= _MOST_TRIED:
        return (best.k,)
    return fastest(topology, best, range(1, _MOST_TRIED + 1)).k, best.k
