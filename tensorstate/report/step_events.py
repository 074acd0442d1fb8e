"""A planned step as events one after another: what computes, and what each mesh axis carries."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from tensorstate.cost.cost import SearchResult
from tensorstate.cost.reshard_plan import ReshardPlan, ReshardTree
from tensorstate.problem.problem import Problem


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that takes time in a step; all repeats in a microbatch loop are one event.

    Attributes:
        start, seconds: from the start of the step, without any overlap.
        axis: the mesh axis that a collective runs along; -1 for compute.
        name: the collective, or the operators.
        class_id: the node class that computes, or produces what is resharded.
    """

    start: float
    seconds: float
    axis: int
    name: str
    class_id: int


def step_events(problem: Problem, result: SearchResult) -> list[Event]:
    """The events of a step in an order of execution; their seconds add up to the step's.

    A collective stands where its result is needed first: behind the producer in the forward pass,
    before the first reader after it, before the loop, or after it.
    """
    placed = sorted(
        [*_computed(problem, result), *_resharded(problem, result)],
        key=lambda each: (each[0], each[1].axis >= 0, each[1].class_id, each[1].axis),
    )
    events, now = [], 0.0
    for _, event in placed:
        events.append(dataclasses.replace(event, start=now))
        now += event.seconds
    return events


def position(problem: Problem, node: int) -> int:
    """The program point at which a node has run; -1 for an input."""
    at = problem.liveness.at
    return max((at[m.operator] for m in problem.graph.nodes[node].members), default=-1)


def operator_names(problem: Problem, class_id: int) -> str:
    """The operators of a node class, each once."""
    members = problem.node(class_id).members
    names = (problem.graph.operators[member.operator].primitive for member in members)
    return ", ".join(dict.fromkeys(names))


def _computed(problem: Problem, result: SearchResult) -> Iterator[tuple[float, Event]]:
    for class_id, nodes in enumerate(problem.graph.node_classes):
        seconds = problem.seconds(class_id, result.decisions.strategies[class_id])
        if not problem.node(class_id).members:
            continue
        names = operator_names(problem, class_id)
        for node in nodes:
            event = Event(0.0, seconds, -1, names, class_id)
            yield position(problem, node), event
            if node in result.cost.recomputed_nodes:
                again = min(
                    problem.liveness.recompute_at[m.operator]
                    for m in problem.graph.nodes[node].members
                )
                yield again - 0.5, dataclasses.replace(event, name=f"{names} (recomputed)")


def _resharded(problem: Problem, result: SearchResult) -> Iterator[tuple[float, Event]]:
    for reshard in result.cost.reshards:
        group = problem.tensor_groups[reshard.group]
        for tensor in reshard.tensors:
            member = group.tensors.index(tensor)
            produced = position(problem, group.producers[member])
            readers = sorted(position(problem, n) for of in group.consumers[member] for n in of)
            later = [p for p in readers if p >= problem.liveness.forward_end]
            first = readers[0] - 0.25 if group.is_input and readers else produced + 0.25
            behind = later[0] - 0.25 if later else produced + 0.25
            passes = (
                (-1.0, reshard.before_loop, 1),
                (first, reshard.in_forward, reshard.num_repeats),
                (max(behind, produced + 0.25), reshard.after_forward, reshard.num_repeats),
                (problem.liveness.loop_end - 0.25, reshard.after_loop, 1),
            )
            for at, tree, repeats in passes:
                for event in _steps(problem, reshard, tree, repeats):
                    yield at, event


def _steps(
    problem: Problem, reshard: ReshardPlan, tree: ReshardTree, repeats: int
) -> Iterable[Event]:
    group = problem.tensor_groups[reshard.group]
    graph = problem.reshard_graph(group)
    for step in tree.steps:
        if step.kind != "slice" or graph.seconds(step):
            yield Event(0.0, repeats * graph.seconds(step), step.axis, step.kind, group.class_id)
