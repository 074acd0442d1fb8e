"""The synthesizer ``orbits``: what ``jc.synthesize_orbit`` finds, as a candidate of the default.

The sends of one rank's shard, and the number of chunks with which they are fastest, are found in a
second. Beyond 64 ranks the result is an ``OrbitSchedule``, which lists the sends of all ranks only
when something reads them. Up to 64 ranks it is an ordinary ``Schedule``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.orbits import OrbitSchedule
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import link_model
from jaxcoll.synth.building.base import (
    BUCKET_BYTES,
    FIRST,
    IN_BLOCKS,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.orbits import NAME, synthesize_orbit
from jaxcoll.topology import Topology

# Up to this number of ranks, other synthesizers find schedules that are as fast in no time, and the
# sends of all ranks are few enough to be listed.
_FEW_RANKS = 64
# If a simulation has to read the sends of all ranks, several chunks per shard are tried only up to
# this number of sends. To list and simulate so many takes some seconds.
_MANY_SENDS = 2**22


@dataclasses.dataclass(frozen=True)
class Orbits(Synthesizer):
    """The schedule of ``jc.synthesize_orbit``; up to 64 ranks, the sends of all ranks are listed.

    It is for networks in which translations take rank 0 to every rank, and for collectives of all
    ranks.

    Attributes:
        nbytes: bytes of a rank's buffer for which the schedule is to be fast.

    Raises:
        CollectiveError: the bytes are not above 0.
    """

    nbytes: float = BUCKET_BYTES

    name: ClassVar[str] = NAME
    lists_chunks: ClassVar[bool] = False
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.one_shard_name is not None)
    has_nbytes: ClassVar[bool] = True
    put_off: ClassVar[float] = FIRST

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))

    def leads(self, problem: Problem) -> bool:
        """Whether there are so many ranks that other synthesizers take long."""
        return _has_many_ranks(problem.topology)

    def may_win(self, problem: Problem) -> bool:
        """Whether it leads; with fewer ranks, other synthesizers are as fast."""
        return self.leads(problem)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """The number with which the sends of one rank are fastest.

        It is 1 if a simulation has to read the sends of all ranks, and that number makes too many.
        """
        check_everyone(problem.collective, self.name)
        if not _has_many_ranks(problem.topology):
            return super().chunk_counts(problem)
        found = self._orbit(problem, None)
        if _reads_all_sends(problem) and found.num_sends > _MANY_SENDS:
            return ONE_CHUNK
        return ((found.orbit.collective.chunks_per_shard,),)

    def work(self, problem: Problem) -> float:
        """The links that sends cross: those of one rank, or of all if a simulation reads them."""
        check_everyone(problem.collective, self.name)
        if not _has_many_ranks(problem.topology):
            return problem.hops
        orbit = self._orbit(problem, problem.collective.chunks_per_shard).orbit
        hops = int(orbit.edges.hops[orbit.edge].sum())
        ranks = problem.topology.num_ranks if _reads_all_sends(problem) else 1
        return IN_BLOCKS * ranks * hops

    def _orbit(self, problem: Problem, chunks: int | None) -> OrbitSchedule:
        return _orbit(problem.topology, problem.collective.kind, self.nbytes, chunks)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups, or too many chunks.
            TopologyError: no translations of the network are known.
        """
        check_everyone(collective, self.name)
        found = _orbit(topology, collective.kind, self.nbytes, collective.chunks_per_shard)
        return found if _has_many_ranks(topology) else found.expand()


def _has_many_ranks(topology: Topology) -> bool:
    return topology.num_ranks > _FEW_RANKS


def _reads_all_sends(problem: Problem) -> bool:
    """Whether ``jc.simulate`` has to read the sends of all ranks to time the problem."""
    return problem.execution is not None or not link_model(problem.model).is_linear


@functools.lru_cache(maxsize=8)
def _orbit(topology: Topology, kind: str, nbytes: float, chunks: int | None) -> OrbitSchedule:
    """The schedule with the given number of chunks, or with the fastest if it is None."""
    return synthesize_orbit(topology, kind, nbytes=nbytes, chunks=chunks)
