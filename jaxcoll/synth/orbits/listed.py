"""Schedules by orbits as a synthesizer, one of the candidates of the default.

The sends of one rank's shard are found in a second, and with it the number of chunks. Beyond 64
ranks the schedule stays that: an ``OrbitSchedule``, which lists the sends of all ranks if something
reads them.
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

# Up to this number of ranks other synthesizers are as fast and searches take no time. All sends are
# listed there.
_FEW_RANKS = 64
# Sends of all ranks up to which more chunks than one are tried where a run reads every send: some
# seconds to list and simulate.
_MANY_SENDS = 2**22


@dataclasses.dataclass(frozen=True)
class Orbits(Synthesizer):
    """The schedule of ``jc.synthesize_orbit``; up to 64 ranks with all its sends listed.

    It is for networks in which translations take rank 0 to every rank, and for collectives of all
    ranks.

    Attributes:
        nbytes: bytes of a rank's buffer for which the schedule is to be fast.

    Raises:
        CollectiveError: the bytes are not above 0.
    """

    nbytes: float = BUCKET_BYTES

    name: ClassVar[str] = NAME
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.one_shard_name is not None)
    has_nbytes: ClassVar[bool] = True
    put_off: ClassVar[float] = FIRST

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))

    def leads(self, problem: Problem) -> bool:
        """Whether there are so many ranks that searches take long."""
        return _has_many_ranks(problem.topology)

    def may_win(self, problem: Problem) -> bool:
        """The same: with few ranks others are as fast."""
        return self.leads(problem)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """The number that is fastest by the sends of one rank; 1 where many sends are listed."""
        check_everyone(problem.collective, self.name)
        if not _has_many_ranks(problem.topology):
            return super().chunk_counts(problem)
        found = self._orbit(problem, None)
        if _reads_all_sends(problem) and found.num_sends > _MANY_SENDS:
            return ONE_CHUNK
        return ((found.orbit.collective.chunks_per_shard,),)

    def work(self, problem: Problem) -> float:
        """The sends of one rank on each link of their paths; of all, where a run reads them."""
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
    """Whether a run of the problem reads the sends of all ranks (``jc.simulate``)."""
    return problem.execution is not None or not link_model(problem.model).is_linear


@functools.lru_cache(maxsize=8)
def _orbit(topology: Topology, kind: str, nbytes: float, chunks: int | None) -> OrbitSchedule:
    """The schedule of a number of chunks, or of the fastest number."""
    return synthesize_orbit(topology, kind, nbytes=nbytes, chunks=chunks)
