"""A saved plan on a step that has changed: new operators are searched, the others keep theirs.

A training script gets another metric, a renamed argument, another batch or one more layer. Its
arguments keep the shardings of those with their names, or of other layers; its operators are
aligned with those of the plan, as lines of two texts are, and keep their strategies. What no
operator of the plan stands for is searched, and so the search takes a part of the first one's time.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.errors import PlanError
from tensorstate.export.plan_file import PlanFile
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph
from tensorstate.plan import Plan
from tensorstate.problem.constraints import from_partition_spec
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.problem.untying import Spec
from tensorstate.solver.base import CandidateStrategies
from tensorstate.step_search import search_narrowed

# Below this part of its operators a step is another one, not one that was changed.
LEAST_COMMON = 0.5
# Pairs of operators that are compared at most, between the first and the last that differ: a
# millisecond for a thousand.
MOST_PAIRS = 10_000_000


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A plan for a changed step.

    Attributes:
        plan: its bound is unknown, since most of it was not searched.
        searched: the number of operators that were searched.
    """

    plan: Plan
    searched: int


def adapt(
    content: PlanFile, graph: Graph, network: CollectiveCostModel, hardware: Hardware, why: str
) -> Adapted:
    """The plan of a file on a step that has changed.

    Args:
        content: the file.
        graph: the step, traced with the options of the planned one.
        why: the first difference.

    Raises:
        PlanError: a step with less than half of the plan's operators; or as for ``search``, also
            without what the plan fixes beside the shardings of arguments.
    """
    pairs = _aligned(_kinds(content.operators), _kinds(graph.operators))
    if len(pairs) < LEAST_COMMON * max(len(graph.operators), len(content.operators)):
        raise PlanError(
            f"the plan was made for another step: {why}; only {len(pairs)} of "
            f"{len(graph.operators)} operators are the plan's: search again"
        )
    renamed = _renamed(content, graph)
    free = set[int]()

    def narrow(problem: Problem, candidates: CandidateStrategies) -> CandidateStrategies:
        planned = _planned(content, problem.graph, pairs)
        kept = []
        for class_id, strategies in enumerate(candidates):
            own = tuple(s for s in strategies if s in planned.get(class_id, ()))
            kept.append(own or strategies)
            if not own:
                nodes = problem.graph.node_classes[class_id]
                free.update(m.operator for n in nodes for m in problem.graph.nodes[n].members)
        return tuple(kept)

    batch = content.batch and renamed.get(content.batch, content.batch)
    pins = _pins(content, graph, network, hardware, renamed)
    asked = {
        "network": network,
        "hardware": hardware,
        "options": content.options,
        "counts": content.microbatches,
        "batch": batch,
        "stages": content.stages,
        "schedule": None if content.stages is None else content.schedule,
    }
    try:
        plan = search_narrowed(graph, pins, narrow, **asked)
    except PlanError:  # a memory limit, mostly, which a larger batch exceeds as it was planned
        plan = search_narrowed(graph, pins, None, **asked)
        free = {*range(len(graph.operators))}
    method = f"{plan.result.method}, {len(free)} of {len(graph.operators)} operators searched"
    result = dataclasses.replace(plan.result, method=method, bound=-math.inf)
    return Adapted(dataclasses.replace(plan, result=result), len(free))


# ---------------------------------------------------------------------- arguments


def _renamed(content: PlanFile, graph: Graph) -> dict[str, str]:
    """The names of the plan's arguments in the step, if all arguments keep their places."""
    names = [graph.tensors[index].name for index in graph.inputs]
    planned = [*dict.fromkeys(leaf.name.partition("/")[0] for leaf in content.inputs)]
    given = [*dict.fromkeys(name.partition("/")[0] for name in names)]
    return dict(zip(planned, given, strict=True)) if len(planned) == len(given) else {}


def _pins(
    content: PlanFile,
    graph: Graph,
    network: CollectiveCostModel,
    hardware: Hardware,
    renamed: dict[str, str],
) -> dict[str, Spec]:
    """The shardings of arguments by name: the plan's own, or those of the same in another layer."""
    by_name: dict[str, Spec] = {}
    by_pattern: dict[str, Counter[Spec]] = defaultdict(Counter)
    for leaf in content.inputs:
        if leaf.spec is None:
            continue
        first, slash, rest = leaf.name.partition("/")
        name = renamed.get(first, first) + slash + rest
        by_name[name] = tuple(leaf.spec)
        by_pattern[_pattern(name)][tuple(leaf.spec)] += 1
    problem = Problem(graph, network, hardware)
    pins = {}
    for index in graph.inputs:
        tensor = graph.tensors[index]
        like = by_pattern.get(_pattern(tensor.name))
        spec = by_name.get(tensor.name, like.most_common(1)[0][0] if like else None)
        if spec is None:
            continue
        try:
            from_partition_spec(problem, tensor, spec)
        except PlanError:  # of another size or rank now
            continue
        pins[tensor.name] = spec
    return pins


def _pattern(name: str) -> str:
    return re.sub(r"(?<=/)\d+(?=/|$)", "*", name)


# ---------------------------------------------------------------------- operators


def _kinds(operators: Sequence) -> list[tuple[str, str, int]]:
    """Primitive, phase and number of labels: the same where only sizes change."""
    return [(o.primitive, o.phase, len(o.sizes)) for o in operators]


def _aligned(planned: Sequence, given: Sequence) -> list[tuple[int, int]]:
    """Pairs of equal operators in the order of both lists, the planned one's number first."""
    short = min(len(planned), len(given))
    start = next((k for k in range(short) if planned[k] != given[k]), short)
    rest = short - start
    end = next((k for k in range(rest) if planned[-1 - k] != given[-1 - k]), rest)
    a, b = planned[start : len(planned) - end], given[start : len(given) - end]
    pairs = [(k, k) for k in range(start)]
    if len(a) * len(b) <= MOST_PAIRS:
        blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        pairs += [(start + i + k, start + j + k) for i, j, size in blocks for k in range(size)]
    return pairs + [(len(planned) - k, len(given) - k) for k in range(end, 0, -1)]


def _planned(
    content: PlanFile, graph: Graph, pairs: Sequence[tuple[int, int]]
) -> dict[int, set[Strategy]]:
    """The strategies that the plan has for the operators of each class."""
    class_of = {m.operator: node.class_id for node in graph.nodes for m in node.members}
    found: dict[int, set[Strategy]] = defaultdict(set)
    for planned, given in _of_equal_labels(content, graph, pairs):
        strategy = content.decisions.strategies[content.operators[planned].node_class]
        found[class_of[given]].add(strategy)
    return found


def _of_equal_labels(
    content: PlanFile, graph: Graph, pairs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Pairs of the first operators of their nodes, by whose labels strategies are.

    A class that is not the file's, by which a file that was edited is known, is left out.
    """
    first = {node.members[0].operator for node in graph.nodes if node.members}
    classes = len(content.decisions.strategies)
    for planned, given in pairs:
        if given in first and content.operators[planned].node_class < classes:
            yield planned, given
