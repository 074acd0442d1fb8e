"""Rings, meshes, tori and hypercubes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid, per_dimension
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
from jaxcoll.topology import Topology

ALPHA = 0.5e-6  # seconds; the setting of the TACOS paper (Sec. V-B, footnote)
BANDWIDTH = 50e9  # bytes per second; likewise


def ring(
    n: int, *, bidirectional: bool = True, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """n ranks in a circle; links r -> r+1, and r+1 -> r if bidirectional.

    A bidirectional ring of two ranks has one link each way, as has a one-way ring of two.

    Args:
        alpha: seconds per link.
        bandwidth: bytes per second per link.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    if checks.flag(bidirectional, "bidirectional", TopologyError):
        return grid((n,), True, alpha=alpha, bandwidth=bandwidth, name=f"ring {n}")
    src = np.arange(n) if n > 1 else np.zeros(0, np.int64)
    turn = tuple((r + 1) % n for r in range(n))
    return Topology(
        n,
        src,
        (src + 1) % n,
        np.full(len(src), alpha, float),
        [bandwidth] * len(src),  # type: ignore[arg-type]
        name=f"one-way ring {n}",
        generators=(turn,) if n > 1 else (),
    )


def mesh(
    *sides: int,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = BANDWIDTH,
) -> Topology:
    """An n-dimensional mesh; neighbours are joined by a link each way, borders are open.

    Args:
        sides: ranks along each dimension; the last dimension's ranks are consecutive.
        alpha: seconds per link, one for all or one for each dimension.
        bandwidth: bytes per second per link, one for all or one for each dimension.
    """
    name = f"mesh {'x'.join(map(str, network_sides(sides)))}"
    return grid(sides, False, alpha=alpha, bandwidth=bandwidth, name=name)


def torus(
    *sides: int,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = BANDWIDTH,
) -> Topology:
    """An n-dimensional torus; a side of 2 has one link each way, not two.

    Arguments are those of ``mesh``.
    """
    name = f"torus {'x'.join(map(str, network_sides(sides)))}"
    return grid(sides, True, alpha=alpha, bandwidth=bandwidth, name=name)


def hypercube(
    dimensions: int,
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = BANDWIDTH,
) -> Topology:
    """2**dimensions ranks; ranks that differ in one bit are joined by a link each way."""
    dimensions = count(dimensions, "dimensions")
    check_size("a hypercube", 2 ** min(dimensions, 64), dimensions * 2 ** min(dimensions, 64))
    sides = (2,) * dimensions
    return grid(sides, False, alpha=alpha, bandwidth=bandwidth, name=f"hypercube {dimensions}")


def grid(
    sides: Sequence[int],
    wrap: bool | Sequence[bool],
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = BANDWIDTH,
    name: str = "",
) -> Topology:
    """A grid of ranks some of whose dimensions close into rings; the general form of the others.

    Args:
        sides: ranks along each dimension.
        wrap: which dimensions close, one for all or one for each.
        alpha: seconds per link, one for all or one for each dimension.
        bandwidth: bytes per second per link, one for all or one for each dimension.
    """
    shape = network_sides(sides)
    dimensions = len(shape)
    box = Grid(shape, per_dimension(wrap, dimensions, "wrap"))
    alphas, bandwidths = latencies(alpha, dimensions), speeds(bandwidth, dimensions)
    check_size(name or "a grid", box.size, 2 * box.size * dimensions)
    pairs = [box.neighbour_pairs(d) for d in range(dimensions)]
    joined = np.concatenate(pairs)
    lengths = [len(p) for p in pairs]
    return Topology(
        box.size,
        joined[:, 0],
        joined[:, 1],
        np.repeat(np.asarray(alphas, float), lengths),
        [b for b, m in zip(bandwidths, lengths, strict=True) for _ in range(m)],  # type: ignore[arg-type]
        name=name,
        grid=box,
        generators=box.generators(),
    )
