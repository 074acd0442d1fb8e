"""The parallelism of a plan, by its established names, and in a sentence.

The names, per mesh axis, are derived from the decisions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.ir.graph import Tensor
from tensorstate.ir.placements import REPLICATED
from tensorstate.keeping import table
from tensorstate.problem.baselines import Baselines, is_parameter, parameter_of
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.report.units import size

# A name applies if at least this share of the FLOPs or bytes follows it. The search decides for
# every tensor alone, so few plans follow one name everywhere.
MIN_SHARE = 0.5
# Instead of ``MIN_SHARE``: if the batch is sharded in most products, a vocabulary or an MLP that is
# sharded in another way still deserves a name.
LEAST_INNER = 0.1


# The name for an axis that shards some tensors, but no product of the forward pass.
UNNAMED = "some tensors sharded"
# For an axis that shards what products make new, of weights that all devices have.
FEATURES = "features sharded"
# For an axis along which devices have members of an ensemble, which meet only in their mean.
MEMBERS = "ensemble parallel"


def parallelism_by_axis(problem: Problem, decisions: Decisions, cost: Cost) -> dict[str, list[str]]:
    """By mesh axis, the parallelisms that a plan follows; an empty list where it replicates.

    A name alone is that of the whole axis: with "DDP" all parameters are replicated along it and
    every product is split by the batch. "mostly DDP" has exceptions, and of several parallelisms
    each is said to be there partly. An axis that shards tensors as no parallelism does has
    ``UNNAMED``.
    """
    baselines, found = Baselines(problem), dict[str, list[str]]()
    for axis, of_axis in enumerate(problem.mesh.names):
        names = _parallelisms(problem, decisions, cost, baselines, axis)
        if not names and any(own[axis] != REPLICATED for own in decisions.strategies):
            found[of_axis] = [UNNAMED]
        elif len(names) > 1:
            found[of_axis] = [f"partly {name}" for name in names]
        else:
            kept = _KeptWhole(problem, decisions, baselines, axis)
            found[of_axis] = [name if kept.holds(name) else f"mostly {name}" for name in names]
    return found


class _KeptWhole:
    """Whether a name is true of all of a mesh axis, by inputs and products of the forward pass."""

    def __init__(self, problem: Problem, decisions: Decisions, baselines: Baselines, axis: int):
        self.problem, self.decisions, self.axis = problem, decisions, axis
        self.baselines = baselines

    def holds(self, name: str) -> bool:
        """Whether inputs and products are all as a parallelism places them."""
        if name in ("DDP", "batch sharded"):
            return self._none("parameter", "optimizer") and self._is_by_batch()
        if name == "ZeRO-2":
            return self._none("parameter") and self._all("optimizer") and self._is_by_batch()
        if name.startswith("ZeRO"):
            return self._all("parameter", "optimizer") and self._is_by_batch()
        if name == FEATURES:
            return self._none("parameter") and not self._is_any_by_batch()
        if name.startswith("Megatron"):
            return self._all("parameter", least_dims=2) and not self._is_any_by_batch()
        if name.startswith("context"):
            return all(self._products_with(self.baselines.sequence))
        if name == MEMBERS:
            return all(self._products_with(member_factors(self.problem)))
        return True  # experts, rings and stages need no more than their own operators

    def _inputs(self, roles: Sequence[str], least_dims: int = 1) -> Iterator[int]:
        """The classes of inputs of some roles."""
        for class_id in range(len(self.decisions.strategies)):
            tensor = self.problem.node(class_id).tensor
            if tensor is not None:
                found = self.problem.graph.tensors[tensor]
                if found.role in roles and len(found.sizes) >= least_dims:
                    yield class_id

    def _none(self, *roles: str) -> bool:
        """Whether the axis shards no input of some roles."""
        return all(self.decisions.strategies[c][self.axis] < 0 for c in self._inputs(roles))

    def _all(self, *roles: str, least_dims: int = 1) -> bool:
        """Whether the axis shards all inputs of some roles that it can."""
        return all(
            self.decisions.strategies[c][self.axis] >= 0 or not self._may_shard(c)
            for c in self._inputs(roles, least_dims)
        )

    def _may_shard(self, class_id: int) -> bool:
        """Whether the axis may shard a class beside what other axes shard of it."""
        chosen, axis = self.decisions.strategies[class_id], self.axis
        others = chosen[:axis], chosen[axis + 1 :]
        return any(
            strategy[axis] >= 0 and (strategy[:axis], strategy[axis + 1 :]) == others
            for strategy in self.problem.strategies[class_id].all
        )

    def _factor(self, class_id: int) -> int | None:
        """The factor of a class that the axis shards, if any."""
        placement = self.decisions.strategies[class_id][self.axis]
        return self.baselines.label_factors[class_id][placement] if placement >= 0 else None

    def _is_by_batch(self) -> bool:
        """Whether the axis shards all products by the batch, and all inputs that have one."""
        batch, factors = self.baselines.batch, self.baselines.label_factors
        inputs = (c for c in self._inputs(("input",)) if batch & set(factors[c]))
        return all(self._products_with(batch)) and all(
            self._factor(c) in batch or not self._may_shard(c) for c in inputs
        )

    def _products_with(self, factors: frozenset[int]) -> Iterator[bool]:
        """For each product of the forward pass, whether the axis shards one of some factors.

        For a product that has none of these factors, whether the axis shards nothing.
        """
        for class_id, of_labels in enumerate(self.baselines.label_factors):
            node, by = self.problem.node(class_id), self._factor(class_id)
            if node.kind in ("einsum", "window") and node.phase == "forward":
                yield by in factors if factors & set(of_labels) else by is None

    def _is_any_by_batch(self) -> bool:
        """Whether the axis shards an input or a product by the batch."""
        flops = flops_by_factor(self.problem, self.decisions, self.baselines, self.axis)
        sharded = {*map(self._factor, self._inputs(("input",))), *flops}
        return not sharded.isdisjoint(self.baselines.batch)


def parallelism_name(problem: Problem, decisions: Decisions, cost: Cost) -> str:
    """One line for all axes: ``ZeRO-3 (FSDP) on `data` + mostly Megatron on `model```."""
    by_axis = parallelism_by_axis(problem, decisions, cost)
    parts = [f"{', '.join(names)} on `{axis}`" for axis, names in by_axis.items() if names]
    for keeping in table.optional():
        kept = (r for r in cost.reshards if r.keeping == keeping and is_kept(problem, r))
        if count := sum(num_tensors(problem, reshard) for reshard in kept):
            parts.append(f"{count} activation{'s' * (count > 1)} {keeping}")
    if problem.microbatches > 1:
        parts.append(f"{problem.microbatches} microbatches")
    return " + ".join(parts) or "replicated"


def is_kept(problem: Problem, reshard: ReshardPlan) -> bool:
    """Whether tensors are results of the forward pass that outlive it, stored or rebuilt."""
    group = problem.tensor_groups[reshard.group]
    is_made = not group.is_input and problem.node(group.class_id).phase == "forward"
    return is_made and (reshard.keeping.reruns or reshard.saved is not None)


def num_tensors(problem: Problem, reshard: ReshardPlan) -> int:
    """The number of tensors that are resharded in one way: of a loop, those of all iterations."""
    group = problem.tensor_groups[reshard.group]
    rows = 1 if group.is_input else problem.liveness.rows(group.tensors[0])
    return reshard.multiplicity * rows


def _parallelisms(
    problem: Problem, decisions: Decisions, cost: Cost, baselines: Baselines, axis: int
) -> list[str]:
    staged = problem.pipeline
    if staged is not None and axis == problem.stage_axis:
        return [
            f"pipeline parallel ({staged.stages} stages, {staged.microbatches} microbatches, "
            f"{'' if staged.between is None else '1F1B, '}bubble {100 * staged.bubble:.0f} %)"
        ]
    # Named by the factor along which the axis shards products: the batch is data parallelism, the
    # sequence context parallelism, experts expert parallelism, and members of an ensemble
    # ``MEMBERS``. What products sum over or make new (heads, hidden features, the vocabulary) is
    # Megatron's. An axis may do several.
    flops_of = flops_by_factor(problem, decisions, baselines, axis)
    total = sum(flops_of.values())
    names = []
    members = member_factors(problem)
    if total and _share(flops_of, members) >= MIN_SHARE * total:
        names.append(MEMBERS)
    if total and _share(flops_of, baselines.batch) >= MIN_SHARE * total:
        names.append(_data_parallelism(problem, decisions, cost, axis))
    within = {  # whether keys and values go round along the axis, and whether rows are exchanged
        send.is_around
        for class_id, strategy in enumerate(decisions.strategies)
        for send in problem.inner_sends(class_id, strategy)
        if send.axis == axis and problem.node(class_id).kind == "einsum"
    }
    ring = " (ring attention)" if True in within else ""
    if total and _share(flops_of, baselines.sequence) >= MIN_SHARE * total:
        names.append(f"context parallel{ring}")
    elif ring:
        names.append("ring attention")
    experts = expert_factors(problem)
    if False in within:
        names.append("expert parallel (rows exchanged)")
    elif experts and _share(flops_of, experts):
        names.append("expert parallel")
    named = baselines.batch | baselines.sequence | experts | members
    inner = sum(
        flops for factor, flops in flops_of.items() if factor is not None and factor not in named
    )
    of_weights = _SharesOfWeights(problem, decisions, cost, axis)
    if total and inner >= LEAST_INNER * total:
        if of_weights.sharded < (LEAST_INNER if names else MIN_SHARE):
            names.append(FEATURES)
        else:
            spread = _is_sequence_parallel(problem, decisions, baselines, axis)
            names.append("Megatron with sequence parallelism" if spread else "Megatron")
    elif names:
        others = baselines.batch | (experts if "expert" in names[-1] else frozenset())
        others |= members if MEMBERS in names else frozenset()
        if of_weights.kept_sharded(others) >= MIN_SHARE:
            # Of modes or embeddings, which take more memory than arithmetic.
            names.append("Megatron")
    return names


class _SharesOfWeights:
    """The shares of the parameters' bytes that an axis shards; 1 without parameters."""

    def __init__(self, problem: Problem, decisions: Decisions, cost: Cost, axis: int):
        self.problem, self.decisions, self.cost, self.axis = problem, decisions, cost, axis

    @property
    def sharded(self) -> float:
        """Of all that it shards."""
        return self._share(lambda tensor, placement: placement >= 0)

    def kept_sharded(self, but: frozenset[int]) -> float:
        """Of those that are not gathered along it, by factors other than these."""
        within = _used_as_sharded(self.problem, self.decisions, self.cost, self.axis)
        return self._share(
            lambda tensor, placement: (
                placement >= 0 and tensor.dims in within and tensor.dims[placement] not in but
            )
        )

    def _share(self, counts: Callable[[Tensor, int], bool]) -> float:
        counted, total = 0, 0
        for class_id, strategy in enumerate(self.decisions.strategies):
            number = self.problem.node(class_id).tensor
            if number is not None and self.problem.graph.tensors[number].role == "parameter":
                tensor = self.problem.graph.tensors[number]
                nbytes = self.problem.multiplicity(class_id) * tensor.nbytes
                total += nbytes
                counted += nbytes * counts(tensor, strategy[self.axis])
        return counted / total if total else 1.0


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
        # Only the forward pass counts: products of the backward pass repeat its factors.
        flops = sum(problem.graph.operators[m.operator].flops for m in node.members)
        placement = strategy[axis]
        factor = baselines.label_factors[class_id][placement] if placement >= 0 else None
        flops_of[factor] += problem.multiplicity(class_id) * flops
    return dict(flops_of)


def expert_factors(problem: Problem) -> frozenset[int]:
    """The batch factors of products with a parameter to which tokens are routed.

    Every expert has its own weight, but so has every member of an ensemble, and every mode of a
    spectrum. Tokens go to experts and come back by products, or by indices that are computed;
    members meet only in a mean, and modes in transforms and at constant places.
    """
    return _batched_weights(problem) & _routed(problem)


def member_factors(problem: Problem) -> frozenset[int]:
    """The factors of parameters whose weights are multiplied side by side, with nothing routed."""
    return (_batched_weights(problem) & Baselines(problem).of_parameters) - _routed(problem)


def _routed(problem: Problem) -> frozenset[int]:
    """The factors that products sum over or that computed indices choose among."""
    routed = set[int]()
    tensors, computed = problem.graph.tensors, set(problem.graph.inputs)
    for operator in problem.graph.operators:
        if any(use.tensor in computed for use in operator.operands):
            computed.update(use.tensor for use in operator.results)
        if operator.phase != "forward":
            continue
        by_indices = operator.kind in ("gather", "scatter") and any(
            use.tensor in computed and np.issubdtype(tensors[use.tensor].dtype, np.integer)
            for use in operator.operands
        )
        if by_indices or operator.kind == "einsum":
            inside = {*operator.reductions, *operator.need_replication}
            routed |= {
                factor
                for use in (*operator.operands, *operator.results)
                for factor, label in zip(tensors[use.tensor].dims, use.labels, strict=True)
                if label in inside
            }
    return frozenset(routed)


def _batched_weights(problem: Problem) -> frozenset[int]:
    """The factors that all operands and results of a product with a parameter have."""
    batched = set[int]()
    for operator in problem.graph.operators:
        if operator.phase != "forward" or operator.kind != "einsum":
            continue
        if len(operator.operands) < 2:
            continue  # a weight that is repeated or summed is not multiplied with tokens
        for use in operator.operands:
            if not is_parameter(problem.graph, use.tensor):
                continue
            # [tokens, experts, width] with weights [experts, width, hidden]: "experts" is in all
            # three arrays, while a width is summed over, and heads come with the weights.
            others = [u for u in (*operator.operands, *operator.results) if u is not use]
            dims = problem.graph.tensors[use.tensor].dims
            for factor, label in zip(dims, use.labels, strict=True):
                if all(label in other.labels for other in others):
                    batched.add(factor)
    return frozenset(batched)


def _data_parallelism(problem: Problem, decisions: Decisions, cost: Cost, axis: int) -> str:
    """DDP or a stage of ZeRO, by the inputs that are sharded along the axis.

    It is "batch sharded" if no gradient is reduced along the axis, since a name would promise that.
    """
    # Experts and the weights of Megatron are sharded, too, but their shards are not gathered.
    within = _used_as_sharded(problem, decisions, cost, axis)
    if _sharded(problem, decisions, "parameter", axis, within) >= MIN_SHARE:
        # Copies saved for the backward pass take the memory that ZeRO-3 avoids.
        is_once = _gathered_once(problem, cost) >= MIN_SHARE
        return "ZeRO-2 (parameters gathered once)" if is_once else "ZeRO-3 (FSDP)"
    if _sharded(problem, decisions, "optimizer", axis, within) >= MIN_SHARE:
        return "ZeRO-2"
    return "DDP" if _reduces_gradients(problem, cost, axis) else "batch sharded"


def _gathered_once(problem: Problem, cost: Cost) -> float:
    """The share of the parameters' bytes whose gathered copies stay for the backward pass."""
    copied, total = 0, 0
    for reshard in cost.reshards:
        group = problem.tensor_groups[reshard.group]
        if problem.graph.tensors[group.tensors[0]].role == "parameter" and group.is_input:
            nbytes = reshard.multiplicity * group.nbytes
            total += nbytes
            copied += nbytes * ((reshard.saved or reshard.loop_resident) is not None)
    return copied / max(1, total)


def _reduces_gradients(problem: Problem, cost: Cost, axis: int) -> bool:
    """Whether sums are completed along an axis after the forward pass, as DDP's gradients are."""
    # This is false for a step without parameters and for inference, which only shard a batch.
    return any(
        step.axis == axis and step.collective is not None and step.collective.adds
        for reshard in cost.reshards
        if _is_after_forward(problem, problem.tensor_groups[reshard.group])
        for step in reshard.steps
    )


def _is_after_forward(problem: Problem, group: TensorGroup) -> bool:
    """Whether the tensors of a group are of the backward pass, or of one in a loop over steps."""
    roles = {problem.graph.tensors[tensor].role for tensor in group.tensors}
    return not group.in_forward or "gradient" in roles


def _used_as_sharded(
    problem: Problem, decisions: Decisions, cost: Cost, axis: int
) -> frozenset[tuple[int, ...]]:
    """The factors of each parameter that an axis shards and along which it is not gathered."""
    graph = problem.graph
    gathered = {
        parameter_of(graph, tensor)
        for reshard in cost.reshards
        if any(step.axis == axis and step.collective is not None for step in reshard.steps)
        for tensor in reshard.tensors
    }
    sharded = {
        node.tensor
        for class_id, strategy in enumerate(decisions.strategies)
        if strategy[axis] >= 0
        for node in [problem.node(class_id)]
        if node.tensor is not None and graph.tensors[node.tensor].role == "parameter"
    }
    return frozenset(graph.tensors[tensor].dims for tensor in sharded - gathered)


def _sharded(
    problem: Problem,
    decisions: Decisions,
    role: str,
    axis: int,
    without: frozenset[tuple[int, ...]],
) -> float:
    """The share of the bytes of a role that an axis shards, without tensors of some factors.

    Moments have the factors of their parameters.
    """
    sharded, total = [], []
    for class_id, strategy in enumerate(decisions.strategies):
        tensor = problem.node(class_id).tensor
        if tensor is None or problem.graph.tensors[tensor].role != role:
            continue
        if problem.graph.tensors[tensor].dims not in without:
            nbytes = problem.multiplicity(class_id) * problem.graph.tensors[tensor].nbytes
            total.append(nbytes)
            sharded.append(nbytes * (strategy[axis] >= 0))
    return math.fsum(sharded) / max(1, math.fsum(total))


def _is_sequence_parallel(
    problem: Problem, decisions: Decisions, baselines: Baselines, axis: int
) -> bool:
    """Whether elementwise work of the forward pass is mostly sharded along the sequence."""
    # These are the norms and residual sums between the products of layers. Megatron shards only
    # products; with sequence parallelism it shards these too, so that no device repeats them.
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


# ---------------------------------------------------------------------- a sentence

# The part of every device along an axis, by the name of the parallelism.
_HAS = {
    "DDP": "a part of the batch and all parameters, whose gradients are summed",
    "batch sharded": "a part of the batch",
    "ZeRO-2": "a part of the batch, all parameters and a shard of the optimizer's state",
    "ZeRO-2 (parameters gathered once)": "a part of the batch and a shard of the parameters, "
    "which are gathered once a step",
    "ZeRO-3 (FSDP)": "a part of the batch and a shard of the parameters, which are gathered "
    "before each pass",
    "Megatron": "a part of the weights of each layer and of their products",
    "Megatron with sequence parallelism": "a part of the weights of each layer, and between layers "
    "a part of the sequence",
    "context parallel": "a part of the sequence",
    "context parallel (ring attention)": "a part of the sequence, keys and values going round",
    "ring attention": "a part of the queries, keys and values going round",
    FEATURES: "all parameters and a part of the features of each product",
    UNNAMED: "shards of some tensors",
    MEMBERS: "a part of the members of an ensemble, with their weights",
    "expert parallel": "a part of the experts",
    "expert parallel (rows exchanged)": "a part of the experts, to which rows are sent",
}


def sentence(problem: Problem, decisions: Decisions, cost: Cost) -> str:
    """A plan described as to a colleague: by mesh axis, the part that each device has.

    "Mostly" is said of the part that most arithmetic and most bytes of parameters follow.
    """
    axes: dict[str, list[int]] = {}
    mostly: set[str] = set()
    for axis, names in enumerate(parallelism_by_axis(problem, decisions, cost).values()):
        if problem.mesh.sizes[axis] > 1:
            # Several names are of different operators: nobody has all and a part of the weights.
            is_mostly = any(name.startswith("mostly ") for name in names)
            names = [name.removeprefix("mostly ").removeprefix("partly ") for name in names]
            said = [_HAS.get(name, "the layers of a stage") for name in names]
            has = "for some operators " if len(said) > 1 else ""
            has += ", and for others ".join(said)
            axes.setdefault(has, []).append(axis)
            # What several axes share is said once, and then as much as holds along all of them.
            mostly |= {has} if is_mostly and len(said) == 1 else set()
    parts = []
    for has, along in axes.items():
        devices = " x ".join(str(problem.mesh.sizes[axis]) for axis in along)
        named = " and ".join(f"`{problem.mesh.names[axis]}`" for axis in along)
        each = f"each {'mostly ' * (has in mostly)}has {has}" if has else "all do the same"
        parts.append(f"of the {devices} devices along {named} {each}")
    parts = parts or ["one device does all of it"]
    if cost.memory.host:
        parts.append(f"on the host wait {size(cost.memory.host)} of activations of each device")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
