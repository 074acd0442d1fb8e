"""Networks of routers with ranks behind them: the flattened butterfly, and DragonFly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import (
    check_size,
    count,
    latencies,
    latency,
    network_sides,
    speed,
    speeds,
)
from jaxcoll.topologies.complete import fully_connected
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topologies.product import product
from jaxcoll.topology import Topology


def behind_routers(
    network: Topology, terminals: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """The network with every rank turned into a switch that has ``terminals`` ranks.

    Ranks of a router are consecutive. Switches of the network follow the routers.

    Args:
        network: the routers, as ranks, and their links.
        terminals: ranks of a router.
        alpha, bandwidth: seconds and bytes per second of the links between a rank and its router.

    Raises:
        TopologyError: no terminals.
    """
    checks.instance(network, Topology, "network", TopologyError)
    terminals, alpha, bandwidth = count(terminals, "terminals"), latency(alpha), speed(bandwidth)
    vertices = network.num_ranks * terminals + network.num_vertices
    check_size("a network behind routers", vertices, network.num_links + 2 * vertices)
    routers = network.num_ranks
    n = routers * terminals
    rank = np.arange(n)
    router = n + rank // terminals
    port = np.arange(terminals)
    images = [_image(np.asarray(move), routers, port) for move in network.generators]
    if terminals > 1:
        images.append(_image(np.arange(network.num_vertices), routers, (port + 1) % terminals))
    return Topology(
        n,
        np.concatenate([network.src + n, rank, router]),
        np.concatenate([network.dst + n, router, rank]),
        np.concatenate([network.alpha, np.full(2 * n, alpha, float)]),
        [*network.exact_bandwidth, *[bandwidth] * (2 * n)],  # type: ignore[arg-type]
        num_vertices=n + network.num_vertices,
        name=f"{network.name or 'network'} of routers with {terminals} ranks",
        generators=tuple(images),
    )


def _image(vertex: np.ndarray, routers: int, port: np.ndarray) -> tuple[int, ...]:
    """Where all vertices go when those of the network and the ports of a router move."""
    terminals = len(port)
    ranks = (vertex[:routers, None] * terminals + port).ravel()
    return tuple(int(v) for v in [*ranks, *(routers * terminals + vertex)])


def flattened_butterfly(
    *sides: int, terminals: int = 0, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """A grid of routers, each joined to all that differ in one coordinate.

    Kim, Dally and Abts, "Flattened butterfly: a cost-efficient topology for high-radix networks"
    (ISCA 2007): their k-ary n-flat is ``flattened_butterfly(*[k] * (n - 1), terminals=k)``.

    Args:
        sides: routers along each dimension.
        terminals: ranks of a router; 0 if the routers are the ranks.
        alpha: seconds per link.
        bandwidth: bytes per second per link.
    """
    sides, terminals = network_sides(sides), count(terminals, "terminals", least=0)
    name = f"flattened butterfly {'x'.join(map(str, sides))}"
    lines = (fully_connected(side, alpha=alpha, bandwidth=bandwidth) for side in sides)
    network = product(*lines, name=name)
    if terminals == 0:
        return network
    return behind_routers(network, terminals, alpha=alpha, bandwidth=bandwidth)


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
