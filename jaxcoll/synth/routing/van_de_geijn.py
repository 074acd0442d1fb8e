"""Van de Geijn's broadcast: a scatter, followed by an all_gather of the shards.

Down a tree of whole messages every byte leaves the root once per child, and links outside the tree
are idle. Here the root sends every rank a different share, and then all ranks pass their shares on,
each over all of its links. With ranks 0, 1, 2 and root 0 the buffer is dealt in three: 1 and 2
receive their shares from 0 and exchange them, while 0 sends both its own. Data that 0 holds from
the start is not sent to it again, and a share is not sent again to a rank that it crossed on its
way.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.baselines.direct import Direct
from jaxcoll.synth.building.base import LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.derive import dealt
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.patterns.cascade import Cascade
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.topology import Topology

_SHARING, _TREES = MinCongestion(), ForestColl(fast=True)


@dataclasses.dataclass(frozen=True)
class VanDeGeijn(Synthesizer):
    """Broadcast in two parts: every rank gets a share of the buffer, then all gather the shares.

    Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective communication
    library (InterCom)" (1994), known from MPICH (Thakur, Rabenseifner and Gropp, 2005, Sec. 4.2).
    It is for buffers too long for a tree of whole messages and too short for a pipeline. The reduce
    derived from it is a reduce_scatter and a gather.

    Attributes:
        scatter, gather: the algorithms of both parts.
        nbytes: bytes of the buffer for which both should be fast; their own when None.

    Raises:
        CollectiveError: a part is not a synthesizer, or ``nbytes`` is not above 0.
    """

    scatter: Synthesizer = _SHARING
    gather: Synthesizer = _TREES
    nbytes: float | None = None

    name: ClassVar[str] = "van_de_geijn"
    kinds: ClassVar[frozenset[str]] = frozenset({"broadcast"})
    has_nbytes: ClassVar[bool] = True
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        for field in ("scatter", "gather"):
            checks.instance(getattr(self, field), Synthesizer, field, CollectiveError)
        nbytes = checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(self, nbytes=nbytes)

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        return tuple(cls(gather=gather) for gather in (ForestColl(fast=True), Cascade(), Direct()))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """For every rank, the numbers of chunks that are worth trying for the all_gather."""
        ranks = max(map(len, problem.collective.groups))
        gather = dataclasses.replace(problem.collective, kind="all_gather", root=None)
        series = self.gather.worth_trying(problem.of(gather))
        return tuple(tuple(ranks * count for count in counts) for counts in series)

    def work(self, problem: Problem) -> float:
        """Four times the work of the all_gather; the scatter and joining take three of these."""
        collective = problem.collective
        each = -(-collective.chunks_per_shard // max(map(len, collective.groups)))
        gather = dataclasses.replace(
            collective, kind="all_gather", root=None, chunks_per_shard=each
        )
        return 4 * self.gather.work(problem.of(gather))

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError, TopologyError: either algorithm is not defined for its part.
        """
        ranks, groups = topology.num_ranks, collective.groups
        sizes = [len(group) for group in groups]
        each = -(-collective.chunks_per_shard // min(size for size in sizes if size > 1))
        parts = []
        for algorithm, part in (
            (self.scatter, Collective("scatter", ranks, each, groups, collective.root)),
            (self.gather, Collective("all_gather", ranks, each, groups)),
        ):
            if self.nbytes is not None and hasattr(algorithm, "nbytes"):
                algorithm = dataclasses.replace(algorithm, nbytes=self.nbytes)
            parts.append(algorithm.synthesize(topology, part, seed, self.nbytes))
        scatter, gather = parts
        renamed = dealt(collective, each)
        there = np.zeros((ranks, collective.num_chunks + 1), bool)  # last: chunks left out
        there[:, -1] = True
        for g, group in enumerate(groups):
            root = collective.root_of(group)
            there[root, collective.chunk_ptr[g] : collective.chunk_ptr[g + 1]] = True
        goes = renamed[scatter.chunk] >= 0
        there[scatter.dst[goes], renamed[scatter.chunk[goes]]] = True
        lacks = ~there[gather.dst, renamed[gather.chunk]]
        ends = [np.concatenate([s.edges.path_ptr[:1] * 0, s.edges.hops]).cumsum() for s in parts]
        edges, image = distinct_edges(
            topology,
            np.concatenate([ends[0], ends[0][-1] + ends[1][1:]]),
            np.concatenate([s.edges.path_link for s in parts]),
        )
        return Schedule.from_sends(
            topology,
            collective,
            np.concatenate([scatter.step[goes], scatter.num_steps + gather.step[lacks]]),
            image[np.concatenate([scatter.edge[goes], len(scatter.edges) + gather.edge[lacks]])],
            renamed[np.concatenate([scatter.chunk[goes], gather.chunk[lacks]])],
            edges=edges,
            provenance=Provenance(
                certificate={
                    s.collective.kind: said for s in parts if (said := s.provenance.certificate)
                }
            ),
        )
