"""Times of collectives in which switches take part: trees whose switches copy and add.

A tree has a root and routes, each from a vertex that has the data to a rank or switch that does
not. Data spreads down the routes, and sums come up them. For example, NVLS on eight ranks around
switch 8 is one tree of an all_reduce, rooted at the switch, with a route to every rank. Over two
hosts SHARP adds between hosts: the tree of a share is rooted at the network's switch, and continues
from a rank of each host to that host's switch and from there to the other ranks.

Schedules are about ranks and cannot contain a send that begins or ends in a switch, so these trees
are timed but never executed. ``Topology.in_network`` tells which switches may be used in this way.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.kinds import ALL_GATHER, KINDS, Holder, those
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.simulation.durations import check_request
from jaxcoll.simulation.link_models import LinkModel
from jaxcoll.simulation.messages import Message, MessageTimes, multicast, simulate_messages
from jaxcoll.topology import Topology, connected
from jaxcoll.trees import TreeFlow

# The kinds for trees over all ranks; and for forests, whose trees are rooted at every rank.
TREE_KINDS = tuple(row.name for row in KINDS.values() if not row.moves and not row.has_roots)
FOREST_KINDS = tuple(row.name for row in KINDS.values() if row.is_sharded)
_MOST_MESSAGES = 2**22  # some gigabytes, and a minute or two
COPYING = those(lambda kind: kind.after is Holder.ALL)
ADDING = those(lambda kind: kind.adds)


@dataclasses.dataclass(frozen=True, repr=False)
class NetworkTree:
    """A tree over ranks and switches.

    Attributes:
        root: the vertex where data starts, or sums end: a rank or, for an all_reduce, also a
            switch.
        routes: vertices in order, from the root or the end of an earlier route to a rank or switch
            that no route has reached. Vertices between the ends are switches, which forward.
        weight: weight of its data relative to that of the other trees, above 0.

    Raises:
        ScheduleError: the routes do not form a tree: one starts at an unreached vertex, ends at a
            reached one, or is too short.
    """

    root: int
    routes: tuple[tuple[int, ...], ...]
    weight: Number = 1

    def __post_init__(self) -> None:
        root = checks.integer(self.root, "root", ScheduleError, least=0)
        given = checks.members(self.routes, "routes", ScheduleError)
        routes = tuple(
            checks.integers(route, f"routes[{i}]", ScheduleError, least=0)
            for i, route in enumerate(given)
        )
        weight = checks.positive(self.weight, "weight", ScheduleError)
        checks.put(self, root=root, routes=routes, weight=weight)
        reached = {root}
        for i, route in enumerate(routes):
            if len(route) < 2 or route[0] not in reached or route[-1] in reached:
                raise ScheduleError(
                    f"routes[{i}] must lead from the root or the end of an earlier route to a "
                    f"vertex that none has come to, got {route}"
                )
            reached.add(route[-1])

    @classmethod
    def shortest(cls, topology: Topology, root: int, weight: Number = 1) -> NetworkTree:
        """The tree of fewest links from a vertex to every rank.

        It branches at ranks and at switches that copy and add; it only passes other switches.

        Raises:
            TopologyError: the root does not exist.
        """
        connected(topology)
        most = topology.num_vertices - 1
        root = checks.integer(root, "root", TopologyError, least=0, most=most)
        does = topology.in_network
        able = {root, *range(topology.num_ranks), *(set(does.copying) & set(does.adding))}
        near: dict[int, list[int]] = {}
        for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
            near.setdefault(u, []).append(v)
        found: dict[int, tuple[int, ...]] = {root: ()}
        ways: list[tuple[int, ...]] = [(root,)]
        passed: set[tuple[int, int]] = set()
        # Breadth first. A route ends as soon as it reaches a rank or an able switch, and another
        # begins there.
        for way in ways:
            for v in near.get(way[-1], ()):
                if v in able and v not in found:
                    found[v] = (*way, v)
                    ways.append((v,))
                elif v not in able and (way[0], v) not in passed:
                    passed.add((way[0], v))
                    ways.append((*way, v))
        # Switches without further routes are left out, from the last one on.
        routes = [route for route in found.values() if route]
        for route in reversed(tuple(routes)):
            if route[-1] >= topology.num_ranks and all(r[0] != route[-1] for r in routes):
                routes.remove(route)
        return cls(root, tuple(routes), weight)

    def __repr__(self) -> str:
        more = "" if self.weight == 1 else f", weight {self.weight}"
        return f"NetworkTree({len(self.routes)} routes from vertex {self.root}{more})"

    def legs(self) -> list[Leg]:
        """The routes as messages of a segment, in this order."""
        brought = {self.root: -1} | {route[-1]: i for i, route in enumerate(self.routes)}
        return [Leg(route, brought[route[0]]) for route in self.routes]

    def branching(self) -> list[int]:
        """The vertices with more than one onward route, in the order of the routes."""
        starts = Counter(route[0] for route in self.routes)
        return [v for v, count in starts.items() if count > 1]


@dataclasses.dataclass(frozen=True)
class Leg:
    """A part of a tree, between ranks and able switches: one message per segment.

    Attributes:
        route: its vertices.
        before: the leg that brings the data to the start of this one, -1 at the root.
    """

    route: tuple[int, ...]
    before: int


def simulate_in_network(
    topology: Topology,
    kind: str,
    trees: Iterable[NetworkTree],
    nbytes: Number,
    *,
    sums: Iterable[NetworkTree] | None = None,
    pieces: int = 1,
    in_flight: int = 8,
    model: str | LinkModel = "astra",
) -> MessageTimes:
    """Time a collective of all ranks over trees through switches that copy and add.

    A switch receives each segment of a tree once and sends it over every route from it; it sends a
    sum once, after all terms have arrived. Links serve first come, first served; between two
    vertices the fastest of parallel links is taken. Copying and adding take no time.

    Args:
        topology: the network, whose ``in_network`` tells the abilities of its switches.
        kind: "all_gather", "reduce_scatter", "all_reduce", "broadcast" or "reduce".
        trees: trees over all ranks. For an all_gather or reduce_scatter they are rooted at every
            rank, for a broadcast or reduce at one. Sums go backwards, from the end to the start of
            each route.
        nbytes: bytes of a rank's buffer.
        sums: for an all_reduce, the trees that sum, with the root and weight of each of ``trees``;
            the same trees when None.
        pieces: number of messages into which each tree's data is cut.
        in_flight: the most pieces of a tree that are summed at the same time; see
            ``simulate_multicast``.
        model: the link model.

    Raises:
        ScheduleError: the kind is another one, trees miss a rank or need a link that does not
            exist, roots do not fit the kind, or numbers are out of range.
        TopologyError: a switch must copy or add but cannot; the text has its number and name.
    """
    connected(topology)
    checks.choice(kind, TREE_KINDS, "kind", ScheduleError)
    pieces = checks.integer(pieces, "pieces", ScheduleError, least=1, most=_MOST_MESSAGES)
    in_flight = checks.integer(in_flight, "in_flight", ScheduleError, least=1)
    size, by = check_request(nbytes, model)
    down = _checked(topology, kind, trees, "trees")
    up = down if sums is None else _checked(topology, kind, sums, "sums")
    is_same = [(t.root, t.weight) for t in up] == [(t.root, t.weight) for t in down]
    if not is_same or (sums is not None and not KINDS[kind].sums_for_all):
        raise ScheduleError("sums= is for an all_reduce: a tree of the same root and weight each")
    does, n = topology.in_network, topology.num_ranks
    for way, verb, able in ((down, "copy", does.copying), (up, "add", does.adding)):
        if kind in (COPYING if verb == "copy" else ADDING):
            used = [v for tree in way for v in tree.branching() if v >= n]
            _check_able(topology, used, able, verb)
    return _timed(
        topology,
        [tree.legs() if kind in ADDING else [] for tree in up],
        [tree.legs() if kind in COPYING else [] for tree in down],
        [share / pieces for share in _shares(kind, down, size, n)],
        (pieces, in_flight),
        by,
    )


def _checked(
    topology: Topology, kind: str, trees: Iterable[NetworkTree], name: str
) -> list[NetworkTree]:
    """The trees, if they reach every rank over switches, with roots that fit the kind."""
    n, found = topology.num_ranks, list(checks.members(trees, name, ScheduleError))
    for i, tree in enumerate(found):
        checks.instance(tree, NetworkTree, f"{name}[{i}]", ScheduleError)
        ends = {tree.root, *(route[-1] for route in tree.routes)}
        starts = {route[0] for route in tree.routes}
        between = {v for route in tree.routes for v in route[1:-1]}
        missing = sorted(set(range(n)) - ends)
        idle = sorted(v for v in ends - starts if v >= n)
        if missing or idle or any(v < n for v in between):
            what = f"misses rank {missing[0]}" if missing else "has a rank amid a route"
            raise ScheduleError(
                f"{name}[{i}] {f'ends in switch {idle[0]}' if idle and not missing else what}; "
                "every rank is the root or the end of a route, and every other end goes on"
            )
    roots = {tree.root for tree in found}
    if KINDS[kind].sums_for_all:
        fits, wanted = bool(found), "a tree or more"
    elif KINDS[kind].has_root:
        fits, wanted = len(roots) == 1 and max(roots) < n, "trees rooted at one rank"
    else:
        fits, wanted = roots == set(range(n)), "trees rooted at every rank, and at no switch"
    if not fits:
        raise ScheduleError(f"{kind} takes {wanted}; roots of {name} are {sorted(roots)[:8]}")
    return found


def _shares(kind: str, trees: Sequence[NetworkTree], size: Fraction, ranks: int) -> list[Fraction]:
    """Bytes that each tree carries, of the shard of its root or of the whole buffer."""
    weights = [as_fraction(tree.weight) for tree in trees]
    of_root: dict[int, Fraction] = {}
    for tree, weight in zip(trees, weights, strict=True):
        of_root[tree.root] = of_root.get(tree.root, Fraction(0)) + weight
    if not KINDS[kind].is_whole:
        return [size / ranks * w / of_root[t.root] for t, w in zip(trees, weights, strict=True)]
    return [size * w / sum(weights) for w in weights]


def _check_able(topology: Topology, used: Iterable[int], able: Collection[int], verb: str) -> None:
    for v in used:
        if v not in able:
            name = f" ({topology.vertex_names[v]})" if topology.vertex_names else ""
            raise TopologyError(
                f"a tree branches in switch {v}{name}, which does not {verb}; those that do are "
                f"{sorted(able)[:8]}: see Topology.with_in_network"
            )


def simulate_multicast(
    flow: TreeFlow,
    nbytes: Number,
    switches: bool | Iterable[int] = (),
    *,
    kind: str = "all_gather",
    pieces: int = 1,
    in_flight: int = 8,
    model: str | LinkModel = "astra",
) -> MessageTimes:
    """Time the trees of a forest when some switches copy and add (dissertation, Sec. 4.5.6).

    A capable switch receives each pipeline segment of a tree once and sends it over every link by
    which the tree leaves the switch. In a reversed tree it sends a sum once, after all terms have
    arrived. Links serve first come, first served; copying and adding take no time. Without capable
    switches this times the same trees as ``flow.to_schedule(pieces)``, in another order per link.
    Buffers are bounded, so a sum of segment i starts once the root has the sum of segment
    i - ``in_flight``; otherwise results would be queued behind all sums.

    Args:
        flow: a forest in which every rank has an equal shard. For sums, of the transposed network.
        nbytes: bytes of a rank's buffer.
        switches: vertices of the switches that are used in this way, or True for all that can.
        kind: "all_gather"; "reduce_scatter", with the trees run backwards; or "all_reduce", both:
            each segment goes down as soon as it is summed, so links must exist both ways.
        pieces: number of messages into which each tree's load is cut.
        in_flight: the most pieces of a tree that are summed at the same time.
        model: the link model.

    Raises:
        ScheduleError: the kind is another one, pieces or in_flight is below 1, shards have unequal
            weights, there are no data, or an all_reduce is on one-way links.
        TopologyError: a vertex is not a switch, or a switch cannot copy or add as the kind needs,
            by ``Topology.in_network``.
    """
    checks.choice(kind, FOREST_KINDS, "kind", ScheduleError)
    checks.instance(flow, TreeFlow, "flow", ScheduleError)
    in_flight = checks.integer(in_flight, "in_flight", ScheduleError, least=1)
    size, by = check_request(nbytes, model)
    collective = flow.collective(pieces)
    if collective.traits is not ALL_GATHER:
        raise ScheduleError(f"these trees carry {collective}; multicast is timed for all ranks")
    # A forest for sums is one of the transposed network, whose switches copy where this one's add.
    network = flow.topology if KINDS[kind].copies else flow.topology.transpose()
    able = _able(network.in_network, kind)
    given = (able if switches else ()) if isinstance(switches, bool) else switches
    capable = set(multicast(flow, given).switches)
    verb = " and ".join(["copy"] * (kind in COPYING) + ["add"] * (kind in ADDING))
    _check_able(network, sorted(capable), able, verb)
    trees = [_legs(flow, tree, capable) for tree in range(flow.num_trees)]
    unit = size / flow.topology.num_ranks / flow.k / pieces
    none: list[list[Leg]] = [[]] * len(trees)
    return _timed(
        network,
        trees if kind in ADDING else none,
        trees if kind in COPYING else none,
        [unit * int(weight) for weight in flow.weight],
        (pieces, in_flight),
        by,
    )


def _able(does: InNetwork, kind: str) -> set[int]:
    """The switches with the abilities that a kind needs."""
    able = set(does.either)
    if kind in COPYING:
        able &= set(does.copying)
    if kind in ADDING:
        able &= set(does.adding)
    return able


def _legs(flow: TreeFlow, tree: int, capable: set[int]) -> list[Leg]:
    """The legs of a tree, each after the one that it waits for."""
    legs: list[Leg] = []
    brought: dict[int, int] = {int(flow.root[tree]): -1}
    for edge in flow.edge[flow.tree_ptr[tree] : flow.tree_ptr[tree + 1]].tolist():
        path = list(flow.edges.path(edge))
        route = [int(flow.topology.src[path[0]]), *(int(flow.topology.dst[e]) for e in path)]
        # A segment that has reached a capable switch is not sent to it a second time.
        start = max(
            i for i, v in enumerate(route[:-1]) if i == 0 or (v in brought and v in capable)
        )
        cuts = [i for i in range(start + 1, len(route) - 1) if route[i] in capable]
        for first, last in zip([start, *cuts], [*cuts, len(route) - 1], strict=True):
            legs.append(Leg(tuple(route[first : last + 1]), brought[route[first]]))
            brought[route[last]] = len(legs) - 1
    return legs


def _timed(
    network: Topology,
    up: Sequence[list[Leg]],
    down: Sequence[list[Leg]],
    shares: Sequence[Fraction],
    window: tuple[int, int],
    model: LinkModel,
) -> MessageTimes:
    """Time segments of trees, which go up as sums, then down as copies; either may have no legs.

    Args:
        up, down: the legs of each tree.
        shares: bytes of a segment of each tree.
        window: number of segments, and the most of a tree that are summed at the same time.
    """
    pieces, in_flight = window
    count = pieces * sum(map(len, (*up, *down)))
    if count > _MOST_MESSAGES:
        raise ScheduleError(
            f"{pieces} pieces would be {count} messages; at most {_MOST_MESSAGES} are timed"
        )
    messages: list[Message] = []
    # The messages, by segment and tree, that bring the root its sum. With bounded buffers, the
    # segment of the next window waits for them.
    summed: list[list[tuple[int, ...]]] = []
    for segment in range(pieces):
        waits = summed[segment - in_flight] if segment >= in_flight else [()] * len(up)
        summed.append([])
        for sums, copies, share, wait in zip(up, down, shares, waits, strict=True):
            at = len(messages)
            result = tuple(at + i for i in _to_root(sums))
            summed[-1].append(result)
            messages += _sums(sums, share, at, wait)
            at = len(messages)
            messages += [
                Message(leg.route, share, after=(at + leg.before,) if leg.before >= 0 else result)
                for leg in copies
            ]
    return simulate_messages(network, messages, model=model)


def _to_root(legs: list[Leg]) -> list[int]:
    """The messages that bring the root its sum, when leg i runs backwards as message last - i."""
    return [len(legs) - 1 - i for i, leg in enumerate(legs) if leg.before < 0]


def _sums(legs: list[Leg], share: Fraction, at: int, wait: tuple[int, ...]) -> list[Message]:
    """The messages of one segment of a sum, the first of which is message ``at`` of all.

    Args:
        wait: messages that the first ones wait for.
    """
    last = len(legs) - 1
    after: list[list[int]] = [[] for _ in legs]
    for i, leg in enumerate(legs):
        if leg.before >= 0:
            after[leg.before].append(at + last - i)
    # Leg i runs backwards after every leg that follows it.
    return [
        Message(legs[i].route[::-1], share, after=tuple(after[i]) or wait)
        for i in range(last, -1, -1)
    ]
