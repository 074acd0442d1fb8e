"""Bruck: sends one way round, in log2(n) steps, rounded up, for any number of ranks."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.grid import Grid
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building import sends
from jaxcoll.synth.building.base import InPieces
from jaxcoll.synth.building.sends import Sends, gather_in_order, gathered
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Bruck(InPieces):
    """All-gather in ceil(log2 n) steps for any number of ranks.

    In step t rank r sends all its data to rank r - 2**t, modulo n (Bruck, Ho, Kipnis, Upfal and
    Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", 1997). Topology-oblivious: pairs are routed over shortest paths.

    Its field ``pieces`` is that of ``InPieces``.
    """

    name: ClassVar[str] = "bruck"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        index = np.arange(collective.chunks_per_shard)

        def shifted(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            pattern = sends.bruck(len(group))
            return group, gather_in_order(Grid((len(group),), (False,)), (0,), {0: pattern}, index)

        return gathered(topology, collective, shifted, self.pieces)
