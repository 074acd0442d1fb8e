"""Double binary tree: two trees, where the leaves of one are inner ranks of the other.

A leaf only receives in its tree; with both trees, every rank sends as much as it receives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.tree_pipeline import AnySize, Tree, all_reduce
from jaxcoll.synth.building.base import LAST
from jaxcoll.topologies.generative.kautz_graphs import tree_parents
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class DoubleBinaryTree(AnySize):
    """All-reduce over two binary trees with half the data each.

    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009), with the trees of NCCL: in the first, ranks with more trailing zero bits are higher up;
    the second is the first mirrored (even n) or shifted by one (odd n). Any number of ranks will
    do, though the TACOS paper uses it only for powers of two. Topology-oblivious: parents and
    children are routed over shortest paths.

    Attributes:
        pieces: see ``all_reduce``: 1 for the lowest latency.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    name: ClassVar[str] = "double_binary_tree"
    put_off: ClassVar[float] = LAST

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        return all_reduce(topology, collective, double_binary_trees, self.pieces)


def double_binary_trees(n: int) -> Sequence[Tree]:
    """The two trees over n ranks."""
    first, second = tree_parents(n)
    return Tree.from_parents(first), Tree.from_parents(second)
