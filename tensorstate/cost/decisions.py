"""The decisions of a search, and the nodes that are recomputed under them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.strategies import Strategy


@dataclasses.dataclass(frozen=True, eq=False)
class Decisions:
    """A strategy per node class, and the tensors that are recomputed, saved and kept resident.

    Where ``saved`` or ``loop_resident`` does not name a tensor, the placements with the least
    resharding time are taken; among equals, the smallest copy.

    Attributes:
        strategies: the strategy of every node class.
        recomputed: nodes of the forward pass to recompute in the backward pass from saved tensors.
            A node is recomputed only where a later consumer needs one of its results that is not in
            ``saved``. Layers of one class share a strategy, but each may be recomputed or not.
        saved: by tensor, the placements of the copy saved from the forward to the backward pass.
            A tensor that is recomputed is not saved.
        loop_resident: by tensor, with microbatches, the placements of the copy that stays resident
            through the microbatch loop. An input is resharded to it once before the loop, and no
            copy of it is saved within a microbatch. A tensor that is read after the loop is
            resharded to it in every microbatch and accumulated there.
    """

    strategies: tuple[Strategy, ...]
    recomputed: frozenset[int] = frozenset()
    saved: Mapping[int, Placements] = dataclasses.field(default_factory=dict)
    loop_resident: Mapping[int, Placements] = dataclasses.field(default_factory=dict)


def find_recomputed_nodes(problem: Problem, decisions: Decisions) -> frozenset[int]:
    """The nodes of ``decisions.recomputed`` whose results are needed after the forward pass."""
    nodes = problem.graph.nodes
    recomputed: set[int] = set()
    pending = {n for n in decisions.recomputed if problem.is_in_forward(nodes[n].class_id)}
    needs: dict[int, list[tuple[bool, tuple[int, ...]]]] = defaultdict(list)
    for group in problem.tensor_groups:
        for tensor, producer, consumers in zip(
            group.tensors, group.producers, group.consumers, strict=True
        ):
            if producer in pending and tensor not in decisions.saved:
                after_forward = (
                    consumer_class.after_forward and not consumer_class.after_loop
                    for consumer_class in group.consumer_classes
                )
                needs[producer] += zip(after_forward, consumers, strict=True)
    # Consumers follow producers in execution order, so one reversed pass finds all nodes.
    for node in sorted(pending, reverse=True):
        if any(
            after_forward or not recomputed.isdisjoint(consumers)
            for after_forward, consumers in needs[node]
        ):
            recomputed.add(node)
    return frozenset(recomputed)
