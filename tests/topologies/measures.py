"""The diameter of a network, and the vertices that its generators take a vertex to."""

from __future__ import annotations

from jaxcoll import Topology
from jaxcoll.paths import hop_distances


def diameter(topology: Topology) -> int:
    return int(hop_distances(topology).max())


def orbit(topology: Topology, start: int = 0) -> set[int]:
    reached, todo = {start}, [start]
    while todo:
        v = todo.pop()
        new = {generator[v] for generator in topology.generators} - reached
        reached |= new
        todo += new
    return reached
