"""A plan, or two side by side, as an interactive page.

From the top: a sentence, the layers with pictures of their arrays, the dearest collectives with
their reasons, the step in time, and memory with the buffers at its peak. A click leads to tensors
and operators, and to the cost of any other strategy. The page around it, its style and its rules
come from ``jaxcoll.pages``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxcoll.pages import page as html_page
from tensorstate.cost.cost import SearchResult
from tensorstate.cost.memory import CATEGORIES, bytes_by_group
from tensorstate.cost.step_tasks import operator_names
from tensorstate.cost.timeline import Event, StepSchedule
from tensorstate.ir.placements import REPLICATED
from tensorstate.keeping import table
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.report.alternatives import Alternative, alternatives
from tensorstate.report.dearest import peak_buffers, sendings
from tensorstate.report.layers import Layer, Layers, Picture
from tensorstate.report.parallelism import parallelism_name, sentence
from tensorstate.report.text import common_pattern, format_placements, summary
from tensorstate.report.units import seconds, size

# A page stays below about 2 MB, which a browser opens at once.
MOST_CLASSES, MOST_EVENTS, MOST_POINTS = 1000, 8000, 1000
MOST_SENDINGS, MOST_BUFFERS, MOST_LAYERS = 10, 12, 200
_MOST_ALTERNATIVES = 5  # shown for a class
_MOST_ARRAYS = 24  # shown for a layer


class Shown(NamedTuple):
    """A plan on a page.

    Attributes:
        problem, result, memory_limit: the arguments of ``report.summary``.
        name: the name of the plan.
    """

    problem: Problem
    result: SearchResult
    memory_limit: float | None
    name: str


def page(title: str, *plans: Shown) -> str:
    """The page's HTML, with one plan or with several side by side."""
    notes: list[str] = []
    data = {"plans": [_plan(shown, notes) for shown in plans]}
    # The numbers of several plans stand in a table instead of tiles.
    facts = _facts(plans[0]) if len(plans) == 1 else {}
    return html_page("plan", title, facts, [*dict.fromkeys(notes)], data)


def _plan(shown: Shown, notes: list[str]) -> dict[str, Any]:
    """The data of a plan for the page's script."""
    problem, result, memory_limit, _ = shown
    cost, mesh = result.cost, problem.mesh
    timeline, layers = cost.timeline(memory_limit), Layers(problem, result)
    classes = _shown_classes(problem, result, notes)
    number = {class_id: i for i, class_id in enumerate(classes)}
    return {
        "name": shown.name,
        "sentence": sentence(problem, result.decisions, cost),
        "facts": _facts(shown),
        "summary": summary(problem, result, memory_limit),
        "axes": list(mesh.names),
        "sizes": list(mesh.sizes),
        "microbatches": problem.microbatches,
        "seconds": timeline.seconds,
        "limit": memory_limit if memory_limit and math.isfinite(memory_limit) else None,
        "layers": _layers(layers, number, notes),
        **_collectives(problem, result, layers, timeline, number),
        **_buffers(problem, result, layers, number),
        **_classes(problem, result, classes, layers),
        "memory": _memory(problem, result, notes),
        "events": _events(timeline, number, notes),
    }


def _facts(shown: Shown) -> dict[str, str]:
    """The numbers of a plan, by name."""
    problem, result, memory_limit, _ = shown
    cost, mesh = result.cost, problem.mesh
    timeline = cost.timeline(memory_limit)
    facts = {
        "parallelism": parallelism_name(problem, result.decisions, cost),
        "mesh": " x ".join(f"{n} {s}" for n, s in zip(mesh.names, mesh.sizes, strict=True)),
        "devices": f"{mesh.num_devices} x {problem.hardware.name}",
        "time of a step": seconds(timeline.seconds),
        "compute": seconds(cost.compute),
        "communication": seconds(cost.communication),
        "exposed communication": seconds(timeline.exposed_seconds),
        "collectives": f"{sum(cost.count_by_collective.values()):,}",
        "memory": size(cost.memory.peak),
        **({"on the host": size(cost.memory.host)} if cost.memory.host else {}),
        "gap": "no bound" if math.isinf(result.bound) else f"{100 * result.gap:.2g} %",
    }
    if problem.microbatches > 1:
        facts["microbatches"] = str(problem.microbatches)
    if (staged := problem.pipeline) is not None:
        facts["stages"] = f"{staged.stages} on {staged.axis}"
        facts["microbatches"] = str(staged.microbatches)
        facts["bubble"] = f"{100 * staged.bubble:.0f} %"
    return facts


# ---------------------------------------------------------------------- layers


def _layers(layers: Layers, number: Mapping[int, int], notes: list[str]) -> list[dict[str, Any]]:
    """The rows of layers, in the order of execution."""
    rows = layers.rows
    if len(rows) > MOST_LAYERS:
        notes.append(f"Of {len(rows):,} layers, the {MOST_LAYERS} that take longest are shown.")
        dearest = sorted(rows, key=lambda row: -row.compute - row.communication)[:MOST_LAYERS]
        names = {row.name for row in dearest}
        rows = [row for row in rows if row.name in names]
    return [_layer(row, number) for row in rows]


def _layer(row: Layer, number: Mapping[int, int]) -> dict[str, Any]:
    return {
        "name": row.name,
        "count": len(row.paths),
        "compute": row.compute,
        "communication": row.communication,
        "bytes": row.nbytes,
        "parameters": [_array(each, number) for each in row.parameters[:_MOST_ARRAYS]],
        "activations": [_array(each, number) for each in row.activations],
        "classes": [number[g] for g in row.classes if g in number],
    }


def _array(picture: Picture, number: Mapping[int, int]) -> dict[str, Any]:
    return {
        "name": picture.name,
        "short": picture.short,
        "shape": picture.shape,
        "cuts": picture.cuts,
        "partial": picture.partial,
        "spec": picture.spec,
        "bytes": picture.nbytes,
        "class": number.get(picture.class_id, -1),
    }


# ---------------------------------------------------------------------- what is dearest


def _collectives(
    problem: Problem,
    result: SearchResult,
    layers: Layers,
    timeline: StepSchedule,
    number: Mapping[int, int],
) -> dict[str, Any]:
    """The dearest collectives, and the sum of the others."""
    found = sendings(problem, result, layers, timeline)
    others = found[MOST_SENDINGS:]
    return {
        "collectives": [
            {
                "kind": each.kind,
                "axis": each.axis,
                "what": each.what,
                "why": each.why,
                "count": each.count,
                "bytes": each.nbytes,
                "seconds": each.seconds,
                "exposed": each.exposed,
                "class": number.get(each.class_id, -1),
                "reader": -1 if each.reader is None else number.get(each.reader, -1),
            }
            for each in found[:MOST_SENDINGS]
        ],
        "others": {
            "count": sum(each.count for each in others),
            "seconds": math.fsum(each.seconds for each in others),
        },
        "sent": result.cost.communication,
    }


def _buffers(
    problem: Problem, result: SearchResult, layers: Layers, number: Mapping[int, int]
) -> dict[str, Any]:
    """The largest buffers at the peak, and the sum of the others."""
    found = peak_buffers(problem, result, layers)
    others = found[MOST_BUFFERS:]
    return {
        "buffers": [
            {
                "what": each.what,
                "category": each.category,
                "bytes": each.nbytes,
                "class": number.get(each.class_id, -1),
            }
            for each in found[:MOST_BUFFERS]
        ],
        "smaller": {"count": len(others), "bytes": math.fsum(each.nbytes for each in others)},
        "peak": result.cost.memory.peak,
    }


# ---------------------------------------------------------------------- operators


def position(problem: Problem, node: int) -> int:
    """The program point at which a node has run; -1 for an input."""
    at = problem.liveness.at
    return max((at[m.operator] for m in problem.graph.nodes[node].members), default=-1)


def _shown_classes(problem: Problem, result: SearchResult, notes: list[str]) -> list[int]:
    """Node classes in the order of execution: all, or those with the most work."""
    classes, strategies = range(len(problem.graph.node_classes)), result.decisions.strategies
    if len(classes) > MOST_CLASSES:
        notes.append(
            f"Of {len(classes):,} kinds of operators and inputs, the {MOST_CLASSES:,} with the "
            "most work are shown."
        )
        classes = _by_work(problem, strategies, classes)[:MOST_CLASSES]
    return sorted(classes, key=lambda g: (position(problem, problem.node(g).index), g))


def _by_work(problem: Problem, strategies: Sequence[Strategy], classes: Iterable[int]) -> list[int]:
    """Node classes, those that take the most time first."""
    return sorted(
        classes, key=lambda g: -problem.multiplicity(g) * problem.seconds(g, strategies[g])
    )


def _classes(
    problem: Problem, result: SearchResult, shown: Sequence[int], layers: Layers
) -> dict[str, Any]:
    """The classes with their strategies, the tensors between them, and the reasons."""
    number = {class_id: i for i, class_id in enumerate(shown)}
    strategies = result.decisions.strategies
    texts = sorted({strategy_text(problem, strategies[g]) for g in shown})
    # If a plan has too many strategies to price them all, those with the most work are explained.
    priced = alternatives(problem, result, _by_work(problem, strategies, shown))
    return {
        "kinds": texts,
        "classes": [
            {
                "layer": layers.of_node[problem.node(g).index],
                **_class(problem, result, g, texts, priced.get(g)),
            }
            for g in shown
        ],
        "tensors": [
            [number[group.class_id], number[consumer.class_id], size(group.nbytes)]
            for group in problem.tensor_groups
            for consumer in group.consumer_classes
            if group.class_id in number and consumer.class_id in number
        ],
    }


def _class(
    problem: Problem,
    result: SearchResult,
    class_id: int,
    texts: Sequence[str],
    priced: Sequence[Alternative] | None,
) -> dict[str, Any]:
    node, strategy = problem.node(class_id), result.decisions.strategies[class_id]
    times, nodes = problem.multiplicity(class_id), problem.graph.node_classes[class_id]
    repeats = problem.num_repeats(class_id)
    facts = [
        f"{times} of them" if times > 1 else "",
        f"in each of {repeats} microbatches" if repeats > 1 else "",
    ]
    for keeping in table.optional():
        count = sum(result.cost.kept[node] == keeping for node in nodes)
        facts.append(f"{count} {keeping.said}" if count else "")
    described = {
        "kind": texts.index(strategy_text(problem, strategy)),
        "sharded": _sharded_labels(problem, strategy, node.sizes),
        "facts": [fact for fact in facts if fact],
        "why": _why(problem, result, class_id, priced),
    }
    if node.tensor is not None:
        tensor = problem.traced.tensors[node.tensor]
        names = [
            problem.graph.tensors[tensor_of].name
            for n in nodes
            if (tensor_of := problem.graph.nodes[n].tensor) is not None
        ]
        local = size(tensor.nbytes // problem.mesh.num_shards(strategy))
        return described | {
            "phase": "inputs", "name": common_pattern(names), "source": tensor.role,
            "work": f"{local} per device", "placed": format_placements(problem, tensor, strategy),
        }  # fmt: skip
    operators = [problem.graph.operators[m.operator] for m in node.members]
    flops = sum(operator.flops for operator in operators) // problem.mesh.num_shards(strategy)
    traffic = size(problem.memory_traffic(class_id, strategy))
    return described | {
        "phase": node.phase, "name": operator_names(problem, class_id),
        "source": str(operators[0].source), "placed": "",
        "work": f"{seconds(problem.seconds(class_id, strategy))}"
        + (f", {flops:.3g} flop" if node.kind == "einsum" else f", {traffic}"),
    }  # fmt: skip


def _why(
    problem: Problem, result: SearchResult, class_id: int, priced: Sequence[Alternative] | None
) -> list[str]:
    """Sentences on what other strategies would cost."""
    if priced is None:
        return ["Other strategies were not priced: the plan has too many."]
    if not priced:
        return ["No other strategy is possible here."]
    whole, sizes = result.cost.serial_seconds, problem.node(class_id).sizes
    lines = []
    for each in priced[:_MOST_ALTERNATIVES]:
        text = _sharded_labels(problem, each.strategy, sizes)
        change = 100 * each.seconds / whole if whole else 0.0
        word = "as fast" if abs(change) < 5e-3 else f"{change:+.3g} % of the step"
        lines.append(f"{text}: {word} ({'-' if each.seconds < 0 else '+'}"
                     f"{seconds(abs(each.seconds))})")  # fmt: skip
    left = len(priced) - _MOST_ALTERNATIVES
    return lines + ([f"and {left} slower ones"] if left > 0 else [])


def strategy_text(problem: Problem, strategy: Strategy) -> str:
    """A strategy in words, per mesh axis."""
    names = problem.mesh.names
    parts = []
    for name, placement in zip(names, strategy, strict=True):
        if placement >= 0:
            parts.append(f"{name}: sharded")
        elif placement < REPLICATED:
            parts.append(f"{name}: partial")
    return ", ".join(parts) or "replicated"


def _sharded_labels(problem: Problem, strategy: Strategy, sizes: Sequence[int]) -> str:
    """The label that each mesh axis shards, by its size."""
    parts = []
    for name, placement in zip(problem.mesh.names, strategy, strict=True):
        if placement >= 0:
            parts.append(f"{name} shards {sizes[placement]}")
        elif placement < REPLICATED:
            parts.append(f"partial over {name}")
    return ", ".join(parts) or "replicated"


# ---------------------------------------------------------------------- memory and time


def _memory(problem: Problem, result: SearchResult, notes: list[str]) -> dict[str, Any]:
    """Bytes by category at every program point, or the most of neighbouring points."""
    points = problem.liveness.program_points
    nbytes, inputs, cost = np.zeros((len(CATEGORIES), len(points))), 0, result.cost
    for _, own, others in bytes_by_group(problem, result.decisions, cost.reshards, cost.kept):
        inputs += own
        nbytes += others
    # Each part of neighbouring points is shown by its highest, so that the peak stays on the page.
    chosen = np.arange(len(points))
    if len(points) > MOST_POINTS:
        notes.append(f"Memory stands at {MOST_POINTS:,} of {len(points):,} points, with its peaks.")
        total = nbytes.sum(axis=0)
        chosen = np.array(
            [part[total[part].argmax()] for part in np.array_split(chosen, MOST_POINTS)]
        )
    phases = [point >= problem.liveness.forward_end for point in points[chosen].tolist()]
    return {
        "names": ["inputs", *CATEGORIES],
        "bytes": [[round(inputs)] * len(chosen), *np.round(nbytes[:, chosen]).tolist()],
        "forward": phases.index(True) if True in phases else len(phases),
    }


def _events(timeline: StepSchedule, number: Mapping[int, int], notes: list[str]) -> list[list]:
    """Events as [start, seconds, lane, name, class]; if there are many, the longest of them."""
    # In microseconds, to seven digits from the start of the step.
    events: Sequence[Event] = timeline.events
    if len(events) > MOST_EVENTS:
        whole = math.fsum(event.seconds for event in events)
        longest = sorted(events, key=lambda event: -event.seconds)[:MOST_EVENTS]
        share = 100 * math.fsum(event.seconds for event in longest) / whole
        notes.append(
            f"Of {len(events):,} events of a step, the {MOST_EVENTS:,} longest are shown, "
            f"{share:.1f} % of its time."
        )
        events = sorted(longest, key=lambda event: event.start)
    return [
        [float(f"{1e6 * e.start:.7g}"), float(f"{1e6 * e.seconds:.4g}"), e.axis + 1, e.name,
         number.get(e.class_id, -1)]
        for e in events
    ]  # fmt: skip
