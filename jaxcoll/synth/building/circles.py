"""Circles through all ranks: over links, as many as share none, and through hosts, one per rank.

A ring is as fast as the links that it follows. The links of a torus can all be divided among
circles: Kotzig, "Every Cartesian product of two circuits is decomposable into two Hamiltonian
circuits" (1973), and Aubert and Schneider (1982) for more dimensions. Their existence proofs
distinguish many cases. Here only the proofs' last step is used: the links of squares are exchanged
until all circles of a dimension have become one (``_Squares``). Other networks are searched by
rotations of a path (Pósa, "Hamiltonian circuits in random graphs", 1976), one circle after
another over the links that are left. Both searches are bounded, and the same network gives the
same circles.

A network does not say which ranks share a host, but its bandwidths do: ranks that are joined by
links above the least bandwidth form a host, if all such parts have equal size and consecutive
ranks. A circle through all ranks is then a chain through every host and a link between hosts. There
is one circle per rank of a host, and each enters the hosts at another rank, so that the network
links of all ranks are used.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np

from jaxcoll.grid import Grid, Placement
from jaxcoll.numerics.connectivity import components
from jaxcoll.paths import shortest_routes
from jaxcoll.synth.building.grids import rank_grid_of
from jaxcoll.topology import Topology

Circle = tuple[int, ...]

_MOST_CIRCLES = 16  # more than the ports of any rank but those of fully connected networks
_ROTATIONS = 16  # a rank and circle: Pósa's paths close within a few
_STARTS = 4  # first circles from which others are looked for among the links left
_SPEEDS = 8  # thresholds tried
_WORTH = 1.25  # times the bytes for which circles over slower links, and more of them, are taken
_FEW_RANKS = 128  # up to which several are tried
_EXCHANGES = 8  # of squares, a rank, beyond those that join two circles
_NEVER = 3  # above the most circles that an exchange splits


def circles_of(topology: Topology, ranks: np.ndarray, both_ways: bool) -> tuple[Circle, ...]:
    """The circles of hosts behind switches, or those over links; none where there are neither.

    Args:
        ranks: of a group, at least three.
        both_ways: see ``link_circles``.

    Returns:
        Orders of the indices of ``ranks``.
    """
    everyone = np.array_equal(ranks, np.arange(topology.num_ranks))
    inner = 0 if topology.is_direct or not everyone else joined_ranks(topology)
    if inner:
        return host_circles(topology, inner)
    return link_circles(topology, tuple(ranks.tolist()), both_ways)


@functools.lru_cache(maxsize=64)
def link_circles(topology: Topology, ranks: Circle, both_ways: bool) -> tuple[Circle, ...]:
    """Circles through all the ranks over links between them, no two of which share a link.

    Those that move the most bytes together, about: a circle is as fast as its slowest link, so
    links slower than a threshold are left out, and links several times as fast stand for several,
    as parallel ones do. None are found where a network has none, or where the search gives up.

    Args:
        ranks: at least three; links to and between other vertices are left out.
        both_ways: whether links must lead both ways round; if not, a network whose links lead one
            way only has circles too.

    Returns:
        Orders of the indices of ``ranks``.
    """
    index = np.full(topology.num_vertices, -1, np.int64)
    index[list(ranks)] = np.arange(len(ranks))
    src, dst = index[topology.src], index[topology.dst]
    inside = (src >= 0) & (dst >= 0)
    speeds = np.unique(topology.bandwidth[inside])[::-1]
    best: tuple[Circle, ...] = ()
    most = 0.0
    for speed in speeds[np.linspace(0, len(speeds) - 1, min(_SPEEDS, len(speeds)), dtype=int)]:
        # From rank to rank, how many circles of this speed the links hold. A bandwidth that is a
        # multiple of it but for rounding counts as the whole multiple.
        times = topology.bandwidth[inside] / speed * (1 + 1e-9)
        room = np.zeros((len(ranks), len(ranks)), np.int64)
        number = np.minimum(times, _MOST_CIRCLES).astype(np.int64)
        np.add.at(room, (src[inside], dst[inside]), number)
        found = _both_ways(topology, ranks, room)
        if not found and not both_ways:
            found = _one_way(room)
        # The bytes per second of all circles together, each as fast as the threshold. Lower
        # thresholds may find more circles, and only a clear gain is worth the slower links.
        if len(found) * speed > _WORTH * most:
            best, most = tuple(found), len(found) * speed
    return best


def _both_ways(topology: Topology, ranks: Circle, room: np.ndarray) -> list[Circle]:
    """Circles over links that lead both ways."""
    mutual = np.minimum(room, room.T)
    # Each circle takes two links at every rank: the rank with the fewest says how many circles
    # there can be.
    most = min(int(mutual.sum(axis=1).min()) // 2, _MOST_CIRCLES)
    found: list[Circle] = []
    if most and topology.placement is not None and ranks == tuple(range(topology.num_ranks)):
        found = _on_grid(topology.placement, mutual)
    return found if len(found) >= most else max(found, _one_after_another(mutual, most), key=len)


def _follows_links(circle: np.ndarray, room: np.ndarray) -> bool:
    return bool(room[circle, np.roll(circle, -1)].all())


# ---------------------------------------------------------------------- search


def _one_after_another(mutual: np.ndarray, most: int) -> list[Circle]:
    """Circles found greedily, the most from several first ones."""
    n = len(mutual)
    best: list[Circle] = []
    for start in range(_STARTS if n <= _FEW_RANKS else 1):
        room, found = mutual.copy(), []
        rng = np.random.default_rng(start)
        while len(found) < most:
            # The order of the ranks themselves comes first where its links exist.
            circle: np.ndarray | None = np.arange(n)
            if found or start or not _follows_links(np.arange(n), room):
                circle = _rotated(room, rng)
            if circle is None:
                break
            found.append(tuple(circle.tolist()))
            ends = circle, np.roll(circle, -1)
            room[ends] -= 1
            room[ends[::-1]] -= 1
        best = max(best, found, key=len)
        if len(best) == most or not found:
            break
    return best


def _rotated(room: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """A circle by rotations: a path whose end cannot go on is turned over behind a neighbour.

    Paths go on to the rank with the fewest ways on that are left, ties broken at random, and to the
    first one when all ranks are on the path and its end has a link to its beginning.
    """
    n = len(room)
    near = [np.flatnonzero(row) for row in room]
    if min(map(len, near)) < 2:
        return None
    is_circles = max(map(len, near)) == 2  # nothing to choose: one circle, or none through all
    left = np.array([len(row) for row in near])
    path, place, length = np.empty(n, np.int64), np.full(n, -1), 0

    def go(rank: int) -> None:
        nonlocal length
        path[length], place[rank] = rank, length
        left[near[rank]] -= 1
        length += 1

    go(0)
    for _ in range(_ROTATIONS * n):
        end = path[length - 1]
        fresh = near[end][place[near[end]] < 0]
        if len(fresh):
            go(int(fresh[(left[fresh] + rng.random(len(fresh))).argmin()]))
            continue
        if length == n and room[end, path[0]]:
            return path
        # A rotation (Posa, 1976): where the end of a path has no fresh neighbour, it has one inside
        # the path; what lies behind that one is reversed, so that another rank is the end and the
        # path is as long as before.
        behind = [v for v in near[end] if place[v] < length - 2]
        if not behind or is_circles:
            return None
        pivot = place[rng.choice(behind)] + 1
        path[pivot:length] = path[pivot:length][::-1].copy()
        place[path[pivot:length]] = np.arange(pivot, length)
    return None


def _one_way(room: np.ndarray) -> list[Circle]:
    """A circle over links that lead one way, by depth-first search."""
    n = len(room)
    for circle in (np.arange(n), np.arange(n)[::-1]):
        if _follows_links(circle, room):
            return [tuple(circle.tolist())]
    # Ranks with few links into them are tried first: later on they could not be entered any more.
    behind = (room > 0).sum(axis=0)
    near = [[int(v) for v in np.argsort(behind, kind="stable") if row[v]] for row in room]
    found = _through_all(0, n, near.__getitem__, lambda end: bool(room[end, 0]), _ROTATIONS * n)
    return [tuple(found)] if found else []


def _through_all(
    start: int,
    n: int,
    near: Callable[[int], list[int]],
    may_end: Callable[[int], bool],
    tries: int,
) -> list[int]:
    """The first path through n vertices that ends where it may, depth first; empty if none.

    Args:
        near: from a vertex to those that it leads to, in the order in which they are tried.
        tries: vertices that are added or taken off before the search is given up.
    """
    path, on_path, choices = [start], {start}, [iter(near(start))]
    # A Hamiltonian path, by backtracking: hard in general, found at once on the cliques and rings
    # that hosts are, hence a bound on the tries and not on the time.
    for _ in range(tries):
        if len(path) == n and may_end(path[-1]):
            return path
        following = next((v for v in choices[-1] if v not in on_path), None)
        if following is not None:
            path.append(following)
            on_path.add(following)
            choices.append(iter(near(following)))
            continue
        on_path.discard(path.pop())
        choices.pop()
        if not path:
            break
    return []


# ---------------------------------------------------------------------- grids


def _on_grid(placement: Placement, mutual: np.ndarray) -> list[Circle]:
    """The circles of a mesh, torus or hypercube; none where links are missing."""
    grid, ranks = placement.grid, np.asarray(placement.ranks)
    there = np.concatenate([grid.neighbour_pairs(d) for d in range(len(grid.shape))])
    if not mutual[tuple(ranks[there].T)].all():
        return []
    squares = _Squares(grid)
    found = squares.joined() if squares.count else _back_and_forth(grid)
    return [tuple(ranks[circle].tolist()) for circle in found]


def _back_and_forth(grid: Grid) -> list[list[int]]:
    """The circle through all positions of a mesh of two dimensions or more, if a side is even.

    Out along the first places of all rows, back and forth through what is left of each row; a row
    is all that is at one place along the even side, itself gone through back and forth.
    """
    sides = [side for side in grid.shape if side > 1]
    even = next((d for d, side in enumerate(sides) if side % 2 == 0), None)
    if even is None or len(sides) < 2:
        return []
    rows = np.moveaxis(np.arange(grid.size).reshape(sides), even, 0)
    while rows.ndim > 2:
        lines = rows.copy()
        lines[..., 1::2, :] = lines[..., 1::2, ::-1]
        rows = lines.reshape(*rows.shape[:-2], -1)
    back = rows[::-1, 1:].copy()
    back[1::2] = back[1::2, ::-1]
    return [[*rows[:, 0].tolist(), *back.ravel().tolist()]]


class _Squares:
    """Closed dimensions of a grid, each one colour: its links are circles that become one.

    A square of two dimensions has two links of each. Where those of one dimension have one colour
    and those of the other another, exchanging the colours keeps two links of either at every rank.
    It joins two circles of a colour if the links are on different ones; a circle that both are on
    is kept whole if they lead the same way, and split otherwise. Pairs of sides of 2 are circles of
    four. Links of dimensions that are not closed have no colour, and are exchanged all the same.

    Attributes:
        count: number of colours.
        ahead: the rank after each along each dimension, int64 of shape (ranks, dimensions).
        colour: of the link to it, likewise; -1 for none.
        circle: of each link, a number, likewise.
        upwards: whether that circle, walked round, takes the link upwards, likewise.
        corner: the ranks v and the dimensions d and e of each square, int64 of shape (squares,).
    """

    def __init__(self, grid: Grid) -> None:
        dims = range(len(grid.shape))
        self.ahead = np.stack([grid.translation(d) for d in dims], axis=1)
        is_link = np.array(grid.wrap) | (grid.coordinates() < np.array(grid.shape) - 1)
        twos = [d for d in dims if grid.shape[d] == 2]
        groups = [[d] for d in dims if grid.wrap[d]]
        groups += [list(pair) for pair in zip(twos[::2], twos[1::2], strict=False)]
        self.count = len(groups)
        self.colour = np.full(is_link.shape, -1)
        for number, members in enumerate(groups):
            for d in members:
                self.colour[is_link[:, d], d] = number
        self.circle = np.zeros(is_link.shape, np.int64)
        self.upwards = np.zeros(is_link.shape, bool)
        corners = [
            (v, d, e)
            for d, e in itertools.combinations(dims, 2)
            for v in np.flatnonzero(is_link[:, d] & is_link[:, e])
        ]
        self.corner = np.array(corners, np.int64).reshape(-1, 3).T

    def joined(self) -> list[list[int]]:
        """One circle per colour; those of colours that exchanges do not make one are left out."""
        n = len(self.ahead)
        walks = [self._walk(colour) for colour in range(self.count)]
        rng = np.random.default_rng(0)
        idle = 0
        while any(len(walk) < n for walk in walks) and idle < _EXCHANGES * n:
            gain = self._gains()
            if not len(gain) or gain.min() == _NEVER:
                break
            # Exchanges that join circles are always taken. Where there are none, one that changes
            # nothing or splits a circle may open a way; so many in all are borne before the search
            # ends.
            idle += gain.min() >= 0
            best = rng.permutation(np.flatnonzero(gain == gain.min()))
            for colour in self._exchange(best if gain.min() < 0 else best[:1]):
                walks[colour] = self._walk(colour)
        return [walk for walk in walks if len(walk) == n]

    def _links(self, square: np.ndarray | int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Both links along the one dimension of squares, and both along the other."""
        v, d, e = self.corner[:, square]
        return (v, d), (self.ahead[v, e], d), (v, e), (self.ahead[v, d], e)

    def _gains(self) -> np.ndarray:
        """How many circles more every square makes, int64 of shape (squares,)."""
        one, other, across, beyond = self._links(np.arange(self.corner.shape[1]))
        may = self.colour[one] == self.colour[other]
        may &= self.colour[across] == self.colour[beyond]
        may &= self.colour[one] != self.colour[across]
        gain = np.zeros(len(may), np.int64)
        for first, second in ((one, other), (across, beyond)):
            same = self.circle[first] == self.circle[second]
            change = np.where(same, self.upwards[first] != self.upwards[second], -1)
            gain += np.where(self.colour[first] < 0, 0, change)
        return np.where(may, gain, _NEVER)

    def _exchange(self, squares: np.ndarray) -> set[int]:
        """Exchange the squares, but for those on a circle of one before; the colours changed."""
        colour, circle = self.colour.copy(), self.circle
        seen: set[tuple[int, int]] = set()
        for links in map(self._links, squares.tolist()):
            # A link without colour is on no circle and stands for itself, as a colour below 0.
            on = {
                (int(colour[v, d]), int(circle[v, d]))
                if colour[v, d] >= 0
                else (-1 - int(d), int(v))
                for v, d in links
            }
            if on & seen:
                continue
            seen |= on
            one, other, across, beyond = links
            self.colour[one] = self.colour[other] = colour[across]
            self.colour[across] = self.colour[beyond] = colour[one]
        return {which for which, _ in seen if which >= 0}

    def _walk(self, colour: int) -> list[int]:
        """Number the circles of a colour; the ranks of the one through rank 0, in order."""
        n = len(self.ahead)
        tail, dim = np.nonzero(self.colour == colour)
        head = self.ahead[tail, dim]
        ends = np.concatenate([tail, head])
        link = np.tile(np.arange(len(tail)), 2)[np.argsort(ends, kind="stable")].reshape(n, 2)
        at, to, both = tail.tolist(), head.tolist(), link.tolist()
        circle, upwards = [-1] * len(at), [False] * len(at)
        first: list[int] = []
        for start in range(n):
            rank, way, walk = start, both[start][0], []
            while circle[way] < 0:
                walk.append(rank)
                circle[way], upwards[way] = start, at[way] == rank
                rank = to[way] if upwards[way] else at[way]
                way = both[rank][0] if both[rank][1] == way else both[rank][1]
            first = first or walk
        self.circle[tail, dim], self.upwards[tail, dim] = circle, upwards
        return first


# Ranks that the search for a chain may try to add before it gives up.
_MOST_TRIES = 20_000


def joined_ranks(topology: Topology) -> int:
    """Ranks of a host, if hosts are what links above the least bandwidth join; 0 if they are not.

    Hosts have consecutive ranks, two or more and as many in each, and are several.
    """
    fast = topology.bandwidth > topology.bandwidth.min(initial=np.inf)
    part = components(topology.num_vertices, topology.src[fast], topology.dst[fast])
    ranks = part[: topology.num_ranks]
    inner = int((ranks == ranks[0]).sum())
    if 1 < inner < len(ranks) and len(ranks) % inner == 0:
        hosts = ranks.reshape(-1, inner)
        if (hosts == hosts[:, :1]).all() and len(np.unique(hosts[:, 0])) == len(hosts):
            return inner
    return 0


def ranks_per_host(topology: Topology, who: str) -> int:
    """Ranks of a host (``joined_ranks``); else the innermost side of the grid that the network is.

    Args:
        who: the name of the algorithm that needs it, for errors.

    Raises:
        TopologyError: the network is not a grid either.
    """
    inner = joined_ranks(topology)
    if inner:
        return inner
    sides = [side for side in rank_grid_of(topology, who).grid.shape if side > 1]
    return sides[-1] if sides else 1


@functools.lru_cache(maxsize=64)
def host_chains(topology: Topology, inner: int) -> tuple[tuple[int, ...], ...]:
    """A chain through the ranks of a host for each of them to begin, as indices of the host.

    Where links join the ranks of the first host, chains follow them, each those least in use so far
    for their bandwidth, and end at different ranks if they can; behind a switch they go round the
    ranks in rising order.
    """
    wide = np.zeros((inner, inner))
    inside = (topology.src < inner) & (topology.dst < inner)
    np.add.at(wide, (topology.src[inside], topology.dst[inside]), topology.bandwidth[inside])
    used, ends, chains = np.zeros_like(wide), set(), []

    def least_used(u: int) -> list[int]:
        near = np.flatnonzero(wide[u])
        return near[np.argsort((used[u, near] + 1) / wide[u, near], kind="stable")].tolist()

    for start in range(inner):
        chain = _through_all(start, inner, least_used, lambda end: end not in ends, _MOST_TRIES)
        chain = chain or _through_all(start, inner, least_used, lambda _: True, _MOST_TRIES)
        if not chain:
            index = np.arange(inner)
            return tuple(tuple(np.roll(index, -first).tolist()) for first in range(inner))
        used[chain[:-1], chain[1:]] += 1
        ends.add(chain[-1])
        chains.append(tuple(chain))
    return tuple(chains)


def host_circles(topology: Topology, inner: int) -> tuple[tuple[int, ...], ...]:
    """A circle through all hosts for each rank of a host, over chains that begin with it.

    Of the ranks of a host each is entered by one circle and left by one. Where equal ranks of two
    hosts are nearer to one another than others, on a rail of their own, every second host is
    crossed backwards, so that circles keep to rails, as NCCL's alternated rings do
    (``ncclTopoPostset`` in ``graph/connect.cc``); between the last and the first of an odd number
    of hosts they change rails.
    """
    hosts = topology.num_ranks // inner
    circles = []
    for chain in map(np.array, host_chains(topology, inner)):
        alternates = False
        if hosts > 1:
            other, same = shortest_routes(topology, chain[[-1, -1]], inner + chain[[0, -1]]).hops
            alternates = same < other
        ways = [chain[::-1] if alternates and host % 2 else chain for host in range(hosts)]
        circle = np.concatenate([host * inner + way for host, way in enumerate(ways)])
        circles.append(tuple(circle.tolist()))
    return tuple(circles)
