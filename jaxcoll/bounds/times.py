"""What no schedule can beat, and which rank or pair of ranks it comes from.

Every bound holds for both link models and for any number of chunks. Switches forward, and copy
and sum nothing.

A schedule gives contributions to a sum away and copies the sum (``jaxcoll.verifier``). Recursive
doubling, which copies partial sums, is none: it takes less latency for more bytes. Run backwards, a
schedule that sums without copying sums is one that copies, on the network with every link reversed
(``Schedule.reverse``); bits then leave a link when they entered it before. So reduce_scatter and
reduce are bounded as their duals.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np

from jaxcoll.bounds import all_reduce_times as sums
from jaxcoll.bounds.cuts import crossing, narrow_sets, parts, spreading
from jaxcoll.bounds.distances import transport_bound
from jaxcoll.bounds.exact import MOST_FLOWS, all_reduce_seconds, arrival_over_time
from jaxcoll.bounds.flows_over_time import Arrival, Latencies, across, entering, leaving
from jaxcoll.bounds.needs import as_collective, as_size, needs_of
from jaxcoll.bounds.throughput import bottleneck
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.progress import Progress, Report, Wanted, reporting
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True, repr=False)
class Bound:
    """A time that no schedule can beat.

    Attributes:
        time: seconds.
        name: "distance", "ingress", "egress", "cut", "traffic" or "meeting"; of the exact ones
            "flow" and "program", too.
        reason: which ranks it comes from, in words.
    """

    time: float
    name: str
    reason: str

    def __repr__(self) -> str:
        reason = self.reason if len(self.reason) <= 80 else f"{self.reason[:77]}..."
        return f"Bound({self.time * 1e6:.6g} us by {self.name}: {reason})"


def bound(
    topology: Topology,
    collective: str | Collective,
    nbytes: Number,
    *,
    exact: bool = False,
    progress: Wanted = None,
) -> Bound:
    """The truest that is cheap: the largest of ``lower_bounds``.

    Args:
        collective: a kind, or a collective.
        nbytes: bytes of a rank's buffer, above 0.
        exact: the truest of all that is known, which may take a minute: the worst cut of all,
            maximum flows over time and the linear programs of all_to_all and all_reduce, where they
            are not too large (``jaxcoll.bounds.exact``).
        progress: True for a line in the terminal while exact bounds are sought, or a function
            called with a ``jaxcoll.progress.Progress`` before and after.
    """
    checks.flag(exact, "exact", CollectiveError)
    with reporting(progress, "finding exact bounds", CollectiveError) as report:
        return _bound(topology, collective, nbytes, exact, report)


def _bound(
    topology: Topology,
    collective: str | Collective,
    nbytes: Number,
    exact: bool,
    report: Report | None,
) -> Bound:
    found = max(lower_bounds(topology, collective, nbytes), key=lambda b: b.time)
    if not exact or found.time == 0.0:
        return found
    if report is not None:
        report(Progress(0, None, "exact bounds", bound=found.time))
    what, size = as_collective(topology, collective), float(as_size(nbytes))
    if what.kind == "all_reduce":
        others = _exact_of_sums(topology, what, size)
    elif what.is_reducing:
        others = _exact_of_copies(Latencies(topology).transpose(), what.dual(), size, found.time)
    else:
        others = _exact_of_copies(Latencies(topology), what, size, found.time)
    if what.kind not in ("all_to_all", "gather", "scatter") and _is_of_all(what):
        others.append(cut_bound(topology, what, nbytes))
    found = max([found, *others], key=lambda b: b.time)
    if report is not None:
        report(Progress(len(others), len(others), "exact bounds", bound=found.time))
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
    if what.kind in ("all_gather", "broadcast"):
        return found
    back = arrival_over_time(latencies.transpose(), nbytes.T, known)
    found.append(Bound(back.seconds, "flow", f"a flow over time of the data for rank {back.rank}"))
    rest = topology.alpha + latencies.to_a_rank[topology.dst]
    moved = transport_bound(topology, nbytes, np.minimum(rest, known), MOST_FLOWS)
    return [*found, Bound(moved.time, "traffic", f"bytes times distance, in {moved.lengths}")]


def _exact_of_sums(topology: Topology, what: Collective, size: float) -> list[Bound]:
    seconds = all_reduce_seconds(topology, size) if _is_of_all(what) else 0.0
    return [Bound(seconds, "program", "the linear program of ForestColl's App. B.7")]


def lower_bounds(
    topology: Topology, collective: str | Collective, nbytes: Number
) -> tuple[Bound, ...]:
    """Every fast bound, the largest of each name; that of distance first.

    - *distance*: latency between ranks that need something of one another.
    - *ingress* and *egress*: the data that a rank needs, or has for others, over all its links,
      from when it can be there until it is too late.
    - *cut*: the data that has to leave a set of vertices, for one rank outside or for all of them.
    - *traffic*: all data that has to cross links anywhere, over all links together.
    - *meeting*: the contributions of an all_reduce, which leave their ranks before the sum is
      complete somewhere and copied to all.
    """
    what, size = as_collective(topology, collective), as_size(nbytes)
    latencies = Latencies(topology)
    if what.kind == "all_reduce":
        return _bounds_of_sums(latencies, what, float(size))
    is_backwards = what.is_reducing
    if is_backwards:
        latencies, what = latencies.transpose(), what.dual()
    return _bounds_of_copies(latencies, what, float(size), is_backwards)


def _bounds_of_copies(
    latencies: Latencies, what: Collective, size: float, is_backwards: bool
) -> tuple[Bound, ...]:
    """Those of a collective that sums nothing, or of one that does, run backwards."""
    topology, nbytes = latencies.topology, needs_of(what) * size
    farthest = _farthest(latencies, nbytes)
    if not nbytes.any():
        return (Bound(0.0, "distance", _NOTHING),)
    into, out_of = ("egress", "ingress") if is_backwards else ("ingress", "egress")
    is_copied = what.kind in ("all_gather", "broadcast")
    back = latencies.transpose()
    found = [_of_a_rank(entering(latencies, nbytes), into)]
    if is_copied:
        found.append(_of_a_rank(leaving(latencies, nbytes), out_of))
    else:
        found.append(_of_a_rank(entering(back, nbytes.T), out_of))
    sets = narrow_sets(topology, what)
    found += [_of_a_set(across(latencies, s, nbytes), s, topology, is_backwards) for s in sets]
    if not is_copied:
        sets += narrow_sets(back.topology, what.dual())
        found += [_of_a_set(across(back, s, nbytes.T), s, topology, True) for s in sets]
    if sets:
        time, place = crossing(latencies, sets, nbytes, is_copied)
        found.append(_of_a_set(Arrival(time), sets[place], topology, is_backwards))
    if is_copied:
        time, name = spreading(latencies, nbytes)
        found.append(Bound(time, "traffic", f"what is copied from part to part of {name}"))
    else:
        known = max(b.time for b in found)
        rest = topology.alpha + latencies.to_a_rank[topology.dst]
        moved = transport_bound(topology, nbytes, np.minimum(rest, known))
        reason = f"bytes times distance, in {moved.lengths}, over what all links carry together"
        found.append(Bound(moved.time, "traffic", reason))
    return (farthest, *_largest_of_each(found))


def _bounds_of_sums(latencies: Latencies, what: Collective, size: float) -> tuple[Bound, ...]:
    """Those of an all_reduce, which are the same forwards and backwards."""
    topology, back = latencies.topology, latencies.transpose()
    time, reason = sums.meeting(latencies, what)
    farthest = Bound(time, "distance", reason)
    if time == 0.0 and not needs_of(what).any():
        return (farthest,)
    # What a rank contributes comes, in some sum, to each other rank: to it alone it is a broadcast.
    from_one = _one_source_each(latencies, what, size)
    found = [_of_a_rank(entering(latencies, from_one), "ingress")]
    found.append(_of_a_rank(entering(back, _one_source_each(back, what, size)), "egress"))
    sets = narrow_sets(topology, what)
    sets += narrow_sets(back.topology, what)
    if sets:
        time, place = sums.crossed(latencies, what, sets, size)
        found.append(_of_a_set(Arrival(time), sets[place], topology, False))
    known = max(farthest.time, *(b.time for b in found))
    for part in parts(topology):
        ranks = len(np.unique(part[: topology.num_ranks]))
        where = "ranks" if ranks == topology.num_ranks else f"{ranks} parts of the network"
        for name, (time, crossings) in (
            ("traffic", sums.traffic(latencies, what, size, part, known)),
            ("meeting", sums.departures(latencies, what, size, part)),
        ):
            reason = f"each byte crosses {crossings} links out of {where}, over all of them"
            found.append(Bound(time, name, f"{reason} together"))
    return (farthest, *_largest_of_each(found))


_NOTHING = "no rank needs anything from another"


def _largest_of_each(found: list[Bound]) -> list[Bound]:
    """The largest bound of every name, in the order in which the names are met."""
    best: dict[str, Bound] = {}
    for b in found:
        if b.name not in best or b.time > best[b.name].time:
            best[b.name] = b
    return list(best.values())


def _one_source_each(latencies: Latencies, what: Collective, size: float) -> np.ndarray:
    """The data that a rank needs of the one farthest from it, and nothing of others."""
    apart = np.where(needs_of(what) > 0, latencies.between, -1.0)
    farthest = apart.argmax(axis=0)
    nbytes = np.zeros_like(apart)
    every = np.arange(len(apart))
    nbytes[farthest, every] = np.where(apart[farthest, every] >= 0, size, 0.0)
    return nbytes


def _of_a_rank(arrival: Arrival, name: str) -> Bound:
    verb, way = ("receive", "into") if name == "ingress" else ("send", "out of")
    reason = f"what rank {arrival.rank} must {verb}, over all links {way} it"
    away = f", at least {arrival.away * 1e6:g} us away" if arrival.seconds else ""
    return Bound(arrival.seconds, name, reason + away)


def _of_a_set(arrival: Arrival, inside: np.ndarray, topology: Topology, is_entered: bool) -> Bound:
    verb, way = ("enter", "into") if is_entered else ("leave", "out of")
    reason = f"what must {verb} a cut around ranks {_ranks(np.flatnonzero(inside), topology)}"
    return Bound(arrival.seconds, "cut", f"{reason}, over all links {way} it")


def _ranks(vertices: np.ndarray, topology: Topology) -> str:
    ranks = vertices[vertices < topology.num_ranks].tolist()
    return ", ".join(map(str, ranks[:8])) + (", ..." if ranks[8:] else "")


def _farthest(latencies: Latencies, nbytes: np.ndarray) -> Bound:
    """The largest latency between a rank that has data and one that needs it."""
    far = np.where(nbytes > 0, latencies.between, -1.0)
    u, v = np.unravel_index(int(far.argmax()), far.shape)
    if far[u, v] < 0:
        return Bound(0.0, "distance", _NOTHING)
    return Bound(float(far[u, v]), "distance", f"from rank {u} to rank {v}")


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
    if what.kind in ("all_gather", "reduce_scatter"):
        weights, share = None, size / n
    elif what.kind in ("broadcast", "reduce", "all_reduce"):
        root = group[what.root or 0]
        weights, share = [int(r == root) for r in range(n)], size
    else:
        raise CollectiveError(f"cuts bound no {what.kind}")
    # Gathered data leaves a cut; summed data enters it; an all_reduce does both.
    found = []
    if what.kind not in ("reduce_scatter", "reduce"):
        found.append((False, bottleneck(topology, weights)))
    if what.is_reducing:
        found.append((True, bottleneck(topology.transpose(), weights)))
    is_entered, worst = max(found, key=lambda case: case[1].inverse)
    inside = np.zeros(topology.num_vertices, bool)
    inside[list(worst.cut)] = True
    seconds = float(Fraction(share) * worst.inverse)
    return _of_a_set(Arrival(seconds), inside, topology, is_entered)
