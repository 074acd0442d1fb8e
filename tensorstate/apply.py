"""Runs a training step as decided: the factor graph, interpreted inside ``jax.shard_map``.

Every operator runs on the blocks that its way gives a device, and every change of state is a
collective. The forward pass is one era; what comes after it, backward pass and optimizer, the
other (see ``tensorstate.problem``). Between them of every tensor that is read in both one copy is
kept, or none, if its makers run again.

What runs again reads its operands through ``lax.optimization_barrier`` together with the last
result of the backward pass, and so does what is gathered again; XLA would find otherwise that it
has both already. Gathers on accelerators wait for the end of the forward pass only, so that they
can overlap; XLA on CPU, which overlaps nothing, would do all of them at once. It also removes
barriers too early, and joins sums of gradients; ``Applied.compiler_options`` keep it from both.

Loops of the step itself, over layers or microbatches, are not rolled up again: every iteration
stands for itself, as in the graph.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from tensorstate.collectives import (
    Collectives,
    carry_out,
    cut,
    part_index,
    scheduled,
    shards_of,
)
from tensorstate.cost import Cost
from tensorstate.errors import PlanError
from tensorstate.graph import Graph, Operator, Output
from tensorstate.layout import Layout, spec_of
from tensorstate.problem import Problem
from tensorstate.run import LocalBlock, Turn, read, run_operator
from tensorstate.states import REPLICATED, Mesh, Move, State
from tensorstate.trips import Decisions, Trip
from tensorstate.turns import Copies, Loop

# XLA on CPU would use more memory than a plan says. One of its passes removes barriers too early;
# one joins all sums of gradients, so that none is used before the last is there; and without
# looking closely it copies arguments that results replace, as the step begins.
CPU_OPTIONS = {
    "xla_disable_hlo_passes": "cse_barrier_expander,cpu-all-reduce-combiner",
    "xla_cpu_copy_insertion_use_region_analysis": True,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Applied:
    """A training step on a mesh.

    Attributes:
        step: takes and returns global arrays, as the traced function does. Not yet jitted.
        in_shardings, out_shardings: trees of ``NamedSharding``, for ``jax.jit`` and
            ``jax.device_put``. New values have the shardings of what they replace, so the old ones
            can be donated.
        donate_argnums: arguments all of which are replaced by results.
        compiler_options: for ``jax.jit``; they keep the compiler from using more memory than is
            planned.
        unsaid: what shardings of arguments and results leave open, one phrase each.
    """

    step: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any
    donate_argnums: tuple[int, ...]
    compiler_options: Mapping[str, str | bool]
    unsaid: tuple[str, ...]

    def jit(self, donate: bool = True) -> Callable[..., Any]:
        """The step, jitted with all of this."""
        return jax.jit(
            self.step,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums if donate else (),
            compiler_options=dict(self.compiler_options) or None,
        )

    def annotate(self, step_fn: Callable[..., Any], donate: bool = True) -> Callable[..., Any]:
        """The traced function itself, jitted with the shardings of arguments and results alone.

        XLA decides about the rest; a warning says of what, where that may be other than planned.
        """
        if self.unsaid:
            warnings.warn(
                f"shardings of arguments and results leave open {'; '.join(self.unsaid)}: XLA may "
                "choose otherwise. Applied.jit() runs the plan",
                stacklevel=2,
            )
        return jax.jit(
            step_fn,
            in_shardings=self.in_shardings,
            out_shardings=self.out_shardings,
            donate_argnums=self.donate_argnums if donate else (),
        )


def apply(
    problem: Problem,
    decisions: Decisions,
    cost: Cost,
    mesh: jax.sharding.Mesh,
    collectives: Collectives | None = None,
) -> Applied:
    """The training step of a problem, run as decided.

    Args:
        problem: graph and mesh.
        decisions: the way of every class.
        cost: its price, which says how tensors travel and what runs again.
        mesh: devices; its axes are those of the problem.
        collectives: how to move tensors; schedules of the problem's network by default.

    Raises:
        PlanError: for a mesh of other axes.
    """
    axes = dict(zip(problem.mesh.names, problem.mesh.sizes, strict=True))
    if dict(mesh.shape) != axes:
        raise PlanError(f"the plan is for a mesh of {axes}, got one of {dict(mesh.shape)}")
    layout = Layout(problem, decisions, cost)
    graph = problem.graph
    in_specs = [spec_of(layout.input_view(i), layout.source(i), problem.mesh) for i in graph.inputs]
    out_specs = [spec_of(o.view, layout.returned(o), problem.mesh) for o in graph.outputs]

    on_cpu = mesh.devices.flat[0].platform == "cpu"
    moving = collectives or scheduled(problem.network.schedule)

    def on_device(*leaves):
        return _Device(layout, moving, overlap=not on_cpu).run(leaves)

    body = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        check_vma=False,
    )

    def step(*args):
        leaves, tree = jax.tree.flatten(args)
        if tree != graph.in_tree:
            raise PlanError(f"the step takes arguments of {graph.in_tree}, got {tree}")
        return jax.tree.unflatten(graph.out_tree, body(*leaves))

    def shardings(tree, specs):
        return jax.tree.unflatten(tree, [NamedSharding(mesh, spec) for spec in specs])

    return Applied(
        step,
        shardings(graph.in_tree, in_specs),
        shardings(graph.out_tree, out_specs),
        _replaced(graph),
        CPU_OPTIONS if on_cpu else {},
        _unsaid(layout),
    )


def _unsaid(layout: Layout) -> tuple[str, ...]:
    """What of a plan is said by no sharding of an argument or result."""
    inside = {
        trip.flow
        for tensor, trip in layout.trips.items()
        if layout.graph.tensors[tensor].role == "activation"
        and any(move.kind in ("all_gather", "all_to_all", "reduce_scatter") for move in trip.moves)
    }
    kept = {trip.flow for trip in layout.trips.values() if trip.kept not in (None, trip.source)}
    again = len(layout.remade)
    found = (
        (len(inside), "how {} kinds of activations change their states"),
        (len(kept), "in which state {} kinds of tensors are kept for the backward pass"),
        (again, "that {} groups of operators run again there"),
    )
    return tuple(text.format(count) for count, text in found if count)


def _replaced(graph: Graph) -> tuple[int, ...]:
    """The arguments of which every leaf is replaced by a result."""
    updated = {out.updates for out in graph.outputs}
    found, start = [], 0
    for number, child in enumerate(graph.in_tree.children()):
        leaves = range(start, start + child.num_leaves)
        start += child.num_leaves
        if leaves and updated.issuperset(leaves):
            found.append(number)
    return tuple(found)


# ---------------------------------------------------------------------- on a device


class _Device:
    """What one device does, traced: the copies of every tensor that it has in either era.

    Args:
        turn: of the loop over microbatches, for a device that runs that alone.
        trips: how tensors travel; by default as in the plan.
        given: the tensors that are there at first.
    """

    def __init__(
        self,
        layout: Layout,
        collectives: Collectives,
        overlap: bool,
        turn: Turn | None = None,
        trips: Mapping[int, Trip] | None = None,
        given: Mapping[int, Copies] | None = None,
    ):
        self.overlap = overlap
        self.layout, self.graph, self.mesh = layout, layout.graph, layout.mesh
        self.collectives, self.microbatch = collectives, turn
        self.trips = layout.trips if trips is None else trips
        self.given: dict[int, Copies] = dict(given or {})
        self.early: dict[int, Copies] = {}
        self.late: dict[int, Copies] = {}
        self.last: jax.Array | None = None  # made by the operators so far
        self.turn: jax.Array | None = None  # made by the forward pass
        self.beside: jax.Array | None = None  # read with what moves in the backward pass
        self._behind: dict[tuple[object, int, State], jax.Array] = {}
        self._updates = _updates(self.graph)
        self._made_of: dict[int, list[jax.Array]] = defaultdict(list)

    def run(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """The results of a step, from the arguments, each in its state."""
        self.take(leaves)
        if self.layout.problem.pipeline is None:
            self.work(self.graph.operators)
            return tuple(map(self.result, self.graph.outputs))
        last = self.after_loop(Loop(self.layout))
        return tuple(map(last.result, self.graph.outputs))

    def after_loop(self, loop: Loop) -> _Device:
        """The device as it has run the loop over microbatches, and what comes after it."""
        before = {
            tensor: self.travel(dict(copies), self.trips[tensor].before.moves)
            for tensor, copies in self.given.items()
        }

        def body(turn: Turn) -> Callable[[int, State], jax.Array]:
            given = loop.given(before, turn)
            device = _Device(self.layout, self.collectives, self.overlap, turn, given=given)
            device.work(loop.inside)
            return device.made

        given = {**self.given, **loop.run(body)}
        last = _Device(self.layout, self.collectives, self.overlap, trips=loop.trips(), given=given)
        last.work(loop.afterwards, late=True)
        return last

    def work(self, operators: Sequence[Operator], late: bool = False) -> None:
        """Run operators in order; all of them in the second era if they are ``late``."""
        for operator in operators:
            early = operator.phase == "forward" and not late
            if not early and self.turn is None:
                self.turn = self.last
            for use, made in zip(operator.results, self.execute(operator, early), strict=True):
                self.put(use.tensor, made, early)
                self.last = made

    def take(self, leaves: Sequence[jax.Array]) -> None:
        """Arguments come in their states, constants whole. They travel when they are first read."""
        for tensor, leaf in zip(self.graph.inputs, leaves, strict=True):
            state = self.layout.source(tensor)
            self.given[tensor] = {state: leaf.reshape(self.sizes(tensor, state))}
        for tensor, value in self.graph.constants:
            state = self.layout.source(tensor)
            whole = jnp.asarray(value).reshape(self.layout.traced.tensors[tensor].sizes)
            self.given[tensor] = {state: cut(whole, state, self.mesh)}

    def sizes(self, tensor: int, state: State) -> list[int]:
        """A device's elements of every position, of all microbatches."""
        sizes = enumerate(self.layout.traced.tensors[tensor].sizes)
        return [size // shards_of(state, position, self.mesh) for position, size in sizes]

    def put(self, tensor: int, made: jax.Array, early: bool) -> None:
        """Note what was made or given, and bring it where its era wants it."""
        trip = self.trips.get(tensor)
        if trip is None:  # nothing but its own entity reads it
            state = self.layout.source(tensor)
            (self.early if early else self.late)[tensor] = {state: made}
        elif early:
            self.early[tensor] = self.travel({trip.source: made}, trip.early.moves)
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
            moves = self.trips[tensor].early.moves
            self.early[tensor] = self.travel(dict(self.given[tensor]), moves)
        if early:
            return self.early[tensor]
        if tensor not in self.late:
            trip = self.trips.get(tensor)
            producer = self.graph.tensors[tensor].producer
            if tensor not in self.given and self.is_remade(producer):
                self.remake(self.graph.operators[producer or 0])
            elif trip is None:
                self.late[tensor] = self.early[tensor]
            else:
                there = self.given.get(tensor, ()) or ([] if trip.kept else [trip.source])
                states = [*there, *([trip.kept] if trip.kept else [])]
                base = {s: self.early[tensor][s] for s in states}
                if any(move.kind != "slice" for move in trip.late.moves):
                    moments = [self.turn] if self.overlap else [self.last, self.beside]
                    base = {s: _after(x, *moments) for s, x in base.items()}
                self.late[tensor] = self.travel(base, trip.late.moves)
        return self.late[tensor]

    def copy(self, tensor: int, state: State, early: bool) -> jax.Array:
        """The copy of a tensor in a state.

        It is there, but where two entities of a class read one tensor and one of them runs again:
        a trip is the same for both.
        """
        there = self.copies(tensor, early)
        if state not in there:
            trip = self.trips[tensor]
            routes = self.layout.problem.routes(self.layout.problem.flows[trip.flow])
            self.travel(there, routes.tree(frozenset(there), frozenset({state})).moves)
        return there[state]

    def is_remade(self, producer: int | None) -> bool:
        """Whether an operator's entity runs again."""
        return producer is not None and self.layout.places[producer].entity in self.layout.remade

    def remake(self, operator: Operator) -> None:
        """Run an operator of the forward pass again."""
        made = self.execute(operator, early=False, again=True)
        for use, x in zip(operator.results, made, strict=True):
            self.put(use.tensor, x, early=False)

    def execute(self, operator: Operator, early: bool, again: bool = False) -> list[jax.Array]:
        """What an operator makes of a device's blocks of its operands."""
        if not (early or again):
            self.beside = self.partner(operator)
        arrays = []
        for k, use in enumerate(operator.operands):
            state = self.layout.wanted(operator.index, k) or self.layout.source(use.tensor)
            x = self.copy(use.tensor, state, early)
            if again or operator.call.region is not None:
                x = self.behind(operator, use.tensor, state, x)
            if operator.phase == "optimizer":
                x = self.gradient(use.tensor, state, x)
            arrays.append(x)
        made = run_operator(operator, arrays, self.block(operator), self.last)
        if not early and operator.phase != "optimizer":
            for use in operator.operands:
                if use.tensor in self.given:
                    self._made_of[use.tensor].append(made[0])
        return made

    def partner(self, operator: Operator) -> jax.Array | None:
        """An operand that the backward pass made: what is read beside it need not be there before.

        What was made last may come of the forward pass alone, such as a mask.
        """
        for use in operator.operands:
            producer = self.graph.tensors[use.tensor].producer
            if producer is not None and self.graph.operators[producer].phase != "forward":
                return next(reversed(self.copies(use.tensor, early=False).values()))
        return None

    def behind(self, operator: Operator, tensor: int, state: State, x: jax.Array) -> jax.Array:
        """A copy that is there only once the backward pass has come this far.

        What runs again itself needs no barrier of its own.
        """
        region = operator.call.region
        producer = self.graph.tensors[tensor].producer
        if producer is not None:
            same = region is not None and self.graph.operators[producer].call.region == region
            if same or self.is_remade(producer):
                return x
        key = (region, tensor, state)
        if key not in self._behind:
            self._behind[key] = _after(x, self.last, self.beside)
        return self._behind[key]

    def gradient(self, tensor: int, state: State, x: jax.Array) -> jax.Array:
        """What an argument is updated by, once all else has read the argument.

        The gradient of a kernel does not depend on what reads the kernel in the backward pass.
        Unless one waits for the other XLA keeps a copy of the kernel from the step's beginning.
        """
        moments = [m for given in self._updates.get(tensor, ()) for m in self._made_of[given]]
        if moments and (None, tensor, state) not in self._behind:
            self._behind[None, tensor, state] = _after(x, *moments)
        return self._behind.get((None, tensor, state), x)

    def block(self, operator: Operator) -> LocalBlock:
        """The part of an operator's labels that this device has."""
        way, labels = self.layout.way(operator.index), self.layout.places[operator.index].labels
        counts = tuple(shards_of(way, label, self.mesh) for label in labels)
        indices = {
            own: part_index(way, label, self.mesh)
            for own, label in enumerate(labels)
            if counts[own] > 1
        }
        pipeline, turn = self.layout.problem.pipeline, self.microbatch
        batch = None if pipeline is None else pipeline.labels[operator.index]
        if turn is None or batch is None:
            return LocalBlock(operator.sizes, counts, indices)
        counts = tuple(n * (turn.count if own == batch else 1) for own, n in enumerate(counts))
        sizes = self.layout.traced.operators[operator.index].sizes
        return LocalBlock(sizes, counts, indices, turn, batch)

    def result(self, out: Output) -> jax.Array:
        """A result of the step, in the state in which it is returned."""
        tensor, state = out.view.tensor, self.layout.returned(out)
        if tensor is None:
            return read(out.view, None, out.view.sizes)
        x = self.made(tensor, state)
        sizes = iter(self.sizes(tensor, state))
        by_position = dict(enumerate(sizes))
        local = [
            [size if p is None else by_position[p] for p, size in zip(*pair, strict=True)]
            for pair in zip(out.view.positions, out.view.sizes, strict=True)
        ]
        return read(out.view, x, local)

    def made(self, tensor: int, state: State) -> jax.Array:
        """A tensor as it is there at the end."""
        if self.microbatch is not None and state in self.early.get(tensor, {}):
            return self.early[tensor][state]
        there = self.copies(tensor, early=False)
        if state not in there:  # a PartitionSpec cannot say what is there
            whole = next(s for s in there if min(s, default=0) >= REPLICATED)
            gathers = _gathers(whole, self.graph.tensors[tensor].nbytes, self.mesh)
            there = self.travel(dict(there), gathers)
        return there[state]


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


def _after(x: jax.Array, *made: jax.Array | None) -> jax.Array:
    """A value that is there no sooner than what was made."""
    moments = [moment for moment in made if moment is not None]
    return lax.optimization_barrier((x, *moments))[0] if moments else x


def _gathers(state: State, nbytes: int, mesh: Mesh) -> list[Move]:
    """The moves that replicate a tensor, the last cut first."""
    moves = []
    for axis in reversed(range(len(state))):
        if state[axis] != REPLICATED:
            target = (*state[:axis], REPLICATED, *state[axis + 1 :])
            moves.append(Move("all_gather", axis, state, target, nbytes // mesh.shards(target)))
            state = target
    return moves
