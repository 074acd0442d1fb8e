"""Least times of collectives: the best of all bounds, and the rank or pair of ranks behind it.

Every bound holds for both link models and for any number of chunks. Switches do what the network
says (``Topology.in_network``): most only forward, and those that copy or add are counted as such.
Then schedules, which are of ranks, may not reach a bound that in-network collectives do; that of
``topology.forwarding_only()`` is what bounds schedules. Some bounds take seconds, maximum flows
over time and the linear programs: they are asked for (``exact``).

How often a byte crosses a set of vertices on its way to some rank, or is in some sum that does, no
switch changes: it is once at least. So *ingress*, *egress*, *cut*, *flow*, and the *traffic* of
data that each rank has of its own, hold with any switches. The *distance* of an all_reduce, its
*meeting* and *traffic*, and the *traffic* of copies count meeting places, sums and copies, each
where it is made: where switches make them, these stand beside ranks. The *program* of an all_reduce
(App. B.7) knows switches that forward, and is left out where others are.

A schedule gives contributions to a sum away and copies the sum (``jaxcoll.verifier``). Recursive
doubling, which copies partial sums, is none: it takes less latency for more bytes. Run backwards, a
schedule that sums without copying sums is one that copies, on the network with every link reversed
(``Schedule.reverse``); bits then leave a link when they entered it before. So reduce_scatter and
reduce are bounded as their duals.

A schedule that brings sums to several ranks, and not to all, brings them to each: leave out the
copies for the others, and let the sum go where it was copied. So each of the ranks bounds it by its
own reduce; and all of them do together, by where the sums meet.

All this is of links that work by themselves. Bounds of a machine (``execution``) are of its order,
where ranks wait with more terms (``jaxcoll.bounds.in_order``), and with its least charge.
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
from jaxcoll.bounds.cuts import (
    as_collective,
    as_size,
    crossing,
    narrow_sets,
    needs_of,
    parts,
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
from jaxcoll.numerics.connectivity import FlowNetwork
from jaxcoll.numerics.rational import Number
from jaxcoll.progress import Progress, Wanted, reporting
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.simulation.execution_order import LINKS, ExecutionOrder
from jaxcoll.topology import Topology

# Parts of the known time that flows over time are told apart by, and arcs of such a network.
_TICKS, _MOST_ARCS = 48, 2**18
# Whole units that all data of a rank are counted in.
_UNITS = 2**40
# Flows (sources times links) of the program of all data, and of an all_reduce: some seconds each.
MOST_FLOWS, _SUM_FLOWS = 2**15, 3 * 2**10
# Ranks times links up to which the narrowest partition is cheap: a torus of 256 ranks takes 0.06
# CPU s, one of 1,024 a second.
_PARTED = 2**18


def arrival_over_time(latencies: Latencies, nbytes: np.ndarray, known: float) -> Arrival:
    """The least time in which every rank by itself can get its data, by flows over time.

    A maximum flow in the network whose vertices are those of ``topology`` at every tick (Ford and
    Fulkerson, 1958), with data that waits at a vertex from tick to tick. Latencies are rounded down
    to ticks, so no schedule is faster. Its least cut is the best choice of moments of
    ``jaxcoll.bounds.all_reduce_times``, to within a tick. Data that every rank needs can be coded
    so that it reaches all ranks as fast as each alone (Ahlswede et al., "Network information
    flow", 2000): for one source nothing better is proved by flows.

    Args:
        nbytes: bytes that rank v needs of rank u at [u, v], all different; float64.
        known: seconds above 0 that no schedule beats.

    Returns:
        The largest time of a rank; 0 seconds where none is above ``known``, or the flows are too
        large.
    """
    topology = latencies.topology
    # A part of the time; also of the least latency, where that is not much less, so that rounding
    # latencies down to ticks loses little.
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
    """Bytes that can have come to a rank after so many ticks; links and data rounded in favour.

    Data that enters a link in a tick leaves it so many ticks of latency later, and may enter the
    next in that very tick.
    """
    count, total = topology.num_vertices, float(nbytes.sum())
    if not ticks:
        return 0.0
    # The network over time: a copy of every vertex per tick, an arc per link and tick to the copy
    # its latency later, and an arc to the next copy for data that waits. The flow to the target's
    # last copy is what can have arrived.
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

    0 where that is too large, or switches copy or add: there it takes capacities between ranks for
    all that switches give, and more is possible.
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
        time: seconds, the charge among them.
        name: "distance", "ingress", "egress", "cut", "traffic" or "meeting"; of the exact ones
            "flow" and "program", too; of orders in which ranks wait "steps", "ports", "pairs" and
            "rounds".
        reason: which ranks it comes from, in words.
        order: in which the schedules are run.
        charge: seconds that the machine takes for any of them, beside the links.
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
        exact: whether to take the largest bound that is known, which may take a minute: the worst
            cut of all, maximum flows over time and the linear programs of all_to_all and
            all_reduce, where they are not too large (``jaxcoll.bounds.times``).
        execution: the machine that runs the schedules, as in ``simulate``: ``ExecutionCosts``, or
            the backend whose shipped ones are meant. No verified schedule takes less there. Links
            that work by themselves, and no charge, when omitted. Where ranks wait for one another,
            schedules are meant: switches forward only.
        progress: True for a line in the terminal while exact bounds are sought, or a function
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
    before = _before_links(topology, what, costs)
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
    """The network as schedules of a machine use it; as it is where none is given."""
    return topology.forwarding_only() if costs is not None and costs.order.waits else topology


def _before_links(topology: Topology, what: Collective, costs: ExecutionCosts | None) -> float:
    """Seconds that pass beside what bounds of links count: the charge, and the least latency."""
    if costs is None or not needs_of(what).any():
        return 0.0
    charge = float(costs.least_seconds(what))
    return charge + (in_order.least_latency(Latencies(topology)) if costs.order.waits else 0.0)


def _exact(latencies: Latencies, what: Collective, nbytes: Number, known: float) -> list[Bound]:
    """Those that are asked for, beyond a bound that is known."""
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
    """By flows over time to every rank, and of all data together where each rank has its own."""
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
    """Every fast bound, the largest of each name; that of distance first.

    - *distance*: latency between ranks that need something of one another.
    - *ingress* and *egress*: the data that a rank needs, or has for others, over all its links,
      on each from the earliest arrival until it is too late.
    - *cut*: the data that has to leave a set of vertices, for one rank outside or for all of them.
    - *traffic*: all data that has to cross links anywhere, over all links together.
    - *meeting*: the contributions of an all_reduce, which leave their ranks before the sum is
      complete somewhere and copied to all.

    And of a machine whose ranks wait (``execution``, as in ``bound``; ``jaxcoll.bounds.in_order``):

    - *steps*: the data of a rank over all its links, with a latency for each step that it takes.
    - *ports*: a rank sends one message at a time, and receives one, where permutes follow one
      another.
    - *pairs*: two ranks send to each other one way at a time, where pairs are half duplex.
    - *rounds*: latencies that follow one another, since with each what a rank knows of doubles.
    """
    costs = costs_of(execution, CollectiveError)
    what, size = as_collective(topology, collective), float(as_size(nbytes))
    if costs is None:
        return _of_links(topology, what, size)
    charge = float(costs.least_seconds(what))
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
    """A bound of links as that of a machine, some seconds later, of which some are charged."""
    if costs is None:
        return each
    time = each.time + before
    return dataclasses.replace(each, time=time, order=costs.order, charge=charge)


def _distances(latencies: Latencies, what: Collective) -> list[Bound]:
    """Latencies that pass however few bytes there are."""
    if what.traits.copies_sums:
        time, reason = sums.meeting(latencies, what)
        return [Bound(time, "distance", reason)]
    return [_farthest(latencies, _needs(latencies, what, 1.0))]


def _of_links(topology: Topology, what: Collective, size: float) -> tuple[Bound, ...]:
    """Those of links that work by themselves."""
    topology, what, is_one = _of_one_group(topology, what)
    latencies, found = _latencies(topology, what), _of_each_alone(topology, what, size)
    if what.traits.copies_sums:
        found += _distances(latencies, what)
    for each in what.for_each_root():
        is_backwards = each.traits.copies_backwards
        # A reduce_scatter is an all_gather backwards in time on the reversed network, so that its
        # bounds are those, with ingress and egress exchanged.
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
    """Latencies as bounds of links ask for them: of large networks by equivalent vertices."""
    if topology.num_ranks * topology.num_vertices < LARGE:
        return Latencies(topology)
    # Symmetries of the network are those of the collective where all ranks do the same.
    does_the_same = _is_of_all(what) and what.pair_shares is None
    if does_the_same and not what.traits.has_root and not what.traits.has_roots:
        return Latencies(topology, Symmetries.of(topology))
    return Latencies(topology, Symmetries.none(topology))


def _needs(latencies: Latencies, what: Collective, size: float) -> Needs:
    """The bytes from rank to rank, listed where all latencies are, or where they differ."""
    if latencies.symmetries is None or what.pair_shares is not None:
        return Listed(needs_of(what) * size)
    return OfGroups.of(what, size)


def _of_one_group(topology: Topology, what: Collective) -> tuple[Topology, Collective, bool]:
    """A collective of groups on copies of a network as that of one group, and whether it is one.

    So is a group that nobody helps, on the network of its members. Bounds here hold for data that
    are split and coded at will, so one group's hold for all (``jaxcoll.copies``); those of the
    whole network would give each group the links of the others.
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
    """Those of each of several groups on the links between its members, where nobody else helps."""
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
    """Those of a collective that sums nothing, or of one that does, run backwards."""
    topology, needs = latencies.topology, _needs(latencies, what, size)
    farthest = _farthest(latencies, needs)
    sources, targets = needs.sources, needs.targets
    if not sources.size:
        return [farthest]
    into, out_of = ("egress", "ingress") if is_backwards else ("ingress", "egress")
    # Copied data leaves a set once, for all ranks outside together, and is copied there. Data of
    # which each rank has its own leaves once for each: then both directions and the sum over all
    # links bound it too.
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
    """Those of an all_reduce, which are the same forwards and backwards, but for the distance."""
    topology, back = latencies.topology, latencies.transpose()
    needs = _needs(latencies, what, size)
    if not needs.sources.size:
        return []
    # A contribution reaches each other rank, in some sum: for its rank alone it is a broadcast.
    found = [_of_a_rank(_from_the_farthest(latencies, needs, size), "ingress")]
    found.append(_of_a_rank(_from_the_farthest(back, needs, size), "egress"))
    sets = narrow_sets(topology, what)
    sets += narrow_sets(back.topology, what)
    if sets:
        time, place = sums.crossed(latencies, what, sets, size)
        found.append(_of_a_set(Arrival(time), sets[place], topology, False))
    known = max(farthest, *(b.time for b in found))
    # Ranks one by one, and hosts as wholes: inside a host links are fast, and counting them would
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
    # Sums and copies leave parts, and enter them: as many, but for switches that copy or add.
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
    """The largest bound of every name, in the order in which the names are met."""
    best: dict[str, Bound] = {}
    for b in found:
        if b.name not in best or b.time > best[b.name].time:
            best[b.name] = b
    return list(best.values())


def _from_the_farthest(latencies: Latencies, needs: Needs, size: float) -> Arrival:
    """When a rank has the data of the one farthest from it, and needs nothing of others."""
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
    """What must leave the worst set of vertices, over all links out of it (ForestColl, Sec. 4.4).

    Latency aside, the exact optimum of all_gather, reduce_scatter, broadcast and reduce on every
    network that ForestColl is defined for. It takes a flow to each rank, often several times;
    ``bound`` looks at as many as a tenth of a second allows.

    Raises:
        CollectiveError: the collective is not of all ranks together, or is one of gather, scatter
            and all_to_all.
    """
    what, size = as_collective(topology, collective), as_size(nbytes)
    n = topology.num_ranks
    group = what.groups[0]
    if not _is_of_all(what):
        raise CollectiveError("cuts are bounds for one group of all ranks")
    if n == 1:
        return Bound(0.0, "cut", _NOTHING)
    if what.traits.moves:
        raise CollectiveError(f"cuts bound no {what.kind}")
    if what.traits.has_roots:
        cuts = (cut_bound(topology, each, nbytes) for each in what.for_each_root())
        return max(cuts, key=lambda b: b.time)
    if what.traits.is_whole:
        root = what.root_of(group)
        weights, share = [int(r == root) for r in range(n)], size
    else:
        weights, share = None, size / n
    # Gathered data leaves a cut; summed data enters it; an all_reduce does both.
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
