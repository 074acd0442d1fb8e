"""Schedule: which chunk crosses which edge in which step, as integer columns.

An all_gather on a ring of three ranks, whose edges are 0->1, 1->2 and 2->0, in two steps::

    step_ptr  0 3 6
    edge      0 1 2   0 1 2
    chunk     0 1 2   2 0 1      in step 0 every rank sends its own, in step 1 what has arrived
    reduce    no send adds
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll import fields, pictures
from jaxcoll.collective import Collective
from jaxcoll.errors import ScheduleError, TopologyError, named
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.ragged import distinct_rows, in_groups, take_rows
from jaxcoll.paths import Edges
from jaxcoll.topology import Topology

__all__ = ["Provenance", "Schedule", "concatenate"]


@dataclasses.dataclass(frozen=True, repr=False)
class Provenance:
    """Where a schedule comes from. Not part of its content: equal schedules may differ here.

    Attributes:
        synthesizer: name of the algorithm.
        parameters: its hyperparameters, by name.
        seed: the seed it was given.
        seconds: wall time it took.
        certificate: its claims about the result, by name (a bound it meets, a path it took).
    """

    synthesizer: str = ""
    parameters: Mapping[str, object] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    seconds: float = 0.0
    certificate: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Provenance({self.synthesizer or 'unnamed'}, {len(self.parameters)} parameters, "
            f"seed {self.seed}, {self.seconds:.3g} s, {len(self.certificate)} claims)"
        )


def encode_provenance(provenance: Provenance) -> dict[str, object]:
    """Provenance in JSON's terms.

    Raises:
        FormatError: a value that JSON cannot say.
    """
    return {
        "synthesizer": str(provenance.synthesizer),
        "parameters": fields.encode(provenance.parameters, "provenance.parameters"),
        "seed": fields.encode(provenance.seed, "provenance.seed"),
        "seconds": fields.encode(provenance.seconds, "provenance.seconds"),
        "certificate": fields.encode(provenance.certificate, "provenance.certificate"),
    }


def decode_provenance(value: object, where: str) -> Provenance:
    """The provenance that ``encode_provenance`` has encoded.

    Raises:
        FormatError: naming the field that is not as it should be.
    """
    given = fields.Fields(value, where)
    arguments = (
        given.take("synthesizer", fields.text, ""),
        given.take("parameters", fields.decode_object, {}),
        given.optional("seed", fields.any_whole),
        given.take("seconds", fields.number, 0.0),
        given.take("certificate", fields.decode_object, {}),
    )
    given.end()
    return Provenance(*arguments)


_UNKNOWN = Provenance()
_MOST_FREE = 2**26  # (rank, chunk) pairs of a schedule of whatever few sends


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """A schedule of one collective on one topology.

    Sends are in order: step by step, and within a step message by message. A message is the sends
    of one step on one edge, which are sent together. A send may carry a chunk that arrived in an
    earlier step, never in the same one. On every link, messages leave in the order of the schedule.

    A send with ``reduce`` moves the sender's partial sum: the receiver adds it to its own, and the
    sender's copy no longer counts. A send without ``reduce`` copies a complete chunk.

    Equality and hash are by content (collective, edges, sends and the topology's links, not what
    its switches do besides forwarding), not provenance.

    Attributes:
        topology: the network.
        collective: the collective that the sends carry out.
        edges: the edges that sends may use, kept sorted by path.
        step_ptr: sends of step t are ``step_ptr[t]..step_ptr[t + 1] - 1``; int64, (steps + 1,).
        edge: edge of each send, int32 of shape (sends,).
        chunk: chunk of each send, an integer column of shape (sends,).
        reduce: whether the receiver adds each send to its own chunk, bool of shape (sends,).
        provenance: the synthesizer and parameters that made it.

    Raises:
        ScheduleError: columns of unequal length, numbers out of range, edges that are not paths of
            the topology, a topology and a collective with different numbers of ranks, sends of one
            message that do not stand together.
    """

    topology: Topology
    collective: Collective
    edges: Edges
    step_ptr: np.ndarray
    edge: np.ndarray
    chunk: np.ndarray
    reduce: np.ndarray
    provenance: Provenance = _UNKNOWN

    def __post_init__(self) -> None:
        for name, kind in (
            ("topology", Topology),
            ("collective", Collective),
            ("edges", Edges),
            ("provenance", Provenance),
        ):
            checks.instance(getattr(self, name), kind, name, ScheduleError)
        if self.topology.num_ranks != self.collective.num_ranks:
            raise ScheduleError(
                f"the topology has {self.topology.num_ranks} ranks, "
                f"the collective {self.collective.num_ranks}"
            )
        # Checked where it is made, once: simulation and lowering read the columns without looking
        # again.
        self.edges.check(self.topology)
        columns = {
            "step_ptr": checks.column(self.step_ptr, np.int64, "step_ptr", ScheduleError),
            "edge": checks.column(self.edge, np.int32, "edge", ScheduleError),
            "chunk": _chunk_column(self.chunk),
            "reduce": checks.flags(self.reduce, "reduce", ScheduleError),
        }
        _check_columns(columns, len(self.edges), self.collective.num_chunks)
        # Edges sorted by path, each once, so that equal schedules have equal columns, and a digest,
        # however their edges were listed.
        edges, image = _canonical_edges(self.edges)
        if image is not None:
            columns["edge"] = image[columns["edge"]]
        for name, column in columns.items():
            if column.flags.writeable:
                column.setflags(write=False)
            object.__setattr__(self, name, column)
        object.__setattr__(self, "edges", edges)
        # A message pays alpha once, so the sends of an edge in a step have to stand together:
        # columns then tell messages without any further index.
        parted = _first_parted(self.step_ptr, self.edge, np.full(len(edges), -1))
        if parted >= 0:
            step = int(np.searchsorted(self.step_ptr, parted, side="right")) - 1
            # Apart as they were given, or by the numbers of two edges that are one path.
            doubled = image is not None and len(edges) < len(image)
            hint = "; some of the edges are given twice" if doubled else ""
            raise ScheduleError(
                f"the sends of step {step} on edge {self.edge[parted]} must stand together{hint}",
                step=step,
            )

    @classmethod
    def from_sends(
        cls,
        topology: Topology,
        collective: Collective,
        step,
        edge,
        chunk,
        reduce: bool | Sequence[bool] | np.ndarray = False,
        *,
        edges: Edges | None = None,
        provenance: Provenance = _UNKNOWN,
    ) -> Schedule:
        """The schedule of sends given in any order.

        Sends are put in order of step; within a step, edges come in order of their first send and
        an edge's sends in the order given. Steps without sends are dropped.

        Args:
            step, edge, chunk: integers of shape (sends,).
            reduce: bool of shape (sends,), or one for all.
            edges: the edges; the links of the topology when omitted.
        """
        edges = Edges.from_links(topology) if edges is None else edges
        checks.instance(edges, Edges, "edges", ScheduleError)
        step = checks.column(step, np.int64, "step", ScheduleError)
        edge = checks.column(edge, np.int64, "edge", ScheduleError)
        chunk = checks.column(chunk, np.int32, "chunk", ScheduleError)
        reduce = checks.flags(reduce, "reduce", ScheduleError)
        lengths = [len(step), len(edge), len(chunk), *reduce.shape[:1]]
        if len(set(lengths)) > 1:
            raise ScheduleError(
                f"step, edge, chunk and reduce need one value per send, got lengths "
                f"{', '.join(map(str, lengths))}"
            )
        order, step_ptr = in_groups(step, edge)
        return cls(
            topology,
            collective,
            edges,
            step_ptr,
            edge[order],
            chunk[order],
            np.broadcast_to(reduce, step.shape)[order],
            provenance,
        )

    # ------------------------------------------------------------------ facts

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.step_ptr) - 1

    @property
    def num_sends(self) -> int:
        """Number of sends: chunks crossing an edge."""
        return len(self.edge)

    @property
    def num_messages(self) -> int:
        """Number of messages: groups of sends that cross an edge together."""
        return len(self.message_ptr) - 1

    @functools.cached_property
    def step(self) -> np.ndarray:
        """Step of each send, int32 of shape (sends,)."""
        return np.repeat(np.arange(self.num_steps, dtype=np.int32), np.diff(self.step_ptr))

    @functools.cached_property
    def message_ptr(self) -> np.ndarray:
        """Sends of message m are ``message_ptr[m]..message_ptr[m + 1] - 1``; int64."""
        # A new message starts where the edge changes, and where a step does: the last edge of a
        # step may be the first of the next.
        starts = np.ones(self.num_sends, bool)
        starts[1:] = self.edge[1:] != self.edge[:-1]
        starts[self.step_ptr[:-1][np.diff(self.step_ptr) > 0]] = True
        return np.append(np.flatnonzero(starts), self.num_sends)

    @functools.cached_property
    def messages_in_step(self) -> np.ndarray:
        """Number of messages of each step, int64 of shape (steps,)."""
        return np.diff(np.searchsorted(self.message_ptr, self.step_ptr))

    @functools.cached_property
    def helped(self) -> np.ndarray:
        """Whether each send comes to, or passes, a rank outside its group; bool (sends,)."""
        edges, group = self.edges, self.collective.group_of_rank
        head = self.topology.dst[edges.path_link]
        of_edge = np.repeat(np.arange(len(edges)), edges.hops)
        passed = head < self.topology.num_ranks
        apart = np.zeros(len(edges), bool)
        apart[of_edge[passed][group[head[passed]] != group[edges.src[of_edge[passed]]]]] = True
        return apart[self.edge] | (group[self.src] != self.collective.group_of_chunk[self.chunk])

    @property
    def src(self) -> np.ndarray:
        """Sending rank of each send, int32 of shape (sends,)."""
        return self.edges.src[self.edge]

    @property
    def dst(self) -> np.ndarray:
        """Receiving rank of each send, int32 of shape (sends,)."""
        return self.edges.dst[self.edge]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the content, as 64 hexadecimal digits; the same on every machine."""
        # Chunks are hashed as int32 whatever their column's type, and all columns little-endian:
        # a schedule that was read from a file narrower than it was made is the same schedule.
        fields = dataclasses.fields(self.collective)
        collective = [getattr(self.collective, field.name) for field in fields]
        state = hashlib.sha256(f"schedule {self.topology.links_digest} {collective}".encode())
        for column in (
            self.edges.src,
            self.edges.dst,
            self.edges.path_ptr,
            self.edges.path_link,
            self.step_ptr,
            self.edge,
            np.ascontiguousarray(self.chunk, np.int32),
            np.packbits(self.reduce),
        ):
            state.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    def __repr__(self) -> str:
        by = f" by {named(self.provenance.synthesizer)}" if self.provenance.synthesizer else ""
        return (
            f"Schedule({self.collective.kind}{by} on {named(self.topology.name) or self.topology}: "
            f"{self.num_steps} steps, {self.num_messages} messages, {self.num_sends} sends)"
        )

    def _repr_html_(self) -> str:
        rows = {
            "network": self.topology.name or str(self.topology),
            "synthesizer": self.provenance.synthesizer or "not known",
            "ranks": f"{self.topology.num_ranks:,}",
            "chunks": f"{self.collective.num_chunks:,}",
            "steps": f"{self.num_steps:,}",
            "messages": f"{self.num_messages:,}",
            "sends": f"{self.num_sends:,}",
        }
        share = self.messages_in_step / max(self.messages_in_step.max(initial=1), 1)
        drawing = pictures.bars(share, "messages by step")
        return pictures.table(f"Schedule of {self.collective.kind}", rows, drawing)

    def check_claims(self) -> None:
        """Refuse a collective that is far too large for the few sends of this schedule.

        Verifying or timing a schedule takes memory for each rank and chunk.

        Raises:
            ScheduleError: fewer sends than a collective of millions of chunks takes.
        """
        ranks, chunks = self.collective.num_ranks, self.collective.num_chunks
        least = self.collective.num_deliveries
        if ranks * chunks > _MOST_FREE and self.num_sends < least:
            raise ScheduleError(
                f"{ranks} ranks and {chunks} chunks take at least {least} sends; the schedule has "
                f"{self.num_sends}"
            )

    # ------------------------------------------------------------------ others from this one

    def reverse(self) -> Schedule:
        """The schedule run backwards: of the dual collective, on the transposed topology.

        A copy of a complete chunk becomes a partial sum that is given away, and vice versa (TACOS,
        Sec. IV-E, Fig. 11). The result is correct if this schedule is, unless chunks are sent to
        ranks that neither want them nor pass them on: backwards, those have nothing to give.
        """
        dual = self.collective.dual()
        # Why a gather backwards is a sum: a rank that was sent a chunk and sent it on to two others
        # gets, backwards, two contributions, adds its own, and passes the sum to where the chunk
        # came from. Each contribution is added once because each rank received the chunk once.
        # In an all_to_all nothing is summed in either direction: copies stay copies.
        sums = dual.is_reducing or self.collective.is_reducing
        chunk = self.chunk
        if self.collective.traits.is_pairwise:
            chunk = self.collective.dual_chunks()[chunk].astype(chunk.dtype)
        backward = slice(None, None, -1)
        return Schedule(
            self.topology.transpose(),
            dual,
            self.edges.reverse(self.topology.transpose_links()),
            self.num_sends - self.step_ptr[backward],
            self.edge[backward],
            chunk[backward],
            ~self.reduce[backward] if sums else self.reduce[backward],
            self.provenance,
        )

    def relabel(self, permutation: Sequence[int] | np.ndarray) -> Schedule:
        """The same schedule in which rank r is called ``permutation[r]``.

        Raises:
            TopologyError: not a permutation of the ranks.
        """
        count = self.topology.num_ranks
        image = checks.rank_permutation(permutation, count, "permutation", TopologyError)
        topology = self.topology.relabel(image)
        edges = self.edges.relabel(image, self.topology.relabel_links(image))
        collective = self.collective.relabel(image)
        sends = (self.step_ptr, self.edge, self.chunk, self.reduce)
        return Schedule(topology, collective, edges, *sends, self.provenance)

    def with_provenance(self, provenance: Provenance) -> Schedule:
        """The same schedule with another provenance."""
        same = copy.copy(self)  # the content is checked already
        object.__setattr__(same, "provenance", provenance)
        return same


def concatenate(first: Schedule, second: Schedule) -> Schedule:
    """The collective that runs two phases one after the other: an all_reduce, of a reduce_scatter
    and an all_gather (``Kind.phases``).

    The second starts, rank by rank, as its chunks become complete; nothing waits for all ranks.

    Raises:
        ScheduleError: kinds that do not make up another, or schedules of different topologies,
            groups or chunks.
    """
    for name, schedule in (("first", first), ("second", second)):
        checks.instance(schedule, Schedule, name, ScheduleError)
    kinds = (first.collective.kind, second.collective.kind)
    whole = next((kind for kind in KINDS.values() if kind.phase_names == kinds), None)
    if whole is None:
        joined = " or ".join(" and an ".join(k.phase_names) for k in KINDS.values() if k.has_phases)
        raise ScheduleError(f"concatenate joins a {joined}, got {kinds}")
    if not first.topology.has_links_of(second.topology):
        raise ScheduleError(f"the schedules run on different networks: {first} and {second}")
    if first.collective.with_kind(second.collective.kind) != second.collective:
        raise ScheduleError("the schedules have different groups or chunks per shard")
    # Steps of the second are numbered behind those of the first, but no barrier parts them: steps
    # are an order per link, and a rank sends a sum as soon as it is complete.
    a, b = first.edges, second.edges
    edges, edge = a, np.concatenate([first.edge, second.edge])
    if not a.same_as(b):
        edge[first.num_sends :] += len(a)
        edges = Edges(
            np.concatenate([a.src, b.src]),
            np.concatenate([a.dst, b.dst]),
            np.concatenate([a.path_ptr, a.path_ptr[-1] + b.path_ptr[1:]]),
            np.concatenate([a.path_link, b.path_link]),
        )
    return Schedule(
        first.topology,
        first.collective.with_kind(whole.name),
        edges,
        np.concatenate([first.step_ptr, first.num_sends + second.step_ptr[1:]]),
        edge,
        np.concatenate([first.chunk, second.chunk]),
        np.concatenate([first.reduce, second.reduce]),
        second.provenance,
    )


def _canonical_edges(edges: Edges) -> tuple[Edges, np.ndarray | None]:
    """The edges sorted by path, each once, and the new number of each (None: as before)."""
    count = len(edges)
    if count == 0:
        return edges, None
    keep, image = distinct_rows(edges.path_ptr, edges.path_link)
    if len(keep) == count and (image[1:] > image[:-1]).all():
        return edges, None
    paths = take_rows(edges.path_ptr, edges.path_link, keep)
    return Edges(edges.src[keep], edges.dst[keep], *paths), image.astype(np.int32)


def _chunk_column(values) -> np.ndarray:
    """Chunks of sends, in the type they are given in: large schedules keep them narrow."""
    try:
        return np.asarray(checks.bounded(values, "chunk", ScheduleError))
    except (ValueError, OverflowError) as error:
        raise ScheduleError(f"chunk must be one column of integers: {error}") from None


@kernel(cache=True)
def _first_parted(step_ptr, edge, last):
    """The first send on an edge that carried another message earlier in the step, or -1."""
    for t in range(len(step_ptr) - 1):
        for i in range(step_ptr[t], step_ptr[t + 1]):
            if i > step_ptr[t] and edge[i] == edge[i - 1]:
                continue
            if last[edge[i]] == t:
                return i
            last[edge[i]] = t
    return -1


def _check_columns(columns: Mapping[str, np.ndarray], num_edges: int, num_chunks: int) -> None:
    ptr, edge, chunk = columns["step_ptr"], columns["edge"], columns["chunk"]
    sends = len(edge)
    shapes = [column.shape for column in (edge, chunk, columns["reduce"])]
    if set(shapes) != {(sends,)}:
        raise ScheduleError(f"edge, chunk and reduce need one value per send, got shapes {shapes}")
    if len(ptr) < 1 or ptr[0] != 0 or ptr[-1] != sends or (ptr[1:] < ptr[:-1]).any():
        raise ScheduleError(f"step_ptr must rise from 0 to the number of sends, {sends}")
    if sends == 0:
        return
    if chunk.dtype.kind not in "iu":
        raise ScheduleError(f"chunk must hold integers, got {chunk.dtype}")
    for name, column, count in (("edge", edge, num_edges), ("chunk", chunk, num_chunks)):
        if column.min() < 0 or column.max() >= count:
            bad = int(np.flatnonzero((column < 0) | (column >= count))[0])
            step = int(np.searchsorted(ptr, bad, side="right")) - 1
            raise ScheduleError(
                f"send {bad} in step {step} names {name} {column[bad]}; there are {count}",
                step=step,
            )
