"""Networks of about 512 and 1,024 vertices as people have them: without a grid, many degraded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from random import Random

import networkx as nx
import numpy as np

from jaxcoll.topologies import (
    dgx_a100,
    dgx_h100,
    dragonfly,
    fat_tree,
    hypercube,
    leaf_spine,
    mesh,
    mi250,
    multi_rail,
    torus,
)
from jaxcoll.topology import Topology

GB = 10**9
Pair = tuple[int, int]


def listed(topology: Topology) -> Topology:
    """The links as a plain list, which tells no structure."""
    return topology.without()


def less(topology: Topology, *pairs: Pair) -> Topology:
    """The network without the wires between some pairs of vertices, which fail both ways."""
    return topology.without([*pairs, *((v, u) for u, v in pairs)])


def less_some(topology: Topology, count: int, seed: int) -> Topology:
    """The network without a number of random wires."""
    wires = sorted({(min(p), max(p)) for p in zip(topology.src, topology.dst, strict=True)})
    return less(topology, *Random(seed).sample(wires, count))


def slowed(topology: Topology, share: Fraction, *pairs: Pair) -> Topology:
    """The network with wires between some pairs of vertices slowed down to a share, both ways."""
    chosen = {*pairs, *((v, u) for u, v in pairs)}
    ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    bandwidth = [
        b * share if pair in chosen else b
        for pair, b in zip(ends, topology.exact_bandwidth, strict=True)
    ]
    return Topology(
        topology.num_ranks,
        topology.src,
        topology.dst,
        topology.alpha,
        bandwidth,  # type: ignore[arg-type]
        num_vertices=topology.num_vertices,
        name=topology.name,
    )


def wired(ranks: int, wires: Mapping[Pair, int], vertices: int | None = None) -> Topology:
    """Links in both directions, from pairs of vertices with their GB/s."""
    ends = np.asarray(list(wires)).T
    src, dst = np.concatenate([ends, ends[::-1]], axis=1)
    speeds = np.asarray([speed * GB for speed in wires.values()] * 2)
    return Topology(
        ranks, src, dst, np.full(len(src), 1e-6), speeds, num_vertices=vertices or ranks
    )  # type: ignore[arg-type]


def random_regular(degree: int, ranks: int, seed: int) -> Topology:
    """Random wires, as many at every rank."""
    graph = nx.random_regular_graph(degree, ranks, seed=seed)
    return wired(ranks, dict.fromkeys(sorted(graph.edges), 1))


def random_eulerian(ranks: int, cycles: int, seed: int) -> Topology:
    """One-way links of 1 to 9 GB/s: random Hamiltonian cycles of one bandwidth each."""
    random, amount = Random(seed), {}
    for _ in range(cycles):
        order, speed = random.sample(range(ranks), ranks), random.randint(1, 9)
        for i in range(ranks):
            pair = order[i - 1], order[i]
            amount[pair] = amount.get(pair, 0) + speed * GB
    src, dst = np.asarray(list(amount)).T
    return Topology(ranks, src, dst, np.full(len(src), 1e-6), list(amount.values()))  # type: ignore[arg-type]


def random_digraph(ranks: int, degree: int, seed: int) -> Topology:
    """Random one-way links of 1 to 9 GB/s over a ring, neither paired nor balanced."""
    random = Random(seed)
    pairs = {(r, (r + 1) % ranks) for r in range(ranks)}
    while len(pairs) < degree * ranks:
        u, v = random.sample(range(ranks), 2)
        pairs.add((u, v))
    src, dst = np.asarray(sorted(pairs)).T
    speeds = [random.randint(1, 9) * GB for _ in src]
    return Topology(ranks, src, dst, np.full(len(src), 1e-6), speeds)  # type: ignore[arg-type]


def two_rings(ranks: int) -> Topology:
    """Two rings that two pairs of links join: the cut between them is tight."""
    around = {(r + u, r + (u + 1) % ranks): 2 for r in (0, ranks) for u in range(ranks)}
    return wired(2 * ranks, around | {(u, u + ranks): 1 for u in (0, ranks // 2)})


def star_of_rings(rings: int, ranks: int) -> Topology:
    """Rings, two ranks of each joined to one switch."""
    n = rings * ranks
    around = {
        (r * ranks + u, r * ranks + (u + 1) % ranks): 2 for r in range(rings) for u in range(ranks)
    }
    up = {(r * ranks + u, n): 1 for r in range(rings) for u in (0, ranks // 2)}
    return wired(n, around | up, n + 1)


def joined(first: Topology, second: Topology, wires: int, speed: int) -> Topology:
    """Two networks, wires of some bytes per second between the first ranks of both."""
    graph = nx.DiGraph()
    for part, topology in (("a", first), ("b", second)):
        n = topology.num_ranks
        names = [("rank" if v < n else "switch", part, v) for v in range(topology.num_vertices)]
        graph.add_nodes_from((name, {"kind": name[0]}) for name in names)
        for u, v, b in zip(topology.src, topology.dst, topology.exact_bandwidth, strict=True):
            graph.add_edge(names[u], names[v], bandwidth=b)
    for r in range(wires):
        ends = ("rank", "a", r), ("rank", "b", r)
        graph.add_edge(*ends, bandwidth=Fraction(speed))
        graph.add_edge(*ends[::-1], bandwidth=Fraction(speed))
    return Topology.from_networkx(graph, alpha=1e-6)


def _ports(topology: Topology, ranks: Iterable[int]) -> list[Pair]:
    """The wires between some ranks and the network switch of a cluster."""
    return [(rank, topology.num_vertices - 1) for rank in ranks]


def _cluster(make: Callable[[int], Topology], hosts: int, dead=(), slow=()) -> Topology:
    topology = make(hosts)
    if slow:
        topology = slowed(topology, Fraction(1, 2), *_ports(topology, slow))
    return less(topology, *_ports(topology, dead)) if dead else topology


NETWORKS: Mapping[str, Callable[[], Topology]] = {
    "torus 8x8x8 less a wire": lambda: less(torus(8, 8, 8), (0, 1)),
    "torus 8x8x8 less a rank": lambda: torus(8, 8, 8).without(ranks=[77]),
    "torus 8x8x16 less 16 wires": lambda: less_some(torus(8, 8, 16), 16, 0),
    "torus 32x32 less a wire": lambda: less(torus(32, 32), (0, 1)),
    "mesh 32x32": lambda: listed(mesh(32, 32)),
    "hypercube 9": lambda: listed(hypercube(9)),
    "hypercube 10 less 8 wires": lambda: less_some(hypercube(10), 8, 1),
    "random 4-regular 512": lambda: random_regular(4, 512, 0),
    "random 6-regular 1024": lambda: random_regular(6, 1024, 0),
    "random Eulerian 512": lambda: random_eulerian(512, 5, 0),
    "random Eulerian 1024": lambda: random_eulerian(1024, 5, 1),
    "random digraph 512": lambda: random_digraph(512, 5, 0),
    "random digraph 1024": lambda: random_digraph(1024, 5, 1),
    "fat tree 16-ary 2-level": lambda: fat_tree(16, 2),
    "fat tree 8-ary 3-level": lambda: fat_tree(8, 3),
    "fat tree 8-ary 3-level less a wire": lambda: less(fat_tree(8, 3), (512, 576)),
    "fat tree 32-ary 2-level": lambda: fat_tree(32, 2),
    "fat tree 10-ary 3-level": lambda: fat_tree(10, 3),
    "leaf-spine 32x16 under 8, 2:1": lambda: leaf_spine(32, 16, 8, oversubscription=2),
    "leaf-spine 64x16 under 16, 4:1": lambda: leaf_spine(64, 16, 16, oversubscription=4),
    "leaf-spine 32x16 under 8 less a wire": lambda: less(leaf_spine(32, 16, 8), (512, 544)),
    "A100 x64 with a dead NIC": lambda: _cluster(dgx_a100, 64, dead=[5]),
    "A100 x64 with a slow NIC": lambda: _cluster(dgx_a100, 64, slow=[5]),
    "A100 x128 with 4 dead NICs": lambda: _cluster(dgx_a100, 128, dead=[5, 6, 300, 901]),
    "H100 x128 with a slow NIC": lambda: _cluster(dgx_h100, 128, slow=[77]),
    "MI250 x32 with a dead NIC": lambda: _cluster(mi250, 32, dead=[5]),
    "MI250 x64 with a slow NIC": lambda: _cluster(mi250, 64, slow=[5]),
    "64 hosts of 8 on rails less a wire": lambda: less(multi_rail(64, 8), (3, 512 + 3)),
    "dragonfly 33x16": lambda: listed(dragonfly(33, 16)),
    "dragonfly 32x32 less 8 wires": lambda: less_some(dragonfly(32, 32), 8, 2),
    "two rings of 128": lambda: two_rings(128),
    "two rings of 256": lambda: two_rings(256),
    "two rings of 512": lambda: two_rings(512),
    "star of 8 rings of 64": lambda: star_of_rings(8, 64),
    "star of 16 rings of 64": lambda: star_of_rings(16, 64),
    "torus 16x16 and fat tree 16-ary 2-level": lambda: joined(
        torus(16, 16, bandwidth=GB), fat_tree(16, 2, bandwidth=GB), 8, GB
    ),
    "hypercube 9 and A100 x64": lambda: joined(
        hypercube(9, bandwidth=50 * GB), dgx_a100(64), 16, 50 * GB
    ),
}
