"""Schedules that share wires at the same time, and the seconds that they cost each other.

Each schedule keeps its own order on every link, as when it runs alone; between schedules, links
serve first come, first served. A schedule hands a link its next message when the link could have
carried the one before, so two schedules that both have much to send take turns.

For example, two rings with equal bytes on one circle take twice the time of one. A ring inside
every host and one between hosts take no longer than each alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import kernels
from jaxcoll.simulation.durations import check_request, durations
from jaxcoll.simulation.link_models import LinkModel
from jaxcoll.simulation.schedules import message_sizes


@dataclasses.dataclass(frozen=True)
class Together:
    """Seconds of schedules that begin at the same time.

    Attributes:
        alone: seconds of each schedule alone. They equal those of ``simulate``, except for
            schedules whose messages pass ranks without being received there, which meet the
            messages of those ranks.
        together: seconds until each is done if all run.
    """

    alone: tuple[float, ...]
    together: tuple[float, ...]

    @property
    def time(self) -> float:
        """Seconds until all are done."""
        return max(self.together)

    @property
    def slowdown(self) -> tuple[float, ...]:
        """The time of each with the others, relative to its time alone; 1 if it takes no time."""
        pairs = zip(self.together, self.alone, strict=True)
        return tuple(both / one if one else 1.0 for both, one in pairs)


def simulate_together(
    schedules: Sequence[Schedule],
    nbytes: Number | Sequence[Number],
    model: str | LinkModel = "astra",
) -> Together:
    """Run schedules at the same time on their common network.

    Args:
        schedules: one or more schedules, all on the same network.
        nbytes: bytes of a rank's buffer, one number for each schedule or one for all.
        model: "astra" or "tacos", or a ``LinkModel`` without a law.

    Raises:
        ScheduleError: there are no schedules, they have different networks, there is not one size
            for each, or the model has a law; see also ``simulate``.
    """
    all_of_them = checks.members(schedules, "schedules", ScheduleError)
    for schedule in all_of_them:
        checks.instance(schedule, Schedule, "a schedule of schedules", ScheduleError)
    if not all_of_them or len({schedule.topology for schedule in all_of_them}) > 1:
        raise ScheduleError(
            "schedules must be one or more of the same network, got "
            f"{checks.shown([str(schedule.topology) for schedule in all_of_them])}"
        )
    if not isinstance(nbytes, Sequence) or isinstance(nbytes, str):
        sizes: list = [nbytes] * len(all_of_them)
    elif len(nbytes) == len(all_of_them):
        sizes = [*nbytes]
    else:
        raise ScheduleError(
            f"nbytes must be one size, or one for each of {len(all_of_them)} schedules, got "
            f"{checks.shown(nbytes)}"
        )
    requests = [check_request(size, model) for size in sizes]
    by = requests[0][1]
    if not by.is_linear:
        raise ScheduleError(
            f"link model {by.name!r} is a law of one message after another of a single schedule; "
            "schedules together are timed by astra, tacos, or a model without a law"
        )
    exact = [size for size, _ in requests]
    alone = [_run([one], [size], by)[0] for one, size in zip(all_of_them, exact, strict=True)]
    return Together(tuple(alone), _run(all_of_them, exact, by))


def _run(schedules: Sequence[Schedule], sizes: Sequence, model: LinkModel) -> tuple[float, ...]:
    """Seconds until each is done.

    Every message first crosses a private link of its schedule, for as long as it occupies the real
    link and without latency. There the order of the schedule is kept.
    """
    topology, links = schedules[0].topology, schedules[0].topology.num_links
    edge = [schedule.edge[schedule.message_ptr[:-1]] for schedule in schedules]
    paths = [s.edges.paths_of(of) for s, of in zip(schedules, edge, strict=True)]
    messages = [len(of) for of in edge]
    hop_ptr = _joined([ptr for ptr, _ in paths])
    hop_link = np.concatenate([link for _, link in paths])
    # The sizes of all messages, and the index of each hop's size.
    nbytes, which = [], []
    for schedule, size in zip(schedules, sizes, strict=True):
        known, number = message_sizes(schedule, size, None)
        which.append(number + len(nbytes))
        nbytes += known
    of_hop = np.repeat(np.concatenate(which), np.diff(hop_ptr))
    found = durations(topology, nbytes, of_hop, hop_link, model)
    begins, own = hop_ptr[:-1], np.repeat(np.arange(len(schedules)), messages)
    first = hop_link[begins] + links * (1 + own)
    hops = kernels.Hops(
        hop_ptr + np.arange(len(hop_ptr)),
        np.insert(hop_link, begins, first).astype(np.int32),
        np.insert(found.case, begins, found.case[begins] + len(found.busy)).astype(np.int32),
        np.concatenate([found.busy, found.busy]),
        np.concatenate([found.delay, np.zeros_like(found.delay)]),
    )
    start = np.zeros(len(hops.link), np.int64)
    queues, count = _queues(schedules, edge, first)
    arrived = np.zeros(count, np.int32)
    kernels.run_routed(queues, hops, links * (1 + len(schedules)), arrived, start)
    last = hops.ptr[1:] - 1
    end = start[last] + hops.delay[hops.case[last]]
    done = [end[own == j].max(initial=0) for j in range(len(schedules))]
    return tuple(found.clock.seconds(np.asarray(done)).tolist())


def _queues(
    schedules: Sequence[Schedule], edge: Sequence[np.ndarray], first: np.ndarray
) -> tuple[kernels.Queues, int]:
    """The messages of all schedules by their private links, and the number of places of chunks."""
    topology, links = schedules[0].topology, schedules[0].topology.num_links
    chunks = [s.collective.num_chunks if s.num_sends else 0 for s in schedules]
    ahead = np.cumsum([0, *chunks[:-1]])
    src, dst = (np.concatenate([getattr(s, end) for s in schedules]) for end in ("src", "dst"))
    chunk = np.concatenate([s.chunk + k for s, k in zip(schedules, ahead, strict=True)])
    places = kernels.places_of(src, dst, chunk.astype(np.int32), topology.num_ranks, sum(chunks))
    needed = kernels.arrivals_needed(_joined([s.step_ptr for s in schedules]), places)
    queue = np.argsort(first, kind="stable")
    virtual = links * (1 + len(schedules))
    queue_ptr = np.searchsorted(first[queue], np.arange(virtual + 1))
    # The private links of the schedules out of each rank.
    tail = np.concatenate([np.full(links, topology.num_vertices), *[topology.src] * len(schedules)])
    out = np.argsort(tail, kind="stable")
    out_ptr = np.searchsorted(tail[out], np.arange(topology.num_ranks + 1))
    to = np.concatenate([s.edges.dst[of] for s, of in zip(schedules, edge, strict=True)])
    ptr = _joined([s.message_ptr for s in schedules])
    have, get, count = places
    return kernels.Queues(ptr, have, get, needed, to, queue_ptr, queue, out_ptr, out), count


def _joined(ptrs: Sequence[np.ndarray]) -> np.ndarray:
    """The rows of several ragged arrays as rows of one, int64."""
    sizes = np.concatenate([np.diff(ptr) for ptr in ptrs])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
