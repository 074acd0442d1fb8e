"""Networks with switches that ForestColl is defined for, and its known results there."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from jaxcoll.bounds.throughput import balanced
from jaxcoll.errors import TopologyError
from jaxcoll.topologies import dgx2, fat_tree, switch
from jaxcoll.topologies.gpu_clusters import dgx_a100, dgx_h100, mi250, nvswitch_hosts
from jaxcoll.topology import Topology
from tests import strategies

SWITCHED = [
    switch(5),
    dgx_a100(2),
    dgx_a100(4),
    dgx_h100(2),
    dgx_h100(4),
    mi250(2),
    mi250(2, ranks=8),
    mi250(3),
    dgx2(),
    fat_tree(3, 2),
    fat_tree(2, 3),
    nvswitch_hosts((8, 4), inside=300, network=25),
    nvswitch_hosts((8, 6, 5, 3), inside=300, network=25),
    nvswitch_hosts((8, 8), inside=(300, 450), network=(25, 50)),
    nvswitch_hosts((2, 2, 2), inside=299993, network=24989),
]


def balanced_or_none(topology: Topology) -> Topology | None:
    """The network trimmed for its switches; None if that cuts ranks off."""
    try:
        return topology if topology.is_direct else balanced(topology)
    except TopologyError as error:
        if "no path" not in str(error):
            raise
        return None


def random_switched(max_ranks: int = 8) -> st.SearchStrategy[Topology]:
    """Random balanced networks, most with switches."""
    drawn = strategies.topologies(max_ranks=max_ranks, switches=True, exact=True)
    return drawn.map(balanced_or_none).filter(lambda topology: topology is not None)  # type: ignore[return-value]


def direct(num_ranks: int, capacity: dict[tuple[int, int], int], y: Fraction) -> Topology:
    """Capacities in trees of bandwidth y, as a network of its own."""
    src, dst = np.asarray(list(capacity), int).reshape(-1, 2).T
    bandwidth = [c * y for c in capacity.values()]
    return Topology(num_ranks, src, dst, np.zeros(len(src)), bandwidth)  # type: ignore[arg-type]
