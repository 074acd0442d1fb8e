"""Ranks below switches and routers: tiers, levels of clusters, butterflies and DragonFly.

- Tiers of switches: in a k-ary n-tree every tier has the bandwidth of the tier below it; a
  leaf-and-spine network may have less above its leaves; a BiGraph has ranks at both tiers.
- Clusters in levels, innermost first: 2D Switch, 3D-RFS and rails.
- Networks of routers with ranks behind them: the flattened butterfly, and DragonFly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.grid import per_dimension
from jaxcoll.links import (
    check_size,
    count,
    latencies,
    latency,
    network_sides,
    speed,
    speeds,
)
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topologies.grids import (
    ALPHA,
    BANDWIDTH,
    both_ways,
    fully_connected,
    product,
    ring,
    switch,
    uniform,
)
from jaxcoll.topology import Topology


def fat_tree(
    arity: int, levels: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """A k-ary n-tree: k**n ranks below n levels of k**(n-1) switches, all links identical.

    Ranks are numbers of n digits base k, switches have a level and n-1 digits. A switch of the
    lowest level has the k ranks that share its digits; a switch of level l is joined to the k
    switches of the next level that differ from it at most in digit l from the last (Petrini and
    Vanneschi, "k-ary n-trees", IPPS 1997). Every switch but the topmost has as many links up as
    down. The MultiTree paper's 64-rank Fat-Tree (Sec. VI-A) is ``fat_tree(8, 2)``.

    Args:
        arity: number k of links of a switch downwards.
        levels: number n of levels of switches.
        alpha, bandwidth: seconds, and bytes per second, of each link.

    Raises:
        TopologyError: the arity is below 2, or there are no levels.
    """
    arity, levels = count(arity, "arity", least=2), count(levels, "levels")
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    name = f"fat tree {arity}-ary {levels}-level"
    # With more than 64 levels of at least 2 links down, the power itself would take long to
    # compute.
    check_size(name, arity ** min(levels, 64), 2 * levels * arity ** min(levels, 64))
    ranks, row = arity**levels, arity ** (levels - 1)
    switch = ranks + np.arange(levels * row).reshape(levels, row)  # by level, lowest first
    pairs = [np.stack([np.arange(ranks), switch[0][np.arange(ranks) // arity]], axis=1)]
    for level in range(levels - 1):
        # A switch and the switches of the next level over it differ only in this digit. So there is
        # one way up from a rank to each switch above it, and one way back down.
        place = arity**level
        here = np.repeat(np.arange(row), arity)
        digit = here // place % arity
        there = here + (np.tile(np.arange(arity), row) - digit) * place
        pairs.append(np.stack([switch[level][here], switch[level + 1][there]], axis=1))
    generators = tuple(_rotation(arity, levels, digit) for digit in reversed(range(levels)))
    columns = uniform(both_ways(np.concatenate(pairs)), alpha, bandwidth)
    return Topology(
        ranks, *columns, num_vertices=ranks + levels * row, name=name, generators=generators
    )


def _rotation(arity: int, levels: int, digit: int) -> tuple[int, ...]:
    """A symmetry that adds one to a digit of all ranks.

    The digits of a lowest switch are those of the ranks below it without the last. Upwards it is
    one digit after the other, from the last on, that may change, so that the lower digits of a
    switch tell by which of several equal ways it is reached, and the others what is below it. Equal
    ways may be exchanged as one likes. Here way i turns with digit i of the ranks, so that no
    product of these symmetries but the identity keeps any link: a link between two levels has the
    ways of the lower digits and, with the digit by which it leads down, those of all others.
    """
    ranks, row = arity**levels, arity ** (levels - 1)

    def add_one(numbers: np.ndarray, place: int) -> np.ndarray:
        old = numbers // place % arity
        return numbers + ((old + 1) % arity - old) * place

    image = [add_one(np.arange(ranks), arity**digit)]
    for level in range(levels):
        here = np.arange(row)
        if digit < level:
            here = add_one(here, arity**digit)
        elif digit > level:
            here = add_one(here, arity ** (digit - 1))
        image.append(ranks + level * row + here)
    return tuple(int(v) for v in np.concatenate(image))


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

    Vertices are the ranks, leaf by leaf; then the leaves; then the spines. All links up from a leaf
    together have the bandwidth of its links down divided by the oversubscription, in equal shares.

    Args:
        leaves: number of leaf switches.
        ranks: number of ranks below each leaf.
        spines: number of spine switches.
        oversubscription: bandwidth below a leaf over bandwidth above it.
        alpha: seconds per link.
        bandwidth: bytes per second between a rank and its leaf, each way.

    Raises:
        TopologyError: there are no leaves, ranks or spines, or the oversubscription is not above 0.
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
    above = below * ranks / (ratio * spines)  # exact: below x ranks over the ratio, in equal shares
    speeds = [below] * n + [above] * len(leaf)
    return Topology(
        n,
        np.concatenate([low, high]),
        np.concatenate([high, low]),
        np.full(2 * len(low), alpha, float),
        speeds * 2,  # type: ignore[arg-type]
        num_vertices=n + leaves + spines,
        name=f"leaf-spine {leaves}x{ranks} under {spines}" + (f", {ratio}:1" if ratio != 1 else ""),
        generators=_turns(leaves, ranks, spines),
    )


def _turns(leaves: int, ranks: int, spines: int) -> tuple[tuple[int, ...], ...]:
    """Symmetries of a leaf-spine network: the leaves turn, and the ranks below every leaf.

    With at least as many spines as ranks below a leaf, which divide them, spines turn with these
    ranks, so that no product of the two symmetries but the identity keeps any link.
    """
    leaf, port, spine = np.arange(leaves), np.arange(ranks), np.arange(spines)
    by = spines // ranks if spines % ranks == 0 else 0
    found = []
    if ranks > 1:
        moved = np.concatenate([leaf, leaves + (spine + by) % spines])
        found.append(_image(moved, leaves, (port + 1) % ranks))
    if leaves > 1:
        found.append(_image(np.concatenate([(leaf + 1) % leaves, leaves + spine]), leaves, port))
    return tuple(found)


def bigraph(
    ranks: int, switches: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """Half the switches are upper, half lower; each has ranks, and links to all of the other half.

    The network of EFLOPS (Dong et al., "EFLOPS: algorithm and system co-design for a high
    performance distributed training platform", HPCA 2020). Ranks of a switch are consecutive, and
    those of upper switches come first. The MultiTree paper's 4x8 (32 ranks) and 4x16 (64 ranks)
    have 4 ranks per switch, and 8 and 16 switches.

    Args:
        ranks: number of ranks of a switch.
        switches: number of switches, which is even.
        alpha, bandwidth: seconds, and bytes per second, of each link.

    Raises:
        TopologyError: there are no ranks, or the number of switches is odd.
    """
    ranks, switches = count(ranks, "ranks"), count(switches, "switches")
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    if switches % 2:
        raise TopologyError(
            f"a BiGraph needs ranks on an even number of switches, got {ranks} on each of "
            f"{switches}"
        )
    n, half = ranks * switches, switches // 2
    name = f"BiGraph {ranks}x{switches}"
    check_size(name, n + switches, 2 * (n + half * half))
    rank, switch = np.arange(n), n + np.arange(switches)
    access = np.stack([rank, switch[rank // ranks]], axis=1)
    across = np.stack([np.repeat(switch[:half], half), np.tile(switch[half:], half)], axis=1)
    # Either half may turn separately, the halves may be exchanged, and the ranks of all switches
    # may turn. These symmetries map every rank to every other; moves of single switches or ranks
    # are not needed.
    place = np.arange(switches)
    upper = np.where(place < half, (place + 1) % half, place)
    lower = np.where(place < half, place, half + (place + 1) % half)
    still, next_port = np.arange(ranks), (np.arange(ranks) + 1) % ranks
    moves = [(upper, still), (lower, still), ((place + half) % switches, still), (place, next_port)]
    generators = tuple(
        _image(moved, switches, port)
        for moved, port in moves
        if not (np.array_equal(moved, place) and np.array_equal(port, still))
    )
    columns = uniform(both_ways(np.concatenate([access, across])), alpha, bandwidth)
    return Topology(n, *columns, num_vertices=n + switches, name=name, generators=generators)


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
        inner, outer: number of ranks of a host, and number of hosts.
        alpha: seconds from a rank into a switch, and as much out of it; one number or one per
            level.
        bandwidth: bytes per second between a rank and its switch; one number or one per level.
        degree: None to keep the switches, or the degree with which to unwind them (see ``switch``);
            one value or one per level.
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

    Rank i of every host has a link to rail switch i, as in clusters of DGX A100 (the defaults are
    NVSwitch and InfiniBand bytes per second per rank, as in ForestColl's evaluation). It is a
    ``switch_2d`` with rank = host * ranks + index. Vertices are named "host 0 rank 1", "host 0
    switch" and "rail 1".

    Args:
        hosts, ranks: number of hosts, and number of ranks of a host.
        alpha, bandwidth: those of a rank's link inside its host, and of its link to the rail.
    """
    clusters = switch_2d(ranks, hosts, alpha=alpha, bandwidth=bandwidth)
    names = [f"host {h} rank {r}" for h in range(hosts) for r in range(ranks)]
    # The product has the switches of its outer dimension first; a line with one rank has none.
    if hosts > 1:
        names += [f"rail {r}" for r in range(ranks)]
    if ranks > 1:
        names += [f"host {h} switch" for h in range(hosts)]
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
        shared: whether the bandwidth of a dimension is that of a rank, which all its links there
            share, instead of that of each link.
        degree: None to keep the switches, or the degree with which to unwind them (see ``switch``).
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


def behind_routers(
    network: Topology, terminals: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """The network in which every rank becomes a switch with ``terminals`` ranks.

    Ranks of a router are consecutive. Switches of the network follow the routers.

    Args:
        network: the routers, as ranks, and their links.
        terminals: number of ranks of a router.
        alpha, bandwidth: seconds and bytes per second of the links between a rank and its router.

    Raises:
        TopologyError: there are no terminals.
    """
    checks.instance(network, Topology, "network", TopologyError)
    terminals, alpha, bandwidth = count(terminals, "terminals"), latency(alpha), speed(bandwidth)
    vertices = network.num_ranks * terminals + network.num_vertices
    check_size("a network behind routers", vertices, network.num_links + 2 * vertices)
    routers = network.num_ranks
    n = routers * terminals
    rank = np.arange(n)
    router = n + rank // terminals
    port = np.arange(terminals)
    # The network's own symmetries move routers together with their ranks; and the ranks of all
    # routers may turn.
    images = [_image(np.asarray(move), routers, port) for move in network.generators]
    if terminals > 1:
        images.append(_image(np.arange(network.num_vertices), routers, (port + 1) % terminals))
    return Topology(
        n,
        np.concatenate([network.src + n, rank, router]),
        np.concatenate([network.dst + n, router, rank]),
        np.concatenate([network.alpha, np.full(2 * n, alpha, float)]),
        [*network.exact_bandwidth, *[bandwidth] * (2 * n)],  # type: ignore[arg-type]
        num_vertices=n + network.num_vertices,
        name=f"{network.name or 'network'} of routers with {terminals} ranks",
        generators=tuple(images),
        in_network=network.in_network.moved(np.arange(network.num_vertices) + n),
    )


def _image(vertex: np.ndarray, routers: int, port: np.ndarray) -> tuple[int, ...]:
    """The images of all vertices when those of the network and the ports of a router move."""
    terminals = len(port)
    ranks = (vertex[:routers, None] * terminals + port).ravel()
    return tuple(int(v) for v in [*ranks, *(routers * terminals + vertex)])


def flattened_butterfly(
    *sides: int, terminals: int = 0, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """A grid of routers, each joined to all that differ in one coordinate.

    Kim, Dally and Abts, "Flattened butterfly: a cost-efficient topology for high-radix networks"
    (ISCA 2007): their k-ary n-flat is ``flattened_butterfly(*[k] * (n - 1), terminals=k)``.

    Args:
        sides: routers along each dimension.
        terminals: number of ranks of a router; 0 if the routers are the ranks.
        alpha, bandwidth: seconds, and bytes per second, of each link.
    """
    sides, terminals = network_sides(sides), count(terminals, "terminals", least=0)
    name = f"flattened butterfly {'x'.join(map(str, sides))}"
    lines = (fully_connected(side, alpha=alpha, bandwidth=bandwidth) for side in sides)
    network = product(*lines, name=name)
    if terminals == 0:
        return network
    return behind_routers(network, terminals, alpha=alpha, bandwidth=bandwidth)


def dragonfly(
    groups: int,
    routers: int,
    *,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = (400e9, 200e9),
) -> Topology:
    """Fully connected groups, and one link each way between every two groups.

    The link of group i to group j leaves from router (j - i - 1) mod groups, counted round the
    routers again if there are more groups than routers. With as many routers as other groups this
    is the canonical DragonFly with one global link per router (Kim, Dally, Scott and Abts, ISCA
    2008, Sec. 3); with more, some routers have none. Routers are the ranks: rank = group * routers
    + router.

    The TACOS paper's 4 x 5 at 400 and 200 GB/s (Sec. VI-B.1) is ``dragonfly(5, 4)``: like its other
    networks it is written innermost first, and four groups of five could not reach the 90 % of
    Ideal that the paper reports, because three links out of a group allow only 71 %.

    Args:
        groups, routers: number of groups, and number of routers of a group.
        alpha: seconds per link; one for all links, or one inside groups and one between them.
        bandwidth: bytes per second per link, given in the same way.

    Raises:
        TopologyError: there are no groups or no routers.
    """
    groups, routers = count(groups, "groups"), count(routers, "routers")
    alphas, bandwidths = latencies(alpha, 2), speeds(bandwidth, 2)
    name = f"dragonfly {groups}x{routers}"
    check_size(name, groups * routers, groups * (routers * (routers - 1) + groups - 1))
    inside = [
        (g * routers + u, g * routers + v)
        for g in range(groups)
        for u in range(routers)
        for v in range(routers)
        if u != v
    ]
    # From both ends: group j is the (j - i - 1)-th after i, and i is the (i - j - 1)-th after j.
    between = [
        (i * routers + (j - i - 1) % groups % routers, j * routers + (i - j - 1) % groups % routers)
        for i in range(groups)
        for j in range(groups)
        if i != j
    ]
    pairs = np.asarray(inside + between, np.int64).reshape(-1, 2)
    counts = (len(inside), len(between))
    ranks = groups * routers
    # Groups may turn, since the router of a link depends only on the distance of its groups.
    turn = tuple((rank + routers) % ranks for rank in range(ranks))
    return Topology(
        ranks,
        pairs[:, 0],
        pairs[:, 1],
        np.repeat(np.asarray(alphas, float), counts),
        [speed for speed, links in zip(bandwidths, counts, strict=True) for _ in range(links)],  # type: ignore[arg-type]
        name=name,
        generators=(turn,) if groups > 1 else (),
    )
