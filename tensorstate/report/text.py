"""Plans as text: placements of every tensor, collectives, memory and time."""

from __future__ import annotations

import functools
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jaxcoll.numerics import checks
from tensorstate.cost.cost import Cost, SearchResult, seconds_by_collective
from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.cost.timeline import StepSchedule
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Tensor
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM, Placements
from tensorstate.problem.problem import Problem
from tensorstate.report.hlo_check import bytes_by_dtype
from tensorstate.report.inputs import input_lines, padding_lines, spec_parts
from tensorstate.report.parallelism import (
    is_kept,
    num_tensors,
    parallelism_name,
    sentence,
)
from tensorstate.report.units import seconds, size

# The least share of an activation's bytes for which placements are listed, and the most of them.
MIN_LISTED, MOST_LISTED = 0.1, 3
WIDTH = 120  # columns at which other lines are wrapped

WORDS = {SUM: "partial sum", MAX: "partial max", MIN: "partial min"}


def format_placements(problem: Problem, tensor: Tensor, placements: Placements) -> str:
    """Placements as a ``PartitionSpec`` of the array, followed by the partial axes."""
    axes, parts = problem.mesh.names, spec_parts(problem, tensor, placements)
    partial = [f"{WORDS[e]} over {axes[a]}" for a, e in enumerate(placements) if e < REPLICATED]
    text = f"P({', '.join(parts)})" if any(p != "None" for p in parts) else "replicated"
    return ", ".join([text, *partial]) if partial else text


def common_pattern(names: Sequence[str]) -> str:
    """One name for the tensors of a group: parts that differ become ``*``."""
    parts = [name.split("/") for name in names]
    if len({len(part) for part in parts}) > 1:
        return f"{names[0]} and others"
    columns = zip(*parts, strict=True)
    return "/".join(c[0] if len(set(c)) == 1 else "*" for c in columns)


def summary(problem: Problem, result: SearchResult, memory_limit: float | None) -> str:
    """The description of the whole plan."""
    return "\n".join(
        [
            *_headline(problem, result, memory_limit),
            *_memory(problem, result, memory_limit),
            *_remarks(problem, result),
            *padding_lines(problem),
            "",
            *input_lines(problem, result),
            "",
            *_activations(problem, result),
            "",
            *_collectives(problem, result),
        ]
    )


# ---------------------------------------------------------------------- parts


def _headline(problem: Problem, result: SearchResult, memory_limit: float | None) -> list[str]:
    cost, mesh = result.cost, problem.mesh
    sizes = " x ".join(f"{n} {s}" for n, s in zip(mesh.names, mesh.sizes, strict=True))
    gap = "no bound" if math.isinf(result.bound) else f"gap {100 * result.gap:.2g} %"
    lines = (
        f"{len(problem.graph.operators)} operators on {mesh.num_devices} x "
        f"{problem.hardware.name}, mesh {sizes}{_format_microbatches(problem)}",
        f"= {parallelism_name(problem, result.decisions, cost)}"
        + (", the batch whole" if _short_splits(problem, result) else ""),
        sentence(problem, result.decisions, cost),
        _time(cost, cost.timeline(memory_limit)),
        f"found by {result.method} in {result.seconds:.1f} s, {gap}{_allowed(problem, result)}",
    )
    return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def _allowed(problem: Problem, result: SearchResult) -> str:
    """The plans that the gap refers to, if other arguments of the search allow faster ones."""
    if math.isinf(result.bound) or problem.graph.loop_form != "keep":
        return ""
    # Residuals that a loop stacks and another reads are then tensors of the step, with copies of
    # rows. Traced in pairs, as for recompute=True, the search decides how they are kept.
    graph = problem.graph
    stacks = {
        use.tensor
        for operator in graph.operators
        if operator.primitive == "scan_stack" and operator.phase == "forward"
        for use in operator.results
    }
    is_read = any(
        use.tensor in stacks
        for operator in graph.operators
        if operator.primitive == "scan_row" and operator.phase == "backward"
        for use in operator.operands
    )
    return " of plans with the loops' own residuals; recompute=True chooses them" if is_read else ""


def _time(cost: Cost, timeline: StepSchedule) -> str:
    """The time of the schedule, and how much of the communication computation hides."""
    # If nearly all is exposed, a rounded figure would only repeat the first.
    sent, exposed = cost.communication, timeline.exposed_seconds
    hidden = f" ({seconds(exposed)} of it exposed)" if exposed < 0.999 * sent else ""
    ahead = f", up to {size(timeline.held)} sent ahead or behind" if timeline.held else ""
    return (
        f"time: {seconds(timeline.seconds)} per step: compute {seconds(cost.compute)}, "
        f"communication {seconds(sent)}{hidden}{ahead}"
    )


def _format_microbatches(problem: Problem) -> str:
    if (staged := problem.pipeline) is not None:
        count, batch = staged.microbatches, staged.batch
        held = f", residuals of {staged.held} held" if staged.held < count else ""
        return (
            f", {count} microbatches of {batch // count} of a batch of {batch} in its stages{held}"
        )
    if problem.microbatch_split is None:
        return ""
    count, batch = problem.microbatches, problem.microbatch_split.batch
    return f", {count} microbatches of {batch // count} of a batch of {batch}"


def _memory(problem: Problem, result: SearchResult, limit: float | None) -> list[str]:
    memory = result.cost.memory
    room = limit if limit is not None and math.isfinite(limit) else problem.hardware.memory
    filled = min(1.0, memory.peak / room)
    bar = "#" * round(20 * filled) + "." * (20 - round(20 * filled))
    over = "" if memory.peak <= room else " (exceeds the limit)"
    loop_resident = (
        f"resident through the loop {size(memory.loop_resident)}, "
        if problem.microbatches > 1
        else ""
    )
    return [
        f"memory: [{bar}] {size(memory.peak)} of {size(room)}{over}: inputs {size(memory.inputs)}, "
        f"saved {size(memory.saved)}, {loop_resident}gradients {size(memory.gradients)}, "
        f"temporaries {size(memory.temporaries)}"
        + (f"; on the host {size(memory.host)}" if memory.host else "")
    ]


def _short_splits(problem: Problem, result: SearchResult) -> list[str]:
    """Arguments of the batch that a step splits into fewer parts than a mesh axis has devices."""
    remarks, graph, mesh = [], problem.traced, problem.mesh
    for node in problem.graph.nodes:
        tensor = None if node.tensor is None else graph.tensors[node.tensor]
        if tensor is None or tensor.role != "input" or not tensor.array_dims:
            continue
        parts = [tensor.sizes[position] for position in tensor.array_dims[0]]
        if len(parts) < 2 or not tensor.consumers:
            continue
        # A specification shards only the major factor of a dimension.
        rows, split, line = (
            math.prod(parts),
            parts[0],
            graph.operators[tensor.consumers[0].operator],
        )
        for axis in mesh.long_axes:
            name, devices = mesh.names[axis], mesh.sizes[axis]
            is_whole = result.decisions.strategies[node.class_id][axis] == REPLICATED
            if is_whole and split % devices and rows % devices == 0:
                remarks.append(
                    f"{tensor.name:.60} is whole on `{name}`: the step splits its {rows} rows into "
                    f"{split} x {rows // split} ({line.source.line:.120}), which {devices} devices "
                    f"cannot share. Split as x.reshape({rows // split}, {split}, ...)"
                    f".swapaxes(0, 1), or plan one pass with microbatches={split}"
                )
    return remarks


def _remarks(problem: Problem, result: SearchResult) -> list[str]:
    """Operators without a rule, arguments that the step changes in place, and untied layers."""
    names, untied = ", ".join(problem.traced.changed), problem.traced.untied
    remarks = [f"returned first, for the step changes them in place: {names}"] if names else []
    if untied is not None:
        remarks.append(
            f"pins tell identical layers apart: {len(problem.traced.node_classes)} decisions, "
            f"{untied.tied} if all were pinned as one"
        )
    for remark in _short_splits(problem, result):
        remarks += textwrap.wrap(remark, WIDTH, subsequent_indent="  ")
    return [
        f"replicated for want of a rule: {name}"
        + (f" x {len(operators)}" if operators[1:] else "")
        + f" ({operators[0].source})"
        for name, operators in problem.traced.replicated.items()
    ] + remarks


def _heading(problem: Problem, reshard: ReshardPlan) -> str | None:
    """The heading under which tensors are listed; ``None`` if they do not outlive their pass."""
    group = problem.tensor_groups[reshard.group]
    phase = problem.node(group.class_id).phase
    if group.is_input:
        if reshard.loop_resident is not None:
            return "gathered copies resident through the microbatch loop"
        return None if reshard.saved is None else f"gathered copies {reshard.keeping.said}"
    if phase == "forward":
        return f"activations {reshard.keeping.said}" if is_kept(problem, reshard) else None
    readers = [c.class_id for c in group.consumer_classes if c.class_id is not None]
    if phase == "backward" and any(problem.node(r).phase == "optimizer" for r in readers):
        is_summed = reshard.loop_resident is not None
        return "gradients, summed over microbatches" if is_summed else "gradients"
    return None


def _activations(problem: Problem, result: SearchResult) -> list[str]:
    """The tensors that live between passes, by heading, with the placements of most bytes."""
    groups: dict[str, list[ReshardPlan]] = defaultdict(list)
    for reshard in result.cost.reshards:
        if (heading := _heading(problem, reshard)) is not None:
            groups[heading].append(reshard)
    # For each kind, the placements that hold most bytes. A deep model has hundreds of tensors in
    # few placements; the small ones (norms, biases) say nothing.
    lines = []
    for name, reshards in groups.items():
        bytes_by_placements: dict[str, int] = defaultdict(int)
        total = 0
        for reshard in reshards:
            group = problem.tensor_groups[reshard.group]
            placements = reshard.loop_resident or reshard.saved or reshard.produced_placements
            nbytes = num_tensors(problem, reshard) * problem.local_bytes(group, placements)
            total += nbytes
            bytes_by_placements[placements_by_factor(problem, reshard, placements)] += nbytes
        best = sorted(bytes_by_placements.items(), key=lambda pair: -pair[1])
        large = [pair for pair in best if pair[1] >= MIN_LISTED * total] or best[:1]
        head = f"{name}: {sum(num_tensors(problem, r) for r in reshards)}, {size(total)} per device"
        if len(best) == 1:
            lines.append(f"{head}, {best[0][0]}")
            continue
        lines += [head, *(f"  {size(n):>9} {text}" for text, n in large[:MOST_LISTED])]
    return lines


def placements_by_factor(problem: Problem, reshard: ReshardPlan, placements: Placements) -> str:
    """Placements in words that do not depend on the order of dimensions."""
    group, axes = problem.tensor_groups[reshard.group], problem.mesh.names
    parts = []
    for axis, placement in enumerate(placements):
        if placement >= 0:
            parts.append(
                f"sharded over {axes[axis]} along a factor of size {group.sizes[placement]}"
            )
        elif placement < REPLICATED:
            parts.append(f"{WORDS[placement]} over {axes[axis]}")
    return ", ".join(parts) or "replicated"


def _collectives(problem: Problem, result: SearchResult) -> list[str]:
    cost = result.cost
    if not cost.count_by_collective:
        return ["no collectives"]
    lines = [f"{'collective':16} {'axis':8} {'count':>7} {'bytes':>10} {'time':>9}  of"]
    spent, sent = seconds_by_collective(problem, result.cost), bytes_by_dtype(problem.graph, cost)
    for kind, axis in sorted(cost.count_by_collective, key=lambda key: -spent[key]):
        lines.append(
            f"{kind:16} {problem.mesh.names[axis]:8} {cost.count_by_collective[kind, axis]:>7} "
            f"{size(cost.bytes_by_collective[kind, axis]):>10} {seconds(spent[kind, axis]):>9}  "
            + ", ".join(sorted(sent[kind, axis], key=lambda dtype: -sent[kind, axis][dtype]))
        )
    return lines


# ---------------------------------------------------------------------- one tensor


def explain(problem: Problem, result: SearchResult, name: str) -> str:
    """One tensor: its placements, how it is resharded, its consumers, and the cost.

    Raises:
        PlanError: no tensor has the name.
    """
    graph = problem.graph
    checks.text(name, "the name of a tensor", PlanError)
    tensors = [tensor for tensor in graph.tensors if tensor.name == name]
    if not tensors:
        some = ", ".join(graph.tensors[i].name for i in graph.inputs[:8])
        raise PlanError(f"no tensor is called {checks.shown(name)}; there are {some}, ...")
    tensor = tensors[0]
    full = problem.whole.tensors[tensor.index]
    lines = [f"{name}: {tensor.role} of {size(full.nbytes)}, factors {full.sizes}"]
    if full.sizes != tensor.sizes:
        lines.append(f"split into {problem.num_parts} microbatches of {size(tensor.nbytes)}")
    for reshard in result.cost.reshards:
        if tensor.index not in reshard.tensors:
            continue
        group = problem.tensor_groups[reshard.group]
        # All tensors of a group have one decision, so any of them may be asked about.
        tied = f", like {group.multiplicity - 1} others" if group.multiplicity > 1 else ""
        spec = functools.partial(format_placements, problem, tensor)
        local = size(problem.local_bytes(group, reshard.produced_placements))
        placements = spec(reshard.produced_placements)
        lines.append(f"placements: {placements}, {local} per device{tied}")
        if reshard.saved is not None:
            lines.append(f"{reshard.keeping.said}: {spec(reshard.saved)}")
        if reshard.loop_resident is not None:
            resident = spec(reshard.loop_resident)
            lines.append(f"resident through the microbatch loop: {resident}")
        if reshard.keeping.reruns:
            lines.append(reshard.keeping.said)
        times = f", {reshard.num_repeats} times" if reshard.num_repeats > 1 else ""
        trees = (
            ("before the microbatches", reshard.before_loop),
            (f"forward{times}", reshard.in_forward),
            (f"backward{times}", reshard.after_forward),
            ("after the microbatches", reshard.after_loop),
            (f"to the next stage, {reshard.num_sends} times", reshard.sent),
        )
        for when, tree in trees:
            lines += [
                f"  {when}: {step.kind} over {problem.mesh.names[step.axis]}, {size(step.nbytes)}, "
                f"to {format_placements(problem, tensor, step.target)}: "
                f"{seconds(problem.reshard_graph(group).seconds(step))}"
                for step in tree.steps
            ]
        lines += _consumers(problem, result, tensor, reshard)
    return "\n".join(lines)


def _consumers(
    problem: Problem, result: SearchResult, tensor: Tensor, reshard: ReshardPlan
) -> Iterable[str]:
    group = problem.tensor_groups[reshard.group]
    for consumer_class in group.consumer_classes:
        if consumer_class.class_id is None:
            yield "  returned"
            continue
        node = problem.node(consumer_class.class_id)
        placements = problem.required_placements(
            consumer_class, result.decisions.strategies[consumer_class.class_id]
        )
        if node.tensor is not None:
            yield f"  becomes {problem.graph.tensors[node.tensor].name}"
            continue
        operator = problem.graph.operators[node.members[0].operator]
        spec = format_placements(problem, tensor, placements)
        yield f"  read by {operator.primitive} ({node.phase}) in {spec}, {operator.source}"
