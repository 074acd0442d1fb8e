"""Where the time and memory of a plan go, dearest first: collectives, and buffers at the peak.

Collectives and buffers of identical layers are one entry. The seconds of all entries add up to the
communication of the plan, and the bytes to its peak.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tensorstate.cost.cost import SearchResult
from tensorstate.cost.memory import bytes_at_peak, is_gradient
from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.cost.step_tasks import operator_names
from tensorstate.cost.timeline import StepSchedule
from tensorstate.problem.problem import Problem
from tensorstate.problem.reshard import ReshardStep
from tensorstate.problem.tensor_groups import ConsumerClass, TensorGroup
from tensorstate.report.layers import Layers
from tensorstate.report.text import format_placements

MOST_READERS = 2  # of a collective that are named
# What is sent within operators, and why.
AROUND = "keys and values", "no device has all keys: they go round block by block"
EXCHANGED = "rows", "rows go to the devices of their experts, or to those that look them up"


@dataclasses.dataclass
class Sending:
    """A collective, or those of identical layers.

    Attributes:
        kind: the kind of collective.
        axis: number of the mesh axis.
        what: the tensor that is sent.
        layer: the row of the layer it belongs to.
        why: a sentence with the reason.
        class_id: number of the node class that produces what is sent.
        reader: number of the node class that reads it first; ``None`` for the caller.
        count, nbytes, seconds: totals for all of them in a step; bytes of the larger buffer per
            device.
        exposed: seconds that computation waits for them. Collectives of one tensor wait for each
            other, so they share its exposed seconds in proportion to their own.
    """

    kind: str
    axis: int
    what: str
    layer: str
    why: str
    class_id: int
    reader: int | None
    count: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    exposed: float = 0.0


def sendings(
    problem: Problem, result: SearchResult, layers: Layers, timeline: StepSchedule
) -> list[Sending]:
    """All collectives of a step, the dearest first."""
    found: dict[object, Sending] = {}
    spent: dict[int, float] = defaultdict(float)
    waited: dict[int, float] = defaultdict(float)
    for (tensor, _), seconds in timeline.exposed_of.items():
        waited[tensor] += seconds
    parts: list[tuple[Sending, int, float]] = []
    for reshard in result.cost.reshards:
        group = problem.tensor_groups[reshard.group]
        for when, step, count in _steps(reshard):
            seconds = count * problem.reshard_graph(group).seconds(step)
            readers = _readers(problem, result, group, step, when)
            why = _why(problem, group, step, when, readers)
            for tensor in reshard.tensors:
                what, layer = _what(problem, group, tensor, layers), layers.of_tensor[tensor]
                key = step.kind, step.axis, what, layer, why
                sending = found.setdefault(key, Sending(*key, group.class_id, _class_of(readers)))
                sending.count += count
                sending.nbytes += count * step.nbytes
                sending.seconds += seconds
                spent[tensor] += seconds
                parts.append((sending, tensor, seconds))
    for sending, tensor, seconds in parts:
        if spent[tensor]:
            sending.exposed += waited[tensor] * seconds / spent[tensor]
    rounds = _rounds(problem, result, layers)
    return sorted([*found.values(), *rounds], key=lambda each: -each.seconds)


def _steps(reshard: ReshardPlan) -> Iterator[tuple[str, ReshardStep, int]]:
    """The collectives of a plan with the pass that sends them, and their number per tensor."""
    for when, tree, count in (
        ("before the microbatches", reshard.before_loop, 1),
        ("in the forward pass", reshard.in_forward, reshard.num_repeats),
        ("after the forward pass", reshard.after_forward, reshard.num_repeats),
        ("after the microbatches", reshard.after_loop, 1),
        ("between stages", reshard.sent, reshard.num_sends),
    ):
        for step in tree.steps:
            if step.kind != "slice":  # a slice sends nothing
                yield when, step, count


def _rounds(problem: Problem, result: SearchResult, layers: Layers) -> Iterator[Sending]:
    """Sends within operators: keys and values that go round, and rows that go to experts."""
    again, strategies = result.cost.kept.rerun, result.decisions.strategies
    for class_id, nodes in enumerate(problem.graph.node_classes):
        for send in problem.inner_sends(class_id, strategies[class_id]):
            runs = len(nodes) + sum(node in again for node in nodes)
            what, why = AROUND if send.is_around else EXCHANGED
            yield Sending(
                send.kind, send.axis, what, layers.of_node[nodes[0]], why,
                class_id, class_id, runs * send.times, runs * send.times * send.nbytes,
                runs * problem.inner_send_seconds(send),
            )  # fmt: skip


def _readers(
    problem: Problem, result: SearchResult, group: TensorGroup, step: ReshardStep, when: str
) -> list[ConsumerClass]:
    """Who reads a tensor after a step; if nobody reads it in that form, who reads it at all."""
    strategies, ends, on_the_way = result.decisions.strategies, [], []
    for consumer in group.consumer_classes:
        if group.in_forward and consumer.after_forward and when == "in the forward pass":
            continue
        if consumer.class_id is None:
            continue
        placements = problem.required_placements(consumer, strategies[consumer.class_id])
        (ends if placements == step.target else on_the_way).append(consumer)
    return ends or on_the_way


def _class_of(readers: Sequence[ConsumerClass]) -> int | None:
    return readers[0].class_id if readers else None


def _why(
    problem: Problem,
    group: TensorGroup,
    step: ReshardStep,
    when: str,
    readers: Sequence[ConsumerClass],
) -> str:
    """A sentence: the tensor's placements there, who reads it, and in which placements."""
    tensor = problem.graph.tensors[group.tensors[0]]
    source, target = (
        format_placements(problem, tensor, p).removeprefix("replicated, ")  # for open sums
        for p in (step.source, step.target)
    )
    named = list(dict.fromkeys(_reader(problem, each) for each in readers))
    more = f" and {len(named) - MOST_READERS} more" if len(named) > MOST_READERS else ""
    by = " and ".join(named[:MOST_READERS]) + more if named else "the caller"
    there = "stored" if group.is_input else f"left by {operator_names(problem, group.class_id)}"
    return f"{there} as {source}, needed {when} as {target} by {by}"


def _reader(problem: Problem, consumer: ConsumerClass) -> str:
    node = problem.node(consumer.class_id or 0)
    if node.tensor is not None:
        return "its new value"
    source = problem.graph.operators[node.members[0].operator].source
    return f"{operator_names(problem, node.class_id)} ({source.line.rpartition('/')[2]})"


def _what(problem: Problem, group: TensorGroup, number: int, layers: Layers) -> str:
    """The name of a tensor, with stars for the numbers of layers."""
    tensor = problem.graph.tensors[number]
    if tensor.producer is None:
        return re.sub(r"\d+", "*", tensor.name)
    if is_gradient(problem, group):
        return f"gradients in {layers.of_tensor[number]}"
    return f"{problem.graph.operators[tensor.producer].primitive} in {layers.of_tensor[number]}"


# ---------------------------------------------------------------------- memory


@dataclasses.dataclass
class Buffer:
    """A buffer that is live at the peak, or those of identical layers.

    Attributes:
        what, layer: the same as in ``Sending``.
        category: "inputs", or one of ``cost.memory.CATEGORIES``.
        nbytes: bytes per device.
        class_id: number of the node class that produces it.
    """

    what: str
    layer: str
    category: str
    nbytes: float
    class_id: int


def peak_buffers(problem: Problem, result: SearchResult, layers: Layers) -> list[Buffer]:
    """The buffers that are live at the peak, the largest first."""
    cost, graph = result.cost, problem.graph
    found: dict[object, Buffer] = {}
    at_peak = bytes_at_peak(problem, result.decisions, cost.reshards, cost.kept)
    for number, own, others in at_peak:
        group = problem.tensor_groups[number]
        # Some tensors of a group may be live and others not: their names say less than the row's
        # name.
        tensor = graph.tensors[group.tensors[0]]
        what, layer = _what(problem, group, tensor.index, layers), layers.of_tensor[tensor.index]
        for category, live in {"inputs": own, **others}.items():
            if live > 0:
                key = what, layer, category
                buffer = found.setdefault(key, Buffer(*key, 0.0, group.class_id))
                buffer.nbytes += live
    return sorted(found.values(), key=lambda each: -each.nbytes)
