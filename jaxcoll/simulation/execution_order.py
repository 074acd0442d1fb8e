"""Orders of execution: when ranks may start messages, if links do not work independently.

``simulate`` lets every link carry a message as soon as its chunks have arrived. MSCCL, MSCCL++ and
kernels that push each message separately work in this way, but programs of ``ppermute`` do not.
Between processes on CPUs, XLA runs one permute after the other, and each process waits in it for
its message; on GPUs the permutes of a step are one NCCL group in a stream; on TPUs the permutes of
a step are in flight together, and the next step waits for them. So a rank goes through *blocks*,
the rounds or the steps of a schedule, one after the other, and a message of a block flows while
both of its ends are in that block (``fair_flows`` runs them).

All messages of a round have one length: shorter ones are padded to the longest. A round is about
ranks, not links, so everything that one rank sends another in it takes one way, that of the first
of their edges; parallel links on that way act as one link with their total bandwidth.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.numerics.edge_colouring import colour_pairs
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.fair_flows import Flows


@dataclasses.dataclass(frozen=True)
class ExecutionOrder:
    """The order in which a rank sends and receives its messages.

    Attributes:
        name: "links", "steps" or "rounds".
        waits: whether a rank goes through blocks one after the other; otherwise links work
            independently.
        by_round: whether a block is a round, one ``ppermute``, whose messages are padded to the
            longest; otherwise it is a step.
        meaning: a description, for texts that tell how a time was computed.
    """

    name: str
    waits: bool
    by_round: bool
    meaning: str

    def __str__(self) -> str:
        return self.name


LINKS = ExecutionOrder("links", False, False, "each link works by itself")
STEPS = ExecutionOrder("steps", True, False, "a rank's steps follow one another")
ROUNDS = ExecutionOrder("rounds", True, True, "a rank's permutes follow one another")
ORDERS = {order.name: order for order in (LINKS, STEPS, ROUNDS)}


def order_of(given: ExecutionOrder | str) -> ExecutionOrder:
    """The order that an argument stands for: the order itself, or the order with that name.

    Raises:
        TuneError: the argument is neither an order nor the name of one.
    """
    if isinstance(given, ExecutionOrder):
        return given
    return ORDERS[checks.choice(given, ORDERS, "order of execution", TuneError)]


def flows_of(schedule: Schedule, nbytes: float, order: ExecutionOrder) -> Flows:
    """One flow per message of a schedule, in the blocks of an order.

    Args:
        nbytes: bytes of a rank's buffer.
    """
    weight, total = common_parts(schedule.collective)
    first = schedule.message_ptr[:-1]
    edge = schedule.edge[first]
    edges = schedule.edges
    src, dst = edges.src[edge].astype(np.int64), edges.dst[edge].astype(np.int64)
    chunks = np.add.reduceat(weight[schedule.chunk], first) if len(first) else first
    size = chunks * (nbytes / total)
    block = np.asarray(schedule.step[first], np.int64)
    if order.by_round:
        block, size, edge = _in_rounds(schedule, edge, block, size)
    ptr, link = edges.paths_of(edge)
    return Flows(src, dst, block, size.astype(np.float64), ptr, link.astype(np.int64))


def _in_rounds(
    schedule: Schedule, edge: np.ndarray, step: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The round, counted through all steps, the padded size and the edge of each message."""
    n, grid = schedule.topology.num_ranks, schedule.topology.grid
    sides = (n,) if grid is None else grid.shape
    src, dst = (ends[edge].astype(np.int64) for ends in (schedule.edges.src, schedule.edges.dst))
    # Parallel edges between two ranks carry one message of a round, since a permute names ranks.
    pair, which = np.unique((step * n + src) * n + dst, return_inverse=True)
    together = np.bincount(which, size)
    at, u, v = pair // (n * n), pair // n % n, pair % n
    ptr = np.searchsorted(at, np.arange(schedule.num_steps + 1))
    block = np.zeros(len(pair), np.int64)
    longest = np.zeros(len(pair))
    before = 0
    for low, high in itertools.pairwise(ptr.tolist()):
        if low == high:
            continue
        here = slice(low, high)
        rank = np.unique(together[here], return_inverse=True)[1] + 1
        colour = colour_pairs(u[here], v[here], rank, sides)
        most = np.zeros(colour.max() + 1)
        np.maximum.at(most, colour, together[here])
        block[here], longest[here] = before + colour, most[colour]
        before += len(most)
    first = np.full(len(pair), len(schedule.edges), edge.dtype)
    np.minimum.at(first, which, edge)
    taken = _along(schedule, edge, first[which])
    return block[which], size * (longest / together)[which], taken


def _along(schedule: Schedule, edge: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The edge that each message takes: the first edge of its ranks if its own takes another way.

    Args:
        edge, first: the message's own edge, and the first edge between its two ranks.
    """
    if np.array_equal(edge, first):  # usual: one edge from a rank to another
        return edge
    taken, edges, head = edge.copy(), schedule.edges, schedule.topology.dst
    for own, other in np.unique(np.stack([edge, first])[:, edge != first], axis=1).T.tolist():
        way, others = (
            head[edges.path_link[edges.path_ptr[e] : edges.path_ptr[e + 1]]] for e in (own, other)
        )
        if not np.array_equal(way, others):
            taken[(edge == own) & (first == other)] = other
    return taken
