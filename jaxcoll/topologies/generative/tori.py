"""Tori and twisted tori: boxes of vertices whose sides close, some of them with a shift."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.topologies.arguments import check_size, network_sides
from jaxcoll.topologies.generative.circulants import bidirectional_ring
from jaxcoll.topologies.generative.complete_graphs import complete
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import cartesian_product


def torus(*sides: int) -> Digraph:
    """The product of bidirectional rings; a side of 2 is a single link each way, K_2.

    Any sides, equal or not, have a bandwidth-optimal BFB schedule of sum floor(side / 2) steps
    (Section 3.6.2).

    Args:
        sides: at least 2 each; the last dimension's vertices are consecutive.
    """
    sides = network_sides(sides)
    if min(sides) < 2:
        raise TopologyError(f"a side of a torus is at least 2, got {sides}; leave sides of 1 out")
    check_size("a torus", math.prod(sides), 2 * len(sides) * math.prod(sides))
    rings = {side: bidirectional_ring(2, side) if side > 2 else complete(2) for side in sides}
    name = f"torus({'x'.join(map(str, sides))})"
    return dataclasses.replace(cartesian_product(*(rings[side] for side in sides)), name=name)


def twisted_torus(*sides: int) -> Digraph:
    """The torus a x 2a, k x k x 2k or k x 2k x 2k with the wrap of each short side shifted.

    Going once around a short side moves half way along every long side. These are the
    rectangular twisted torus and its two generalizations of Cámara et al., "Twisted torus
    topologies for enhanced interconnection networks" (2010); the three-dimensional ones are
    those of TPU v4 slices. Shifts along any dimension are automorphisms.

    Args:
        sides: in increasing order, the short ones at least 2 long.

    Raises:
        TopologyError: sides in other ratios; the message names the nearest.
    """
    sides = network_sides(sides)
    short = sides[0]
    if len(sides) not in (2, 3) or short < 2 or not _is_twistable(sides):
        raise TopologyError(
            f"a twisted torus has sides a x 2a, k x k x 2k or k x 2k x 2k in this order, the short "
            f"ones at least 2, got {'x'.join(map(str, sides))}; the nearest is "
            f"{'x'.join(map(str, _nearest(sides)))}"
        )
    shifts = np.where(np.asarray(sides) == short, 0, short)
    return _twisted(sides, [shifts if side == short else 0 * shifts for side in sides])


def _is_twistable(sides: Sequence[int]) -> bool:
    ratios = tuple(side / sides[0] for side in sides)
    return ratios in ((1, 2), (1, 1, 2), (1, 2, 2))


def _nearest(sides: Sequence[int]) -> tuple[int, ...]:
    """The twisted torus of the same number of dimensions with the nearest sides."""
    ordered = sorted(sides)
    shapes = ((1, 2),) if len(ordered) < 3 else ((1, 1, 2), (1, 2, 2))
    candidates = [
        tuple(short * ratio for ratio in shape)
        for short in range(2, max(3, ordered[-1] + 1))
        for shape in shapes
    ]
    return min(candidates, key=lambda c: sum(abs(x - y) for x, y in zip(c, ordered, strict=False)))


def _twisted(sides: Sequence[int], shifts: Sequence[np.ndarray]) -> Digraph:
    """The box in which a wrap along each dimension moves by a shift along the others."""
    size = math.prod(sides)
    check_size("a twisted torus", size, 2 * len(sides) * size)
    places = np.stack(np.unravel_index(np.arange(size), tuple(sides)), axis=1)
    images = []
    for dimension, side in enumerate(sides):
        moved = places.copy()
        moved[:, dimension] += 1
        wraps = moved[:, dimension] == side
        moved[wraps, dimension] = 0
        moved[wraps] = (moved[wraps] + shifts[dimension]) % np.asarray(sides)
        images.append(np.ravel_multi_index(tuple(moved.T), tuple(sides)))
    steps = [*images, *(np.argsort(image) for image in images)]
    return Digraph(
        size,
        2 * len(sides),
        np.tile(np.arange(size), len(steps)),
        np.concatenate(steps),
        name=f"twisted torus({'x'.join(map(str, sides))})",
        generators=tuple(tuple(image.tolist()) for image in images),
    )
