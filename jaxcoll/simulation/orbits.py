"""Times of schedules by orbits: one message of each class, on one link of each class.

Messages and links that translations move to one another do the same at the same time
(``OrbitSchedule``). So the loops of the simulator run the messages out of rank 0 on a network that
has a link for every class of links, and a single rank. For example, in an all_gather round a ring
all ranks pass on a chunk at once, and the run has one link in each direction.
"""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.numerics.ragged import in_groups, take_rows
from jaxcoll.orbits import OrbitSchedule
from jaxcoll.simulation import kernels
from jaxcoll.simulation.durations import durations
from jaxcoll.simulation.link_models import ASTRA, LinkModel
from jaxcoll.simulation.timeline import Timeline, share_of_time


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitTimeline(Timeline):
    """A simulated run of a schedule by orbits, stored as the hops of the messages out of rank 0.

    ``hops`` and ``hop_start``, of all messages, are listed when first read; that is refused where
    the schedule has more sends than ``OrbitSchedule.expand`` lists.

    Attributes:
        orbit_hops: the hops of rank 0's messages, whose links are classes of links.
        orbit_start: the tick when each of these starts to occupy its link, int64.
    """

    schedule: OrbitSchedule
    hops: kernels.Hops = dataclasses.field(init=False)
    hop_start: np.ndarray = dataclasses.field(init=False)
    orbit_hops: kernels.Hops = dataclasses.field(kw_only=True)
    orbit_start: np.ndarray = dataclasses.field(kw_only=True)

    def __getattr__(self, name: str):
        """The hops of all messages, listed now; see the class."""
        if name not in ("hops", "hop_start"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        hops, start = self._of_all_ranks()
        object.__setattr__(self, "hops", hops)
        object.__setattr__(self, "hop_start", start)
        return hops if name == "hops" else start

    @functools.cached_property
    def finish(self) -> int:
        """The tick when the last message arrives."""
        delay = self.orbit_hops.delay[self.orbit_hops.case]
        return int((self.orbit_start + delay).max(initial=0))

    def utilization(self, bins: int | None = None) -> np.ndarray:
        """Share of the time that each link is occupied; see ``Timeline.utilization``."""
        kind = self.schedule.translations.class_of_link
        classes = int(kind.max()) + 1
        share = share_of_time(self.orbit_hops, self.orbit_start, self.finish, classes, bins)
        return share[kind]

    def _of_all_ranks(self) -> tuple[kernels.Hops, np.ndarray]:
        """The hops of every message, moved to every rank, and their starts."""
        self.schedule.check_listed()
        where, one, n = (
            self.schedule.translations,
            self.orbit_hops,
            self.schedule.topology.num_ranks,
        )
        out = _out_of_rank_0(self.schedule)
        # In the order of ``OrbitSchedule.expand``: each message of the orbit by all translations,
        # which take its source to the ranks that send the images.
        message = np.repeat(np.arange(len(out.edge)), n)
        rank = where.vertices(np.arange(n), out.src[:, None]).ravel()
        _, home = self.schedule.edge_classes
        _, path = home.paths_of(out.edge[message])
        ptr, hop = take_rows(one.ptr, np.arange(len(one.link)), message)
        link = where.links(np.repeat(rank, np.diff(ptr)), path).astype(np.int32)
        hops = kernels.Hops(ptr, link, one.case[hop], one.busy, one.delay)
        return hops, self.orbit_start[hop]


def simulate_orbit(schedule: OrbitSchedule, size: Fraction, by: LinkModel = ASTRA) -> OrbitTimeline:
    """Run a schedule by orbits; it takes as long as the schedule of all sends.

    Args:
        size: bytes of a rank's buffer, above 0.
        by: how long messages take on links: a linear model, since a law is asked with the time at
            which a message starts on a link.
    """
    orbit, where = schedule.orbit, schedule.translations
    out, (_, home) = _out_of_rank_0(schedule), schedule.edge_classes
    ranks, chunks = orbit.collective.num_ranks, orbit.collective.num_chunks
    columns = (orbit.src[out.order], orbit.dst[out.order], orbit.chunk[out.order])
    places = kernels.places_of(*columns, ranks, chunks if len(out.order) else 0)
    hop_ptr, hop_link = home.paths_of(out.edge)
    many, which = np.unique(np.diff(out.ptr), return_inverse=True)
    chunk = size / (ranks * orbit.collective.chunks_per_shard)
    on_hop = np.repeat(which.ravel(), np.diff(hop_ptr))
    found = durations(schedule.topology, [chunk * int(m) for m in many], on_hop, hop_link, by)
    hops = by.hops(hop_ptr, where.class_of_link[hop_link].astype(np.int32), found)
    start, classes = np.zeros(len(hop_link), np.int64), int(where.class_of_link.max()) + 1
    if len(hop_link) == len(out.edge):
        free, available = np.zeros(classes, np.int64), np.zeros(places.count, np.int64)
        kernels.run_direct(out.ptr, places, hops, free, available, start)
    else:
        queues = _queues(places, hops.link, hop_ptr, out.step_ptr, out.ptr)
        by.loops.run_routed(queues, hops, classes, np.zeros(places.count, np.int32), start)
    hops = by.answered(schedule.topology, hops, found, start)
    run = (schedule, size, by.name, found.clock)
    return OrbitTimeline(*run, orbit_hops=hops, orbit_start=start)


class _Messages(NamedTuple):
    """The messages out of rank 0: the sends of one step on edges of one class.

    Attributes:
        order: the sends of the orbit, message by message.
        step_ptr: step t has the places ``step_ptr[t]..step_ptr[t + 1] - 1`` of ``order``.
        ptr: message m has the places ``ptr[m]..ptr[m + 1] - 1``.
        edge: the class of each message's edge.
        src: the source of its first send in the orbit.
    """

    order: np.ndarray
    step_ptr: np.ndarray
    ptr: np.ndarray
    edge: np.ndarray
    src: np.ndarray


def _out_of_rank_0(schedule: OrbitSchedule) -> _Messages:
    orbit, (number, _) = schedule.orbit, schedule.edge_classes
    order, step_ptr = in_groups(orbit.step, number[orbit.edge])
    edge = number[orbit.edge[order]]
    starts = np.ones(len(edge), bool)
    starts[1:] = edge[1:] != edge[:-1]
    starts[step_ptr[:-1]] = True
    first = np.flatnonzero(starts)
    src = orbit.src[order[first]]
    return _Messages(order, step_ptr, np.append(first, len(edge)), edge[first], src)


def _queues(
    places: kernels.Places,
    link: np.ndarray,
    hop_ptr: np.ndarray,
    step_ptr: np.ndarray,
    message_ptr: np.ndarray,
) -> kernels.Queues:
    """The messages sorted by the classes of their first links; all come to, and leave, one rank.

    Args:
        link: the class of each hop's link.
    """
    needed = kernels.arrivals_needed(step_ptr, places)
    first = link[hop_ptr[:-1]]
    queue = np.argsort(first, kind="stable")
    classes = int(link.max()) + 1
    queue_ptr = np.searchsorted(first[queue], np.arange(classes + 1))
    out = np.unique(first)
    out_ptr, dst = np.asarray([0, len(out)]), np.zeros(len(first), np.int32)
    have, get, _ = places
    return kernels.Queues(message_ptr, have, get, needed, dst, queue_ptr, queue, out_ptr, out)
