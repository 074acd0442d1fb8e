"""The questions that a network is asked: how long flows take, alone and together."""

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
    """A network as ranks see it: what comes through, and when."""

    num_ranks: int

    def hops(self) -> np.ndarray:
        """How often what goes from a rank to another is forwarded, int64 of shape (ranks, ranks).

        0 where nobody but a switch that IP does not see is in between; -1 where it is not known.
        """
        ...

    def latencies(self, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """Seconds that a few bytes take from the first to the second rank, beside those of a rank
        that sends them to itself; float64 of shape (pairs,).
        """
        ...

    def times(self, flows: Sequence[Flow]) -> np.ndarray:
        """Seconds of each flow, all at once; float64 of shape (flows,)."""
        ...
