"""Hosts of consecutive ranks: how many ranks they have, chains through one, circles through all.

No column of a network names its hosts. Bandwidths do: the ranks that links above the least
bandwidth join are a host, if all such parts are of equal size and of consecutive ranks. A circle
through all ranks is then a chain through every host and a link between hosts; there is one circle
per rank of a host, each entering the hosts at another rank, so that all ranks' network links are
used.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from jaxcoll.paths import shortest_routes
from jaxcoll.synth.building.grids import rank_grid_of
from jaxcoll.topology import Topology

# Ranks that the search for a chain may try to add before it gives up.
_MOST_TRIES = 20_000


def joined_ranks(topology: Topology) -> int:
    """Ranks of a host, if hosts are what links above the least bandwidth join; 0 if they are not.

    Hosts have consecutive ranks, two or more and as many in each, and are several.
    """
    fast = topology.bandwidth > topology.bandwidth.min(initial=np.inf)
    shape = (topology.num_vertices,) * 2
    joined = sparse.coo_array((fast[fast], (topology.src[fast], topology.dst[fast])), shape)
    _, part = csgraph.connected_components(joined, directed=False)
    ranks = part[: topology.num_ranks]
    inner = int((ranks == ranks[0]).sum())
    if 1 < inner < len(ranks) and len(ranks) % inner == 0:
        hosts = ranks.reshape(-1, inner)
        if (hosts == hosts[:, :1]).all() and len(np.unique(hosts[:, 0])) == len(hosts):
            return inner
    return 0


def ranks_per_host(topology: Topology, who: str) -> int:
    """Ranks of a host (``joined_ranks``); else the innermost side of the grid that the network is.

    Args:
        who: the name of the algorithm that needs it, for errors.

    Raises:
        TopologyError: the network is not a grid either.
    """
    inner = joined_ranks(topology)
    if inner:
        return inner
    sides = [side for side in rank_grid_of(topology, who).grid.shape if side > 1]
    return sides[-1] if sides else 1


@functools.lru_cache(maxsize=64)
def host_chains(topology: Topology, inner: int) -> tuple[tuple[int, ...], ...]:
    """A chain through the ranks of a host for each of them to begin, as indices of the host.

    Where links join the ranks of the first host, chains follow them, each those least in use so far
    for their bandwidth, and end at different ranks if they can; behind a switch they go round the
    ranks in rising order.
    """
    wide = np.zeros((inner, inner))
    inside = (topology.src < inner) & (topology.dst < inner)
    np.add.at(wide, (topology.src[inside], topology.dst[inside]), topology.bandwidth[inside])
    used, ends, chains = np.zeros_like(wide), set(), []
    for start in range(inner):
        chain = _chain(wide, used, start, ends) or _chain(wide, used, start, set())
        if not chain:
            index = np.arange(inner)
            return tuple(tuple(np.roll(index, -first).tolist()) for first in range(inner))
        used[chain[:-1], chain[1:]] += 1
        ends.add(chain[-1])
        chains.append(tuple(chain))
    return tuple(chains)


def _chain(wide: np.ndarray, used: np.ndarray, start: int, ends: set[int]) -> list[int]:
    """The first chain found that ends elsewhere, links least in use tried first; empty if none."""
    n = len(wide)
    chain, choices = [start], [iter(_least_used(wide, used, start))]
    # A Hamiltonian path, by backtracking: hard in general, found at once on the cliques and rings
    # that hosts are, hence a bound on the tries and not on the time.
    for _ in range(_MOST_TRIES):
        if len(chain) == n and chain[-1] not in ends:
            return chain
        following = next((v for v in choices[-1] if v not in chain), None)
        if following is not None:
            chain.append(following)
            choices.append(iter(_least_used(wide, used, following)))
            continue
        chain.pop()
        choices.pop()
        if not chain:
            break
    return []


def _least_used(wide: np.ndarray, used: np.ndarray, u: int) -> list[int]:
    near = np.flatnonzero(wide[u])
    return near[np.argsort((used[u, near] + 1) / wide[u, near], kind="stable")].tolist()


def host_circles(topology: Topology, inner: int) -> tuple[tuple[int, ...], ...]:
    """A circle through all hosts for each rank of a host, over chains that begin with it.

    Of the ranks of a host each is entered by one circle and left by one. Where equal ranks of two
    hosts are nearer to one another than others, on a rail of their own, every second host is
    crossed backwards, so that circles keep to rails, as NCCL's alternated rings do
    (``ncclTopoPostset`` in ``graph/connect.cc``); between the last and the first of an odd number
    of hosts they change rails.
    """
    hosts = topology.num_ranks // inner
    circles = []
    for chain in map(np.array, host_chains(topology, inner)):
        alternates = False
        if hosts > 1:
            other, same = shortest_routes(topology, chain[[-1, -1]], inner + chain[[0, -1]]).hops
            alternates = same < other
        ways = [chain[::-1] if alternates and host % 2 else chain for host in range(hosts)]
        circle = np.concatenate([host * inner + way for host, way in enumerate(ways)])
        circles.append(tuple(circle.tolist()))
    return tuple(circles)
