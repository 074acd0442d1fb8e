"""Tori, twisted tori, rings and circulants: vertices on circles, the same arcs at every vertex.

Tori and twisted tori are boxes of vertices whose sides close, some of them with a shift. Slices of
TPU v4 and v5p are such boxes, of cubes of 64 ranks whose faces optical circuits join arbitrarily.
In rings and circulant graphs the vertices are on one circle, with arcs to the same distances from
every vertex: C(8, {2, 3}) joins vertex 0 with 2, 3, 5 and 6, and reaches the others in two steps.

Source: Tables 3.5 and A.3, Appendices A.6.1 and A.6.4.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import check_size, count, network_sides
from jaxcoll.numerics import checks
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.kautz_graphs import complete
from jaxcoll.topologies.generative.operations import cartesian_product


def torus(*sides: int) -> Digraph:
    """The product of bidirectional rings; a side of 2 is K_2, with a single link each way.

    For any sides, equal or not, there is a bandwidth-optimal BFB schedule of sum floor(side / 2)
    steps (Section 3.6.2).

    Args:
        sides: at least 2 each; the last dimension's vertices are consecutive.
    """
    sides = network_sides(sides)
    if min(sides) < 2:
        raise TopologyError(
            f"a side of a torus must be at least 2, got {sides}; leave sides of 1 out"
        )
    check_size("a torus", math.prod(sides), 2 * len(sides) * math.prod(sides))
    rings = {side: bidirectional_ring(2, side) if side > 2 else complete(2) for side in sides}
    # One object per side: ``cartesian_product`` exchanges coordinates of the very same factor.
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
        TopologyError: the sides have other ratios; the message names the nearest.
    """
    sides = network_sides(sides)
    short = sides[0]
    ratios = tuple(side / short for side in sides)
    if short < 2 or ratios not in ((1, 2), (1, 1, 2), (1, 2, 2)):
        raise TopologyError(
            f"a twisted torus has sides a x 2a, k x k x 2k or k x 2k x 2k in this order, the short "
            f"ones at least 2, got {'x'.join(map(str, sides))}; the nearest is "
            f"{'x'.join(map(str, _nearest(sides)))}"
        )
    shifts = np.where(np.asarray(sides) == short, 0, short)
    return _twisted(sides, [shifts if side == short else 0 * shifts for side in sides])


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
        # Only steps out of the box are shifted: they re-enter half way along the long sides, so
        # that ranks far apart along a long side are near each other across a short one.
        wraps = moved[:, dimension] == side
        moved[wraps, dimension] = 0
        moved[wraps] = (moved[wraps] + shifts[dimension]) % np.asarray(sides)
        images.append(np.ravel_multi_index(tuple(moved.T), tuple(sides)))
    # A step along each dimension, and the step back. Steps commute, including shifts, so each is
    # itself a symmetry.
    steps = [*images, *(np.argsort(image) for image in images)]
    return Digraph(
        size,
        2 * len(sides),
        np.tile(np.arange(size), len(steps)),
        np.concatenate(steps),
        name=f"twisted torus({'x'.join(map(str, sides))})",
        generators=tuple(tuple(image.tolist()) for image in images),
    )


SIDE = 4  # of a cube; its 64 ranks share a rack, and wires inside do not change
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
        TopologyError: shapes or numbers are others, or the shifts do not join the cubes.
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
    # Every switch advances by its shift, from whichever cube it starts.
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
        # Only links out of the upper face go through a switch, to a lower face.
        wraps = ahead[1 + dimension] == SIDE
        across = [1 + other for other in range(3) if other != dimension]
        shift = shifts[dimension][places[across[0]], places[across[1]]]
        ahead[1 + dimension, wraps] = 0
        ahead[0, wraps] = (ahead[0, wraps] + shift[wraps]) % cubes
        to = np.ravel_multi_index(tuple(ahead), box)
        tails += [every, to]
        heads += [to, every]
    return np.concatenate(tails), np.concatenate(heads)


def circulant(n: int, offsets: Iterable[int]) -> Digraph:
    """C(n, {a_1, ..., a_k}): vertex i is joined with i + a and i - a for every a (Definition 18).

    Degree 2k. Offsets may repeat, and a and n - a are the same offset: their arcs are then
    parallel.

    Raises:
        TopologyError: an offset is outside 1..n-1 or is n/2 (whose two arcs would be one), or the
            offsets share a divisor with n, which leaves the graph disconnected.
    """
    n = count(n, "n", least=3)
    steps = _offsets(n, offsets)
    for step in steps:
        if 2 * step == n:
            raise TopologyError(
                f"offset {step} is half of n = {n}: i + {step} and i - {step} are one vertex; "
                f"take {step - 1}"
                + (f" or {step + 1}" if step + 1 < n else "")
                + ", or an odd number of vertices"
            )
    notation = f"C({n},{{{','.join(map(str, steps))}}})"
    return _cayley(n, [*steps, *(n - step for step in steps)], notation)


def directed_circulant(n: int, offsets: Iterable[int]) -> Digraph:
    """The digraph of arcs from i to i + a (mod n) for every offset a.

    The dissertation names the Moore- and bandwidth-optimal one of degree d on d + 2 vertices
    without defining it; offsets 1, ..., d fit: ``directed_circulant(d + 2, range(1, d + 1))``
    reaches the vertex left over, d + 1 ahead, in two steps from all d neighbours.

    Raises:
        TopologyError: an offset is outside 1..n-1, or the offsets share a divisor with n.
    """
    n = count(n, "n", least=2)
    steps = _offsets(n, offsets)
    notation = f"DiC({n},{{{','.join(map(str, steps))}}})"
    return _cayley(n, steps, notation)


def dense_circulant(degree: int) -> Digraph:
    """The directed circulant of Table A.3: degree d on d + 2 vertices, offsets 1 to d."""
    degree = count(degree, "degree")
    return directed_circulant(degree + 2, range(1, degree + 1))


def least_diameter_circulant(n: int, degree: int = 4) -> Digraph:
    """C(n, {m, m+1}) of the least diameter of all C(n, {a, b}), which is m (Theorem 22).

    m = ceil((sqrt(2n - 1) - 1) / 2). A degree above 4 is reached by parallel arcs: the offsets m
    and m + 1 alternate, so that their numbers differ by at most one. If they are equal in number
    (degree a multiple of 4) T_B stays optimal; otherwise it need not.

    Args:
        n: vertices, above 6.
        degree: an even number of at least 4.

    Raises:
        TopologyError: n is 6 or less, or the degree is odd or below 4.
    """
    n, degree = count(n, "n"), count(degree, "degree")
    if n <= 6:
        raise TopologyError(
            f"Theorem 22 needs n above 6, got {n}; the nearest is 7, and below it the complete "
            f"graph on {max(n, 2)} vertices has diameter 1"
        )
    _check_even(degree, least=4, what="C(n,{m,m+1})")
    # A degree that is a multiple of 4 has equally many arcs of either offset: the best all_gather
    # of degree 4, run over every copy, loads all of them equally.
    m = theorem_22_offset(n)
    return circulant(n, sorted(m + i % 2 for i in range(degree // 2)))


def theorem_22_offset(n: int) -> int:
    """m = ceil((sqrt(2n - 1) - 1) / 2), exactly: the least m with 2 m^2 + 2 m + 1 >= n."""
    # Two offsets and their inverses reach i a + j b with |i| + |j| <= m in m steps. These are at
    # most 2 m^2 + 2 m + 1 vertices, so no smaller m will do.
    m = (math.isqrt(2 * n - 1) - 1) // 2
    while 2 * m * m + 2 * m + 1 < n:
        m += 1
    return m


def bidirectional_ring(degree: int, n: int) -> Digraph:
    """BiRing(d, n): n vertices in a circle, d/2 arcs between neighbours each way.

    Raises:
        TopologyError: the degree is odd, or there are fewer than three vertices.
    """
    degree, n = count(degree, "degree"), count(n, "n", least=3)
    _check_even(degree, least=2, what="BiRing(d,n)")
    return _cayley(n, [1, n - 1] * (degree // 2), f"BiRing({degree},{n})")


def unidirectional_ring(degree: int, n: int) -> Digraph:
    """UniRing(d, n): n vertices in a circle, d parallel arcs from each to the next."""
    degree, n = count(degree, "degree"), count(n, "n", least=2)
    return _cayley(n, [1] * degree, f"UniRing({degree},{n})")


def shifted_ring(n: int, shift: int | None = None) -> Digraph:
    """C(n, {1, p}): two bidirectional rings over the same vertices, of steps 1 and p.

    Args:
        n: vertices, at least 5.
        shift: p, coprime to n, from 2 to n - 2; the largest below n/2 when omitted.

    Raises:
        TopologyError: the shift does not make one ring of all vertices; or n is 6 or below 5, for
            which no shift exists.
    """
    # A shift coprime to n visits all vertices, so its ring contains all of them.
    n = count(n, "n", least=5)
    possible = [p for p in range(2, (n + 1) // 2) if math.gcd(p, n) == 1]
    if not possible:
        raise TopologyError(f"no shift makes a second ring of {n} vertices; take 5 or 7")
    if shift is None:
        return circulant(n, (1, possible[-1]))
    p = checks.integer(shift, "shift", TopologyError, least=2, most=n - 2)
    if math.gcd(p, n) > 1:
        near = min(possible, key=lambda q: (abs(q - p), q))
        raise TopologyError(
            f"steps of {p} visit {n // math.gcd(p, n)} of {n} vertices; the nearest shift that "
            f"visits all is {near}"
        )
    return circulant(n, (1, p))


def _offsets(n: int, offsets: Iterable[int]) -> list[int]:
    given = checks.members(offsets, "offsets", TopologyError)
    steps = checks.integers(given, "offsets", TopologyError, least=1, most=n - 1)
    if not steps:
        raise TopologyError(
            f"a circulant graph needs one offset or more, got none; give some of 1 to {n - 1}"
        )
    # Sums of the offsets modulo n are the multiples of their common divisor with n.
    shared = math.gcd(n, *steps)
    if shared > 1:
        away = next(i for i in range(1, n) if math.gcd(n + i, *steps) == 1)
        raise TopologyError(
            f"n = {n} and the offsets {','.join(map(str, steps))} share the divisor {shared}: the "
            f"graph is in {shared} parts; the nearest larger n that joins them is {n + away}, and "
            f"one part is {n // shared} vertices with offsets "
            f"{','.join(str(step // shared) for step in steps)}"
        )
    return list(steps)


def _check_even(degree: int, least: int, what: str) -> None:
    if degree % 2 or degree < least:
        near = [str(value) for value in (degree - 1, degree + 1) if value >= least and degree % 2]
        raise TopologyError(
            f"{what} needs an even degree of at least {least}, got {degree}; the nearest is "
            f"{' or '.join(near) or least}"
        )


def _cayley(n: int, steps: Sequence[int], name: str) -> Digraph:
    check_size(name, n, n * len(steps))
    vertices = np.arange(n)
    heads = (vertices[:, None] + np.asarray(steps)) % n
    # The mirrored circle has every arc reversed.
    return Digraph.from_heads(heads, name, [(vertices + 1) % n], -vertices % n)
