"""Schedules of one rank's shard, which translations of the network move to all other ranks.

An all_to_all of 4,096 ranks has more than 16 million chunks, and a schedule lists all their sends.
If translations take rank 0 to every rank (``Translations``), the sends of rank 0's chunks tell all
others: the chunks of rank r take the same ways, moved by the translation from 0 to r. So 4,095
chunks are listed, and the schedule is proved, timed and saved by these.

For example, on a ring of 4 ranks rank 0's shard of an all_gather goes 0->1 in step 0, and 1->2 and
0->3 in step 1. Rank 1's shard then goes 1->2 in step 0, and 2->3 and 1->0 in step 1.

The shard of one rank is a rooted collective: in an all_gather it is broadcast, in a reduce_scatter
reduced, in an all_to_all scattered; in an all_reduce it is summed, and the sum goes to all.

Such a schedule is a ``Schedule``, whose columns are listed when something first reads them. What
``jc.verify``, ``jc.simulate``, ``jc.io.save`` and ``repr`` need is known without.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.kinds import KINDS, Kind, kind_of
from jaxcoll.numerics import checks
from jaxcoll.orbits.translations import Translations
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology

__all__ = ["OrbitSchedule", "RankSends", "Translations", "shard_of_one"]

# Sends of all ranks that are listed at most: some gigabytes.
MOST_SENDS = 2**26
# The columns of a ``Schedule`` that are listed when first read.
_LISTED = ("edges", "step_ptr", "edge", "chunk", "reduce")


class RankSends(NamedTuple):
    """What one rank sends, in the order of the schedule.

    Attributes:
        step: step of each send, int32 of shape (sends,).
        dst: the receiving rank.
        owner: the rank whose shard the chunk belongs to.
        chunk: number of the chunk in the whole collective, int64.
        reduce: whether the receiver adds it.
    """

    step: np.ndarray
    dst: np.ndarray
    owner: np.ndarray
    chunk: np.ndarray
    reduce: np.ndarray

    def __repr__(self) -> str:
        return f"RankSends({len(self.step)} sends to {len(np.unique(self.dst))} ranks)"


def shard_of_one(kind: str, num_ranks: int, chunks: int) -> Collective:
    """The collective of rank 0's shard alone, in a collective of all ranks.

    Args:
        kind: the kind of the whole collective.
        chunks: chunks per shard.

    Raises:
        CollectiveError: an unknown kind, or one that is not the same for every rank; numbers that
            ``Collective`` refuses.
    """
    name = kind_of(kind).one_shard_name
    if name is None:
        known = ", ".join(each.name for each in KINDS.values() if each.one_shard_name)
        raise CollectiveError(f"a {kind} is not the same for every rank; give one of {known}")
    num_ranks = checks.integer(num_ranks, "num_ranks", CollectiveError, least=1, most=2**22)
    root = tuple(range(num_ranks)) if KINDS[name].has_roots else 0
    return Collective(name, num_ranks, chunks, root=root)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitSchedule(Schedule):
    """A schedule of all ranks, stored as the sends of rank 0's shard.

    It has all that a ``Schedule`` has. The columns ``edges``, ``step_ptr``, ``edge``, ``chunk`` and
    ``reduce`` are listed when first read, and kept; a schedule of more than 67,108,864 sends
    refuses that (``expand``).

    A proof of the orbit (``jc.verify``) proves the whole schedule. Let g be the translation that
    takes rank 0 to rank r. It maps links to links, and the holders of rank 0's chunks, before and
    after, to the holders of rank r's chunks. Every condition of the proof is about the sends of one
    chunk and their steps, which g keeps, so it holds for the moved sends too. Exactly one
    translation takes rank 0 to each rank, so every chunk of the collective is proved once.

    A run of the orbit (``jc.simulate``) times the whole schedule: messages and links that
    translations take to each other do the same at the same time, so one of each class is enough.
    This needs two conditions, which are checked: every translation but the identity moves every
    link of a path, and no path has two links of one class. Then exactly one message of a class
    crosses each link of a class, and ties are broken in the same order on all of these links.

    Equality and hash are by the orbit and the translations, so that comparing lists nothing: it
    differs from any ``Schedule``, and ``expand()`` equals those whose sends were listed from the
    start.

    Attributes:
        orbit: the sends of rank 0's shard, a schedule of ``shard_of_one``.
        translations: the symmetries of the network.

    Raises:
        ScheduleError: ``orbit`` has another kind or root, or runs on another network; a path does
            not meet the conditions above; or all ranks have more chunks than can be numbered.
    """

    topology: Topology = dataclasses.field(init=False)
    collective: Collective = dataclasses.field(init=False)
    edges: Edges = dataclasses.field(init=False)
    step_ptr: np.ndarray = dataclasses.field(init=False)
    edge: np.ndarray = dataclasses.field(init=False)
    chunk: np.ndarray = dataclasses.field(init=False)
    reduce: np.ndarray = dataclasses.field(init=False)
    provenance: Provenance = dataclasses.field(init=False)
    orbit: Schedule
    translations: Translations

    def __post_init__(self) -> None:
        checks.instance(self.orbit, Schedule, "orbit", ScheduleError)
        checks.instance(self.translations, Translations, "translations", ScheduleError)
        if self.orbit.topology != self.translations.topology:
            raise ScheduleError(
                f"the translations belong to {self.translations.topology}, but the orbit runs "
                f"on {self.orbit.topology}"
            )
        one = self.orbit.collective
        if one != shard_of_one(self._kind.name, one.num_ranks, one.chunks_per_shard):
            raise ScheduleError(
                f"the orbit is a {one}, whose roots differ from those of the shard of rank 0; "
                "give the collective of shard_of_one"
            )
        try:
            whole = Collective(self._kind.name, one.num_ranks, one.chunks_per_shard)
        except CollectiveError as error:
            raise ScheduleError(str(error)) from None
        object.__setattr__(self, "topology", self.orbit.topology)
        object.__setattr__(self, "collective", whole)
        object.__setattr__(self, "provenance", self.orbit.provenance)
        edges, where = self.orbit.edges, self.translations
        if not where.is_free[edges.path_link].all():
            raise ScheduleError(
                f"translations of {where.topology} leave some links of the orbit's paths in "
                "place, so it cannot be moved to every rank; route it over links that they move"
            )
        owner = np.repeat(np.arange(len(edges)), edges.hops)
        crossed = owner * where.topology.num_links + where.class_of_link[edges.path_link]
        if len(np.unique(crossed)) < len(crossed):
            raise ScheduleError(
                "an edge of the orbit crosses two links that translations take to each other; "
                "make it two edges"
            )

    # ------------------------------------------------------------------ facts

    @property
    def _kind(self) -> Kind:
        one = self.orbit.collective.kind
        for kind in KINDS.values():
            if kind.one_shard_name == one:
                return kind
        raise ScheduleError(f"the orbit is a {one}; it must be one of a shard, as a broadcast is")

    def __getattr__(self, name: str):
        """A column of all sends, listed now (``expand``); see the class."""
        if name not in _LISTED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        listed = self.expand()
        for column in _LISTED:
            object.__setattr__(self, column, getattr(listed, column))
        return getattr(listed, name)

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.orbit.num_steps

    @property
    def num_sends(self) -> int:
        """Number of sends of all ranks together."""
        return self.orbit.num_sends * self.topology.num_ranks

    @property
    def num_messages(self) -> int:
        """Number of messages of all ranks together."""
        return int(self.messages_in_step.sum())

    @functools.cached_property
    def message_ptr(self) -> np.ndarray:
        """First send of each message, and the number of sends; int64 (messages + 1,). Listed now.

        Raises:
            ScheduleError: there are more than 67,108,864 sends.
        """
        self.check_listed()
        return super().message_ptr

    @functools.cached_property
    def messages_in_step(self) -> np.ndarray:
        """Number of messages of each step, of all ranks together; int64 of shape (steps,)."""
        # A rank sends one message per step and class of edges.
        number, home = self.edge_classes
        pair = np.unique(self.orbit.step.astype(np.int64) * len(home) + number[self.orbit.edge])
        in_step = np.bincount(pair // max(len(home), 1), minlength=self.num_steps)
        return in_step * self.topology.num_ranks

    @functools.cached_property
    def edge_classes(self) -> tuple[np.ndarray, Edges]:
        """The class of each edge of the orbit, and for each class its edge out of rank 0."""
        return self.translations.classes_of(self.orbit.edges)

    # ------------------------------------------------------------------ the sends

    def sends_of(self, rank: int) -> RankSends:
        """The sends of a rank, from the orbit alone: the program of one process.

        Raises:
            ScheduleError: there is no such rank.
        """
        rank = checks.integer(
            rank, "rank", ScheduleError, least=0, most=self.topology.num_ranks - 1
        )
        orbit, where = self.orbit, self.translations
        owner = where.between(orbit.src, rank)
        dst = where.vertices(owner, orbit.dst)
        return RankSends(orbit.step, dst, owner, self._chunks(owner, orbit.chunk), orbit.reduce)

    def _chunks(self, owner: np.ndarray, chunk: np.ndarray) -> np.ndarray:
        """What chunks of rank 0 become in the whole collective, if moved to ``owner``."""
        one, n = self.orbit.collective, self.topology.num_ranks
        if not one.traits.moves:
            return owner.astype(np.int64) * one.chunks_per_shard + chunk
        target, piece = np.divmod(chunk.astype(np.int64), one.chunks_per_shard)
        target = self.translations.vertices(owner, target)
        return (owner.astype(np.int64) * n + target) * one.chunks_per_shard + piece

    def check_listed(self) -> None:
        """Refuse to list the sends of all ranks where they would take many gigabytes.

        Raises:
            ScheduleError: there are more than 67,108,864 sends.
        """
        if self.num_sends > MOST_SENDS:
            raise ScheduleError(
                f"{self} has {self.num_sends} sends in all, and at most {MOST_SENDS} are listed; "
                f"in Python sends_of(rank) lists those of one rank; verify, prove, simulate and "
                f"show work without the list"
            )

    def expand(self) -> Schedule:
        """The same schedule with one row per send.

        Raises:
            ScheduleError: there are more than 67,108,864 sends.
        """
        self.check_listed()
        orbit, where, n = self.orbit, self.translations, self.topology.num_ranks
        number, home = self.edge_classes
        # Every class's edge, moved to each rank: edge of class c out of rank r has number c n + r.
        hops = np.repeat(home.hops, n)
        by = np.repeat(np.tile(np.arange(n), len(home)), hops)
        ptr, path = home.paths_of(np.repeat(np.arange(len(home)), n))
        edges = Edges.along(self.topology, ptr, where.links(by, path))
        # Translations vary fastest, so that the images of a message follow one another, and ties
        # between different messages are broken on every link as in the orbit.
        owner = np.arange(n)
        edge = number[orbit.edge][:, None] * n + where.vertices(owner, orbit.src[:, None])
        return Schedule.from_sends(
            self.topology,
            self.collective,
            np.repeat(orbit.step, n),
            edge.ravel(),
            self._chunks(owner, orbit.chunk[:, None]).ravel(),
            np.repeat(orbit.reduce, n),
            edges=edges,
            provenance=orbit.provenance,
        )

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the orbit and the translations, as 64 hexadecimal digits."""
        images = np.ascontiguousarray(self.translations.generators, "<i4")
        state = hashlib.sha256(f"orbits {self.orbit.digest} {images.shape}".encode())
        state.update(images.tobytes())
        return state.hexdigest()

    def with_provenance(self, provenance: Provenance) -> OrbitSchedule:
        """The same schedule with another provenance."""
        same = copy.copy(self)  # the content is checked already
        object.__setattr__(same, "orbit", self.orbit.with_provenance(provenance))
        object.__setattr__(same, "provenance", provenance)
        return same

    def __repr__(self) -> str:
        by = f" by {self.provenance.synthesizer}" if self.provenance.synthesizer else ""
        return (
            f"OrbitSchedule({self._kind}{by} on {self.topology.name or self.topology}: "
            f"{self.num_steps} steps, {self.orbit.num_sends} sends of {self.topology.num_ranks} "
            f"ranks each)"
        )
