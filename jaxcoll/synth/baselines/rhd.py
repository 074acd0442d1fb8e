"""Recursive halving-doubling: partners at growing distances, for 2**k ranks.

For example, with 4 ranks, rank 0 exchanges with rank 1 and then with rank 2. Its data double in
every step, so that log2(n) steps are enough, where rings take n - 1. Related algorithms are
``bruck`` and ``halving`` (any number of ranks), ``hdrm`` (for BiGraphs), ``swing`` and ``trivance``
(shorter ways on rings and tori).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import ALL_PIECES, LAST, Counts, Problem, Synthesizer, in_pieces
from jaxcoll.synth.building.sends import Sends, doubling, gather_in_order, gathered, is_power_of_two
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Rhd(Synthesizer):
    """All-gather by recursive doubling; reduce-scatter, run backwards, by recursive halving.

    In each of log2(n) steps all ranks exchange all their data in pairs, at distances 1, 2, 4, ...
    (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
    2005, Sec. 3). Topology-oblivious: pairs are routed over shortest paths. Groups must have 2**k
    ranks, which are paired by their indices.

    Attributes:
        far_first: whether the all-gather starts with the farthest partner, so that the largest
            messages go to the nearest (Rabenseifner's order of reduce-scatter).
        pieces: as for ``InPieces``.

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    far_first: bool = False
    pieces: int = 1

    name: ClassVar[str] = "rhd"
    put_off: ClassVar[float] = LAST

    def __post_init__(self) -> None:
        checks.flag_fields(self, CollectiveError, "far_first")
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        cut = (cls(pieces=ALL_PIECES), cls(far_first=True, pieces=ALL_PIECES))
        return (*cut, cls(), cls(far_first=True)) if fixed else cut

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk or, if messages are cut into pieces, the counts worth trying for a pipeline."""
        return in_pieces(self.pieces)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: a group's size is not a power of two.
        """
        for group in collective.groups:
            if not is_power_of_two(len(group)):
                raise CollectiveError(
                    f"{self.name} halves and doubles: it needs a power of two ranks in every "
                    f"group, got {len(group)}; bruck, ring and direct take any number"
                )
        index = np.arange(collective.chunks_per_shard)

        def pairwise(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            pattern = doubling(len(group), far_first=self.far_first)
            return group, gather_in_order(Grid((len(group),), (False,)), (0,), {0: pattern}, index)

        return gathered(topology, collective, pairwise, self.pieces)
