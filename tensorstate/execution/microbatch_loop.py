"""The microbatch loop on a device: slices the batch, accumulates sums, concatenates results.

The loop is a ``lax.scan``. Sums and other tensors that are read after the loop are in its carry.
Microbatches of tensors that the step returns are stacked, and concatenated after it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.cost.reshard_plan import NO_RESHARD, ReshardPlan
from tensorstate.errors import PlanError
from tensorstate.execution.interpreter import wait_for
from tensorstate.execution.placement_table import PlacementTable, num_shards
from tensorstate.ir.graph import Operator
from tensorstate.ir.placements import MAX, MIN, REPLICATED, SUM, Placements
from tensorstate.rules.sharding_rule import MicrobatchSlice

Copies = dict[Placements, jax.Array]
PlacedTensor = tuple[int, Placements]
"""A tensor in given placements."""

ACCUMULATE: Mapping[int, Callable[[Any, Any], Any]] = {
    SUM: jnp.add,
    MAX: jnp.maximum,
    MIN: jnp.minimum,
    REPLICATED: lambda before, now: now,
}


class MicrobatchLoop:
    """The microbatch loop of a plan.

    Args:
        table: the placements of all tensors of a problem with microbatches.
    """

    def __init__(self, table: PlacementTable):
        if table.problem.microbatch_split is None:
            raise PlanError("a step without microbatches has no loop")
        self.table, self.microbatch_split = table, table.problem.microbatch_split
        self.count, self.mesh = table.problem.microbatches, table.mesh
        graph = table.graph
        pairs = zip(graph.operators, self.microbatch_split.stages, strict=True)
        self.in_loop: list[Operator] = []
        self.after_loop: list[Operator] = []
        for operator, stage in pairs:
            (self.in_loop if stage == "loop" else self.after_loop).append(operator)
        inputs = [*graph.inputs, *(tensor for tensor, _ in graph.constants)]
        # The local shard of the batch is sliced, whatever its placements: see ``MicrobatchSlice``.
        parts = [
            self._devices(t, table.produced_placements(t))
            for t in inputs
            if self.batch_placement(t) >= 0
        ]
        self.batch_shards = math.lcm(*parts)

    def batch_placement(self, tensor: int) -> int:
        """The placement of a tensor along the loop."""
        return self.microbatch_split.batch_placements[tensor]

    def _devices(self, tensor: int, placements: Placements) -> int:
        """Number of shards of a tensor's batch dimension."""
        return num_shards(placements, self.batch_placement(tensor), self.mesh)

    @property
    def uses_after_loop(self) -> list[PlacedTensor]:
        """The tensors that are read after the loop, without inputs."""
        uses = []
        for tensor, reshard in self.table.reshards.items():
            group = self.table.problem.tensor_groups[reshard.group]
            if reshard.loop_resident is not None and not group.is_input:
                uses.append((tensor, reshard.loop_resident))
        return uses

    @property
    def returned(self) -> list[PlacedTensor]:
        """The tensors that the step returns split into microbatches."""
        outputs = self.table.graph.outputs
        return list(
            dict.fromkeys(
                (out.view.tensor, self.table.returned_placements(out))
                for out in outputs
                if out.view.tensor is not None and self.batch_placement(out.view.tensor) >= 0
            )
        )

    def reshards(self) -> dict[int, ReshardPlan]:
        """The reshard plans after the loop."""
        tensor_groups = self.table.problem.tensor_groups
        return {
            tensor: dataclasses.replace(
                reshard, in_forward=NO_RESHARD, after_forward=reshard.after_loop, saved=None
            )
            if tensor_groups[reshard.group].in_loop
            else reshard
            for tensor, reshard in self.table.reshards.items()
        }

    def inputs(
        self, before: Mapping[int, Copies], microbatch: MicrobatchSlice
    ) -> dict[int, Copies]:
        """The inputs of a microbatch: slices of the batch, and loop-resident copies.

        An input that is resharded in every microbatch depends on the loop index; otherwise XLA
        would hoist the collectives out of the loop.
        """
        copies_of = {}
        for tensor, copies in before.items():
            reshard = self.table.reshards[tensor]
            if reshard.loop_resident is not None:
                copies = {reshard.loop_resident: copies[reshard.loop_resident]}
            if self.batch_placement(tensor) >= 0:
                copies_of[tensor] = {
                    placements: microbatch.slice_batch(
                        x, self.batch_placement(tensor), self._devices(tensor, placements)
                    )
                    for placements, x in copies.items()
                }
            elif any(
                step.kind != "slice"
                for step in (*reshard.in_forward.steps, *reshard.after_forward.steps)
            ):
                arrays = wait_for([*copies.values()], microbatch.index)
                copies_of[tensor] = dict(zip(copies, arrays, strict=True))
            else:
                copies_of[tensor] = copies
        return copies_of

    def run(
        self, body: Callable[[MicrobatchSlice], Callable[[int, Placements], jax.Array]]
    ) -> dict[int, Copies]:
        """The tensors after the loop.

        Args:
            body: the body of the loop; it returns a function that gives a tensor's final copy.
        """
        dtypes = {
            tensor: self.table.graph.tensors[tensor].dtype for tensor, _ in self.uses_after_loop
        }
        # Random keys cannot be accumulated from zero.
        keys = [
            w for w in self.uses_after_loop if jnp.issubdtype(dtypes[w[0]], jax.dtypes.extended)
        ]
        carried = [where for where in self.uses_after_loop if where not in keys]
        stacked = [*self.returned, *keys]

        def microbatch(total: list[jax.Array], index: jax.Array):
            final_copy = body(MicrobatchSlice(index, self.count, self.batch_shards))
            total = [
                self._accumulated(tensor, before, final_copy(tensor, placements), index)
                for (tensor, placements), before in zip(carried, total, strict=True)
            ]
            return total, [final_copy(*where) for where in stacked]

        zeros = [jnp.zeros(self._sizes(*where), dtypes[where[0]]) for where in carried]
        totals, stacks = lax.scan(microbatch, zeros, jnp.arange(self.count))
        copies_of: dict[int, Copies] = {}
        for (tensor, placements), x in zip(carried, totals, strict=True):
            copies_of.setdefault(tensor, {})[placements] = x
        for (tensor, placements), x in zip(stacked, stacks, strict=True):
            copies_of.setdefault(tensor, {})[placements] = self._join_microbatches(
                tensor, placements, x
            )
        return copies_of

    def _sizes(self, tensor: int, placements: Placements) -> list[int]:
        sizes = enumerate(self.table.graph.tensors[tensor].sizes)
        return [size // num_shards(placements, position, self.mesh) for position, size in sizes]

    def _accumulated(
        self, tensor: int, before: jax.Array, now: jax.Array, index: jax.Array
    ) -> jax.Array:
        """A carried tensor after microbatch ``index``; the first replaces a maximum or minimum."""
        placement = self.batch_placement(tensor)
        total = ACCUMULATE[placement](before, now)
        return jnp.where(index == 0, now, total) if placement in (MAX, MIN) else total

    def _join_microbatches(
        self, tensor: int, placements: Placements, stack: jax.Array
    ) -> jax.Array:
        if self.batch_placement(tensor) < 0:
            return stack[-1]
        microbatch = MicrobatchSlice(0, self.count, self.batch_shards)
        return microbatch.join_batch(
            stack, self.batch_placement(tensor), self._devices(tensor, placements)
        )
