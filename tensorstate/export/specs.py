"""The shardings of a plan as trees of ``PartitionSpec``: whole, and independent of devices."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from tensorstate.cost.cost import Cost
from tensorstate.cost.reshard_plan import Decisions, has_no_partial
from tensorstate.execution.placement_table import PlacementTable, to_partition_spec
from tensorstate.execution.sharded_step import partition_specs
from tensorstate.problem.problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class PlanSpecs:
    """The shardings of a plan.

    Under ``jax.set_mesh(plan.make_mesh())`` they are arguments of ``jax.jit(step, in_shardings=,
    out_shardings=)``; the compiler then decides everything else.

    Attributes:
        arguments, results: ``PartitionSpec`` in the structure of the step's arguments and of its
            result.
        activations: ``PartitionSpec`` of results of operators in the forward pass, as their first
            reader gets them, by primitive, name stack and line. If a line runs several times with
            different shardings, they are numbered from the second. Sharded minor factors of a
            dimension have no ``PartitionSpec``, and are left out.
        padded: by path, the shapes of the arguments that the plan pads, as traced and on the
            devices. The shardings are those of the longer arrays.
    """

    arguments: Any
    results: Any
    activations: Mapping[str, PartitionSpec]
    padded: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = dataclasses.field(
        default_factory=dict
    )

    def __repr__(self) -> str:
        arguments, results = map(len, map(jax.tree.leaves, (self.arguments, self.results)))
        return (
            f"PlanSpecs({arguments} arguments, {results} results, "
            f"{len(self.activations)} activations)"
        )


def plan_specs(problem: Problem, decisions: Decisions, cost: Cost) -> PlanSpecs:
    """The shardings of a plan's decisions."""
    table = PlacementTable(problem, decisions, cost)
    arguments, results = partition_specs(table)
    padding = table.traced.padding
    return PlanSpecs(
        jax.tree.unflatten(table.graph.in_tree, arguments),
        jax.tree.unflatten(table.graph.out_tree, results),
        _activations(table),
        {}
        if padding is None
        else {array.name: (array.shape, array.padded_shape) for array in padding.inputs.values()},
    )


def _activations(table: PlacementTable) -> dict[str, PartitionSpec]:
    graph = table.graph
    by_line: dict[str, dict[PartitionSpec, None]] = defaultdict(dict)
    for operator in graph.operators:
        if operator.phase != "forward":
            continue
        for use, view in zip(operator.results, operator.eqn.outputs, strict=True):
            read = graph.tensors[use.tensor].consumers
            # As read, since a partial sum has no spec; as produced, if nobody reads it.
            placements = [table.operand_placements(c.operator, c.operand) for c in read]
            placements.append(table.produced_placements(use.tensor))
            first = next((p for p in placements if p is not None and has_no_partial(p)), None)
            spec = None if first is None else to_partition_spec(view, first, table.mesh)
            if spec is not None and view.shape:
                by_line[f"{operator.primitive} {operator.source}"][spec] = None
    # A line in a loop of the user's runs once per layer, mostly with one sharding in all of them.
    named = {}
    for name, specs in by_line.items():
        for number, spec in enumerate(specs, 1):
            named[name if number == 1 else f"{name} #{number}"] = spec
    return named
