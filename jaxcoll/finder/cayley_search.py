"""The search for connections of Cayley digraphs with good BFB all_gathers.

``python -m jaxcoll.finder.cayley_search`` prints ``cayley.json`` of ``generative``, in about
five minutes on one core; ``--help`` says how to use more. The groups are those of
``cayley_digraphs.groups``: dihedral and abelian ones, and other semidirect products of two cyclic
groups. Searched are sets of distinct connections that an automorphism of order 2 takes to their
inverses, so that the digraph is isomorphic to its transpose: all of them where they are few, else
draws with a fixed seed. Those closed under inverses, whose links go both ways, are searched by
themselves as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll import executors
from jaxcoll.bounds.moore import bandwidth_optimum
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.compiled import kernel
from jaxcoll.progress import Progress, reporting
from jaxcoll.synth.direct_connect.bfb import bfb_cost
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies.generative import Digraph
from jaxcoll.topologies.generative.cayley_digraphs import (
    VERSION,
    CayleySet,
    SemidirectProduct,
    cayley,
    groups,
)

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
        prog="python -m jaxcoll.finder.cayley_search",
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
