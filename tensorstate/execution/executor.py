"""Interprets one device's share of a plan, operator by operator.

Recomputed operators and repeated all-gathers depend on the preceding matrix product; otherwise
XLA's common-subexpression elimination would reuse the first result. On accelerators, gathers after
the forward pass depend on its end only, so that they can overlap with compute. XLA on CPU overlaps
nothing, and starts every operator as early as possible, whatever memory that takes. There, products
depend on each other in order, gathers wait until their result is read, and reductions and
transposes of the backward pass are materialized in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.execution.collectives import (
    Collectives,
    apply_reshard_step,
    local_shard,
    shard_index,
)
from tensorstate.execution.interpreter import read, run_operator
from tensorstate.execution.microbatch_loop import Copies, MicrobatchLoop
from tensorstate.execution.ordering import ExecutionOrder, completion_scalar, materialize, wait_for
from tensorstate.execution.placement_table import PlacementTable
from tensorstate.ir.graph import Graph, Operator, Output
from tensorstate.ir.placements import REPLICATED, MeshShape, Placements, num_shards
from tensorstate.problem.reshard import ReshardStep
from tensorstate.rules.local_shard import LocalShard, MicrobatchSlice

# Kinds of operators that take most of the time; execution is ordered by them.
MATMUL_KINDS = ("einsum", "window")


class LocalExecutor:
    """Traces the execution of one device: its copies of every tensor in both passes.

    Args:
        microbatch: the microbatch, for an executor of the loop body.
        reshards: the reshard plan of every tensor; by default that of the plan.
        inputs: the tensors that exist at the beginning.
    """

    def __init__(
        self,
        table: PlacementTable,
        collectives: Collectives,
        overlap: bool,
        microbatch: MicrobatchSlice | None = None,
        reshards: Mapping[int, ReshardPlan] | None = None,
        inputs: Mapping[int, Copies] | None = None,
    ):
        self.overlap = overlap
        self.table, self.graph, self.mesh = table, table.graph, table.mesh
        self.collectives, self.microbatch = collectives, microbatch
        self.reshards = table.reshards if reshards is None else reshards
        self.inputs: dict[int, Copies] = dict(inputs or {})
        self.in_forward: dict[int, Copies] = {}
        self.after_forward: dict[int, Copies] = {}
        self.pending: dict[int, Copies] = {}  # to be resharded at the first read
        self.last: jax.Array | None = None  # the last result so far
        self.forward_done: list[jax.Array] | None = None  # tokens of the end of the forward pass
        self.clock = (
            ExecutionOrder()
        )  # advances at matrix products and at the end of the forward pass
        # The tick after which all copies of a tensor in a pass are available; 0 if unknown.
        self.ready_at: dict[tuple[int, bool], int] = defaultdict(int)
        self._gradients: dict[tuple[int, Placements], jax.Array] = {}
        self._updates = _updates(self.graph)
        self._made_of: dict[int, list[jax.Array]] = defaultdict(list)

    def run(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The local results of a step, from the local arguments."""
        self.take(leaves)
        if self.table.problem.microbatch_split is None:
            self.work(self.graph.operators)
            return tuple(map(self.result, self.graph.outputs))
        last = self.after_loop(MicrobatchLoop(self.table))
        return tuple(map(last.result, self.graph.outputs))

    def after_loop(self, loop: MicrobatchLoop) -> LocalExecutor:
        """The executor after the microbatch loop and the operators that follow it."""
        before = {
            tensor: self.reshard(dict(copies), self.reshards[tensor].before_loop.steps)
            for tensor, copies in self.inputs.items()
        }

        def body(microbatch: MicrobatchSlice) -> Callable[[int, Placements], jax.Array]:
            inputs = loop.inputs(before, microbatch)
            executor = LocalExecutor(
                self.table, self.collectives, self.overlap, microbatch, inputs=inputs
            )
            executor.work(loop.in_loop)
            return executor.made

        inputs = {**self.inputs, **loop.run(body)}
        last = LocalExecutor(
            self.table, self.collectives, self.overlap, reshards=loop.reshards(), inputs=inputs
        )
        last.work(loop.after_loop, after_forward=True)
        return last

    def work(self, operators: Sequence[Operator], after_forward: bool = False) -> None:
        """Run operators in order; with ``after_forward``, all of them after the forward pass."""
        for operator in operators:
            in_forward = operator.phase == "forward" and not after_forward
            if not in_forward and self.forward_done is None:
                self.end_forward()
            self.execute(operator, in_forward)

    def end_forward(self) -> None:
        """Reshard the saved tensors to their saved placements."""
        for tensor in tuple(self.pending):
            self.copies(tensor, in_forward=True)
        if self.last is not None:
            self.clock.tick(self.last)
        self.forward_done = self.clock.latest if self.overlap else []

    def take(self, leaves: Sequence[jax.Array]) -> None:
        """Load the local arguments and constants; they are resharded at their first read."""
        for tensor, leaf in zip(self.graph.inputs, leaves, strict=True):
            placements = self.table.produced_placements(tensor)
            self.inputs[tensor] = {placements: leaf.reshape(self.sizes(tensor, placements))}
        for tensor, value in self.graph.constants:
            placements = self.table.produced_placements(tensor)
            replicated = jnp.asarray(value).reshape(self.table.traced.tensors[tensor].sizes)
            self.inputs[tensor] = {placements: local_shard(replicated, placements, self.mesh)}

    def sizes(self, tensor: int, placements: Placements) -> list[int]:
        """Local elements of every position, over all microbatches."""
        sizes = enumerate(self.table.traced.tensors[tensor].sizes)
        return [size // num_shards(placements, position, self.mesh) for position, size in sizes]

    def era(self, in_forward: bool) -> dict[int, Copies]:
        """The copies in the forward pass, or after it."""
        return self.in_forward if in_forward else self.after_forward

    def put(self, tensor: int, made: jax.Array, ready_at: int, in_forward: bool) -> None:
        """Store a result: in the forward pass it is resharded when read, after it at once."""
        self.last = made
        self.ready_at[tensor, in_forward] = ready_at
        reshard = self.reshards.get(tensor)
        if reshard is None:  # only its own node reads it
            placements = self.table.produced_placements(tensor)
            self.era(in_forward)[tensor] = {placements: made}
        elif in_forward:
            self.pending[tensor] = {reshard.produced_placements: made}
        else:
            self.after_forward[tensor] = self.reshard(
                {reshard.produced_placements: made}, reshard.after_forward.steps
            )

    def reshard(self, copies: Copies, steps: Sequence[ReshardStep]) -> Copies:
        """All copies after reshard steps, each of which starts from an existing copy."""
        for step in steps:
            x = copies[step.source]
            copies[step.target] = apply_reshard_step(step, x, self.mesh, self.collectives)
        return copies

    def copies(self, tensor: int, in_forward: bool) -> Copies:
        """The copies of a tensor in a pass, resharded or recomputed on demand."""
        if tensor in self.inputs and tensor not in self.in_forward:
            self.pending[tensor] = dict(self.inputs[tensor])
        if tensor in self.pending:
            copies, steps = self.pending.pop(tensor), self.reshards[tensor].in_forward.steps
            self.bring(tensor, copies, steps, self.ready_at[tensor, True], in_forward=True)
        if in_forward:
            return self.in_forward[tensor]
        if tensor not in self.after_forward:
            reshard = self.reshards.get(tensor)
            producer = self.graph.tensors[tensor].producer
            ready_at = self.ready_at[tensor, True]
            if tensor not in self.inputs and self.is_recomputed(producer):
                self.execute(self.graph.operators[producer or 0], in_forward=False, recomputed=True)
            elif reshard is None:
                self.bring(tensor, dict(self.in_forward[tensor]), (), ready_at, in_forward=False)
            else:
                there = self.inputs.get(tensor, ()) or (
                    [] if reshard.saved else [reshard.produced_placements]
                )
                wanted = [*there, *([reshard.saved] if reshard.saved else [])]
                base = {s: self.in_forward[tensor][s] for s in wanted}
                self.bring(tensor, base, reshard.after_forward.steps, ready_at, in_forward=False)
        return self.after_forward[tensor]

    def bring(
        self,
        tensor: int,
        copies: Copies,
        steps: Sequence[ReshardStep],
        ready_at: int,
        in_forward: bool,
    ) -> None:
        """Reshard a tensor in a pass, by collectives that wait as long as the plan says.

        Args:
            ready_at: the tick after which all copies are available.
        """
        if any(step.kind != "slice" for step in steps):
            there = [*copies.values()]
            if not self.overlap:
                there, ready_at = self.clock.hold(there), self.clock.ticks
            elif not in_forward:
                there = wait_for(there, *self.forward_done or ())
            copies = dict(zip(copies, there, strict=True))
        self.era(in_forward)[tensor] = self.reshard(copies, steps)
        self.ready_at[tensor, in_forward] = ready_at

    def copy(self, tensor: int, placements: Placements, in_forward: bool) -> jax.Array:
        """The copy of a tensor in given placements.

        It may be missing if two nodes of a class read one tensor and only one is recomputed, since
        both share a reshard plan: then the tensor is resharded here.
        """
        there = self.copies(tensor, in_forward)
        if placements not in there:
            reshard = self.reshards[tensor]
            reshard_graph = self.table.problem.reshard_graph(
                self.table.problem.tensor_groups[reshard.group]
            )
            self.reshard(
                there, reshard_graph.cheapest_tree(frozenset(there), frozenset({placements})).steps
            )
        return there[placements]

    def is_recomputed(self, producer: int | None) -> bool:
        """Whether an operator's node is recomputed."""
        return (
            producer is not None
            and self.table.positions[producer].node in self.table.recomputed_nodes
        )

    def execute(self, operator: Operator, in_forward: bool, recomputed: bool = False) -> None:
        """Run an operator on the local shards of its operands, and store its results."""
        wanted = [
            self.table.operand_placements(operator.index, k)
            or self.table.produced_placements(use.tensor)
            for k, use in enumerate(operator.operands)
        ]
        tensors = [use.tensor for use in operator.operands]
        arrays = [self.copy(*which, in_forward) for which in zip(tensors, wanted, strict=True)]
        if operator.phase == "optimizer":
            arrays = [*map(self.gradient, tensors, wanted, arrays)]
        arrays, ready_at = self.hold(operator, wanted, arrays, in_forward, recomputed)
        zeroed = self.clock.latest if operator.kind == "scatter" else ()
        made = run_operator(operator, arrays, self.shard(operator), *zeroed)
        if operator.kind in MATMUL_KINDS:
            self.clock.tick(made[0])
            ready_at = self.clock.ticks
        elif operator.kind == "reduction" and not (in_forward or self.overlap):
            made = [*map(materialize, made)]
        for use, x in zip(operator.results, made, strict=True):
            self.put(use.tensor, x, ready_at, in_forward)
        if not in_forward and operator.phase != "optimizer":
            for tensor in tensors:
                if tensor in self.inputs:
                    self._made_of[tensor].append(made[0])

    def hold(
        self,
        operator: Operator,
        wanted: Sequence[Placements],
        arrays: list[jax.Array],
        in_forward: bool,
        recomputed: bool,
    ) -> tuple[list[jax.Array], int]:
        """The operands behind the barriers that the operator needs, and the tick it depends on."""
        tensors, now = [use.tensor for use in operator.operands], self.clock.ticks
        ready_at = max((self.ready_at[tensor, in_forward] for tensor in tensors), default=0)
        pending = [
            k
            for k, tensor in enumerate(tensors)
            if self.ready_at[tensor, in_forward] < now and self.waits(operator, tensor, recomputed)
        ]
        in_turn = operator.kind in (MATMUL_KINDS if in_forward else (*MATMUL_KINDS, "opaque"))
        every = in_turn and not (self.overlap or pending) and ready_at < now
        chosen = [*range(len(arrays))] if every else pending
        if not chosen:
            return arrays, ready_at
        loop_resident = self.clock.hold([arrays[k] for k in chosen])
        for k, x in zip(chosen, loop_resident, strict=True):
            arrays[k] = x
        for k in pending:  # shared with the other consumers
            copies = self.era(in_forward)[tensors[k]]
            copies[wanted[k]] = arrays[k]
            if len(copies) == 1:
                self.ready_at[tensors[k], in_forward] = now
        return arrays, now

    def waits(self, operator: Operator, tensor: int, recomputed: bool) -> bool:
        """Whether an operand must not be available before this point of the backward pass.

        A recomputed operand needs no barrier: its own operands wait.
        """
        region, producer = operator.eqn.remat_region, self.graph.tensors[tensor].producer
        if not recomputed and region is None:
            return False
        if producer is None:
            return True
        same = region is not None and self.graph.operators[producer].eqn.remat_region == region
        return not (same or self.is_recomputed(producer))

    def gradient(self, tensor: int, placements: Placements, x: jax.Array) -> jax.Array:
        """The gradient of an argument, after all other operators have read the argument.

        A weight's gradient does not depend on the backward operators that read the weight. Without
        this dependency XLA copies the weight at the beginning of the step.
        """
        if (tensor, placements) not in self._gradients:
            made = [m for inputs in self._updates.get(tensor, ()) for m in self._made_of[inputs]]
            self._gradients[tensor, placements] = wait_for([x], *map(completion_scalar, made))[0]
        return self._gradients[tensor, placements]

    def shard(self, operator: Operator) -> LocalShard:
        """The shard of an operator's labels on this device."""
        strategy, labels = (
            self.table.strategy(operator.index),
            self.table.positions[operator.index].labels,
        )
        counts = tuple(num_shards(strategy, label, self.mesh) for label in labels)
        indices = {
            own: shard_index(strategy, label, self.mesh)
            for own, label in enumerate(labels)
            if counts[own] > 1
        }
        microbatch_split, microbatch = self.table.problem.microbatch_split, self.microbatch
        batch = None if microbatch_split is None else microbatch_split.labels[operator.index]
        if microbatch is None or batch is None:
            return LocalShard(operator.sizes, counts, indices)
        counts = tuple(
            n * (microbatch.count if own == batch else 1) for own, n in enumerate(counts)
        )
        sizes = self.table.traced.operators[operator.index].sizes
        return LocalShard(sizes, counts, indices, microbatch, batch)

    def result(self, out: Output) -> jax.Array:
        """A local result of the step, in its returned placements."""
        tensor, placements = out.view.tensor, self.table.returned_placements(out)
        if tensor is None:
            return read(out.view, None, out.view.sizes)
        x = self.made(tensor, placements)
        sizes = iter(self.sizes(tensor, placements))
        by_position = dict(enumerate(sizes))
        local = [
            [size if p is None else by_position[p] for p, size in zip(*pair, strict=True)]
            for pair in zip(out.view.positions, out.view.sizes, strict=True)
        ]
        return read(out.view, x, local)

    def made(self, tensor: int, placements: Placements) -> jax.Array:
        """The final copy of a tensor in given placements."""
        if self.microbatch is not None and placements in self.in_forward.get(tensor, {}):
            return self.in_forward[tensor][placements]
        there = self.copies(tensor, in_forward=False)
        if placements not in there:  # no copy has a PartitionSpec
            replicated = next(s for s in there if min(s, default=0) >= REPLICATED)
            gathers = _gathers(replicated, self.graph.tensors[tensor].nbytes, self.mesh)
            there = self.reshard(dict(there), gathers)
        return there[placements]


def _updates(graph: Graph) -> dict[int, set[int]]:
    """By gradient, the arguments that it updates.

    A gradient reaches its argument's new value through operators on tensors of that size.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for out in graph.outputs:
        if out.updates is None or out.view.tensor is None:
            continue
        inputs, pending, seen = graph.inputs[out.updates], [out.view.tensor], set()
        while pending:
            tensor = graph.tensors[pending.pop()]
            if tensor.producer is None or tensor.index in seen:
                continue
            seen.add(tensor.index)
            operator = graph.operators[tensor.producer]
            if operator.phase != "optimizer":
                found[tensor.index].add(inputs)
                continue
            same = [use.tensor for use in operator.operands]
            pending += [t for t in same if graph.tensors[t].size == tensor.size]
    return found


def _gathers(placements: Placements, nbytes: int, mesh: MeshShape) -> list[ReshardStep]:
    """The all-gathers that replicate a tensor, the minor mesh axis first."""
    steps = []
    for axis in reversed(range(len(placements))):
        if placements[axis] != REPLICATED:
            target = (*placements[:axis], REPLICATED, *placements[axis + 1 :])
            steps.append(
                ReshardStep(
                    "all_gather", axis, placements, target, nbytes // mesh.num_shards(target)
                )
            )
            placements = target
    return steps
