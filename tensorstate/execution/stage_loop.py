"""Scans over layers as pipeline stages: each device runs its own layers on one microbatch a tick.

All devices run the same program. In tick t, the stage at place p of the pipeline has microbatch t -
p. Before its first and after its last microbatch it runs on values that are not stored. Nothing is
skipped, since a collective along another mesh axis may take part in every layer. ``jc.ppermute``
sends the carries. The place of a stage is its index on the mesh axis, counted from the other end in
a reversed scan.

Arrays with the batch are viewed as [..., shards, microbatches, examples, ...]; a tick reads or
writes one microbatch of them in place.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
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
from tensorstate.problem.pipeline import PipelineStages
from tensorstate.rules.sharding_rule import MicrobatchSlice


class StageRunner(Runner, Protocol):
    """Runs operators, and bodies on one microbatch."""

    table: PlacementTable

    def microbatch_body(self, operators: Sequence[Operator]) -> Callable[[MicrobatchSlice], Runner]:
        """A function that makes the runners of a body on one microbatch."""
        ...

    def read_by(self, operators: Sequence[Operator]) -> object:
        """The copies that operators read from outside their loop."""
        ...

    def end_forward(self) -> None:
        """Make the copies that are saved for the backward pass."""
        ...


class _View(NamedTuple):
    """How an array is cut into microbatches, and a stack into layers.

    Attributes:
        rows: whether its first dimension is the layers of the stage.
        position: the dimension of the batch, rows not counted; ``None`` without a batch.
        shards: number of parts of the batch on this device that are cut one by one.
        count: number of microbatches, or of those that are held at once: each then takes the place
            of the microbatch ``count`` before it.
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
        part = x.shape[at] // (self.shards * self.count)  # not -1: there may be no elements
        return x.reshape(*x.shape[:at], self.shards, self.count, part, *x.shape[at + 1 :])

    def close(self, x: jax.Array) -> jax.Array:
        """The array as it was before ``open``."""
        if self.position is None:
            return x
        at = self.position + self.rows
        return x.reshape(*x.shape[:at], math.prod(x.shape[at : at + 3]), *x.shape[at + 3 :])

    def take(self, x: jax.Array, row: Any, microbatch: Any) -> jax.Array:
        """A microbatch of a row, from the opened array."""
        window = self._window(x, row, microbatch)
        part = self.close(x if window is None else lax.dynamic_slice(x, *window))
        return part.reshape(part.shape[self.rows :])

    def put(self, x: jax.Array, part: jax.Array, row: Any, microbatch: Any) -> jax.Array:
        """The opened array with a microbatch of a row replaced."""
        window = self._window(x, row, microbatch)
        if window is None:
            return part.reshape(x.shape)
        starts, sizes = window
        return lax.dynamic_update_slice(x, part.reshape(sizes), starts)

    def _window(
        self, x: jax.Array, row: Any, microbatch: Any
    ) -> tuple[list[Any], list[int]] | None:
        """Start and sizes of the part of an opened array; ``None`` for all of it."""
        fixed = {0: row} if self.rows else {}
        if self.position is not None:
            fixed[self.position + self.rows + 1] = microbatch % self.count
        starts = [fixed.get(dim, 0) for dim in range(x.ndim)]
        sizes = [1 if dim in fixed else size for dim, size in enumerate(x.shape)]
        return (starts, sizes) if fixed else None


def run_stages(
    runner: StageRunner, number: int, operators: Sequence[Operator]
) -> dict[int, jax.Array]:
    """The tensors that a staged scan produces, as ``step_loop.run_loop`` returns them.

    Args:
        runner: runs the operators around the scan.
        number: the number of the scan.
        operators: all operators of the scan, inner loops included.
    """
    scan = _Scan(runner, number, operators)
    scan.begin(scan.batch_shards())

    def tick(state, now):
        (received, *kept), streams = state
        turn = scan.turn(now)
        entering = scan.entering(turn, streams, received, {})
        leaving, *kept = scan.run(turn, scan.given, entering, *kept)
        return ((scan.send(leaving), *kept), scan.stored(turn, streams, leaving)), None

    state = scan.initial(), scan.streams
    ((_, *kept), streams), _ = lax.scan(tick, state, jnp.arange(scan.staged.ticks))
    return scan.ends(streams) | scan.kept(*kept)


def run_interleaved(runner: StageRunner, operators: Sequence[Operator]) -> dict[int, jax.Array]:
    """The tensors that both scans of 1F1B and the operators between them produce.

    Args:
        runner: runs the operators around the scans.
        operators: the operators of both scans, inner loops included, and those between them.
    """
    return _Interleaved(runner, operators).run()


class _Interleaved:
    """Both scans of 1F1B in one loop of ticks.

    A tick takes a microbatch forward through the stage, another one through the head and the loss,
    and a third one backward. The first ticks have no backward part and the last ones no forward
    part, on any stage.
    """

    def __init__(self, runner: StageRunner, operators: Sequence[Operator]):
        staged, graph = _staged(runner), runner.table.graph
        self.runner, self.staged, self.graph = runner, staged, graph
        between = [o for o in operators if o.loops == (staged.between,)]
        self.exits = [o for o in between if o.primitive == "sum_out"]
        self.inside = [o for o in between if o.primitive != "sum_out"]
        forward, backward = (
            _Scan(runner, loop, [o for o in operators if staged.scan_of(o) == loop])
            for loop in staged.in_order
        )
        self.forward, self.backward = forward, backward
        # One number for both scans and everything between: a microbatch is the same examples
        # everywhere.
        counts = forward.batch_shards(), backward.batch_shards(), _shards_of(between, runner)
        shards = math.lcm(*counts)
        forward.begin(shards)
        # The reads of the forward pass come first: they save the copies that the backward pass
        # starts from.
        runner.read_by([o for o in self.inside if o.phase == "forward"])
        runner.end_forward()
        self.given = {
            k
            for k in backward.sent
            if graph.loops_around(backward.enter[k].operands[0].tensor) == (staged.between,)
        }
        backward.begin(shards, self.given)
        self.start = runner.microbatch_body(self.inside)
        stack_of = {o.index: k for k, o in enumerate(forward.stacks)}
        self.held = {row: stack_of[stack] for stack, row in staged.residuals}

    def head(self, turn: _Turn, leaving, sums):
        """The carries that enter the backward scan, and the sums over microbatches."""
        body, forward = self.start(turn.microbatch), self.forward
        for k, x in zip(forward.sent, leaving, strict=True):
            operator = forward.leave[k]
            body.enter(operator, boundary_result(body, operator, forward.last(x)))
        body.run_operators(self.inside)
        made = [flat_operand(body, o) for o in self.exits]
        kinds = [self.staged.batch_placements[o.operands[0].tensor] for o in self.exits]
        sums = [
            old + x if kind == SUM else x for kind, old, x in zip(kinds, sums, made, strict=True)
        ]
        return {k: flat_operand(body, self.backward.enter[k]) for k in self.given}, sums

    def tick(self, state, now, has_forward: bool, has_backward: bool):
        """One microbatch forward, one through the head, and one backward."""
        forward, backward = self.forward, self.backward
        (received, *kept), sums, (received_back, *kept_back), streams = state
        # Stage p has microbatch t - p forward. Backward, at place q = stages - 1 - p, it has
        # microbatch t - (stages - 1) - q: the last stage takes back the microbatch it has just
        # taken forward.
        first = now - (self.staged.stages - 1)  # the microbatch that leaves the last stage
        entered: dict[int, jax.Array] = {}
        if has_forward:
            turn = forward.turn(now)
            entering = forward.entering(turn, forward.streams, received, {})
            leaving, *kept = forward.run(turn, forward.given, entering, *kept)
            received = forward.send(leaving)
            if has_backward:
                entered, sums = self.head(backward.turn(first, 0), leaving, sums)
        if has_backward:
            turn = backward.turn(first)
            # Residuals are read from the stacks as this tick's forward part has left them. The
            # stacks hold at most 2 * stages - 1 microbatches, the longest that any of them waits.
            rows = [
                kept[-1][self.held[o.index]] if o.index in self.held else x
                for o, x in zip(backward.rows, backward.given, strict=True)
            ]
            entering = backward.entering(turn, streams, received_back, entered)
            leaving, *kept_back = backward.run(turn, rows, entering, *kept_back)
            received_back = backward.send(leaving)
            streams = backward.stored(turn, streams, leaving)
        return ((received, *kept), sums, (received_back, *kept_back), streams), None

    def run(self) -> dict[int, jax.Array]:
        """Run all ticks: forward parts only, then both parts, then backward parts only."""
        staged, exits, backward = self.staged, self.exits, self.backward
        tensors = [self.graph.tensors[o.operands[0].tensor] for o in exits]
        sizes = [_local_sizes(self.runner, o) for o in exits]
        zeros = [jnp.zeros(n, tensor.dtype) for n, tensor in zip(sizes, tensors, strict=True)]
        state = self.forward.initial(), zeros, backward.initial(), backward.streams
        ends = [0, staged.stages - 1, staged.ticks, staged.ticks + staged.stages - 1]
        for part, (begin, end) in enumerate(itertools.pairwise(ends)):
            run = functools.partial(self.tick, has_forward=part < 2, has_backward=part > 0)
            state, _ = lax.scan(run, state, jnp.arange(begin, end))
        (_, *kept), sums, (_, *kept_back), streams = state
        found = self.forward.kept(*kept) | backward.ends(streams) | backward.kept(*kept_back)
        for o, x in zip(exits, sums, strict=True):
            found[o.results[0].tensor] = boundary_result(self.runner, o, x)
        return found


def _staged(runner: StageRunner) -> PipelineStages:
    staged = runner.table.problem.pipeline
    if staged is None:
        raise ValueError("the problem has no pipeline stages")
    return staged


def _shards_of(operators: Sequence[Operator], runner: StageRunner) -> int:
    """The number of shards of the batch; a microbatch takes its part of each."""
    table, staged = runner.table, _staged(runner)
    counts = [1]
    for operator in operators:
        label = staged.labels[operator.index]
        if label is not None:
            counts.append(runner.shard(operator).counts[label])
        for k, use in enumerate(operator.operands):
            position = staged.outer_batch(use.tensor)
            if position is not None:
                placements = table.read_placements(operator.index, k)
                counts.append(num_shards(placements, position, table.mesh))
    return math.lcm(*counts)


def _local_sizes(runner: StageRunner, operator: Operator) -> list[int]:
    """The local sizes of the operand of a boundary operator, one per label."""
    shard = runner.shard(operator)
    return [shard.local_size(k) for dimension in operator.eqn.input_labels[0] for k in dimension]


class _Turn(NamedTuple):
    """The microbatch that a stage has in a tick.

    Attributes:
        at: its number, or that of the nearest one if there is none.
        is_real: whether there is one.
        microbatch: the part of the batch.
    """

    at: Any
    is_real: Any
    microbatch: MicrobatchSlice


class _Scan:
    """One staged scan.

    Attributes:
        sent: the places, among all carries, of those that go from stage to stage.
        summed: the places of those that are sums over layers and microbatches.
        streams: the initial carries that are sent, opened; or zeros that their last values replace.
        given: the stacks whose rows it reads, opened; ``None`` for residuals of 1F1B.
    """

    def __init__(self, runner: StageRunner, number: int, operators: Sequence[Operator]):
        self.runner, self.staged = runner, _staged(runner)
        graph, staged = runner.table.graph, self.staged
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
        self.is_held = staged.held_tensors.__contains__
        # In the backward pass the last layers come first, on the device that has them forward.
        index = lax.axis_index(staged.axis)
        self.place = staged.stages - 1 - index if self.loop.reverse else index

    def begin(self, batch_shards: int, entered: Collection[int] = ()) -> None:
        """Read all that is known before the first tick.

        Args:
            batch_shards: number of shards of the batch; a microbatch takes its part of each.
            entered: carries whose initial value comes microbatch by microbatch.
        """
        runner, self.shards = self.runner, batch_shards
        known = [k for k in range(len(self.enter)) if k not in entered]
        found = runner.in_turn([flat_operand(runner, self.enter[k]) for k in known])
        initial = dict(zip(known, found, strict=True))
        for k in entered:
            dtype = self.staged.traced.tensors[self.enter[k].operands[0].tensor].dtype
            initial[k] = jnp.zeros(_local_sizes(runner, self.enter[k]), dtype)
        self.given = [
            None
            if self.is_held(o.operands[0].tensor)
            else self._view(o).open(stacked(flat_operand(runner, o), o))
            for o in self.rows
        ]
        self.start = runner.microbatch_body(self.inside)
        self.streams = [self._view(self.enter[k]).open(initial[k]) for k in self.sent]
        # Stages add the terms of their own layers, so all but the first begin with zero.
        sums = [initial[k] for k in self.summed]
        self.firsts = [jnp.where(self.place == 0, x, jnp.zeros_like(x)) for x in sums]

    def initial(self):
        """The carries received, the sums and the stacks before the first tick."""
        received = [
            jnp.zeros_like(self._view(self.enter[k]).take(x, 0, 0))
            for k, x in zip(self.sent, self.streams, strict=True)
        ]
        stacks = []
        for operator in self.stacks:  # zeros before their first rows
            view, tensor = self._view(operator), operator.results[0].tensor
            sizes = [self.num_layers, *_local_sizes(self.runner, operator)]
            if view.position is not None:
                at = view.position + 1
                sizes[at] = sizes[at] // self.staged.microbatches * view.count
            dtype = self.staged.traced.tensors[tensor].dtype
            stacks.append(view.open(jnp.zeros(sizes, dtype)))
        return received, self.firsts, stacks

    # ------------------------------------------------------------------ a tick

    def turn(self, tick: Any, place: Any = None) -> _Turn:
        """The microbatch at a place of the pipeline, by default this stage's, in a tick."""
        count = self.staged.microbatches
        now = tick - (self.place if place is None else place)
        at = jnp.clip(now, 0, count - 1)
        return _Turn(at, (now >= 0) & (now < count), MicrobatchSlice(at, count, self.shards))

    def entering(
        self, turn: _Turn, streams, received, entered: Mapping[int, jax.Array]
    ) -> list[jax.Array]:
        """The carries that the stage begins with: ``entered``, from the stream, or received."""
        firsts = [
            entered[k] if k in entered else view.take(x, 0, turn.at)
            for k, view, x in zip(self.sent, self._views(), streams, strict=True)
        ]
        return [
            jnp.where(self.place == 0, first, sent)
            for first, sent in zip(firsts, received, strict=True)
        ]

    def run(self, turn: _Turn, given, entering, sums, made):
        """One microbatch through the layers of the stage: its carries, the sums and the stacks."""

        def layer(state, row):
            sent, sums, made = state
            body, at = self.start(turn.microbatch), turn.at
            rows = [self._view(o).take(x, row, at) for o, x in zip(self.rows, given, strict=True)]
            carry = dict(zip((*self.sent, *self.summed), (*sent, *sums), strict=True))
            for k, operator in enumerate(self.enter):
                body.enter(operator, carry[k])
            for operator, x in zip(self.rows, rows, strict=True):
                # In a stage of one layer the row is the same in every tick. XLA would gather it
                # once, before all ticks, and keep it.
                is_sent = self.runner.table.is_sent(operator.results[0].tensor)
                body.enter(operator, wait_for([x], at)[0] if is_sent else x)
            body.run_operators(self.inside)
            after = [
                flat_operand(body, operator).reshape(carry[k].shape)
                for k, operator in enumerate(self.leave)
            ]
            made = [
                self._stored_row(o, x, flat_operand(body, o), row, turn)
                for o, x in zip(self.stacks, made, strict=True)
            ]
            return ([after[k] for k in self.sent], [after[k] for k in self.summed], made), None

        (leaving, added, made), _ = lax.scan(
            layer, (entering, sums, made), jnp.arange(self.num_layers), reverse=self.loop.reverse
        )
        # A tick without a microbatch leaves the sums as they are.
        sums = [jnp.where(turn.is_real, new, old) for new, old in zip(added, sums, strict=True)]
        return leaving, sums, made

    def stored(self, turn: _Turn, streams, leaving) -> list[jax.Array]:
        """The streams with what leaves the last stage."""
        # It takes the place of the initial carry, which only the first stage reads.
        is_end = turn.is_real & (self.place == self.staged.stages - 1)
        return [
            view.put(x, jnp.where(is_end, y, view.take(x, 0, turn.at)), 0, turn.at)
            for view, x, y in zip(self._views(), streams, leaving, strict=True)
        ]

    def _stored_row(
        self, operator: Operator, x: jax.Array, new: jax.Array, row: Any, turn: _Turn
    ) -> jax.Array:
        """A stack in which the row of a layer and a microbatch is added to or replaced."""
        view = self._view(operator)
        old = view.take(x, row, turn.at)
        new = new.reshape(old.shape)
        is_sum = self.staged.batch_placements[operator.operands[0].tensor] == SUM
        return view.put(x, jnp.where(turn.is_real, old + new if is_sum else new, old), row, turn.at)

    def send(self, leaving: Sequence[jax.Array]) -> list[jax.Array]:
        """The carries that the previous stage sends."""
        # Nothing goes from the last stage to the first, where a new microbatch begins.
        pairs = [(s, s + 1) for s in range(self.staged.stages - 1)]
        if self.loop.reverse:
            pairs = [(target, source) for source, target in pairs]
        return [_permuted(x, self.staged.axis, pairs) for x in leaving]

    # ------------------------------------------------------------------ ends

    def ends(self, streams) -> dict[int, jax.Array]:
        """The carries that were sent, by their tensors after the scan."""
        pairs = [
            (self.leave[k], self.last(view.close(x)))
            for k, view, x in zip(self.sent, self._views(), streams, strict=True)
        ]
        return {o.results[0].tensor: boundary_result(self.runner, o, x) for o, x in pairs}

    def kept(self, sums, made) -> dict[int, jax.Array]:
        """The sums and the stacks, by their tensors after the scan."""
        pairs = [(self.leave[k], x) for k, x in zip(self.summed, sums, strict=True)]
        pairs += [
            (o, self._view(o).close(x))
            for o, x in zip(self.stacks, made, strict=True)
            if not self.is_held(o.results[0].tensor)
        ]
        return {o.results[0].tensor: boundary_result(self.runner, o, x) for o, x in pairs}

    def last(self, x: jax.Array) -> jax.Array:
        """A carry after the last stage, as a term of a sum over all stages."""
        return jnp.where(self.place == self.staged.stages - 1, x, jnp.zeros_like(x))

    # ------------------------------------------------------------------ the batch

    def _views(self) -> list[_View]:
        """The views of the carries that are sent."""
        return [self._view(self.enter[k]) for k in self.sent]

    def _view(self, operator: Operator) -> _View:
        """The view, outside the scan, of what crosses the boundary at an operator."""
        rows = operator.primitive in ("scan_row", "scan_stack")
        label, count = self.staged.labels[operator.index], self.staged.microbatches
        if label is None:
            return _View(rows, None, 1, count)
        is_stack = operator.primitive == "scan_stack"
        if rows and self.is_held((operator.results if is_stack else operator.operands)[0].tensor):
            count = self.staged.held
        dims = operator.eqn.output_labels[0] if is_stack else operator.eqn.input_labels[0]
        flat = [k for dimension in dims[rows:] for k in dimension]
        devices = self.runner.shard(operator).counts[label]
        return _View(rows, flat.index(label), self.shards // devices, count)

    def batch_shards(self) -> int:
        """The number of shards of the batch; a microbatch takes its part of each."""
        boundary = (*self.enter, *self.rows, *self.stacks)
        return math.lcm(
            *(_shards_of([o], self.runner) for o in boundary), _shards_of(self.inside, self.runner)
        )


def _permuted(x: jax.Array, axis: str, pairs: Sequence[tuple[int, int]]) -> jax.Array:
    """An array of the previous stage; random keys are sent as their data."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jc.ppermute(x, axis, pairs)
    sent = jc.ppermute(jax.random.key_data(x), axis, pairs)
    return jax.random.wrap_key_data(sent, impl=jax.random.key_impl(x))
