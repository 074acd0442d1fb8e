"""Step 1: how fast any schedule can be, and with how few trees per rank (Sec. 4.5.2).

The optimum itself is found in ``bounds.throughput`` (Algorithm 1), for it is a bound too. Where the
chunks of a collective cannot be shared out to as many trees as it needs, as few as divide them are
taken, and the links are scaled to be the fastest that so few trees can use (Sec. 4.5.5).
"""

from __future__ import annotations

import dataclasses

from jaxcoll.bounds.throughput import Optimum, Scaling, fastest, known_optimum
from jaxcoll.errors import CollectiveError
from jaxcoll.topology import Topology

Weights = tuple[int, ...] | None

# Trees per rank that are tried where the chunks per shard do not fit the optimum's (Sec. 4.5.5).
_SCAN = 16


@dataclasses.dataclass(frozen=True)
class Rates:
    """A network, and the data that each link may carry.

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


def rates_for_chunks(
    topology: Topology, weights: Weights, chunks: int, k: int | None = None
) -> Rates:
    """The fastest number of trees that divides the chunks, or k.

    The optimum's own where it divides them, otherwise the fastest of up to 16 (Sec. 4.5.5).

    Args:
        weights: size of each rank's shard relative to the others; equal when None.
        chunks: chunks per shard of weight 1.

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
    numbers = [d for d in range(1, _SCAN + 1) if chunks % d == 0] if k is None else [k]
    return Rates(topology, best, fastest(topology, best, numbers), is_exact=False)


def numbers_of_trees(topology: Topology, root: int | None = None) -> tuple[int, ...]:
    """Trees per rank of an all_gather: the fastest number of up to 16, then the optimum's own.

    Args:
        root: the root of a broadcast, to whose trees the numbers then apply.
    """
    ranks = range(topology.num_ranks)
    weights = None if root is None else tuple(int(rank == root) for rank in ranks)
    best = known_optimum(topology, weights)
    if best.k <= _SCAN:
        return (best.k,)
    return fastest(topology, best, range(1, _SCAN + 1)).k, best.k
