"""Fat trees."""

from __future__ import annotations

import numpy as np

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
