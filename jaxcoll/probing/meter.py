"""The questions that can be asked about a network: the times of flows, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Flow(NamedTuple):
    """Bytes from one rank to another."""

    src: int
    dst: int
    nbytes: int


class Meter(Protocol):
    """A network as ranks see it: which bytes arrive, and when."""

    num_ranks: int

    def hops(self) -> np.ndarray:
        """How often bytes from a rank to another are forwarded, int64 of shape (ranks, ranks).

        It is 0 if only switches that IP does not see are in between, and -1 if it is not known.
        """
        ...

    def latencies(self, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """Seconds that a few bytes take from the first to the second rank, float64 (pairs,).

        The time of a rank that sends them to itself is subtracted.
        """
        ...

    def times(self, flows: Sequence[Flow]) -> np.ndarray:
        """Seconds of each of several simultaneous flows; float64 of shape (flows,)."""
        ...
