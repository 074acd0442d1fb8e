"""The inside of NVIDIA's DGX-1 and DGX-2."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count, latency, speed
from jaxcoll.topology import Topology

LANE = 25e9  # bytes per second of one NVLink 2.0, each way
ALPHA = 0.7e-6  # seconds; the TACOS paper's model of a DGX-1 (Sec. VI-B.5)

# (rank, rank, NVLinks): each half is fully connected, and every rank has a partner in the other.
_LANES = (
    (0, 1, 2), (0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 2), (2, 3, 2),
    (4, 5, 2), (4, 6, 1), (4, 7, 1), (5, 6, 1), (5, 7, 2), (6, 7, 2),
    (0, 4, 2), (1, 5, 1), (2, 6, 2), (3, 7, 1),
)  # fmt: skip

# Three circles through all ranks of a DGX-1 that use every NVLink once, as NVIDIA's rings do.
DGX1_CIRCLES = (
    (0, 1, 3, 2, 6, 7, 5, 4),
    (0, 1, 3, 2, 6, 7, 5, 4),
    (0, 2, 1, 5, 6, 4, 7, 3),
)


def dgx1(*, alpha: float = ALPHA, bandwidth: float = LANE, merged: bool = False) -> Topology:
    """The hybrid cube mesh of a DGX-1 (V100): 8 ranks with 6 NVLinks each, and no switch.

    The link list is that of the dissertation on ForestColl (its optimum there: 7/6 of a shard's
    time per NVLink, with 6 trees per root), which is that of NVIDIA's white paper "DGX-1 With Tesla
    V100 System Architecture".

    Args:
        alpha: seconds per link.
        bandwidth: bytes per second of one NVLink, each way.
        merged: whether the two NVLinks of a pair are one link of twice the bandwidth instead of
            two parallel links.
    """
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    merged = checks.flag(merged, "merged", TopologyError)
    lanes = np.asarray(_LANES)
    both = np.concatenate([lanes, lanes[:, [1, 0, 2]]])
    times = np.ones(len(both), np.int64) if merged else both[:, 2]
    src, dst, width = np.repeat(both, times, axis=0).T
    return Topology(
        8,
        src,
        dst,
        np.full(len(src), alpha, float),
        [bandwidth * (int(w) if merged else 1) for w in width],  # type: ignore[arg-type]
        name="DGX-1",
        generators=((4, 5, 6, 7, 0, 1, 2, 3), (2, 3, 0, 1, 6, 7, 4, 5)),
    )


def dgx2(*, planes: int = 6, alpha: float = ALPHA, bandwidth: float = LANE) -> Topology:
    """A DGX-2: 16 ranks on two boards, joined by planes of two NVSwitches.

    In every plane the 8 ranks of a board have a link to the board's switch, and both switches are
    joined by as much bandwidth as 8 ranks have (NVIDIA, "NVSwitch: the world's highest-bandwidth
    on-node switch", 2018). One plane is the 16-rank network of the MultiTree paper (Sec. V-A).

    Args:
        planes: planes that every rank has a link to, 6 in the product.
        alpha: seconds per link; a way through two switches has three.
        bandwidth: bytes per second of one NVLink, each way.

    Raises:
        TopologyError: no planes.
    """
    planes, alpha, bandwidth = count(planes, "planes"), latency(alpha), speed(bandwidth)
    check_size("a DGX-2", 16 + 2 * planes, 34 * planes)
    ranks, board = np.arange(16), np.arange(16) // 8
    up, down = [], []
    for plane in range(planes):
        switches = 16 + 2 * plane + np.arange(2)
        up += [*zip(ranks, switches[board], strict=True)]
        down.append(tuple(switches))
    pairs = np.asarray([*up, *down])
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    widths = np.tile([1] * len(up) + [8] * len(down), 2)
    turn = [*((ranks + 1) % 8 + 8 * board), *range(16, 16 + 2 * planes)]
    swap = [*((ranks + 8) % 16), *(16 + (np.arange(2 * planes) ^ 1))]
    return Topology(
        16,
        pairs[:, 0],
        pairs[:, 1],
        np.full(len(pairs), alpha, float),
        [bandwidth * int(width) for width in widths],  # type: ignore[arg-type]
        num_vertices=16 + 2 * planes,
        name="DGX-2" if planes == 6 else f"DGX-2 with {planes} planes",
        generators=tuple(tuple(int(v) for v in image) for image in (swap, turn)),
    )
