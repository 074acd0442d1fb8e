"""Fully connected networks, stars, switches, grids of ranks, and products of networks.

The hub of a star is a rank, which computes; the hub of a switch only forwards. Rings, meshes, tori
and hypercubes are grids. A product is a grid of ranks with one network along each dimension: for
example, ``product(switch(2), ring(3))`` has two rings of 3 ranks, and a switch between equal places
of both.

Every construction declares its symmetries (``generators``), so that synthesizers and bounds examine
one rank or line of each kind; ``Topology`` checks them, and puts the links in canonical order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid, per_dimension
from jaxcoll.links import (
    check_size,
    count,
    latencies,
    latency,
    network_sides,
    speed,
    speeds,
)
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topology import Topology

ALPHA = 0.5e-6  # seconds; the setting of the TACOS paper (Sec. V-B, footnote)
BANDWIDTH = 50e9  # bytes per second; the same setting


def uniform(ends: np.ndarray, alpha, bandwidth) -> Any:
    """The columns of a ``Topology`` whose links all have one speed.

    Args:
        ends: source and destination of each link, int64 of shape (links, 2).
        alpha, bandwidth: seconds and bytes per second of every link, checked.
    """
    links = len(ends)
    return ends[:, 0], ends[:, 1], np.full(links, alpha, float), [bandwidth] * links


def both_ways(pairs: np.ndarray) -> np.ndarray:
    """Links from the first to the second of each pair of vertices, then those back."""
    return np.concatenate([pairs, pairs[:, ::-1]])


def turn(n: int, *still: int) -> tuple[tuple[int, ...], ...]:
    """The symmetry that moves every rank to the next, and fixes ``still``; none for one rank."""
    return ((*((r + 1) % n for r in range(n)), *still),) if n > 1 else ()


def fully_connected(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """n ranks with a link from every rank to every other.

    Args:
        alpha, bandwidth: seconds, and bytes per second, of each link.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    name, links = f"fully connected {n}", n * (n - 1)
    check_size(name, n, links)
    ends = np.stack(np.divmod(np.arange(n * n), n), axis=1)
    ends = ends[ends[:, 0] != ends[:, 1]]
    return Topology(n, *uniform(ends, alpha, bandwidth), name=name, generators=turn(n))


def star(n: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> Topology:
    """Rank 0 in the middle, joined by a link each way to every other rank.

    The middle is a rank that computes; for a hub that only forwards see ``switch``.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    ends = both_ways(np.stack([np.zeros(n - 1, np.int64), np.arange(1, n)], axis=1))
    # The middle stays, and the leaves turn.
    turned = ((0, *(1 + r % (n - 1) for r in range(1, n))),) if n > 2 else ()
    return Topology(n, *uniform(ends, alpha, bandwidth), name=f"star {n}", generators=turned)


def switch(
    n: int, *, degree: int | None = None, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """n ranks around one switch.

    If the switch is kept, each rank has one link to vertex n and one back, each with the given
    alpha and bandwidth. If it is unwound with a degree d (TACOS, Sec. IV-G, Fig. 13), there is no
    switch, and rank i has links to i+1, ..., i+d (mod n), each with the given alpha and 1/d of the
    bandwidth.

    Args:
        degree: None to keep the switch, or 1..n-1.
        alpha: seconds from a rank into the switch and as much out of it; unwound, rank to rank.
        bandwidth: bytes per second that each rank can send, and receive.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    ranks, name = np.arange(n), f"switch {n}"
    if n == 1:  # there is no other rank, so nothing would cross a switch
        return Topology(1, *uniform(np.zeros((0, 2), np.int64), alpha, bandwidth), name=name)
    if degree is None:
        ends = both_ways(np.stack([ranks, np.full(n, n)], axis=1))
        columns = uniform(ends, alpha, bandwidth)
        return Topology(n, *columns, num_vertices=n + 1, name=name, generators=turn(n, n))
    what = f"degree, by which a switch of {n} ranks unwinds,"
    degree = checks.integer(degree, what, TopologyError, least=1, most=n - 1)
    check_size(f"a switch of {n} ranks unwound by {degree}", n, n * degree)
    src = np.repeat(ranks, degree)
    ends = np.stack([src, (src + np.tile(np.arange(1, degree + 1), n)) % n], axis=1)
    # The links share the rank's port exactly, by fractions: a third of a float is not a float.
    share = as_fraction(bandwidth) / degree
    return Topology(
        n, *uniform(ends, alpha, share), name=f"{name} unwound by {degree}", generators=turn(n)
    )


def product(*factors: Topology, name: str = "") -> Topology:
    """The Cartesian product of networks; networks of many dimensions are products of small ones.

    Ranks have one coordinate per factor, the last of which varies fastest. The ranks that differ
    only in one coordinate are a *line* of that dimension; every line is joined like its factor, and
    has its own copies of the factor's switches. A torus is a product of rings; the TACOS paper's 2D
    Switch and 3D-RFS are ``product(switch(8), switch(4))`` and ``product(ring(2),
    fully_connected(4), switch(8))`` up to the order of ranks.

    The product has the symmetries of its factors. It has a grid if neighbours are joined both ways
    in every factor (as in rings, meshes and networks that contain these).

    Args:
        factors: the networks along the dimensions, each with its alpha and bandwidth.
        name: a label; when empty, it is made of the factors' labels.

    Raises:
        TopologyError: there are no factors.
    """
    if not factors:
        raise TopologyError("a product needs at least one network, got none; give its factors")
    for i, factor in enumerate(factors):
        checks.instance(factor, Topology, f"factors[{i}]", TopologyError)
    checks.text(name, "name", TopologyError)
    shape = tuple(factor.num_ranks for factor in factors)
    size = math.prod(shape)
    # Switches come after the ranks, dimension by dimension and, within each, line by line. So the
    # last entry is the number of all vertices.
    added = [size // f.num_ranks * (f.num_vertices - f.num_ranks) for f in factors]
    first_switch = [*itertools.accumulate(added, initial=size)]
    links = sum(size // f.num_ranks * f.num_links for f in factors)
    check_size("a product", first_switch[-1], links)
    ranks = np.arange(size).reshape(shape)
    src, dst, alpha, bandwidth = [], [], [], []
    for dimension, factor in enumerate(factors):
        vertices = _lines(ranks, dimension, factor, first_switch[dimension])
        src.append(vertices[:, factor.src].ravel())
        dst.append(vertices[:, factor.dst].ravel())
        alpha.append(np.tile(factor.alpha, len(vertices)))
        bandwidth += list(factor.exact_bandwidth) * len(vertices)
    generators = [
        _lifted(generator, factors, dimension, first_switch)
        for dimension, factor in enumerate(factors)
        for generator in factor.generators
    ]
    return Topology(
        ranks.size,
        np.concatenate(src),
        np.concatenate(dst),
        np.concatenate(alpha),
        bandwidth,  # type: ignore[arg-type]
        num_vertices=first_switch[-1],
        name=name or " x ".join(factor.name or "network" for factor in factors),
        grid=_grid(factors),
        generators=tuple(generators),
        in_network=_in_network(factors, ranks, first_switch),
    )


def _in_network(
    factors: tuple[Topology, ...], ranks: np.ndarray, first_switch: list[int]
) -> InNetwork:
    """Switches of a factor have the same abilities in every line of its dimension."""
    return InNetwork().joined(
        factor.in_network.moved(line)
        for dimension, factor in enumerate(factors)
        if factor.in_network
        for line in _lines(ranks, dimension, factor, first_switch[dimension])
    )


def _lines(ranks: np.ndarray, dimension: int, factor: Topology, first_switch: int) -> np.ndarray:
    """The vertices of every line of a dimension, of shape (lines, vertices of the factor)."""
    members = np.moveaxis(ranks, dimension, -1).reshape(-1, factor.num_ranks)
    extra = factor.num_vertices - factor.num_ranks
    switches = first_switch + np.arange(len(members) * extra).reshape(len(members), extra)
    return np.concatenate([members, switches], axis=1)


def _lifted(
    generator: tuple[int, ...],
    factors: tuple[Topology, ...],
    dimension: int,
    first_switch: list[int],
) -> tuple[int, ...]:
    """A symmetry of one factor as one of the product: it acts on every copy of the factor."""
    image = np.asarray(generator)
    shape = tuple(factor.num_ranks for factor in factors)
    side = shape[dimension]
    ranks = np.arange(math.prod(shape)).reshape(shape)
    moved = np.empty(first_switch[-1], np.int64)
    moved[: ranks.size] = np.take(ranks, image[:side], axis=dimension).ravel()
    for d, factor in enumerate(factors):
        extra = factor.num_vertices - factor.num_ranks
        others = [s for e, s in enumerate(shape) if e != d]
        switches = first_switch[d] + np.arange(math.prod(others) * extra).reshape(*others, extra)
        if d == dimension:
            goes_to = np.take(switches, image[side:] - side, axis=-1)
        else:
            # Switches of another dimension move with the lines that they join, which have the
            # factor's coordinate. Their array lacks dimension d, so axes after it move forward by
            # one.
            axis = dimension - (d < dimension)
            goes_to = np.take(switches, image[:side], axis=axis)
        moved[switches.ravel()] = goes_to.ravel()
    return tuple(int(v) for v in moved)


def _grid(factors: tuple[Topology, ...]) -> Grid | None:
    # A factor without a grid also counts if links join its ranks in a circle, as in a fully
    # connected network: patterns for grids run on it, though it has more links than they use.
    grids = []
    for factor in factors:
        circle = Grid((factor.num_ranks,), (True,))
        joined = set(zip(factor.src.tolist(), factor.dst.tolist(), strict=True))
        is_joined = joined.issuperset(map(tuple, circle.neighbour_pairs(0).tolist()))
        grids.append(factor.grid or (circle if is_joined else None))
    if None in grids:
        return None
    shape = tuple(side for grid in grids if grid for side in grid.shape)
    return Grid(shape, tuple(wrap for grid in grids if grid for wrap in grid.wrap))


def ring(
    n: int, *, bidirectional: bool = True, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """n ranks in a circle; links r -> r+1, and r+1 -> r if bidirectional.

    A bidirectional ring of two ranks has one link each way, and so has a one-way ring of two.

    Args:
        alpha, bandwidth: seconds, and bytes per second, of each link.
    """
    n, alpha, bandwidth = count(n, "n"), latency(alpha), speed(bandwidth)
    if checks.flag(bidirectional, "bidirectional", TopologyError):
        return grid((n,), True, alpha=alpha, bandwidth=bandwidth, name=f"ring {n}")
    src = np.arange(n if n > 1 else 0)  # one rank has no link to itself
    ends = np.stack([src, (src + 1) % n], axis=1)
    return Topology(
        n, *uniform(ends, alpha, bandwidth), name=f"one-way ring {n}", generators=turn(n)
    )


def mesh(
    *sides: int,
    alpha: float | Sequence[float] = ALPHA,
    bandwidth: float | Sequence[float] = BANDWIDTH,
) -> Topology:
    """An n-dimensional mesh; neighbours are joined by a link each way, borders are open.

    Args:
        sides: ranks along each dimension; the last dimension's ranks are consecutive.
        alpha, bandwidth: seconds, and bytes per second, of each link; one for all or one for each
            dimension.
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
    """A grid of ranks in which some dimensions close into rings; the general form of the others.

    Args:
        sides: number of ranks along each dimension.
        wrap: whether dimensions close, one value for all or one for each.
        alpha, bandwidth: seconds, and bytes per second, of each link; one for all or one for each
            dimension.
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
