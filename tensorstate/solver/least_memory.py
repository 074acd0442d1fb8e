"""Decisions with the least memory, and the error message when even these exceed the limit."""

from __future__ import annotations

import dataclasses
import time

from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.cost.result import Infeasible, SearchOptions, SearchResult
from tensorstate.problem.problem import Problem
from tensorstate.solver.base import CandidateStrategies, remaining_time
from tensorstate.solver.conflicts import crowded_groups
from tensorstate.solver.formulation import Formulation
from tensorstate.solver.preselection import solve_by_size

# Seconds and relative gap of the search for the least memory.
TIME_LIMIT_S = 60
GAP = 1e-2
# Decisions that take more memory than the program says, and are excluded one after another.
MAX_EXCLUDED = 20


def minimize_memory(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    prune_placements: bool = False,
) -> tuple[SearchResult | None, float]:
    """Decisions with approximately the least memory, if any are found in a minute.

    Args:
        options: the memory limit is ignored.

    Returns:
        The decisions, and a lower bound in bytes of the memory of all decisions.
    """
    start = time.perf_counter()
    all_tensors = float(sum(tensor.nbytes for tensor in problem.graph.tensors))
    # The program minimizes memory instead of its objective, so "sum" is as good as "max".
    loose = SearchOptions(recompute=options.recompute, memory_limit=2 * all_tensors)

    def build(candidates: CandidateStrategies) -> Formulation:
        formulation = Formulation(problem, candidates, loose, prune_placements=prune_placements)
        formulation.minimize_memory()
        return formulation

    until = start + TIME_LIMIT_S
    formulation, solution = solve_by_size(build, candidates, GAP, until, None)
    bound, least = formulation.nbytes(solution.bound), None
    for _ in range(MAX_EXCLUDED):
        if not len(solution.values):
            break
        found = formulation.result(solution, options)
        if least is None or found.cost.memory.peak < least.cost.memory.peak:
            least = found
        # Decisions may take more memory than the program says: see ``exact``.
        if bound >= (1 - GAP) * least.cost.memory.peak or time.perf_counter() > until:
            break
        crowded = crowded_groups(problem, found, least.cost.memory.peak - 1)
        if not formulation.exclude(solution, crowded):
            break
        solution = formulation.program.solve(gap=GAP, time_limit=remaining_time(until))
        if formulation.covers(candidates):
            bound = min(formulation.nbytes(solution.bound), least.cost.memory.peak)
    if least is None:
        return None, bound
    return dataclasses.replace(least, seconds=time.perf_counter() - start), bound


def infeasible_message(
    problem: Problem,
    candidates: CandidateStrategies,
    infeasible: Infeasible,
    options: SearchOptions,
) -> str:
    """Why no plan fits: the least memory that was found, and the largest tensors in it."""
    limit = options.memory_limit
    if limit is None:
        return "no consistent assignment of strategies exists; the pins may contradict each other"
    none = "no plan fits" if infeasible.proven else "no plan was found that fits"
    none = f"{none} into {_bytes(limit)} of a device's memory"
    least = infeasible.least_memory or minimize_memory(problem, candidates, options)[0]
    if least is None:
        return f"{none}: the minimum memory could not be determined within {TIME_LIMIT_S} s"
    memory = least.cost.memory
    largest = sorted(
        ((_persistent_bytes(problem, reshard), reshard) for reshard in least.cost.reshards),
        key=lambda pair: -pair[0],
    )[:3]
    tensors = problem.graph.tensors
    names = ", ".join(
        f"{tensors[reshard.tensors[0]].name} x {reshard.multiplicity}: {_bytes(nbytes)}"
        for nbytes, reshard in largest
    )
    return (
        f"{none}: the least is about "
        f"{_bytes(memory.peak)}, {_bytes(memory.peak - limit)} more. Inputs take "
        f"{_bytes(memory.inputs)}, saved tensors {_bytes(memory.saved + memory.loop_resident)}, "
        f"gradients {_bytes(memory.gradients)}; the largest are {names}"
    )


def _persistent_bytes(problem: Problem, reshard: ReshardPlan) -> int:
    """Bytes per device of an input, and of saved and loop-resident copies."""
    group = problem.tensor_groups[reshard.group]
    copies = [copy for copy in (reshard.saved, reshard.loop_resident) if copy is not None]
    input_bytes = problem.input_bytes(group, reshard.produced_placements) if group.is_input else 0
    return reshard.multiplicity * (
        input_bytes + sum(problem.local_bytes(group, copy) for copy in copies)
    )


def _bytes(nbytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"
