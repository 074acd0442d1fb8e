"""The solvers with their options as keywords, and tight gaps by default."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tensorstate import Auto, CoordinateDescent, Milp, SearchOptions, SearchResult
from tensorstate.cost.cost import Infeasible
from tensorstate.keeping.base import Keeping
from tensorstate.keeping.recomputed import RECOMPUTED
from tensorstate.keeping.table import allowed
from tensorstate.solver import exact
from tensorstate.solver.base import CandidateStrategies, Question, Solver
from tensorstate.solver.formulation import Formulation


def options_of(recompute: bool = False, offload: bool = False, **options) -> SearchOptions:
    """Options of a search that may recompute or offload activations."""
    return SearchOptions(allowed(recompute=recompute, offload=offload), **options)


def recomputing(nodes: Iterable[int]) -> dict[int, Keeping]:
    """Of decisions: these nodes are recomputed."""
    return dict.fromkeys(nodes, RECOMPUTED)


def _solve(solver: Solver, problem, candidates: CandidateStrategies, **options) -> SearchResult:
    return solver.solve(problem, candidates, options_of(**options))


def solve_milp(problem, candidates, gap=1e-4, time_limit=math.inf, **options) -> SearchResult:
    return _solve(Milp(gap=gap, time_limit=time_limit), problem, candidates, **options)


def coordinate_descent(problem, candidates, gap=1e-3, **options) -> SearchResult:
    return _solve(CoordinateDescent(gap=gap), problem, candidates, **options)


def solve_auto(problem, candidates, time_limit=math.inf, **options) -> SearchResult:
    return _solve(Auto(time_limit=time_limit), problem, candidates, **options)


def solve_within_limit(problem, candidates, fall_back=True, **options) -> SearchResult | Infeasible:
    question = Question(problem, candidates, options_of(**options))
    return exact.solve_within_limit(question, Milp(), fall_back=fall_back)


def formulation_of(problem, candidates, prune_placements=False, **options) -> Formulation:
    return Formulation(
        problem, candidates, options_of(**options), prune_placements=prune_placements
    )
