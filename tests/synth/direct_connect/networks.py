"""Small direct-connect networks on which BFB's shares and costs are known."""

from __future__ import annotations

import numpy as np

from jaxcoll.topology import Topology
from tests import strategies


def digraph(n: int, arcs, name: str = "") -> Topology:
    """A network of arcs, all of one speed."""
    ends = np.asarray(sorted(arcs))
    count = len(ends)
    return Topology(n, ends[:, 0], ends[:, 1], np.full(count, 1e-6), np.full(count, 1e9), name=name)


def circulant(n: int, *offsets: int) -> Topology:
    return digraph(n, [(i, (i + s * a) % n) for i in range(n) for a in offsets for s in (1, -1)])


def kautz(degree: int, n: int) -> Topology:
    """Pi(d, n) of Definition 16 without its self-loops."""
    arcs = [(x, (-degree * x - a) % n) for x in range(n) for a in range(1, degree + 1)]
    return digraph(n, [(x, y) for x, y in arcs if x != y])


HOMOGENEOUS = strategies.topologies(2, 12, homogeneous=True)
