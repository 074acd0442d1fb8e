"""Rail gather: every rank gathers along its rail, and passes the shards on within its host.

For example, on two hosts of two ranks, ranks 0 and 2 are on one rail, 1 and 3 on another. Rank 0
sends its shard to 2 along the rail and to 1 within the host, and passes the shard of 2 on to 1. If
ranks gathered within hosts first and then along rails, rank 0 would send the shard of 1 to 2 as
well, which is twice as much along the rail.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import (
    IN_BLOCKS,
    ONE_CHUNK,
    SOON,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.circles import ranks_per_host
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.topology import Topology

_FEW_RANKS = 64


@dataclasses.dataclass(frozen=True)
class RailGather(Synthesizer):
    """All-gather along rails in one step; ranks pass shards on within hosts as they arrive.

    Rank i of a host sends its shard to rank i of every other host, the next host first, so that no
    two ranks send to a third at the same time. A shard crosses the rails once per host, while after
    a gather within hosts (``HierarchicalRing``) every rank sends all shards of its host. Shards
    arrive in the order of hosts, and go to the other ranks of the host in ``parts`` messages each,
    while later ones are on their way. Every shard takes two messages, however many hosts there are.

    Attributes:
        parts: number of messages in which a rank passes on the shards of its rail. With more parts
            the last one, which leaves after all shards have arrived, is shorter.
        inner: ranks per host; read off the network when omitted.

    Raises:
        CollectiveError: a field is out of range.
    """

    parts: int = 32
    inner: int | None = None

    name: ClassVar[str] = "rail_gather"
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK
    send_work: ClassVar[float] = IN_BLOCKS
    put_off: ClassVar[float] = SOON

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "parts")
        checks.integer_fields(self, CollectiveError, "inner", or_none=True)

    def may_win(self, problem: Problem) -> bool:
        """Whether there are so many ranks that searches take long."""
        return problem.topology.num_ranks > _FEW_RANKS

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups.
            TopologyError: the network has no hosts, or hosts do not divide the ranks.
        """
        check_everyone(collective, self.name)
        n = topology.num_ranks
        inner = ranks_per_host(topology, self.name) if self.inner is None else self.inner
        if n % inner:
            raise TopologyError(
                f"{self.name} takes hosts of {inner} ranks, which does not divide the {n} of "
                f"{topology}; give another inner="
            )
        # Numbers have 32 bits, since thousands of ranks have tens of millions of sends.
        hosts, rank = n // inner, np.arange(n, dtype=np.int32)
        ahead = np.arange(1, hosts, dtype=np.int32)[:, None] * inner
        along = [np.broadcast_to(rank, (hosts - 1, n)).ravel(), ((rank + ahead) % n).ravel()]
        beside = np.arange(1, inner, dtype=np.int32)[:, None]
        within = [
            np.broadcast_to(rank, (inner - 1, n)).ravel(),
            (rank // inner * inner + (rank + beside) % inner).ravel(),
        ]
        src, dst = (np.concatenate(ends) for ends in zip(along, within, strict=True))
        edges = shortest_routes(topology, src, dst)
        # The shards of a rank, by the distance of the owner's host behind it: its own shard goes
        # first.
        behind = np.arange(hosts, dtype=np.int32)[:, None]
        part = np.where(behind == 0, 0, 1 + (behind - 1) * self.parts // max(hosts - 1, 1))
        first = len(along[0])
        count = len(within[0])
        owner = ((within[0] - behind * inner) % n).ravel()
        step = np.concatenate([np.zeros(first, np.int32), np.repeat(part.ravel(), count)])
        edge = np.concatenate(
            [
                np.arange(first, dtype=np.int32),
                np.tile(np.arange(first, first + count, dtype=np.int32), hosts),
            ]
        )
        owner = np.concatenate([along[0], owner])
        chunks = collective.chunks_per_shard
        if chunks > 1:
            step, edge, owner = (np.repeat(column, chunks) for column in (step, edge, owner))
        chunk = owner * np.int32(chunks) + np.arange(len(owner), dtype=np.int32) % np.int32(chunks)
        return Schedule.from_sends(topology, collective, step, edge, chunk, edges=edges)
