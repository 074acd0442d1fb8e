"""Where the vertices of a network stand in a picture: on grids, in hosts, or in tiers of switches.

Every picture asks here, whether Matplotlib draws it, a page or a notebook; so this module takes a
network's columns and knows neither of them. Neighbours stand about 1 apart, up is positive, and
the same network always has the same picture.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from jaxcoll.grid import Placement
from jaxcoll.numerics.connectivity import components, hops_to

RADIUS = 0.17  # of a vertex, when neighbours are 1 apart
_MOST_IN_A_ROW = 16  # ranks; those of more are stacked below their switches


@dataclasses.dataclass(frozen=True)
class Layout:
    """A picture's skeleton.

    Attributes:
        place: the place of every vertex, float64 of shape (vertices, 2).
        width: the width of every vertex, float64 of shape (vertices,): above 0 for a switch drawn
            as a bar, which a link meets where it stands nearest.
        hosts: vertices that belong together, each at most once: hosts, or groups of a DragonFly.
        frames: the lower and upper corner around each host, float64 of shape (hosts, 2, 2).
        is_round: whether hosts are circles, and their frames too.
    """

    place: np.ndarray
    width: np.ndarray
    hosts: tuple[tuple[int, ...], ...] = ()
    frames: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2, 2)))
    is_round: bool = False

    def ends(self, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where links begin and end, two float64 of shape (links, 2)."""
        return self._meeting(src, dst), self._meeting(dst, src)

    def of(self, vertices: np.ndarray) -> Layout:
        """The same picture with some of its vertices, numbered in their order."""
        number = {int(v): i for i, v in enumerate(vertices)}
        hosts = [tuple(number[v] for v in host if v in number) for host in self.hosts]
        kept = [i for i, host in enumerate(hosts) if host]
        return Layout(
            self.place[vertices],
            self.width[vertices],
            tuple(hosts[i] for i in kept),
            self.frames[kept],
            self.is_round,
        )

    def _meeting(self, at: np.ndarray, other: np.ndarray) -> np.ndarray:
        """The point of vertices ``at`` that is level with ``other``, as far as the bar reaches."""
        half = self.width[at] / 2
        point = self.place[at].copy()
        point[:, 0] += np.clip(self.place[other][:, 0] - point[:, 0], -half, half)
        return point


def layout(
    num_ranks: int,
    num_vertices: int,
    src: np.ndarray,
    dst: np.ndarray,
    bandwidth: np.ndarray,
    placement: Placement | None = None,
) -> Layout:
    """The layout of a network of these columns, which are those of a ``Topology``.

    Direct networks on a grid of up to four sides stand on it. Other networks are looked at for
    hosts: parts that stay together when their slowest links are taken away. Without hosts,
    switches stand in tiers above the ranks, and ranks without switches on a circle.
    """
    points = np.zeros(num_vertices)
    if num_vertices == num_ranks:
        place = _on_grid(placement)
        if place is not None:
            return Layout(place, points)
    hosts = _hosts(num_ranks, num_vertices, src, dst, bandwidth)
    if hosts:
        # In rows where ranks reach the others of their host by switches only: wires between ranks
        # of a row would run over those between, and are seen on a circle.
        of_host = np.full(num_vertices, -1)
        for i, host in enumerate(hosts):
            of_host[[v for v in host if v < num_ranks]] = i
        beside = (of_host[src] == of_host[dst]) & (of_host[src] >= 0)
        place_hosts = _host_circle if beside.any() else _host_rows
        return place_hosts(num_ranks, num_vertices, hosts)
    if num_vertices == num_ranks:
        return Layout(_circle(num_ranks), points)
    if num_vertices == num_ranks + 1:
        return Layout(np.concatenate([_circle(num_ranks), np.zeros((1, 2))]), points)
    return Layout(_tiers(num_ranks, num_vertices, src, dst), points)


def host_names(names: Sequence[str], hosts: Sequence[Sequence[int]]) -> list[str]:
    """The words that the names of each host's vertices begin with, as "host 0"; or its number."""
    found = []
    for i, host in enumerate(hosts):
        words = zip(*(names[v].split() for v in host), strict=False) if names else ()
        common = [same[0] for same in itertools.takewhile(lambda w: len(set(w)) == 1, words)]
        found.append(" ".join(common).removesuffix(" rank") or f"group {i}")
    return found


def short_names(
    names: Sequence[str], num_ranks: int, num_vertices: int, layout: Layout
) -> list[str]:
    """What fits into the vertices: a rank's number, a switch's name without that of its host."""
    prefix = {
        v: name
        for name, host in zip(host_names(names, layout.hosts), layout.hosts, strict=True)
        for v in host
    }
    short = []
    for vertex in range(num_vertices):
        name = names[vertex] if names else str(vertex)
        if vertex >= num_ranks:
            name = name.removeprefix(prefix.get(vertex, "")).strip()
        most = 4 if vertex < num_ranks else 14
        short.append(name if name and len(name) <= most else str(vertex))
    return short


# ---------------------------------------------------------------------- grids


def _on_grid(placement: Placement | None) -> np.ndarray | None:
    """Ranks at their coordinates; a third and a fourth side go into the depth and beside."""
    if placement is None:
        return None
    grid = placement.grid
    sides = [d for d, side in enumerate(grid.shape) if side > 1]
    if not 1 <= len(sides) <= 4 or (len(sides) == 1 and grid.wrap[sides[0]]):
        return None  # a ring is best seen as one
    at = np.empty((grid.size, len(sides)))
    at[list(placement.ranks)] = grid.coordinates()[:, sides]
    if len(sides) == 1:
        return np.stack([at[:, 0], np.zeros(len(at))], axis=1)
    column, row = at[:, -1], at[:, -2]
    if len(sides) == 2:
        return np.stack([column, -row], axis=1)
    # Planes one behind the other would cover each other's links unless neighbours in the depth
    # stand between two columns and between two rows.
    depth, beside = at[:, -3], at[:, 0] if len(sides) == 4 else np.zeros(len(at))
    deepest = depth.max()
    step = 1.6 + 0.25 * deepest
    x = step * column + 0.52 * depth
    y = -step * row + 0.43 * depth
    return np.stack([x + beside * (np.ptp(x) + 1.3), y + 0.31 * beside], axis=1)


def _circle(count: int) -> np.ndarray:
    if count == 1:
        return np.zeros((1, 2))
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], axis=1) * _circle_radius(count)


def _circle_radius(count: int) -> float:
    return 0.5 / math.sin(math.pi / count) if count > 1 else 0.0


# ---------------------------------------------------------------------- hosts


def _hosts(
    num_ranks: int, num_vertices: int, src: np.ndarray, dst: np.ndarray, bandwidth: np.ndarray
) -> tuple[tuple[int, ...], ...]:
    """The parts left by taking away the slowest links, two or more that hold all ranks."""
    # Slowest first: links between hosts are slower than those inside.
    for slowest in np.unique(bandwidth)[:-1].tolist():
        fast = bandwidth > slowest
        first = components(num_vertices, src[fast], dst[fast])
        parts: dict[int, list[int]] = {}
        for vertex, least in enumerate(first.tolist()):
            parts.setdefault(least, []).append(vertex)
        # Ranks are the first vertices, so the least of a part is a rank if any is.
        with_ranks = [tuple(part) for least, part in parts.items() if least < num_ranks]
        sizes = [sum(v < num_ranks for v in part) for part in with_ranks]
        if min(sizes) < 2:
            return ()
        if len(with_ranks) > 1:
            return tuple(with_ranks)
    return ()


def _host_rows(num_ranks: int, num_vertices: int, hosts: tuple[tuple[int, ...], ...]) -> Layout:
    """Hosts in a row above and a row below the network that joins them.

    The ranks of a host face the network, its switches stand behind them.
    """
    place, width = np.zeros((num_vertices, 2)), np.zeros(num_vertices)
    ranks_of = [[v for v in host if v < num_ranks] for host in hosts]
    widest = max(map(len, ranks_of))
    above = (len(hosts) + 1) // 2
    frames = np.zeros((len(hosts), 2, 2))
    for i, host in enumerate(hosts):
        up, column, across = (1, i, above) if i < above else (-1, i - above, len(hosts) - above)
        middle = (column - (across - 1) / 2) * (widest + 0.9)
        _spread(place, ranks_of[i], middle, 1.55 * up, len(ranks_of[i]))
        switches = [v for v in host if v >= num_ranks]
        width[switches] = _spread(place, switches, middle, 2.75 * up, widest) - 0.5
        low, high = sorted((1.05 * up, 3.45 * up))
        frames[i] = ((middle - widest / 2, low), (middle + widest / 2, high))
    joining = sorted(set(range(num_vertices)) - {v for host in hosts for v in host})
    whole = above * (widest + 0.9) - 0.9
    width[joining] = _spread(place, joining, 0.0, 0.0, whole) - 0.5
    return Layout(place, width, hosts, frames)


def _spread(
    place: np.ndarray, vertices: Sequence[int], middle: float, y: float, width: float
) -> float:
    """Vertices in a row about ``middle``, evenly in a width; returns how far they are apart."""
    apart = width / max(len(vertices), 1)
    for i, vertex in enumerate(vertices):
        place[vertex] = (middle + apart * (i - (len(vertices) - 1) / 2), y)
    return apart


def _host_circle(num_ranks: int, num_vertices: int, hosts: tuple[tuple[int, ...], ...]) -> Layout:
    """Hosts as circles of their vertices on a large circle; the network that joins them inside."""
    place, width = np.zeros((num_vertices, 2)), np.zeros(num_vertices)
    own = np.array([_circle_radius(len(host)) + 0.55 for host in hosts])
    joining = sorted(set(range(num_vertices)) - {v for host in hosts for v in host})
    count = len(hosts)
    large = (own.max() + 0.3) / math.sin(math.pi / count)
    if joining:
        large = max(large, own.max() + _circle_radius(len(joining)) + 1.0)
    frames = np.zeros((count, 2, 2))
    for i, host in enumerate(hosts):
        # Two stand side by side, four at the corners of a square.
        angle = math.pi * (1 if count == 2 else 0.5 + 1 / count) - 2 * math.pi * i / count
        at = large * np.array([math.cos(angle), math.sin(angle)])
        # Turned so that the first vertex of every host points outwards.
        cosine, sine = math.cos(angle - math.pi / 2), math.sin(angle - math.pi / 2)
        turn = np.array([[cosine, sine], [-sine, cosine]])
        place[list(host)] = at + _circle(len(host)) @ turn
        frames[i] = (at - own[i], at + own[i])
    place[joining] = _circle(len(joining)) if joining else np.zeros((0, 2))
    return Layout(place, width, hosts, frames, is_round=True)


# ---------------------------------------------------------------------- tiers


def _tiers(num_ranks: int, num_vertices: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Ranks at the bottom, and switches in rows by their distance from the ranks.

    A row is ordered by the middle of what each switch joins below, as fat trees are drawn. Where
    ranks are many, those of one switch stand below it as a block.
    """
    near: list[list[int]] = [[] for _ in range(num_vertices)]
    ends = src.tolist(), dst.tolist()
    for u, v in sorted({*zip(*ends, strict=True), *zip(*ends[::-1], strict=True)}):
        near[u].append(v)
    far = hops_to(np.arange(num_ranks), num_vertices, src, dst)
    tier = np.maximum(far, 1) * (np.arange(num_vertices) >= num_ranks)
    place = np.zeros((num_vertices, 2))
    blocks: dict[int, list[int]] = {}  # ranks by the first switch that they are linked to
    for rank in range(num_ranks):
        blocks.setdefault(next((v for v in near[rank] if v >= num_ranks), -1), []).append(rank)
    x = 0.0
    for block in blocks.values():
        across = len(block) if num_ranks <= _MOST_IN_A_ROW else math.ceil(math.sqrt(len(block)))
        for i, rank in enumerate(block):
            place[rank] = (x + i % across, -(i // across))
        x += across + 0.4
    width = max(x - 1.4, 1.0)
    for level in range(1, tier.max() + 1):
        row = np.flatnonzero(tier == level).tolist()
        under = {v: [place[w, 0] for w in near[v] if tier[w] < level] or [width / 2] for v in row}
        # Rounded: means that are equal but for the last bit would order switches by chance.
        row.sort(key=lambda v: (round(sum(under[v]) / len(under[v]), 6), v))
        rise = 1.4 + 0.08 * width
        apart = (width + 1.0) / len(row)
        for i, vertex in enumerate(row):
            place[vertex] = (apart * (i + 0.5) - 0.5, level * rise)
    return place


# ---------------------------------------------------------------------- links


def bows(layout: Layout, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """How far each link bends to the right of its way, float64 of shape (links,).

    A little everywhere, so that the links of both directions and parallel ones stay apart; far on
    a link that would otherwise run over the vertices between its ends.
    """
    place = layout.place
    starts, stops = layout.ends(src, dst)
    bow = np.full(len(src), 0.045)
    pair = src.astype(np.int64) * len(place) + dst
    nth = np.arange(len(src)) - np.searchsorted(pair, pair)  # of parallel links
    bow += 0.07 * nth
    middle = (place.min(axis=0) + place.max(axis=0)) / 2
    points = place[layout.width == 0]
    for link, (a, b) in enumerate(zip(starts, stops, strict=True)):
        if not _runs_over(points, a, b):
            continue
        way = (b - a) / np.linalg.norm(b - a)
        right = np.array([way[1], -way[0]])
        outward = float(np.dot((a + b) / 2 - middle, right))
        # On the axis of symmetry either side will do, but the same one for both directions.
        side = np.sign(outward) if abs(outward) > 1e-9 else np.sign(right[0] + 1e-3 * right[1])
        # Not equally far to both sides: links of both directions around one vertex would lie on
        # each other.
        bow[link] = side * (0.36 + 0.04 * side) + 0.07 * nth[link]
    return bow


def _runs_over(place: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    way = b - a
    along = (place - a) @ way / (way @ way)
    off = place - a - along[:, None] * way
    beside = np.hypot(off[:, 0], off[:, 1])
    return bool(((along > 1e-6) & (along < 1 - 1e-6) & (beside < RADIUS)).any())


def curves(
    layout: Layout, src: np.ndarray, dst: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin, control point and end of every link's curve, three float64 of shape (links, 2).

    A quadratic Bezier curve: its middle lies half as far out as its control point.
    """
    begin, end = layout.ends(src, dst)
    way = end - begin
    # A link of no length has no side to bend to, and stays a point.
    way = way / np.maximum(np.hypot(way[:, 0], way[:, 1]), 1e-9)[:, None]
    right = np.stack([way[:, 1], -way[:, 0]], axis=1)
    return begin, (begin + end) / 2 + 2 * bows(layout, src, dst)[:, None] * right, end


def curve_middles(layout: Layout, bow: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """The middle of every link's curve, float64 of shape (links, 2)."""
    a, b = layout.ends(src, dst)
    way = b - a
    way = way / np.hypot(way[:, 0], way[:, 1])[:, None]
    right = np.stack([way[:, 1], -way[:, 0]], axis=1)
    return (a + b) / 2 + bow[:, None] * right
