"""Leaf and spine: two levels of switches, possibly with less bandwidth above than below."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topologies.arguments import check_size, count, latency, speed
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
        alpha: seconds per link.
        bandwidth: bytes per second between a rank and its leaf, each way.

    Raises:
        TopologyError: no leaves, ranks or spines, or an oversubscription that is not above 0.
    """
    leaves, ranks, spines = count(leaves, "leaves"), count(ranks, "ranks"), count(spines, "spines")
    alpha, below = latency(alpha), as_fraction(speed(bandwidth))
    ratio = as_fraction(checks.positive(oversubscription, "oversubscription", TopologyError))
    n = leaves * ranks
    check_size("a leaf-spine network", n + leaves + spines, 2 * (n + leaves * spines))
    rank = np.arange(n)
    leaf, spine = np.divmod(np.arange(leaves * spines), spines)
    low = np.concatenate([rank, n + leaf])
    high = np.concatenate([n + rank // ranks, n + leaves + spine])
    above = below * ranks / (ratio * spines)
    speeds = [below] * n + [above] * len(leaf)
    return Topology(
        n,
        np.concatenate([low, high]),
        np.concatenate([high, low]),
        np.full(2 * len(low), alpha, float),
        speeds * 2,  # type: ignore[arg-type]
        num_vertices=n + leaves + spines,
        name=f"leaf-spine {leaves}x{ranks} under {spines}" + (f", {ratio}:1" if ratio != 1 else ""),
    )
