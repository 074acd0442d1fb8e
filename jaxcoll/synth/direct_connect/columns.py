"""All_gathers on a digraph as columns of sends over its arcs, which expansions read and write.

Expansions are about arcs of a digraph, including self-loops; a schedule is about links of a
network, which has no self-loops. A self-loop matters though nothing is sent over it, because in the
line graph it is a vertex like every other arc. So sends are stored by arc here, and become sends
over links when they are written.

This file also moves schedules to other networks. A reduce_scatter needs an all_gather of the
transposed network, run backwards. Where an isomorphism takes the network to its transpose, that is
the network's own all_gather with its ranks renamed (``reversed_on``); where links go both ways,
every rank keeps its number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.kinds import ALL_GATHER
from jaxcoll.numerics import checks
from jaxcoll.schedule import Provenance, Schedule, concatenate
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.verifier import verify


@dataclasses.dataclass(frozen=True)
class Sends:
    """Columns of equal length, one value per send; int64.

    Attributes:
        step: the step, from 0.
        arc: the arc of the digraph.
        owner: the vertex whose shard the chunk belongs to.
        index: the number of the chunk in the shard.
    """

    step: np.ndarray
    arc: np.ndarray
    owner: np.ndarray
    index: np.ndarray

    @classmethod
    def of(cls, step, arc, owner, index) -> Sends:
        """The sends of columns whose shapes broadcast together."""
        columns = np.broadcast_arrays(step, arc, owner, index)
        return cls(*(np.ascontiguousarray(column, np.int64).ravel() for column in columns))

    @classmethod
    def joined(cls, parts: Sequence[Sends]) -> Sends:
        """The sends of all parts, in order."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def where(self, keep: np.ndarray) -> Sends:
        """The sends where ``keep`` is true."""
        return Sends(self.step[keep], self.arc[keep], self.owner[keep], self.index[keep])

    def split(self, pieces: int) -> Sends:
        """The sends with every chunk split into equal pieces."""
        # Sends of the pieces of a chunk follow each other, so that they share a message.
        piece = np.arange(pieces)
        column = (slice(None), None)
        index = self.index[column] * pieces + piece
        return Sends.of(self.step[column], self.arc[column], self.owner[column], index)


@dataclasses.dataclass(frozen=True)
class Gather:
    """An all_gather on a digraph.

    Attributes:
        digraph: the network, self-loops included.
        chunks: chunks per shard.
        steps: number of steps, T_L.
        sends: its sends.
    """

    digraph: Digraph
    chunks: int
    steps: int
    sends: Sends

    @classmethod
    def read(cls, digraph: Digraph, schedule: Schedule) -> Gather:
        """The columns of a schedule.

        Args:
            digraph: the digraph whose arcs, except self-loops, ``schedule`` uses.
            schedule: an all_gather of all ranks in order, on ``digraph.topology(...)``. It is
                verified.

        Raises:
            CollectiveError: the collective is another one, or has groups.
            TopologyError: the schedule's network is not the digraph's, or its links differ in
                speed.
            ScheduleError: sends take paths of several links, or the schedule is not sound.
        """
        checks.instance(digraph, Digraph, "digraph", TopologyError)
        checks.instance(schedule, Schedule, "schedule", ScheduleError)
        collective, topology = schedule.collective, schedule.topology
        if collective.traits is not ALL_GATHER or collective.is_grouped:
            raise CollectiveError(
                f"expansions take an all_gather of all ranks in order, not {collective}; give a "
                f"reduce_scatter to expand_reduce_scatter"
            )
        links = digraph.links
        if not (
            topology.num_vertices == digraph.size
            and np.array_equal(topology.src, digraph.tails[links])
            and np.array_equal(topology.dst, digraph.heads[links])
        ):
            raise TopologyError(
                f"the schedule is for {topology}, whose links differ from those of {digraph}"
            )
        if not topology.is_homogeneous:
            raise TopologyError(f"expansions need links of one alpha and bandwidth, not {topology}")
        if (schedule.edges.hops > 1).any():
            raise ScheduleError("expansions need sends over one link each; some use a longer path")
        # An unsound base would make every expansion of it unsound, so it is replayed once, while it
        # is small.
        verify(schedule)
        arc = links[schedule.edges.first_link[schedule.edge]]
        owner, index = np.divmod(schedule.chunk.astype(np.int64), collective.chunks_per_shard)
        sends = Sends.of(schedule.step, arc, owner, index)
        return cls(digraph, collective.chunks_per_shard, schedule.num_steps, sends)

    def write(self, alpha, link_bandwidth, name: str) -> Schedule:
        """The schedule of the columns.

        Args:
            alpha: seconds per link.
            link_bandwidth: bytes per second per link.
            name: name of the construction, for its provenance.
        """
        digraph, sends = self.digraph, self.sends
        # Links are the arcs other than self-loops, in the same order.
        link_of = np.cumsum(digraph.tails != digraph.heads) - 1
        return Schedule.from_sends(
            digraph.topology(alpha, link_bandwidth),
            Collective("all_gather", digraph.size, self.chunks),
            sends.step,
            link_of[sends.arc],
            sends.owner * self.chunks + sends.index,
            provenance=Provenance(name, {"digraph": digraph.name}),
        )


# ---------------------------------------------------------------------- moved to other networks


def reversed_on(schedule: Schedule, reversal: Sequence[int] | np.ndarray) -> Schedule:
    """The schedule run backwards, moved back to its own network (Thm. 2).

    For an all_gather this is a reduce_scatter with equal T_L and T_B, and vice versa. If every link
    of the network has a link back, the identity will do, and the result is ``schedule.reverse()``.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        reversal: an isomorphism f from the transposed network to the network: for every link
            (u, v) there is a link (f(v), f(u)) of the same speed.

    Raises:
        CollectiveError: another collective, or groups.
        TopologyError: ``reversal`` is not such an isomorphism.

    Source: dissertation, App. A.2, Defs. 5 to 7.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    collective = schedule.collective
    if ALL_GATHER not in (collective.traits, collective.traits.dual) or collective.is_grouped:
        raise CollectiveError(
            "only an all_gather or reduce_scatter of all ranks in order can be reversed, "
            f"got {collective}"
        )
    count = collective.num_ranks
    image = checks.rank_permutation(reversal, count, "reversal", TopologyError)
    # Backwards, the schedule runs on the transposed network. If that is isomorphic to the network
    # itself, renaming the ranks by the isomorphism brings it back (Thm. 2).
    moved = rename_ranks(schedule.reverse(), image)
    if not moved.topology.has_links_of(schedule.topology):
        raise TopologyError(
            f"reversal must take every link (u, v) of {schedule.topology} to a link (f(v), f(u)) "
            f"of the same speed"
        )
    return moved


def rename_ranks(schedule: Schedule, image: np.ndarray) -> Schedule:
    """The schedule with rank r renamed ``image[r]``, and its shard likewise.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        image: a permutation of the ranks, int64 of shape (ranks,).
    """
    moved, parts = schedule.relabel(image), schedule.collective.chunks_per_shard
    if schedule.collective.is_grouped:
        raise TopologyError(f"ranks can only be renamed without groups, got {schedule.collective}")
    # A shard is renamed with its rank; otherwise the collective would no longer be in order.
    chunk = image[moved.chunk // parts] * parts + moved.chunk % parts
    collective = Collective(moved.collective.kind, len(image), parts)
    return dataclasses.replace(moved, collective=collective, chunk=chunk.astype(np.int32))


def split_chunks(schedule: Schedule, pieces: int) -> Schedule:
    """The schedule with every chunk split into equal pieces, which are sent together.

    Args:
        schedule: an all_gather or reduce_scatter of all ranks in order.
        pieces: number of pieces of each chunk, at least 1.
    """
    pieces = checks.integer(pieces, "pieces", ScheduleError, least=1)
    collective = schedule.collective
    if pieces == 1:
        return schedule
    # The pieces of a chunk stay together in one message. So splitting changes only the numbering,
    # not the time, and schedules of different chunk counts can be joined.
    chunk = schedule.chunk.astype(np.int64)[:, None] * pieces + np.arange(pieces)
    return dataclasses.replace(
        schedule,
        collective=Collective(
            collective.kind, collective.num_ranks, collective.chunks_per_shard * pieces
        ),
        step_ptr=schedule.step_ptr * pieces,
        edge=np.repeat(schedule.edge, pieces),
        chunk=chunk.ravel().astype(np.int32),
        reduce=np.repeat(schedule.reduce, pieces),
    )


def all_reduce_of(scatter: Schedule, gather: Schedule) -> Schedule:
    """The all_reduce made of a reduce_scatter and an all_gather with any numbers of chunks.

    Args:
        scatter, gather: schedules of all ranks in order, on the same network.

    Raises:
        ScheduleError: see ``concatenate``.
    """
    parts = [schedule.collective.chunks_per_shard for schedule in (scatter, gather)]
    # Both phases need equal chunks: their number is the least multiple of both numbers.
    shared = math.lcm(*parts)
    return concatenate(
        split_chunks(scatter, shared // parts[0]), split_chunks(gather, shared // parts[1])
    )
