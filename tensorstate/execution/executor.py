"""One device of an applied plan: what it does, operator by operator.

What runs again waits for the last product before it, and so does what is gathered again; XLA would
find otherwise that it has both already. Gathers on accelerators wait for the end of the forward
pass only, so that they can overlap. XLA on CPU overlaps nothing, and runs whatever it can at once
if a step has collectives, whatever memory that takes: there products run one after the other,
gathers come when they are read, and what is reduced or turned about in the backward pass is so
there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from tensorstate.cost.reshard_plan import Trip
from tensorstate.execution.collectives import Collectives, carry_out, cut, part_index
from tensorstate.execution.interpreter import read, run_operator
from tensorstate.execution.microbatch_loop import Copies, Loop
from tensorstate.execution.ordering import Clock, after, apart, moment
from tensorstate.execution.placement_table import PlacementTable
from tensorstate.ir.graph import Graph, Operator, Output
from tensorstate.ir.placements import REPLICATED, MeshShape, Placements, num_shards
from tensorstate.problem.reshard import Move
from tensorstate.rules.local_shard import LocalShard, Turn

# What takes most of the time, and by which it is told.
PRODUCTS = ("einsum", "window")


class LocalExecutor:
    """What one device does, traced: the copies of every tensor that it has in either era.

    Args:
        turn: of the loop over microbatches, for a device that runs that alone.
        trips: how tensors travel; by default as in the plan.
        given: the tensors that are there at first.
    """

    def __init__(
        self,
        table: PlacementTable,
        collectives: Collectives,
        overlap: bool,
        turn: Turn | None = None,
        trips: Mapping[int, Trip] | None = None,
        given: Mapping[int, Copies] | None = None,
    ):
        self.overlap = overlap
        self.table, self.graph, self.mesh = table, table.graph, table.mesh
        self.collectives, self.microbatch = collectives, turn
        self.trips = table.trips if trips is None else trips
        self.given: dict[int, Copies] = dict(given or {})
        self.early: dict[int, Copies] = {}
        self.late: dict[int, Copies] = {}
        self.waiting: dict[int, Copies] = {}  # to travel when they are first read
        self.last: jax.Array | None = None  # made by the operators so far
        self.turn: list[jax.Array] | None = None  # the moment at which the forward pass ended
        self.clock = Clock()  # ticks with every product, and as the forward pass ends
        # The tick that all copies of a tensor in an era come after; 0 where it is not known.
        self.since: dict[tuple[int, bool], int] = defaultdict(int)
        self._gradients: dict[tuple[int, Placements], jax.Array] = {}
        self._updates = _updates(self.graph)
        self._made_of: dict[int, list[jax.Array]] = defaultdict(list)

    def run(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The results of a step, from the arguments, each in its state."""
        self.take(leaves)
        if self.table.problem.pipeline is None:
            self.work(self.graph.operators)
            return tuple(map(self.result, self.graph.outputs))
        last = self.after_loop(Loop(self.table))
        return tuple(map(last.result, self.graph.outputs))

    def after_loop(self, loop: Loop) -> LocalExecutor:
        """The device as it has run the loop over microbatches, and what comes after it."""
        before = {
            tensor: self.travel(dict(copies), self.trips[tensor].before.moves)
            for tensor, copies in self.given.items()
        }

        def body(turn: Turn) -> Callable[[int, Placements], jax.Array]:
            given = loop.given(before, turn)
            executor = LocalExecutor(self.table, self.collectives, self.overlap, turn, given=given)
            executor.work(loop.inside)
            return executor.made

        given = {**self.given, **loop.run(body)}
        last = LocalExecutor(
            self.table, self.collectives, self.overlap, trips=loop.trips(), given=given
        )
        last.work(loop.afterwards, late=True)
        return last

    def work(self, operators: Sequence[Operator], late: bool = False) -> None:
        """Run operators in order; all of them in the second era if they are ``late``."""
        for operator in operators:
            early = operator.phase == "forward" and not late
            if not early and self.turn is None:
                self.end_forward()
            self.execute(operator, early)

    def end_forward(self) -> None:
        """What is kept is brought to where it is kept."""
        for tensor in tuple(self.waiting):
            self.copies(tensor, early=True)
        if self.last is not None:
            self.clock.tick(self.last)
        self.turn = self.clock.now if self.overlap else []

    def take(self, leaves: Sequence[jax.Array]) -> None:
        """Arguments come in their states, constants whole. They travel when they are first read."""
        for tensor, leaf in zip(self.graph.inputs, leaves, strict=True):
            placements = self.table.source(tensor)
            self.given[tensor] = {placements: leaf.reshape(self.sizes(tensor, placements))}
        for tensor, value in self.graph.constants:
            placements = self.table.source(tensor)
            replicated = jnp.asarray(value).reshape(self.table.traced.tensors[tensor].sizes)
            self.given[tensor] = {placements: cut(replicated, placements, self.mesh)}

    def sizes(self, tensor: int, placements: Placements) -> list[int]:
        """A device's elements of every position, of all microbatches."""
        sizes = enumerate(self.table.traced.tensors[tensor].sizes)
        return [size // num_shards(placements, position, self.mesh) for position, size in sizes]

    def era(self, early: bool) -> dict[int, Copies]:
        """The copies that are there in an era."""
        return self.early if early else self.late

    def put(self, tensor: int, made: jax.Array, since: int, early: bool) -> None:
        """Note what was made: it travels once it is read, or at once after the forward pass."""
        self.last = made
        self.since[tensor, early] = since
        trip = self.trips.get(tensor)
        if trip is None:  # nothing but its own entity reads it
            placements = self.table.source(tensor)
            self.era(early)[tensor] = {placements: made}
        elif early:
            self.waiting[tensor] = {trip.source: made}
        else:
            self.late[tensor] = self.travel({trip.source: made}, trip.late.moves)

    def travel(self, copies: Copies, moves: Sequence[Move]) -> Copies:
        """All copies, after moves that start where one is."""
        for move in moves:
            x = copies[move.source]
            copies[move.target] = carry_out(move, x, self.mesh, self.collectives)
        return copies

    def copies(self, tensor: int, early: bool) -> Copies:
        """The copies of a tensor in an era; kept ones travel, others are made again, on demand."""
        if tensor in self.given and tensor not in self.early:
            self.waiting[tensor] = dict(self.given[tensor])
        if tensor in self.waiting:
            copies, moves = self.waiting.pop(tensor), self.trips[tensor].early.moves
            self.bring(tensor, copies, moves, self.since[tensor, True], early=True)
        if early:
            return self.early[tensor]
        if tensor not in self.late:
            trip = self.trips.get(tensor)
            producer = self.graph.tensors[tensor].producer
            since = self.since[tensor, True]
            if tensor not in self.given and self.is_remade(producer):
                self.execute(self.graph.operators[producer or 0], early=False, again=True)
            elif trip is None:
                self.bring(tensor, dict(self.early[tensor]), (), since, early=False)
            else:
                there = self.given.get(tensor, ()) or ([] if trip.kept else [trip.source])
                wanted = [*there, *([trip.kept] if trip.kept else [])]
                base = {s: self.early[tensor][s] for s in wanted}
                self.bring(tensor, base, trip.late.moves, since, early=False)
        return self.late[tensor]

    def bring(
        self, tensor: int, copies: Copies, moves: Sequence[Move], since: int, early: bool
    ) -> None:
        """A tensor travels in an era, by collectives no sooner than it should.

        Args:
            since: the tick that all copies come after.
        """
        if any(move.kind != "slice" for move in moves):
            there = [*copies.values()]
            if not self.overlap:
                there, since = self.clock.hold(there), self.clock.ticks
            elif not early:
                there = after(there, *self.turn or ())
            copies = dict(zip(copies, there, strict=True))
        self.era(early)[tensor] = self.travel(copies, moves)
        self.since[tensor, early] = since

    def copy(self, tensor: int, placements: Placements, early: bool) -> jax.Array:
        """The copy of a tensor in a state.

        It is there, but where two entities of a class read one tensor and one of them runs again:
        a trip is the same for both.
        """
        there = self.copies(tensor, early)
        if placements not in there:
            trip = self.trips[tensor]
            routes = self.table.problem.routes(self.table.problem.flows[trip.flow])
            self.travel(there, routes.tree(frozenset(there), frozenset({placements})).moves)
        return there[placements]

    def is_remade(self, producer: int | None) -> bool:
        """Whether an operator's entity runs again."""
        return producer is not None and self.table.positions[producer].node in self.table.remade

    def execute(self, operator: Operator, early: bool, again: bool = False) -> None:
        """Make what an operator makes of a device's blocks of its operands."""
        wanted = [
            self.table.wanted(operator.index, k) or self.table.source(use.tensor)
            for k, use in enumerate(operator.operands)
        ]
        tensors = [use.tensor for use in operator.operands]
        arrays = [self.copy(*which, early) for which in zip(tensors, wanted, strict=True)]
        if operator.phase == "optimizer":
            arrays = [*map(self.gradient, tensors, wanted, arrays)]
        arrays, since = self.hold(operator, wanted, arrays, early, again)
        zeroed = self.clock.now if operator.kind == "scatter" else ()
        made = run_operator(operator, arrays, self.shard(operator), *zeroed)
        if operator.kind in PRODUCTS:
            self.clock.tick(made[0])
            since = self.clock.ticks
        elif operator.kind == "reduction" and not (early or self.overlap):
            made = [*map(apart, made)]
        for use, x in zip(operator.results, made, strict=True):
            self.put(use.tensor, x, since, early)
        if not early and operator.phase != "optimizer":
            for tensor in tensors:
                if tensor in self.given:
                    self._made_of[tensor].append(made[0])

    def hold(
        self,
        operator: Operator,
        wanted: Sequence[Placements],
        arrays: list[jax.Array],
        early: bool,
        again: bool,
    ) -> tuple[list[jax.Array], int]:
        """Operands that wait as long as an operator should, and the tick that it comes after."""
        tensors, now = [use.tensor for use in operator.operands], self.clock.ticks
        since = max((self.since[tensor, early] for tensor in tensors), default=0)
        waiting = [
            k
            for k, tensor in enumerate(tensors)
            if self.since[tensor, early] < now and self.waits(operator, tensor, again)
        ]
        in_turn = operator.kind in (PRODUCTS if early else (*PRODUCTS, "opaque"))
        every = in_turn and not (self.overlap or waiting) and since < now
        chosen = [*range(len(arrays))] if every else waiting
        if not chosen:
            return arrays, since
        held = self.clock.hold([arrays[k] for k in chosen])
        for k, x in zip(chosen, held, strict=True):
            arrays[k] = x
        for k in waiting:  # other readers find it there
            copies = self.era(early)[tensors[k]]
            copies[wanted[k]] = arrays[k]
            if len(copies) == 1:
                self.since[tensors[k], early] = now
        return arrays, now

    def waits(self, operator: Operator, tensor: int, again: bool) -> bool:
        """Whether an operand is there only once the backward pass has come this far.

        What runs again itself needs no barrier of its own.
        """
        region, producer = operator.eqn.remat_region, self.graph.tensors[tensor].producer
        if not again and region is None:
            return False
        if producer is None:
            return True
        same = region is not None and self.graph.operators[producer].eqn.region == region
        return not (same or self.is_remade(producer))

    def gradient(self, tensor: int, placements: Placements, x: jax.Array) -> jax.Array:
        """What an argument is updated by, once all else has read the argument.

        The gradient of a kernel does not depend on what reads the kernel in the backward pass.
        Unless one waits for the other XLA keeps a copy of the kernel from the step's beginning.
        """
        if (tensor, placements) not in self._gradients:
            made = [m for given in self._updates.get(tensor, ()) for m in self._made_of[given]]
            self._gradients[tensor, placements] = after([x], *map(moment, made))[0]
        return self._gradients[tensor, placements]

    def shard(self, operator: Operator) -> LocalShard:
        """The part of an operator's labels that this device has."""
        strategy, labels = (
            self.table.strategy(operator.index),
            self.table.positions[operator.index].labels,
        )
        counts = tuple(num_shards(strategy, label, self.mesh) for label in labels)
        indices = {
            own: part_index(strategy, label, self.mesh)
            for own, label in enumerate(labels)
            if counts[own] > 1
        }
        pipeline, turn = self.table.problem.pipeline, self.microbatch
        batch = None if pipeline is None else pipeline.labels[operator.index]
        if turn is None or batch is None:
            return LocalShard(operator.sizes, counts, indices)
        counts = tuple(n * (turn.count if own == batch else 1) for own, n in enumerate(counts))
        sizes = self.table.traced.operators[operator.index].sizes
        return LocalShard(sizes, counts, indices, turn, batch)

    def result(self, out: Output) -> jax.Array:
        """A result of the step, in the state in which it is returned."""
        tensor, placements = out.view.tensor, self.table.returned(out)
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
        """A tensor as it is there at the end."""
        if self.microbatch is not None and placements in self.early.get(tensor, {}):
            return self.early[tensor][placements]
        there = self.copies(tensor, early=False)
        if placements not in there:  # a PartitionSpec cannot say what is there
            replicated = next(s for s in there if min(s, default=0) >= REPLICATED)
            gathers = _gathers(replicated, self.graph.tensors[tensor].nbytes, self.mesh)
            there = self.travel(dict(there), gathers)
        return there[placements]


def _updates(graph: Graph) -> dict[int, set[int]]:
    """What the backward pass makes for arguments that are replaced: the arguments, by gradient.

    A gradient reaches its argument's new value through operators on tensors of that size.
    """
    found: dict[int, set[int]] = defaultdict(set)
    for out in graph.outputs:
        if out.updates is None or out.view.tensor is None:
            continue
        given, waiting, seen = graph.inputs[out.updates], [out.view.tensor], set()
        while waiting:
            tensor = graph.tensors[waiting.pop()]
            if tensor.producer is None or tensor.index in seen:
                continue
            seen.add(tensor.index)
            operator = graph.operators[tensor.producer]
            if operator.phase != "optimizer":
                found[tensor.index].add(given)
                continue
            same = [use.tensor for use in operator.operands]
            waiting += [t for t in same if graph.tensors[t].size == tensor.size]
    return found


def _gathers(placements: Placements, nbytes: int, mesh: MeshShape) -> list[Move]:
    """The moves that replicate a tensor, the last cut first."""
    moves = []
    for axis in reversed(range(len(placements))):
        if placements[axis] != REPLICATED:
            target = (*placements[:axis], REPLICATED, *placements[axis + 1 :])
            moves.append(
                Move("all_gather", axis, placements, target, nbytes // mesh.num_shards(target))
            )
            placements = target
    return moves
