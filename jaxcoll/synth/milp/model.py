"""Integer programs whose columns are sends: which chunk starts over which edge when.

A column is 1 if a chunk starts over an edge at a tick. Most columns can never be 1 in a schedule
that ends by the horizon: the chunk cannot have come that far, or would come too late to be useful,
or the receiver had it from the start. Shortest distances from the holders of the chunk and to the
ranks that want it tell which. Only the other columns are made, few enough for a solver.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.program import Program, Status
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.topology import Topology

MOST_RANKS = 9  # of networks that are searched, unless the user allows more
MOST_CELLS = 2**26  # (chunk, connection, tick) that are examined for useful sends
_MOST_ENTRIES = 2**23  # numbers in a program


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """Sends that a schedule may choose from; sorted by chunk, edge and start.

    Attributes:
        chunk: chunk of each send, int64 of shape (moves,) like all others.
        edge: number of the connection that it crosses.
        start: tick at which it leaves.
        arrive: tick at which its chunk has arrived.
    """

    chunk: np.ndarray
    edge: np.ndarray
    start: np.ndarray
    arrive: np.ndarray

    def __len__(self) -> int:
        return len(self.chunk)

    def chosen(self, which: np.ndarray) -> Moves:
        """Some of the moves."""
        return Moves(self.chunk[which], self.edge[which], self.start[which], self.arrive[which])


def distances(edges: Edges, takes: np.ndarray, num_ranks: int) -> np.ndarray:
    """Least ticks from rank to rank over edges, float64 of shape (ranks, ranks).

    Args:
        takes: ticks from a send's start to its arrival, by edge; at least 1.
    """
    # For SciPy 0 is a missing edge; existing edges take a tick or more.
    least = np.full((num_ranks, num_ranks), np.inf)
    np.minimum.at(least, (edges.src, edges.dst), takes)
    return sp.csgraph.shortest_path(np.where(np.isinf(least), 0, least))


def first_arrivals(collective: Collective, apart: np.ndarray) -> np.ndarray:
    """Ticks before which no chunk can be at a rank, float64 of shape (chunks, ranks)."""
    holds = collective.precondition()
    return np.where(holds[:, :, None], apart[:, None, :], np.inf).min(axis=0)


def useful_moves(
    collective: Collective, edges: Edges, takes: np.ndarray, horizon: int, apart: np.ndarray
) -> Moves:
    """Sends whose chunk can arrive in time at their start, and that help some rank by the horizon.

    Args:
        apart: the result of ``distances``.

    Raises:
        TopologyError: there are more sends to examine than ``MOST_CELLS``.
    """
    cells = collective.num_chunks * len(edges) * horizon
    if cells > MOST_CELLS:
        raise TopologyError(
            f"an exact search is for tiny problems: {collective.num_chunks} chunks over "
            f"{len(edges)} connections in {horizon} ticks or steps are {cells} sends to look at, "
            f"more than {MOST_CELLS}; take fewer chunks, or links whose speeds differ less"
        )
    holds, wants = collective.precondition(), collective.postcondition()
    from_holder = first_arrivals(collective, apart)
    # The remaining distance of a chunk: a move after which no rank that wants it can be reached in
    # time needs no column.
    to_wanter = np.where(wants[:, :, None], apart.T[:, None, :], np.inf).min(axis=0)
    starts = np.arange(horizon)
    in_time = from_holder[:, edges.src][:, :, None] <= starts
    of_use = (takes + to_wanter[:, edges.dst])[:, :, None] + starts <= horizon
    new = ~holds.T[:, edges.dst][:, :, None]
    chunk, edge, start = np.nonzero(in_time & of_use & new)
    return Moves(chunk, edge, start, start + takes[edge])


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """The answer of a solver.

    Attributes:
        found: the columns, int64; None if there is no answer.
        bound: a lower bound of the cost of all answers, infinity if there is no answer.
    """

    found: np.ndarray | None
    bound: float

    @property
    def is_impossible(self) -> bool:
        """Whether it is proved that there is no answer."""
        return self.found is None and self.bound == np.inf


def minimize(program: Program, seconds: float) -> Answer:
    """The integers of least cost, for integer costs, or the best found in time."""
    solution = program.minimize(time_limit=max(seconds, 0.0), gap=0.0, absolute_gap=0.99)
    # Costs are integers, so a bound may be rounded up, less the error of the solver's floats.
    bound = float(np.ceil(solution.bound - 1e-6))
    if not len(solution.values):
        return Answer(None, bound)
    found = np.rint(solution.values).astype(np.int64)
    is_least = solution.status == Status.OPTIMAL
    return Answer(found, float(program.costs @ found) if is_least else bound)


def add_causes(program: Program, moves: Moves, collective: Collective, edges: Edges) -> None:
    """Add rows: a rank gets a chunk at most once, or once if it wants it, and sends it after that.

    Rows are cumulative over time, which is tighter: a chunk that crossed an edge by t arrived by t.
    """
    holds, wants = collective.precondition(), collective.postcondition()
    into: dict[tuple[int, int], list[int]] = {}
    over: dict[tuple[int, int], list[int]] = {}
    for m, (c, e) in enumerate(zip(moves.chunk.tolist(), moves.edge.tolist(), strict=True)):
        into.setdefault((c, int(edges.dst[e])), []).append(m)
        over.setdefault((c, e), []).append(m)
    for v, c in zip(*np.nonzero(wants & ~holds), strict=True):
        into.setdefault((int(c), int(v)), [])
    for (c, v), columns in into.items():
        program.add_row(columns, [1.0] * len(columns), int(wants[v, c]), 1)
    check_entries(
        sum(
            len(columns) * (len(columns) + len(into.get((c, int(edges.src[e])), ()))) // 2
            for (c, e), columns in over.items()
            if not holds[edges.src[e], c]
        )
    )
    for (c, e), columns in over.items():
        u = int(edges.src[e])
        if holds[u, c]:
            continue
        before = into.get((c, u), [])
        for i, m in enumerate(columns):
            # "Arrived by then less sent by then" replaces one row per send, so that the relaxation
            # cannot send a chunk that has half arrived over the edge again and again.
            there = [b for b in before if moves.arrive[b] <= moves.start[m]]
            sent = columns[: i + 1]
            program.add_row([*sent, *there], [1.0] * len(sent) + [-1.0] * len(there), -np.inf, 0)


def check_entries(count: int) -> None:
    """Refuse a program before it is written down.

    Raises:
        TopologyError: its rows have more than about ``_MOST_ENTRIES`` numbers other than 0.
    """
    if count > _MOST_ENTRIES:
        raise TopologyError(
            f"an exact search is for tiny problems: this one has about {count} entries, more than "
            f"{_MOST_ENTRIES}; take fewer chunks, or links whose speeds differ less"
        )


def schedule_of(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    chosen: Moves,
    certificate: Mapping[str, object],
) -> Schedule:
    """The schedule of some moves."""
    columns = chosen.start, chosen.edge, chosen.chunk
    claims = Provenance(certificate=certificate)
    return Schedule.from_sends(topology, collective, *columns, edges=edges, provenance=claims)


def chosen_moves(moves: Moves, answer: Answer, collective: Collective, edges: Edges) -> Moves:
    """The moves that the answer chooses, without useless ones.

    A move is useless if its rank neither wants the chunk nor sends it on to ranks that do.
    """
    if answer.found is None:
        raise ValueError("there is no answer to take moves from")
    found = moves.chosen(answer.found[: len(moves)] > 0)
    keep = np.zeros(len(found), bool)
    needed = [set(np.flatnonzero(column).tolist()) for column in collective.postcondition().T]
    # From the last arrival back, so that a rank that passes a chunk on is known to need it before
    # its own move is examined.
    for m in np.argsort(-found.arrive, kind="stable").tolist():
        chunk, edge = int(found.chunk[m]), int(found.edge[m])
        if int(edges.dst[edge]) in needed[chunk]:
            keep[m] = True
            needed[chunk].add(int(edges.src[edge]))
    return found.chosen(keep)


def check_tiny(topology: Topology, collective: Collective, most: int, who: str) -> None:
    """Refuse problems that are not tiny, before anything is built.

    Raises:
        TopologyError: there are more ranks than ``most``.
        CollectiveError: there are more chunks than tables of chunks by rank and rank may have.
    """
    if topology.num_ranks**2 * collective.num_chunks > MOST_CELLS:
        raise CollectiveError(
            f"{who} is for few chunks: {collective} has {collective.num_chunks} on "
            f"{topology.num_ranks} ranks; take fewer chunks per shard"
        )
    if topology.num_ranks > most:
        raise TopologyError(
            f"{who} is for tiny networks, of up to {most} ranks unless most_ranks= is given; "
            f"got {topology}"
        )


def time_limit(seconds) -> float:
    """A time limit in seconds, which may be infinite.

    Raises:
        CollectiveError: the argument is not a number above 0.
    """
    if isinstance(seconds, float) and seconds == math.inf:
        return seconds
    return float(checks.positive(seconds, "seconds", CollectiveError))
