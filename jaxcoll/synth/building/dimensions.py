"""The lines of a grid: which pattern suits a dimension, and how many bytes it moves a second.

All lines along a dimension are images of the first by symmetry, so only that one is looked at. If
its ranks are equally far from one another they are behind a switch or fully connected, and all send
to all at once; otherwise the line is a ring or a chain, and blocks follow the links.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.synth.building.base import DOUBLINGS, Counts
from jaxcoll.synth.building.grids import RankGrid
from jaxcoll.synth.building.sends import Pattern, circle, direct, line
from jaxcoll.topology import Topology


def dimension_patterns(
    topology: Topology, rank_grid: RankGrid, dims: tuple[int, ...], *, close: bool = True
) -> dict[int, Pattern]:
    """For every dimension the basic algorithm that suits its lines (TACOS paper, Table I).

    All at once where the ranks of a line are equally far from one another, that is, fully connected
    or behind one switch; rings both ways otherwise. Behind switches the paper has
    halving-doubling, but messages are stored and forwarded there, and an exchange that waits for
    the one before leaves the links idle half the time.

    Args:
        close: whether a ring takes the long way back along dimensions that do not wrap; otherwise
            blocks are sent to both ends there.
    """
    found = {}
    for dim in dims:
        side = rank_grid.grid.shape[dim]
        hops = _routes(topology, rank_grid, dim, direct(side)).hops
        if (hops == hops[0]).all():
            found[dim] = direct(side)
        elif close or rank_grid.grid.wrap[dim]:
            found[dim] = circle(side, both_ways=True)
        else:
            found[dim] = line(side)
    return found


def dimension_bandwidth(
    topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern
) -> Fraction:
    """Bytes per second that the first rank can send along a dimension, over the links it uses."""
    used = np.unique(_routes(topology, rank_grid, dim, pattern).first_link)
    return sum((topology.exact_bandwidth[link] for link in used), Fraction(0))


def dimension_seconds(
    topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern
) -> Fraction:
    """Seconds that the busiest link of the first line is occupied if every block is one byte."""
    ranks = _first_line(rank_grid, dim)
    src, dst, halves = [], [], []
    for move in pattern:
        here = np.flatnonzero(move.to >= 0)
        src.append(ranks[here])
        dst.append(ranks[move.to[here]])
        halves.append(np.full(len(here), 2 if move.half < 0 else 1))
    edges = shortest_routes(topology, np.concatenate(src), np.concatenate(dst))
    load = np.zeros(topology.num_links, np.int64)
    np.add.at(load, edges.path_link, np.repeat(np.concatenate(halves), edges.hops))
    used = np.flatnonzero(load)
    return max(Fraction(int(load[i]), 2) / topology.exact_bandwidth[i] for i in used)


def _routes(topology: Topology, rank_grid: RankGrid, dim: int, pattern: Pattern) -> Edges:
    """Routes from the first rank of the grid to those of its line that it sends to."""
    line = _first_line(rank_grid, dim)
    places = np.unique([move.to[0] for move in pattern])
    to = line[places[places > 0]]
    return shortest_routes(topology, np.full(len(to), line[0]), to)


def _first_line(rank_grid: RankGrid, dim: int) -> np.ndarray:
    """The ranks along a dimension from the first rank of the grid."""
    lines = np.moveaxis(rank_grid.ranks.reshape(rank_grid.grid.shape), dim, 0)
    return lines.reshape(rank_grid.grid.shape[dim], -1)[:, 0]


def dimension_counts(topology: Topology) -> tuple[Counts, ...]:
    """Chunk counts worth trying by what goes along dimensions: 1, 2, and multiples of them."""
    sides = topology.placement.grid.shape if topology.placement else ()
    dimensions = max(1, sum(side > 1 for side in sides))
    return (tuple(sorted({1, 2, *(dimensions * pieces for pieces in DOUBLINGS)})),)
