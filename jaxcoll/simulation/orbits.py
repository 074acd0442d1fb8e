"""Times of schedules by orbits: one message of each class, on one link of each class.

Messages and links that translations move to one another do the same at the same time
(``OrbitSchedule``). So the loops of the simulator run the messages out of rank 0 on a network that
has a link for every class of links, and a single rank. For example, in an all_gather round a ring
all ranks pass on a chunk at once, and the run has one link in each direction.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.ragged import in_groups
from jaxcoll.numerics.rational import Number
from jaxcoll.orbits import OrbitSchedule
from jaxcoll.simulation import kernels
from jaxcoll.simulation.durations import check_request, durations
from jaxcoll.simulation.link_models import LinkModel
from jaxcoll.simulation.timeline import Clock


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OrbitTimeline:
    """A simulated run of a schedule by orbits.

    Attributes:
        schedule: the simulated schedule.
        nbytes: bytes of a rank's buffer.
        model: the name of the link model.
        clock: the unit of time, and whether it is exact.
        finish: the tick when the last message arrives.
    """

    schedule: OrbitSchedule
    nbytes: Fraction
    model: str
    clock: Clock
    finish: int

    @property
    def exact_time(self) -> Fraction:
        """Seconds until the last message arrives; exact if the clock is."""
        return self.finish * self.clock.tick

    @property
    def time(self) -> float:
        """``exact_time`` as a float."""
        return float(self.exact_time)

    @property
    def algbw(self) -> float:
        """Bytes of the buffer per second, in B/s; 0 if nothing had to be done."""
        return float(self.nbytes / self.exact_time) if self.finish else 0.0

    @property
    def busbw(self) -> float:
        """algbw times the collective's factor, in B/s, comparable between numbers of ranks."""
        return self.algbw * float(self.schedule.collective.busbw_factor())

    def __repr__(self) -> str:
        return (
            f"OrbitTimeline({self.schedule.collective.kind}, {float(self.nbytes):g} B, "
            f"{self.time * 1e6:.3f} us by model {self.model!r}, "
            f"busbw {self.busbw / 1e9:.3f} GB/s)"
        )


def simulate_orbit(
    schedule: OrbitSchedule, nbytes: Number, model: str | LinkModel = "astra"
) -> OrbitTimeline:
    """Run a schedule by orbits; it takes as long as the schedule of all sends.

    Args:
        nbytes: bytes of a rank's buffer, above 0.
        model: how long messages take on links, by their bytes, bandwidth and alpha.

    Raises:
        ScheduleError: nbytes is not a number above 0, or the model is unknown or a law.
    """
    checks.instance(schedule, OrbitSchedule, "schedule", ScheduleError)
    size, by = check_request(nbytes, model)
    if not by.is_linear:
        raise ScheduleError(
            f"link model {by.name!r} is a law, which a run of one message per class does not ask; "
            f"simulate schedule.expand()"
        )
    orbit, where = schedule.orbit, schedule.translations
    number, home = schedule.edge_classes
    order, step_ptr = in_groups(orbit.step, number[orbit.edge])
    edge = number[orbit.edge[order]]
    message_ptr = _messages(edge, step_ptr)
    ranks, chunks = orbit.collective.num_ranks, orbit.collective.num_chunks
    columns = (orbit.src[order], orbit.dst[order], orbit.chunk[order])
    places = kernels.places_of(*columns, ranks, chunks if len(order) else 0)
    hop_ptr, hop_link = home.paths_of(edge[message_ptr[:-1]])
    many, which = np.unique(np.diff(message_ptr), return_inverse=True)
    chunk = size / (ranks * orbit.collective.chunks_per_shard)
    on_hop = np.repeat(which.ravel(), np.diff(hop_ptr))
    found = durations(schedule.topology, [chunk * int(m) for m in many], on_hop, hop_link, by)
    hops = by.hops(hop_ptr, where.class_of_link[hop_link].astype(np.int32), found)
    start, classes = np.zeros(len(hop_link), np.int64), int(where.class_of_link.max()) + 1
    if len(hop_link) == len(message_ptr) - 1:
        free, available = np.zeros(classes, np.int64), np.zeros(places.count, np.int64)
        kernels.run_direct(message_ptr, places, hops, free, available, start)
    else:
        queues = _queues(places, hops.link, hop_ptr, step_ptr, message_ptr)
        by.loops.run_routed(queues, hops, classes, np.zeros(places.count, np.int32), start)
    finish = int((start + hops.delay[hops.case]).max(initial=0))
    return OrbitTimeline(schedule, size, by.name, found.clock, finish)


def _messages(edge: np.ndarray, step_ptr: np.ndarray) -> np.ndarray:
    """Sends of message m are ``ptr[m]..ptr[m + 1] - 1``; int64."""
    starts = np.ones(len(edge), bool)
    starts[1:] = edge[1:] != edge[:-1]
    starts[step_ptr[:-1]] = True
    return np.append(np.flatnonzero(starts), len(edge))


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
