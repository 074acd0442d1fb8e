"""A plan as rules: which mesh axes shard which named dimensions, or which parameters by path.

Code bases with their own sharding rules name the dimensions of their parameters ("embed", "mlp",
"heads") and map every name to mesh axes once, for the whole model: Flax's ``nn.logical_axis_rules``
and the metadata of ``nnx``, MaxText's ``logical_axis_rules``. A plan may shard one name along
different mesh axes in different places. Then the axes that shard the most
bytes become the rule, and the loss is given: the cost of the best plan under the rules, against
that of the plan.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from tensorstate.cost.cost import Cost, SearchOptions, SearchResult
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import PlacementTable
from tensorstate.execution.sharded_step import check_unpadded, partition_specs
from tensorstate.ir.graph import Tensor
from tensorstate.ir.jaxprs import axis_names
from tensorstate.ir.placements import Placements
from tensorstate.ir.trees import path_name
from tensorstate.problem.constraints import from_partition_spec
from tensorstate.problem.problem import Problem
from tensorstate.report import units
from tensorstate.solver.base import Solver

Axes = tuple[str, ...]
Names = tuple[str | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class AxisRules:
    """Rules for named dimensions; ``print(rules)`` shows them and their loss.

    Attributes:
        rules: names with the mesh axes that shard them, names with the most bytes first. If two
            dimensions of an array claim an axis, the earlier rule gets it, as in Flax.
        specs: the sharding of every argument with names, by path, under the rules.
        otherwise: arguments that the plan shards differently, by path, with the plan's sharding.
        planned, cost: costs of the plan, and of the best plan under the rules.
    """

    rules: tuple[tuple[str, Axes], ...]
    specs: Mapping[str, PartitionSpec]
    otherwise: Mapping[str, PartitionSpec]
    planned: Cost
    cost: Cost

    @property
    def flax(self) -> tuple[tuple[str, Any], ...]:
        """The rules in the form of ``flax.linen.logical_axis_rules`` and ``flax.nnx`` metadata."""
        return tuple((name, _one(axes)) for name, axes in self.rules)

    @property
    def maxtext(self) -> str:
        """The list ``logical_axis_rules`` of a MaxText configuration, in YAML."""
        rows = (f"  - ['{name}', [{', '.join(map(repr, axes))}]]" for name, axes in self.rules)
        return "\n".join(["logical_axis_rules:", *rows]) + "\n"

    @property
    def loss(self) -> float:
        """The time of the best plan under the rules, divided by that of the plan."""
        return self.cost.timeline().seconds / max(self.planned.timeline().seconds, 1e-300)

    def __str__(self) -> str:
        lines = [f"{name:24} {_spec_text(axes)}" for name, axes in self.rules]
        before, after = self.planned, self.cost
        lines.append(
            f"time {units.seconds(after.timeline().seconds)} against the plan's "
            f"{units.seconds(before.timeline().seconds)} ({self.loss:.3g}), communication "
            f"{units.seconds(after.communication)} against {units.seconds(before.communication)}, "
            f"memory {units.size(after.memory.peak)} against {units.size(before.memory.peak)}"
        )
        lines += [f"the plan has {name} as {spec}" for name, spec in self.otherwise.items()]
        return "\n".join(lines)


def axis_rules(
    problem: Problem, result: SearchResult, options: SearchOptions, names: Any, solver: Solver
) -> AxisRules:
    """The rules for named dimensions that are nearest to a plan, with their loss.

    Args:
        names: a tree with the names of every parameter's dimensions, see ``Plan.rules``.

    Raises:
        PlanError: the names fit no argument, or the plan is padded.
    """
    check_unpadded(problem.traced.padding, "code with logical axis rules")
    named = _named_inputs(problem, names)
    table = PlacementTable(problem, result.decisions, result.cost)
    specs = (spec or PartitionSpec() for spec in partition_specs(table)[0])
    planned = dict(zip(problem.graph.inputs, specs, strict=True))
    rules = _rules(named, planned)
    by_rules = {t.index: _spec(t, of, dict(rules), problem) for t, of in named}
    cost = _best_under(problem, options, by_rules, solver)
    otherwise = {
        tensor.name: planned[tensor.index]
        for tensor, _ in named
        if _padded(planned[tensor.index], tensor) != _padded(by_rules[tensor.index], tensor)
    }
    specs = {tensor.name: by_rules[tensor.index] for tensor, _ in named}
    return AxisRules(rules, specs, otherwise, result.cost, cost)


def path_rules(problem: Problem, result: SearchResult) -> dict[str, PartitionSpec]:
    """The sharding of every argument by patterns of paths, with ``*`` for the number of a layer.

    Arguments that do not fit the pattern of their layers have their own entries, before it.

    Raises:
        PlanError: the plan is padded.
    """
    check_unpadded(problem.traced.padding, "code with shardings by path")
    table = PlacementTable(problem, result.decisions, result.cost)
    # "layers/0/up" and "layers/11/up" are "layers/*/up", and "layers/0/experts/3/up" is
    # "layers/*/experts/*/up".
    by_pattern: dict[str, dict[str, PartitionSpec]] = defaultdict(dict)
    for tensor, spec in zip(problem.graph.inputs, partition_specs(table)[0], strict=True):
        name = problem.graph.tensors[tensor].name
        by_pattern[re.sub(r"(?<=/)\d+(?=/|$)", "*", name)][name] = spec or PartitionSpec()
    rules: dict[str, PartitionSpec] = {}
    for pattern, specs in by_pattern.items():
        common = max(specs.values(), key=[*specs.values()].count)
        rules |= {name: spec for name, spec in specs.items() if spec != common}
        rules[pattern if len(specs) > 1 else next(iter(specs))] = common
    return rules


# ---------------------------------------------------------------------- names of dimensions


def _named_inputs(problem: Problem, names: Any) -> list[tuple[Tensor, Names]]:
    """The arguments whose path ends in a path of the tree, with the names of their dimensions."""
    leaves = jax.tree.leaves_with_path(names, is_leaf=_is_names)
    by_path = {}
    for path, given in leaves:
        if not _is_names(given):
            raise PlanError(
                f"the names of {path_name(path) or 'the tree'} must be a PartitionSpec or a tuple "
                f"of a name or None per dimension, got {given!r:.80}"
            )
        # Leaves of ``nnx.State`` and of boxed metadata are one level below the parameter.
        by_path[path_name(path).removesuffix("/value").removesuffix("/.value")] = tuple(given)
    found, used = [], set()
    for index in problem.graph.inputs:
        tensor = problem.graph.tensors[index]
        name = tensor.name.removesuffix("/value")
        # So one tree of names also serves the optimizer's moments: ``state/mu/up`` ends in ``up``.
        ends = [path for path in by_path if path and f"/{name}".endswith(f"/{path}")]
        if not ends:
            continue
        path = max(ends, key=len)
        if len(by_path[path]) > len(tensor.array_dims or ()):
            raise PlanError(
                f"{tensor.name} has {len(tensor.array_dims or ())} dimensions, and "
                f"{by_path[path]} names more of them"
            )
        used.add(path)
        found.append((tensor, by_path[path]))
    unused = sorted(by_path.keys() - used)
    if unused or not found:
        some = ", ".join(problem.graph.tensors[i].name for i in problem.graph.inputs[:8])
        raise PlanError(
            f"no argument's path ends in {unused[0] if unused else '(no names)'}; there are {some}"
        )
    return found


def _is_names(given: Any) -> bool:
    if isinstance(given, PartitionSpec):
        return True
    return type(given) is tuple and bool(given) and all(n is None or type(n) is str for n in given)


# ---------------------------------------------------------------------- rules


def _rules(
    named: Sequence[tuple[Tensor, Names]], planned: Mapping[int, PartitionSpec]
) -> tuple[tuple[str, Axes], ...]:
    """For every name, the axes along which the plan shards most of its bytes."""
    # Names vote by bytes, which determine the cost of a wrong sharding: "embed" of one large table
    # outweighs "embed" of many biases.
    votes: dict[str, dict[Axes, int]] = defaultdict(lambda: defaultdict(int))
    for tensor, names in named:
        for name, axes in zip(names, _padded(planned[tensor.index], tensor), strict=False):
            if name is not None:
                votes[name][axes] += tensor.nbytes
    chosen = {name: max(of, key=lambda axes: (of[axes], axes)) for name, of in votes.items()}
    heavy = sorted(chosen, key=lambda name: (-votes[name][chosen[name]], name))
    return tuple((name, chosen[name]) for name in heavy)


def _spec(
    tensor: Tensor, names: Names, rules: Mapping[str, Axes], problem: Problem
) -> PartitionSpec:
    """The sharding of an array under rules as Flax finds it: an axis goes to the first rule."""
    dims = tensor.array_dims or ()
    sharded: dict[int, Axes] = {}
    used: set[str] = set()
    order = sorted(range(len(names)), key=lambda d: [*rules, names[d]].index(names[d]))  # type: ignore[arg-type]
    for dimension in order:
        axes = rules.get(names[dimension] or "", ())
        if axes and not used & set(axes) and dims[dimension]:
            trial = {**sharded, dimension: axes}
            spec = PartitionSpec(*(_one(trial.get(d, ())) for d in range(len(dims))))
            try:
                from_partition_spec(problem, tensor, spec)  # type: ignore[arg-type]
            except PlanError:  # sizes that do not divide: the array is not sharded there
                continue
            sharded[dimension] = axes
            used |= set(axes)
    return PartitionSpec(*(_one(sharded.get(d, ())) for d in range(len(dims))))


def _padded(spec: PartitionSpec | None, tensor: Tensor) -> tuple[Axes, ...]:
    """The axes of every dimension."""
    axes = [axis_names(entry) for entry in spec or ()]
    return (*axes, *(() for _ in range(len(tensor.array_dims or ()) - len(axes))))


def _best_under(
    problem: Problem, options: SearchOptions, specs: Mapping[int, PartitionSpec], solver: Solver
) -> Cost:
    """The cost of the best plan with these shardings of arguments."""
    pinned: dict[int, Placements] = {}
    for index, spec in specs.items():
        tensor = problem.graph.tensors[index]
        pinned[index] = from_partition_spec(problem, tensor, spec)  # type: ignore[arg-type]

    def allowed(class_id: int) -> Iterator[Placements]:
        of_class = [problem.graph.nodes[n].tensor for n in problem.graph.node_classes[class_id]]
        wanted = {pinned[t] for t in of_class if t is not None and t in pinned}
        for strategy in problem.strategies[class_id].all:
            # Identical arguments have one strategy; if rules tell them apart, it follows one of the
            # rules.
            if not wanted or strategy == min(wanted):
                yield strategy

    # The memory limit is ignored: rules that exceed it are shown with their memory.
    candidates = [tuple(allowed(k)) for k in range(len(problem.strategies))]
    free = dataclasses.replace(options.linear, memory_limit=None)
    return solver.solve(problem, candidates, free).cost


def _one(axes: Axes) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _spec_text(axes: Axes) -> str:
    return ", ".join(axes) or "not sharded"
