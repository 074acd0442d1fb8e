"""Clusters in levels: 2D Switch, 3D-RFS and rails, innermost level first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxcoll.errors import TopologyError
from jaxcoll.grid import per_dimension
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topologies.arguments import count, latencies, speeds
from jaxcoll.topologies.complete import fully_connected, switch
from jaxcoll.topologies.grids import ALPHA, ring
from jaxcoll.topologies.product import product
from jaxcoll.topology import Topology


def switch_2d(
    inner: int,
    outer: int,
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = (300e9, 25e9),
    degree: int | Sequence[int | None] | None = None,
) -> Topology:
    """Hosts of ``inner`` ranks around a switch each; a switch per rank of a host joins the hosts.

    The TACOS paper's 2D Switch (Table IV; 8 x 4 at 300 and 25 GB/s in Sec. VI-B.1). Ranks of a host
    are consecutive: rank = host * inner + index.

    Args:
        inner, outer: ranks of a host, and hosts.
        alpha: seconds from a rank into a switch and as much out of it, one or one per level.
        bandwidth: bytes per second between a rank and its switch, one or one per level.
        degree: None to keep the switches, or the degree each is unwound with (see ``switch``), one
            or one per level.
    """
    alphas, bandwidths = latencies(alpha, 2), speeds(bandwidth, 2)
    degrees = per_dimension(degree, 2, "degree")
    inside, outside = (
        switch(side, degree=d, alpha=a, bandwidth=b)
        for side, d, a, b in zip((inner, outer), degrees, alphas, bandwidths, strict=True)
    )
    return product(outside, inside, name=_named(f"2D switch {inner}x{outer}", degrees))


def multi_rail(
    hosts: int,
    ranks: int,
    *,
    alpha: float | Sequence[float] = (1e-6, 5e-6),
    bandwidth: float | Sequence[float] = (300e9, 25e9),
) -> Topology:
    """Hosts of ranks around a switch each, and one rail per rank of a host.

    Rank i of every host is linked to rail switch i, as in clusters of DGX A100 (the defaults:
    NVSwitch and InfiniBand bytes per second per rank, as in ForestColl's evaluation). A
    ``switch_2d`` counted in hosts: rank = host * ranks + index.

    Vertices are called "host 0 rank 1", "host 0 switch" and "rail 1".

    Args:
        hosts, ranks: hosts, and ranks of a host.
        alpha, bandwidth: of a rank's link inside its host and of that to its rail.
    """
    clusters = switch_2d(ranks, hosts, alpha=alpha, bandwidth=bandwidth)
    names = [f"host {h} rank {r}" for h in range(hosts) for r in range(ranks)]
    # The product has the switches of its outer dimension first; a line of one rank has none.
    names += [f"rail {r}" for r in range(ranks)] * (hosts > 1)
    names += [f"host {h} switch" for h in range(hosts)] * (ranks > 1)
    rails = product(clusters, name=f"{hosts} hosts of {ranks} on rails")
    return dataclasses.replace(rails, vertex_names=tuple(names))


def ring_fc_switch(
    ring_side: int,
    fc_side: int,
    switch_side: int,
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = (200e9, 100e9, 50e9),
    shared: bool = False,
    degree: int | None = None,
) -> Topology:
    """3D-RFS: rings, fully connected groups of them, and switches between the groups.

    The TACOS paper's 3D-RFS (Table IV; 2 x 4 x 8 at 200, 100 and 50 GB/s in Sec. VI-B.1). Ranks of
    a ring are consecutive: rank = (outer * fc_side + group) * ring_side + index. The times of
    Direct and RHD in its Table V are those of ``shared=True, degree=1``.

    Args:
        ring_side, fc_side, switch_side: ranks along each dimension.
        alpha: seconds per link, one or one per dimension.
        bandwidth: bytes per second per link, one or one per dimension.
        shared: whether the bandwidth of a dimension is that of a rank, shared by all its links
            there, and not that of each link.
        degree: None to keep the switches, or the degree they are unwound with (see ``switch``).
    """
    alphas = latencies(alpha, 3)
    bandwidths: tuple = speeds(bandwidth, 3)
    ring_side, fc_side = count(ring_side, "ring_side"), count(fc_side, "fc_side")
    if checks.flag(shared, "shared", TopologyError):
        links = (2 if ring_side > 2 else 1, max(1, fc_side - 1), 1)
        bandwidths = tuple(as_fraction(b) / m for b, m in zip(bandwidths, links, strict=True))
    return product(
        switch(switch_side, degree=degree, alpha=alphas[2], bandwidth=bandwidths[2]),
        fully_connected(fc_side, alpha=alphas[1], bandwidth=bandwidths[1]),
        ring(ring_side, alpha=alphas[0], bandwidth=bandwidths[0]),
        name=_named(f"3D-RFS {ring_side}x{fc_side}x{switch_side}", (degree,)),
    )


def _named(name: str, degrees: Sequence[int | None]) -> str:
    if all(degree is None for degree in degrees):
        return name
    return f"{name} unwound by {'/'.join(str(d or 0) for d in degrees)}"
