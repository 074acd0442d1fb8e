"""Slices of TPU v4 and v5p: cubes of 64 ranks whose faces optical circuits join at will."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph

SIDE = 4
FACES = 3, SIDE, SIDE  # dimension, place on the face


def optical_cubes(cubes: int, shifts: Sequence | np.ndarray) -> Digraph:
    """Meshes of 4 x 4 x 4 ranks, each place on a face joined with the opposite face of some cube.

    Inside a cube the wires are fixed. For each dimension and place on the face there is one optical
    switch, which joins the upper face of every cube with the lower face of another, or of the same
    (Jouppi et al., "TPU v4: an optically reconfigurable supercomputer", ISCA 2023, Sec. 2). Here
    switch (d, i, j) joins cube c with cube c + shifts[d, i, j], modulo the number of cubes, so that
    all cubes are equal. Degree 6; links go both ways.

    One line of cubes is the torus 4 x 4 x 4m, by shifts of 1 in the last dimension and 0 elsewhere;
    two cubes with shifts of 1 everywhere are the twisted torus 4 x 4 x 8.

    Args:
        cubes: m, at least 1; 64 m ranks.
        shifts: integers of shape (3, 4, 4), from 0 to m - 1.

    Raises:
        TopologyError: other shapes or numbers, or cubes that shifts do not join.
    """
    cubes = count(cubes, "cubes")
    checks.bounded(shifts, "shifts", TopologyError)
    given = np.asarray(shifts)
    if given.shape != FACES or given.dtype.kind not in "iu":
        raise TopologyError(
            f"shifts must be integers of shape {FACES}, one per dimension and place on the face, "
            f"got {checks.shown(shifts)}"
        )
    if given.min() < 0 or given.max() >= cubes:
        raise TopologyError(
            f"shifts must be 0..{cubes - 1} for {cubes} cubes, got {given.min()}..{given.max()}"
        )
    size = cubes * SIDE**3
    check_size(f"{cubes} cubes", size, 6 * size)
    tails, heads = optical_cube_arcs(cubes, given)
    next_cube = (np.arange(size) + SIDE**3) % size
    return Digraph(
        size,
        6,
        tails,
        heads,
        name=f"{cubes} optical cubes",
        generators=(tuple(next_cube.tolist()),) if cubes > 1 else (),
    )


def optical_cube_arcs(cubes: int, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tails and heads of ``optical_cubes``, by dimension and direction, then by tail or head."""
    box = (cubes, SIDE, SIDE, SIDE)
    every = np.arange(cubes * SIDE**3)
    places = np.stack(np.unravel_index(every, box))
    tails, heads = [], []
    for dimension in range(3):
        ahead = places.copy()
        ahead[1 + dimension] += 1
        wraps = ahead[1 + dimension] == SIDE
        across = [1 + other for other in range(3) if other != dimension]
        shift = shifts[dimension][places[across[0]], places[across[1]]]
        ahead[1 + dimension, wraps] = 0
        ahead[0, wraps] = (ahead[0, wraps] + shift[wraps]) % cubes
        to = np.ravel_multi_index(tuple(ahead), box)
        tails += [every, to]
        heads += [to, every]
    return np.concatenate(tails), np.concatenate(heads)
