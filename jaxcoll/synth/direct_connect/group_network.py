"""Networks of an abelian group: ranks are its elements, and every rank r has links to r + s.

Adding an element moves the network onto itself, so every fact about rank 0 holds for every rank:
every distance is a distance from 0, and an all_gather is the tree of one rank, moved. That makes
networks of millions of ranks feasible, since no list of links is ever made. For example, a torus of
4 x 4 is Z_4 x Z_4 with the offsets (1, 0), (3, 0), (0, 1) and (0, 3).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import TopologyError
from jaxcoll.links import MAX_VERTICES, latency, speed
from jaxcoll.numerics import checks
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH
from jaxcoll.topology import Topology

_MOST_SIDE = 2**22  # the most ranks that a ``Topology`` may have


@dataclasses.dataclass(frozen=True)
class GroupNetwork:
    """The Cayley digraph of Z_m1 x ... x Z_mk for some offsets; equal ones are parallel links.

    Every translation maps the network onto itself, so one rank represents all ranks. Rings, tori,
    twisted tori, hypercubes, circulants, complete graphs and products of these are such networks.
    Ranks are numbered as on a grid of shape ``moduli``, the last coordinate fastest.

    Attributes:
        moduli: m1, ..., mk, each at least 1.
        offsets: one tuple of k integers, modulo ``moduli``, per link out of a rank.
        alpha: seconds per link.
        bandwidth: bytes per second per link.
        name: a label for tables.

    Raises:
        TopologyError: there are no moduli, an offset has another length or is 0, some rank cannot
            be reached by offsets, or there are more than 4,194,304 ranks.
    """

    moduli: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    alpha: float = ALPHA
    bandwidth: float = BANDWIDTH
    name: str = ""

    def __post_init__(self) -> None:
        moduli = checks.integers(self.moduli, "moduli", TopologyError, least=1)
        if not moduli or math.prod(moduli) > MAX_VERTICES:
            raise TopologyError(
                f"moduli must be one or more integers whose product is at most {MAX_VERTICES}, got "
                f"{moduli}"
            )
        given = checks.members(self.offsets, "offsets", TopologyError)
        rows = [checks.integers(row, f"offsets[{i}]", TopologyError) for i, row in enumerate(given)]
        offsets = []
        for i, row in enumerate(rows):
            if len(row) != len(moduli):
                raise TopologyError(
                    f"offsets[{i}] needs {len(moduli)} integers, as moduli has, got {row}"
                )
            offset = tuple(x % m for x, m in zip(row, moduli, strict=True))
            if not any(offset):
                raise TopologyError(
                    f"offsets[{i}], {row}, joins every rank to itself; leave it out"
                )
            offsets.append(offset)
        checks.put(
            self,
            moduli=moduli,
            offsets=tuple(offsets),
            alpha=latency(self.alpha),
            bandwidth=speed(self.bandwidth),
            name=checks.text(self.name, "name", TopologyError),
        )
        # Offsets and moduli together span a sublattice of the integer points. The number of
        # separate parts of the network is its index, the product of its invariant factors.
        basis = np.diag(moduli).tolist()
        index = math.prod(_smith_form([*basis, *map(list, offsets)])[0])
        if index > 1:
            raise TopologyError(
                f"offsets {self.offsets} reach one rank in {index} of Z_{self.moduli}; add an "
                f"offset outside that subgroup"
            )

    # ------------------------------------------------------------------ families

    @classmethod
    def torus(cls, *sides: int, alpha: float = ALPHA, bandwidth: float = BANDWIDTH) -> GroupNetwork:
        """A torus: one link each way along each side, and no second one along a side of 2."""
        sides = checks.integers(sides, "sides", TopologyError, least=1)
        offsets = []
        for d, side in enumerate(sides):
            ways = () if side == 1 else (1,) if side == 2 else (1, -1)
            offsets += [tuple(by if d == e else 0 for e in range(len(sides))) for by in ways]
        name = f"torus {'x'.join(map(str, sides))}"
        return cls(sides, tuple(offsets), alpha, bandwidth, name)

    @classmethod
    def circulant(
        cls, n: int, offsets: Sequence[int], alpha: float = ALPHA, bandwidth: float = BANDWIDTH
    ) -> GroupNetwork:
        """C(n, {a1, ..., ak}): links r -> r + a and r -> r - a (Def. 18).

        Raises:
            TopologyError: the offsets do not connect the ranks, or an offset is n/2, whose two
                links would be one; the message names offsets that work.
        """
        n = checks.integer(n, "n", TopologyError, least=2, most=MAX_VERTICES)
        steps = checks.integers(offsets, "offsets", TopologyError, least=1, most=n - 1)
        divisor = math.gcd(n, *steps)
        if divisor > 1:
            raise TopologyError(
                f"C({n}, {steps}) is in {divisor} parts, as {divisor} divides n and all offsets"
                f"{_nearest_offset(n, steps, max(steps, default=0))}"
            )
        if n in {2 * step for step in steps}:
            raise TopologyError(
                f"offset {n // 2} of C({n}, {steps}) is n/2: both of its links end in one rank"
                f"{_nearest_offset(n, steps, n // 2)}"
            )
        ways = tuple((by,) for step in steps for by in (step, -step))
        return cls((n,), ways, alpha, bandwidth, f"C({n},{{{','.join(map(str, steps))}}})")

    @classmethod
    def twisted_torus(
        cls, *sides: int, alpha: float = ALPHA, bandwidth: float = BANDWIDTH
    ) -> GroupNetwork:
        """A torus of sides k, 2k or k, k, 2k or k, 2k, 2k whose short sides close with a twist.

        A walk of k links along a short side ends k links off along every long side (Camarero,
        Martinez, Beivide, "Lattice graphs for high-scale interconnection topologies"; TPU v4 in
        Jouppi et al., ISCA 2023).

        Args:
            sides: the sides in this order, with k at least 2.

        Raises:
            TopologyError: the sides are others; the message names the nearest ones that are
                allowed.
        """
        sides = checks.integers(sides, "sides", TopologyError, least=1, most=_MOST_SIDE)
        k = max(sides[0], 2) if sides else 2
        patterns = ((k, 2 * k), (k, k, 2 * k), (k, 2 * k, 2 * k))
        if sides not in patterns:
            raise TopologyError(
                f"a twisted torus has sides k, 2k or k, k, 2k or k, 2k, 2k; got {sides}, of which "
                f"{' and '.join(map(str, patterns))} are near"
            )
        long = [k if side > k else 0 for side in sides]
        rows = [
            [side if i == j else 0 if side > k else twist for j, twist in enumerate(long)]
            for i, side in enumerate(sides)
        ]
        name = f"twisted torus {'x'.join(map(str, sides))}"
        return cls.lattice(rows, alpha=alpha, bandwidth=bandwidth, name=name)

    @classmethod
    def lattice(
        cls,
        rows: Sequence[Sequence[int]],
        *,
        alpha: float = ALPHA,
        bandwidth: float = BANDWIDTH,
        name: str = "",
    ) -> GroupNetwork:
        """The grid of all integer points modulo a lattice, with links both ways along each axis.

        If both lead to the same rank, they are one link.

        Args:
            rows: k rows of k integers that span the lattice; their determinant is the number of
                ranks, up to its sign.

        Raises:
            TopologyError: the rows are not square or do not have full rank.
        """
        matrix = [
            list(checks.integers(row, f"rows[{i}]", TopologyError))
            for i, row in enumerate(checks.members(rows, "rows", TopologyError))
        ]
        if not matrix or any(len(row) != len(matrix) for row in matrix):
            raise TopologyError(f"rows must be k rows of k integers, got {checks.shown(rows)}")
        # The quotient of the integer points by a lattice is a product of cyclic groups, whose
        # orders are the invariant factors of the rows. The change of basis tells where each axis
        # leads in it.
        diagonal, change = _smith_form(matrix)
        if 0 in diagonal:
            raise TopologyError(f"rows must span a lattice of full rank, got {checks.shown(rows)}")
        # Coordinates modulo 1 are always 0.
        live = [i for i, m in enumerate(diagonal) if m > 1] or [0]
        moduli = tuple(diagonal[i] for i in live)
        ways = dict.fromkeys(
            tuple(sign * change[axis][i] % diagonal[i] for i in live)
            for axis in range(len(matrix))
            for sign in (1, -1)
        )
        offsets = tuple(way for way in ways if any(way))
        return cls(moduli, offsets, alpha, bandwidth, name)

    # ------------------------------------------------------------------ facts

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.moduli)

    @property
    def degree(self) -> int:
        """Links out of, and into, every rank."""
        return len(self.offsets)

    def shifted(self, offset: Sequence[int]) -> np.ndarray:
        """The rank r + offset for every rank r, int32 of shape (ranks,).

        Raises:
            TopologyError: the offset is not one integer per modulus.
        """
        offset = checks.integers(offset, "offset", TopologyError)
        if len(offset) != len(self.moduli):
            raise TopologyError(f"offset needs {len(self.moduli)} integers, got {offset}")
        offset = tuple(x % m for x, m in zip(offset, self.moduli, strict=True))
        ranks = np.arange(self.num_ranks, dtype=np.int32).reshape(self.moduli)
        axes = tuple(range(len(self.moduli)))
        return np.roll(ranks, tuple(-x for x in offset), axes).ravel()

    @functools.cached_property
    def behind(self) -> np.ndarray:
        """The rank r - s for every offset s and rank r, int32 of shape (degree, ranks)."""
        backward = [self.shifted([-x for x in offset]) for offset in self.offsets]
        return np.reshape(backward, (self.degree, self.num_ranks))

    @functools.cached_property
    def ahead(self) -> np.ndarray:
        """The rank r + s for every offset s and rank r, int32 of shape (degree, ranks)."""
        forward = [self.shifted(offset) for offset in self.offsets]
        return np.reshape(forward, (self.degree, self.num_ranks))

    def topology(self) -> Topology:
        """The network with one row per link, for sizes at which that is affordable."""
        n = self.num_ranks
        # Links are listed offset by offset; ``Topology`` puts them in its own order.
        heads = self.ahead.ravel()
        units = np.eye(len(self.moduli), dtype=int).tolist()
        translations = [
            self.shifted(unit) for unit, m in zip(units, self.moduli, strict=True) if m > 1
        ]
        return Topology(
            n,
            np.tile(np.arange(n), self.degree),
            heads,
            np.full(n * self.degree, self.alpha, float),
            [self.bandwidth] * (n * self.degree),  # type: ignore[arg-type]
            name=self.name,
            generators=tuple(tuple(image.tolist()) for image in translations),
        )

    def __repr__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"GroupNetwork({label}{self.num_ranks} ranks of degree {self.degree})"


def _nearest_offset(n: int, steps: tuple[int, ...], bad: int) -> str:
    """Advice for an error: the nearest offset with which C(n, ...) is a connected circulant."""
    kept = [step for step in steps if step != bad]
    for other in sorted(range(1, (n + 1) // 2), key=lambda step: abs(step - bad)):
        if other not in kept and math.gcd(n, other, *kept) == 1:
            return f"; take {other} for {bad}"
    return ""


def _smith_form(rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Integers m and a unimodular V with U A V = diag(m) for some unimodular U.

    Modulo the rows of A, a vector x is the element x V of the product of the Z_m.
    """
    a, width = [list(row) for row in rows], len(rows[0])
    v = [[int(i == j) for j in range(width)] for i in range(width)]
    for d in range(width):
        while True:
            entries = [
                (abs(a[i][j]), i, j) for i in range(d, len(a)) for j in range(d, width) if a[i][j]
            ]
            if not entries:
                break
            # The least entry is the pivot. Every round that leaves a remainder leaves a smaller
            # one, so the loop ends, and numbers stay small.
            _, i, j = min(entries)
            a[d], a[i] = a[i], a[d]
            for row in (*a, *v):
                row[d], row[j] = row[j], row[d]
            for i in range(d + 1, len(a)):
                times = a[i][d] // a[d][d]
                a[i] = [x - times * y for x, y in zip(a[i], a[d], strict=True)]
            # Column operations change the basis of the points, so V takes them along; row
            # operations only choose other vectors of the same lattice.
            for j in range(d + 1, width):
                times = a[d][j] // a[d][d]
                for row in (*a, *v):
                    row[j] -= times * row[d]
            if not any(a[i][d] for i in range(d + 1, len(a))) and not any(a[d][d + 1 :]):
                break
    return [abs(a[d][d]) for d in range(width)], v
