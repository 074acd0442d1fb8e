"""The genetic search against the exact one."""

from __future__ import annotations

import math

import pytest

from experiments.models import load_model
from tensorstate.cost import price
from tensorstate.errors import PlanError
from tensorstate.hardware import HARDWARE, AlphaBeta, Hardware
from tensorstate.plan import named
from tensorstate.problem import Problem
from tensorstate.search.exact import least_memory, milp
from tensorstate.search.genes import Genes, Genome
from tensorstate.search.genetic import genetic
from tensorstate.states import Mesh
from tensorstate.trace import trace
from tests.tensorstate.tiny import LINES, MESHES, graph

SLOW = Hardware("slow", {4: 1e9}, 1e8, 1e9)


def problem_of(name: str, mesh: Mesh = LINES[0]) -> Problem:
    axes = len(mesh.sizes)
    return Problem(graph(name), AlphaBeta(mesh, (1e-8,) * axes, (1e8,) * axes), SLOW)


def every(problem: Problem):
    return [ways.all for ways in problem.ways]


@pytest.mark.parametrize("name", ["linear", "residual", "twice", "chain", "norm"])
@pytest.mark.parametrize("objective", ["sum", "max"])
def test_it_finds_the_best_of_small_graphs(name, objective):
    problem = problem_of(name)
    best = milp(problem, every(problem), objective=objective, gap=1e-7)
    found = genetic(problem, every(problem), objective=objective, generations=12)
    assert found.objective == pytest.approx(best.objective, rel=1e-6)
    assert (found.method, found.bound) == ("genetic", -math.inf)


@pytest.mark.parametrize("name", ["linear", "residual", "twice"])
def test_it_keeps_memory_limits(name):
    """By what is made again, and by states that take less."""
    problem = problem_of(name)
    free = milp(problem, every(problem), gap=1e-7)
    least, nbytes = least_memory(problem, every(problem), recompute=True, objective="sum")
    assert least is not None
    assert 0.98 * least.cost.memory.peak <= nbytes <= least.cost.memory.peak
    limit = max(least.cost.memory.peak, 0.8 * free.cost.memory.peak)
    best = milp(problem, every(problem), recompute=True, memory_limit=limit, gap=1e-7)
    found = genetic(problem, every(problem), recompute=True, memory_limit=limit)
    assert found.cost.memory.peak <= limit
    assert best.objective * (1 - 1e-6) <= found.objective <= best.objective * 1.01
    with pytest.raises(PlanError, match=r"fits into 10 bytes .* more; the exact search"):
        genetic(problem, every(problem), recompute=True, memory_limit=10, generations=1)


def test_two_axes():
    problem = problem_of("residual", MESHES[-1])
    best = milp(problem, every(problem), gap=1e-7)
    found = genetic(problem, every(problem), generations=10)
    assert best.objective * (1 - 1e-6) <= found.objective <= best.objective * 1.03


def test_it_takes_only_ways_that_are_allowed():
    problem = problem_of("twice")
    allowed = [ways.all[:3] for ways in problem.ways]
    found = genetic(problem, allowed, generations=4)
    assert all(way in ways for way, ways in zip(found.decisions.ways, allowed, strict=True))


def test_a_seed_gives_the_same():
    problem = problem_of("linear")
    first, second = (genetic(problem, every(problem), seed=5, generations=3) for _ in range(2))
    assert first.decisions.ways == second.decisions.ways
    assert first.objective == second.objective


def test_time_and_progress():
    problem, seen = problem_of("linear"), []
    found = genetic(problem, every(problem), progress=lambda *now: seen.append(now))
    assert all(bound == -math.inf for _, _, bound in seen)
    assert seen[-1][1] == pytest.approx(1e6 * found.objective)
    assert genetic(problem, every(problem), time_limit=0.0).objective >= found.objective


@pytest.mark.parametrize("name", ["linear", "layers"])
def test_prices_of_genomes_are_those_of_their_decisions(name):
    """Changed one class at a time, with all made again and kept small."""
    problem = problem_of(name, MESHES[-1])
    genes = Genes(problem, every(problem), 1e3, "sum")
    groups, flows = len(problem.ways), len(problem.flows)
    for again in (False, True):
        early = tuple(again and problem.is_early(group) for group in range(groups))
        one = genes.priced(Genome((0,) * groups, early, (True,) * flows))
        for group in genes.order:
            changed = genes.changed(one, group, len(genes.allowed[group]) // 2)
            one = changed if changed.score < 1e9 else one
            cost = price(problem, genes.decisions(one.genome))
            assert sum(flow[0] for flow in one.flows) == pytest.approx(cost.communication)
            assert genes.peak(one) == cost.memory.peak
            over = cost.memory.peak / 1e3 - 1
            penalty = 1 if over <= 0 else 2 + 100 * over
            assert one.score == pytest.approx(cost.seconds * penalty)


@pytest.mark.slow
def test_a_small_model():
    """Within a few per cent of the exact search, and better than all families."""
    model = load_model("gpt")
    mesh = Mesh.of({"data": 8})
    network = AlphaBeta(mesh, (1e-6,), (1e9,))
    problem = Problem(trace(model.step, model.abstract_args), network, HARDWARE["CPU"])
    best = milp(problem, every(problem), gap=1e-3)
    found = genetic(problem, every(problem), generations=30)
    assert found.objective <= 1.03 * best.objective
    assert found.objective <= min(named(problem, name).objective for name in ("ddp", "fsdp"))
