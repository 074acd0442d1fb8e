"""Interprets one device's share of a plan, operator by operator.

Operators that rerun and repeated all-gathers depend on the preceding matrix product; otherwise
XLA's common-subexpression elimination would reuse the first result. On accelerators, gathers after
the forward pass depend on its end only, so that they overlap with compute, and each bucket is
gathered or reduced as one. XLA on CPU overlaps nothing and starts every operator as early as
possible, however much memory that takes. So on CPU products depend on each other in order, gathers
wait until their result is read, the reductions and transposes of the backward pass are materialized
in it, and what reductions read is computed late (``fused_results``).
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorstate.cost.reshard_plan import ReshardPlan
from tensorstate.errors import PlanError
from tensorstate.execution.buckets import gather_together, send
from tensorstate.execution.early_updates import (
    early_updates,
    is_gradient_scatter,
    last_results,
)
from tensorstate.execution.fused_results import fused_with_reductions, rebuilt_results
from tensorstate.execution.microbatch_loop import (
    Copies,
    ExecutionOrder,
    MicrobatchLoop,
    completion_scalar,
    materialize,
    read_view,
    run_operator,
    updated_args,
    wait_for,
)
from tensorstate.execution.placement_table import (
    Collectives,
    PlacementTable,
    all_gathers,
    apply_reshard_step,
    lax_collectives,
    local_shard,
    sizes_through_view,
)
from tensorstate.execution.stage_loop import run_interleaved, run_stages
from tensorstate.execution.step_loop import MirroredReads, by_loop, run_loop
from tensorstate.ir.graph import Operator, Output
from tensorstate.ir.placements import REPLICATED, Placements, num_shards
from tensorstate.problem.reshard import ReshardStep
from tensorstate.rules.sharding_rule import LocalShard, MicrobatchSlice

# Kinds of operators that take most of the time; execution is ordered by these operators.
MATMUL_KINDS = ("einsum", "window")


# XLA begins copies to the host and back whenever it likes, and ends those to the host as late as it
# can: on H100s the activations of eight layers were all on the device at once. Behind barriers a
# copy ends before the next product begins, and one back begins after the product before its reader.
# For TPUs a barrier would bring what is on the host to the device, and send it again: only those in
# iterations of a loop, which ends when its stacks are stored, are in their places.
def holds_copies(table: PlacementTable, platform: str) -> bool:
    """Whether copies to the host and back are held at their places by barriers.

    Raises:
        PlanError: a plan that copies to the host where they cannot be held.
    """
    if platform != "tpu":
        return True
    graph = table.graph
    free = [
        tensor
        for tensor, reshard in table.reshards.items()
        if reshard.keeping.on_host and reshard.saved is not None and not graph.loops_around(tensor)
    ]
    if free:
        raise PlanError(
            f"{len(free)} tensors of the plan wait on the host outside of scans, where XLA for "
            "TPUs keeps them on the device: scan over the layers (jax.lax.scan), or search with "
            "a larger memory_limit or other ways to keep activations"
        )
    return False


class LocalExecutor:
    """Traces the execution of one device: its copies of every tensor in both passes.

    Args:
        microbatch: the microbatch, for an executor of the loop body.
        reshards: the reshard plan of every tensor; those of the plan by default.
        inputs: the tensors that exist at the beginning.
        holds_copies: whether copies to the host and back are held at their places by barriers.
    """

    def __init__(
        self,
        table: PlacementTable,
        collectives: Collectives,
        overlap: bool,
        microbatch: MicrobatchSlice | None = None,
        reshards: Mapping[int, ReshardPlan] | None = None,
        inputs: Mapping[int, Copies] | None = None,
        *,
        holds_copies: bool = True,
    ):
        self.overlap, self.holds_copies = overlap, holds_copies
        self.depth = 0  # loops of the step around these operators
        self.table, self.graph, self.mesh = table, table.graph, table.mesh
        self.collectives, self.microbatch = collectives, microbatch
        self.reshards = table.reshards if reshards is None else reshards
        self.inputs: dict[int, Copies] = dict(inputs or {})
        self.in_forward: dict[int, Copies] = {}
        self.after_forward: dict[int, Copies] = {}
        self.pending: dict[int, Copies] = {}  # to be resharded at the first read
        self.arrived: dict[tuple[int, str], Copies] = {}  # gathered by a bucket, not read yet
        self.unsent: dict[int, Copies] = {}  # results that wait for the rest of their bucket
        self.done: set[int] = set()  # casts that ran early, for a bucket
        self.stacks: dict[int, jax.Array] = {}  # of tensors of bodies that loops mirror
        self.on_host: dict[int, jax.Array] = {}  # copies for the backward pass
        self.leaving: list[int] = []  # of these, those that may be on their way
        self.mirrored = MirroredReads(self.graph, table.reruns)
        none = frozenset[int]()
        self.rebuilt = none if overlap else rebuilt_results(table)
        self.fused = none if overlap else fused_with_reductions(self.graph)
        self.last: tuple[jax.Array, Placements] | None = None  # the last result so far
        self.forward_done: list[jax.Array] | None = None  # tokens of the end of the forward pass
        # It advances at matrix products, on CPU at scatters, and at the end of the forward pass.
        self.order = ExecutionOrder()
        # The event after which all copies of a tensor in a pass are available; 0 if unknown.
        self.ready_at: dict[tuple[int, bool], int] = defaultdict(int)
        self._gradients: dict[tuple[int, Placements], jax.Array] = {}
        self._updated_args = updated_args(self.graph)
        self._results_that_read: dict[int, list[jax.Array]] = defaultdict(list)

    def run(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The local results of a step, from the local arguments."""
        self.load_inputs(leaves)
        if self.table.problem.microbatch_split is None:
            self.run_operators(self.graph.operators)
            return tuple(map(self.result, self.graph.outputs))
        last = self.after_loop(MicrobatchLoop(self.table))
        return tuple(map(last.result, self.graph.outputs))

    def after_loop(self, loop: MicrobatchLoop) -> LocalExecutor:
        """The executor of the operators that follow the microbatch loop."""
        here = self.table, self.collectives, self.overlap
        held = self.holds_copies
        before = {
            tensor: self.reshard(tensor, dict(copies), self.reshards[tensor].before_loop.steps)
            for tensor, copies in self.inputs.items()
        }

        def body(microbatch: MicrobatchSlice) -> Callable[[int, Placements], jax.Array]:
            inputs = loop.inputs(before, microbatch)
            executor = LocalExecutor(*here, microbatch, inputs=inputs, holds_copies=held)
            executor.run_operators(loop.in_loop)
            return executor.final_copy

        inputs = {**self.inputs, **loop.run(body)}
        last = LocalExecutor(*here, reshards=loop.reshards(), inputs=inputs, holds_copies=held)
        last.run_operators(loop.after_loop, after_forward=True)
        return last

    def run_operators(self, operators: Sequence[Operator], after_forward: bool = False) -> None:
        """Run operators in order; with ``after_forward``, all of them after the forward pass."""
        for loop, body in by_loop(operators, self.depth):
            for operator in body if loop is None else body[:1]:
                in_forward = operator.phase == "forward" and not after_forward
                if not in_forward and self.forward_done is None:
                    self.end_forward()
                if operator.index in self.done:
                    continue
                if loop is None:
                    self.execute(operator, in_forward)
                else:
                    self.run_step_loop(loop, body, in_forward)

    # ------------------------------------------------------------------ loops of the step

    def run_step_loop(self, number: int, body: Sequence[Operator], in_forward: bool) -> None:
        """Run a loop of the step, and store its results."""
        staged = self.table.problem.pipeline
        if staged is not None and number in staged.together:
            body = [o for o in self.graph.operators if {*o.loops[:1]} & staged.together]
            self.done.update(operator.index for operator in body)
            results, in_forward = run_interleaved(self, body), False
        elif staged is not None and number in staged.loops:
            results = run_stages(self, number, body)
        else:
            results = run_loop(self, self.graph, number, body, self.unrolled(number))
        made = ((x, self.table.produced_placements(tensor)) for tensor, x in results.items())
        rows = (
            (self.table.keeping(tensor).fetch(x[0], x.dtype), self.table.saved_placements(tensor))
            for tensor, x in self.stacks.items()
        )
        first, placements = next(made if results else rows)
        self.order.advance(first, placements)
        for tensor, x in results.items():
            producer = self.graph.operators[self.graph.tensors[tensor].producer or 0]
            self.write(tensor, x, self.order.num_events, producer.phase == "forward")
        if not in_forward:
            _, again = self.mirrored[number]
            read = {use.tensor for operator in (*body, *again) for use in operator.operands}
            for tensor in read & self.inputs.keys():
                self._results_that_read[tensor].append(first)

    def unrolled(self, number: int) -> int:
        """Iterations of a loop in one body: one on CPU, and where a stack is on the host.

        XLA for GPUs fails to compile such a stack if an iteration stores several rows.
        """
        loops = (number, self.graph.mirrored.get(number))
        stacked = (tensor for loop in loops for tensor in self.mirrored[loop][0])
        if not self.overlap or any(self.table.keeping(tensor).on_host for tensor in stacked):
            return 1
        return self.table.unrolled.get(number, 1)

    def body(self, operators: Sequence[Operator]) -> Callable[[], LocalExecutor]:
        """A function that makes executors of a loop's body, with their own execution order."""
        read = self.read_by(operators)
        return lambda: self.executor_of_body(*read)

    def microbatch_body(
        self, operators: Sequence[Operator]
    ) -> Callable[[MicrobatchSlice], LocalExecutor]:
        """A function that makes executors of a body on one microbatch, reading its batch part."""
        read, staged = self.read_by(operators, interleaved=True), self.table.problem.pipeline

        def executor(microbatch: MicrobatchSlice) -> LocalExecutor:
            child = self.executor_of_body(*read)
            child.microbatch = microbatch
            for tensor, copies in (*child.in_forward.items(), *child.after_forward.items()):
                position = None if staged is None else staged.outer_batch(tensor)
                if position is not None:
                    for placements, x in [*copies.items()]:
                        devices = num_shards(placements, position, self.mesh)
                        copies[placements] = microbatch.slice_batch(x, position, devices)
            return child

        return executor

    def read_by(
        self, operators: Sequence[Operator], interleaved: bool = False
    ) -> tuple[bool, dict[int, Copies], dict[int, Copies]]:
        """Whether a body begins in the forward pass, and the copies that it reads there and after.

        Args:
            interleaved: whether operators of both passes run in the body. If not, the operators of
                the forward pass in a body of the backward pass rerun.
        """
        # An operator of the forward pass that reruns in a body reads the copies that exist after
        # that pass, either stored or gathered for it.
        both: tuple[dict[int, Copies], dict[int, Copies]] = {}, {}
        begins_forward = (any if interleaved else all)(o.phase == "forward" for o in operators)
        for operator in operators:
            in_forward = begins_forward and operator.phase == "forward"
            copies = both[not in_forward]
            for k, use in enumerate(operator.operands):
                if len(self.graph.loops_around(use.tensor)) <= self.depth:
                    placements = self.table.read_placements(operator.index, k)
                    x = self.operand(operator, k, again=not in_forward)
                    copies.setdefault(use.tensor, {})[placements] = x
        return begins_forward, *both

    def executor_of_body(
        self,
        begins_forward: bool,
        in_forward: Mapping[int, Copies],
        after_forward: Mapping[int, Copies],
    ) -> LocalExecutor:
        """An executor of one iteration, with copies of the tensors that it reads from outside."""
        # These copies contain all that is known about a tensor outside. Tokens from outside are
        # left
        # out: a barrier in the body on one of them would make it an operand of every iteration.
        child = copy.copy(self)
        child.depth, child.inputs, child.pending, child.last = self.depth + 1, {}, {}, None
        child.arrived, child.unsent, child.done = {}, {}, set()
        child.on_host, child.leaving = {}, []
        child.in_forward = {tensor: dict(copies) for tensor, copies in in_forward.items()}
        child.after_forward = {tensor: dict(copies) for tensor, copies in after_forward.items()}
        child.forward_done = None if begins_forward else []
        child.order, child.ready_at = self.order.restarted(), defaultdict(int)
        child._gradients, child._results_that_read = {}, defaultdict(list)
        return child

    def operand(self, operator: Operator, k: int, again: bool = False) -> jax.Array:
        """An operand of an operator, in the placements that it requires."""
        placements = self.table.read_placements(operator.index, k)
        in_forward = operator.phase == "forward" and not again
        return self.read(operator.operands[k].tensor, placements, in_forward)

    def enter(self, operator: Operator, x: jax.Array, again: bool = False) -> None:
        """Store an operand of a body, or of the mirrored body for operators that rerun."""
        in_forward = operator.phase == "forward" and not again
        self.write(operator.results[0].tensor, x, 0, in_forward)

    def saved_copy(self, tensor: int) -> jax.Array:
        """The copy of a body's tensor that is stored for the loop that mirrors the body's loop."""
        copy = self.read_all(tensor, in_forward=True)[self.table.saved_placements(tensor)]
        return self.table.keeping(tensor).put(copy, copy.dtype)

    def restore(self, tensor: int, x: jax.Array) -> None:
        """Store again what the iteration of the forward pass has saved."""
        copy = self.table.keeping(tensor).fetch(x, self.graph.tensors[tensor].dtype)
        self.in_forward[tensor] = {self.table.saved_placements(tensor): copy}

    def in_turn(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """The initial carry of a loop, available once all results before it are."""
        # Random keys wait for nothing.
        whole = [k for k, x in enumerate(arrays) if isinstance(x.dtype, np.dtype)]
        delayed = self.after_copies([arrays[k] for k in whole])
        if delayed and not self.overlap and self.order.num_events:
            delayed = self.order.delay(delayed)
        for k, x in zip(whole, delayed, strict=True):
            arrays[k] = x
        return arrays

    def end_forward(self) -> None:
        """Reshard the saved tensors to their saved placements."""
        for tensor in tuple(self.pending):
            self.read_all(tensor, in_forward=True)
        # The last result is mostly the loss, and no gradient depends on it.
        if self.last is not None:
            self.order.advance(*self.last)
        self.forward_done = self.order.latest if self.overlap else []

    def load_inputs(self, leaves: Sequence[jax.Array]) -> None:
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
        return self.table.local_sizes(tensor, placements)

    def env(self, in_forward: bool) -> dict[int, Copies]:
        """The copies in the forward pass, or after it."""
        return self.in_forward if in_forward else self.after_forward

    def write(self, tensor: int, made: jax.Array, ready_at: int, in_forward: bool) -> None:
        """Store a result: reshard it when it is read in the forward pass, and at once after it."""
        placements = self.table.produced_placements(tensor)
        self.last = made, placements
        self.ready_at[tensor, in_forward] = ready_at
        reshard = self.reshards.get(tensor)
        if reshard is None:  # only its own node reads it
            self.env(in_forward)[tensor] = {placements: made}
        elif in_forward:
            self.pending[tensor] = {reshard.produced_placements: made}
            if self.table.keeping(tensor).on_host and not self.depth:
                self.read_all(tensor, in_forward)  # it leaves now, also if nothing reads it here
        else:
            self.unsent[tensor] = {reshard.produced_placements: made}
            bucket = self.table.buckets.get((tensor, "after_forward"), ()) if self.overlap else ()
            if self.unsent.keys() >= {sent.tensor for sent in bucket}:
                send(self, [sent.tensor for sent in bucket] or [tensor])

    def reshard(self, tensor: int, copies: Copies, steps: Sequence[ReshardStep]) -> Copies:
        """All copies after reshard steps, each of which starts from an existing copy."""
        # XLA fuses a slice into its readers and keeps the whole array for them; this costs nothing
        # for inputs, which stay in memory anyway. Plans that save shards of replicated results took
        # up to 50 % more memory than predicted.
        for step in steps:
            if step.target in copies:  # a bucket has made it
                continue
            made = self.reshard_step(step, copies[step.source])
            is_fused = step.kind == "slice" and tensor not in self.inputs
            copies[step.target] = materialize(made) if is_fused else made
        return copies

    def reshard_step(self, step: ReshardStep, x: jax.Array) -> jax.Array:
        """The copy after a reshard step, from the copy before it."""
        return apply_reshard_step(step, x, self.mesh, self.collectives)

    def read_all(self, tensor: int, in_forward: bool) -> Copies:
        """The copies of a tensor in a pass, resharded or rebuilt on demand."""
        if tensor in self.inputs and tensor not in self.in_forward:
            self.pending[tensor] = dict(self.inputs[tensor])
        if tensor in self.pending:
            copies, steps = self.pending.pop(tensor), self.reshards[tensor].in_forward.steps
            self.reshard_when_ready(tensor, copies, steps, self.ready_at[tensor, True], True)
        if in_forward:
            return self.in_forward[tensor]
        if tensor in self.unsent:
            send(self, [tensor])
        # The first read after the forward pass: rebuild the tensor, or start from the stored copy
        # and, for an input, from the copy that is given, which is in memory anyway.
        if tensor not in self.after_forward:
            reshard, keeping = self.reshards.get(tensor), self.table.keeping(tensor)
            producer = self.graph.tensors[tensor].producer
            is_again = keeping.reruns or tensor in self.rebuilt
            if tensor not in self.inputs and is_again:
                self.execute(self.graph.operators[producer or 0], in_forward=False, again=True)
                return self.after_forward[tensor]
            copies, steps = dict(self.in_forward[tensor]), ()
            if reshard is not None:
                saved = [reshard.saved] if reshard.saved else []
                produced = [] if saved else [reshard.produced_placements]
                kept = (*(self.inputs.get(tensor) or produced), *saved)
                copies = {placements: copies[placements] for placements in kept}
                for placements in saved if self.depth == 0 else ():  # a body's are in its stack
                    copies[placements] = self.stored_and_fetched(tensor, copies[placements])
                steps = reshard.after_forward.steps
            self.reshard_when_ready(tensor, copies, steps, self.ready_at[tensor, True], False)
        return self.after_forward[tensor]

    def reshard_when_ready(
        self,
        tensor: int,
        copies: Copies,
        steps: Sequence[ReshardStep],
        ready_at: int,
        in_forward: bool,
    ) -> None:
        """Reshard a tensor in a pass, by collectives that wait as long as the plan says.

        Args:
            ready_at: the event after which all copies are available.
        """
        if any(step.kind != "slice" for step in steps):
            arrays = [*copies.values()]
            if not self.overlap:
                arrays, ready_at = self.order.delay(arrays), self.order.num_events
            elif not in_forward:
                arrays = wait_for(arrays, *self.forward_done or ())
            copies = dict(zip(copies, arrays, strict=True)) | gather_together(
                self, tensor, in_forward
            )
        self.env(in_forward)[tensor] = self.reshard(tensor, copies, steps)
        self.ready_at[tensor, in_forward] = ready_at
        if in_forward:
            self.send_to_host(tensor)

    def send_to_host(self, tensor: int) -> None:
        """Copy a tensor that is kept there, as soon as it is made; a body's are in a stack."""
        saved, keeping = self.reshards[tensor].saved, self.table.keeping(tensor)
        if keeping.on_host and saved is not None and not self.depth:
            x = self.in_forward[tensor][saved]
            self.on_host[tensor] = keeping.put(x, x.dtype)
            self.leaving.append(tensor)

    def stored_and_fetched(self, tensor: int, x: jax.Array) -> jax.Array:
        """A copy for the backward pass as its keeping brings it back."""
        keeping, stored = self.table.keeping(tensor), self.on_host.get(tensor)
        if stored is None:
            stored = keeping.put(x, x.dtype)
        elif self.holds_copies:
            stored = self.order.delay([stored])[0]
        return keeping.fetch(stored, x.dtype)

    def after_copies(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays, available once all copies to the host have ended."""
        if not self.leaving or not self.holds_copies or not arrays:
            return list(arrays)
        leaving, self.leaving = self.leaving, []
        stored = [self.on_host[tensor] for tensor in leaving]
        both = lax.optimization_barrier((*arrays, *stored))
        self.on_host.update(zip(leaving, both[len(arrays) :], strict=True))
        return list(both[: len(arrays)])

    def read(self, tensor: int, placements: Placements, in_forward: bool) -> jax.Array:
        """The copy of a tensor in given placements.

        It may be missing if two nodes of a class read one tensor and only one of them reruns, since
        both share a reshard plan. Then the tensor is resharded here.
        """
        copies = self.read_all(tensor, in_forward)
        if placements not in copies:
            problem = self.table.problem
            group = problem.tensor_groups[self.reshards[tensor].group]
            reshard_graph = problem.reshard_graph(group)
            tree = reshard_graph.cheapest_tree(frozenset(copies), frozenset({placements}))
            self.reshard(tensor, copies, tree.steps)
        return copies[placements]

    def execute(self, operator: Operator, in_forward: bool, again: bool = False) -> None:
        """Run an operator on the local shards of its operands, and store its results."""
        updated = self.update_before(operator)
        tensors = [use.tensor for use in operator.operands]
        required = [self.table.read_placements(operator.index, k) for k in range(len(tensors))]
        arrays = [self.read(*which, in_forward) for which in zip(tensors, required, strict=True)]
        if operator.phase == "optimizer":
            arrays = [*map(self.gradient_after_uses, tensors, required, arrays)]
        arrays, ready_at = self.wait_in_order(operator, required, arrays, in_forward, again)
        if operator.kind in MATMUL_KINDS:
            arrays = self.after_copies(arrays)
        zeroed = [*self.order.latest, *updated] if operator.kind == "scatter" else []
        made = self.results_of(operator, arrays, zeroed)
        if operator.kind in MATMUL_KINDS:
            placements = self.table.produced_placements(operator.results[0].tensor)
            self.order.advance(made[0], placements)
            ready_at = self.order.num_events
        elif operator.kind == "reduction" and not (in_forward or self.overlap):
            made = [*map(materialize, made)]
        for use, x in zip(operator.results, made, strict=True):
            self.write(use.tensor, x, ready_at, in_forward)
        if operator.kind == "scatter" and not self.overlap:
            self.await_scatter(operator.results[0].tensor, in_forward)
        if not in_forward and operator.phase != "optimizer":
            for tensor in self.inputs.keys() & tensors:
                self._results_that_read[tensor].append(made[0])

    def await_scatter(self, tensor: int, in_forward: bool) -> None:
        """Make what follows wait until the result of a scatter has been reduced.

        Every device scatters into all rows of a sum. XLA would scatter several such sums at once,
        each into a copy of the same zeros, and gather meanwhile what later products read.
        """
        placements, x = [*self.read_all(tensor, in_forward).items()][-1]
        self.order.advance(x, placements)
        self.ready_at[tensor, in_forward] = self.order.num_events

    def update_before(self, operator: Operator) -> list[jax.Array]:
        """Run the updates that precede a scatter of a gradient on CPU, and return their tokens."""
        alone = self.depth or self.microbatch or self.table.problem.microbatch_split
        if self.overlap or alone or not is_gradient_scatter(operator):
            return []
        early = early_updates(self.graph, operator, self.done)
        for each in early:
            self.execute(each, in_forward=False)
            self.done.add(each.index)
        tokens = []
        for tensor in sorted(last_results(early)):
            # A barrier, since XLA would compute one element of an update beside the update.
            copies = self.read_all(tensor, in_forward=False)
            placements, x = next(iter(copies.items()))
            copies[placements] = materialize(x)
            tokens.append(self.order.token(copies[placements], placements))
        return tokens

    def results_of(
        self, operator: Operator, arrays: Sequence[jax.Array], zeroed: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The results of an operator; zeros to scatter into are made after ``zeroed``."""
        return run_operator(operator, arrays, self.shard(operator), *zeroed)

    def wait_in_order(
        self,
        operator: Operator,
        required: Sequence[Placements],
        arrays: list[jax.Array],
        in_forward: bool,
        again: bool,
    ) -> tuple[list[jax.Array], int]:
        """The operands behind the barriers that the operator needs, and the event it depends on."""
        # An operand that has been ready since an earlier event waits for the latest event if it
        # must not be ready before it (``pending``). For products on CPU, all operands wait if none
        # is as late.
        tensors, latest = [use.tensor for use in operator.operands], self.order.num_events
        ready_at = max((self.ready_at[tensor, in_forward] for tensor in tensors), default=0)
        pending = [
            k
            for k, tensor in enumerate(tensors)
            if self.ready_at[tensor, in_forward] < latest
            and self.must_wait(operator, tensor, again)
        ]
        ordered = operator.kind in (MATMUL_KINDS if in_forward else (*MATMUL_KINDS, "opaque"))
        # Where a product waits for what comes back from the host, others would be put off, with
        # their operands: on H100s those of all gradients of weights to the end of the step.
        is_free = self.overlap and not (self.on_host and self.holds_copies)
        delay_all = ordered and not (is_free or pending) and ready_at < latest
        chosen = [*range(len(arrays))] if delay_all else pending
        if not chosen:
            return arrays, ready_at
        delayed = self.order.delay([arrays[k] for k in chosen])
        for k, x in zip(chosen, delayed, strict=True):
            arrays[k] = x
        for k in pending:  # shared with the other consumers
            copies = self.env(in_forward)[tensors[k]]
            copies[required[k]] = arrays[k]
            if len(copies) == 1:
                self.ready_at[tensors[k], in_forward] = latest
        return arrays, latest

    def must_wait(self, operator: Operator, tensor: int, again: bool) -> bool:
        """Whether an operand must not be available before this point of the backward pass.

        An operand that is rebuilt needs no barrier, since its own operands wait.
        """
        region, producer = operator.eqn.remat_region, self.graph.tensors[tensor].producer
        if self._widens(operator) or self._is_reordered(operator, tensor):
            return True
        if operator.index in self.fused and self._is_repeated(operator, tensor):
            return True
        if not again and region is None:
            return False
        if producer is None:
            return True
        same = region is not None and self.graph.operators[producer].eqn.remat_region == region
        return not (same or self.table.reruns(producer) or tensor in self.rebuilt)

    def _widens(self, operator: Operator) -> bool:
        """Whether an operator on CPU reads only arguments and makes more bytes (casts of int8).

        Without a barrier XLA would make the results of all layers at the start.
        """
        tensors = self.graph.tensors
        if self.overlap or operator.kind != "elementwise" or operator.phase != "forward":
            return False
        read = [tensors[use.tensor] for use in operator.operands]
        made = sum(tensors[use.tensor].nbytes for use in operator.results)
        of_arguments = all(each.producer is None for each in read)
        return of_arguments and made > sum(each.nbytes for each in read)

    def _is_repeated(self, operator: Operator, tensor: int) -> bool:
        """Whether an operand is repeated to the size of the results."""
        tensors = self.graph.tensors
        return tensors[tensor].size < max(tensors[use.tensor].size for use in operator.results)

    def _is_reordered(self, operator: Operator, tensor: int) -> bool:
        """Whether XLA on CPU copies an operand into another order, which it may do at any time."""
        read = (operator.operands[k].tensor for k in operator.reordered)
        return not self.overlap and tensor in read

    def gradient_after_uses(self, tensor: int, placements: Placements, x: jax.Array) -> jax.Array:
        """The gradient of an argument, after all other operators have read the argument.

        A weight's gradient does not depend on the backward operators that read the weight. Without
        this dependency XLA copies the weight at the start, which took 12 % more temporaries for a
        GPT on H100s.
        """
        # There is one barrier per gradient, for all operators of the optimizer that read it.
        if (tensor, placements) not in self._gradients:
            updated = self._updated_args.get(tensor, ())
            reads = [result for arg in updated for result in self._results_that_read[arg]]
            self._gradients[tensor, placements] = wait_for([x], *map(completion_scalar, reads))[0]
        return self._gradients[tensor, placements]

    def shard(self, operator: Operator) -> LocalShard:
        """The shard of an operator's labels on this device."""
        shard = self.table.shard(operator.index, self.microbatch)
        if shard.exchange is None or self.collectives is not lax_collectives:
            return shard
        return dataclasses.replace(shard, exchange=shard.exchange._replace(is_padded=True))

    def result(self, out: Output) -> jax.Array:
        """A local result of the step, in its returned placements."""
        if (tensor := out.view.tensor) is None:
            return read_view(out.view, None, out.view.sizes)
        return self.returned(out, self.final_copy(tensor, self.table.returned_placements(out)))

    def returned(self, out: Output, x: jax.Array) -> jax.Array:
        """A result of the step as its caller sees it, from the tensor's final copy."""
        sizes = self.sizes(out.view.tensor or 0, self.table.returned_placements(out))
        return read_view(out.view, x, sizes_through_view(out.view, sizes))

    def final_copy(self, tensor: int, placements: Placements) -> jax.Array:
        """The final copy of a tensor in given placements."""
        if self.microbatch is not None and placements in self.in_forward.get(tensor, {}):
            return self.in_forward[tensor][placements]
        copies = self.read_all(tensor, in_forward=False)
        if placements not in copies:  # no copy has a PartitionSpec
            whole = next(source for source in copies if min(source, default=0) >= REPLICATED)
            gathers = all_gathers(whole, self.graph.tensors[tensor].nbytes, self.mesh)
            copies = self.reshard(tensor, dict(copies), gathers)
        return copies[placements]
