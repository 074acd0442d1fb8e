"""The synthesizer ``orbits``: schedules by orbits, with the sends of all ranks listed.

``jc.synthesize_orbit`` finds the sends of one rank's shard in a second. The same sends, moved to
every rank, are an ordinary ``Schedule``, which calls, files of runtimes and figures can take. To
list them all takes longer than to find them, so the number of chunks is chosen before that, by the
sends of one rank.
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

# Up to this number of ranks other synthesizers find schedules that are as fast, in no time.
_FEW_RANKS = 64
# A schedule of several chunks per shard may have so many sends: some seconds to list and simulate.
_MANY_SENDS = 2**22


@dataclasses.dataclass(frozen=True)
class Orbits(Synthesizer):
    """The schedule of ``jc.synthesize_orbit``, with the sends of all ranks listed.

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

    def may_win(self, problem: Problem) -> bool:
        """Whether there are so many ranks that searches take long."""
        return problem.topology.num_ranks > _FEW_RANKS

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """The fastest number by the sends of one rank; 1 if that makes too many sends to list."""
        topology, collective = problem.topology, problem.collective
        if topology.num_ranks <= _FEW_RANKS:
            return super().chunk_counts(problem)
        check_everyone(collective, self.name)
        found = _orbit(topology, collective.kind, self.nbytes, None)
        if found.num_sends > _MANY_SENDS:
            return ONE_CHUNK
        return ((found.orbit.collective.chunks_per_shard,),)

    def work(self, problem: Problem) -> float:
        """Every send is listed, and simulated on each link of its path; no send is searched for."""
        topology, collective = problem.topology, problem.collective
        check_everyone(collective, self.name)
        if topology.num_ranks <= _FEW_RANKS:
            return problem.hops
        found = _orbit(topology, collective.kind, self.nbytes, collective.chunks_per_shard)
        hops = int(found.orbit.edges.hops[found.orbit.edge].sum())
        return IN_BLOCKS * topology.num_ranks * hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups, or too many chunks.
            TopologyError: no translations of the network are known.
            ScheduleError: there are more sends than a schedule lists.
        """
        check_everyone(collective, self.name)
        found = _orbit(topology, collective.kind, self.nbytes, collective.chunks_per_shard)
        return found.expand()


@functools.lru_cache(maxsize=8)
def _orbit(topology: Topology, kind: str, nbytes: float, chunks: int | None) -> OrbitSchedule:
    """The schedule of a number of chunks, or of the fastest number."""
    return synthesize_orbit(topology, kind, nbytes=nbytes, chunks=chunks)
