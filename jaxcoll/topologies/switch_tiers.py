"""Ranks below tiers of switches: k-ary n-trees, leaf and spine, BiGraph.

In a fat tree every tier has the bandwidth of the one below it; a leaf-and-spine network may have
less above its leaves than below them; a BiGraph has ranks at both of its tiers.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.topologies.arguments import check_size, count, latency, speed
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
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
        arity: k, links of a switch downwards.
        levels: n, levels of switches.
        alpha: seconds per link.
        bandwidth: bytes per second per link.

    Raises:
        TopologyError: an arity below 2, or no levels.
    """
    arity, levels = count(arity, "arity", least=2), count(levels, "levels")
    alpha, bandwidth = latency(alpha), speed(bandwidth)
    name = f"fat tree {arity}-ary {levels}-level"
    # Beyond 64 levels of at least 2 links down, a power would take long just to write out.
    check_size(name, arity ** min(levels, 64), 2 * levels * arity ** min(levels, 64))
    ranks, row = arity**levels, arity ** (levels - 1)
    switch = ranks + np.arange(levels * row).reshape(levels, row)  # by level, lowest first
    pairs = [np.stack([np.arange(ranks), switch[0][np.arange(ranks) // arity]], axis=1)]
    for level in range(levels - 1):
        place = arity**level
        here = np.repeat(np.arange(row), arity)
        digit = here // place % arity
        there = here + (np.tile(np.arange(arity), row) - digit) * place
        pairs.append(np.stack([switch[level][here], switch[level + 1][there]], axis=1))
    up = np.concatenate(pairs)
    links = np.concatenate([up, up[:, ::-1]])
    return Topology(
        ranks,
        links[:, 0],
        links[:, 1],
        np.full(len(links), alpha, float),
        [bandwidth] * len(links),  # type: ignore[arg-type]
        num_vertices=ranks + levels * row,
        name=name,
        generators=tuple(_rotation(arity, levels, digit) for digit in reversed(range(levels))),
    )


def _rotation(arity: int, levels: int, digit: int) -> tuple[int, ...]:
    """The symmetry that adds one to a digit of all ranks, and of all switches that have it."""
    ranks, row = arity**levels, arity ** (levels - 1)

    def add_one(numbers: np.ndarray, place: int) -> np.ndarray:
        old = numbers // place % arity
        return numbers + ((old + 1) % arity - old) * place

    moved = np.arange(row) if digit == 0 else add_one(np.arange(row), arity ** (digit - 1))
    switches = [ranks + level * row + moved for level in range(levels)]
    image = np.concatenate([add_one(np.arange(ranks), arity**digit), *switches])
    return tuple(int(v) for v in image)


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


def bigraph(
    ranks: int, switches: int, *, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
) -> Topology:
    """Half the switches are upper, half lower; each has ranks, and a link to all of the other half.

    The network of EFLOPS (Dong et al., "EFLOPS: algorithm and system co-design for a high
    performance distributed training platform", HPCA 2020). Ranks of a switch are consecutive, those
    of upper switches come first. The MultiTree paper's 4x8 (32 ranks) and 4x16 (64) have 4 ranks a
    switch and 8 and 16 switches.

    Args:
        ranks: ranks of a switch.
        switches: switches, an even number.
        alpha: seconds per link.
        bandwidth: bytes per second per link.

    Raises:
        TopologyError: no ranks, or an odd number of switches.
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
    pairs = np.concatenate([access, across])
    pairs = np.concatenate([pairs, pairs[:, ::-1]])
    place = np.arange(switches)
    upper = np.where(place < half, (place + 1) % half, place)
    lower = np.where(place < half, place, half + (place + 1) % half)
    still, next_port = np.arange(ranks), (np.arange(ranks) + 1) % ranks
    moves = [(upper, still), (lower, still), ((place + half) % switches, still), (place, next_port)]
    return Topology(
        n,
        pairs[:, 0],
        pairs[:, 1],
        np.full(len(pairs), alpha, float),
        [bandwidth] * len(pairs),  # type: ignore[arg-type]
        num_vertices=n + switches,
        name=name,
        generators=tuple(
            tuple(int(v) for v in [*(moved[:, None] * ranks + port).ravel(), *(n + moved)])
            for moved, port in moves
            if not (np.array_equal(moved, place) and np.array_equal(port, still))
        ),
    )
