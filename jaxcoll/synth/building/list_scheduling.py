"""List scheduling: sends start as early as links serve them, the most urgent first.

A send waits for those that bring what it carries. A link that is free serves, of the sends that
wait for it, the most urgent: by default the one with the longest way to go. ``improved`` plans the
same sends backwards in time from the end, and forwards again in the order of that plan, by turns:
the forward-backward improvement of project scheduling (Li and Willis, "An iterative scheduling
technique for resource-constrained project scheduling", 1992). Sends that were early for no use then
make room for those that the end waits for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.numerics.ragged import followers
from jaxcoll.paths import Edges
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.list_scheduling_kernel import served, steps_of, time_left
from jaxcoll.topology import Topology

# A run of all sends one after another fits 64 bits, with times of 40 bits for the longest.
_FINE, _HORIZON = 2**40, 2**62
# Two rounds one after the other that each shorten the plan by less end its improvement. Of plans
# for twelve networks, each in up to sixteen rounds, later ones gained 0.3 % at most; after one such
# round another gained up to 0.5 %. On tori the first round gains all there is.
_LEAST_GAIN = 0.0005


@dataclasses.dataclass(frozen=True)
class LinkedSends:
    """Sends, and what each waits for; a send stands after all that it waits for.

    Attributes:
        edges: the connections that the sends use.
        edge, chunk: of each send, int64 of shape (sends,).
        reduce: whether its receiver adds it, bool of shape (sends,).
        next_ptr, following: ``following[next_ptr[i]:next_ptr[i + 1]]`` wait for send i; int64.
    """

    edges: Edges
    edge: np.ndarray
    chunk: np.ndarray
    reduce: np.ndarray
    next_ptr: np.ndarray
    following: np.ndarray

    def at(self, begin: np.ndarray, topology: Topology, collective: Collective) -> Schedule:
        """The schedule in which they start in the order of some times, in the fewest steps."""
        order = np.argsort(begin, kind="stable")
        first_link, links = self.edges.first_link, topology.num_links
        step = steps_of(order, self.next_ptr, self.following, self.edge, first_link, links)
        return Schedule.from_sends(
            topology,
            collective,
            step[order],
            self.edge[order],
            self.chunk[order],
            self.reduce[order],
            edges=self.edges,
        )


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
    sends = LinkedSends(edges, edge, chunk, np.zeros(len(edge), bool), *followers(before))
    busy, delay = link_ticks(topology, collective, nbytes, int(edges.hops[edge].sum()))
    begin, _ = _run(sends, -remaining(sends, delay), busy, delay)
    return sends.at(begin, topology, collective)


def remaining(sends: LinkedSends, delay: np.ndarray) -> np.ndarray:
    """Ticks that what each send carries takes to where it ends last, with nothing in its way."""
    links = (sends.edges.path_ptr, sends.edges.path_link)
    return time_left(sends.next_ptr, sends.following, sends.edge, *links, delay)


def improved(
    sends: LinkedSends,
    urgencies: Sequence[np.ndarray],
    busy: np.ndarray,
    delay: np.ndarray,
    rounds: int,
) -> list[np.ndarray]:
    """When each send starts, in ticks, by plans of which each is better than those before it.

    Args:
        urgencies: orders to start from, of which the best is improved; ticks, int64 (sends,).
        busy, delay: of each link, as ``link_ticks`` gives them.
        rounds: how often the plan is made backwards and forwards at most; after a round of little
            gain more gain nothing.

    Returns:
        The best plan last.
    """
    edges = sends.edges
    # Backwards every send waits for those that wait for it, and crosses its path from the end.
    size = np.diff(sends.next_ptr)
    order = np.argsort(sends.following, kind="stable")
    before = np.repeat(np.arange(len(sends.edge)), size)[order]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(sends.following, minlength=len(sends.edge)))])
    hop = np.arange(len(edges.path_link)) - np.repeat(edges.path_ptr[:-1], edges.hops)
    path = edges.path_link[np.repeat(edges.path_ptr[1:], edges.hops) - 1 - hop]
    mirrored = dataclasses.replace(
        sends,
        edges=Edges(edges.dst, edges.src, edges.path_ptr, path),
        next_ptr=ptr,
        following=before,
    )
    took = np.add.reduceat(delay[edges.path_link], edges.path_ptr[:-1])[sends.edge]

    plans = [_run(sends, urgency, busy, delay) for urgency in urgencies]
    least = min(end for _, end in plans)
    begin = next(begin for begin, end in plans if end == least)
    found, idle = [begin], 0
    for _ in range(rounds):
        # What ends last starts first in the plan from the end.
        late, span = _run(mirrored, -(begin + took), busy, delay)
        begin, end = _run(sends, span - late - took, busy, delay)
        gain, least = least - end, min(least, end)
        if gain > 0:
            found.append(begin)
        idle = idle + 1 if gain < _LEAST_GAIN * least else 0
        if idle == 2:
            break
    return found


def _run(
    sends: LinkedSends, urgency: np.ndarray, busy: np.ndarray, delay: np.ndarray
) -> tuple[np.ndarray, int]:
    edges = sends.edges
    return served(
        urgency,
        sends.next_ptr,
        sends.following,
        sends.edge,
        edges.path_ptr,
        edges.path_link,
        busy,
        delay,
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
