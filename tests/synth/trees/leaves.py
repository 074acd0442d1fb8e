"""Networks of leaf switches with any numbers of ranks, for tests."""

from __future__ import annotations

import numpy as np

from jaxcoll.topology import Topology


def below_one_spine(sizes: list[int]) -> Topology:
    """Leaf switches with given numbers of ranks, joined by links as fast as all ranks together."""
    n, leaf = sum(sizes), np.repeat(np.arange(len(sizes)), sizes)
    low = np.append(np.arange(n), n + np.arange(len(sizes)))
    high = np.append(n + leaf, np.full(len(sizes), n + len(sizes)))
    speed = np.where(low < n, 50e9, 50e9 * n)
    ends = np.append(low, high), np.append(high, low)
    return Topology(
        n, *ends, np.full(2 * len(low), 5e-7), np.tile(speed, 2), num_vertices=n + len(sizes) + 1
    )
