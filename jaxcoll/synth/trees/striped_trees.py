"""Striped trees: a broadcast over low trees, where each host forwards in only one of them.

In a single tree with two children per host, every inner host sends all data twice, and the leaves
send nothing. So the data are cut into stripes, each with a tree of its own, and an inner host of
one tree is a leaf of all others. With two stripes and two children, every host sends two halves.
Such trees are low, whereas a chain has a link for every host.

For example, two stripes go from host 0 to seven others. Hosts 1, 3, 5 and 7 are inner hosts of the
first tree, and hosts 2, 4 and 6 of the second. Both trees are four links high; a chain would have
seven.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.edge_colouring import colour_messages
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import shortest_routes
from jaxcoll.progress import Report
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth.building.base import BUCKET_BYTES, SOON, Counts, Problem, Synthesizer
from jaxcoll.synth.building.circles import (
    SLOW,
    has_one_port,
    leaves_of,
    rail_slowness,
    ranks_below,
)
from jaxcoll.synth.building.list_scheduling import LinkedSends, by_urgency, link_ticks
from jaxcoll.synth.building.sends import check_everyone
from jaxcoll.synth.building.urgent_trees import most_urgent_first
from jaxcoll.synth.routing.spread_routes import spread_routes
from jaxcoll.synth.trees.leaf_stripes import trees_below
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Up to this number of ranks the trees of ``ForestColl`` are low enough, and they fill links better.
_FEW_RANKS = 64
# Numbers of pieces that the data are cut into. Few are tried: these show whether more pieces gain
# anything. If ranks have a single link out, the sends are ordered one by one, which takes twice the
# time, so that fewer pieces are tried.
_PIECES = (8, 128, 1024, 3072, 6144)
_PIECES_BY_ONE_PORT = (8, 384, 1536, 4608)
# Up to this number of ranks trees of each index are low enough, and a reduce takes less time in
# them: on rails of 1,024 ranks, 64 MiB in about 3,000 pieces take 1.11 times the bound, instead of
# 1.13 where hosts send on by all their ports. A broadcast takes 1.07 there either way; on DGX H100
# of 4,096 ranks it takes 1.31 and 1.11.
_FEW_FOR_INDICES = 1024
# Numbers of pieces where hosts send on by all their ports; and the degrees that are tried there, in
# times of the ports of a host.
_PIECES_ACROSS, _TIMES_ACROSS = (8, 384, 3072), (1, 2, 3, 4, 6, 8)
# The most sends that are listed, in a minute and a gigabyte.
_MOST_SENDS = 2**23
# The pieces of one index that are assumed when the degree is chosen; those of hosts of 8 ranks.
_PIECES_OF_INDEX = 768
_DEGREES = range(2, 17)
# How much less urgent each piece is than the one before it, as a share of the time in which one
# piece of every tree is sent. With a smaller share, ranks near the root send late pieces to the
# ends of trees while others wait for early ones: on a fat tree of 256 ranks a share of 0.1 takes
# 1.70 times the bound for 1 MiB, 0.3 takes 1.34 and 0.6 1.25; of 64 MiB all take 1.03.
_PACE = 0.6


@dataclasses.dataclass(frozen=True)
class StripedTrees(Synthesizer):
    """Broadcast over interior-disjoint trees of hosts, several for each rank of a host.

    Between hosts this is SplitStream (Castro et al., "SplitStream: high-bandwidth multicast in
    cooperative environments", SOSP 2003). The trees of index i join the i-th ranks of all hosts, so
    that every port of a host is in use, and each of these ranks passes its stripe on to the others
    of its host. Hosts are those of ``HierarchicalTree``, of consecutive ranks.

    In the root's host, the i-th rank gets the stripes of index i from the root. The root sends the
    stripes of its own index to only two ranks of its host, which pass them on to the others there.
    Where each rank has one link, to one of several leaf switches, the ranks of a leaf are a host,
    and there are as many trees of each stripe as the largest has ranks. There the root sends all
    data once, and the ranks of every host share what it sends equally (``leaf_stripes``).
    Of more than 1,024 ranks, trees in which hosts send on by all their ports may be lower: a piece
    that has entered a host goes to the ranks beside it anyway, and each of these sends it to
    ``degree`` / ranks other hosts. Each index then carries equal parts of all stripes.
    An index with a rank whose links are slower than usual has no trees, and its ranks are leaves in
    those of the other indices.

    Attributes:
        degree: stripes per index, which is also the number of children of an inner host. When
            omitted, it is the number, from 2 to 16 or the other hosts, that delays the last piece
            least; only then hosts may send on by all their ports.
        inner: ranks per host; when omitted those of the network, 1 if it has no hosts.
        nbytes: bytes of the buffer for which the degree is chosen.

    Raises:
        CollectiveError: a field is out of range.
    """

    degree: int | None = None
    inner: int | None = None
    nbytes: float = BUCKET_BYTES

    name: ClassVar[str] = "striped_trees"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"broadcast"})
    has_nbytes: ClassVar[bool] = True
    most_chunks: ClassVar[int] = 2**13
    put_off: ClassVar[float] = SOON

    def __post_init__(self) -> None:
        checks.put(self, nbytes=checks.nbytes(self.nbytes, CollectiveError))
        checks.integer_fields(self, CollectiveError, "degree", "inner", or_none=True)

    def may_win(self, problem: Problem) -> bool:
        """Whether there are switches, and so many ranks that other trees are high."""
        return problem.topology.num_ranks > _FEW_RANKS and not problem.topology.is_direct

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Multiples of the number of trees."""
        topology, (inner, degree, across) = problem.topology, self._shape(problem.topology)
        rails = len(self._rails(topology, inner))
        if across:
            trees = math.lcm(degree, rails)
            pieces = _pieces_across(topology)
            return (tuple(sorted({trees * max(1, each // trees) for each in pieces})),)
        trees, numbers = degree * rails, _PIECES
        if has_one_port(topology):
            numbers = _PIECES_BY_ONE_PORT
            most = _most_pieces(topology)
            if most < numbers[-1]:
                most = most // trees * trees or trees
                numbers = (*(pieces for pieces in numbers if 2 * pieces <= most), most)
        return (tuple(sorted({trees * -(-pieces // trees) for pieces in numbers})),)

    def work(self, problem: Problem) -> float:
        """Every send is put in order and simulated on each link of its path."""
        topology, inner = problem.topology, self._shape(problem.topology).inner
        n = topology.num_ranks
        # The ways from rank 0 to the first rank of each host, and to those beside it. Where a side
        # of a grid stands for a host, these are as long.
        leaves = self._leaves(topology)
        first = np.asarray([ranks[0] for ranks in leaves] or np.arange(0, n, inner))
        beside = np.asarray(leaves[0] if leaves else np.arange(inner))[1:]
        there = np.concatenate([first[1:], beside])
        hops = shortest_routes(topology, np.zeros_like(there), there).hops
        across = len(first) - 1
        within = hops[across:].mean() if len(beside) else 0.0
        crossed = hops[:across].sum() + (n - 1 - across) * within
        return max(1.0, float(crossed) / max(n - 1, 1) / 2) * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there are groups.
            TopologyError: the ranks of a host do not divide all ranks.
        """
        check_everyone(collective, self.name)
        chunks = collective.chunks_per_shard
        flow = self.flow(topology, collective.root_of(collective.groups[0]), chunks)
        across = self._shape(topology).across
        if across or has_one_port(topology):
            # A rank has far more ranks below some of its sends than below others of the same link.
            # The stream of the trees serves all children in turn, and lets whole subtrees wait for
            # leaves.
            return most_urgent_first(flow, collective, as_fraction(self.nbytes), _PACE, across)
        return flow.to_schedule(chunks // flow.k, collective=collective)

    def answer(self, problem: Problem, report: Report | None) -> Schedule:
        """The schedule; if there are many ranks, the sends of a sum are put in order one by one."""
        kind, order = problem.collective.traits, self._order_for(problem)
        few = problem.topology.num_ranks <= _FEW_RANKS
        if few or order is None or not (kind.has_root and kind.adds):
            return super().answer(problem, report)
        dual = self.solved(problem.backwards())
        return _backwards(dual, problem.collective, as_fraction(order))

    def flow(self, topology: Topology, root: int, chunks: int | None = None) -> TreeFlow:
        """The trees of a root, each with the same part of the data.

        Args:
            chunks: number of chunks that the trees share evenly. If it is not a multiple of the
                number of trees, fewer trees are used.

        Raises:
            TopologyError: the ranks of a host do not divide all ranks.
        """
        n, parents = topology.num_ranks, self._parents(topology, root)
        if chunks is not None:
            parents = parents[:: len(parents) // math.gcd(chunks, len(parents))]
        src, dst = (np.concatenate(ends) for ends in zip(*map(_downwards, parents), strict=True))
        key, edge = np.unique(src * n + dst, return_inverse=True)
        count = len(parents)
        made = TreeFlow(
            topology,
            k=count,
            shard=tuple(count * (rank == root) for rank in range(n)),
            root=np.full(count, root, np.int32),
            weight=np.ones(count, np.int64),
            edges=spread_routes(
                topology, key // n, key % n, np.bincount(edge), as_fraction(self.nbytes) / count
            ),
            tree_ptr=np.arange(count + 1) * (n - 1),
            edge=edge.astype(np.int32),
            inverse=Fraction(1),
        )
        claims = {"k": count, "height": made.height}
        return dataclasses.replace(made, inverse=made.slowest_link(), certificate=claims)

    def _parents(self, topology: Topology, root: int) -> list[np.ndarray]:
        """The parent of each rank in every tree; -1 for the root."""
        inner, degree, across = self._shape(topology)
        leaves = self._leaves(topology)
        if leaves:
            stripes = interior_disjoint(len(leaves), degree)
            return trees_below(leaves, stripes, inner, root, _slow_ranks(topology))
        hosts, rails = topology.num_ranks // inner, self._rails(topology, inner)
        stripes = interior_disjoint(hosts, degree)
        if across:
            return [
                _of_ranks(above, inner, rail, root, turn)
                for above, turn, rail in _across_rails(stripes, np.asarray(rails))
            ]
        return [
            _of_ranks(above, inner, np.full(hosts, rail), root, turn)
            for turn, above in enumerate(stripes)
            for rail in rails
        ]

    def _leaves(self, topology: Topology) -> list[np.ndarray]:
        """The ranks of each host if each has a single link out; else empty."""
        if self.inner is None or not has_one_port(topology):
            return leaves_of(topology)
        return [*np.arange(topology.num_ranks).reshape(-1, self.inner)]

    def _rails(self, topology: Topology, inner: int) -> list[int]:
        """The indices that have trees: those without a slow rank, or all if none is without."""
        if not 1 < inner < topology.num_ranks or has_one_port(topology):
            return list(range(inner))
        is_slow = (rail_slowness(topology, inner) > SLOW).any(axis=0)
        fast = np.flatnonzero(~is_slow.reshape(-1, inner).any(axis=0))
        # A slow inner rank would hold up all ranks below it. Without its index, the others only
        # have to carry a little more.
        return fast.tolist() or list(range(inner))

    def _shape(self, topology: Topology) -> _Shape:
        """Ranks per host, at most, and the degree.

        Raises:
            TopologyError: the ranks of a host do not divide all ranks.
        """
        leaves = self._leaves(topology) if self.inner is None else []
        if leaves:
            inner = max(map(len, leaves))
            return self._with_degree(topology, inner, len(leaves), int(leaves[1][0]))
        try:
            inner = ranks_below(topology, self.name) if self.inner is None else self.inner
        except TopologyError:
            inner = 1
        if topology.num_ranks % inner:
            raise TopologyError(
                f"{self.name} takes hosts of {inner} ranks, which does not divide the "
                f"{topology.num_ranks} of {topology}; give another inner="
            )
        return self._with_degree(topology, inner, topology.num_ranks // inner, inner)

    def _with_degree(self, topology: Topology, inner: int, hosts: int, there: int) -> _Shape:
        most = max(hosts - 1, 1)  # more trees would have no host inside
        if self.degree is not None or most == 1:
            return _Shape(inner, min(self.degree or 1, most), False)
        delay, degree = lowest_delay(topology, inner, hosts, there, self.nbytes)
        has_ports = inner > 1 and not (topology.is_direct or has_one_port(topology))
        if topology.num_ranks > _FEW_FOR_INDICES and has_ports:
            rails = len(self._rails(topology, inner))
            less, other = lowest_delay_across(topology, inner, rails, self.nbytes)
            if less < delay:
                return _Shape(inner, other, True)
        return _Shape(inner, min(degree, most), False)


class _Shape(NamedTuple):
    """The shape of trees.

    Attributes:
        inner: ranks per host, at most.
        degree: stripes of a host, or of each index.
        across: whether hosts send on by all their ports.
    """

    inner: int
    degree: int
    across: bool


def _backwards(schedule: Schedule, collective: Collective, nbytes: Fraction) -> Schedule:
    """The sum whose sends are those of a broadcast backwards, the last to arrive first.

    Played backwards, the run of the broadcast is a run of the sum. But nobody waits for the root
    then, so that ranks run ahead of it where they can, and where a rank sends in exactly that order
    it waits for others that are late. So of the sends that are ready, a free link serves the one
    that arrives last in the broadcast.

    Args:
        schedule: the broadcast on the transposed network; each chunk enters a rank once.
    """
    back, ranks = schedule.reverse(), schedule.topology.num_ranks
    run = simulate(schedule, nbytes)
    last = run.hop_ptr[1:] - 1
    arrival = np.repeat(run.hop_start[last] + run.hop_delay[last], np.diff(schedule.message_ptr))
    arrived = np.zeros(collective.num_chunks * ranks, arrival.dtype)
    arrived[schedule.chunk.astype(np.int64) * ranks + schedule.dst] = arrival
    # A rank sends each chunk once, after all sends of the chunk to the rank.
    edge, first = back.edge.astype(np.int64), back.chunk.astype(np.int64) * ranks
    sent = np.full(len(arrived), -1)
    sent[first + back.src] = np.arange(len(edge))
    after = sent[first + back.dst]
    ptr = np.append(0, np.cumsum(after >= 0))
    sums = np.ones(len(edge), bool)
    sends = LinkedSends(back.edges, edge, first // ranks, sums, ptr, after[after >= 0])
    ticks = link_ticks(back.topology, collective, nbytes, int(back.edges.hops[edge].sum()))
    found = by_urgency(back.topology, collective, sends, -arrived[first + back.src], *ticks)
    claims = dict(schedule.provenance.certificate)
    return found.with_provenance(Provenance(certificate={schedule.collective.kind: claims}))


def lowest_delay(
    topology: Topology, inner: int, hosts: int, there: int, nbytes: float
) -> tuple[float, int]:
    """The seconds after which the last piece arrives, and the degree with which that is soonest.

    On its way down the piece crosses the network once per link of its tree, and at every inner host
    it leaves to one child after another. More children mean a longer wait at fewer hosts.

    Args:
        inner: ranks per host, at most.
        there: a rank of another host than that of rank 0.
    """
    route = shortest_routes(topology, np.zeros(1, np.int32), np.full(1, there, np.int32)).path(0)
    links = np.asarray(route)
    most = _most_pieces(topology)
    if has_one_port(topology):
        most = min(most, _PIECES_BY_ONE_PORT[-1])
    pieces = min(_PIECES_OF_INDEX, max(1, most // inner))
    seconds = nbytes / inner / topology.bandwidth[links].min() / pieces
    degrees = list(_DEGREES[: hosts - 1])
    if has_one_port(topology) and inner > 1:
        # The other ranks of the root's host take equal turns with the stripes of its index.
        degrees = [degree for degree in degrees if degree % (inner - 1) == 0] or degrees
    # With one stripe per host every tree has a single inner host below the root, which sends to all
    # others: of little data on many hosts, a latency less counts more than the wait.
    degrees.append(hosts - 1)
    delays = {
        degree: max(_depths(tree).max() for tree in interior_disjoint(hosts, degree))
        * (topology.alpha[links].sum() + (degree + 1) * seconds)
        for degree in degrees
    }
    best = min(delays, key=lambda degree: delays[degree])
    return delays[best], best


def lowest_delay_across(
    topology: Topology, inner: int, rails: int, nbytes: float
) -> tuple[float, int]:
    """``lowest_delay`` where hosts send on by all their ports.

    A piece that has entered a host goes to the ranks beside it, and from each of these to as many
    other hosts as their ports share evenly.

    Args:
        rails: number of ports of a host that are used, which divides the degrees that are tried.
    """
    routes = shortest_routes(topology, np.zeros(2, np.int32), np.array([inner, 1], np.int32))
    across, within = (np.asarray(routes.path(place)) for place in range(2))
    seconds = nbytes / _pieces_across(topology)[-1] / topology.bandwidth
    level = sum(topology.alpha[path].sum() + seconds[path].sum() for path in (across, within))
    hosts, delays = topology.num_ranks // inner, {}
    # More stripes than ports, but not as many as hosts, of which each tree would have few pieces.
    degrees = [rails * times for times in _TIMES_ACROSS if rails * times < hosts]
    for degree in degrees or [hosts - 1]:
        depth = max(_depths(tree).max() for tree in interior_disjoint(hosts, degree))
        # Hosts that send on are served before leaves. The root's host sends each piece once.
        inside = min(degree, (hosts - 1) // degree)
        waits = [0, *[-(-inside // rails) - 1] * (depth - 2), -(-degree // rails) - 1]
        delays[degree] = float(depth * level + sum(waits) * seconds[across].max())
    best = min(delays, key=lambda degree: delays[degree])
    return delays[best], best


def _most_pieces(topology: Topology) -> int:
    """The most pieces that are tried, as the default lists no more sends."""
    return _MOST_SENDS // (topology.num_ranks - 1)


def _pieces_across(topology: Topology) -> tuple[int, ...]:
    """Numbers of pieces to try where hosts send on by all their ports."""
    return tuple(min(pieces, _most_pieces(topology)) for pieces in _PIECES_ACROSS)


def interior_disjoint(hosts: int, degree: int) -> list[np.ndarray]:
    """Trees from host 0, each as the parent of every host (-1 for host 0).

    Host v is an inner host of tree (v - 1) mod ``degree`` only, where it has up to ``degree``
    children. If ``degree`` does not divide the hosts evenly, some trees have fewer inner hosts than
    their leaves need; the leaves that remain go to hosts that have a child less than they may.

    Args:
        hosts: number of hosts, more than ``degree``, so that every tree has an inner host.
    """
    host, spare = np.arange(hosts), np.full(hosts, degree)
    trees, left = [], []
    for tree in range(degree):
        parent, is_inside = np.full(hosts, -1), (host - 1) % degree == tree
        inside, leaves = (host[1:][which[1:]] for which in (is_inside, ~is_inside))
        # Filled from the root down, a tree is lowest if all inner hosts come before any leaf. The
        # last hosts are the first leaves: at the bottom of their own trees they have fewer children
        # than they may, and so can take leaves that remain.
        order = np.concatenate([inside, leaves[::-1]])
        above = np.append(0, np.repeat(inside, degree))[: len(order)]
        parent[order[: len(above)]] = above
        np.subtract.at(spare, above, 1)
        trees.append(parent)
        left.append(order[len(above) :].tolist())
    for parent, rest in zip(trees, left, strict=True):
        depth = _depths(parent)
        depth[rest] = hosts
        for v in rest:
            u = int(np.where((spare > 0) & (depth < hosts), depth, hosts).argmin())
            parent[v], depth[v], spare[u] = u, depth[u] + 1, spare[u] - 1
    return trees


def _across_rails(
    stripes: list[np.ndarray], rails: np.ndarray
) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
    """Trees of hosts, with the index by which each host is entered, int64 of shape (hosts,).

    Each host sends and receives equally much by every index. As many colours as stripes are enough
    for the edges of all trees to differ at both ends (Koenig), and colours take turns at the
    indices. If these do not divide the stripes evenly, each stripe has several trees, in which the
    turn is another.

    Args:
        stripes: trees of hosts, each as the parent of every host (-1 for the root's).
        rails: the indices that are used.

    Yields:
        A tree; how many trees enter the network by the same index before it; and the indices, where
        that of the root's host is the one of its only send.
    """
    degree, hosts = len(stripes), len(stripes[0])
    src, dst = np.concatenate([above[1:] for above in stripes]), np.arange(1, hosts)
    # A host has one number as a sender and another one as a receiver: it may do both at once.
    colour = colour_messages(src, np.tile(dst, degree) + hosts).reshape(degree, hosts - 1)
    left = Counter[int]()
    for above, turn in zip(stripes, colour, strict=True):
        for shift in range(len(rails) // math.gcd(degree, len(rails))):
            rail = rails[(turn + shift) % len(rails)]
            start = int(rail[np.flatnonzero(above[1:] == 0)[0]])
            yield above, left[start], np.append(start, rail)
            left[start] += 1


def _of_ranks(above: np.ndarray, inner: int, rail: np.ndarray, root: int, turn: int) -> np.ndarray:
    """The parent of each rank in the tree of a stripe; -1 for the root.

    Args:
        above: the parent of each host in the tree of hosts; host 0 stands for the root's host.
        rail: the index by which each host is entered, for host 0 the one by which it is left.
        turn: a number, so that the ranks of the root's host take turns.
    """
    hosts = len(above)
    first = (root // inner + np.arange(hosts)) % hosts * inner
    parent = np.empty(hosts * inner, np.int64)
    parent.reshape(hosts, inner)[first // inner] = (first + rail)[:, None]
    parent[first[1:] + rail[1:]] = first[above[1:]] + rail[1:]
    head = first[0] + int(rail[0])
    parent[head] = root
    if head == root:
        # The root sends its own index's stripes to two ranks, and each of these to three others.
        # Sending to all, it would send nearly twice as much as enters any host.
        others = first[0] + np.arange(inner)
        others = np.roll(others[others != root], turn)
        parent[others[:2]] = root
        parent[others[2:]] = others[np.arange(len(others[2:])) // 3]
    parent[root] = -1
    return parent


def _slow_ranks(topology: Topology) -> np.ndarray:
    """The ranks with a single link out whose link, either way, is slower than most, bool."""
    n = topology.num_ranks
    speed = np.full(n, np.inf)
    for ends in (topology.src, topology.dst):
        mine = ends < n
        np.minimum.at(speed, ends[mine], topology.bandwidth[mine])
    return speed * SLOW < np.median(speed)


def _downwards(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges of a tree from the root down, each after the edge into its start."""
    order = np.argsort(_depths(parent), kind="stable")[1:]
    return parent[order], order


def _depths(parent: np.ndarray) -> np.ndarray:
    """The number of edges between each place and its root, int64 of shape (places,)."""
    depth, at = np.zeros(len(parent), np.int64), np.arange(len(parent))
    while (parent[at] >= 0).any():
        depth += parent[at] >= 0
        at = np.where(parent[at] >= 0, parent[at], at)
    return depth
