"""Loops of the step itself, run as loops.

The body of a loop is traced once, however long the loop is. Arrays that it reads from outside are
put into the placements that it requires before the loop begins. A carry, a row and a stack have one
dimension per label, in the order of the traced program, so that both ends of a carry are one array.

If a later loop mirrors an earlier one, the earlier loop stacks those tensors of its body that the
later one reads and does not rebuild.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from tensorstate.execution.microbatch_loop import read_view
from tensorstate.ir.graph import LOOP_BOUNDARY, Graph, Operator, View
from tensorstate.rules.sharding_rule import LocalShard


class Runner(Protocol):
    """Runs the operators of the step, or of one iteration of a body."""

    def run_operators(self, operators: Sequence[Operator]) -> None:
        """Run operators in order."""
        ...

    def operand(self, operator: Operator, k: int, again: bool = False) -> Any:
        """An operand of an operator, or of its second run; one dimension per position."""
        ...

    def shard(self, operator: Operator) -> LocalShard:
        """The part of an operator's labels that is computed here."""
        ...

    def body(self, operators: Sequence[Operator]) -> Callable[[], Runner]:
        """A function that makes the runners of a body; all outside tensors it reads are known."""
        ...

    def enter(self, operator: Operator, x: Any, again: bool = False) -> None:
        """Store what a boundary operator passes into the body, or did in the mirrored iteration."""
        ...

    stacks: dict[int, Any]  # by tensor, the stacks for loops that mirror its body
    mirrored: MirroredReads

    def saved_copy(self, tensor: int) -> Any:
        """The copy of a tensor that an iteration saves for the loop that mirrors it."""
        ...

    def restore(self, tensor: int, x: Any) -> None:
        """Store the copy of a tensor that the mirrored iteration has saved."""
        ...

    def in_turn(self, arrays: list[Any]) -> list[Any]:
        """The operands of a loop, available once everything before the loop is done."""
        ...


def by_loop(
    operators: Sequence[Operator], depth: int
) -> Iterator[tuple[int | None, list[Operator]]]:
    """Operators in order, grouped by loop, each group with the number of its loop.

    Args:
        depth: number of loops around them all.
    """

    def loop_of(operator: Operator) -> int | None:
        return operator.loops[depth] if len(operator.loops) > depth else None

    for number, group in itertools.groupby(operators, loop_of):
        yield number, list(group)


# The loop of the program becomes ``lax.scan`` or ``lax.while_loop`` again, on shards. Its carry is
# the operands of "carry_in", and its rows are those of "scan_row". If the loop mirrors another, its
# rows are also the tensors that the other has stacked, and the rows that second runs read.
# ``runner.body`` reshards all that the body reads from outside once, instead of in every iteration.
# Both functions of a ``while_loop`` run the operators before the condition, since XLA gives the
# body no result of the condition.
def run_loop(
    runner: Runner, graph: Graph, number: int, operators: Sequence[Operator], unroll: int = 1
) -> dict[int, Any]:
    """The tensors that a loop produces, one dimension per position.

    Args:
        runner: runs the operators around the loop.
        operators: all operators of the loop, inner loops included.
        unroll: iterations of a scan in one body, so that collectives of one hide under another.
    """
    loop = graph.loops[number]
    mine = [o for o in operators if o.loops[-1] == number and o.primitive in LOOP_BOUNDARY]
    at = {name: [o for o in mine if o.primitive == name] for name in LOOP_BOUNDARY}
    enter, leave = ([graph.operators[pair[end]] for pair in loop.carries] for end in (0, 1))
    inside = [o for o in operators if o not in mine]
    restored, again = runner.mirrored[number]
    kept, _ = runner.mirrored[graph.mirrored.get(number)]
    rows_again = [o for o in again if o.primitive == "scan_row"]
    start = runner.body([*inside, *(o for o in again if o not in rows_again)])
    rows = [stacked(flat_operand(runner, o), o) for o in at["scan_row"]]
    rows += [stacked(flat_operand(runner, o, again=True), o) for o in rows_again]
    rows += [runner.stacks[tensor] for tensor in restored]
    initial = runner.in_turn([flat_operand(runner, o) for o in enter])

    def iteration(carry: Sequence[Any], given: Sequence[Any], until: Sequence[Operator]) -> Runner:
        body, given = start(), list(given)
        for operator, x in zip((*enter, *at["scan_row"]), (*carry, *given), strict=False):
            body.enter(operator, x)
        given = given[len(at["scan_row"]) :]
        for operator, x in zip(rows_again, given, strict=False):
            body.enter(operator, x, again=True)
        for tensor, x in zip(restored, given[len(rows_again) :], strict=True):
            body.restore(tensor, x)
        body.run_operators(until)
        return body

    def carried(body: Runner, carry: Sequence[Any]) -> list[Any]:
        made = zip(leave, carry, strict=True)
        return [flat_operand(body, operator).reshape(before.shape) for operator, before in made]

    if loop.length is None:
        (condition,) = at["while_condition"]
        before = [o for o in inside if o.index < condition.index]

        def holds(carry):
            return flat_operand(iteration(carry, (), before), condition)

        last = lax.while_loop(holds, lambda c: carried(iteration(c, (), inside), c), initial)
        ys = []
    else:

        def step(carry, given):
            body = iteration(carry, given, inside)
            made = [flat_operand(body, o) for o in at["scan_stack"]]
            return carried(body, carry), (made, [*map(body.saved_copy, kept)])

        last, (ys, stacks) = lax.scan(step, initial, rows, loop.length, loop.reverse, unroll)
        runner.stacks.update(zip(kept, stacks, strict=True))
    made = zip((*leave, *at["scan_stack"]), (*last, *ys), strict=True)
    return {o.results[0].tensor: boundary_result(runner, o, x) for o, x in made}


# Example: a forward scan of 12 layers saves t1 and reruns t2 = tanh(t1). The scan of the backward
# pass has the stack of t1 among its rows, and runs tanh in every iteration. Only what it reads is
# stacked; JAX's own residuals would be stacked whatever the search decides.


class MirroredReads(dict[int | None, tuple[list[int], list[Operator]]]):
    """By loop, the tensors of the mirrored body that it reads, and the operators that rerun.

    A loop that mirrors none reads nothing, and neither does ``None``, which stands for no loop.
    Each
    entry is computed once: a loop saves the tensors that the loop mirroring it reads.

    Args:
        reruns: whether an operator of a body reruns in the loop that mirrors it.
    """

    def __init__(self, graph: Graph, reruns: Callable[[int], bool]):
        super().__init__()
        self.graph, self.reruns = graph, reruns

    def __missing__(self, number: int | None) -> tuple[list[int], list[Operator]]:
        found = self[number] = self._found(number)
        return found

    def _found(self, number: int | None) -> tuple[list[int], list[Operator]]:
        graph = self.graph
        mirrors = None if number is None else graph.loops[number].mirrors
        if mirrors is None:
            return [], []
        pending = [o for o in graph.operators if o.loops[:1] == (number,)]
        saved, again = dict[int, None](), dict[int, Operator]()
        while pending:
            for use in pending.pop().operands:
                producer = graph.tensors[use.tensor].producer
                if producer is None or graph.loops_around(use.tensor) != (mirrors,):
                    continue
                if not self.reruns(producer):
                    saved[use.tensor] = None
                elif producer not in again:
                    again[producer] = graph.operators[producer]
                    pending.append(again[producer])
        return sorted(saved), [again[index] for index in sorted(again)]


def flat_view(view: View) -> View:
    """The view of the same array with one dimension for every factor."""
    positions = tuple((position,) for dimension in view.positions for position in dimension)
    sizes = tuple((size,) for dimension in view.sizes for size in dimension)
    return View(view.tensor, positions, sizes, view.dtype, view.value)


def flat_operand(runner: Runner, operator: Operator, again: bool = False) -> Any:
    """The operand of a boundary operator, with one dimension per label in the traced order.

    On whole arrays an open sum has leading dimensions beyond its labels; they stay.

    Args:
        again: whether the operator reruns.
    """
    shard, call = runner.shard(operator), operator.eqn
    sizes = [[shard.local_size(k)] for dimension in call.input_labels[0] for k in dimension]
    x = runner.operand(operator, 0, again)
    read = functools.partial(read_view, flat_view(call.inputs[0]), sizes=sizes)
    for _ in range(x.ndim - len(operator.operands[0].labels)):
        read = jax.vmap(read)
    return read(x)


def stacked(x: Any, operator: Operator) -> Any:
    """A stack of rows with one leading dimension, which is not sharded."""
    labels = operator.eqn.input_labels[0]
    open_sums = x.ndim - sum(map(len, labels))
    before, inside = x.shape[:open_sums], x.shape[open_sums + len(labels[0]) :]
    # The size is not -1, which cannot be inferred for rows without elements, such as the residuals
    # of associative_scan.
    rows = math.prod(x.shape[open_sums : open_sums + len(labels[0])])
    return jnp.moveaxis(x.reshape(*before, rows, *inside), open_sums, 0)


def boundary_result(runner: Runner, operator: Operator, x: Any) -> Any:
    """The tensor that a boundary operator produces, from its carry or its stacked rows."""
    shard, labels = runner.shard(operator), operator.eqn.output_labels[0]
    sizes = [shard.local_size(k) for dimension in labels for k in dimension]
    if operator.primitive != "scan_stack":
        return x.reshape(*x.shape[: x.ndim - len(sizes)], *sizes)
    open_sums = x.ndim - 1 - (len(sizes) - len(labels[0]))
    return jnp.moveaxis(x, 0, open_sums).reshape(*x.shape[1 : 1 + open_sums], *sizes)
