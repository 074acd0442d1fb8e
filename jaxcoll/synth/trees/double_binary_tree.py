"""Double binary tree: two trees, the leaves of one being inner ranks of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import LAST, Counts, Problem, Synthesizer, in_pieces
from jaxcoll.synth.trees.pipeline import Tree, all_reduce
from jaxcoll.topologies.generative.binary_trees import tree_parents
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class DoubleBinaryTree(Synthesizer):
    """All-reduce over two binary trees with half the data each.

    Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"
    (2009), with the trees of NCCL: in the first, ranks with more trailing zero bits are higher up;
    the second is the first mirrored (even n) or shifted by one (odd n). Any number of ranks will
    do, though the TACOS paper takes it for powers of two only. Topology-oblivious: parents and
    children are routed over shortest paths.

    Attributes:
        pieces: see ``pipelined_trees.all_reduce``: 1 for the lowest latency.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    pieces: int | None = None

    name: ClassVar[str] = "double_binary_tree"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_reduce"})
    put_off: ClassVar[float] = LAST

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces", or_none=True)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        return (cls(), cls(pieces=1))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or, where messages are cut into pieces, as many as shorten the pipeline."""
        return in_pieces(self.pieces)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        return all_reduce(topology, collective, double_binary_trees, self.pieces)


def double_binary_trees(n: int) -> Sequence[Tree]:
    """The two trees over n ranks."""
    first, second = tree_parents(n)
    return Tree.from_parents(first), Tree.from_parents(second)
