"""Times of schedules, link by link, and the order in which schedules add.

A schedule is timed message by message, on every link of its path.

Floating-point addition is commutative but not associative, so the bits of a sum depend on its
bracketing: ((a + b) + c) equals (c + (b + a)), but not (a + (b + c)). If a schedule brackets the
contributions of a group in the same way for all chunks, an element has the same bits at any place
in a buffer, for any size of the buffer and any number of chunks. Replaying the brackets themselves,
without any floats, tells whether it does.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import CollectiveError, ScheduleError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.orbits import OrbitSchedule
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import kernels
from jaxcoll.simulation.durations import check_request, distinct, durations, framed
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.simulation.execution_order import flows_of
from jaxcoll.simulation.fair_flows import Flows, run_in_order, run_when_ready
from jaxcoll.simulation.link_models import Durations, LinkModel
from jaxcoll.simulation.orbits import simulate_orbit
from jaxcoll.simulation.timeline import Clock, Framing, Timeline

_ZERO = Fraction(0)


def simulate(
    schedule: Schedule,
    nbytes: Number,
    model: str | LinkModel = "astra",
    framing: Framing | None = None,
    *,
    execution: ExecutionCosts | str | None = None,
) -> Timeline:
    """Run a schedule on its topology, every message as early as its links and chunks allow.

    A message waits for the chunks it carries (all arrivals of earlier steps), and leaves after the
    messages that stand before it in the schedule on the same first link. There is no barrier
    between steps.

    Args:
        schedule: a schedule; one that ``verify`` would refuse is timed all the same. One by orbits
            is timed by one rank's messages; with framing, execution or a law, by all its sends.
        nbytes: bytes of a rank's buffer, above 0 (see ``Collective.chunk_bytes``).
        model: how long messages take on links: "astra", "tacos", or a ``LinkModel``.
        framing: headers of packets or messages, which take bandwidth, too; none when omitted.
        execution: the machine's order of execution and its charges, or the name of a backend for
            the shipped ones; each link by itself when omitted. If ranks wait for one another
            (``execution_order``), links are shared fairly, whatever the link model. Between
            processes messages go as IP forwards them, packet by packet, and connections that meet
            on a link share it fairly, as TCP does. Bandwidths include charges.

    Raises:
        ScheduleError: nbytes is not a number above 0, the model is unknown, its law fails or
            returns forbidden times (``LinkModel``), or a collective of millions of chunks has fewer
            sends than it needs (``Schedule.check_claims``); a schedule by orbits whose sends must
            be listed has too many.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    checks.optional(framing, checks.instance, Framing, "framing", ScheduleError)
    costs = costs_of(execution, ScheduleError)
    size, by = check_request(nbytes, model)
    if isinstance(schedule, OrbitSchedule) and framing is None and costs is None and by.is_linear:
        return simulate_orbit(schedule, size, by)
    schedule.check_claims()
    return _run(schedule, size, by, framing, costs)


def _run(
    schedule: Schedule,
    size: Fraction,
    by: LinkModel,
    framing: Framing | None,
    costs: ExecutionCosts | None,
) -> Timeline:
    schedule = schedule if costs is None else costs.as_sent(schedule)
    message_ptr = schedule.message_ptr
    edge = schedule.edge[message_ptr[:-1]]
    charge = _ZERO if costs is None else costs.seconds(schedule, size)
    if costs is not None and costs.order.waits:
        return _in_order(_OnMachine(schedule, size, by, framing, costs, charge))
    hop_ptr, hop_link = schedule.edges.paths_of(edge)
    # Without sends, as for groups of one rank, the number of chunks may be arbitrary.
    chunks = schedule.collective.num_chunks if schedule.num_sends else 0
    columns = schedule.src, schedule.dst, schedule.chunk
    places = kernels.places_of(*columns, schedule.topology.num_ranks, chunks)
    is_fair = costs is not None and costs.is_forwarded and by.is_linear and not by.alpha_occupies
    if costs is not None and is_fair and _can_be_shared(schedule, edge):
        is_shared = _have_common_links(edge, hop_ptr, hop_link)
        # Chunks of a message arrive one by one, also where no links are shared.
        if is_shared or schedule.num_sends > len(edge):
            run = _OnMachine(schedule, size, by, framing, costs, charge)
            return _by_connections(run, places, is_shared)
    found = _durations(schedule, size, by, framing, hop_ptr, hop_link, costs)
    start = np.zeros(len(hop_link), np.int64)
    hops, num_links = by.hops(hop_ptr, hop_link, found), schedule.topology.num_links
    # If every message is one hop, links serve in the order of the schedule, which takes a single
    # pass without events. On paths of several links the order of arrivals at an inner link becomes
    # known only during the run, and so do the arguments of a law.
    if by.is_linear and len(hop_link) == len(edge):
        free, available = np.zeros(num_links, np.int64), np.zeros(places.count, np.int64)
        kernels.run_direct(message_ptr, places, hops, free, available, start)
    else:
        queues = _queues(schedule, places, schedule.edges.dst[edge], hop_link[hop_ptr[:-1]])
        with by.asked():
            by.loops.run_routed(queues, hops, num_links, np.zeros(places.count, np.int32), start)
    hops = by.answered(schedule.topology, hops, found, start)
    return Timeline(schedule, size, by.name, found.clock, hops, start, framing, charge)


class _OnMachine(NamedTuple):
    """A run on a machine whose messages share links: the arguments of ``simulate``, and a charge.

    Attributes:
        schedule: as the machine sends it.
        charge: seconds that the machine charges.
    """

    schedule: Schedule
    size: Fraction
    model: LinkModel
    framing: Framing | None
    costs: ExecutionCosts
    charge: Fraction


def _in_order(run: _OnMachine) -> Timeline:
    """The run of a machine whose ranks go through blocks one after the other.

    Raises:
        ScheduleError: the model is a law.
    """
    if not run.model.is_linear:
        raise ScheduleError(
            f"link model {run.model.name!r} is a law of messages that links serve one by one, and "
            f"in order {run.costs.order.name!r} the messages of a block share links; leave one out"
        )
    flows = _framed_flows(run)
    ends = run_in_order(run.schedule.topology, flows, half_duplex=run.costs.half_duplex)
    return _of_flows(run, flows, *ends)


# Beyond so many sends times connections, fair shares take too long to compute while a program is
# being traced, some 50 ms; there, links serve one message after the other, as elsewhere.
_MOST_SHARED = 1 << 22


def _can_be_shared(schedule: Schedule, edge: np.ndarray) -> bool:
    return schedule.num_sends * len(np.unique(edge)) <= _MOST_SHARED


def _have_common_links(edge: np.ndarray, hop_ptr: np.ndarray, hop_link: np.ndarray) -> bool:
    """Whether messages of several edges meet on a link."""
    on_link = np.stack([hop_link, np.repeat(edge, np.diff(hop_ptr))])
    return bool((np.bincount(np.unique(on_link, axis=1)[0]) > 1).any())


def _by_connections(run: _OnMachine, places: kernels.Places, is_shared: bool) -> Timeline:
    """The run of processes that have a connection for every edge; connections share links fairly.

    A receiver can use each chunk of a message as soon as that has arrived, before the message ends,
    and those that it sends on soonest come first.

    Args:
        is_shared: whether connections meet on a link.
    """
    messages, schedule = _framed_flows(run), run.schedule
    first, edge = schedule.message_ptr, schedule.edge
    weight, _ = common_parts(schedule.collective)
    part = weight[schedule.chunk]
    per_message = np.diff(first)
    whole = np.add.reduceat(part, first[:-1]) if len(part) else part
    ptr, link = schedule.edges.paths_of(edge)
    src, dst = (ends[edge].astype(np.int64) for ends in (schedule.edges.src, schedule.edges.dst))
    nbytes = np.repeat(messages.nbytes / np.maximum(whole, 1), per_message) * part
    rows = Flows(src, dst, edge.astype(np.int64), nbytes, ptr, link.astype(np.int64))
    needed = kernels.arrivals_needed(schedule.step_ptr, places)
    urgency = _urgency(schedule, places)
    ready = (rows, first, urgency, places, needed, is_shared)
    start, end = run_when_ready(schedule.topology, *ready)
    at = first[:-1]
    return _of_flows(run, messages, np.minimum.reduceat(start, at), np.maximum.reduceat(end, at))


def _urgency(schedule: Schedule, places: kernels.Places) -> tuple[np.ndarray, ...]:
    """In which order the chunks of a message go, as keys of ``np.lexsort``.

    First those that their receiver sends on soonest, then those that it sends in the longest
    message.
    """
    ptr, steps = schedule.message_ptr, schedule.num_steps + 1
    step = np.asarray(schedule.step, np.int64)
    length = np.repeat(np.diff(ptr), np.diff(ptr))
    leaving = places.have.astype(np.int64) * steps + step
    arriving = places.get.astype(np.int64) * steps + step
    order = np.lexsort((-length, leaving))
    after = np.searchsorted(leaving[order], arriving, "right")
    following = np.append(order, 0)[after]
    is_sent_on = (after < len(order)) & (leaving[following] // steps == places.get)
    return (
        schedule.chunk,
        np.where(is_sent_on, -length[following], 1),
        np.where(is_sent_on, step[following], steps),
    )


def _framed_flows(run: _OnMachine) -> Flows:
    """The messages, as long as they are on links."""
    flows = flows_of(run.schedule, float(run.size), run.costs.order)
    if run.framing is None:
        return flows
    on_link = [float(run.framing.on_link(as_fraction(nbytes))) for nbytes in flows.nbytes]
    return flows._replace(nbytes=np.asarray(on_link))


def _of_flows(run: _OnMachine, flows: Flows, start: np.ndarray, end: np.ndarray) -> Timeline:
    """The timeline of messages by the seconds of their starts and arrivals."""
    schedule, costs = run.schedule, run.costs
    count = np.diff(flows.ptr)
    # A hop begins and ends with its message, and occupies its link for its share of that time.
    serial = np.repeat(flows.nbytes, count) / schedule.topology.bandwidth[flows.link]
    last = as_fraction(float(end.max(initial=0.0)))
    clock = Clock(max(last, Fraction(1, 2**40)) / 2**52, False)
    per_tick = float(clock.tick)
    busy, until = (np.ceil(part / per_tick).astype(np.int64) for part in (serial, end))
    begin = np.floor(start / per_tick).astype(np.int64)
    begin, delay = np.repeat(begin, count), np.repeat(until - begin, count)
    case = np.arange(len(busy), dtype=np.int32)
    hops = kernels.Hops(flows.ptr, flows.link.astype(np.int32), case, busy, delay)
    known = run.framing, run.charge, costs.order
    return Timeline(schedule, run.size, run.model.name, clock, hops, begin, *known)


def _queues(
    schedule: Schedule, places: kernels.Places, dst: np.ndarray, first: np.ndarray
) -> kernels.Queues:
    """The messages sorted by their first links.

    Args:
        dst, first: the rank at the end of each message, and its first link.
    """
    topology = schedule.topology
    needed = kernels.arrivals_needed(schedule.step_ptr, places)
    # Numbers of 16 bits, such as those of most networks' links, are sorted by radix.
    first = first.astype(np.min_scalar_type(topology.num_links))
    queue = np.argsort(first, kind="stable")
    queue_ptr = np.searchsorted(first[queue], np.arange(topology.num_links + 1))
    out = np.argsort(topology.src, kind="stable")
    out_ptr = np.searchsorted(topology.src[out], np.arange(topology.num_ranks + 1))
    have, get, _ = places
    ptr = schedule.message_ptr
    return kernels.Queues(ptr, have, get, needed, dst, queue_ptr, queue, out_ptr, out)


def _durations(
    schedule: Schedule,
    size: Fraction,
    model: LinkModel,
    framing: Framing | None,
    hop_ptr: np.ndarray,
    hop_link: np.ndarray,
    costs: ExecutionCosts | None,
) -> Durations:
    """The clock, the case of each hop, and how long a case takes."""
    nbytes, which = message_sizes(schedule, size, framing)
    if len(nbytes) > 1 and len(hop_link) > len(which):
        which = np.repeat(which, np.diff(hop_ptr))
    found = durations(schedule.topology, nbytes, which, hop_link, model)
    if costs is not None and costs.is_forwarded and model.is_linear and not model.alpha_occupies:
        return _packet_by_packet(found, hop_ptr)
    return found


def message_sizes(
    schedule: Schedule, size: Fraction, framing: Framing | None
) -> tuple[list[Fraction], np.ndarray]:
    """The distinct sizes of messages in bytes, including heads, and each message's number."""
    weight, total = common_parts(schedule.collective)
    if (weight == weight[0]).all():
        weights = np.diff(schedule.message_ptr) * weight[0]
    else:
        weights = np.add.reduceat(weight[schedule.chunk], schedule.message_ptr[:-1])
    sizes, which, _ = distinct(weights, int(weights.max(initial=0)) + 1)
    return framed([size * int(w) / total for w in sizes], framing), which


def _packet_by_packet(found: Durations, hop_ptr: np.ndarray) -> Durations:
    """Durations if packets are forwarded as they arrive.

    A message is on its next link as soon as its first packet is, after alpha, and on its last link
    for as long as its slowest link takes.
    """
    hops = np.diff(hop_ptr)
    if (hops <= 1).all():
        return found
    serial = found.busy[found.case]
    alpha = found.delay[found.case] - serial
    last = hop_ptr[1:] - 1
    busy, delay = serial.copy(), alpha.copy()
    busy[last] = np.maximum.reduceat(serial, hop_ptr[:-1])
    delay[last] += busy[last]
    (busy, delay), case = np.unique([busy, delay], axis=1, return_inverse=True)
    size = np.zeros(len(busy), np.int64)
    size[case.ravel()] = found.case
    nbytes = [found.nbytes[k] for k in size.tolist()]
    return found._replace(case=case.ravel().astype(np.int32), nbytes=nbytes, busy=busy, delay=delay)


def steady_seconds(schedule: Schedule) -> Fraction:
    """Seconds per byte of a rank's buffer on the link that is busy longest, exact.

    No run of the schedule is faster, and a run with many pipeline segments may come close. This is
    the throughput by which schedules of trees are compared (dissertation on ForestColl, Fig. 4.14).
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    weight, total = common_parts(schedule.collective)
    on_edge = np.zeros(len(schedule.edges), np.int64)
    np.add.at(on_edge, schedule.edge, weight[schedule.chunk])
    load = np.zeros(schedule.topology.num_links, np.int64)
    np.add.at(load, schedule.edges.path_link, np.repeat(on_edge, schedule.edges.hops))
    speed = schedule.topology.exact_bandwidth
    times = (Fraction(int(x)) / b for x, b in zip(load, speed, strict=True))
    return max(times, default=Fraction(0)) / total


def sum_orders(schedule: Schedule) -> int:
    """The number of orders in which a schedule adds: the most of any group, over chunks and ranks.

    ``order="fixed"`` asks for 1. Contributions are identified by their places in the group. A chunk
    to which a rank adds two arrivals of one step counts as a separate order, since executions may
    add them in either order.

    Args:
        schedule: a verified schedule of reduce_scatter, all_reduce or reduce.

    Raises:
        CollectiveError: the schedule adds nothing.
        ScheduleError: a collective of millions of chunks has fewer sends than it needs
            (``Schedule.check_claims``).
    """
    checks.instance(schedule, Schedule, "schedule", CollectiveError)
    collective = schedule.collective
    if not collective.is_reducing:
        raise CollectiveError(f"{schedule} adds nothing; give one of a sum")
    schedule.check_claims()
    orders = _replayed(schedule)
    wanted = collective.postcondition()
    group = np.broadcast_to(collective.group_of_chunk, wanted.shape)
    found = np.unique(np.stack([group[wanted], orders[wanted]]), axis=1)
    return int(np.bincount(found[0]).max())


def _replayed(schedule: Schedule) -> np.ndarray:
    """Numbers of the final bracketing of each chunk at each rank; (ranks, chunks)."""
    collective = schedule.collective
    chunks = np.arange(collective.num_chunks)
    place = np.full(collective.num_ranks, -1, np.int64)
    for members in collective.groups:
        place[list(members)] = np.arange(len(members))
    # A contribution has the number of its place, nothing has -1, and a sum gets a number when it
    # first occurs.
    held = np.where(collective.precondition(), place[:, None], -1)
    known: dict[tuple[int, int], int] = {}
    fresh = collective.num_ranks

    src, dst = schedule.src, schedule.dst
    for first, last in zip(schedule.step_ptr[:-1], schedule.step_ptr[1:], strict=True):
        here = slice(first, last)
        u, v, c, adds = src[here], dst[here], schedule.chunk[here], schedule.reduce[here]
        moved = held[u, c]
        # A rank that sends a partial sum gives it away, so that no contribution is counted twice.
        held[u[adds], c[adds]] = -1
        cell = v.astype(np.int64) * len(chunks) + c
        _, which, times = np.unique(cell, return_inverse=True, return_counts=True)
        pairs = np.stack([moved, np.where(adds, held[v, c], -1)])
        # a + b and b + a are one addition, since they have the same bits in floating point, too.
        pairs.sort(axis=0)
        pairs, number = np.unique(pairs, axis=1, return_inverse=True)
        names = np.empty(pairs.shape[1], np.int64)
        for i, (a, b) in enumerate(pairs.T.tolist()):
            if a < 0:
                names[i] = b
                continue
            if (a, b) not in known:
                known[a, b], fresh = fresh, fresh + 1
            names[i] = known[a, b]
        result = names[number.ravel()]
        # Two arrivals at a rank in one step may be added in either order, so their sum gets a
        # unique number.
        unordered = times[which.ravel()] > 1
        # Numbers from the top down occur nowhere else.
        result[unordered] = np.iinfo(np.int64).max - cell[unordered]
        held[v, c] = result
    return held
