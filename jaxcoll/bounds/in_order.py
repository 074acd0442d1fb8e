"""Further bounds for machines whose ranks wait, by their order of execution.

``jaxcoll.simulation.execution_order`` describes the machine. A rank goes through blocks (its steps,
or its rounds) one after the other. A message moves while both of its ends are in its block: first
the latencies of its links pass, then it takes a share of all links of its path at once.

*Links.* A rank has a byte once the whole message that brings it has arrived, and that is at least
the latencies of its path later than it left: so least latencies between ranks are bounds as they
are. No byte moves before the least latency ``l`` of any message, and no link ever carries more than
its bandwidth: so a bound of the network without latencies, and ``l``, are a bound together. To add
latencies to bytes link by link, as for links that work by themselves, would claim too much: while
a long message waits for its latency, a short one may have the first link, which in truth the long
one would be using by then (``tests/bounds/test_in_order.py`` has a schedule).

*A rank.* Let ``b`` be the bytes that a rank must send and ``p`` how fast it can: it takes
``b / p``, and the latency of each block that it goes through, for none of its messages flows while
the first of a block waits. So do the bytes that it must receive, and those that all ranks must send
over the speed of all. There are two blocks at least where sums are copied: a rank gives its
contribution away, or collects those of others, in an earlier step than that in which it gets the
sum, or gives it on. In steps ``p`` is all its links. In rounds a rank sends one message at a time,
and receives one. It takes one way; parallel links on it are as wide as all of them. So a rank sends
no faster than its widest hop, nor than the widest hop into any other rank, however many links it
has.

*A pair* (half duplex). Two ranks that send to each other share the time of one direction, in which
messages of that direction flow together: in rounds on one way, no faster than the widest hop of
either end, in steps on all their links. So all that a rank sends and receives takes its pairs, in
rounds the two widest of them at most: one to send to, one to receive from. All bytes together take
all pairs.

*Latencies* (rounds). A rank receives one message at a time, each at least ``l`` long, so that after
k of these times it knows of 2^k ranks at most, and as many know of it. All contributions to a sum
are together after ceil(log2 of the group) times, and with all who want the sum after ceil(log2 of
those) more.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxcoll.bounds.all_reduce_times import Latencies
from jaxcoll.bounds.cuts import needs_of
from jaxcoll.collective import Collective
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.topology import Topology


class Term(NamedTuple):
    """The seconds, name and reason of a bound, as in ``Bound``."""

    time: float
    name: str
    reason: str


def without_latencies(topology: Topology) -> Topology:
    """The network with links of equal bandwidth and without latency."""
    return dataclasses.replace(topology, alpha=np.zeros(topology.num_links))


def least_latency(latencies: Latencies) -> float:
    """The least latency of any message, in seconds."""
    return float(_of_messages(latencies).min())


def terms(
    latencies: Latencies, what: Collective, nbytes: float, costs: ExecutionCosts
) -> list[Term]:
    """Bounds by ranks and pairs for an order in which ranks wait; none if only links count.

    Args:
        what: a collective in which some rank needs something from another.
        nbytes: bytes of a rank's buffer.
    """
    topology, messages = latencies.topology, _of_messages(latencies)
    work = Work.of(what, nbytes)
    found: list[Term] = []
    least = float(messages.min())
    # The waiting time of a rank: the latency of its messages, times the blocks that it goes
    # through.
    waits = work.blocks * np.minimum(messages.min(axis=0), messages.min(axis=1))
    everyone = work.blocks.min() * least
    n = topology.num_ranks
    name, way = "steps", "over all its links"
    out_of, into = ports = topology.out_bandwidth()[:n], topology.in_bandwidth()[:n]
    if costs.order.by_round:
        name, way = "ports", "one message at a time"
        out_of, into = _widest_hops(topology)
        ports = (
            np.minimum(out_of, _most_of_others(into)),
            np.minimum(into, _most_of_others(out_of)),
        )
    for verb, bytes_of, port in zip(
        ("send", "receive"), (work.sent, work.received), ports, strict=True
    ):
        times = np.where(bytes_of > 0, bytes_of / port + waits, 0.0)
        rank = int(times.argmax())
        found.append(Term(float(times[rank]), name, f"what rank {rank} must {verb}, {way}"))
        time = float(work.total / port.sum() + everyone)
        found.append(Term(time, name, f"what all ranks must {verb}, each {way}"))
    if costs.order.by_round:
        count = _doublings(what)
        reason = f"{count} messages that wait for one another, so that ranks know of all"
        found.append(Term(count * least, "rounds", reason))
    if costs.half_duplex:
        one_way = np.minimum(out_of[:, None], into[None, :])
        pairs = np.maximum(one_way, one_way.T)
        np.fill_diagonal(pairs, 0.0)
        reach = np.sort(pairs, axis=1)[:, -2:] if costs.order.by_round else pairs
        both = work.sent + work.received
        times = np.where(both > 0, both / reach.sum(axis=1) + waits, 0.0)
        rank = int(times.argmax())
        reason = f"what rank {rank} must send and receive, one way at a time with each other rank"
        found.append(Term(float(times[rank]), "pairs", reason))
        time = work.total / (pairs.sum() / 2) + everyone
        reason = f"what {n} ranks must send, one way at a time between any two"
        found.append(Term(float(time), "pairs", reason))
    return found


class Work(NamedTuple):
    """The least work of ranks.

    Attributes:
        sent, received: bytes that each rank must send and receive, float64.
        total: bytes of all messages together, each counted once.
        blocks: number of blocks that each rank goes through if it takes part, int64.
    """

    sent: np.ndarray
    received: np.ndarray
    total: float
    blocks: np.ndarray

    @classmethod
    def of(cls, what: Collective, nbytes: float) -> Work:
        needs, kind = needs_of(what) * nbytes, what.traits
        # Copied data leaves its rank once; one sum arrives, whichever ranks have added to it.
        sent = needs.max(axis=1) if kind.copies or kind.copies_sums else needs.sum(axis=1)
        adds_up = kind.copies_backwards or kind.copies_sums
        received = needs.max(axis=0) if adds_up else needs.sum(axis=0)
        blocks = np.ones(what.num_ranks, np.int64)
        if not kind.copies_sums:
            return cls(sent, received, float(needs.sum()), blocks)
        # A byte's contributions meet in one rank, with one message from each other rank; then the
        # sum goes from there to the other ranks that want it.
        merged = sum(
            len(group) - 1 + len(what.ending(group)) - 1 for group in what.groups if len(group) > 1
        )
        # In a reduce_to_some a rank that wants no sum may be done when its contribution has left.
        blocks[(sent > 0) & (received > 0)] = 2
        return cls(sent, received, merged * nbytes, blocks)


def _of_messages(latencies: Latencies) -> np.ndarray:
    """The least latency of a message from rank to rank; infinite from a rank to itself."""
    found = latencies.between.copy()
    np.fill_diagonal(found, np.inf)
    return found


def _widest_hops(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """The bandwidth of the widest hop out of each rank, and into it; B/s, float64.

    A hop is as wide as all links that are parallel on it.
    """
    n, vertices = topology.num_ranks, topology.num_vertices
    pair, which = np.unique(topology.src * vertices + topology.dst, return_inverse=True)
    width = np.zeros(len(pair))
    np.add.at(width, which, topology.bandwidth)
    found = np.zeros((2, vertices))
    for way, end in zip(found, (pair // vertices, pair % vertices), strict=True):
        np.maximum.at(way, end, width)
    return found[0, :n], found[1, :n]


def _most_of_others(values: np.ndarray) -> np.ndarray:
    """For each entry, the largest of all others."""
    order = np.argsort(values)
    most = np.full(len(values), values[order[-1]])
    most[order[-1]] = values[order[-2]]
    return most


def _doublings(what: Collective) -> int:
    """The least number of doublings of the known contributions until all ranks have their data."""
    if not what.traits.copies_sums:
        return what.most_peers.bit_length()
    return max(
        (len(group) - 1).bit_length() + (len(what.ending(group)) - 1).bit_length()
        for group in what.groups
    )
