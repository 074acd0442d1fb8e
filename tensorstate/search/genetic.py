"""A genetic search, the alternative that Zhao's dissertation names (section 5.4).

It starts from members of the named families and from random plans. Children take a stretch of the
graph, in its order of execution, from one parent and the rest from the other; where the stretches
meet, and where a mutation has changed a class, classes take the ways that suit their neighbours
best. Nothing is proved: there is no bound.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Iterable, Sequence

from tensorstate.cost import price
from tensorstate.errors import PlanError
from tensorstate.families import FAMILIES, Families, per_axis
from tensorstate.problem import Problem
from tensorstate.search.exact import Found, objective_of
from tensorstate.search.genes import NEVER, Genes, Genome, Priced
from tensorstate.search.program import Progress
from tensorstate.ways import Way

# Plans that live at once; of those the share that may have children.
POPULATION, PARENTS = 24, 0.5
# Generations without anything better after which it ends.
PATIENCE = 12
# Classes beside a change that are fitted to it.
NEAR = 3


def genetic(
    problem: Problem,
    allowed: Sequence[Sequence[Way]],
    *,
    recompute: bool = False,
    memory_limit: float | None = None,
    objective: str = "sum",
    generations: int = 200,
    time_limit: float = math.inf,
    seed: int = 0,
    progress: Progress | None = None,
) -> Found:
    """Good decisions, with no bound. Without a time limit a seed gives the same every time.

    Args:
        problem: what to decide.
        allowed: for every class the ways to choose from.
        recompute: whether classes may be made again.
        memory_limit: bytes of a device, or ``None``.
        objective: "sum" or "max" of compute and communication.
        generations: at most.
        time_limit: seconds.
        seed: of all that is random.
        progress: called after every generation.

    Raises:
        PlanError: no plan was found that fits together, or into the memory.
    """
    start = time.perf_counter()
    genes = Genes(problem, allowed, memory_limit, objective)
    breeder = _Breeder(genes, recompute, random.Random(seed))
    population: list[Priced] = []
    for genome in breeder.founders():
        if population and time.perf_counter() - start > time_limit:
            break
        population.append(breeder.fitted(genes.priced(genome), genes.order))
    population.sort(key=lambda one: one.score)
    stale = 0
    for _ in range(generations):
        elapsed = time.perf_counter() - start
        if stale >= PATIENCE or elapsed > time_limit:
            break
        best = population[0].score
        population = breeder.next_generation(population)
        stale = 0 if population[0].score < best * (1 - 1e-9) else stale + 1
        if progress is not None:
            progress(elapsed, 1e6 * population[0].score, -math.inf)
    return _found(genes, population, start)


def _found(genes: Genes, population: Sequence[Priced], start: float) -> Found:
    limit = math.inf if genes.memory_limit is None else genes.memory_limit
    fitting = [one for one in population if one.score < NEVER]
    if not fitting:
        raise PlanError("no ways that fit together were found; pins may contradict each other")
    best = next((one for one in fitting if genes.peak(one) <= limit), None)
    if best is None:
        least = min(map(genes.peak, fitting))
        raise PlanError(
            f"no plan was found that fits into {limit:.0f} bytes of a device's memory: the least "
            f"is {least:.0f} bytes, {least - limit:.0f} more; the exact search knows for certain"
        )
    decisions = genes.decisions(best.genome)
    cost = price(genes.problem, decisions)
    seconds = time.perf_counter() - start
    reached = objective_of(cost, genes.objective)
    return Found(decisions, cost, reached, -math.inf, "genetic", seconds)


class _Breeder:
    """Makes plans from plans."""

    def __init__(self, genes: Genes, recompute: bool, rng: random.Random):
        self.genes, self.rng = genes, rng
        problem = genes.problem
        self.early = [
            group for group in range(len(genes.allowed)) if recompute and problem.is_early(group)
        ]
        self.limited = genes.memory_limit is not None

    # ------------------------------------------------------------------ the first ones

    def founders(self) -> Iterable[Genome]:
        """Members of the families, each also with as little memory as can be; and random plans."""
        problem, allowed = self.genes.problem, self.genes.allowed
        families, names = Families(problem), list(FAMILIES)
        if len(problem.mesh.sizes) > 1:
            names += [f"{data} + megatron" for data in ("zero2", "fsdp")]
        found = [self._genome([0] * len(allowed))]
        for name in names:
            ways = families.ways(per_axis(problem, name))
            both = [
                [i for i, way in enumerate(choices) if way in members] or [0]
                for choices, members in zip(allowed, map(set, ways), strict=True)
            ]
            # The last of a family's ways shard the most.
            found.append(self._genome([some[-1] for some in both]))
        if self.limited:
            found += [self._small(genome) for genome in found]
        while len(found) < POPULATION:
            found.append(self._genome([self.rng.randrange(len(ways)) for ways in allowed]))
        return found

    def _genome(self, ways: Iterable[int]) -> Genome:
        groups, flows = len(self.genes.allowed), len(self.genes.problem.flows)
        return Genome(tuple(ways), (False,) * groups, (False,) * flows)

    def _small(self, genome: Genome) -> Genome:
        again = tuple(group in self.early for group in range(len(genome.again)))
        return dataclasses.replace(genome, again=again, small=(True,) * len(genome.small))

    # ------------------------------------------------------------------ the next ones

    def next_generation(self, population: list[Priced]) -> list[Priced]:
        """The best of parents and children, none twice."""
        parents = population[: max(2, int(PARENTS * len(population)))]
        children = []
        for _ in range(POPULATION):
            mother, father = self.rng.choice(parents), self.rng.choice(parents)
            children.append(self._mutated(self._crossed(mother, father)))
        every = {one.genome: one for one in (*children, *population)}
        return sorted(every.values(), key=lambda one: one.score)[:POPULATION]

    def _crossed(self, mother: Priced, father: Priced) -> Priced:
        """A stretch of the graph from the father, the rest from the mother."""
        order = self.genes.order
        a, b = sorted(self.rng.randrange(len(order) + 1) for _ in range(2))
        stretch = set(order[a:b])

        def mixed(mine: Sequence, others: Sequence) -> tuple:
            pairs = enumerate(zip(mine, others, strict=True))
            return tuple(other if group in stretch else own for group, (own, other) in pairs)

        m, f = mother.genome, father.genome
        small = tuple(
            (f if flow.group in stretch else m).small[number]
            for number, flow in enumerate(self.genes.problem.flows)
        )
        child = Genome(mixed(m.ways, f.ways), mixed(m.again, f.again), small)
        ends = order[max(0, a - NEAR) : a + NEAR] + order[max(0, b - NEAR) : b + NEAR]
        return self.fitted(self.genes.priced(child), ends, 1)

    def _mutated(self, one: Priced) -> Priced:
        """A class runs in another way, and its neighbours follow; memory genes may flip."""
        order, genome = self.genes.order, one.genome
        if self.limited and self.rng.random() < 0.5:
            genome = self._flipped(genome)
            one = self.genes.priced(genome)
        at = self.rng.randrange(len(order))
        group = order[at]
        way = self.rng.randrange(len(self.genes.allowed[group]))
        around = {g for number in self.genes.touching[group] for g in self.genes.around[number]}
        changed = self.genes.changed(one, group, way)
        return self.fitted(changed, [g for g in order if g in around and g != group], 2)

    def _flipped(self, genome: Genome) -> Genome:
        if self.early and self.rng.random() < 0.5:
            group = self.rng.choice(self.early)
            again = (other ^ (g == group) for g, other in enumerate(genome.again))
            return dataclasses.replace(genome, again=tuple(again))
        number = self.rng.randrange(len(genome.small))
        small = (other ^ (n == number) for n, other in enumerate(genome.small))
        return dataclasses.replace(genome, small=tuple(small))

    def fitted(self, one: Priced, groups: Sequence[int], sweeps: int = 2) -> Priced:
        """Classes take, one after another, the ways that are best while the others stay."""
        for sweep in range(sweeps):
            before = one.score
            for group in groups if sweep % 2 == 0 else groups[::-1]:
                ways = range(len(self.genes.allowed[group]))
                others = (way for way in ways if way != one.genome.ways[group])
                every = (self.genes.changed(one, group, way) for way in others)
                one = min((one, *every), key=lambda priced: priced.score)
            if one.score >= before:
                break
        return one
