"""As many trees as the chunks of a collective can be shared out to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jaxcoll.bounds.throughput import Optimum, Scaling, fixed_k, optimum
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics.rational import Number
from jaxcoll.synth.forestcoll.stages import forest_at
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Trees per rank that are tried where the chunks per shard do not fit the optimum's (Sec. 4.5.5).
_SCAN = 16


def fitting_forest(
    topology: Topology,
    weights: Sequence[Number] | None,
    chunks: int,
    *,
    k: int | None = None,
    guess: bool = True,
    fast: bool = False,
) -> TreeFlow:
    """The forest of k trees per rank, or of the fastest number of them, that divides the chunks.

    The optimum's own number where it divides them, otherwise the fastest of up to 16 (Sec. 4.5.5).
    The certificate says how it was found, how fast it is and how fast any could be.

    Args:
        weights, guess, fast: see ``forest``.
        chunks: chunks per shard of weight 1.

    Raises:
        CollectiveError: k does not divide the chunks.
        TopologyError: see ``forest``.
    """
    shares = None if weights is None else tuple(weights)
    best = known_optimum(topology, shares)
    trees = _trees(topology, shares, chunks, k, best)
    flow = _forest(topology, shares, trees, guess, fast)
    certificate = {
        "seconds per byte of shard": str(flow.inverse),
        "optimum": str(best.inverse),
        "cut": str(best),
        "k": flow.k,
        "height": flow.height,
        "mean height": flow.mean_height,
        **flow.certificate,
    }
    return dataclasses.replace(flow, certificate=certificate)


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
    speed = {d: _scaling(topology, weights, d).inverse for d in range(1, _SCAN + 1)}
    return min(speed, key=lambda d: (speed[d], d)), best.k


# The same network is asked for again with every number of chunks.


@functools.lru_cache(maxsize=16)
def known_optimum(topology: Topology, weights: tuple[Number, ...] | None) -> Optimum:
    """``optimum``, found once for all calls that follow each other."""
    return optimum(topology, weights)


@functools.lru_cache(maxsize=128)
def _scaling(topology: Topology, weights: tuple[Number, ...] | None, k: int | None) -> Scaling:
    best = known_optimum(topology, weights)
    return best.scaling if k is None else fixed_k(topology, k, weights, best=best)


@functools.lru_cache(maxsize=4)
def _forest(
    topology: Topology,
    weights: tuple[Number, ...] | None,
    k: int | None,
    guess: bool,
    fast: bool,
) -> TreeFlow:
    scaling = _scaling(topology, weights, k)
    return forest_at(topology, scaling, guess=guess, fast=fast, exact=k is None)


def _trees(
    topology: Topology,
    weights: tuple[Number, ...] | None,
    chunks: int,
    k: int | None,
    best: Optimum,
) -> int | None:
    """Trees per rank that the chunks can be shared out to; None for the optimum's own."""
    if k is not None:
        if chunks % k:
            raise CollectiveError(
                f"k={k} trees per rank need a multiple of {k} chunks per shard, got {chunks}"
            )
        return k
    if chunks % best.k == 0:
        return None
    divisors = [d for d in range(1, _SCAN + 1) if chunks % d == 0]
    speed = {d: _scaling(topology, weights, d).inverse for d in divisors}
    return min(speed, key=lambda d: (speed[d], d))
