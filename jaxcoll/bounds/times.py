"""Least times of collectives: the best of all bounds, and the rank or pair of ranks behind it.

Every bound holds for both link models and for any number of chunks. ``Topology.in_network`` tells
the abilities of switches: most only forward, and those that copy or add count as such.
Then schedules, in which only ranks copy and add, may not attain a bound that in-network collectives
attain; the bound of ``topology.forwarding_only()`` is the one for schedules. Some bounds take
seconds, namely maximum flows over time and the linear programs; they are computed on demand
(``exact``).

Switches do not change that a byte, or a sum that contains it, crosses a set of vertices at least
once on its way to a rank. So *ingress*, *egress*, *cut*, *flow*, and the *traffic* of data that
differ for each rank, hold with any switches. The *distance* of an all_reduce, its *meeting* and
*traffic*, and the *traffic* of copies count meeting places, sums and copies where they are made, at
ranks or at switches that copy or add. The *program* of an all_reduce (App. B.7) knows only switches
that forward, and is left out if there are others.

A schedule gives contributions to a sum away and copies the sum (``jaxcoll.verifier``). Recursive
doubling, which copies partial sums, is not a schedule in this sense: it takes less latency for more
bytes. Run backwards, a schedule that sums without copying sums is one that copies, on the network
with every link reversed (``Schedule.reverse``); bits then leave a link when they entered it before.
So reduce_scatter and reduce are bounded as their duals.

A schedule that brings sums to some ranks contains a reduce to each of them: leave out the copies
for the others, and let the sum go where it was copied. So the reduce of each of these ranks bounds
it; and all of them bound it together, by the places where the sums meet.

All this is for links that work independently. Bounds for a machine (``execution``) are for its
order, with more terms if ranks wait (``jaxcoll.bounds.in_order``), and with its least charge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxcoll.bounds import all_reduce_times as sums
from jaxcoll.bounds import in_order
from jaxcoll.bounds.all_reduce import all_reduce_bound
from jaxcoll.bounds.all_reduce_times import Arrival, Latencies, across, entering, leaving
from jaxcoll.bounds.charges import least_charge
from jaxcoll.bounds.cuts import (
    as_collective,
    as_size,
    crossing,
    narrow_sets,
    needs_of,
    parts,
    passed_on,
    spreading,
)
from jaxcoll.bounds.distances import transport_bound
from jaxcoll.bounds.needs import Listed, Needs, OfGroups
from jaxcoll.bounds.partitions import narrowest_partition
from jaxcoll.bounds.symmetries import LARGE, Symmetries
from jaxcoll.bounds.throughput import bottleneck
from jaxcoll.collective import Collective
from jaxcoll.copies import Copies
from jaxcoll.errors import CollectiveError
from jaxcoll.members import Members
from jaxcoll.numerics import checks
from jaxcoll.numerics.max_flow import FlowNetwork
from jaxcoll.numerics.rational import Number
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.simulation.execution_order import LINKS, ExecutionOrder
from jaxcoll.topology import Topology

# The number of ticks in the known time for flows over time, and the most arcs of such a network.
_TICKS, _MOST_ARCS = 48, 2**18
# The integer that stands for all data of a rank.
_UNITS = 2**40
# The most flows (sources times links) of the program of all data, and of an all_reduce's: some
# seconds each.
MOST_FLOWS, _SUM_FLOWS = 2**15, 3 * 2**10
# The most ranks times links for which the narrowest partition is cheap: a torus of 256 ranks takes
# 0.06 CPU s, one of 1,024 a second.
_PARTED = 2**18


def arrival_over_time(latencies: Latencies, nbytes: np.ndarray, known: float) -> Arrival:
    """The least time in which every rank alone can get its data, by flows over time.

    It is a maximum flow in the network whose vertices are those of ``topology`` at every tick (Ford
    and Fulkerson, 1958), with data that may wait at a vertex from tick to tick. Latencies are
    rounded down to ticks, so no schedule is faster. Its least cut is the best choice of moments of
    ``jaxcoll.bounds.all_reduce_times``, to within a tick. Data that every rank needs can be coded
    so that it reaches all ranks as fast as each alone (Ahlswede et al., "Network information flow",
    2000), so for one source flows cannot prove a better bound.

    Args:
        nbytes: bytes that rank v needs of rank u at [u, v], all different; float64.
        known: seconds above 0 that no schedule beats.

    Returns:
        The largest time of a rank; 0 seconds if none is above ``known``, or if the flows are too
        large.
    """
    topology = latencies.topology
    # The tick divides the known time, and also the least latency if that is not much shorter, so
    # that rounding latencies down to ticks loses little.
    some, tick = topology.alpha[topology.alpha > 0], known / _TICKS
    if some.size and some.min() > tick:
        tick = float(some.min() / np.ceil(some.min() / tick))
    best = Arrival(known)
    if (topology.num_links + topology.num_vertices) * known / tick > _MOST_ARCS:
        return Arrival()
    for v in range(topology.num_ranks):
        if nbytes[:, v].any():
            seconds = _arrival(topology, nbytes[:, v], v, tick, best.seconds)
            if seconds > best.seconds:
                best = Arrival(seconds, v)
    return best if best.seconds > known else Arrival()


def _arrival(
    topology: Topology, nbytes: np.ndarray, target: int, tick: float, known: float
) -> float:
    """Seconds until a rank has its data, to within a tick; ``known`` if that is not above it."""
    need = nbytes.sum()
    least = int(known / tick)
    if _gathered(topology, nbytes, target, tick, least) >= need:
        return known
    most = 2 * least + 1
    while _gathered(topology, nbytes, target, tick, most) < need:
        least, most = most, 2 * most
    while most - least > 1:
        middle = (least + most) // 2
        enough = _gathered(topology, nbytes, target, tick, middle) >= need
        least, most = (least, middle) if enough else (middle, most)
    missing = need - _gathered(topology, nbytes, target, tick, least)
    return least * tick + float(missing / topology.in_bandwidth()[target])


def _gathered(
    topology: Topology, nbytes: np.ndarray, target: int, tick: float, ticks: int
) -> float:
    """Bytes that can have reached a rank after some ticks, rounded in favour of schedules.

    Data that enters a link in a tick leaves it after the ticks of its latency, and may enter the
    next link in that very tick.
    """
    count, total = topology.num_vertices, float(nbytes.sum())
    if not ticks:
        return 0.0
    # The network over time: a copy of every vertex per tick, an arc per link and tick to the copy
    # its latency later, and an arc to the next copy for data that waits. The flow to the target's
    # last copy is the data that can have arrived.
    now = np.arange(ticks)[:, None]
    later = now + np.floor(topology.alpha / tick * (1 + 1e-12)).astype(np.int64)
    moment, link = np.nonzero(later < ticks)
    vertex = np.arange(count)
    whole = np.ceil(np.minimum(topology.bandwidth * tick / total, 1.0) * _UNITS).astype(np.int64)
    sources = np.flatnonzero(nbytes)
    everything = count * ticks
    src = [np.full(len(sources), everything), (now[:-1] * count + vertex).ravel()]
    dst = [sources, (now[1:] * count + vertex).ravel()]
    src.append(moment * count + topology.src[link])
    dst.append(later[moment, link] * count + topology.dst[link])
    supply = np.floor(nbytes[sources] / total * _UNITS).astype(np.int64)
    waiting = np.full((ticks - 1) * count, _UNITS)
    # Everything is rounded in favour of the schedule: latencies down, link capacities up, supplies
    # down. So the flow is never too small, and the time never above the truth.
    network = FlowNetwork(everything + 1, np.concatenate(src), np.concatenate(dst))
    capacity = np.concatenate([supply, waiting, whole[link]])
    need = int(supply.sum())
    flow = network.flow(capacity, everything, (ticks - 1) * count + target, need)
    return total * (1.0 if flow >= need else flow / need)


def all_reduce_seconds(topology: Topology, nbytes: float) -> float:
    """Seconds of an all_reduce of all ranks by its linear program.

    It is 0 if the program is too large, or if switches copy or add: the program treats switches as
    capacities between ranks, and more is possible then.
    """
    n = topology.num_ranks
    pairs = topology.num_links if topology.is_direct else n * (n - 1)
    if n < 2 or n * pairs > _SUM_FLOWS or topology.in_network:
        return 0.0
    return float(all_reduce_bound(topology).seconds) * nbytes


@dataclasses.dataclass(frozen=True, repr=False)
class Bound:
    """A time that no schedule can beat.

    Attributes:
        time: seconds, including the charge.
        name: "distance", "ingress", "egress", "cut", "traffic" or "meeting"; for exact bounds also
            "flow" and "program"; for orders in which ranks wait also "steps", "ports", "pairs" and
            "rounds".
        reason: the ranks that it comes from, in words.
        order: the order in which the schedules are run.
        charge: seconds that the machine takes for any schedule, in addition to the links.
    """

    time: float
    name: str
    reason: str
    order: ExecutionOrder = LINKS
    charge: float = 0.0

    def __repr__(self) -> str:
        reason = self.reason if len(self.reason) <= 80 else f"{self.reason[:77]}..."
        order = f" in order {self.order.name!r}" if self.order.waits else ""
        return f"Bound({self.time * 1e6:.6g} us{order} by {self.name}: {reason})"


def bound(
    topology: Topology,
    collective: str | Collective,
    nbytes: Number,
    *,
    groups: Sequence[Sequence[int]] | None = None,
    root: int | Sequence[int] | None = None,
    helpers: bool = True,
    exact: bool = False,
    execution: ExecutionCosts | str | None = None,
    progress: Wanted = None,
) -> Bound:
    """A time that no schedule can beat, with the reason: the largest of ``lower_bounds``.

    It holds for the network as described, with switches that copy and add: NCCL's NVLS does not
    beat the bound of ``dgx_h100``. Schedules use switches to forward only, and their bound is that
    of ``topology.forwarding_only()``.

    Args:
        collective: a kind, to be run with ``groups``, ``root`` and ``helpers`` as in
            ``synthesize``; or a ``Collective``, which has its own.
        nbytes: bytes of a rank's buffer, above 0.
        groups: disjoint groups of ranks that run at the same time; all ranks when omitted.
        root: the root's index in every group, for collectives that have one.
        helpers: whether ranks outside a group may forward, copy and add for it.
        exact: whether to compute the best known bound, which may take a minute: the worst cut of
            all, maximum flows over time and the linear programs of all_to_all and all_reduce, as
            far as they are not too large (``jaxcoll.bounds.times``).
        execution: the machine that runs the schedules, as in ``simulate``: ``ExecutionCosts``, or
            the backend whose shipped costs apply. No verified schedule takes less time there. When
            omitted, links work independently and there is no charge. If ranks wait for one another,
            the bound is one for schedules: switches only forward.
        progress: True for a line in the terminal while exact bounds are computed, or a function
            called with a ``jaxcoll.progress.Progress`` before and after.

    Raises:
        CollectiveError: a collective that is ill-formed, or given with groups, a root or helpers
            beside its own; nbytes that are not above 0.
        TopologyError: no network.
    """
    checks.flag(exact, "exact", CollectiveError)
    costs = costs_of(execution, CollectiveError)
    collective = as_collective(topology, collective, groups, root, helpers)
    with reporting(progress, "finding exact bounds", CollectiveError) as report:
        terms = lower_bounds(topology, collective, nbytes, execution=costs)
        found = max(terms, key=lambda b: b.time)
        if not exact or found.time == 0.0:
            return found
        if report is not None:
            report(Progress(0, None, "exact bounds", bound=found.time))
        others = _exact_on_machine(topology, collective, nbytes, costs, found)
        found = max([found, *others], key=lambda b: b.time)
        if report is not None:
            report(Progress(len(others), len(others), "exact bounds", bound=found.time))
        return found


def _exact_on_machine(
    topology: Topology,
    what: Collective,
    nbytes: Number,
    costs: ExecutionCosts | None,
    known: Bound,
) -> list[Bound]:
    """The exact bounds, as far as they may be above one that is known."""
    topology = _network(topology, costs)
    before = _before_links(topology, what, float(as_size(nbytes)), costs)
    if costs is not None and costs.order.waits:
        topology = in_order.without_latencies(topology)
    topology, what, _ = _of_one_group(topology, what)
    latencies = Latencies(topology)
    return [
        _on_machine(each, costs, before, known.charge)
        for one in what.for_each_root()
        for each in _exact(latencies, one, nbytes, max(0.0, known.time - before))
        if each.time
    ]


def _network(topology: Topology, costs: ExecutionCosts | None) -> Topology:
    """The network in the way that schedules of a machine use it; unchanged without a machine."""
    return topology.forwarding_only() if costs is not None and costs.order.waits else topology


def _before_links(
    topology: Topology, what: Collective, size: float, costs: ExecutionCosts | None
) -> float:
    """Seconds in addition to the bounds of links: the charge, and the least latency."""
    if costs is None or not needs_of(what).any():
        return 0.0
    charge = least_charge(costs, what, size)
    return charge + (in_order.least_latency(Latencies(topology)) if costs.order.waits else 0.0)


def _exact(latencies: Latencies, what: Collective, nbytes: Number, known: float) -> list[Bound]:
    """The exact bounds that exceed a known bound."""
    topology, size = latencies.topology, float(as_size(nbytes))
    if what.traits.sums_for_all:
        seconds = all_reduce_seconds(topology, size) if _is_of_all(what) else 0.0
        found = [Bound(seconds, "program", "the linear program of ForestColl's App. B.7")]
        if topology.num_ranks * topology.num_links > _PARTED:
            part = narrowest_partition(topology).part
            found += _between_parts(latencies, what, size, part, known)
    elif what.is_reducing:
        found = _exact_of_copies(latencies.transpose(), what.dual(), size, known)
    else:
        found = _exact_of_copies(latencies, what, size, known)
    if not what.traits.moves and _is_of_all(what):
        found.append(cut_bound(topology, what, nbytes))
    return found


def _is_of_all(what: Collective) -> bool:
    return len(what.groups) == 1 and len(what.groups[0]) == what.num_ranks


def _exact_of_copies(
    latencies: Latencies, what: Collective, size: float, known: float
) -> list[Bound]:
    """Bounds by flows over time to every rank, and by all data together if it differs by rank."""
    topology, nbytes = latencies.topology, needs_of(what) * size
    arrived = arrival_over_time(latencies, nbytes, known)
    found = [Bound(arrived.seconds, "flow", f"a flow over time of the data of rank {arrived.rank}")]
    if what.traits.copies:
        return found
    back = arrival_over_time(latencies.transpose(), nbytes.T, known)
    found.append(Bound(back.seconds, "flow", f"a flow over time of the data for rank {back.rank}"))
    rest = topology.alpha + latencies.to_a_rank[topology.dst]
    moved = transport_bound(topology, Listed(nbytes), np.minimum(rest, known), MOST_FLOWS)
    return [*found, Bound(moved.time, "traffic", f"bytes times distance, in {moved.lengths}")]


def lower_bounds(
    topology: Topology,
    collective: str | Collective,
    nbytes: Number,
    *,
    execution: ExecutionCosts | str | None = None,
) -> tuple[Bound, ...]:
    """All fast bounds, the largest of each name, starting with the distance.

    - *distance*: latency between ranks that need something of one another.
    - *ingress* and *egress*: the data that a rank needs, or has for others, over all its links;
      each link counts from the earliest arrival until it is too late.
    - *cut*: the data that has to leave a set of vertices, for one rank outside or for all of them.
    - *traffic*: all data that has to cross links anywhere, over all links together.
    - *meeting*: the contributions of an all_reduce, which leave their ranks before the sum is
      complete somewhere and copied to all.

    For a machine whose ranks wait (``execution``, as in ``bound``; ``jaxcoll.bounds.in_order``)
    there are also:

    - *steps*: the data of a rank over all its links, with a latency for each step that it takes.
    - *ports*: a rank sends one message at a time, and receives one, where permutes follow one
      another.
    - *pairs*: two ranks send to each other one way at a time, where pairs are half duplex.
    - *rounds*: consecutive latencies, since the known contributions at most double in each.
    """
    costs = costs_of(execution, CollectiveError)
    what, size = as_collective(topology, collective), float(as_size(nbytes))
    if costs is None:
        return _of_links(topology, what, size)
    charge = least_charge(costs, what, size)
    if not costs.order.waits:
        found = _of_links(topology, what, size)
        return tuple(_on_machine(each, costs, charge, charge) for each in found)
    topology = topology.forwarding_only()
    latencies = Latencies(topology)
    far = max(_distances(latencies, what), key=lambda b: b.time)
    found = [_on_machine(far, costs, charge, charge)]
    if needs_of(what).any():
        before = charge + in_order.least_latency(latencies)
        moved = _of_links(in_order.without_latencies(topology), what, size)
        found += [_on_machine(each, costs, before, charge) for each in moved if each.time]
        own = in_order.terms(latencies, what, size, costs)
        found += [_on_machine(Bound(*term), costs, charge, charge) for term in own]
    return tuple(_largest_of_each(found))


def _on_machine(each: Bound, costs: ExecutionCosts | None, before: float, charge: float) -> Bound:
    """A bound of links turned into one of a machine, with ``before`` more seconds."""
    if costs is None:
        return each
    time = each.time + before
    return dataclasses.replace(each, time=time, order=costs.order, charge=charge)


def _distances(latencies: Latencies, what: Collective) -> list[Bound]:
    """Bounds by latencies, which hold for any number of bytes."""
    if what.traits.copies_sums:
        time, reason = sums.meeting(latencies, what)
        return [Bound(time, "distance", reason)]
    return [_farthest(latencies, _needs(latencies, what, 1.0))]


def _of_links(topology: Topology, what: Collective, size: float) -> tuple[Bound, ...]:
    """Bounds for links that work independently."""
    topology, what, is_one = _of_one_group(topology, what)
    latencies, found = _latencies(topology, what), _of_each_alone(topology, what, size)
    if what.traits.copies_sums:
        found += _distances(latencies, what)
    for each in what.for_each_root():
        is_backwards = each.traits.copies_backwards
        # A reduce_scatter is an all_gather backwards in time on the reversed network, so it has the
        # same bounds, with ingress and egress exchanged.
        if each.traits.sums_for_all:
            found += _bounds_of_sums(latencies, each, size, found[0].time)
        elif is_backwards:
            found += _bounds_of_copies(latencies.transpose(), each.dual(), size, is_backwards)
        else:
            found += _bounds_of_copies(latencies, each, size, is_backwards)
    best = _largest_of_each(found)
    if not is_one:
        return tuple(best)
    return tuple(
        dataclasses.replace(b, reason=f"{b.reason}, as numbered in its group") for b in best
    )


def _latencies(topology: Topology, what: Collective) -> Latencies:
    """The latencies for bounds of links; on large networks by equivalent vertices."""
    if topology.num_ranks * topology.num_vertices < LARGE:
        return Latencies(topology)
    # Symmetries of the network are symmetries of the collective if all ranks do the same.
    does_the_same = _is_of_all(what) and what.pair_shares is None
    if does_the_same and not what.traits.has_root and not what.traits.has_roots:
        return Latencies(topology, Symmetries.of(topology))
    return Latencies(topology, Symmetries.none(topology))


def _needs(latencies: Latencies, what: Collective, size: float) -> Needs:
    """The bytes from rank to rank, listed if all latencies are computed or the bytes differ."""
    if latencies.symmetries is None or what.pair_shares is not None:
        return Listed(needs_of(what) * size)
    return OfGroups.of(what, size)


def _of_one_group(topology: Topology, what: Collective) -> tuple[Topology, Collective, bool]:
    """A collective of groups on copies of a network as that of one group, and whether it is one.

    A group without helpers on the network of its members is also of this form. Bounds here hold for
    data that are split and coded arbitrarily, so those of one group hold for all
    (``jaxcoll.copies``); bounds on the whole network would give each group the links of the others.
    """
    copies = Copies.of(topology, what.groups)
    if copies is not None:
        return copies.one, copies.part(what), True
    group, *others = what.groups
    if what.helpers or others or len(group) == 1:
        return topology, what, False
    members = Members.of(topology, group, helpers=False)
    return members.one, members.part(what), True


def _of_each_alone(topology: Topology, what: Collective, size: float) -> list[Bound]:
    """Bounds of each group on the links between its members, if there are no helpers."""
    groups = [group for group in what.groups if len(group) > 1]
    if what.helpers or len(what.groups) == 1:
        return []
    found = []
    for group in groups:
        one = dataclasses.replace(what, groups=(group,))
        found += _of_links(topology, one, size)
    return found


def _bounds_of_copies(
    latencies: Latencies, what: Collective, size: float, is_backwards: bool
) -> list[Bound]:
    """Bounds of a collective that sums nothing, or of one that does, run backwards."""
    topology, needs = latencies.topology, _needs(latencies, what, size)
    farthest = _farthest(latencies, needs)
    sources, targets = needs.sources, needs.targets
    if not sources.size:
        return [farthest]
    into, out_of = ("egress", "ingress") if is_backwards else ("ingress", "egress")
    # Copied data leaves a set once for all ranks outside together, and is copied there. Data that
    # differ for each rank leave once for each, so both directions and the sum over all links bound
    # them too.
    is_copied = what.traits.copies
    back = latencies.transpose()
    to, of = latencies.typical(targets), latencies.typical(sources)
    found = [_of_a_rank(entering(latencies, needs.block(sources, to), sources, to), into)]
    if is_copied:
        found.append(_of_a_rank(leaving(latencies, needs.block(of, targets), of, targets), out_of))
    else:
        data = needs.block(of, targets).T
        found.append(_of_a_rank(entering(back, data, targets, of), out_of))
    sets = narrow_sets(topology, what)
    found += [_of_a_set(across(latencies, s, needs), s, topology, is_backwards) for s in sets]
    if not is_copied:
        sets += narrow_sets(back.topology, what.dual())
        mirrored = needs.reversed()
        found += [_of_a_set(across(back, s, mirrored), s, topology, True) for s in sets]
    if sets:
        time, place = crossing(latencies, sets, needs, is_copied)
        found.append(_of_a_set(Arrival(time), sets[place], topology, is_backwards))
    if is_copied:
        time, name = spreading(latencies, needs)
        found.append(Bound(time, "traffic", f"what is copied from part to part of {name}"))
        if len(sources) == 1:
            time = passed_on(latencies, what, size)
            found.append(Bound(time, "traffic", f"what rank {sources[0]} has others pass on"))
    else:
        known = max(b.time for b in found)
        rest = topology.alpha + latencies.to_a_rank[topology.dst]
        moved = transport_bound(
            topology, needs, np.minimum(rest, known), symmetries=latencies.symmetries
        )
        reason = f"bytes times distance, in {moved.lengths}, over what all links carry together"
        found.append(Bound(moved.time, "traffic", reason))
    return [farthest, *found]


def _bounds_of_sums(
    latencies: Latencies, what: Collective, size: float, farthest: float
) -> list[Bound]:
    """Bounds of an all_reduce, which are the same forwards and backwards, except the distance."""
    topology, back = latencies.topology, latencies.transpose()
    needs = _needs(latencies, what, size)
    if not needs.sources.size:
        return []
    # A contribution reaches each other rank in some sum, so from its rank alone it is a broadcast.
    found = [_of_a_rank(_from_the_farthest(latencies, needs, size), "ingress")]
    found.append(_of_a_rank(_from_the_farthest(back, needs, size), "egress"))
    sets = narrow_sets(topology, what)
    sets += narrow_sets(back.topology, what)
    if sets:
        time, place = sums.crossed(latencies, what, sets, size)
        found.append(_of_a_set(Arrival(time), sets[place], topology, False))
    known = max(farthest, *(b.time for b in found))
    # Parts are single ranks, and whole hosts: inside a host links are fast, and counting them would
    # hide how narrow the network between hosts is.
    ways = [*parts(topology)]
    if topology.num_ranks * topology.num_links <= _PARTED:
        ways.append(narrowest_partition(topology).part)
    for part in ways:
        found += _between_parts(latencies, what, size, part, known)
    return found


def _between_parts(
    latencies: Latencies, what: Collective, size: float, part: np.ndarray, known: float
) -> list[Bound]:
    """Least times of an all_reduce between parts of a network, by traffic and by latency."""
    n, topology = latencies.topology.num_ranks, latencies.topology
    ranks = len(np.unique(part[:n]))
    where = "ranks" if ranks == n else f"{ranks} parts of the network"
    # Equal numbers of sums and copies leave and enter parts, unless switches copy or add.
    ways = (latencies, latencies.transpose()) if topology.in_network else (latencies,)
    moved = [("traffic", sums.traffic(way, what, size, part, known)) for way in ways]
    met = ("meeting", sums.departures(latencies, what, size, part))
    found = [
        Bound(
            time,
            name,
            f"each byte crosses {crossings} link{'s' * (crossings != 1)} out of {where}, over all "
            "of them together",
        )
        for name, (time, crossings) in (*moved, met)
    ]
    for way in (latencies, latencies.transpose()):
        time, reason = sums.beside_helpers(way, what, size, part, known)
        found += [Bound(time, "traffic", reason)] if time else []
    return found


_NOTHING = "no rank needs anything from another"


def _largest_of_each(found: list[Bound]) -> list[Bound]:
    """The largest bound of every name, in order of first appearance."""
    best: dict[str, Bound] = {}
    for b in found:
        if b.name not in best or b.time > best[b.name].time:
            best[b.name] = b
    return list(best.values())


def _from_the_farthest(latencies: Latencies, needs: Needs, size: float) -> Arrival:
    """The time when a rank has the data of the farthest rank, if it needs no other data."""
    sources, targets = needs.sources, latencies.typical(needs.targets)
    needed = needs.block(sources, targets) > 0
    farthest = np.where(needed, latencies.from_some(sources, targets), -1.0).argmax(axis=0)
    nbytes = np.zeros(needed.shape)
    nbytes[farthest, np.arange(len(targets))] = size
    return entering(latencies, nbytes, sources, targets)


def _of_a_rank(arrival: Arrival, name: str) -> Bound:
    verb, way = ("receive", "into") if name == "ingress" else ("send", "out of")
    reason = f"what rank {arrival.rank} must {verb}, over all links {way} it"
    away = f", at least {arrival.away * 1e6:g} us away" if arrival.away else ""
    return Bound(arrival.seconds, name, reason + away)


def _of_a_set(arrival: Arrival, inside: np.ndarray, topology: Topology, is_entered: bool) -> Bound:
    verb, way = ("enter", "into") if is_entered else ("leave", "out of")
    reason = f"what must {verb} a cut around ranks {_ranks(np.flatnonzero(inside), topology)}"
    return Bound(arrival.seconds, "cut", f"{reason}, over all links {way} it")


def _ranks(vertices: np.ndarray, topology: Topology) -> str:
    ranks = vertices[vertices < topology.num_ranks].tolist()
    return ", ".join(map(str, ranks[:8])) + (", ..." if ranks[8:] else "")


def _farthest(latencies: Latencies, needs: Needs) -> Bound:
    """The largest latency between a rank that has data and one that needs it."""
    sources, targets = latencies.typical(needs.sources), needs.targets
    if not sources.size:
        return Bound(0.0, "distance", _NOTHING)
    needed = needs.block(sources, targets) > 0
    far = np.where(needed, latencies.from_some(sources, targets), -1.0)
    u, v = np.unravel_index(int(far.argmax()), far.shape)
    return Bound(float(far[u, v]), "distance", f"from rank {sources[u]} to rank {targets[v]}")


def cut_bound(topology: Topology, collective: str | Collective, nbytes: Number) -> Bound:
    """The data that must leave the worst set of vertices, over its links (ForestColl, Sec. 4.4).

    Apart from latency, this is the exact optimum of all_gather, reduce_scatter, broadcast and
    reduce on every network for which ForestColl is defined. It takes a flow to each rank, often
    several times; ``bound`` examines as many as a tenth of a second allows.

    Raises:
        CollectiveError: the collective is not of all ranks together, or is a gather, scatter or
            all_to_all.
    """
    what, size = as_collective(topology, collective), as_size(nbytes)
    n = topology.num_ranks
    group = what.groups[0]
    if not _is_of_all(what):
        raise CollectiveError("cuts bound one collective of all ranks, not several groups")
    if n == 1:
        return Bound(0.0, "cut", _NOTHING)
    if what.traits.moves:
        raise CollectiveError(f"cuts give no bound for {what.kind}")
    if what.traits.has_roots:
        cuts = (cut_bound(topology, each, nbytes) for each in what.for_each_root())
        return max(cuts, key=lambda b: b.time)
    if what.traits.is_whole:
        root = what.root_of(group)
        weights, share = [int(r == root) for r in range(n)], size
    else:
        weights, share = None, size / n
    # Gathered data leaves a cut and summed data enters it; an all_reduce does both.
    found = []
    if not what.traits.copies_backwards:
        found.append((False, bottleneck(topology, weights)))
    if what.is_reducing:
        found.append((True, bottleneck(topology.transpose(), weights)))
    is_entered, worst = max(found, key=lambda case: case[1].inverse)
    inside = np.zeros(topology.num_vertices, bool)
    inside[list(worst.cut)] = True
    seconds = float(Fraction(share) * worst.inverse)
    return _of_a_set(Arrival(seconds), inside, topology, is_entered)
