"""Networks of routers with ranks behind them, and the flattened butterfly."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count, latency, network_sides, speed
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
