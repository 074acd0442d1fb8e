"""Problems, and the base class of synthesizers, with the questions that auto asks them.

A problem is a collective on a network, for a size. It is checked once, in the two entry points
``synthesize`` and ``Synthesizer.synthesize``; everything below them relies on that.

All synthesizers turn a problem into a schedule in the same way: they ``solve`` the kind, or
``derive`` it from a kind that ``solve`` knows, and note the provenance (``made``). Each synthesizer
states in its own file which variants are worth trying, with which numbers of chunks, and how much
work that is: ``variants``, ``chunk_counts``, ``work``.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Self, final

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.copies import Copies
from jaxcoll.errors import CollectiveError, JaxcollError, TopologyError
from jaxcoll.kinds import Kind, those
from jaxcoll.members import Members, beside_lone_ranks, side_by_side
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import Edges, hop_distances
from jaxcoll.progress import Report
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import ASTRA, LinkModel, link_model
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth.building.derive import chunks_for_all, derive, for_some
from jaxcoll.topology import Topology, connected

# PyTorch's DistributedDataParallel and ``jc.optax`` reduce gradients in buckets of 25 MiB.
BUCKET_BYTES = 25 * 2**20


@dataclasses.dataclass(frozen=True)
class Problem:
    """A collective on a network, for a size.

    Attributes:
        topology: the network, on which every rank reaches every other.
        collective: the collective of the topology's ranks; with one chunk per shard if
            ``any_chunks``.
        nbytes: bytes of a rank's buffer for which to be fast; None if they are not given.
        seed: the same seed gives the same schedule.
        execution: the machine's charges in addition to the links, or the backend whose shipped
            charges apply; None for no charges.
        model: the link model by which to be fast, or its name.
        any_chunks: whether the number of chunks per shard is open, to be chosen.
        deadline, until: seconds within which a schedule is wanted, and the time of
            ``time.perf_counter`` when they are over; infinite if there is no limit.

    Raises:
        CollectiveError: the collective is not one, bytes are not above 0, the seed is bad, or the
            link model is unknown.
        TopologyError: the network is not a ``Topology``, is not connected, or has another number of
            ranks than the collective.
    """

    topology: Topology
    collective: Collective
    nbytes: Number | None = None
    seed: int = 0
    execution: ExecutionCosts | str | None = None
    any_chunks: bool = False
    model: LinkModel | str = ASTRA
    deadline: float = dataclasses.field(default=math.inf, compare=False)
    until: float = dataclasses.field(default=math.inf, compare=False)

    def __post_init__(self) -> None:
        connected(self.topology)
        checks.instance(self.collective, Collective, "collective", CollectiveError)
        if self.topology.num_ranks != self.collective.num_ranks:
            raise TopologyError(
                f"the collective is for {self.collective.num_ranks} ranks, {self.topology} has "
                f"{self.topology.num_ranks}"
            )
        checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(
            self,
            seed=checks.seed(self.seed, CollectiveError),
            execution=costs_of(self.execution, CollectiveError),
            model=link_model(self.model, CollectiveError),
        )

    @classmethod
    def stated(
        cls,
        topology: Topology,
        collective: str | Collective,
        chunks: int | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        root: int | Sequence[int] | None = None,
        helpers: bool = True,
        **stated,
    ) -> Problem:
        """The problem of a collective, or of a kind with separate chunks, groups and root.

        Args:
            stated: the other fields.

        Raises:
            CollectiveError, TopologyError: as for the class; also if a ``Collective`` is given
                together with chunks, groups or a root.
        """
        connected(topology)
        checks.instance(collective, (str, Collective), "collective", CollectiveError)
        if isinstance(collective, Collective):
            if (chunks, groups, root, helpers) != (None, None, None, True):
                raise CollectiveError(
                    "a Collective has its own chunks, groups, root and helpers; do not give them "
                    "again"
                )
            return cls(topology, collective, **stated)
        count = 1 if chunks is None else checks.integer(chunks, "chunks", CollectiveError, least=1)
        given = (groups, root, None, helpers)
        what = Collective(collective, topology.num_ranks, count, *given)  # type: ignore[arg-type]
        return cls(topology, what, any_chunks=chunks is None, **stated)

    def in_parts(self, make: Callable[[Problem], Schedule]) -> Schedule | None:
        """The schedule of groups without helpers, each made on the network of its own members.

        Where ranks may help, ranks in groups of one help like ranks in no group. None if there are
        no such parts. If the number of chunks is open, the group that takes most chunks decides it.

        Raises:
            CollectiveError, TopologyError: as for ``make``; also if members reach each other only
                over ranks outside their group.
        """
        what = self.collective
        several = tuple(group for group in what.groups if len(group) > 1)
        if not several or (what.helpers and len(several) == len(what.groups)):
            return None
        if what.helpers:
            found = make(self.of(dataclasses.replace(what, groups=several)))
            count = found.collective.chunks_per_shard
            return beside_lone_ranks(found, dataclasses.replace(what, chunks_per_shard=count))
        copies = Copies.of(self.topology, what.groups)
        if copies is not None:
            one = dataclasses.replace(self, topology=copies.one, collective=copies.part(what))
            return copies.on_all(make(one), helpers=False)
        parts = [Members.of(self.topology, group, helpers=False) for group in several]
        problems = [self.among(part) for part in parts]
        found = [make(each) for each in problems]
        most = max(each.collective.chunks_per_shard for each in found)
        found = [
            each if each.collective.chunks_per_shard == most else make(problem.with_chunks(most))
            for each, problem in zip(found, problems, strict=True)
        ]
        return side_by_side(parts, found, dataclasses.replace(what, chunks_per_shard=most))

    def among(self, members: Members) -> Problem:
        """The problem of a group on its own network."""
        part = members.part(self.collective)
        return dataclasses.replace(self, topology=members.one, collective=part)

    def of(self, collective: Collective) -> Problem:
        """The same problem for another collective of the same ranks."""
        return dataclasses.replace(self, collective=collective)

    def backwards(self) -> Problem:
        """The dual problem, on the network with every link reversed."""
        dual = self.of(self.collective.dual())
        return dataclasses.replace(dual, topology=self.topology.transpose())

    def with_chunks(self, count: int) -> Problem:
        """The same problem with a number of chunks per shard, which is no longer open."""
        collective = dataclasses.replace(self.collective, chunks_per_shard=count)
        return dataclasses.replace(self, collective=collective, any_chunks=False)

    # ------------------------------------------------------------------ sizes

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether no rank needs data of another."""
        return self.collective.num_deliveries == 0

    @property
    def sends(self) -> int:
        """Number of chunks received by all ranks, each once; an all_reduce sums them first."""
        return len(self.collective.traits.phases) * self.collective.num_deliveries

    @property
    def hops(self) -> float:
        """Number of links crossed if chunks go between arbitrary ranks, each on a shortest path."""
        return mean_hops(self.topology) * self.sends


@functools.lru_cache(maxsize=16)
def mean_hops(topology: Topology) -> float:
    """The average number of links of a shortest path between two ranks."""
    return float(hop_distances(topology).mean())


# Weights on the estimated work, by which auto orders its candidates. Synthesizers that attain
# bounds on 1,024 ranks (the cascade on grids, trees elsewhere) come first. Those that know the grid
# but rarely fill its links come later, and those that know nothing of the network come last.
FIRST, SOON, LATER, LAST = 0.25, 0.5, 2.0, 4.0
# Chunk counts of pipelines: up to 256 pieces, after which a piece is mostly latency.
DOUBLINGS = tuple(2**i for i in range(9))
# No limit on pieces: messages are cut into at most one piece per chunk of a shard.
ALL_PIECES = 2**16
# Work of a send in a message of many shards, relative to a single send.
IN_BLOCKS = 0.25
Counts = tuple[int, ...]
# The series of an algorithm that is only slower with more than one chunk.
ONE_CHUNK: tuple[Counts, ...] = ((1,),)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Synthesizer(abc.ABC):
    """An algorithm that makes schedules of collectives on topologies.

    Subclasses are frozen dataclasses whose fields are hyperparameters, checked when made. They
    write ``solve`` for the kinds in ``kinds``; the reducing kinds follow: reduce_scatter and reduce
    are the all_gather and broadcast of the transposed network run backwards, all_reduce is a
    reduce_scatter and an all_gather, and reduce_to_some is an all_reduce without some copies
    (``derive``). An algorithm with its own way to sum, such as up and down a tree, writes
    all_reduce itself. Those with ``takes_shares`` also solve collectives of unequal shards.
    ``seed`` seeds random choices; it has no effect on algorithms without any.

    Attributes:
        name: the name in ``SYNTHESIZERS`` and in provenance.
        kinds: the kinds of collective that ``solve`` knows.
        takes_shares: whether shards may be unequal.
        has_nbytes: whether its field ``nbytes`` is the bytes of a rank's buffer for which to be
            fast.
        tried_by_auto: whether auto tries it unasked; False if the search may take minutes, or if
            another synthesizer is known to be as fast.
        series: series of chunk counts worth trying, if these are the same for all problems.
        send_work: work of a send, relative to a send of a plain synthesizer; ``IN_BLOCKS`` if
            blocks of many shards are one message, so that most of the work is done once per
            message.
        hop_work: used instead of ``send_work`` if chunks go between arbitrary ranks: the work per
            link crossed, since each chunk is simulated on every link of its path.
        put_off: weight on its work in the order in which auto tries candidates.
        most_chunks: the most chunks per shard worth trying; the optimum of a network without
            structure may need more trees.
        counts_are_costly: whether auto tries only every second of its chunk counts.
        lists_chunks: whether it needs the chunks of all ranks as columns; if so, it refuses more
            than ``Collective.check_listed`` allows.
        orders_links: whether its steps only say in which order links carry messages; where ranks
            go through steps one after the other, other steps for the same sends may be faster.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    takes_shares: ClassVar[bool] = False
    has_nbytes: ClassVar[bool] = False
    tried_by_auto: ClassVar[bool] = True
    series: ClassVar[tuple[Counts, ...]] = ((1, 2, 4, 8),)
    send_work: ClassVar[float] = 1.0
    hop_work: ClassVar[float | None] = None
    put_off: ClassVar[float] = 1.0
    most_chunks: ClassVar[int] = 4096
    counts_are_costly: ClassVar[bool] = False
    lists_chunks: ClassVar[bool] = True
    orders_links: ClassVar[bool] = False

    @abc.abstractmethod
    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule of a collective whose kind is one of ``kinds``.

        ``topology`` has at least two ranks. Provenance is filled in by ``synthesize``, except for
        its certificate.
        """

    # ------------------------------------------------------------------ what auto asks

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        """The variants that auto tries, the defaults first; nothing unless ``tried_by_auto``.

        Args:
            fixed: whether the number of chunks is given; then messages that are not cut into pieces
                are worth trying too, whereas messages of one chunk are never cut.
        """
        return (cls(),) if cls.tried_by_auto else ()

    def suited(self, topology: Topology) -> Synthesizer:
        """The variant that auto tries on a network."""
        return self

    def in_order(self, execution: ExecutionCosts | None) -> tuple[Self, ...]:
        """This synthesizer, and the variants worth trying with a machine's order of messages.

        Args:
            execution: the machine's costs; None if links work independently.
        """
        return (self,)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Series of chunk counts worth trying, each with the fewest first.

        Args:
            problem: a problem with one chunk per shard.

        Raises:
            CollectiveError, TopologyError: the synthesizer is not defined for the problem.
        """
        return self.series

    def leads(self, problem: Problem) -> bool:
        """Whether auto tries it before it asks any other, as it takes a second and often wins."""
        return False

    def may_win(self, problem: Problem) -> bool:
        """Whether it can be faster than the others so far; auto asks just before trying it."""
        return True

    def work(self, problem: Problem) -> float:
        """The approximate work to find and time the schedule, in sends of a plain synthesizer."""
        if self.hop_work is not None:
            return self.hop_work * problem.hops
        return self.send_work * problem.sends

    @final
    def work_if_defined(self, problem: Problem) -> tuple[float, str]:
        """``work`` and ""; or infinity and the reason if it is not defined, as off a grid."""
        try:
            return self.work(problem), ""
        except JaxcollError as error:
            return math.inf, str(error)

    @final
    def with_nbytes(self, nbytes: Number) -> Self:
        """This synthesizer with ``nbytes`` set, if it has that field."""
        return dataclasses.replace(self, nbytes=float(nbytes)) if self.has_nbytes else self

    @final
    def worth_trying(self, problem: Problem) -> tuple[Counts, ...]:
        """The ``chunk_counts`` that can be listed; only 1 if it is not defined."""
        most = min(self.most_chunks, problem.collective.most_chunks)
        if self._leaves_out(problem.collective.traits):
            ranks = max(map(len, problem.collective.groups))
            series = self.worth_trying(_for_all(problem))
            series = tuple(tuple(ranks * count for count in counts) for counts in series)
            most = problem.collective.most_chunks
        else:
            try:
                series = self.chunk_counts(problem)
            except (CollectiveError, TopologyError):
                return ONE_CHUNK
        few = (tuple(count for count in counts if count <= most) for counts in series)
        return tuple(counts for counts in few if counts) or ONE_CHUNK

    # ------------------------------------------------------------------ the way to a schedule

    @final
    def synthesize(
        self,
        topology: Topology,
        collective: Collective,
        seed: int = 0,
        nbytes: float | None = None,
    ) -> Schedule:
        """A schedule of the collective on the topology; equal arguments give equal schedules.

        The schedule is not proved correct: ``jc.synthesize`` and ``jc.verify`` do that.

        Args:
            nbytes: bytes of a rank's buffer for which ``derive`` puts a reversed schedule in order;
                when omitted, those of the algorithm's own field, or 25 MiB.

        Raises:
            CollectiveError: the algorithm is not defined for the collective, or bytes are not above
                0.
            TopologyError: the algorithm is not defined for the network, or the network has another
                number of ranks than the collective.
        """
        return self.made(Problem(topology, collective, nbytes, seed))

    @final
    def made(self, problem: Problem, report: Report | None = None) -> Schedule:
        """The schedule of a problem, with its provenance; see ``synthesize``."""
        apart = problem.in_parts(lambda each: self.made(each, report))
        if apart is not None:
            return apart
        started = time.perf_counter()
        if not self.takes_shares:
            problem.collective.with_equal_shards(self.name)
        if self.lists_chunks:
            problem.collective.check_listed()
        if problem.has_nothing_to_do:
            schedule = empty_schedule(problem.topology, problem.collective)
        else:
            schedule = self.answer(problem, report)
        seconds = time.perf_counter() - started
        claims = schedule.provenance.certificate
        return schedule.with_provenance(
            Provenance(self.name, self.parameters(), problem.seed, seconds, claims)
        )

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """The schedule, solved or derived, of a problem in which some rank needs data."""
        kind = problem.collective.traits
        if self.solves(kind.name):
            return self.solved(problem)
        if any(self.solves(phase) for phase in kind.phase_names):
            return self.two_phases(problem)
        if kind.dual is not None and self.solves(kind.dual.name):
            dual = self.solved(problem.backwards())
            return derive(dual, kind.name, self._order_for(problem))
        if self._leaves_out(kind):
            return for_some(self.answer(_for_all(problem), None), problem.collective)
        offered = ", ".join(sorted(those(self.makes)))
        raise CollectiveError(f"{self.name} is not defined for {kind}; it offers {offered}")

    def solved(self, problem: Problem) -> Schedule:
        """The result of ``solve``, checked because a user may have written ``solve``."""
        found: object = self.solve(problem.topology, problem.collective, problem.seed)
        return checks.instance(found, Schedule, f"what {self.name}.solve returned", CollectiveError)

    @final
    def two_phases(self, problem: Problem) -> Schedule:
        """The schedules of both phases of an all_reduce: its reduce_scatter and its all_gather."""
        collective, topology = problem.collective, problem.topology
        sums, copies = collective.traits.phase_names
        gather, scatter = self.answer(problem.of(collective.with_kind(copies)), None), None
        # Sums run backwards over the links. If the reversed links are different ones, sums need a
        # schedule of their own; otherwise one solution serves both phases.
        if not topology.has_links_of(topology.transpose()):
            scatter = self.answer(problem.of(collective.with_kind(sums)), None)
        return derive(gather, collective.kind, self._order_for(problem), scatter)

    @final
    def makes(self, kind: Kind) -> bool:
        """Whether it has schedules of a kind, solved or derived."""
        return (
            self.solves(kind.name)
            or self.solves(kind.phases[-1].name)
            or (kind.dual is not None and self.solves(kind.dual.name))
            or self._leaves_out(kind)
        )

    def _leaves_out(self, kind: Kind) -> bool:
        """Whether it derives a kind for some ranks from the kind for all, by leaving out copies."""
        return kind.for_all is not kind and not self.solves(kind.name) and self.makes(kind.for_all)

    def solves(self, kind: str) -> bool:
        """Whether ``solve`` makes schedules of a kind; schedules of other kinds are derived."""
        return kind in self.kinds

    @final
    def parameters(self) -> dict[str, object]:
        """The hyperparameters by name; a nested synthesizer appears as its name and parameters.

        Fields that equality ignores cannot change a schedule, and are left out here too.
        """
        return {
            f.name: _named(getattr(self, f.name)) for f in dataclasses.fields(self) if f.compare
        }

    @property
    def label(self) -> str:
        """The name, and the hyperparameters other than bytes that differ from the defaults."""
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        said = {name: value for name, value in self.parameters().items() if name != "nbytes"}
        shown = [f"{name}={value}" for name, value in said.items() if value != usual[name]]
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    def _order_for(self, problem: Problem) -> Number | None:
        # Ranks that wait run a reversed schedule in its reversed steps. Otherwise it is put in
        # order for the bytes asked for, else for those of the algorithm's own field, else for the
        # usual bucket.
        costs = costs_of(problem.execution)
        if costs is not None and costs.order.waits:
            return None
        own: Number | None = getattr(self, "nbytes", None)
        return problem.nbytes or own or BUCKET_BYTES


def _for_all(problem: Problem) -> Problem:
    """The problem for all ranks that contains the problem for some; see ``for_some``."""
    what = problem.collective
    wider = dataclasses.replace(
        what, kind=what.traits.for_all.name, root=None, chunks_per_shard=chunks_for_all(what)
    )
    return problem.of(wider)


def _named(value: object) -> object:
    if isinstance(value, Synthesizer):
        return {"synthesizer": value.name, **value.parameters()}
    if isinstance(value, ExecutionCosts):
        return dataclasses.asdict(value)
    if isinstance(value, LinkModel):
        return value.name
    return tuple(map(_named, value)) if isinstance(value, tuple) else value


def in_pieces(pieces: int | None) -> tuple[Counts, ...]:
    """Series of chunk counts if messages are cut into pieces: those of pipelines, or just 1."""
    return (DOUBLINGS if pieces is None or pieces > 1 else (1,),)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class InPieces(Synthesizer):
    """An all-gather of few steps, whose messages may be cut into pieces that follow one another.

    Attributes:
        pieces: number of pieces of every message, at most one per chunk of a shard; pieces follow
            one another where a message crosses several links (``Sends.in_pieces``).

    Raises:
        CollectiveError: ``pieces`` is less than 1.
    """

    pieces: int = 1

    put_off: ClassVar[float] = LAST

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "pieces")

    @classmethod
    def variants(cls, fixed: bool = False) -> tuple[Self, ...]:
        cut = (cls(pieces=ALL_PIECES),)
        return (*cut, cls()) if fixed else cut

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk or, if messages are cut into pieces, the counts worth trying for a pipeline."""
        return in_pieces(self.pieces)


def empty_schedule(topology: Topology, collective: Collective) -> Schedule:
    """The schedule without sends, which is complete if every group is a single rank."""
    nothing = np.zeros(0, np.int64)
    edges = Edges(nothing, nothing, np.zeros(1, np.int64), nothing)
    return Schedule.from_sends(topology, collective, nothing, nothing, nothing, edges=edges)
