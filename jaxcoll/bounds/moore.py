"""Costs of schedules on direct-connect networks, and the least costs for a size and degree.

In the model of the dissertation (Secs. 3.3.2 and A.3) every rank has d ports of equal bandwidth, B
is their sum, and M is the bytes of a rank's buffer. Steps follow one another; each costs alpha and
the bytes of its busiest link. So a schedule costs ``steps`` alpha + ``inverse_bandwidth`` M/B, and
no simulation of it takes longer, since links that finish early continue with the next step.

For example, on a ring of 4 ranks with links both ways, d = 2, each rank gets its neighbours' shards
whole in the first step and half of the last one by either link in the second: 2 alpha, and 3/2
shards of M/4 over a link of B/2, which is 3/4 M/B. Both are the least (Theorems 3 and 4).
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from jaxcoll.collective import common_parts
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.kinds import KINDS
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import hop_distances
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

# Number of phases of each collective with bounds: an all_reduce first scatters, then gathers.
_PHASES = {kind.name: len(kind.phases) for kind in KINDS.values() if kind.is_sharded}


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a schedule, with separate latency and bandwidth.

    Attributes:
        steps: T_L in units of alpha.
        inverse_bandwidth: T_B in units of M/B, exact.
    """

    steps: int
    inverse_bandwidth: Fraction

    def time(self, alpha: Number, nbytes: Number, bandwidth: Number) -> Fraction:
        """Seconds: steps x alpha + inverse_bandwidth x M/B.

        Args:
            alpha: seconds per step.
            nbytes: M, bytes of a rank's buffer.
            bandwidth: B, bytes per second that all ports of a rank carry together.

        Raises:
            TopologyError: alpha is negative, or bytes or bandwidth are not above 0.
        """
        step = checks.rational(checks.nonnegative(alpha, "alpha", TopologyError), "", TopologyError)
        size, speed = (
            checks.rational(checks.positive(value, what, TopologyError), what, TopologyError)
            for value, what in ((nbytes, "nbytes"), (bandwidth, "bandwidth"))
        )
        return self.steps * step + self.inverse_bandwidth * size / speed


# ---------------------------------------------------------------------- of a size and degree


def moore_bound(degree: int, diameter: int) -> int:
    """The most vertices of a digraph with a degree and diameter (Def. 9)."""
    degree, diameter = _at_least(degree, "degree", 1), _at_least(diameter, "diameter", 0)
    # 1 + d + d^2 + ... + d^k, if no vertex is reached twice.
    return diameter + 1 if degree == 1 else (degree ** (diameter + 1) - 1) // (degree - 1)


def moore_steps(n: int, degree: int) -> int:
    """T_L* in units of alpha: the least k with at most k hops between n ranks (Def. 10)."""
    degree = _at_least(degree, "degree", 1)
    return _least_depth(n, degree, degree)


def bidirectional_moore_steps(n: int, degree: int) -> int:
    """T_L** in units of alpha: as ``moore_steps``, if every link has one back (Table A.2).

    A rank's neighbours need one of their links for the way back to it.

    Raises:
        TopologyError: the degree is 1 with more than two ranks, which such links cannot connect.
    """
    n, degree = _at_least(n, "n", 1), _at_least(degree, "degree", 1)
    if degree == 1 and n > 2:
        raise TopologyError(f"links both ways of degree 1 connect 2 ranks at most, not {n}")
    return _least_depth(n, degree, degree - 1)


def bandwidth_optimum(n: int) -> Fraction:
    """T_B* in units of M/B: a rank receives n - 1 shards through all its ports (Thm. 4)."""
    n = _at_least(n, "n", 1)
    return Fraction(n - 1, n)


def least_cost(n: int, degree: int, kind: str = "all_gather") -> Cost:
    """T_L* and T_B* of a collective of n ranks of a degree; twice those for all_reduce (A.3.3).

    Raises:
        CollectiveError: the kind is not all_gather, reduce_scatter or all_reduce.
    """
    phases = _phases(kind)
    return Cost(phases * moore_steps(n, degree), phases * bandwidth_optimum(n))


def bandwidth_with_reduction(bandwidth: Number, gamma: Number) -> Fraction:
    """B' with which M/B' counts transmission and reduction of an all_reduce (Thm. 6, Cor. 6.1).

    An all_reduce that costs 2y M/B takes at most gamma y M for sums, and exactly that if it is
    bandwidth-optimal: together 2y M/B' with 1/B' = 1/B + gamma/2.

    Args:
        bandwidth: B, bytes per second.
        gamma: seconds to add one byte to a sum.
    """
    speed = checks.positive(bandwidth, "bandwidth", TopologyError)
    seconds = checks.nonnegative(gamma, "gamma", TopologyError)
    inverse = 1 / checks.rational(speed, "bandwidth", TopologyError)
    return 1 / (inverse + checks.rational(seconds, "gamma", TopologyError) / 2)


def _least_depth(n: int, degree: int, branching: int) -> int:
    n = _at_least(n, "n", 1)
    # After k hops at most 1 + d + d b + ... + d b^(k-1) ranks are reached, where b is the number of
    # links of each that do not lead back.
    depth, reached, frontier = 0, 1, degree
    while reached < n:
        depth, reached, frontier = depth + 1, reached + frontier, frontier * branching
        if branching == 1:  # a ring, which would be walked rank by rank
            return depth + -(-(n - min(reached, n)) // degree)
    return depth


# ---------------------------------------------------------------------- of a schedule


def cost(schedule: Schedule, degree: int | None = None) -> Cost:
    """T_L and T_B of a schedule: its steps, and the bytes of the busiest link of each (3.2).

    Args:
        schedule: a schedule on a network without switches whose links all have one bandwidth.
        degree: number of ports of every rank, needed if some are unused or join a rank to itself;
            when omitted, the number of links out of every rank, and into it.

    Raises:
        ScheduleError: sends relay over several links in one step.
        TopologyError: there are switches or several bandwidths, ranks have different degrees while
            ``degree`` is omitted, or ``degree`` is less than the links of some rank.
    """
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    ports = ports_of(schedule.topology, degree)
    if (schedule.edges.hops > 1).any():
        edge = int(schedule.edges.hops.argmax())
        raise ScheduleError(
            f"a step is one link long, but edge {edge} ({schedule.edges.src[edge]}->"
            f"{schedule.edges.dst[edge]}) has {schedule.edges.hops[edge]} links; simulate instead"
        )
    _, _, busiest, whole = _loads(schedule)
    # A step takes as long as its busiest link, which has one port's part of the rank's bandwidth B.
    return Cost(schedule.num_steps, Fraction(sum(busiest) * ports, whole))


def reduction_cost(schedule: Schedule) -> Fraction:
    """T_C in units of M gamma: bytes that the busiest rank of each step adds (Thm. 6)."""
    checks.instance(schedule, Schedule, "schedule", ScheduleError)
    weight, whole = common_parts(schedule.collective)
    n, adds = schedule.topology.num_ranks, schedule.reduce
    # Ranks add at the same time, so a step takes as long as the rank that adds most in it.
    key = schedule.step[adds].astype(np.int64) * n + schedule.dst[adds]
    received, which = np.unique(key, return_inverse=True)
    total = np.zeros(len(received), np.int64)
    np.add.at(total, which, weight[schedule.chunk[adds]])
    most = np.zeros(schedule.num_steps, np.int64)
    np.maximum.at(most, received // n, total)
    return Fraction(int(most.sum()), whole)


@dataclasses.dataclass(frozen=True)
class Optimality:
    """How close a schedule comes to the bounds of its size, degree and network.

    Attributes:
        cost: T_L and T_B.
        moore: whether it has as few steps as any network of the size and degree can need (Def. 10).
        least_steps: whether it has as few steps as its own network allows (Thm. 3).
        bandwidth: whether T_B is (n-1)/n, twice that for an all_reduce (Cor. 4.1).
        loss: the place where bandwidth is lost: a link that is less busy than another in the same
            step, or a chunk that a rank gets twice (Thm. 5); empty if ``bandwidth``.
    """

    cost: Cost
    moore: bool
    least_steps: bool
    bandwidth: bool
    loss: str


def optimality(schedule: Schedule, degree: int | None = None) -> Optimality:
    """Which bounds a schedule meets, and where it loses bandwidth.

    Args:
        schedule: an all_gather, reduce_scatter or all_reduce of all ranks.
        degree: as in ``cost``.

    Raises:
        CollectiveError: the kind is another one, or there are several groups.
        TopologyError: as for ``cost``.
    """
    found = cost(schedule, degree)
    topology, collective = schedule.topology, schedule.collective
    phases = _phases(collective.kind)
    if [len(group) for group in collective.groups] != [topology.num_ranks]:
        raise CollectiveError(f"bounds are for one group of all ranks, not {collective}")
    ports = ports_of(topology, degree)
    least = least_cost(topology.num_ranks, ports, collective.kind)
    meets = found.inverse_bandwidth == least.inverse_bandwidth
    return Optimality(
        found,
        found.steps <= least.steps,
        found.steps <= phases * int(hop_distances(topology).max()),
        meets,
        "" if meets else _idle_link(schedule, ports) or _sent_twice(schedule),
    )


def ports_of(topology: Topology, degree: int | None = None) -> int:
    """The number of ports of every rank of a network without switches: by default its links.

    Args:
        degree: number of ports, of which some may be unused or lead back to the rank itself.

    Raises:
        TopologyError: see ``cost``.
    """
    checks.instance(topology, Topology, "topology", TopologyError)
    if not topology.is_direct:
        raise TopologyError(
            f"T_L and T_B are defined for networks without switches, not for {topology}"
        )
    if len(set(topology.exact_bandwidth)) > 1:
        low, high = min(topology.exact_bandwidth), max(topology.exact_bandwidth)
        raise TopologyError(
            f"T_B is in M/B, with one bandwidth for all links; {topology} has {float(low):g} to "
            f"{float(high):g} B/s: simulate the schedule instead"
        )
    # T_B counts both the ports out of a rank and those into it as B, so all numbers must be equal.
    degrees = np.concatenate(
        [np.bincount(ends, minlength=topology.num_ranks) for ends in (topology.src, topology.dst)]
    )
    most = int(degrees.max())
    if degree is None:
        if degrees.min() < most:
            raise TopologyError(
                f"{topology} has ranks with {degrees.min()} and with {most} links one way; give "
                f"the ports of every rank as degree, at least {most}"
            )
        return most
    return checks.integer(degree, "degree", TopologyError, least=max(most, 1))


def _loads(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, list[int], int]:
    """The loads of links, in integer shares of a rank's buffer.

    Returns:
        For the links with a load, step x links + link, ascending; the load of each; the largest
        load of a link, by step; and the size of the buffer.
    """
    weight, whole = common_parts(schedule.collective)
    starts = schedule.message_ptr[:-1]
    edges, edge = schedule.edges, schedule.edge[starts]
    load = np.add.reduceat(weight[schedule.chunk], starts) if len(starts) else starts
    step, links = schedule.step[starts].astype(np.int64), schedule.topology.num_links
    key = step * links + edges.first_link[edge]
    order = np.argsort(key)
    busiest = np.zeros(schedule.num_steps, np.int64)
    np.maximum.at(busiest, step, load)
    return key[order], load[order], busiest.tolist(), whole


def _idle_link(schedule: Schedule, ports: int) -> str:
    """The first link that carries less than another in its step, in words; empty if none does."""
    topology, (key, load, busiest, _) = schedule.topology, _loads(schedule)
    links = topology.num_links
    for step, most in enumerate(busiest):
        first, last = np.searchsorted(key, (step * links, (step + 1) * links))
        # Links that carry nothing in a step have no row, and are the least busy.
        here = np.zeros(links, np.int64)
        here[key[first:last] - step * links] = load[first:last]
        if here.min() < most:
            idle, busy = int(here.argmin()), int(here.argmax())
            share = Fraction(int(here[idle]), most)
            return (
                f"step {step}: link {topology.link_name(idle)} carries {share} of what link "
                f"{topology.link_name(busy)} does"
            )
    unused = ports * topology.num_ranks - links
    return f"{unused} of {ports * topology.num_ranks} ports carry nothing" if unused else ""


def _sent_twice(schedule: Schedule) -> str:
    """A chunk that a rank receives, or gives away, more often than it needs to, in words."""
    chunks = schedule.collective.num_chunks
    for reducing, verb, ranks in ((False, "receives", schedule.dst), (True, "gives", schedule.src)):
        # Copies count by their receivers, sums by their senders: run backwards, either becomes the
        # other.
        of_kind = schedule.reduce == reducing
        rank, chunk = ranks[of_kind].astype(np.int64), schedule.chunk[of_kind]
        own = schedule.collective.owner[chunk] == rank
        pair, count = np.unique(rank * chunks + chunk, return_counts=True)
        for found, text in (
            (pair[count > 1], "more than once"),
            ((rank * chunks + chunk)[own], "though the shard is its own"),
        ):
            if len(found):
                return f"rank {found[0] // chunks} {verb} chunk {found[0] % chunks} {text}"
    return ""


def _phases(kind: str) -> int:
    return _PHASES[checks.choice(kind, _PHASES, "the collective of a bound", CollectiveError)]


def _at_least(value: int, what: str, least: int) -> int:
    return checks.integer(value, what, TopologyError, least=least, most=2**22)
