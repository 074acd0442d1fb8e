"""The all_reduce program (App. B.7) as it is solved: the least time, and the paths of its trees."""

from __future__ import annotations

import dataclasses
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class SharedPaths:
    """Paths from rank to rank, each shared between trees that broadcast and trees that sum.

    Attributes:
        paths: links of each path in the order they are crossed; one link on a direct network.
        copies: bytes per second of each path for trees that broadcast.
        sums: bytes per second of each path for trees that sum. No link carries more than its
            bandwidth if all paths are full.
    """

    paths: tuple[tuple[int, ...], ...]
    copies: tuple[Fraction, ...]
    sums: tuple[Fraction, ...]


@dataclasses.dataclass(frozen=True)
class AllReduceBound:
    """The least time of an all_reduce, latency aside.

    Attributes:
        seconds: seconds per byte of the vector that is reduced, which no all_reduce beats.
        two_phases: seconds per byte of an optimal reduce_scatter and then an optimal all_gather.
        reached: seconds per byte that trees reach; None where none is known, which takes switches
            with unequal bandwidth in and out, or floats that hide the fractions they stand for.
        roots: share of the vector that is summed at each rank and broadcast from it in these trees.
        shared: the part of every link that the trees may use; None where two phases, each of which
            has all links to itself, are as fast.
    """

    seconds: Fraction
    two_phases: Fraction
    reached: Fraction | None
    roots: tuple[Fraction, ...]
    shared: SharedPaths | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the bound is proved to be reached."""
        return self.reached == self.seconds

    @property
    def two_phases_reach_it(self) -> bool:
        """Whether nothing is to be gained over reduce_scatter and all_gather."""
        return self.two_phases <= self.seconds
