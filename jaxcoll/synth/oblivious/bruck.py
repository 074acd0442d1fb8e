"""Bruck's all-gather."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.grid import Grid
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building import sends
from jaxcoll.synth.building.base import ALL_PIECES, LAST, Counts, Problem, Synthesizer, in_pieces
from jaxcoll.synth.building.routed import gathered
from jaxcoll.synth.building.sends import Sends, gather_in_order
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Bruck(Synthesizer):
    """All-gather in ceil(log2 n) steps for any number of ranks.

    In step t rank r sends what it has to rank r - 2**t, counted round (Bruck, Ho, Kipnis, Upfal and
    Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", 1997). Topology-oblivious: pairs are routed over shortest paths.

    Attributes:
        pieces: pieces that every message is cut into, at most one per chunk of a shard; they follow
            one another where a message crosses several links (``Sends.in_pieces``).

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    pieces: int = 1

    name: ClassVar[str] = "bruck"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LAST

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries; see ``Synthesizer``."""
        cut = (cls(pieces=ALL_PIECES),)
        return (*cut, cls()) if fixed else cut

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, or, where messages are cut into pieces, as many as shorten the pipeline."""
        return in_pieces(self.pieces)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        index = np.arange(collective.chunks_per_shard)

        def shifted(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            pattern = sends.bruck(len(group))
            return group, gather_in_order(Grid((len(group),), (False,)), (0,), {0: pattern}, index)

        return gathered(topology, collective, shifted, self.pieces)
