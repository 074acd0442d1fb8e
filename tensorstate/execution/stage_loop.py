"""Scans over layers as pipeline stages: each device runs its own layers on one microbatch a tick.

All devices run the same program. In tick t, the stage at place p of the pipeline has microbatch
t - p. Before its first and after its last microbatch it runs on values that are not stored.
Nothing is skipped, since a collective along another mesh axis may take part in every layer.
Carries are sent by ``jc.ppermute``. The place of a stage is its index on the mesh axis, counted
from the other end in a reversed scan.

Arrays with the batch are seen as [..., shards, microbatches, examples, ...], of which a tick reads
or writes one microbatch in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

import jaxcoll as jc
from tensorstate.execution.microbatch_loop import wait_for
from tensorstate.execution.placement_table import PlacementTable
from tensorstate.execution.step_loop import Runner, boundary_result, flat_operand, stacked
from tensorstate.ir.graph import Operator
from tensorstate.ir.placements import SUM, num_shards
from tensorstate.problem.pipeline import Pipeline
from tensorstate.rules.sharding_rule import MicrobatchSlice


class StageRunner(Runner, Protocol):
    """Runs operators, and bodies on one microbatch."""

    table: PlacementTable

    def microbatch_body(self, operators: Sequence[Operator]) -> Callable[[MicrobatchSlice], Runner]:
        """Makes the runners of a body on one microbatch."""
        ...


class _View(NamedTuple):
    """How an array is cut into microbatches, and a stack into layers.

    Attributes:
        rows: whether its first dimension are the layers of the stage.
        position: the dimension of the batch, rows not counted; ``None`` without a batch.
        shards: parts of the batch on this device that are cut one by one.
        count: number of microbatches.
    """

    rows: bool
    position: int | None
    shards: int
    count: int

    def open(self, x: jax.Array) -> jax.Array:
        """The array with a dimension of microbatches."""
        if self.position is None:
            return x
        at = self.position + self.rows
        return x.reshape(*x.shape[:at], self.shards, self.count, -1, *x.shape[at + 1 :])

    def close(self, x: jax.Array) -> jax.Array:
        """The array as it was before ``open``."""
        if self.position is None:
            return x
        at = self.position + self.rows
        return x.reshape(*x.shape[:at], -1, *x.shape[at + 3 :])

    def take(self, x: jax.Array, row: Any, microbatch: Any) -> jax.Array:
        """A microbatch of a row, from the opened array."""
        fixed = self._fixed(row, microbatch)
        sizes = [1 if dim in fixed else size for dim, size in enumerate(x.shape)]
        starts = [fixed.get(dim, 0) for dim in range(x.ndim)]
        part = lax.dynamic_slice(x, starts, sizes) if fixed else x
        part = part.reshape(part.shape[self.rows :])
        at = self.position
        return part if at is None else part.reshape(*part.shape[:at], -1, *part.shape[at + 3 :])

    def put(self, x: jax.Array, part: jax.Array, row: Any, microbatch: Any) -> jax.Array:
        """The opened array with a microbatch of a row replaced."""
        fixed = self._fixed(row, microbatch)
        sizes = [1 if dim in fixed else size for dim, size in enumerate(x.shape)]
        starts = [fixed.get(dim, 0) for dim in range(x.ndim)]
        part = part.reshape(sizes)
        return lax.dynamic_update_slice(x, part, starts) if fixed else part

    def _fixed(self, row: Any, microbatch: Any) -> dict[int, Any]:
        """By dimension of the opened array, the index that is read or written."""
        fixed = {0: row} if self.rows else {}
        if self.position is not None:
            fixed[self.position + self.rows + 1] = microbatch
        return fixed


def run_stages(
    runner: StageRunner, number: int, operators: Sequence[Operator]
) -> dict[int, jax.Array]:
    """The tensors that a staged scan leaves behind, as ``step_loop.run_loop`` returns them.

    Args:
        runner: runs the operators around the scan.
        number: of the scan.
        operators: all of the scan's, inner loops included.
    """
    staged = runner.table.problem.pipeline
    if staged is None:
        raise ValueError("the problem has no pipeline stages")
    return _Scan(runner, staged, number, operators).run()


class _Scan:
    """One staged scan.

    Attributes:
        sent: places of the carries that go from stage to stage, among all carries.
        summed: places of those that are sums over layers and microbatches.
    """

    def __init__(
        self, runner: StageRunner, staged: Pipeline, number: int, operators: Sequence[Operator]
    ):
        self.runner, self.staged = runner, staged
        graph = runner.table.graph
        self.loop = staged.traced.loops[number]
        self.enter, self.leave = (
            [graph.operators[pair[end]] for pair in self.loop.carries] for end in (0, 1)
        )
        self.rows = [o for o in operators if staged.is_boundary(o, "scan_row")]
        self.stacks = [o for o in operators if staged.is_boundary(o, "scan_stack")]
        boundary = {o.index for o in (*self.enter, *self.leave, *self.rows, *self.stacks)}
        self.inside = [o for o in operators if o.index not in boundary]
        self.num_layers = staged.num_layers(number)
        kinds = [staged.batch_placements[o.results[0].tensor] for o in self.enter]
        self.sent = [k for k, kind in enumerate(kinds) if kind != SUM]
        self.summed = [k for k, kind in enumerate(kinds) if kind == SUM]
        self.batch_shards = self._batch_shards()
        index = lax.axis_index(staged.axis)
        self.place = staged.stages - 1 - index if self.loop.reverse else index

    def run(self) -> dict[int, jax.Array]:
        """The carries and stacks after the last tick."""
        runner, staged, stacks = self.runner, self.staged, self.stacks
        initial = runner.in_turn([flat_operand(runner, o) for o in self.enter])
        self.given = [self._view(o).open(stacked(flat_operand(runner, o), o)) for o in self.rows]
        self.start = runner.microbatch_body(self.inside)
        streams = [self._view(self.enter[k]).open(initial[k]) for k in self.sent]
        firsts = [self._first(initial[k]) for k in self.summed]
        received = [
            jnp.zeros_like(self._view(self.enter[k]).take(x, 0, 0))
            for k, x in zip(self.sent, streams, strict=True)
        ]
        state = (received, streams, firsts, [self._empty(o) for o in stacks])
        (_, streams, sums, made), _ = lax.scan(self._tick, state, jnp.arange(staged.ticks))
        ends: dict[int, jax.Array] = {}
        for k, x in zip(self.sent, streams, strict=True):
            ends[k] = self._last(self._view(self.enter[k]).close(x))
        ends |= dict(zip(self.summed, sums, strict=True))
        pairs = [(operator, ends[k]) for k, operator in enumerate(self.leave)]
        pairs += [(o, self._view(o).close(x)) for o, x in zip(stacks, made, strict=True)]
        return {o.results[0].tensor: boundary_result(runner, o, x) for o, x in pairs}

    # ------------------------------------------------------------------ a tick

    def _tick(self, state, tick):
        """One microbatch through the layers of the stage, and on to the next stage."""
        received, streams, sums, made = state
        staged = self.staged
        now = tick - self.place
        is_real = (now >= 0) & (now < staged.microbatches)
        at = jnp.clip(now, 0, staged.microbatches - 1)
        microbatch = MicrobatchSlice(at, staged.microbatches, self.batch_shards)
        views = [self._view(self.enter[k]) for k in self.sent]
        entering = [
            jnp.where(self.place == 0, view.take(x, 0, at), sent)
            for view, x, sent in zip(views, streams, received, strict=True)
        ]

        def layer(state, row):
            return self._layer(microbatch, is_real, state, row), None

        (leaving, added, made), _ = lax.scan(
            layer, (entering, sums, made), jnp.arange(self.num_layers), reverse=self.loop.reverse
        )
        is_end = is_real & (self.place == staged.stages - 1)
        streams = [
            view.put(x, jnp.where(is_end, y, view.take(x, 0, at)), 0, at)
            for view, x, y in zip(views, streams, leaving, strict=True)
        ]
        sums = [jnp.where(is_real, new, old) for new, old in zip(added, sums, strict=True)]
        return ([self._send(y) for y in leaving], streams, sums, made), None

    def _layer(self, microbatch: MicrobatchSlice, is_real: Any, state, row: Any):
        """One layer: the carries after it, and the stacks with its row."""
        sent, sums, made = state
        body, at = self.start(microbatch), microbatch.index
        given = [self._view(o).take(x, row, at) for o, x in zip(self.rows, self.given, strict=True)]
        carry = dict(zip((*self.sent, *self.summed), (*sent, *sums), strict=True))
        for k, operator in enumerate(self.enter):
            body.enter(operator, carry[k])
        for operator, x in zip(self.rows, given, strict=True):
            body.enter(operator, self._in_its_tick(operator, x, at))
        body.run_operators(self.inside)
        after = [
            flat_operand(body, operator).reshape(carry[k].shape)
            for k, operator in enumerate(self.leave)
        ]
        made = [
            self._stored(o, x, flat_operand(body, o), row, at, is_real)
            for o, x in zip(self.stacks, made, strict=True)
        ]
        return [after[k] for k in self.sent], [after[k] for k in self.summed], made

    def _in_its_tick(self, operator: Operator, x: jax.Array, at: Any) -> jax.Array:
        """A row that is resharded in every tick; XLA would do so once where a stage has one."""
        reshard = self.runner.table.reshards[operator.results[0].tensor]
        steps = (*reshard.in_forward.steps, *reshard.after_forward.steps)
        return wait_for([x], at)[0] if any(step.kind != "slice" for step in steps) else x

    def _stored(
        self, operator: Operator, x: jax.Array, new: jax.Array, row: Any, at: Any, is_real: Any
    ) -> jax.Array:
        """A stack with the row of a layer and a microbatch: added to it, or in its place."""
        view = self._view(operator)
        old = view.take(x, row, at)
        new = new.reshape(old.shape)
        is_sum = self.staged.batch_placements[operator.operands[0].tensor] == SUM
        return view.put(x, jnp.where(is_real, old + new if is_sum else new, old), row, at)

    def _send(self, x: jax.Array) -> jax.Array:
        """The carry that the previous stage sends."""
        pairs = [(s, s + 1) for s in range(self.staged.stages - 1)]
        if self.loop.reverse:
            pairs = [(target, source) for source, target in pairs]
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            sent = jc.ppermute(jax.random.key_data(x), self.staged.axis, pairs)
            return jax.random.wrap_key_data(sent, impl=jax.random.key_impl(x))
        return jc.ppermute(x, self.staged.axis, pairs)

    # ------------------------------------------------------------------ ends

    def _first(self, x: jax.Array) -> jax.Array:
        """The initial value of a sum: zero on all stages but the first."""
        return jnp.where(self.place == 0, x, jnp.zeros_like(x))

    def _last(self, x: jax.Array) -> jax.Array:
        """The carry after the last stage as a term of a sum over all stages."""
        return jnp.where(self.place == self.staged.stages - 1, x, jnp.zeros_like(x))

    def _empty(self, operator: Operator) -> jax.Array:
        """A stack before its first row, opened."""
        shard, labels = self.runner.shard(operator), operator.eqn.output_labels[0]
        sizes = [shard.local_size(k) for dimension in labels[1:] for k in dimension]
        dtype = self.staged.traced.tensors[operator.results[0].tensor].dtype
        return self._view(operator).open(jnp.zeros((self.num_layers, *sizes), dtype))

    # ------------------------------------------------------------------ the batch

    def _view(self, operator: Operator) -> _View:
        """The view of what crosses the boundary at an operator, outside of the scan."""
        rows = operator.primitive in ("scan_row", "scan_stack")
        label, count = self.staged.labels[operator.index], self.staged.microbatches
        if label is None:
            return _View(rows, None, 1, count)
        is_stack = operator.primitive == "scan_stack"
        dims = operator.eqn.output_labels[0] if is_stack else operator.eqn.input_labels[0]
        flat = [k for dimension in dims[rows:] for k in dimension]
        devices = self.runner.shard(operator).counts[label]
        return _View(rows, flat.index(label), self.batch_shards // devices, count)

    def _batch_shards(self) -> int:
        """Shards of the batch, of each of which a microbatch takes its part."""
        counts = [1]
        for operator in (*self.enter, *self.rows, *self.stacks):
            label = self.staged.labels[operator.index]
            if label is not None:
                counts.append(self.runner.shard(operator).counts[label])
        table = self.runner.table
        for operator in self.inside:
            for k, use in enumerate(operator.operands):
                position = self.staged.outer_batch(use.tensor)
                if position is not None:
                    placements = table.read_placements(operator.index, k)
                    counts.append(num_shards(placements, position, table.mesh))
        return math.lcm(*counts)
