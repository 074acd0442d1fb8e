"""Limits into which no plan fits: those known before a search, and reasons after a search.

Before a search there are two lower bounds of the memory of all plans, computed in milliseconds: the
arguments alone, each as small as its strategies allow; and at every program point, in addition to
the arguments, the tensors that are live for any decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from tensorstate.cost.cost import Infeasible, SearchOptions, SearchResult
from tensorstate.cost.memory import bytes_at_peak, least_bytes_by_point
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MOST_DEVICES
from tensorstate.keeping import table
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.solver.base import CandidateStrategies

# Number of tensors that are named, if there is room; characters of a refusal, and the least of a
# name.
LARGEST, MOST_CHARACTERS, LEAST_OF_A_NAME = 3, 300, 16


def refuse_below_least(
    problem: Problem, candidates: CandidateStrategies, options: SearchOptions
) -> None:
    """Refuse a limit that arguments, and tensors that must be live with them, exceed.

    Raises:
        PlanError: it gives a lower bound of the memory, the largest tensors, and options that fit.
    """
    limit = options.memory_limit
    if limit is None:
        return
    inputs, beside = _least_bytes(problem, candidates, options)
    arguments = sum(inputs.values())
    devices = problem.mesh.num_devices
    if arguments > limit:
        more = math.ceil(devices * arguments / limit)
        remedy = f", or {more} devices or more" if _may_fit_on(problem, more, limit) else ""
        free = sum(
            _input_bytes(problem, group, problem.strategies[group.class_id].all)
            for group in problem.tensor_groups
            if group.is_input
        )
        if free < arguments:  # more devices do not shard inputs that pins keep whole
            remedy = f", or without pin= and forbid= the arguments take {bytes_text(free)}"
        before = (
            f"no plan fits into {bytes_text(limit)} a device: the least is about "
            f"{bytes_text(arguments)} for arguments alone (parameters, optimizer state and the "
            f"batch), sharded as far as sizes and pins allow; the largest are "
        )
        after = f". A limit above {bytes_text(arguments)} may fit{remedy}"
        raise PlanError(_with_largest(problem, before, inputs.items(), after))
    live = _sum_by_point(problem, beside)
    peak = int(live.argmax())
    least = arguments + math.ceil(live[peak])
    if least <= limit:
        return
    others = " or ".join(str(keeping) for keeping in options.keepings if keeping != table.DEFAULT)
    unless = f"what is not {others}" if others else "what the backward pass reads"
    before = (
        f"no plan fits into {bytes_text(limit)} a device: at least {bytes_text(least)} are live at "
        f"once. Arguments take {bytes_text(arguments)}, results and {unless} "
        f"{bytes_text(least - arguments)}, sharded as far as possible; the largest are "
    )
    live_at_peak = ((number, int(at[peak])) for number, at in beside.items())
    raise PlanError(_with_largest(problem, before, live_at_peak, less(problem, options)))


def _may_fit_on(problem: Problem, devices: int, limit: float) -> bool:
    """Whether inputs fit on a number of devices, each of which has one element of each at least."""
    inputs = (problem.graph.tensors[tensor] for tensor in problem.graph.inputs)
    each = (max(t.nbytes / devices, t.nbytes / max(1, math.prod(t.sizes))) for t in inputs)
    return devices <= MOST_DEVICES and math.fsum(each) <= limit


def _least_bytes(
    problem: Problem, candidates: CandidateStrategies, options: SearchOptions
) -> tuple[dict[int, int], dict[int, np.ndarray]]:
    """The least bytes of inputs by group, and beside them at every program point.

    Each group is in its own best placements, which together need not be a plan.
    """
    # Arguments are live throughout, so their sum is a bound by itself, for any order of operators.
    # The least bytes of other tensors are added to it point by point.
    inputs, beside = dict[int, int](), dict[int, np.ndarray]()
    for number, group in enumerate(problem.tensor_groups):
        strategies = candidates[group.class_id]
        if group.is_input:
            inputs[number] = _input_bytes(problem, group, strategies)
        beside[number] = least_bytes_by_point(problem, number, strategies, options.keepings)
    return inputs, beside


def least_live(problem: Problem, candidates: CandidateStrategies, options: SearchOptions) -> float:
    """A lower bound of the bytes of all plans: inputs, and the tensors live beside them."""
    inputs, beside = _least_bytes(problem, candidates, options)
    return sum(inputs.values()) + float(_sum_by_point(problem, beside).max())


def _sum_by_point(problem: Problem, beside: Mapping[int, np.ndarray]) -> np.ndarray:
    return sum(beside.values(), start=np.zeros(len(problem.liveness.program_points)))


def _input_bytes(problem: Problem, group: TensorGroup, strategies: Iterable[Strategy]) -> int:
    """The fewest bytes of the inputs of a group under some strategies."""
    placements = {problem.produced_placements(group, strategy) for strategy in strategies}
    return group.multiplicity * min(problem.input_bytes(group, each) for each in placements)


def _with_largest(
    problem: Problem, before: str, nbytes: Iterable[tuple[int, int]], after: str
) -> str:
    """A refusal with the largest of some tensor groups and their bytes, as many as it has room for.

    Of a long path the end says most.
    """
    room, said = MOST_CHARACTERS - len(before) - len(after), ""
    for number, each in sorted(nbytes, key=lambda pair: -pair[1])[:LARGEST]:
        group, size = problem.tensor_groups[number], bytes_text(each)
        name = named(problem, group.tensors[0], group.multiplicity)
        if not said:
            most = max(room - len(size) - 2, LEAST_OF_A_NAME)
            said = f"{name if len(name) <= most else f'...{name[3 - most :]}'}: {size}"
        elif len(said) + len(name) + len(size) + 4 <= room:
            said += f", {name}: {size}"
    return f"{before}{said}{after}"


def infeasible_message(
    problem: Problem,
    candidates: CandidateStrategies,
    options: SearchOptions,
    infeasible: Infeasible,
    free: SearchResult | None = None,
) -> str:
    """The reason why no plan fits: the least memory that was found, and its largest tensors.

    Args:
        problem, candidates, options: those of the search.
        infeasible: the result of a search.
        free: the best plan without a limit, mentioned if the least memory is unknown.
    """
    limit = options.memory_limit
    if limit is None and not infeasible.proven:
        return "no plan was found in time; allow more time"
    if limit is None:
        return "no consistent assignment of strategies exists; the pins may contradict each other"
    none = "no plan fits" if infeasible.proven else "no plan was found that fits"
    none = f"{none} into {bytes_text(limit)} a device"
    if infeasible.seconds is not None and not infeasible.proven:
        none = f"{none} in {max(1, round(infeasible.seconds))} s"
    remedies = less(problem, options, may_find=not infeasible.proven)
    least, nbytes = infeasible.least_memory, infeasible.least_bytes
    if least is None:
        bound = -math.inf if nbytes is None else nbytes
        known = f", at least {bytes_text(bound)}" if limit < bound < math.inf else ""
        peak = "" if free is None else bytes_text(free.cost.memory.peak)
        other = peak and f". Without a limit a plan takes {peak}"
        return f"{none}: the minimum memory could not be determined in time{known}{other}{remedies}"
    memory = least.cost.memory
    if memory.fits(limit):
        return f"{none} in time, but one takes {bytes_text(memory.peak)}: allow more time"

    # The list has everything that is live at the peak, so its sum is the peak.
    at_peak = bytes_at_peak(problem, least.decisions, least.cost.reshards, least.cost.kept)
    nbytes_of_groups = ((n, round(own + sum(of.values()))) for n, own, of in at_peak)
    if infeasible.proven:
        known = (
            f"the least is about {bytes_text(memory.peak)} (inputs {bytes_text(memory.inputs)}, "
            f"saved {bytes_text(memory.saved + memory.loop_resident)}, gradients "
            f"{bytes_text(memory.gradients)}, temporaries {bytes_text(memory.temporaries)})"
        )
    else:
        live = least_live(problem, candidates, options)
        known = (
            f"at least {bytes_text(max(live, nbytes or 0.0))} are needed, and the least that was "
            f"found is about {bytes_text(memory.peak)}"
        )
    before = f"{none}: {known}; largest at the peak are "
    return _with_largest(problem, before, nbytes_of_groups, remedies)


def named(problem: Problem, tensor: int, multiplicity: int) -> str:
    """A tensor in the model's names, and the number of such tensors."""
    name = described(problem.graph, tensor)
    return f"{name} x {multiplicity}" if multiplicity > 1 else name


def less(problem: Problem, options: SearchOptions, may_find: bool = False) -> str:
    """What takes less memory, and the search was not given; more time, if it may find a plan."""
    others = [
        f"{keeping.option}=True"
        for keeping in table.optional()
        if keeping not in options.keepings and not keeping.lacks(problem.hardware)
    ]
    others += ["microbatches="] if problem.microbatches == 1 else ["more microbatches"]
    others += ["more devices", "a longer time_limit="] if may_find else ["more devices"]
    return f". Try {', '.join(others[:-1])} or {others[-1]}"


def bytes_text(nbytes: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


# ---------------------------------------------------------------------- names of tensors


def described(graph: Graph, tensor: int) -> str:
    """A tensor in the model's names; a result is named by the nearest input that it comes from.

    A gradient is named after the parameter that it updates; another result after the nearest
    parameter, or else argument, that it is computed from: "dot_general after params/up".
    """
    found = graph.tensors[tensor]
    if found.producer is None:
        return found.name
    updated = _updated_input(graph, tensor) if found.role == "gradient" else None
    if updated is not None:
        return f"gradient of {updated}"
    producer = graph.operators[found.producer]
    what = (
        f"gradient at {producer.primitive}" if producer.phase == "backward" else producer.primitive
    )
    nearest = _nearest_input(graph, tensor)
    return what if nearest is None else f"{what} after {nearest}"


def _updated_input(graph: Graph, tensor: int) -> str | None:
    """The input whose new value is computed from a tensor by the fewest operators."""
    updates = {
        output.view.tensor: graph.tensors[graph.inputs[output.updates]]
        for output in graph.outputs
        if output.updates is not None
    }
    # Breadth first, so that the first match is the nearest one.
    pending, seen = [tensor], {tensor}
    for current in pending:  # the list grows while it is read
        input_tensor = updates.get(current)
        if input_tensor is not None and input_tensor.role == "parameter":
            return input_tensor.name
        for consumer in graph.tensors[current].consumers:
            for use in graph.operators[consumer.operator].results:
                if use.tensor not in seen:
                    seen.add(use.tensor)
                    pending.append(use.tensor)
    return None


def _nearest_input(graph: Graph, tensor: int) -> str | None:
    """The parameter, or else the argument, from which the fewest operators lead to a tensor."""
    pending, seen, other = [tensor], {tensor}, None
    for current in pending:
        found = graph.tensors[current]
        if found.producer is None:
            if found.role == "parameter":
                return found.name
            other = other or (found.name if found.role == "input" and found.sizes else None)
            continue
        for use in graph.operators[found.producer].operands:
            if use.tensor not in seen:
                seen.add(use.tensor)
                pending.append(use.tensor)
    return other
