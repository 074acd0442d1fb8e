"""Circles through all ranks: over links, as many as share none, or through hosts, one per rank.

A ring is as fast as the links that it follows. The links of a torus can all be divided among
circles: Kotzig, "Every Cartesian product of two circuits is decomposable into two Hamiltonian
circuits" (1973), and Aubert and Schneider (1982) for more dimensions. Their existence proofs
distinguish many cases. Here only the proofs' last step is used: the links of squares are exchanged
until all circles of a dimension have become one (``_Squares``). Other networks are searched by
rotations of a path (Pósa, "Hamiltonian circuits in random graphs", 1976), one circle after another
over the links that are left. Both searches are bounded, and the same network gives the same
circles.

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

_MOST_CIRCLES = 16  # more than the ports of a rank, except in fully connected networks
_ROTATIONS = 16  # per rank and circle; Pósa's paths close within a few
_STARTS = 4  # first circles tried; others are sought among the links left
_SPEEDS = 8  # number of thresholds tried
_WORTH = 1.25  # gain in bytes that justifies more circles over slower links
_FEW_RANKS = 128  # up to this number of ranks several first circles are tried
_EXCHANGES = 8  # exchanges of squares per rank that do not join two circles
_NEVER = 3  # more than the circles that one exchange can add


def circles_of(topology: Topology, ranks: np.ndarray, both_ways: bool) -> tuple[Circle, ...]:
    """The circles through hosts behind switches, or those over links; empty if neither exist.

    Args:
        ranks: the ranks of a group, at least three.
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

    Together they move about the most bytes possible. A circle is as fast as its slowest link, so
    links slower than a threshold are left out, and a link several times as fast counts as several
    links, like parallel ones. The result is empty if the network has no circles or the search gives
    up.

    Args:
        ranks: at least three ranks; links to and between other vertices are ignored.
        both_ways: whether circles must be usable in both directions; if not, networks whose links
            lead one way only have circles too.

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
        # The number of circles of this speed that the links between two ranks hold. A bandwidth
        # that is a multiple of the speed except for rounding counts as the whole multiple.
        times = topology.bandwidth[inside] / speed * (1 + 1e-9)
        room = np.zeros((len(ranks), len(ranks)), np.int64)
        number = np.minimum(times, _MOST_CIRCLES).astype(np.int64)
        np.add.at(room, (src[inside], dst[inside]), number)
        found = _both_ways(topology, ranks, room)
        if not found and not both_ways:
            found = _one_way(room)
        # All circles together move ``len(found) * speed`` bytes per second, as each is as fast as
        # the threshold. Lower thresholds may find more circles, but only a clear gain justifies
        # slower links.
        if len(found) * speed > _WORTH * most:
            best, most = tuple(found), len(found) * speed
    return best


def _both_ways(topology: Topology, ranks: Circle, room: np.ndarray) -> list[Circle]:
    """Circles over links that lead both ways."""
    mutual = np.minimum(room, room.T)
    # Each circle takes two links at every rank, so the rank with the fewest links limits the number
    # of circles.
    most = min(int(mutual.sum(axis=1).min()) // 2, _MOST_CIRCLES)
    found: list[Circle] = []
    if most and topology.placement is not None and ranks == tuple(range(topology.num_ranks)):
        found = _on_grid(topology.placement, mutual)
    return found if len(found) >= most else max(found, _one_after_another(mutual, most), key=len)


def _follows_links(circle: np.ndarray, room: np.ndarray) -> bool:
    return bool(room[circle, np.roll(circle, -1)].all())


# ---------------------------------------------------------------------- search


def _one_after_another(mutual: np.ndarray, most: int) -> list[Circle]:
    """Circles found greedily, from the first circle that leads to the most."""
    n = len(mutual)
    best: list[Circle] = []
    for start in range(_STARTS if n <= _FEW_RANKS else 1):
        room, found = mutual.copy(), []
        rng = np.random.default_rng(start)
        while len(found) < most:
            # The order of the ranks themselves is tried first, if its links exist.
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
    """A circle by rotations: if a path's end cannot go on, the part behind a neighbour is reversed.

    Paths go on to the rank with the fewest remaining ways on, with ties broken at random, and
    return to the first rank once all ranks are on the path and its end has a link to its beginning.
    """
    n = len(room)
    near = [np.flatnonzero(row) for row in room]
    if min(map(len, near)) < 2:
        return None
    is_circles = max(map(len, near)) == 2  # no choice: one circle, or none through all
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
        # A rotation (Posa, 1976): if the end of a path has no fresh neighbour, it has one inside
        # the path. The part behind that neighbour is reversed, so that the path has another end and
        # the same length.
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
    # Ranks with few links into them are tried first, because later they could not be entered.
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
    """The first path through n vertices with an allowed end, depth first; empty if none.

    Args:
        near: the vertices that each vertex leads to, in the order in which they are tried.
        tries: number of vertices to add or remove before the search gives up.
    """
    path, on_path, choices = [start], {start}, [iter(near(start))]
    # A Hamiltonian path by backtracking is hard in general, but found at once on cliques and rings,
    # which hosts are. So a bound on the tries suffices, and none on the time is needed.
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
    """The circles of a mesh, torus or hypercube; empty if links are missing."""
    grid, ranks = placement.grid, np.asarray(placement.ranks)
    there = np.concatenate([grid.neighbour_pairs(d) for d in range(len(grid.shape))])
    if not mutual[tuple(ranks[there].T)].all():
        return []
    squares = _Squares(grid)
    found = squares.joined() if squares.count else _back_and_forth(grid)
    return [tuple(ranks[circle].tolist()) for circle in found]


def _back_and_forth(grid: Grid) -> list[list[int]]:
    """The circle through all positions of a mesh of two or more dimensions, if a side is even.

    It goes out along the first places of all rows, and returns back and forth through the rest of
    each row. A row consists of all positions at one place along the even side, and is itself passed
    back and forth.
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
    """Closed dimensions of a grid, each with a colour, whose links form circles that become one.

    A square in two dimensions has two links of each. If the links of one dimension have one colour
    and those of the other dimension have another, exchanging the colours keeps two links of either
    colour at every rank. The exchange joins two circles of a colour if the two links are on
    different circles; if both are on one circle, it stays whole if they lead the same way, and is
    split otherwise. Pairs of sides of 2 are circles of four. Links of dimensions that are not
    closed have no colour, but are exchanged all the same.

    Attributes:
        count: number of colours.
        ahead: the next rank along each dimension, int64 of shape (ranks, dimensions).
        colour: the colour of the link to that rank, of the same shape; -1 for none.
        circle: the number of the circle of each link, of the same shape.
        upwards: whether that circle, in walking order, takes the link upwards, of the same shape.
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
        """One circle per colour, without the colours that exchanges do not make a single circle."""
        n = len(self.ahead)
        walks = [self._walk(colour) for colour in range(self.count)]
        rng = np.random.default_rng(0)
        idle = 0
        while any(len(walk) < n for walk in walks) and idle < _EXCHANGES * n:
            gain = self._gains()
            if not len(gain) or gain.min() == _NEVER:
                break
            # Exchanges that join circles are always made. If there are none, an exchange that
            # changes nothing or splits a circle may help later; the search ends after a limited
            # number of these.
            idle += gain.min() >= 0
            best = rng.permutation(np.flatnonzero(gain == gain.min()))
            for colour in self._exchange(best if gain.min() < 0 else best[:1]):
                walks[colour] = self._walk(colour)
        return [walk for walk in walks if len(walk) == n]

    def _links(self, square: np.ndarray | int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Both links along one dimension of squares, and both along the other."""
        v, d, e = self.corner[:, square]
        return (v, d), (self.ahead[v, e], d), (v, e), (self.ahead[v, d], e)

    def _gains(self) -> np.ndarray:
        """The change in the number of circles by each exchange, int64 of shape (squares,)."""
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
        """Exchange squares that share no circle with earlier ones; return the changed colours."""
        colour, circle = self.colour.copy(), self.circle
        seen: set[tuple[int, int]] = set()
        for links in map(self._links, squares.tolist()):
            # A link without colour is on no circle; it stands for itself, by a number below 0.
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
        """Number the circles of a colour; return the ranks of the one through rank 0, in order."""
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


# Number of ranks that the search for a chain may try to add before it gives up.
_MOST_TRIES = 20_000
# One in so many links may be slower than those between hosts.
_FEW = 32


def joined_ranks(topology: Topology) -> int:
    """Number of ranks per host, where links above the least bandwidth join hosts; else 0.

    There must be several hosts, each with the same number, at least two, of consecutive ranks. Up
    to one in ``_FEW`` links may be slower still: those of a rank with a broken cable say nothing of
    hosts.
    """
    speeds, count = np.unique(topology.bandwidth, return_counts=True)
    below = np.cumsum(count) - count
    for least in speeds[below * _FEW <= topology.num_links]:
        fast = topology.bandwidth > least
        part = components(topology.num_vertices, topology.src[fast], topology.dst[fast])
        ranks = part[: topology.num_ranks]
        inner = int((ranks == ranks[0]).sum())
        if 1 < inner < len(ranks) and len(ranks) % inner == 0:
            hosts = ranks.reshape(-1, inner)
            if (hosts == hosts[:, :1]).all() and len(np.unique(hosts[:, 0])) == len(hosts):
                return inner
    return 0


def ranks_per_host(topology: Topology, who: str) -> int:
    """Ranks per host (``joined_ranks``), or else the innermost side of the network's grid.

    Args:
        who: the name of the algorithm that needs it, for errors.

    Raises:
        TopologyError: the network has no hosts and is not a grid either.
    """
    inner = joined_ranks(topology)
    if inner:
        return inner
    sides = [side for side in rank_grid_of(topology, who).grid.shape if side > 1]
    return sides[-1] if sides else 1


def ranks_below(topology: Topology, who: str) -> int:
    """Ranks per host, or else below each leaf switch, or else as ``ranks_per_host``.

    Args:
        who: the name of the algorithm that needs it, for errors.

    Raises:
        TopologyError: there are no hosts, no leaf switches of equally many ranks, and no grid.
    """
    return joined_ranks(topology) or ranks_per_leaf(topology) or ranks_per_host(topology, who)


def has_one_port(topology: Topology) -> bool:
    """Whether every rank has a single link out, for the ranks beside it and for all others."""
    n = topology.num_ranks
    return bool((np.bincount(topology.src[topology.src < n], minlength=n) == 1).all())


def leaf_of_rank(topology: Topology) -> np.ndarray | None:
    """The number of each rank's leaf switch, int64 of shape (ranks,); None if there are none.

    Every rank has a single link, to one of several switches, and some switch has several ranks.
    Leaves are numbered from 0 in the order of their first ranks.
    """
    n = topology.num_ranks
    if not has_one_port(topology):
        return None
    of_rank = topology.src < n
    switch = np.empty(n, np.int64)
    switch[topology.src[of_rank]] = topology.dst[of_rank]
    if switch.min() < n:
        return None
    _, first, leaf = np.unique(switch, return_index=True, return_inverse=True)
    if not 1 < len(first) < n:
        return None
    return np.argsort(np.argsort(first))[leaf]


def leaves_of(topology: Topology) -> list[np.ndarray]:
    """The ranks below each leaf switch of ``leaf_of_rank``, ascending; empty if there are none."""
    leaf = leaf_of_rank(topology)
    if leaf is None:
        return []
    order = np.argsort(leaf, kind="stable")
    return np.split(order, np.cumsum(np.bincount(leaf))[:-1])


def ranks_per_leaf(topology: Topology) -> int:
    """Number of consecutive ranks with one link, to one of several switches; 0 if they differ."""
    leaf = leaf_of_rank(topology)
    if leaf is None:
        return 0
    inner = len(leaf) // (int(leaf[-1]) + 1)
    return inner if np.array_equal(leaf, np.arange(len(leaf)) // inner) else 0


# Times of the usual time from which on a rank's rail is slow.
SLOW = 1.01


def rail_slowness(topology: Topology, inner: int) -> np.ndarray:
    """How slowly each rank serves its rail, in times of what most ranks take for the same bytes.

    Args:
        inner: ranks per host, at least 2, of consecutive ranks; there are several hosts.

    Returns:
        float64 of shape (2, ranks): sending along the rail; and receiving from it and passing
        everything on to the other ranks of the host, whichever takes longer. Infinite where a rank
        has no link of its own to the rail, or none from it.
    """
    n, rank = topology.num_ranks, np.arange(topology.num_ranks)
    behind, beside = (rank - inner) % n, rank // inner * inner + (rank + 1) % inner
    speed = topology.bandwidth
    along, within = shortest_routes(topology, behind, rank), shortest_routes(topology, rank, beside)
    out, inwards = np.empty(n), 1 / speed[along.path_link[along.path_ptr[1:] - 1]]
    out[behind] = 1 / speed[along.first_link]
    passed_on = (inner - 1) / speed[within.first_link]
    usual = max(np.median(each) for each in (out, inwards, passed_on))
    slowness = np.stack([out, np.maximum(inwards, passed_on)]) / usual
    # A rank without a link to its rail takes the link of another rank, which is as fast, and has
    # the data of two ranks then. That is where the ways to the next host and to the one after it
    # both have more hops than most. Between two hosts only one way is known, and both ends count.
    far = shortest_routes(topology, (rank - 2 * inner) % n if n > 2 * inner else behind, rank).hops
    longer = [hops > np.median(hops) for hops in (along.hops, far)]
    leaves = np.roll(longer[0], -inner) & np.roll(longer[1], -2 * inner)
    return np.where([leaves, longer[0] & longer[1]], np.inf, slowness)


@functools.lru_cache(maxsize=64)
def host_chains(topology: Topology, inner: int) -> tuple[tuple[int, ...], ...]:
    """One chain through a host from each of its ranks, as indices in the host.

    Where links join the ranks of the first host, chains follow these links. Each chain prefers the
    links least used so far for their bandwidth, and chains end at different ranks if they can.
    Behind a switch, chains go round the ranks in ascending order.
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

    Each rank of a host is entered by one circle and left by one. Where ranks with equal indices in
    two hosts are nearer to one another than others, because they share a rail, every second host is
    crossed backwards. So circles keep to rails, as NCCL's alternated rings do (``ncclTopoPostset``
    in ``graph/connect.cc``); between the last and the first of an odd number of hosts they change
    rails.
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
