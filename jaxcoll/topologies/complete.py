"""Networks of one centre or none: fully connected ones, stars and switches.

The hub of a star is a rank, which computes; that of a switch only forwards.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topologies.arguments import check_size, count, latency, speed
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology


def fully_connected(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """n ranks, a link from every one to every other.

    Args:
        alpha: seconds per link.
        bandwidth: bytes per second per link.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    name, links = f"fully connected {n}", n * (n - 1)
    check_size(name, n, links)
    src, dst = np.divmod(np.arange(n * n), n)
    apart = src != dst
    turn = tuple((r + 1) % n for r in range(n))
    return Topology(
        n,
        src[apart],
        dst[apart],
        np.full(links, alpha, float),
        [bandwidth] * links,  # type: ignore[arg-type]
        name=name,
        generators=(turn,) if n > 1 else (),
    )


def star(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """Rank 0 in the middle, joined by a link each way to every other rank.

    The middle is a rank that computes; for a hub that only forwards see ``switch``.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    leaves = np.arange(1, n)
    hub = np.zeros(n - 1, np.int64)
    turn = (0, *(1 + r % (n - 1) for r in range(1, n))) if n > 2 else ()
    return Topology(
        n,
        np.concatenate([hub, leaves]),
        np.concatenate([leaves, hub]),
        np.full(2 * (n - 1), alpha, float),
        [bandwidth] * (2 * (n - 1)),  # type: ignore[arg-type]
        name=f"star {n}",
        generators=(turn,) if turn else (),
    )


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
        bandwidth: bytes per second that each rank can send, and receive.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
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
            np.full(2 * n, alpha, float),
            [bandwidth] * (2 * n),  # type: ignore[arg-type]
            num_vertices=n + 1,
            name=f"switch {n}",
            generators=((*turn, n),),
        )
    what = f"degree, by which a switch of {n} ranks unwinds,"
    degree = checks.integer(degree, what, TopologyError, least=1, most=n - 1)
    check_size(f"a switch of {n} ranks unwound by {degree}", n, n * degree)
    share = as_fraction(bandwidth) / degree
    return Topology(
        n,
        np.repeat(ranks, degree),
        (np.repeat(ranks, degree) + np.tile(np.arange(1, degree + 1), n)) % n,
        np.full(n * degree, alpha, float),
        [share] * (n * degree),  # type: ignore[arg-type]
        name=f"switch {n} unwound by {degree}",
        generators=(turn,),
    )
