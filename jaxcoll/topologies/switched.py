"""Networks with a switch, and their unwinding into links between ranks."""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.exact import as_fraction
from jaxcoll.links import whole_number
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def switch(
    n: int, *, degree: int | None = None, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """n ranks around one switch.

    Kept as a switch, each rank has one link to vertex n and one back, each with the given alpha
    and bandwidth. Unwound with a degree d (TACOS, Sec. IV-G, Fig. 13), the switch is gone and rank
    i has links to i+1, ..., i+d (mod n), each with the given alpha and 1/d of the bandwidth.

    Args:
        degree: None to keep the switch, or 1..n-1.
        alpha: seconds from a rank into the switch and as much out of it; unwound, rank to rank.
        bandwidth: bytes per second a rank sends, and receives.
    """
    if whole_number(n, "n") < 1:
        raise TopologyError(f"a network needs at least one rank, got {n}")
    ranks = np.arange(n)
    turn = tuple((r + 1) % n for r in range(n))
    if n == 1:
        return Topology(1, [], [], [], [], name="switch 1")  # type: ignore[arg-type]
    if degree is None:
        hub = np.full(n, n)
        return Topology(
            n,
            np.concatenate([ranks, hub]),
            np.concatenate([hub, ranks]),
            np.full(2 * n, alpha),
            [bandwidth] * (2 * n),  # type: ignore[arg-type]
            num_vertices=n + 1,
            name=f"switch {n}",
            generators=((*turn, n),),
        )
    if not 1 <= whole_number(degree, "degree") < n:
        raise TopologyError(f"a switch of {n} ranks unwinds with a degree 1..{n - 1}, got {degree}")
    try:
        share = as_fraction(bandwidth) / degree
    except ValueError as error:
        raise TopologyError(f"bandwidth: {error}") from None
    return Topology(
        n,
        np.repeat(ranks, degree),
        (np.repeat(ranks, degree) + np.tile(np.arange(1, degree + 1), n)) % n,
        np.full(n * degree, alpha),
        [share] * (n * degree),  # type: ignore[arg-type]
        name=f"switch {n} unwound by {degree}",
        generators=(turn,),
    )
