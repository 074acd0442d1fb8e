"""Candidates of a size and degree: constructions with predicted costs, and the bases among them.

A construction is a base and the expansions made of it. Its cost follows from the theorems of Table
3.3, so that thousands are compared and a few are built. Of 5 ranks and degree 4, say, the base is
K_5, in one step; of degree 2 the ring, in two.

Here also is the search for connections of Cayley digraphs with good BFB all_gathers.
``python -m jaxcoll.finder.candidates`` prints ``cayley.json`` of ``generative``, in about five
minutes on one core; ``--help`` says how to use more. The groups are those of
``cayley_digraphs.groups``: dihedral and abelian ones, and other semidirect products of two cyclic
groups. Searched are sets of distinct connections that an automorphism of order 2 takes to their
inverses, so that the digraph is isomorphic to its transpose: all of them where they are few, else
draws with a fixed seed. Those closed under inverses, whose links go both ways, are searched by
themselves as well.
"""

from __future__ import annotations

import argparse
import enum
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll import executors
from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.errors import TopologyError
from jaxcoll.finder.construction import Construction, measured_bases
from jaxcoll.numerics.compiled import kernel
from jaxcoll.progress import Progress, reporting
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies.generative import FAMILIES, Digraph
from jaxcoll.topologies.generative.cayley_digraphs import (
    VERSION,
    CayleySet,
    SemidirectProduct,
    cayley,
    cayley_sets,
    groups,
)
from jaxcoll.topologies.generative.distance_regular_graphs import TABLE_A2_SIZES, is_field_order
from jaxcoll.topologies.generative.tori import theorem_22_offset


class Has(enum.IntFlag):
    """What expansions and constraints ask of a digraph and its schedule."""

    NO_LOOPS = enum.auto()
    NO_PARALLEL = enum.auto()
    BOTH_WAYS = enum.auto()  # every arc has one that goes back
    REVERSAL = enum.auto()  # isomorphic to its transpose
    BFB = enum.auto()  # the digraph's best BFB all_gather costs that, or less for line graphs


_SIMPLE = Has.NO_LOOPS | Has.NO_PARALLEL
_DIRECTED = _SIMPLE | Has.REVERSAL | Has.BFB
UNDIRECTED = _DIRECTED | Has.BOTH_WAYS

# Diameters of the graphs of Table A.2, by size.
_TABLE_A2 = {
    6: 2, 9: 2, 10: 3, 14: 3, 15: 3, 16: 4, 21: 3, 26: 3, 32: 4, 35: 3, 45: 4, 70: 7, 80: 4,
    189: 6, 728: 6,
}  # fmt: skip
# T_L of the searched all_gathers of modified de Bruijn digraphs, all bandwidth-optimal.
_REWIRED = {(2, 3): 4, (2, 4): 5, (3, 2): 3, (4, 2): 3}
# Size up to which costs that are not packaged are measured by BFB while searching.
MOST_MEASURED = 4096


class Candidate(NamedTuple):
    """A construction and the predicted cost of its all_gather.

    Attributes:
        steps: T_L in alpha.
        bandwidth: T_B in M/B; line graphs of schedules other than BFB may cost less (Theorem 7).
        has: its properties, as bits of ``Has``.
        construction: how it is made.
    """

    steps: int
    bandwidth: Fraction
    has: int
    construction: Construction

    @property
    def cost(self) -> Cost:
        """T_L and T_B."""
        return Cost(self.steps, self.bandwidth)

    def fits_products(self, size: int) -> bool:
        """Whether Theorem 13 takes it as a factor: simple, with a bandwidth-optimal BFB."""
        wanted = _SIMPLE | Has.BFB
        return self.has & wanted == wanted and self.bandwidth == bandwidth_optimum(size)

    def is_beaten_by(self, other: Candidate) -> bool:
        """Whether the other costs no more and has all its properties."""
        return (
            other.steps <= self.steps
            and self.has & ~other.has == 0
            and other.bandwidth <= self.bandwidth
        )


def bases(size: int, degree: int, *, measure: bool = False) -> Iterator[Candidate]:
    """The bases of a size and degree: Tables A.2 and A.3, other geometries, Cayley digraphs.

    Shifted rings are left out: of all C(n,{a,b}), that of Theorem 22 has the least diameter and is
    bandwidth-optimal. So are double binary trees, which are a baseline.

    Args:
        measure: whether to compute costs that are not packaged by BFB.
    """
    yield from _by_formula(size, degree)
    yield from _optimal_undirected(size, degree)
    yield from _twisted(size, degree)
    yield from _searched(size, degree)
    if degree > 1 and size == degree:
        yield _made(
            "de_bruijn", (degree, 1), 1, Has.NO_PARALLEL | Has.REVERSAL | Has.BFB, Fraction(1)
        )
    if degree > 1 and size > degree:
        yield from _generalized_kautz(size, degree, measure)


def with_bfb_cost(candidate: Candidate) -> Candidate:
    """A line graph at the cost of its best BFB all_gather, if that is known to be no more.

    Theorem 10 says that BFB on L(G) costs T_B + 1/N, but it may cost less: for
    L(UniRing(1,4) x UniRing(1,4)), 31/32 and not 1, because no rank needs its own shard and the
    links into a rank share the gain.
    """
    is_line_graph = candidate.construction.operation == "line_graph"
    if not (is_line_graph and candidate.has & Has.BFB):
        return candidate
    cost = bfb_cost(candidate.construction.digraph())
    return candidate._replace(steps=cost.steps, bandwidth=cost.inverse_bandwidth)


def _made(name: str, arguments: tuple, steps: int, has: int, bandwidth: Fraction) -> Candidate:
    return Candidate(steps, bandwidth, int(has), Construction(name, arguments))


def _by_formula(n: int, d: int) -> Iterator[Candidate]:
    """Complete ones, rings and circulants: bandwidth-optimal, in as many steps as the diameter."""
    optimum = bandwidth_optimum(n)
    if n == d + 1:
        yield _made("complete", (n,), 1, UNDIRECTED, optimum)
    if n == 2 * d and d > 1:
        yield _made("complete_bipartite", (d,), 2, UNDIRECTED, optimum)
    if n == d + 2 and d > 1:
        yield _made("dense_circulant", (d,), 2, _DIRECTED, optimum)
    if d == 1 and n > 2:  # of two vertices it is K2
        yield _made("unidirectional_ring", (1, n), n - 1, _DIRECTED, optimum)
    if d == 2 and n > 3:
        yield _made("bidirectional_ring", (2, n), n // 2, UNDIRECTED, optimum)
    if d == 4 and n > 6:
        m = theorem_22_offset(n)
        yield _made("circulant", (n, (m, m + 1)), m, UNDIRECTED, optimum)
    found = measured_bases().get(("circulant", d, n))
    if found is not None:
        cost = found.cost
        yield _made("circulant", found.arguments, cost.steps, UNDIRECTED, cost.inverse_bandwidth)


def _optimal_undirected(n: int, d: int) -> Iterator[Candidate]:
    """Distance-regular graphs: a bandwidth-optimal BFB in as many steps as the diameter."""

    def graph(name: str, steps: int, *arguments: int) -> Candidate:
        return _made(name, arguments, steps, UNDIRECTED, bandwidth_optimum(n))

    if d == 4 and n in TABLE_A2_SIZES:
        yield graph("distance_regular", _TABLE_A2[n], d, n)
        return
    if d > 2 and n == 2 * (d + 1):
        yield graph("crown", 3, d)
    if d > 2 and n == math.comb(2 * d - 1, d - 1) and d <= 6:
        yield graph("odd_graph", d - 1, d)
    for letters, k in FAMILIES["Johnson"].find(n, d):
        yield graph("johnson", k, letters, k)  # type: ignore[arg-type]
    if d > 2 and n == 2 * ((d - 1) ** 2 + d) and is_field_order(d - 1):
        yield graph("projective_plane", 3, d - 1)
    if d > 2 and n == 2 * d * d and is_field_order(d):
        yield graph("affine_plane_minus_class", 4, d)
    if d > 2 and n == 2 * d * ((d - 1) ** 2 + 1) and is_field_order(d - 1):
        yield graph("generalized_quadrangle", 4, d - 1)
    if d > 2 and n == 2 * math.comb(2 * d - 1, d - 1) and d <= 6:
        yield graph("doubled_odd_graph", 2 * d - 1, d)
    if (n, d) == (126, 3):
        yield graph("generalized_hexagon", 6, 2)


def _twisted(n: int, d: int) -> Iterator[Candidate]:
    """Twisted tori and hypercubes, whose BFB all_gathers are measured."""
    for (dimensions,) in FAMILIES["twisted hypercube"].find(n, d):
        yield _measured_once("twisted_hypercube", dimensions)
    for sides in FAMILIES["twisted torus"].find(n, d):
        yield _measured_once("twisted_torus", sides)


@functools.cache
def _measured_once(name: str, argument: object) -> Candidate:
    construction = Construction(name, (argument,))
    cost = bfb_cost(construction.digraph())
    return Candidate(cost.steps, cost.inverse_bandwidth, int(UNDIRECTED), construction)


def _searched(n: int, d: int) -> Iterator[Candidate]:
    """Candidates that searches have found, with packaged all_gathers or connections."""
    # Diamond and modified de Bruijn digraphs without BFB: their breadth-first schedules are not
    # bandwidth-optimal, and no theorem that asks for BFB may take the searched ones.
    if (n, d) == (8, 2):
        yield _made("diamond", (), 3, _SIMPLE, Fraction(7, 8))
    for (degree, letters), steps in _REWIRED.items():
        if (n, d) == (degree**letters, degree):
            reversal = Has.REVERSAL if (degree, letters) == (2, 3) else 0
            has = _SIMPLE | reversal
            yield _made("modified_de_bruijn", (d, letters), steps, has, bandwidth_optimum(n))
    for found in cayley_sets().get((n, d), ()):
        has = UNDIRECTED if found.both_ways else _DIRECTED
        yield _made("cayley", found.arguments, found.steps, has, found.bandwidth)


def _generalized_kautz(n: int, d: int, measure: bool) -> Iterator[Candidate]:
    construction = Construction("generalized_kautz", (d, n))
    found = measured_bases().get(("generalized_kautz", d, n))
    if found is not None:
        cost = found.cost
    elif measure and n <= MOST_MEASURED:
        cost = bfb_cost(construction.digraph())
    else:
        return
    has = Has.NO_PARALLEL | Has.BFB | (Has.NO_LOOPS if n % (d + 1) == 0 else 0)
    yield Candidate(cost.steps, cost.inverse_bandwidth, int(has), construction)


# Sizes searched, by degree.
SIZES = {
    2: range(4, 257), 3: range(5, 129), 4: (*range(6, 513), 1024), 6: range(8, 129),
    8: range(10, 257),
}  # fmt: skip
# Sets of connections of a group that are all tried; otherwise so many are drawn.
_MOST_SETS, _DRAWN = 4000, 400
# Elements drawn for each connection.
_TRIES = 4
# Diameters above the least, and sets of each, whose BFB all_gathers are measured.
_MORE_STEPS, _MEASURED = 3, 6
# Sets of equal cost and distances of which that of the best all-to-all is taken, up to a size.
_MOST_TIED, _LARGEST_TIED = 6, 64


def best_sets(size: int, degree: int) -> list[CayleySet]:
    """The Pareto frontier in T_L and T_B of the sets found of a size and degree.

    Then that of the sets closed under inverses, where it has others.
    """
    kept: list[CayleySet] = []
    for both_ways in (False, True):
        best: Fraction | None = None
        for base in _by_steps(size, degree, both_ways):
            if best is None or base.bandwidth < best:
                best = base.bandwidth
                kept += [base] if base not in kept else []
            if best == bandwidth_optimum(size):
                break
    return kept


def _by_steps(size: int, degree: int, both_ways: bool) -> Iterator[CayleySet]:
    """The best of the least diameters found, by rising diameter."""
    random = np.random.default_rng([size, degree, both_ways])
    found: list[tuple[int, int, SemidirectProduct, tuple[int, ...]]] = []
    for group in groups(size):
        sets = _connections(group, degree, both_ways, random)
        reach = np.empty((len(sets), 2), np.int64)
        _distances(group.k, group.powers, group.m, sets, reach)
        rows = zip(reach.tolist(), sets.tolist(), strict=True)
        found += [(steps, total, group, tuple(row)) for (steps, total), row in rows if steps > 0]
    # A set of a larger diameter may have the better T_B, hence several diameters. BFB takes long:
    # of each only the sets whose distances are the shortest in all are measured.
    found.sort(key=lambda each: each[:2])
    least = found[0][0] if found else 0
    for steps in range(least, least + _MORE_STEPS + 1):
        measured = []
        for _, total, group, row in itertools.islice(
            (each for each in found if each[0] == steps), _MEASURED
        ):
            digraph = cayley(group.m, group.k, group.r, row)
            bandwidth = bfb_cost(digraph).inverse_bandwidth
            arguments = group.m, group.k, group.r, row
            base = CayleySet(arguments, steps, bandwidth, digraph.is_undirected)
            measured.append((bandwidth, total, base, digraph))
        if measured:
            yield _best_exchange(measured)


def _best_exchange(measured: list[tuple[Fraction, int, CayleySet, Digraph]]) -> CayleySet:
    """The least T_B, then the least distances, then the best rate of all-to-all."""
    best = min(each[:2] for each in measured)
    tied = [each[2:] for each in measured if each[:2] == best][:_MOST_TIED]
    if len(tied) == 1 or tied[0][1].size > _LARGEST_TIED:
        return tied[0][0]

    def rate(each: tuple[CayleySet, Digraph]) -> Fraction:
        return digraph_flow(each[1].size, each[1].tails, each[1].heads).lower

    return max(tied, key=rate)[0]


def _connections(
    group: SemidirectProduct, degree: int, both_ways: bool, random: np.random.Generator
) -> np.ndarray:
    """Sets of distinct connections, rising, int64 of shape (sets, degree)."""
    elements = np.arange(1, group.size)
    rules = list(group.automorphisms(elements))
    # The first automorphism is the identity: with it an element's partner is its own inverse, so
    # that links go both ways.
    every = np.concatenate(rules)[:1] if both_ways else np.concatenate(rules)
    partner = group.inverse(every)  # of each element, that the automorphism asks for
    own = np.take_along_axis(partner, partner - 1, axis=1)
    partner = partner[(own == elements).all(axis=1)]  # automorphisms of order 2
    if math.comb(group.size - 1, degree) <= _MOST_SETS:
        sets = np.asarray(list(itertools.combinations(elements.tolist(), degree)), np.int64)
        sets = sets.reshape(-1, degree)
        closed = np.zeros(len(sets), bool)
        for row in partner:
            closed |= (np.sort(row[sets - 1], axis=1) == sets).all(axis=1)
        return sets[closed]
    rows = partner[random.integers(len(partner), size=_DRAWN)]
    return _drawn(rows, degree, random)


def _drawn(partner: np.ndarray, degree: int, random: np.random.Generator) -> np.ndarray:
    """A set for each row of partners: elements drawn, each with its partner; few are given up."""
    count, size = partner.shape
    drawn = random.integers(1, size + 1, size=(count, _TRIES * degree))
    sets = np.zeros((count, degree), np.int64)
    _fill_sets(partner, drawn, sets)
    sets.sort(axis=1)
    return np.unique(sets[sets[:, 0] > 0], axis=0)


@kernel(cache=True)
def _fill_sets(partner, drawn, sets):
    """Take elements in the order drawn, each with its partner, while both are new and fit."""
    count, degree = sets.shape
    for i in range(count):
        filled = 0
        for element in drawn[i]:
            other = partner[i, element - 1]
            width = 1 if other == element else 2
            if filled + width <= degree and not (sets[i, :filled] == element).any():
                sets[i, filled], sets[i, filled + width - 1] = element, other
                filled += width
        if filled < degree:
            sets[i, 0] = 0


@kernel(cache=True)
def _distances(k, powers, m, sets, reach):
    """The diameter of each Cayley digraph, 0 if it is not connected, and its sum of distances."""
    degree = sets.shape[1]
    distance = np.empty((m, k), np.int32)
    first, second = np.empty(m * k, np.int64), np.empty(m * k, np.int64)  # queued elements
    ahead = np.empty((degree, k), np.int64)  # r^x b modulo m
    change = np.empty(degree, np.int64)
    for i in range(len(sets)):
        for j in range(degree):
            b, change[j] = sets[i, j] // k, sets[i, j] % k
            ahead[j] = powers * b % m
        distance[:] = -1
        distance[0, 0], first[0], second[0] = 0, 0, 0
        count, total, at = 1, 0, 0
        while at < count:
            a, x = first[at], second[at]
            hops = distance[a, x] + 1
            total += hops - 1
            for j in range(degree):
                b, y = a + ahead[j, x], x + change[j]
                b -= m if b >= m else 0
                y -= k if y >= k else 0
                if distance[b, y] < 0:
                    distance[b, y] = hops
                    first[count], second[count] = b, y
                    count += 1
            at += 1
        reach[i, 0] = distance[first[count - 1], second[count - 1]] if count == m * k else 0
        reach[i, 1] = total


def rows(size: int, degree: int) -> Iterator[list]:
    """[degree, m, k, r, T_L, T_B above, T_B below, both ways, connections] of a size and degree."""
    for base in best_sets(size, degree):
        m, k, r, connections = base.arguments
        ratio = base.bandwidth.as_integer_ratio()
        yield [degree, m, k, r, base.steps, *ratio, int(base.both_ways), list(connections)]


def _rows(cell: tuple[int, int]) -> list[list]:
    return list(rows(*cell))


def main(argv: Sequence[str] | None = None) -> None:
    """Search everything, or some degrees, and print the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m jaxcoll.finder.candidates",
        description="Search connections of Cayley digraphs, and print them as JSON.",
    )
    parser.add_argument("--degrees", type=int, nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--most", type=int, default=1024, help="ranks (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (%(default)s)")
    options = parser.parse_args(argv)
    if not 1 <= options.workers <= executors.MOST_WORKERS:
        parser.error(f"--workers must be 1 to {executors.MOST_WORKERS}, got {options.workers}")
    cells = [(n, degree) for degree in options.degrees for n in SIZES[degree] if n <= options.most]
    with (
        executors.with_workers(options.workers) as executor,
        reporting(True, "searching", TopologyError) as report,
    ):
        found = []
        for done, of_cell in enumerate(executors.ordered(_rows, cells, executor), 1):
            found += of_cell
            if report is not None:
                report(Progress(done, len(cells), "sizes and degrees"))
    lines = ",\n".join(json.dumps(row) for row in found)
    sys.stdout.write(f'{{"version": {VERSION},\n"sets": [\n{lines}]}}\n')


if __name__ == "__main__":
    main()
