"""Fully connected networks and stars."""

from __future__ import annotations

import numpy as np

from jaxcoll.topologies.arguments import check_size, count, latency, speed
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def fully_connected(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """n ranks, a link from every one to every other.

    Args:
        alpha: seconds per link.
        bandwidth: bytes per second per link.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    name, links = f"fully connected {n}", n * (n - 1)
    check_size(name, n, links)
    src, dst = np.divmod(np.arange(n * n), n)
    apart = src != dst
    turn = tuple((r + 1) % n for r in range(n))
    return Topology(
        n,
        src[apart],
        dst[apart],
        np.full(links, alpha, float),
        [bandwidth] * links,  # type: ignore[arg-type]
        name=name,
        generators=(turn,) if n > 1 else (),
    )


def star(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """Rank 0 in the middle, joined by a link each way to every other rank.

    The middle is a rank that computes; for a hub that only forwards see ``switch``.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    leaves = np.arange(1, n)
    hub = np.zeros(n - 1, np.int64)
    turn = (0, *(1 + r % (n - 1) for r in range(1, n))) if n > 2 else ()
    return Topology(
        n,
        np.concatenate([hub, leaves]),
        np.concatenate([leaves, hub]),
        np.full(2 * (n - 1), alpha, float),
        [bandwidth] * (2 * (n - 1)),  # type: ignore[arg-type]
        name=f"star {n}",
        generators=(turn,) if turn else (),
    )
