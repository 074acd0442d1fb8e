"""Fully connected networks and stars."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import whole_number
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def fully_connected(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """n ranks, a link from every one to every other.

    Args:
        alpha: seconds a link.
        bandwidth: bytes per second a link.
    """
    _at_least_one(n)
    src, dst = np.divmod(np.arange(n * n), n)
    apart = src != dst
    count = int(apart.sum())
    turn = tuple((r + 1) % n for r in range(n))
    return Topology(
        n,
        src[apart],
        dst[apart],
        np.full(count, alpha),
        [bandwidth] * count,  # type: ignore[arg-type]
        name=f"fully connected {n}",
        generators=(turn,) if n > 1 else (),
    )


def star(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """Rank 0 in the middle, joined by a link each way to every other rank.

    The middle is a rank that computes; for a hub that only forwards see ``switch``.
    """
    _at_least_one(n)
    leaves = np.arange(1, n)
    hub = np.zeros(n - 1, np.int64)
    turn = (0, *(1 + r % (n - 1) for r in range(1, n))) if n > 2 else ()
    return Topology(
        n,
        np.concatenate([hub, leaves]),
        np.concatenate([leaves, hub]),
        np.full(2 * (n - 1), alpha),
        [bandwidth] * (2 * (n - 1)),  # type: ignore[arg-type]
        name=f"star {n}",
        generators=(turn,) if turn else (),
    )


def _at_least_one(n: int) -> None:
    if whole_number(n, "n") < 1:
        raise TopologyError(f"a network needs at least one rank, got {n}")
