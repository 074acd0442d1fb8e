"""Rings and circulant graphs: vertices on a circle, arcs to the same distances from every vertex.

Source: Tables 3.5 and A.3, Appendices A.6.1 and A.6.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.topologies.arguments import check_size, count
from jaxcoll.topologies.generative.digraph import Digraph


def circulant(n: int, offsets: Iterable[int]) -> Digraph:
    """C(n, {a_1, ..., a_k}): vertex i is joined with i + a and i - a for every a (Definition 18).

    Degree 2k. Offsets may repeat, and a and n - a are the same offset: their arcs are then
    parallel.

    Raises:
        TopologyError: an offset outside 1..n-1, n/2 (the two arcs would be one), or offsets that
            share a divisor with n, which leave the graph in several parts.
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
        TopologyError: an offset outside 1..n-1, or offsets that share a divisor with n.
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
    m = theorem_22_offset(n)
    return circulant(n, sorted(m + i % 2 for i in range(degree // 2)))


def theorem_22_offset(n: int) -> int:
    """m = ceil((sqrt(2n - 1) - 1) / 2), exactly: the least m with 2 m^2 + 2 m + 1 >= n."""
    m = (math.isqrt(2 * n - 1) - 1) // 2
    while 2 * m * m + 2 * m + 1 < n:
        m += 1
    return m


def bidirectional_ring(degree: int, n: int) -> Digraph:
    """BiRing(d, n): n vertices in a circle, d/2 arcs between neighbours each way.

    Raises:
        TopologyError: an odd degree, or fewer than three vertices.
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
        TopologyError: a shift that does not make one ring of all vertices, or n of 6 or below 5,
            for which none exists.
    """
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
        raise TopologyError("a circulant graph needs one offset or more; got none")
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
    return Digraph(
        n,
        len(steps),
        np.repeat(vertices, len(steps)),
        heads.ravel(),
        name=name,
        generators=(tuple(((vertices + 1) % n).tolist()),),
        reversal=tuple((-vertices % n).tolist()),
    )
