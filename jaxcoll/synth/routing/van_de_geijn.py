"""Van de Geijn's broadcast: a scatter, and an all_gather of the shards.

Down a tree of whole messages every byte leaves the root once per child, and links outside the tree
stay idle. Here the root sends every rank another share, and then all ranks pass their shares on,
each over all of its links.

With ranks 0, 1, 2 and root 0 the buffer is dealt in three: 1 and 2 receive their shares from 0 and
exchange them, while 0 sends both its own. What 0 holds from the start is not sent to it again, nor
anything to a rank that a share crossed on its way.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.synth.dimensional.cascade import Cascade
from jaxcoll.synth.forestcoll import ForestColl
from jaxcoll.synth.oblivious.ring import Direct
from jaxcoll.synth.routing.min_congestion import MinCongestion
from jaxcoll.topology import Topology

_SHARING, _TREES = MinCongestion(), ForestColl(fast=True)


@dataclasses.dataclass(frozen=True)
class VanDeGeijn(Synthesizer):
    """Broadcast in two parts: every rank gets a share of the buffer, and all gather the shares.

    Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective communication
    library (InterCom)" (1994), known from MPICH (Thakur, Rabenseifner and Gropp, 2005, Sec. 4.2).
    For buffers too long for a tree of whole messages and too short for a pipeline: the root sends
    each byte once, and every rank helps to spread it. The reduce that follows from it is a
    reduce_scatter and a gather.

    A chunk is not gathered where it is already: at the root, and at ranks that it crossed on its
    way to its own.

    Attributes:
        scatter, gather: the algorithms of both parts.
        nbytes: bytes of the buffer that both are to be fast for; their own when None.

    Raises:
        CollectiveError: parts that are not synthesizers, or ``nbytes`` is not above 0.
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
        """The variants that auto tries; see ``Synthesizer``."""
        return tuple(cls(gather=gather) for gather in (ForestColl(fast=True), Cascade(), Direct()))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """For every rank as many chunks as the all_gather is worth trying with."""
        ranks = max(map(len, problem.collective.groups))
        gather = dataclasses.replace(problem.collective, kind="all_gather", root=None)
        series = self.gather.worth_trying(problem.of(gather))
        return tuple(tuple(ranks * count for count in counts) for counts in series)

    def work(self, problem: Problem) -> float:
        """The work of the all_gather; the scatter and joining both take as much three times."""
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
        parts = [
            self._sized(synthesizer).synthesize(topology, part, seed, self.nbytes)
            for synthesizer, part in (
                (self.scatter, Collective("scatter", ranks, each, groups, collective.root)),
                (self.gather, Collective("all_gather", ranks, each, groups)),
            )
        ]
        scatter, gather = parts
        renamed = _dealt(collective, each)
        there = np.zeros((ranks, collective.num_chunks + 1), bool)  # the last for chunks left out
        there[:, -1] = True
        for g, group in enumerate(groups):
            root = group[collective.root or 0]
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

    def _sized(self, synthesizer: Synthesizer) -> Synthesizer:
        """The algorithm of a part, for as many bytes if it has a field for them."""
        if self.nbytes is None or not hasattr(synthesizer, "nbytes"):
            return synthesizer
        return dataclasses.replace(synthesizer, nbytes=self.nbytes)


def _dealt(collective: Collective, each: int) -> np.ndarray:
    """The chunk of the broadcast that each chunk of the parts is, dealt to the ranks in turn.

    Args:
        each: chunks per shard of the parts; those beyond the chunks of a group are -1.
    """
    renamed = []
    for first, group in zip(collective.chunk_ptr, collective.groups, strict=False):
        place = np.arange(each) * len(group) + np.arange(len(group))[:, None]
        renamed.append(np.where(place < collective.chunks_per_shard, first + place, -1).ravel())
    return np.concatenate(renamed)
