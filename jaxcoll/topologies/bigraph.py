"""BiGraph: two rows of switches, fully connected across."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.arguments import check_size, count, latency, speed
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def bigraph(
    ranks: int, switches: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """Half the switches are upper, half lower; each has ranks, and a link to all of the other half.

    The network of EFLOPS (Dong et al., "EFLOPS: algorithm and system co-design for a high
    performance distributed training platform", HPCA 2020). Ranks of a switch are consecutive, those
    of upper switches come first. The MultiTree paper's 4x8 (32 ranks) and 4x16 (64) have 4 ranks a
    switch and 8 and 16 switches.

    Args:
        ranks: ranks of a switch.
        switches: switches, an even number.
        alpha: seconds per link.
        bandwidth: bytes per second per link.

    Raises:
        TopologyError: no ranks, or an odd number of switches.
    """
    ranks, switches = count(ranks, "ranks"), count(switches, "switches")
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    if switches % 2:
        raise TopologyError(
            f"a BiGraph needs ranks on an even number of switches, got {ranks} on each of "
            f"{switches}"
        )
    n, half = ranks * switches, switches // 2
    name = f"BiGraph {ranks}x{switches}"
    check_size(name, n + switches, 2 * (n + half * half))
    rank, switch = np.arange(n), n + np.arange(switches)
    access = np.stack([rank, switch[rank // ranks]], axis=1)
    across = np.stack([np.repeat(switch[:half], half), np.tile(switch[half:], half)], axis=1)
    pairs = np.concatenate([access, across])
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    place = np.arange(switches)
    upper = np.where(place < half, (place + 1) % half, place)
    lower = np.where(place < half, place, half + (place + 1) % half)
    still, next_port = np.arange(ranks), (np.arange(ranks) + 1) % ranks
    moves = [(upper, still), (lower, still), ((place + half) % switches, still), (place, next_port)]
    return Topology(
        n,
        pairs[:, 0],
        pairs[:, 1],
        np.full(len(pairs), alpha, float),
        [bandwidth] * len(pairs),  # type: ignore[arg-type]
        num_vertices=n + switches,
        name=name,
        generators=tuple(
            tuple(int(v) for v in [*(moved[:, None] * ranks + port).ravel(), *(n + moved)])
            for moved, port in moves
            if not (np.array_equal(moved, place) and np.array_equal(port, still))
        ),
    )
