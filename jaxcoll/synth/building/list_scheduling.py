"""List scheduling: sends start as early as links serve them, longest remaining path first."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.list_scheduling_kernel import served
from jaxcoll.topology import Topology
from jaxcoll.trees.stream import stream_steps

# A run of all sends one after another fits 64 bits, with times of 40 bits for the longest.
_FINE, _HORIZON = 2**40, 2**62


def as_they_arrive(
    topology: Topology,
    collective: Collective,
    edges: Edges,
    edge: np.ndarray,
    chunk: np.ndarray,
    before: np.ndarray,
    nbytes: Fraction,
) -> Schedule:
    """The schedule of sends that start as early as links serve them, longest remaining path first.

    Args:
        edges: the connections that the sends use.
        edge, chunk: of each send, int64 of shape (sends,).
        before: the send, of a smaller number, that brings what each send carries on; -1 where the
            source holds it at the start.
        nbytes: bytes of a rank's buffer.
    """
    busy, delay = link_ticks(topology, collective, nbytes, int(edges.hops[edge].sum()))
    begin = served(before, edge, edges.path_ptr, edges.path_link, busy, delay)
    order = np.argsort(begin, kind="stable")
    step = stream_steps(order, before, edge, edges.first_link, topology.num_links, 1)
    return Schedule.from_sends(
        topology, collective, step[order], edge[order], chunk[order], edges=edges
    )


def link_ticks(
    topology: Topology, collective: Collective, nbytes: Fraction, hops: int
) -> tuple[np.ndarray, np.ndarray]:
    """How long the largest chunk occupies each link, and takes to its end, in rounded ticks.

    Args:
        hops: the most links that a run can cross one after another; sums of as many ticks fit
            64 bits.

    Returns:
        Two columns, int64 of shape (links,): bytes / bandwidth, and that with alpha.
    """
    weight, total = common_parts(collective)
    size = nbytes * int(weight.max()) / total
    speeds, which = topology.speeds
    longest = max(alpha + size / bandwidth for alpha, bandwidth in speeds)
    scale = min(_FINE, _HORIZON // max(hops, 1)) / longest
    busy = [max(1, round(size / bandwidth * scale)) for _, bandwidth in speeds]
    alpha = [round(alpha * scale) for alpha, _ in speeds]
    return np.asarray(busy, np.int64)[which], np.asarray(np.add(busy, alpha), np.int64)[which]
