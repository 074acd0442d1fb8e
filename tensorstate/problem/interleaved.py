"""1F1B: the forward and the backward scan over layers in one loop over microbatches.

GPipe runs all microbatches forward, then the loss of the whole batch, then all of them backward, so
it holds the residuals of all microbatches. Here (PipeDream-Flush, Narayanan et al., 2021) a
microbatch that has left the last stage immediately goes through the head, the loss and their
derivatives, and back through the layers. For this, a step is put in the following order:

- *before*: everything that does not read the layers' result, such as the embedding, on the whole
  batch;
- the forward scan;
- *between*: the head, the loss and their derivatives, which the backward scan waits for: a loop
  over microbatches. Sums over the batch leave it by a ``sum_out``;
- the backward scan;
- *after*: everything else, on the whole batch: gradients of the embedding, the optimizer.

All devices run one program, so every tick has a forward and a backward part. Stage s of S runs
forward on microbatch t - s in tick t, and backward on microbatch t - 2 (S - 1) + s. The first S - 1
ticks have no backward part and the last S - 1 no forward part. So the bubble is that of GPipe, and
a device holds the residuals of 2 S - 1 microbatches. Stages with separate programs hold only S - s
at stage s, because one runs forward while the next runs backward. If every stage waited for each
tick, ticks would then be as long as the longer of both parts, and there would be 2 (M + S - 1) of
them: a third more time if the backward part takes twice as long. Twice as many microbatches of half
the size need as little memory here, and have a smaller bubble.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tensorstate.errors import PlanError
from tensorstate.ir import jaxprs
from tensorstate.ir.graph import (
    Consumer,
    Graph,
    Loop,
    Operator,
    Tensor,
    TracedEqn,
    Use,
    View,
)
from tensorstate.ir.placements import REPLICATED, SUM
from tensorstate.problem.microbatching import BatchTracker, leaves_scan
from tensorstate.rules.loops import RULES

# Kinds of operators that are computed per microbatch if only the part between the scans reads them.
CHEAP_KINDS = ("elementwise", "source")


def interleaved(
    graph: Graph, factor: int, loops: frozenset[int], placements: Sequence[int]
) -> tuple[Graph, int]:
    """The step in the order of 1F1B, and the number of the loop between the scans.

    Args:
        graph: the training step.
        factor: the batch.
        loops: numbers of the scans over layers.
        placements: for tensors in their bodies, the position of the batch or ``SUM``.

    Raises:
        PlanError: there are several scans forward or backward, or an operator that the backward
            scan waits for needs the whole batch; the error names its line.
    """
    return _Interleaving(graph, factor, loops, placements).run()


class _Interleaving:
    def __init__(self, graph: Graph, factor: int, loops: frozenset[int], placements: Sequence[int]):
        self.graph, self.factor, self.placements = graph, factor, placements
        self.scans: dict[int, list[Operator]] = {loop: [] for loop in sorted(loops)}
        for operator in graph.operators:
            if operator.loops and operator.loops[0] in loops:
                self.scans[operator.loops[0]].append(operator)
        self.tracker = BatchTracker(graph, factor)
        self.returned = {out.view.tensor for out in graph.outputs}

    def run(self) -> tuple[Graph, int]:
        """The graph, and the number of the new loop."""
        by_phase: dict[str, list[list[Operator]]] = {"forward": [], "backward": []}
        for operators in self.scans.values():
            by_phase[operators[0].phase].append(operators)
        if [len(of_phase) for of_phase in by_phase.values()] != [1, 1]:
            raise _refused(
                "the step must have one scan over layers forward and one backward, and has "
                f"{len(by_phase['forward'])} and {len(by_phase['backward'])}"
            )
        forward, backward = by_phase["forward"][0], by_phase["backward"][0]
        # Two things are known before the operators in between: the batch of all operators outside
        # of loops, and the sums of the forward scan, which are complete only after the last
        # microbatch.
        for tensor in self.graph.tensors:
            whole = tensor.dims.count(self.factor) == 1
            if whole and not self.graph.loops_around(tensor.index):
                self.tracker.batch_placements[tensor.index] = tensor.dims.index(self.factor)
        for operator in forward:
            if leaves_scan(operator) and self.placements[operator.operands[0].tensor] == SUM:
                self.tracker.record(operator, "after", [REPLICATED], None)
        between = self._between(forward, backward)
        between |= self._computed_for(between, forward, backward)
        first = [o for o in self.graph.operators if o.index in between]
        in_scan = {o.index for o in (*forward, *backward)}
        # An operator is after the loop if it reads results of the loop or belongs to the optimizer,
        # and otherwise before it, wherever it was traced; its phase follows from this.
        late = self._depending_on((*forward, *first))
        before, after = list[Operator](), list[Operator]()
        for operator in self.graph.operators:
            if operator.index in between or operator.index in in_scan:
                continue
            is_late = operator.index in late or operator.phase == "optimizer"
            phase = operator.phase
            if is_late and phase == "forward":
                phase = "backward"
            elif not is_late:
                phase = "forward"
            (after if is_late else before).append(dataclasses.replace(operator, phase=phase))
        self._check(forward, first, backward)
        return self._ordered(before, forward, first, backward, after)

    def _depending_on(self, operators: Iterable[Operator]) -> set[int]:
        """The operators that directly or indirectly read results of the given ones."""
        # One pass is enough, because operators are in traced order, in which readers come after
        # their operands.
        made = {use.tensor for o in operators for use in o.results}
        found: set[int] = set()
        for operator in self.graph.operators:
            if any(use.tensor in made for use in operator.operands):
                found.add(operator.index)
                made.update(use.tensor for use in operator.results)
        return found

    def _needed_by(self, operators: Iterable[Operator]) -> set[int]:
        """The operators whose results the given ones directly or indirectly read."""
        read = {use.tensor for o in operators for use in o.operands}
        found: set[int] = set()
        for operator in reversed(self.graph.operators):
            if any(use.tensor in read for use in operator.results):
                found.add(operator.index)
                read.update(use.tensor for use in operator.operands)
        return found

    def _between(self, forward: Sequence[Operator], backward: Sequence[Operator]) -> set[int]:
        """The operators that read the forward scan's result, and run on one microbatch."""
        inside = {o.index for o in (*forward, *backward)}
        after = self._depending_on(backward)
        needed = self._needed_by(backward)
        reading = self._depending_on(forward) - inside - after
        found: set[int] = set()
        for operator in self.graph.operators:
            if operator.index not in reading or operator.phase == "optimizer":
                continue
            if operator.loops:
                if operator.index in needed:
                    raise _refused(
                        f"a loop of its own runs between the scans ({operator.source}): write the "
                        "head and the loss without one"
                    )
                self.tracker.record(operator, "after", [REPLICATED] * len(operator.results), None)
                continue
            try:
                self.tracker.propagate(operator)
            except PlanError as error:
                raise _refused(str(error)) from None
            stage = self.tracker.stages[operator.index]
            # It needs the whole batch and the backward scan needs it. No microbatch could run
            # backward before the last one has run forward, as in GPipe.
            if stage == "after" and operator.index in needed:
                raise _refused(
                    "the backward scan waits for all microbatches, by "
                    f"{operator.primitive} ({operator.source})"
                )
            if stage != "after":
                found.add(operator.index)
        return found

    def _computed_for(
        self, between: set[int], forward: Sequence[Operator], backward: Sequence[Operator]
    ) -> set[int]:
        """Cheap operators along the batch, as of one-hot labels, read only by the part between."""
        reading = self._depending_on((*forward, *backward))
        found: set[int] = set()
        for operator in reversed(self.graph.operators):
            tensors = [self.graph.tensors[use.tensor] for use in operator.results]
            # Backwards from the last operator, so that operators which only such an operator reads
            # are found, too.
            readers = {c.operator for tensor in tensors for c in tensor.consumers}
            if (
                operator.kind in CHEAP_KINDS
                and operator.index not in reading
                and not operator.loops
                and readers
                and readers <= between | found
                and not any(tensor.index in self.returned for tensor in tensors)
                and all(tensor.dims.count(self.factor) == 1 for tensor in tensors)
            ):
                found.add(operator.index)
        return found

    def _check(
        self,
        forward: Sequence[Operator],
        between: Sequence[Operator],
        backward: Sequence[Operator],
    ) -> None:
        """Refuse reads of one microbatch's results in another one's tick, or after all ticks."""
        graph, placements = self.graph, self.tracker.batch_placements
        back, mine = {o.index for o in backward}, {o.index for o in between}
        left = {use.tensor: o for o in forward if leaves_scan(o) for use in o.results}
        for tensor in (*left, *(use.tensor for o in between for use in o.results)):
            is_split = placements[tensor] >= 0
            producer = graph.operators[graph.tensors[tensor].producer or 0]
            is_stack = tensor in left and producer.primitive == "scan_stack"
            readers = [graph.operators[c.operator] for c in graph.tensors[tensor].consumers]
            # The backward scan takes rows of stacks, and begins with carries of the operators in
            # between; these take carries of the forward scan; all others take whole sums.
            for reader in readers:
                if is_stack and reader.primitive == "scan_row" and reader.index in back:
                    is_sum = self.tracker.stages[producer.index] == "after"
                    fits = not is_sum and _is_as_stored(producer, reader)
                elif reader.index in back:
                    is_entry = reader.primitive == "carry_in" and len(reader.loops) == 1
                    fits = is_split and is_entry and not is_stack
                elif reader.index in mine:
                    fits = not is_stack
                else:
                    fits = not is_split and not (is_stack and back & {o.index for o in readers})
                if not fits:
                    origin = self.tracker.origin.get(tensor)
                    by = f", by {origin.primitive} ({origin.source})" if origin else ""
                    raise _refused(
                        f"{reader.primitive} ({reader.source}) reads "
                        f"{graph.tensors[tensor].name} of all microbatches{by}"
                    )
            if is_split and tensor in self.returned:
                names = [out.name for out in graph.outputs if out.view.tensor == tensor]
                raise _refused(f"the step returns {names[0]}, which has a row for every example")

    # ------------------------------------------------------------------ the new order

    def _ordered(
        self,
        before: Sequence[Operator],
        forward: Sequence[Operator],
        between: Sequence[Operator],
        backward: Sequence[Operator],
        after: Sequence[Operator],
    ) -> tuple[Graph, int]:
        """The graph in this order, with an exit for every sum that is read after the loop."""
        graph, number, stages = self.graph, len(self.graph.loops), self.tracker.stages
        tensors = list(graph.tensors)
        late = {o.index for o in after}
        renamed: dict[int, int] = {}
        in_loop: list[Operator] = []
        # A carry that leaves the forward scan has one microbatch, unless it is a sum.
        leaving = [
            o
            for o in forward
            if leaves_scan(o) and o.primitive == "carry_out" and stages[o.index] != "after"
        ]
        for operator in (*leaving, *between):
            if operator not in leaving:
                in_loop.append(dataclasses.replace(operator, loops=(number,)))
            for tensor in (tensors[use.tensor] for use in operator.results):
                readers = {c.operator for c in tensor.consumers}
                if tensor.index in self.returned or readers & late:
                    name = f"{tensor.name} of all microbatches"
                    whole = dataclasses.replace(tensor, index=len(tensors), name=name)
                    renamed[tensor.index] = whole.index
                    tensors.append(whole)
                    in_loop.append(_exit(tensor, whole, operator, number))
        stacks = {
            use.tensor: o for o in forward if o.primitive == "scan_stack" for use in o.results
        }
        order = [*before, *forward, *in_loop]
        for operator in backward:
            if operator.primitive == "scan_row" and operator.operands[0].tensor in stacks:
                operator = _labelled_as(stacks[operator.operands[0].tensor], operator)
            order.append(operator)
        for operator in after:
            order.append(_reading(operator, renamed))
        new = {o.index: k for k, o in enumerate(order) if o.index >= 0}
        operators = tuple(dataclasses.replace(o, index=k) for k, o in enumerate(order))
        loops = tuple(
            loop._replace(carries=tuple((new[a], new[b]) for a, b in loop.carries))
            for loop in graph.loops
        )
        source = self.scans[min(self.scans)][0].source
        outputs = tuple(out._replace(view=_view_of(out.view, renamed)) for out in graph.outputs)
        changed = dataclasses.replace(
            graph,
            tensors=_linked(tensors, operators),
            operators=operators,
            loops=(*loops, Loop(1, False, (), source)),
            outputs=outputs,
            nodes=(),
            node_classes=(),
            edges=(),
        )
        return changed, number


def _refused(why: str) -> PlanError:
    return PlanError(
        f"the stages cannot run a microbatch backward before all have run forward (1F1B): {why}; "
        'pipeline_schedule="gpipe" runs it'
    )


def _is_as_stored(stack: Operator, row: Operator) -> bool:
    """Whether a stack is read in the order of dimensions in which it is written."""
    written, read = stack.eqn.outputs[0], row.eqn.inputs[0]
    return written.positions == read.positions and len(written.positions[0]) == 1


def _labelled_as(stack: Operator, row: Operator) -> Operator:
    """The operator that reads a row, with the labels of the operator that writes it.

    With equal labels both are in one class of nodes, and a residual is read in the placements in
    which it is written.
    """
    pairs = zip(row.operands[0].labels, stack.results[0].labels, strict=True)
    new = dict(pairs)

    def renamed(labels: Iterable[int]) -> tuple[int, ...]:
        return tuple(new[label] for label in labels)

    def of_dims(dims):
        return tuple(tuple(map(renamed, of_array)) for of_array in dims)

    eqn = dataclasses.replace(
        row.eqn,
        input_labels=of_dims(row.eqn.input_labels),
        output_labels=of_dims(row.eqn.output_labels),
    )
    return dataclasses.replace(
        row,
        sizes=stack.sizes,
        operands=tuple(use._replace(labels=renamed(use.labels)) for use in row.operands),
        results=tuple(use._replace(labels=renamed(use.labels)) for use in row.results),
        need_replication=frozenset(renamed(row.need_replication)),
        eqn=eqn,
    )


def _exit(tensor: Tensor, whole: Tensor, producer: Operator, loop: int) -> Operator:
    """The operator by which a sum leaves the loop."""
    labels = tuple(range(len(tensor.sizes)))
    view = View(
        tensor.index,
        tuple((label,) for label in labels),
        tuple((size,) for size in tensor.sizes),
        tensor.dtype,
    )
    primitive, params = jaxprs.at_boundary("sum_out")
    dims = tuple((label,) for label in labels)
    return Operator(
        -1,
        "loop",
        "sum_out",
        tensor.sizes,
        (Use(tensor.index, labels),),
        (Use(whole.index, labels),),
        {},
        (frozenset({0}),),
        frozenset(),
        0,
        producer.phase,
        producer.source,
        TracedEqn(
            primitive,
            params,
            (view,),
            (dataclasses.replace(view, tensor=whole.index),),
            (dims,),
            (dims,),
            RULES["sum_out"],
        ),
        loops=(loop,),
    )


def _view_of(view: View, renamed: Mapping[int, int]) -> View:
    if view.tensor is None or view.tensor not in renamed:
        return view
    return dataclasses.replace(view, tensor=renamed[view.tensor])


def _reading(operator: Operator, renamed: Mapping[int, int]) -> Operator:
    """An operator that reads sums after they have left the loop."""
    if not any(use.tensor in renamed for use in operator.operands):
        return operator
    operands = tuple(
        use._replace(tensor=renamed.get(use.tensor, use.tensor)) for use in operator.operands
    )
    inputs = tuple(_view_of(view, renamed) for view in operator.eqn.inputs)
    eqn = dataclasses.replace(operator.eqn, inputs=inputs)
    return dataclasses.replace(operator, operands=operands, eqn=eqn)


def _linked(tensors: Sequence[Tensor], operators: Sequence[Operator]) -> tuple[Tensor, ...]:
    """The tensors with their producers and consumers in a new order."""
    producers: dict[int, int] = {}
    consumers: dict[int, list[Consumer]] = {tensor.index: [] for tensor in tensors}
    for operator in operators:
        producers.update((use.tensor, operator.index) for use in operator.results)
        for k, use in enumerate(operator.operands):
            consumers[use.tensor].append(Consumer(operator.index, k, operator.phase))
    results = {use.tensor: k for o in operators for k, use in enumerate(o.results)}
    return tuple(
        dataclasses.replace(
            tensor,
            producer=producers.get(tensor.index),
            result=results.get(tensor.index, tensor.result),
            consumers=tuple(consumers[tensor.index]),
        )
        for tensor in tensors
    )
