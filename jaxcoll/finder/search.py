"""The bottom-up search of Section 3.5.4: the best candidates of every size and degree.

Every expansion multiplies the size, or keeps it and multiplies the degree. So cells (size, degree)
are filled by size, then by degree, and all cells from which a cell can be made are complete before
it. A cell keeps the candidates that no other one beats, which means that it costs no more and has
all their properties. Costs of expansions are predicted by the theorems of Table 3.3. For example,
from K_3 in cell (3, 2) a line graph makes a candidate of (6, 2), and a Cartesian square one of
(9, 4).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from fractions import Fraction

from jaxcoll import executors
from jaxcoll.bounds.moore import bandwidth_optimum
from jaxcoll.errors import TopologyError
from jaxcoll.finder.candidates import UNDIRECTED, Candidate, Has, bases
from jaxcoll.finder.construction import Construction, line_graph, product
from jaxcoll.numerics import checks
from jaxcoll.progress import Progress, Report

Cell = tuple[int, int]

# The most candidates of equal cost that a cell keeps. Up to this number beaten ones are kept too,
# because their all-to-all rates may be better.
_MOST_EQUAL = 4


def search(
    sizes: Iterable[int],
    degree: int,
    *,
    measure: bool = False,
    executor: Executor | None = None,
    report: Report | None = None,
) -> dict[Cell, list[Candidate]]:
    """Candidates by (size, degree), for all degrees up to one.

    Args:
        sizes: sizes to fill; only they serve as intermediate sizes, so give the divisors of a
            target, or every size up to it.
        degree: the largest degree, at least 1.
        measure: whether bases without a packaged cost are measured.
        executor: where they are measured; in this process if None.
        report: called after every size.

    Raises:
        TopologyError: a size below 2, a degree below 1.
    """
    degree = checks.integer(degree, "degree", TopologyError, least=1)
    wanted = sorted(set(checks.integers(list(sizes), "sizes", TopologyError, least=2)))
    table = _Table(wanted, degree)
    # Only bases of the largest degree may be measured; the rest of a cell waits for smaller ones.
    known = functools.partial(_bases, degree=degree, measure=measure)
    # Cells are filled by rising size and degree: an expansion leads from smaller cells to larger
    # ones, so that every base is known when it is expanded.
    largest = executors.ordered(known, wanted, executor if measure else None)
    for done, (size, last) in enumerate(zip(wanted, largest, strict=True), 1):
        for d in range(1, degree + 1):
            for candidate in last if d == degree else bases(size, d):
                table.add((size, d), candidate)
            for candidate in table.expanded(size, d):
                table.add((size, d), candidate)
        if report is not None:
            report(Progress(done, len(wanted), f"networks of {size} ranks"))
    return table.cells


def _bases(size: int, degree: int, measure: bool) -> list[Candidate]:
    return list(bases(size, degree, measure=measure))


def frontier(candidates: Iterable[Candidate], has: int = 0) -> list[list[Candidate]]:
    """The candidates with some properties that no other one beats in T_L and T_B, by rising T_L.

    Returns:
        The candidates of each point of the frontier, of equal cost, in the order found.
    """
    found: list[list[Candidate]] = []
    proper = [c for c in candidates if c.has & has == has]
    for candidate in sorted(proper, key=lambda c: (c.steps, c.bandwidth)):
        if not found or candidate.bandwidth < found[-1][0].bandwidth:
            found.append([candidate])
        elif candidate.cost == found[-1][0].cost:
            found[-1].append(candidate)
    return found


class _Table:
    """Cells filled so far."""

    def __init__(self, sizes: list[int], degree: int):
        self.cells: dict[Cell, list[Candidate]] = {}
        self.factors: dict[Cell, list[Candidate]] = {}  # those that fit products
        self.smaller = {n: [] for n in sizes}
        for m in sizes:
            for n in range(2 * m, sizes[-1] + 1, m):
                if n in self.smaller:
                    self.smaller[n].append(m)

    def add(self, cell: Cell, candidate: Candidate) -> None:
        """Keep a candidate, or not if it is beaten, and drop those that it beats."""
        kept = self.cells.setdefault(cell, [])
        equal = [other for other in kept if other.cost == candidate.cost]
        beaten = any(candidate.is_beaten_by(other) for other in equal)
        if beaten and len(equal) >= _MOST_EQUAL:
            return
        if any(other.construction == candidate.construction for other in equal):
            return
        # Only a candidate that has all the properties of another one beats it: expansions need
        # them, and a slower base that can be expanded further may lead to a faster network.
        if any(candidate.is_beaten_by(other) for other in kept if other not in equal):
            return
        kept[:] = [c for c in kept if c in equal or not c.is_beaten_by(candidate)]
        kept.append(candidate)
        if not beaten and candidate.fits_products(cell[0]):
            factors = [c for c in self.factors.get(cell, ()) if not c.is_beaten_by(candidate)]
            self.factors[cell] = [*factors, candidate]

    def expanded(self, n: int, d: int) -> Iterator[Candidate]:
        """The expansions that lead to a size and degree."""
        yield from self._line_graphs(n, d)
        yield from self._products(n, d)
        for k in range(2, d + 1):
            if d % k == 0:
                yield from self._degree_expansions(n, d, k)
                yield from self._powers(n, d, k)
                yield from self._same_size(n, d, k)

    def _line_graphs(self, n: int, d: int) -> Iterator[Candidate]:
        """T_L + 1, T_B + 1/N at most; exactly for BFB (Theorems 7 and 10)."""
        if d == 1 or n % d:
            return
        for base in self.cells.get((n // d, d), ()):
            # Vertices of L(G) are arcs of G, joined at most once; a self-loop of G stays one. The
            # arc from uv to vw has an opposite arc only if w is u, so links both ways are lost.
            # Theorem 10 needs at least two out-neighbours: d > 1 arcs without parallel ones lead to
            # as many. Other line graphs may be faster than Theorem 7 says, but never slower.
            has = base.has & (Has.NO_LOOPS | Has.REVERSAL) | Has.NO_PARALLEL
            if base.has & (simple := Has.NO_LOOPS | Has.NO_PARALLEL) == simple:
                has |= base.has & Has.BFB
            bandwidth = base.bandwidth + Fraction(d, n)
            yield Candidate(base.steps + 1, bandwidth, int(has), line_graph(base.construction))

    def _products(self, n: int, d: int) -> Iterator[Candidate]:
        """The sum of T_L, and bandwidth optimality (Theorem 13)."""
        optimum = bandwidth_optimum(n)
        # BFB schedules a product of any factors, but its cost is known for these alone: the paper
        # has no bound for others (App. A.4.3).
        for m in self.smaller[n]:
            for e in range(1, d // 2 + 1):
                # Both orders of two factors are one product.
                if 2 * e == d and m * m > n:
                    continue
                for first in self.factors.get((m, e), ()):
                    for second in self.factors.get((n // m, d - e), ()):
                        has = first.has & second.has
                        steps = first.steps + second.steps
                        # All products of a cell have the same T_B, the optimum, so steps and
                        # properties decide. Most products are beaten, so they are not made.
                        known = self.factors.get((n, d), ())
                        if not any(c.steps <= steps and has & ~c.has == 0 for c in known):
                            made = product(first.construction, second.construction)
                            yield Candidate(steps, optimum, has, made)

    def _degree_expansions(self, n: int, d: int, k: int) -> Iterator[Candidate]:
        """T_L + 1, T_B + (k - 1)/(kN) (Theorem 11)."""
        if n % k:
            return
        for base in self.cells.get((n // k, d // k), ()):
            # Copies of a vertex get its shard in a step of their own at the end (Definition 2),
            # later than a shortest path would bring it: the cost of BFB is not known then.
            if base.has & Has.NO_LOOPS:
                bandwidth = base.bandwidth + Fraction(k - 1, n)
                made = Construction("degree", (k,), (base.construction,))
                yield Candidate(base.steps + 1, bandwidth, int(base.has & ~Has.BFB), made)

    def _powers(self, n: int, d: int, k: int) -> Iterator[Candidate]:
        """k T_L, T_B N/(N - 1) (N^k - 1)/N^k (Theorem 12)."""
        m = round(n ** (1 / k))
        if m < 2 or m**k != n:
            return
        for base in self.cells.get((m, d // k), ()):
            # The result is as far above its optimum as the base is above (N - 1)/N: any all_gather
            # can be expanded, and an optimal one stays optimal (Corollary 12.1).
            bandwidth = base.bandwidth * Fraction(m, m - 1) * bandwidth_optimum(n)
            made = Construction("power", (k,), (base.construction,))
            yield Candidate(k * base.steps, bandwidth, int(base.has & ~Has.BFB), made)

    def _same_size(self, n: int, d: int, k: int) -> Iterator[Candidate]:
        """T_L and T_B of the base: parallel arcs, and links both ways (Appendix A.1.6)."""
        for base in self.cells.get((n, d // k), ()):
            if base.has & Has.BFB and base.has & Has.NO_PARALLEL:
                made = Construction("parallel", (k,), (base.construction,))
                yield base._replace(has=int(base.has & ~Has.NO_PARALLEL), construction=made)
            # Half of each shard goes by the schedule, half by its image on the reversed arcs. They
            # share no arc, and arcs are half as fast for twice the degree: both costs stay.
            if k == 2 and base.has & Has.REVERSAL and not base.has & Has.BOTH_WAYS:
                has = base.has & ~(Has.NO_PARALLEL | Has.BFB) | Has.BOTH_WAYS
                made = Construction("bidirectional", (), (base.construction,))
                yield base._replace(has=int(has), construction=made)


def tori(size: int, degree: int) -> Iterator[Candidate]:
    """The tori of a size and degree, equal and unequal sides; their cables are the shortest."""
    for sides in _boxes(size, degree, size):
        parts = tuple(
            Construction("bidirectional_ring", (2, side))
            if side > 2
            else Construction("complete", (2,))
            for side in sides
        )
        steps = sum(side // 2 for side in sides)
        made = parts[0] if len(parts) == 1 else Construction("product", (), parts)
        yield Candidate(steps, bandwidth_optimum(size), int(UNDIRECTED), made)


def _boxes(size: int, degree: int, longest: int) -> Iterator[tuple[int, ...]]:
    """Sides of boxes, the longest first; a side of 2 takes one port, a longer one two."""
    if size == 1 and degree == 0:
        yield ()
    if size == 1 or degree < 1:
        return
    for side in range(min(longest, size), 1, -1):
        if size % side == 0:
            for rest in _boxes(size // side, degree - (2 if side > 2 else 1), side):
                yield (side, *rest)
