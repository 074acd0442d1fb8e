"""The tensors of streamed bodies that have a part of the batch, and those that are sums over it."""

from __future__ import annotations

import jax.numpy as jnp

from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Operator
from tensorstate.ir.placements import REPLICATED, SUM
from tensorstate.problem.microbatching import BatchTracker, batch_names, leaves_scan, with_sums


class BodySplit:
    """Finds the tensors of bodies that are split along the batch, and the sums over it.

    If a sum over the batch is added to a carry without the batch, the carry is itself such a sum.
    This is found by trial: such a carry enters with the same value for all microbatches and leaves
    as a sum.
    """

    def __init__(
        self, graph: Graph, factor: int, loops: frozenset[int], between: int | None = None
    ):
        self.graph, self.factor, self.loops = graph, factor, loops
        streamed = loops if between is None else loops | {between}
        self.inside = [o for o in graph.operators if o.loops and o.loops[0] in streamed]
        self.between = between
        self.carries = {
            enter: leave
            for number in {n for o in self.inside for n in o.loops}
            for enter, leave in graph.loops[number].carries
        }

    def run(self) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
        """Placements of tensors along the microbatches, and the batch's label for each operator.

        Raises:
            PlanError: an operator needs the full batch; the error names it.
        """
        tracker, sums = with_sums(self._tracked, self.carries.items())
        self._check(tracker, sums)
        # Outside of the bodies the batch is whole, and sharded there as the search decides.
        inside = {use.tensor for o in self.inside for use in o.results}
        inside -= {use.tensor for o in self.inside if self._is_whole(o) for use in o.results}
        placements = tuple(
            placement if tensor in inside else REPLICATED
            for tensor, placement in enumerate(tracker.batch_placements)
        )
        return placements, tuple(tracker.labels)

    def _is_whole(self, operator: Operator) -> bool:
        """Whether an operator's result belongs to the whole batch, after all microbatches."""
        is_streamed = operator.primitive == "carry_out" and operator.phase == "forward"
        return leaves_scan(operator) and not (is_streamed and self.between is not None)

    def _tracked(self, sums: set[int]) -> BatchTracker:
        """The bodies, given that these carries are sums."""
        tracker = BatchTracker(self.graph, self.factor)
        # Tensors between the scans have the whole batch, which is cut where a body reads them. So
        # the batch is known at every entrance before the bodies are followed.
        for tensor in self.graph.tensors:
            if tensor.dims.count(self.factor) == 1 and not self.graph.loops_around(tensor.index):
                tracker.batch_placements[tensor.index] = tensor.dims.index(self.factor)
        for operator in self.inside:
            if operator.index in sums:
                tracker.record(operator, "loop", [SUM], None)
            elif leaves_scan(operator):  # whole again after its scan
                use = operator.operands[0]
                placement = tracker.batch_placements[use.tensor]
                tracker.labels[operator.index] = use.labels[placement] if placement >= 0 else None
            else:
                tracker.propagate(operator)
        return tracker

    def _check(self, tracker: BatchTracker, sums: set[int]) -> None:
        """Refuse bodies that microbatches cannot run through.

        Raises:
            PlanError: an operator is not possible; the error names it.
        """
        for operator in self.inside:
            results = [tracker.batch_placements[use.tensor] for use in operator.results]
            if tracker.stages[operator.index] == "after" or any(p < SUM for p in results):
                tracker.refuse(operator, "it combines a sum over all examples with other values")
            # Stacks accumulate over microbatches by additions, which do not exist for maxima.
            if leaves_scan(operator) and operator.primitive == "scan_stack":
                read = tracker.batch_placements[operator.operands[0].tensor]
                if read < SUM:
                    tracker.refuse(operator, "it stacks a maximum over all examples")
        for enter, leave in self.carries.items():
            before, after = tracker.ends(enter, leave)
            operator = self.graph.operators[leave]
            if before != after or (enter in sums) != (after == SUM):
                tracker.refuse(operator, "the carry has the batch at one end of a layer only")
            result = self.graph.tensors[operator.results[0].tensor]
            returned = any(out.view.tensor == result.index for out in self.graph.outputs)
            is_number = jnp.issubdtype(result.dtype, jnp.number)
            # The last stage has the carry and all others have zeros, whose sum is the carry; keys
            # and booleans have no sum.
            if leaves_scan(operator) and not is_number and (result.consumers or returned):
                raise PlanError(
                    f"the scan over layers ({operator.source}) carries an array of {result.dtype} "
                    "that is read after it, which its last stage cannot sum over all: carry "
                    "numbers, or draw keys before the scan and scan them"
                )
        streamed = any(
            tracker.ends(enter, leave)[0] >= 0
            for loop in self.loops
            for enter, leave in self.graph.loops[loop].carries
        )
        if not streamed:
            raise without_batch(self.graph, self.factor, self.loops)


def without_batch(graph: Graph, factor: int, loops: frozenset[int]) -> PlanError:
    """The error for scans that have no carry with the batch."""
    names = ", ".join(batch_names(graph, factor)[:3])
    return PlanError(
        f"the scan over layers ({graph.loops[min(loops)].source}) carries no array with the batch "
        f"of {names} as a dimension of its own, from which microbatches are cut: carry activations "
        "as [batch, ...], or name an argument whose first dimension is the batch by batch="
    )
