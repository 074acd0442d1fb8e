"""Failures: links, ranks and hosts by number or name, and the network without them.

Networks name their vertices "host 1 rank 3", "host 1 switch", "rail 2" and so on. The name of a
vertex stands for that vertex; words with which several names begin, such as "host 1", stand for all
of these vertices.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from jaxcoll.errors import TopologyError, shown
from jaxcoll.grid import Grid, Placement
from jaxcoll.links import MAX_VERTICES
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import listed
from jaxcoll.numerics.rational import as_fraction

_MOST_NAMED = 3  # losses per kind in a network's name, which counts further ones


class Wiring(NamedTuple):
    """The columns of a network, to which numbers and names refer.

    Attributes:
        num_ranks, num_vertices: ranks come first.
        names: one per vertex, or none.
        src, dst: vertices at the ends of each link.
    """

    num_ranks: int
    num_vertices: int
    names: tuple[str, ...]
    src: np.ndarray
    dst: np.ndarray


# ---------------------------------------------------------------------- names and numbers


def named_vertices(wiring: Wiring, name: str) -> np.ndarray:
    """The vertices with a name, one or all of a host; bool of shape (vertices,).

    Raises:
        TopologyError: nothing has the name.
    """
    if not wiring.names:
        raise TopologyError(
            f"the vertices of this network have no names, so {shown(name)} names none of "
            f"them; give numbers: ranks are 0..{wiring.num_ranks - 1}"
        )
    # The whole name is tried first: "rank 1" is one vertex, though "rank 1 core 0" begins with it.
    found = np.array([known == name for known in wiring.names])
    if not found.any():
        found = np.array([known.startswith(f"{name} ") for known in wiring.names])
    if not found.any():
        hosts = {" ".join(known.split()[:2]) for known in wiring.names}
        near = difflib.get_close_matches(name, sorted({*hosts, *wiring.names}), n=1, cutoff=0.5)
        meant = f"did you mean {shown(near[0])}? " if near else ""
        raise TopologyError(
            f"nothing in this network is called {shown(name)}; {meant}its names are "
            f"{shown(wiring.names[0])} to {shown(wiring.names[-1])}"
        )
    return found


def chosen_links(wiring: Wiring, links: Iterable) -> np.ndarray:
    """The links given by numbers, or by pairs (u, v) for all links from u to v; bool (links,).

    Raises:
        TopologyError: a number or pair has no link, or nothing has a name.
    """
    chosen = np.zeros(len(wiring.src), bool)
    for link in checks.members(links, "links", TopologyError):
        if isinstance(link, (tuple, list)):
            if len(link) != 2:
                raise TopologyError(f"a link is a number or a pair of vertices, got {link!r}")
            u, v = (_end(wiring, end, link) for end in link)
            between = u[wiring.src] & v[wiring.dst]
        else:
            number = checks.integer(link, "a link", TopologyError)
            between = np.arange(len(wiring.src)) == number
        if not between.any():
            known = f"links are 0..{len(wiring.src) - 1}, or pairs of vertices"
            first = link[0] if isinstance(link, (tuple, list)) else None
            if isinstance(first, int) and 0 <= first < wiring.num_vertices:
                ends = listed(np.unique(wiring.dst[wiring.src == first]))
                known = f"from vertex {first} they go to {ends}"
            raise TopologyError(f"there is no link {link!r}; {known}")
        chosen |= between
    return chosen


def with_ranks(links: Iterable, devices: Sequence) -> list:
    """Links in which pairs of devices are replaced by pairs of ranks."""
    # Devices are found by identity, since they may be any objects, hashable or not.
    rank = {id(device): number for number, device in enumerate(devices)}
    return [
        tuple(rank.get(id(end), end) for end in link) if isinstance(link, (tuple, list)) else link
        for link in checks.members(links, "down", TopologyError)
    ]


def _end(wiring: Wiring, end: object, link: object) -> np.ndarray:
    if isinstance(end, str):
        return named_vertices(wiring, end)
    # A number beyond the vertices has no link, which the caller reports; others are refused here.
    limits = {"error": TopologyError, "least": 0, "most": MAX_VERTICES}
    number = checks.integer(end, f"an end of the link {link!r}", **limits)
    return np.arange(wiring.num_vertices) == number


def links_at(wiring: Wiring, name: str) -> np.ndarray:
    """The links between the vertices with a name and all others; bool of shape (links,)."""
    inside = named_vertices(wiring, name)
    return inside[wiring.src] != inside[wiring.dst]


def lost_vertices(wiring: Wiring, ranks: Iterable, switches: Iterable) -> np.ndarray:
    """The vertices that are gone, bool of shape (vertices,).

    The name of a host among ranks includes the host's switches.

    Raises:
        TopologyError: a rank or switch does not exist, or one is given as the other.
    """
    n, lost = wiring.num_ranks, np.zeros(wiring.num_vertices, bool)
    for rank in checks.members(ranks, "ranks", TopologyError):
        if isinstance(rank, str):
            found = named_vertices(wiring, rank)
            if not found[:n].any():
                raise TopologyError(f"{rank!r} names a switch: give it as switches=")
            lost |= found
            continue
        if not 0 <= checks.integer(rank, "a rank", TopologyError) < n:
            raise TopologyError(f"there is no rank {rank}; ranks are 0..{n - 1}")
        lost[rank] = True
    for switch in checks.members(switches, "switches", TopologyError):
        if isinstance(switch, str):
            found = named_vertices(wiring, switch)
            if found[:n].any():
                raise TopologyError(
                    f"{switch!r} names a rank, or what holds one: give it as ranks="
                )
            lost |= found
            continue
        if not n <= checks.integer(switch, "a switch", TopologyError) < wiring.num_vertices:
            having = (
                f"switches are {n}..{wiring.num_vertices - 1}" if len(lost) > n else "it has none"
            )
            raise TopologyError(f"there is no switch {switch} in this network; {having}")
        lost[switch] = True
    return lost


def gone_links(wiring: Wiring, links: Iterable, lost: np.ndarray) -> np.ndarray:
    """The links that are gone, alone or with a vertex; bool of shape (links,).

    Raises:
        TopologyError: a link does not exist, or belongs to a rank or switch that is lost anyway.
    """
    chosen, with_lost = chosen_links(wiring, links), lost[wiring.src] | lost[wiring.dst]
    # Refused, because the link is lost anyway, and naming it again is probably a typo.
    twice = np.flatnonzero(chosen & with_lost)
    if twice.size:
        u, v = int(wiring.src[twice[0]]), int(wiring.dst[twice[0]])
        gone = u if lost[u] else v
        what = "rank" if gone < wiring.num_ranks else "switch"
        raise TopologyError(
            f"{what} {gone} is removed with all its links, and the link {(u, v)} is given too: "
            f"leave out the one or the other"
        )
    return chosen | with_lost


def scaled_speeds(
    wiring: Wiring, bandwidth: Sequence[Fraction], factors: Mapping
) -> list[Fraction]:
    """The exact bandwidth of every link after factors; see ``Topology.scaled``."""
    checks.instance(factors, Mapping, "factors", TopologyError)
    speeds = list(bandwidth)
    for link, factor in factors.items():
        exact = as_fraction(checks.positive(factor, "a factor of bandwidth", TopologyError))
        chosen = links_at(wiring, link) if isinstance(link, str) else chosen_links(wiring, [link])
        for i in np.flatnonzero(chosen).tolist():
            speeds[i] *= exact
    return speeds


# ---------------------------------------------------------------------- the grid that is left


def placement_left(
    placement: Placement | None, lost: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> Placement | None:
    """The grid of the survivors, if they fill one in which all neighbours have their links.

    A torus without a whole row is a grid that is open there, and so is one without all the links
    that close a dimension. If a link is missing in the middle there is no grid any more, because
    schedules for grids use all of its links.

    Args:
        lost: whether each rank is gone.
        src, dst: links that are left, in the old numbers of ranks.
    """
    if placement is None:
        return None
    grid, at = placement.grid, np.asarray(placement.ranks).reshape(placement.grid.shape)
    # First the box: along every dimension the coordinates of survivors must be consecutive, and no
    # place of their product may be lost.
    kept = ~lost[at]
    lines = []
    for d, (side, closed) in enumerate(zip(grid.shape, grid.wrap, strict=True)):
        other = tuple(k for k in range(len(grid.shape)) if k != d)
        used = np.flatnonzero(kept.any(axis=other))
        if closed and 0 < len(used) < side:  # a part may cross the seam
            # Rotated so that the longest gap is at the ends, and survivors are one run.
            gaps = np.diff(np.append(used, used[0] + side))
            used = np.roll(used, -int(gaps.argmax()) - 1)
        if not len(used) or ((np.diff(used) % side) != 1).any():
            return None
        lines.append(used)
    box = at[np.ix_(*lines)]
    if lost[box].any():
        return None
    # Then the links: along a dimension all inner links must be left. Those that close it must all
    # be left or all be gone.
    joined = {*zip(src.tolist(), dst.tolist(), strict=True)}
    wrap = []
    for d, side in enumerate(box.shape):
        ranks = np.moveaxis(box, d, 0)
        if not joined.issuperset(_ends(ranks[:-1], ranks[1:])):
            return None
        around, closing = grid.wrap[d] and side == grid.shape[d], _ends(ranks[-1], ranks[0])
        wrap.append(around and joined.issuperset(closing))
        if around and not (wrap[-1] or joined.isdisjoint(closing)):
            return None
    number = np.cumsum(~lost) - 1
    return Placement(Grid(box.shape, tuple(wrap)), tuple(number[box.ravel()].tolist()))


def _ends(u: np.ndarray, v: np.ndarray) -> list[tuple[int, int]]:
    """The links that join ranks of two columns, both ways."""
    pairs = list(zip(u.ravel().tolist(), v.ravel().tolist(), strict=True))
    return [*pairs, *((b, a) for a, b in pairs)]


# ---------------------------------------------------------------------- losses


@dataclasses.dataclass(frozen=True, repr=False)
class Losses:
    """The losses of a network, in the numbers of the whole network.

    Attributes:
        ranks, switches: the ranks and switches that are gone.
        links: ends of the links that are down between remaining vertices, one entry per link.
        slowed: factor by which the bandwidth of links changed, by their ends.
        labels: label of each vertex of the whole network.
    """

    ranks: tuple[int, ...]
    switches: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    slowed: Mapping[tuple[int, int], Fraction]
    labels: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.ranks or self.switches or self.links or self.slowed)

    def name_after(self, whole: str) -> str:
        """The name of the remaining network, from the name of the whole one."""
        words = str(self)
        if not (whole and words):
            return whole
        return f"{whole} {words}" if words.startswith("less") else f"{whole}, {words}"

    def lines(self) -> list[str]:
        """A line of text per kind: "down: 0-1, 4->5", "gone: rank 3", "slow: 2-3 at 0.5"."""
        kinds = {
            "gone": [*self._named("rank", self.ranks), *self._named("switch", self.switches)],
            "down": self._wires(self.links),
            "other speed": self._slow(),
        }
        return [f"{kind}: {listed(parts)}" for kind, parts in kinds.items() if parts]

    def __str__(self) -> str:
        """A few words for a name: "less 0-1 and rank 3, 4-5 at 0.5"; "" for nothing."""
        parts = (
            _few(self._named("rank", self.ranks), "ranks"),
            _few(self._named("switch", self.switches), "switches"),
            _few(self._wires(self.links), "wires"),
        )
        gone = ", ".join(part for part in parts if part)
        slow = _few(self._slow(), "wires at other speeds")
        return ", ".join(part for part in (f"less {gone}" if gone else "", slow) if part)

    __repr__ = __str__

    def _named(self, kind: str, vertices: Iterable[int]) -> list[str]:
        labels = ((vertex, self.labels[vertex]) for vertex in vertices)
        return [label if label != str(v) else f"{kind} {v}" for v, label in labels]

    def _wires(self, links: Iterable[tuple[int, int]]) -> list[str]:
        """Names of links: "0-1" for both directions, "0->1" for one."""
        given = dict.fromkeys(links)
        labels, found = self.labels, []
        for u, v in given:
            if (v, u) not in given:
                found.append(f"{labels[u]}->{labels[v]}")
            elif u < v:
                found.append(f"{labels[u]}-{labels[v]}")
        return found

    def _slow(self) -> list[str]:
        by_factor: dict[Fraction, list[tuple[int, int]]] = {}
        for ends, factor in self.slowed.items():
            by_factor.setdefault(factor, []).append(ends)
        return [
            f"{wire} at {float(factor):.3g}"
            for factor, links in by_factor.items()
            for wire in self._wires(links)
        ]


def _few(parts: list[str], kind: str) -> str:
    return ", ".join(parts) if len(parts) <= _MOST_NAMED else f"{len(parts)} {kind}"


def losses(
    whole: Wiring,
    whole_speeds: Sequence[Fraction],
    left: Wiring,
    left_speeds: Sequence[Fraction],
    origin: Sequence[int],
) -> Losses:
    """The losses of a remaining network, compared with the whole one.

    Args:
        whole, left: columns of the whole and of the remaining network.
        whole_speeds, left_speeds: exact bandwidth of each link.
        origin: the number in the whole network of each remaining vertex.
    """
    at = np.asarray(origin, np.int64)
    stays = np.zeros(whole.num_vertices, bool)
    stays[at] = True
    lost = np.flatnonzero(~stays).tolist()
    before, after = _speeds_by_ends(whole, whole_speeds), _speeds_by_ends(left, left_speeds, at)
    down: list[tuple[int, int]] = []
    slowed: dict[tuple[int, int], Fraction] = {}
    for ends, speeds in before.items():
        if not (stays[ends[0]] and stays[ends[1]]):
            continue
        # Only the number and the speeds of parallel links tell which are gone. If there are fewer
        # links than before, the rest counts as unchanged.
        now = after.get(ends, [])
        down += [ends] * (len(speeds) - len(now))
        if len(now) == len(speeds) and now != speeds:
            slowed[ends] = Fraction(sum(now)) / sum(speeds)
    return Losses(
        tuple(v for v in lost if v < whole.num_ranks),
        tuple(v for v in lost if v >= whole.num_ranks),
        tuple(down),
        slowed,
        whole.names or tuple(map(str, range(whole.num_vertices))),
    )


def _speeds_by_ends(
    wiring: Wiring, speeds: Sequence[Fraction], number: np.ndarray | None = None
) -> dict[tuple[int, int], list[Fraction]]:
    src, dst = wiring.src, wiring.dst
    if number is not None:
        src, dst = number[src], number[dst]
    found: dict[tuple[int, int], list[Fraction]] = {}
    for ends, speed in zip(zip(src.tolist(), dst.tolist(), strict=True), speeds, strict=True):
        found.setdefault(ends, []).append(speed)
    return {ends: sorted(each) for ends, each in found.items()}
