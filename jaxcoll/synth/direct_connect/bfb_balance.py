"""Divides shards among the links into a vertex: the linear program (3.1), solved exactly.

There is one problem per vertex u and distance t. Jobs are the shards of the ranks v at distance t
from u; the links into u are the processors; a link (w, u) may take part in a job if w is one hop
closer to v. The load of the busiest link must be least (dissertation, Sec. 3.6.1; as job
scheduling, App. A.5.1).

Jobs with the same links form a group, so that a flow has few vertices. If links of some capacity
cannot take all jobs, the flow's cut holds a set J of jobs that have too few links f(J) (Thm. 19);
the capacity is raised to the need of J, until the flow takes all jobs. So the capacity is least,
and J proves it.

If links differ, the linear program (A.12) is a bound for all numbers of chunks. It is solved
exactly by the same method: some set of jobs takes its links the longest (``bfb_times``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.compiled import kernel
from jaxcoll.numerics.max_flow import FlowNetwork, dinic, with_reverses
from jaxcoll.numerics.rational import Number, common_denominator
from jaxcoll.paths import hop_distances
from jaxcoll.topology import Topology


@kernel(cache=True)
def fill(jobs, unit, capacity, flow, tight):
    """Find an integer flow of all jobs, each of ``unit``, over links of some capacities.

    Args:
        flow: filled with the amount of every link of every group, int64 of shape (entries,).
        tight: if there is no flow, marks the groups with too few links, bool of shape (groups,).

    Returns:
        Whether there is such a flow.
    """
    room = capacity.copy()
    # Equal parts mostly leave little or nothing over, so the maximum flow starts from them.
    short = _split_evenly(jobs, unit, room, flow)
    missing = short.sum()
    return missing == 0 or _augment(jobs, short, room, flow, tight) == missing


@kernel(cache=True)
def _split_evenly(jobs, unit, room, flow):
    """Divide groups equally among their links, within their room; return the rest of each group."""
    short = np.zeros(len(jobs.ptr) - 1, np.int64)
    for g in range(len(short)):
        a, b = jobs.ptr[g], jobs.ptr[g + 1]
        rest = (jobs.first[g + 1] - jobs.first[g]) * unit
        share = rest // (b - a)
        for i in range(a, b):
            flow[i] = min(share, room[jobs.link[i]])
            room[jobs.link[i]] -= flow[i]
            rest -= flow[i]
        while rest > 0:
            best = a
            for i in range(a + 1, b):
                if room[jobs.link[i]] > room[jobs.link[best]]:
                    best = i
            # Only a share is added at a time, since afterwards another link may be the emptiest.
            more = min(max(rest // (b - a), 1), room[jobs.link[best]], rest)
            if more == 0:
                break
            flow[best] += more
            room[jobs.link[best]] -= more
            rest -= more
        short[g] = rest
    return short


@kernel(cache=True)
def _augment(jobs, short, room, flow, tight):
    """Augment a flow to a maximum one, and return the amount that this adds.

    The vertices are the source 0, the groups, the links and the sink.
    """
    groups, links = len(short), len(room)
    sink, missing = groups + links + 1, short.sum()
    count = groups + len(flow) + links
    src, dst = np.empty(count, np.int64), np.empty(count, np.int64)
    capacity, entry = np.empty(count, np.int64), np.empty(len(flow), np.int64)
    at = 0
    for g in range(groups):
        src[at], dst[at], capacity[at] = 0, 1 + g, short[g]
        at += 1
        for i in range(jobs.ptr[g], jobs.ptr[g + 1]):
            # Room for the missing amount is room enough.
            src[at], dst[at], capacity[at] = 1 + g, 1 + groups + jobs.link[i], missing
            entry[i] = at
            at += 1
    for j in range(links):
        src[at], dst[at], capacity[at] = 1 + groups + j, sink, room[j]
        at += 1
    ptr, head, mate, left, place = with_reverses(sink + 1, src, dst, capacity)
    # The flow of a link is the capacity of its reverse, since it may be taken back; it is read from
    # there afterwards.
    back = mate[place[entry]]
    left[back] = flow
    level, current = np.empty(sink + 2, np.int64), np.empty(sink + 2, np.int64)
    queue, path = np.empty(sink + 2, np.int64), np.empty(sink + 2, np.int64)
    got = dinic(ptr, head, mate, left, 0, sink, missing, level, current, queue, path)
    flow[:] = left[back]
    # The groups that the last search did not reach are, with their needs and their links, on the
    # far side of the cut. They are the J that has too few links.
    tight[:] = level[1 : 1 + groups] < 0
    return got


@kernel(cache=True)
def _tight_links(jobs, tight, links):
    """f(J), which are the links of the tight groups, as bool; and |J|."""
    used = np.zeros(links, np.bool_)
    count = 0
    for g in range(len(jobs.ptr) - 1):
        if tight[g]:
            count += jobs.first[g + 1] - jobs.first[g]
            for i in range(jobs.ptr[g], jobs.ptr[g + 1]):
                used[jobs.link[i]] = True
    return used, count


@kernel(cache=True)
def least_share(jobs, links, top, bottom, tight, used):
    """U of (3.1) as (top, bottom) in shards, at least the given value; and |J|, 0 if that suffices.

    This is Newton's method on the fraction |J| / |f(J)| (Dinkelbach's method): every J found needs
    more than the last. Afterwards ``tight`` and ``used`` are the last J and f(J).
    """
    flow = np.empty(len(jobs.link), np.int64)
    found = np.zeros(len(jobs.ptr) - 1, np.bool_)
    size = 0
    while not fill(jobs, bottom, np.full(links, top), flow, found):
        tight[: len(found)] = found
        used[:], size = _tight_links(jobs, found, links)
        width = used.sum()
        # The fraction is in lowest terms, so that amounts multiplied by it stay small.
        common = math.gcd(size, width)
        top, bottom = size // common, width // common
    return top, bottom, size


@kernel(cache=True)
def _enough(amount, used, delay, pace, above):
    """The least time after ``above`` in which some links take an amount (A.12 in integers)."""
    # Steps grow and then halve, because a delay may be long and there is no bound beforehand.
    low, high, is_bounded = above, above + 1, False  # low is too early; so may high be at first
    while not is_bounded or high - low > 1:
        time = low + (high - low) // 2 if is_bounded else high
        total = 0
        for j in range(len(used)):
            if used[j] and time > delay[j]:
                total += min((time - delay[j]) // pace[j], amount)
        if total >= amount:
            high, is_bounded = time, True
        elif is_bounded:
            low = time
        else:
            low, high = high, high + 2 * (high - above)
    return high


@kernel(cache=True)
def least_time(jobs, unit, delay, pace, flow):
    """The least integer time for all jobs of ``unit`` chunks; ``flow`` is filled with a solution.

    A link takes (time - delay) / pace chunks, rounded down. With delay 0 and pace 1 the time is the
    load of the busiest link of (A.11), which a maximum flow solves in integers.
    """
    links = len(delay)
    capacity = np.empty(links, np.int64)
    tight = np.zeros(len(jobs.ptr) - 1, np.bool_)
    amount = len(jobs.source) * unit
    time = _enough(amount, np.ones(links, np.bool_), delay, pace, 0)
    while True:
        for j in range(links):
            capacity[j] = min(max(time - delay[j], 0) // pace[j], amount)
        if fill(jobs, unit, capacity, flow, tight):
            return time
        used, count = _tight_links(jobs, tight, links)
        time = _enough(count * unit, used, delay, pace, time)


@kernel(cache=True)
def deal(jobs, unit, flow, via):
    """Assign chunks to links: ``via[source * unit + k]`` is the index of the link of a chunk."""
    for g in range(len(jobs.ptr) - 1):
        i = jobs.ptr[g]
        left = flow[i]
        for s in range(jobs.first[g], jobs.first[g + 1]):
            for k in range(unit):
                while left == 0:
                    i += 1
                    left = flow[i]
                via[jobs.source[s] * unit + k] = jobs.link[i]
                left -= 1


# ---------------------------------------------------------------------- as if chunks could be split

Speed = tuple[Fraction, Fraction]  # alpha in seconds, shards per second


def direct(topology: Topology) -> Topology:
    """The topology, which must have no switches."""
    if not topology.is_direct:
        raise TopologyError(f"bfb is for networks without switches; {topology} has some")
    return topology


def bfb_times(topology: Topology, nbytes: Number) -> tuple[Fraction, ...]:
    """Seconds of each step of a BFB all_gather whose shards may be split arbitrarily (A.12).

    The steps follow one another; a link that carries nothing costs no alpha. No schedule of ``Bfb``
    has a faster step. With P chunks per shard, no step is slower than this by more than the time of
    a chunk on the slowest link.

    Args:
        topology: a network without switches.
        nbytes: bytes of a rank's buffer.

    Raises:
        TopologyError: the network has switches.
        CollectiveError: nbytes is not above 0.
    """
    direct(checks.instance(topology, Topology, "topology", TopologyError))
    size = checks.nbytes(nbytes, CollectiveError)
    shard = checks.rational(size, "nbytes", CollectiveError) / topology.num_ranks
    hops = hop_distances(topology)
    ptr, order = topology.in_links
    steps = [Fraction(0)] * int(hops.max())
    for u in range(topology.num_ranks):
        into = order[ptr[u] : ptr[u + 1]]
        speeds = [
            (topology.exact_alpha[link], topology.exact_bandwidth[link] / shard) for link in into
        ]
        for t in range(1, int(hops[:, u].max()) + 1):
            jobs: dict[tuple[int, ...], int] = defaultdict(int)
            for v in np.flatnonzero(hops[:, u] == t):
                usable = np.flatnonzero(hops[v, topology.src[into]] == t - 1)
                jobs[tuple(usable.tolist())] += 1
            steps[t - 1] = max(steps[t - 1], _least_seconds(jobs, speeds))
    return tuple(steps)


def _least_seconds(jobs: Mapping[tuple[int, ...], int], speeds: Sequence[Speed]) -> Fraction:
    """The least time in which links take all jobs, by Newton's method on cuts.

    Args:
        jobs: the number of shards for each set of links that may deliver them.
        speeds: the speed of each link.
    """
    groups, links = len(jobs), len(speeds)
    sink = groups + links + 1
    arcs = [(0, 1 + g) for g in range(groups)]
    arcs += [(1 + g, 1 + groups + link) for g, usable in enumerate(jobs) for link in usable]
    arcs += [(1 + groups + link, sink) for link in range(links)]
    network = FlowNetwork(sink + 1, *np.asarray(arcs).T)
    count = list(jobs.values())
    # The bound to start from is that of all jobs over all links. Every cut found later raises it to
    # the need of one set of jobs, so the loop ends at the least time, after few of all sets.
    time = _seconds_for(sum(count), speeds)
    while True:
        room = [max(time - alpha, Fraction(0)) * rate for alpha, rate in speeds]
        # Fractions are scaled to integers, so that the flow is exact.
        unit = common_denominator(room)
        need = sum(count) * unit
        capacity = [size * unit for size in count] + [need] * sum(map(len, jobs))
        capacity += [int(amount * unit) for amount in room]
        short = network.first_short(capacity, 0, [sink], need)
        if short is None:
            return time
        tight = [g for g in range(groups) if short.source_side[1 + g]]
        used = set().union(*(usable for g, usable in enumerate(jobs) if g in tight))
        time = _seconds_for(sum(count[g] for g in tight), [speeds[link] for link in used])


def _seconds_for(amount: int, speeds: Sequence[Speed]) -> Fraction:
    """The time in which links together carry an amount; links with the least alpha start first."""
    rate = started = Fraction(0)
    best = None
    for alpha, speed in sorted(speeds):
        # A link that starts only after the end would count as carrying a negative amount.
        if best is not None and alpha >= best:
            break
        rate, started = rate + speed, started + speed * alpha
        best = (amount + started) / rate
    if best is None:
        raise TopologyError("there is no link by which a shard can arrive")
    return best
