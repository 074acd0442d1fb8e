"""Bounds by cuts: the data that must cross them, and the paths that it shares.

A set of vertices that lacks some of the data must receive it over the links that enter the set, so
its missing bytes over their bandwidth is a lower bound on the time. Every set gives such a bound,
but only sets around the narrow places of a network give high ones. They come from four sources.

- The worst cut of ForestColl, for every group: exact for all_gather and broadcast, apart from
  latency.
- The parts that links above some bandwidth hold together: hosts, racks, sites.
- The ranks below a leaf switch, where that has little bandwidth upwards for them.
- Unions of those parts in the order of their ranks: halves of grids and of rows of racks.

The file also has the classes for answers of the all_reduce program (App. B.7), which are the least
time and the paths of its trees, and the share of a buffer that a collective moves between two
ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.all_reduce_times import (
    LastMoments,
    Latencies,
    last_moments,
    late_shares,
    least_times,
)
from jaxcoll.bounds.needs import Needs
from jaxcoll.bounds.throughput import Optimum, bottleneck
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.topology import Topology, connected


@dataclasses.dataclass(frozen=True)
class SharedPaths:
    """Paths from rank to rank, each shared between trees that broadcast and trees that sum.

    Attributes:
        paths: links of each path in the order in which they are crossed; one link on a direct
            network.
        copies: bytes per second of each path for trees that broadcast.
        sums: bytes per second of each path for trees that sum. No link carries more than its
            bandwidth if all paths are full.
    """

    paths: tuple[tuple[int, ...], ...]
    copies: tuple[Fraction, ...]
    sums: tuple[Fraction, ...]


@dataclasses.dataclass(frozen=True)
class AllReduceBound:
    """The least time of an all_reduce, apart from latency.

    Attributes:
        seconds: seconds per byte of the vector that is reduced, which no all_reduce beats.
        two_phases: seconds per byte of an optimal reduce_scatter and then an optimal all_gather.
        reached: seconds per byte that trees reach; None if no trees are known, which happens if
            switches have unequal bandwidth in and out, or if floats hide the fractions behind them.
        roots: share of the vector that is summed at each rank and broadcast from it in these trees.
        shared: the part of every link that the trees may use; None if two phases, each with all
            links to itself, are equally fast.
    """

    seconds: Fraction
    two_phases: Fraction
    reached: Fraction | None
    roots: tuple[Fraction, ...]
    shared: SharedPaths | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the bound is proved to be reached."""
        return self.reached == self.seconds

    @property
    def two_phases_reach_it(self) -> bool:
        """Whether reduce_scatter and all_gather are as fast as the bound."""
        return self.two_phases <= self.seconds


def needs_of(what: Collective) -> np.ndarray:
    """Share of a buffer that goes from rank u to rank v, float64 of shape (ranks, ranks).

    For reducing kinds: the share of v's result that u contributes to.
    """
    n, kind, pairs = what.num_ranks, what.traits, what.pair_shares
    share = np.zeros((n, n))
    if pairs is not None:
        (members,) = what.groups
        share[np.ix_(members, members)] = pairs.amounts / pairs.buffer
        np.fill_diagonal(share, 0.0)
        return share
    # A sum is as large as one of its terms: reducing kinds move the same shares as their duals.
    for group in what.groups:
        members = np.asarray(group)
        part = 1.0 if kind.is_whole else 1.0 / len(members)
        if kind.starts_at_root:
            share[what.root_of(group), members] = part
        else:
            share[np.ix_(members, what.ending(group))] = part
    np.fill_diagonal(share, 0.0)
    return share


def as_collective(
    topology: Topology,
    collective: str | Collective,
    groups: Sequence[Sequence[int]] | None = None,
    root: int | Sequence[int] | None = None,
    helpers: bool = True,
) -> Collective:
    """A collective, or that of a kind with its groups and root, as bounds know it."""
    connected(topology)
    checks.instance(collective, (str, Collective), "collective", CollectiveError)
    if isinstance(collective, str):
        given = (groups, root, None, helpers)
        return Collective(collective, topology.num_ranks, 1, *given)  # type: ignore[arg-type]
    if (groups, root, helpers) != (None, None, True):
        raise CollectiveError(
            "a Collective has its own groups, root and helpers; do not give them again"
        )
    if collective.num_ranks != topology.num_ranks:
        raise CollectiveError(
            f"the collective is for {collective.num_ranks} ranks, {topology} has "
            f"{topology.num_ranks}"
        )
    # Bounds know the data from rank to rank, but not where parts of several sizes are copied or
    # added.
    return collective if collective.pair_shares else collective.with_equal_shards("a bound")


def as_size(nbytes: Number) -> Fraction:
    return as_fraction(checks.nbytes(nbytes, CollectiveError))


# The most ways to divide a network that are examined; most networks have fewer bandwidths.
_MOST_WAYS = 8
# The most links times maximum flows of a search for the worst cut: a tenth of a second.
_FLOWS = 2**17
# The most sets of each kind that are examined, and the most numbers that they may take together.
_MOST_SETS, _NUMBERS = 32, 2**20
# The most distances from the root of a broadcast at which the ranks in need may begin.
_MOST_LEVELS = 8
# The most ends of links, and the most ranks behind them, from which latencies are computed for one
# term: half a second. From each of 4,096 ranks it takes 7 s.
_MOST_HEADS, _MOST_MAKERS = 64, 2**11


def parts(topology: Topology) -> Iterator[np.ndarray]:
    """The part of each vertex, in several ways: links above some bandwidth join the parts.

    The ways are every vertex alone, and one per bandwidth, up to ``_MOST_WAYS``.
    """
    speeds = np.unique(topology.bandwidth)
    shape = (topology.num_vertices,) * 2
    most = -(-len(speeds) // _MOST_WAYS)
    for least in speeds[::-1][:: max(most, 1)]:
        # First every vertex is alone, then slower and slower links join vertices. So a host is a
        # part once the links inside it count and those out of it do not.
        fast = topology.bandwidth > least
        ends = topology.src[fast], topology.dst[fast]
        graph = sp.csr_matrix((np.ones(len(ends[0]), np.int8), ends), shape=shape)
        yield sp.csgraph.connected_components(graph, directed=False)[1]


def narrow_sets(topology: Topology, what: Collective) -> list[np.ndarray]:
    """Distinct sets with a rank inside and one outside, each bool of shape (vertices,).

    Args:
        what: a collective that sums nothing, or an all_reduce.
    """
    found: list[np.ndarray] = []
    for optimum in worst_cuts(topology, what):
        # Both sides of a cut are sets: data that leaves a set slowly enters the rest slowly.
        inside = np.zeros(topology.num_vertices, bool)
        inside[list(optimum.cut)] = True
        found += [inside, ~inside]
    found += below_switches(topology)
    most = min(_MOST_SETS, 4 + _NUMBERS // (topology.num_ranks * topology.num_vertices))

    def some(values: Sequence[int]) -> Sequence[int]:
        return values[:: -(-len(values) // most)] if values else values

    for part in parts(topology):
        first = {int(p): rank for rank, p in reversed([*enumerate(part[: topology.num_ranks])])}
        # Parts are in the order of their first ranks, which follow the rows of grids and of racks.
        # So the unions of the first parts are halves of these.
        order = sorted(first, key=lambda p: first[p])
        if len(order) < topology.num_ranks:  # single ranks are not sets
            found += [s for p in some(order) for s in (part == p, part != p)]
        found += [np.isin(part, order[:count]) for count in some(range(2, len(order)))]
    # Several bandwidths often give the same parts; each distinct set costs one bound.
    distinct = {inside.tobytes(): inside for inside in found}
    ranks = topology.num_ranks
    return [s for s in distinct.values() if s[:ranks].any() and not s[:ranks].all()]


def below_switches(topology: Topology) -> list[np.ndarray]:
    """A leaf switch with the ranks below it: the narrowest outwards, and all but the one inwards.

    A rank is below a switch if all its links lead to it and come from it. Where all links are
    equally fast, or those upwards are even faster, no part of ``parts`` is a leaf; but with few
    links upwards a leaf is narrow all the same. Narrow is what has little bandwidth for the pairs
    of a rank inside and one outside.
    """
    n, vertices = topology.num_ranks, topology.num_vertices
    least, most = np.full(vertices, vertices), np.full(vertices, -1)
    for here, there in ((topology.src, topology.dst), (topology.dst, topology.src)):
        np.minimum.at(least, here, there)
        np.maximum.at(most, here, there)
    below = np.flatnonzero((least == most)[:n] & (least[:n] >= n))
    part = np.arange(vertices)
    part[below] = least[below]
    count = np.bincount(least[below], minlength=vertices)
    leaves = np.flatnonzero((count > 0) & (count < n))
    if not leaves.size:
        return []
    goes = part[topology.src] != part[topology.dst]
    pairs = count[leaves] * (n - count[leaves])
    found = []
    for ends, is_out in ((topology.src, True), (topology.dst, False)):
        room = np.bincount(part[ends[goes]], topology.bandwidth[goes], vertices)[leaves]
        found.append((part == leaves[(room / pairs).argmin()]) == is_out)
    return found


def worst_cuts(topology: Topology, what: Collective) -> Iterator[Optimum]:
    """For every group, the cut that its data leaves most slowly if all links serve the group.

    If a search in all groups takes more than ``_FLOWS``, only some ranks gather, or only some
    evenly spaced groups are examined; then the cut may not be the worst.
    """
    groups = [group for group in what.groups if len(group) > 1]
    most = max(1, _FLOWS // max(topology.num_links, 1))
    if not groups:
        return
    groups = groups[:: -(-len(groups) // most)]
    for group in groups:
        weights, targets = _gathering(what, group)
        share = max(1, most // len(groups))
        yield bottleneck(
            topology, [weights.get(r, 0) for r in range(topology.num_ranks)],
            targets[:: -(-len(targets) // share)],
        )  # fmt: skip


def _gathering(what: Collective, group: tuple[int, ...]) -> tuple[dict[int, int], list[int]]:
    """Weights of ranks, and the ranks that gather; in an all_reduce one rank's data represents all.

    A scatter does not gather: there the root's data counts as a broadcast's, which finds a cut too.
    In the same way an all_to_all counts as an all_gather.
    """
    root, kind = what.root_of(group), what.traits
    if kind.starts_at_root or kind.sums_for_all:
        return {root: 1}, [rank for rank in group if rank != root]
    if kind.ends_at_root:
        return {rank: 1 for rank in group if rank != root}, [root]
    return dict.fromkeys(group, 1), list(group)


def crossing(
    latencies: Latencies, sets: Sequence[np.ndarray], needs: Needs, is_copied: bool
) -> tuple[float, int]:
    """The longest time that all data of all ranks together take out of one of the sets.

    A link counts from the time when data of a rank can have reached it until it is too late for all
    ranks.

    Args:
        sets: bool of shape (vertices,) each.
        needs: the needs of all ranks.
        is_copied: whether all ranks that need something of rank u need the same.

    Returns:
        Seconds, and the place in ``sets``; 0 seconds where nothing crosses any.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    idle = latencies.from_a_rank[topology.src] + topology.alpha
    idle = idle + latencies.to_a_rank[topology.dst]
    amounts = needs.across(np.stack(sets)[:, :n].T.astype(float), is_copied)
    best, place = 0.0, 0
    for i, inside in enumerate(sets):
        out = inside[topology.src] & ~inside[topology.dst]
        time = least_times(topology.bandwidth[out], idle[out][None], amounts[i : i + 1])[0]
        if time > best:
            best, place = float(time), i
    return best, place


def spreading(latencies: Latencies, needs: Needs) -> tuple[float, str]:
    """Copies that ranks make: each of p parts gets the data it needs from a rank of another part.

    Switches that only forward copy nothing (``jaxcoll.paths``), so every part that needs a byte
    needs a rank, or a switch that copies, that sends it there, over a link out of that vertex's
    part: followed back from where it enters, a copy was alone until it left there. All links out of
    parts with ranks or such switches together carry those copies.

    A link is useful from the time when the first data can have reached it until it is too late for
    all ranks in need. Where all data are for the same ranks, what leaves a part shortly before the
    end counts only as the share of a part's ranks that it still serves, as in
    ``all_reduce_times.rests``. For a broadcast, the ranks in need may be only those from some
    distance on: the root alone serves them until ranks near them have data to pass on.

    Args:
        needs: the needs, where all ranks that need something of rank u need the same.

    Returns:
        Seconds, and the parts in words.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    sources, vertices = needs.sources, np.arange(topology.num_vertices)
    early = latencies.from_nearest(sources, vertices)[topology.src] + topology.alpha
    share = needs.largest
    best, name = 0.0, ""
    levels, away = np.zeros(1), None
    if len(sources) == 1:
        away = latencies.from_some(sources, needs.targets)[0]
        distinct = np.unique(away)
        levels = distinct[:: -(-len(distinct) // _MOST_LEVELS)]
    for part in parts(topology):
        numbers, place = np.unique(part[:n], return_inverse=True)
        makers = np.append(part[:n], part[list(topology.in_network.copying)])
        leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], makers)
        for level in levels:
            if away is None:
                targets = needs.targets
                in_need = needs.parts_in_need(place, len(numbers))
            else:
                targets = needs.targets[away >= level]
                others = np.setdiff1d(place[targets], place[sources])
                in_need = np.zeros(n, np.int64)
                in_need[sources] = len(others)
            late = early[leaves][:, None] + _onward(latencies, leaves, needs, targets, part)
            room = np.repeat(topology.bandwidth[leaves] / late.shape[1], late.shape[1])
            copies = np.array([float(in_need @ share)])
            time = least_times(room, late.reshape(1, -1), copies)[0]
            if time > best:
                whole = "ranks" if len(numbers) == n else f"{len(numbers)} parts of the network"
                best, name = float(time), whole
    return best, name


def passed_on(latencies: Latencies, what: Collective, size: float) -> float:
    """The least time in which the data of one root leaves its part early enough to be passed on.

    Of p parts with ranks in need, p - 1 need every byte from another part. A byte that begins to
    leave the root's part at s cannot leave another part before s + d, where d is the least latency
    from links out of the root's part to a rank outside. Let the run end at T, and let a copy that
    begins to leave a part after T - r serve at most a share M of a part's members (``rests``). Then
    a byte that begins to leave the root's part after T - r - d has to leave parts often: each of
    p - 1 parts needs a copy out of the root's part before T - r, or 1/M copies after it. So let
    crossings out of the root's part before T - r - d weigh 1, and others 1/(p-1) and M/(p-1). Each
    byte weighs 1 or more.

    Returns:
        Seconds; 0 if there are several groups, one part, or switches that copy.
    """
    topology, n = latencies.topology, latencies.topology.num_ranks
    groups = [group for group in what.groups if len(group) > 1]
    if len(groups) != 1 or topology.in_network.copying:
        return 0.0
    (group,) = groups
    root, members = what.root_of(group), np.asarray(group)
    best = 0.0
    for part in parts(topology):
        others = len(np.unique(part[members])) - 1
        leaves = (part[topology.src] != part[topology.dst]) & np.isin(part[topology.src], part[:n])
        out = np.flatnonzero(leaves & (part[topology.src] == part[root]))
        outside = np.flatnonzero(part[:n] != part[root])
        if not (others and out.size):
            continue
        early = latencies.from_some(np.array([root]), topology.src[out])[0]
        bandwidth = topology.bandwidth[out]
        away = topology.alpha[out] + latencies.to_nearest(topology.dst[out], outside)
        ahead = latencies.for_everyone if len(members) == n else latencies
        if _is_cheap(ahead, topology.dst[leaves]):
            ends = last_moments(ahead, np.flatnonzero(leaves), members, part)
        else:
            onward = latencies.to_nearest(topology.dst[leaves], members)
            ends = [LastMoments(float((topology.alpha[leaves] + onward).min()), 0.0)]
        for seconds, carried in ends:
            late = (bandwidth.sum() * away.min() + carried) / others
            first = least_times(bandwidth, early[None], np.array([max(size - late, 0.0)]))[0]
            best = max(best, float(first + away.min() + seconds) if first else 0.0)
    return best


def _is_cheap(latencies: Latencies, heads: np.ndarray) -> bool:
    """Whether ``late_shares`` of links has its latencies, or takes few Dijkstra's algorithms."""
    if latencies.symmetries is None:
        return True
    # Copies are made by ranks, so that it takes one from each of these that is like no other, too.
    makers = latencies.typical(np.arange(latencies.topology.num_ranks))
    return len(np.unique(heads)) <= _MOST_HEADS and len(makers) <= _MOST_MAKERS


def _onward(
    latencies: Latencies, leaves: np.ndarray, needs: Needs, targets: np.ndarray, part: np.ndarray
) -> np.ndarray:
    """Least latencies from the heads of links to equal shares of the targets in a part.

    Only one share, that of the nearest target, if targets need different data, if no part has two
    of them, or if that takes many runs of Dijkstra's algorithm.

    Returns:
        Seconds, float64 of shape (links, shares).
    """
    topology = latencies.topology
    heads, head = np.unique(topology.dst[leaves], return_inverse=True)
    is_parted = len(np.unique(part[targets])) < len(targets)
    ahead, members = latencies, targets
    others = np.setdiff1d(np.arange(topology.num_ranks), targets)
    if np.isin(others, needs.sources).all() and np.isin(part[others], part[targets]).all():
        # The targets are all ranks but a root. With it their latencies can only fall, and of equal
        # ranks one is enough.
        ahead, members = latencies.for_everyone, np.arange(topology.num_ranks)
    if not (needs.is_common and is_parted and _is_cheap(ahead, heads)):
        return latencies.to_nearest(heads, targets)[head][:, None]
    links = np.flatnonzero(leaves)
    return late_shares(ahead, links, members, part) - topology.alpha[links][:, None]
