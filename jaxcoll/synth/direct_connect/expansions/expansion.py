"""The base class of expansions: an all_gather of a base becomes one of a larger digraph."""

from __future__ import annotations

import abc
from typing import ClassVar, final

import numpy as np

from jaxcoll.bounds.moore import Cost
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.bfb_reversal import rename_ranks, reversed_on
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import find_reversal


class Expansion(abc.ABC):
    """A mapping of (digraph, all_gather) to a larger digraph and an all_gather on it (Table 3.3).

    Subclasses are frozen dataclasses. ``cost`` predicts T_L and T_B of the expanded schedule
    from those of the base's, so that a search need not build either.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def digraph(self, base: Digraph) -> Digraph:
        """The expanded digraph.

        Raises:
            TopologyError: the expansion is not defined for the base.
        """

    @abc.abstractmethod
    def size(self, size: int, degree: int) -> tuple[int, int]:
        """Size and degree of the expansion of a base of this size and degree."""

    @abc.abstractmethod
    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """T_L and T_B of the expanded all_gather; upper bounds, for line graphs.

        Args:
            base: cost of the base's all_gather.
            size, degree: of the base.
        """

    @abc.abstractmethod
    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """Chunks per shard, steps and sends of the expanded all_gather."""

    def vertices_of_transpose(self, base: Digraph) -> np.ndarray:
        """The vertex of ``digraph(base)`` that each one of ``digraph(base.transpose())`` is.

        The two digraphs are each other's transpose under this numbering; int64 of shape (size,).
        """
        size, _ = self.size(base.size, base.degree)
        return np.arange(size)

    @final
    def all_gather(self, base: Digraph, schedule: Schedule) -> tuple[Digraph, Schedule]:
        """The expanded digraph and all_gather, links being those of the base.

        Args:
            base: the digraph.
            schedule: an all_gather of all ranks on ``base.topology(...)``; it is verified.

        Raises:
            TopologyError, CollectiveError, ScheduleError: see ``digraph`` and ``Gather.read``.
        """
        gather = Gather.read(base, schedule)
        expanded = self.digraph(base)
        chunks, steps, sends = self.sends(gather, expanded)
        topology = schedule.topology
        alpha, bandwidth = topology.exact_alpha[0], topology.exact_bandwidth[0]
        result = Gather(expanded, chunks, steps, sends).write(alpha, bandwidth, self.name)
        return expanded, result

    @final
    def reduce_scatter(self, base: Digraph, schedule: Schedule) -> tuple[Digraph, Schedule]:
        """The expanded digraph and reduce_scatter, by way of the transpose (Corollary 1.2).

        A base that is not reverse-symmetric keeps two schedules, and so do its expansions; for
        another, ``scatter_of`` derives this one from the all_gather.

        Args:
            base: the digraph.
            schedule: a reduce_scatter of all ranks on ``base.topology(...)``; it is verified.

        Raises:
            CollectiveError: another collective; other errors are those of ``all_gather``.
        """
        checks.instance(base, Digraph, "base", TopologyError)
        checks.instance(schedule, Schedule, "schedule", ScheduleError)
        if schedule.collective.kind != "reduce_scatter":
            raise CollectiveError(f"this expands a reduce_scatter, not {schedule.collective}")
        _, gather = self.all_gather(base.transpose(), schedule.reverse())
        return self.digraph(base), rename_ranks(gather.reverse(), self.vertices_of_transpose(base))


def scatter_of(digraph: Digraph, schedule: Schedule) -> Schedule:
    """The reduce_scatter on the same network as an all_gather, and as fast (Theorem 2).

    Raises:
        TopologyError: the digraph is not isomorphic to its transpose.
    """
    checks.instance(digraph, Digraph, "digraph", TopologyError)
    return reversed_on(schedule, find_reversal(digraph))
