"""Leaf and spine: two levels of switches, possibly with less bandwidth above than below."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.exact import as_fraction
from jaxcoll.links import whole_number
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def leaf_spine(
    leaves: int,
    ranks: int,
    spines: int,
    *,
    oversubscription: int | float | Fraction = 1,
    alpha: float = ALPHA,
    bandwidth: float = BANDWIDTH,
) -> Topology:
    """Leaf switches with ranks below, each joined to every spine switch.

    Ranks stand leaf by leaf; then the leaves, then the spines. From a leaf, all links up together
    have the bandwidth of its links down divided by the oversubscription, in equal shares.

    Args:
        leaves: leaf switches.
        ranks: ranks below each leaf.
        spines: spine switches.
        oversubscription: bandwidth below a leaf over bandwidth above it.
        alpha: seconds a link.
        bandwidth: bytes per second between a rank and its leaf, each way.

    Raises:
        TopologyError: no leaves, ranks or spines, or an oversubscription that is not above 0.
    """
    counts = {"leaves": leaves, "ranks": ranks, "spines": spines}
    for what, count in counts.items():
        if whole_number(count, what) < 1:
            raise TopologyError(f"{what} must be at least 1, got {count}")
    try:
        ratio, speed = as_fraction(oversubscription), as_fraction(bandwidth)
    except ValueError as error:
        raise TopologyError(f"oversubscription and bandwidth: {error}") from None
    if ratio <= 0:
        raise TopologyError(f"oversubscription must be above 0, got {oversubscription}")
    n = leaves * ranks
    rank = np.arange(n)
    leaf, spine = np.divmod(np.arange(leaves * spines), spines)
    low = np.concatenate([rank, n + leaf])
    high = np.concatenate([n + rank // ranks, n + leaves + spine])
    above = speed * ranks / (ratio * spines)
    speeds = [speed] * n + [above] * len(leaf)
    return Topology(
        n,
        np.concatenate([low, high]),
        np.concatenate([high, low]),
        np.full(2 * len(low), alpha),
        speeds * 2,  # type: ignore[arg-type]
        num_vertices=n + leaves + spines,
        name=f"leaf-spine {leaves}x{ranks} under {spines}" + (f", {ratio}:1" if ratio != 1 else ""),
    )
