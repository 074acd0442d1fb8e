"""DragonFly networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.topologies.arguments import check_size, count, latencies, speeds
from jaxcoll.topologies.grids import ALPHA
from jaxcoll.topology import Topology


def dragonfly(
    groups: int,
    routers: int,
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = (400e9, 200e9),
) -> Topology:
    """Fully connected groups, and one link each way between every two groups.

    The link of group i to group j leaves from router (j - i - 1) mod groups, counted on round the
    routers where there are more groups than routers. With as many routers as other groups this is
    the canonical DragonFly with one global link a router (Kim, Dally, Scott and Abts, ISCA 2008,
    Sec. 3); with more, some routers have none. Routers are the ranks:
    rank = group * routers + router.

    The TACOS paper's 4 x 5 at 400 and 200 GB/s (Sec. VI-B.1) is ``dragonfly(5, 4)``: like its other
    networks it is written innermost first, and four groups of five could not reach the 90 % of
    Ideal that the paper reports, as three links out of a group allow 71 % only.

    Args:
        groups, routers: groups, and routers of a group.
        alpha: seconds per link, one for all or one for links inside groups and one between them.
        bandwidth: bytes per second per link, likewise.

    Raises:
        TopologyError: no groups or no routers.
    """
    groups, routers = count(groups, "groups"), count(routers, "routers")
    alphas, bandwidths = latencies(alpha, 2), speeds(bandwidth, 2)
    name = f"dragonfly {groups}x{routers}"
    check_size(name, groups * routers, groups * (routers * (routers - 1) + groups - 1))
    inside = [
        (g * routers + u, g * routers + v)
        for g in range(groups)
        for u in range(routers)
        for v in range(routers)
        if u != v
    ]
    between = [
        (i * routers + (j - i - 1) % groups % routers, j * routers + (i - j - 1) % groups % routers)
        for i in range(groups)
        for j in range(groups)
        if i != j
    ]
    pairs = np.asarray(inside + between, np.int64).reshape(-1, 2)
    counts = (len(inside), len(between))
    ranks = groups * routers
    turn = tuple((rank + routers) % ranks for rank in range(ranks))
    return Topology(
        ranks,
        pairs[:, 0],
        pairs[:, 1],
        np.repeat(np.asarray(alphas, float), counts),
        [speed for speed, links in zip(bandwidths, counts, strict=True) for _ in range(links)],  # type: ignore[arg-type]
        name=name,
        generators=(turn,) if groups > 1 else (),
    )
