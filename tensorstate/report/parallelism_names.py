"""The established names of a plan's parallelism, per mesh axis, read off its decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from tensorstate.cost.cost import Cost
from tensorstate.cost.decisions import Decisions
from tensorstate.problem.baselines import Baselines, is_parameter
from tensorstate.problem.problem import Problem

# A name applies if at least this share of the FLOPs or bytes follows it.
MIN_SHARE = 0.5


def parallelism_by_axis(problem: Problem, decisions: Decisions, cost: Cost) -> dict[str, list[str]]:
    """By mesh axis, the parallelisms that a plan follows; an empty list where it replicates."""
    baselines = Baselines(problem)
    return {
        name: _parallelisms(problem, decisions, cost, baselines, axis)
        for axis, name in enumerate(problem.mesh.names)
    }


def parallelism_name(problem: Problem, decisions: Decisions, cost: Cost) -> str:
    """One line for all axes: ``ZeRO-3 (FSDP) on `data` + Megatron on `model```."""
    by_axis = parallelism_by_axis(problem, decisions, cost)
    parts = [f"{' + '.join(names)} on `{axis}`" for axis, names in by_axis.items() if names]
    recomputed_nodes = len(cost.recomputed_nodes)
    if recomputed_nodes:
        parts.append(f"{recomputed_nodes} operators recomputed")
    if problem.microbatches > 1:
        parts.append(f"{problem.microbatches} microbatches")
    return " + ".join(parts) or "replicated"


def _parallelisms(
    problem: Problem, decisions: Decisions, cost: Cost, baselines: Baselines, axis: int
) -> list[str]:
    flops_of = flops_by_factor(problem, decisions, baselines, axis)
    total = sum(flops_of.values())
    names = []
    if total and _share(flops_of, baselines.batch) >= MIN_SHARE * total:
        names.append(_data_parallelism(problem, decisions, cost, axis))
    if total and _share(flops_of, baselines.sequence) >= MIN_SHARE * total:
        names.append("context parallel")
    experts = expert_factors(problem)
    if experts and _share(flops_of, experts):
        names.append("expert parallel")
    named = baselines.batch | baselines.sequence | experts
    inner = sum(
        flops for factor, flops in flops_of.items() if factor is not None and factor not in named
    )
    if total and inner >= 0.1 * total:
        spread = _is_sequence_parallel(problem, decisions, baselines, axis)
        names.append("Megatron with sequence parallelism" if spread else "Megatron")
    return names


def _share(flops_of: Mapping[int | None, float], factors: frozenset[int]) -> float:
    return sum(flops for factor, flops in flops_of.items() if factor in factors)


def flops_by_factor(
    problem: Problem, decisions: Decisions, baselines: Baselines, axis: int
) -> dict[int | None, float]:
    """FLOPs of matrix products in the forward pass, by the factor that a mesh axis shards."""
    flops_of: dict[int | None, float] = defaultdict(float)
    for class_id, strategy in enumerate(decisions.strategies):
        node = problem.node(class_id)
        if node.kind not in ("einsum", "window") or node.phase != "forward":
            continue
        flops = sum(problem.graph.operators[m.operator].flops for m in node.members)
        placement = strategy[axis]
        factor = baselines.label_factors[class_id][placement] if placement >= 0 else None
        flops_of[factor] += problem.multiplicity(class_id) * flops
    return dict(flops_of)


def expert_factors(problem: Problem) -> frozenset[int]:
    """Batch factors of a product with a parameter: every expert has its own weight."""
    experts = set()
    tensors = problem.graph.tensors
    for operator in problem.graph.operators:
        if operator.kind != "einsum" or operator.phase != "forward":
            continue
        for use in operator.operands:
            if not is_parameter(problem.graph, use.tensor):
                continue
            others = [u for u in (*operator.operands, *operator.results) if u is not use]
            for factor, label in zip(tensors[use.tensor].dims, use.labels, strict=True):
                if all(label in other.labels for other in others):
                    experts.add(factor)
    return frozenset(experts)


def _data_parallelism(problem: Problem, decisions: Decisions, cost: Cost, axis: int) -> str:
    """DDP or a stage of ZeRO, by the inputs that are sharded along the axis."""
    if _sharded(problem, decisions, "parameter", axis) >= MIN_SHARE:
        copies = sum(
            reshard.multiplicity
            for reshard in cost.reshards
            if problem.tensor_groups[reshard.group].is_input
            and (reshard.saved or reshard.loop_resident) is not None
        )
        # Copies saved for the backward pass take the memory that ZeRO-3 avoids.
        return "ZeRO-2 (parameters gathered once)" if copies else "ZeRO-3 (FSDP)"
    if _sharded(problem, decisions, "optimizer", axis) >= MIN_SHARE:
        return "ZeRO-2"
    return "DDP"


def _sharded(problem: Problem, decisions: Decisions, role: str, axis: int) -> float:
    """The share of the bytes of a role that an axis shards."""
    sharded, total = [], []
    for class_id, strategy in enumerate(decisions.strategies):
        tensor = problem.node(class_id).tensor
        if tensor is not None and problem.graph.tensors[tensor].role == role:
            nbytes = problem.multiplicity(class_id) * problem.graph.tensors[tensor].nbytes
            total.append(nbytes)
            sharded.append(nbytes * (strategy[axis] >= 0))
    return math.fsum(sharded) / max(1, math.fsum(total))


def _is_sequence_parallel(
    problem: Problem, decisions: Decisions, baselines: Baselines, axis: int
) -> bool:
    """Whether elementwise work of the forward pass is mostly sharded along the sequence."""
    along = total = 0
    for class_id, strategy in enumerate(decisions.strategies):
        node = problem.node(class_id)
        if node.kind != "elementwise" or node.phase != "forward":
            continue
        factors = baselines.label_factors[class_id]
        if not baselines.residual_stream_factors & set(factors):
            continue
        total += problem.multiplicity(class_id)
        placement = strategy[axis]
        if placement >= 0 and factors[placement] in baselines.sequence:
            along += problem.multiplicity(class_id)
    return total > 0 and along >= MIN_SHARE * total
