"""Helpers: ranks outside a group that forward for it, as switches do.

On the network in which such ranks *are* switches (``jaxcoll.members``), any algorithm for networks
with switches serves the group. There a message crosses several links as a whole. On the real
network a helper receives it and sends it on, and chunks that reach a helper a second time are left
out.
"""

from __future__ import annotations

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.members import Members
from jaxcoll.numerics.ragged import take_rows
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import Problem
from jaxcoll.synth.building.derive import in_order
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.topology import Topology


def helped(problem: Problem) -> Members | None:
    """The network of the only group, with other ranks as switches; None if it has all ranks."""
    group, *others = problem.collective.groups
    if others or not 1 < len(group) < problem.topology.num_ranks:
        return None
    return Members.of(problem.topology, group, helpers=True)


def sent_on(found: Schedule, members: Members, whole: Collective, nbytes: Number) -> Schedule:
    """A copying schedule of a group's network, turned into one in which helpers forward.

    Every link keeps the order in which it carries messages. Chunks that reach a helper a second
    time are left out, and those that came first are sent on instead.

    Args:
        found: a schedule on ``members.one``.
        whole: the collective of the group on the whole network.
        nbytes: bytes of a rank's buffer, for the order in which messages meet at helpers.
    """
    topology = members.topology
    run = simulate(found, nbytes)
    link = members.links[run.hop_link]
    message = np.repeat(np.arange(len(run.hop_ptr) - 1), np.diff(run.hop_ptr))
    # A way ends at a rank, which may be a helper.
    last = np.flatnonzero(topology.dst[link] < topology.num_ranks)
    first = np.concatenate([[0], last[:-1] + 1])
    # The sends of every way are those of its message.
    send_ptr, chunk = take_rows(found.message_ptr, found.chunk, message[last])
    way = np.repeat(np.arange(len(last)), np.diff(send_ptr))
    src, dst = topology.src[link[first]][way], topology.dst[link[last]][way]
    arrival = (run.hop_start + run.hop_delay)[last][way]
    kept = _first_to_come(dst, chunk, arrival)
    kept = kept[_of_use(topology, whole, src[kept], dst[kept], chunk[kept])]
    # Ways get one step each, in the order of their starts, and then as few as that order allows.
    turn = np.empty(len(last), np.int64)
    turn[np.argsort(run.hop_start[first], kind="stable")] = np.arange(len(last))
    edges, edge = distinct_edges(topology, np.append(first, len(link)), link)
    apart = Schedule.from_sends(
        topology,
        whole,
        turn[way[kept]],
        edge[way[kept]],
        chunk[kept],
        edges=edges,
        provenance=found.provenance,
    )
    return in_order(apart, np.arange(len(apart.message_ptr) - 1))


def _first_to_come(dst: np.ndarray, chunk: np.ndarray, arrival: np.ndarray) -> np.ndarray:
    """For each send, the first-arriving send that brings the same chunk to the same rank; int64."""
    order = np.lexsort((arrival, chunk, dst))
    is_first = np.ones(len(order), bool)
    is_first[1:] = (dst[order][1:] != dst[order][:-1]) | (chunk[order][1:] != chunk[order][:-1])
    return np.sort(order[is_first])


def _of_use(
    topology: Topology, whole: Collective, src: np.ndarray, dst: np.ndarray, chunk: np.ndarray
) -> np.ndarray:
    """Whether each send serves a member, or a helper that sends the chunk on; bool (sends,)."""
    is_member, chunks = whole.group_of_rank >= 0, whole.num_chunks
    to, of = dst.astype(np.int64) * chunks + chunk, src.astype(np.int64) * chunks + chunk
    goes = np.ones(len(src), bool)
    while True:
        sent_on = np.zeros(topology.num_ranks * chunks, bool)
        sent_on[of[goes]] = True
        now = goes & (is_member[dst] | sent_on[to])
        if (now == goes).all():
            return goes
        goes = now
