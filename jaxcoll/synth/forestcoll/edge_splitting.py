"""Step 2: switches removed by edge splitting (Sec. 4.5.2), by pairings that flows verify.

Splitting off c of the links (u, w) and (w, t) replaces c of both by c of a direct link (u, t). A
network in which all capacity of every switch is split off has ranks only, and as long as
every rank still gets all trees from an added source, trees exist in it (Theorem 25). Switches are
split off tier by tier, those nearest to the ranks first. How the capacities of a tier are paired is
guessed (``pairing``), and a guess counts only once flows have verified it. Where none holds, the
splits that a flow objects to are taken back until the others hold, and the rest is paired again;
what no guess pairs is split off exactly (dissertation, Algorithms 2 and 3, Theorem 28).

Three ranks at one switch, with ports for two trees each way: splitting (0, w), (w, 1), then
(1, w), (w, 2) and (2, w), (w, 0) leaves a ring of capacity 2, and splitting one tree of each port
towards each other rank leaves all six links of capacity 1. Both keep the optimum, and the second
keeps trees low. Splitting (0, w), (w, 0) would not: rank 0 would have lost a tree in and out.

Guesses: capacity into higher switches comes from below, and capacity out of them goes below
("levels"). Ports are grouped by the ranks that are connected without switches (a host, say), and
put on a circle, group by group, in segments as long as their capacity. Rotated by the largest
group, every port into the switch meets the port out of it at the same index of the next group (a
rail). "spread" shares the capacity out among rotations by 1, 2, ... groups, which keeps trees low;
"rotated" takes one rotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from jaxcoll.bounds.throughput import Scaling, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.capacities import Capacities, Pair, PathCapacity, Split
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Logical:
    """A network without switches.

    Attributes:
        num_ranks: number of ranks.
        paths: for each pair of ranks with capacity from one to the other, the paths that make
            it up; amounts are trees.
        how: for each switch removed, in that order: the name of the pairing that held for its
            tier, "repaired" where parts of several pairings did, "split" where some of its
            capacity was split off exactly.
    """

    num_ranks: int
    paths: dict[Pair, list[PathCapacity]]
    how: tuple[str, ...]

    def capacity(self) -> dict[Pair, int]:
        """Trees that each pair of ranks can carry from one to the other."""
        return {pair: sum(p.amount for p in paths) for pair, paths in self.paths.items()}


def remove_switches(topology: Topology, scaling: Scaling, *, guess: bool = True) -> Logical:
    """Split off every switch (Algorithm 3).

    Args:
        scaling: trees and what each link can carry of them.
        guess: whether pairings may be guessed; otherwise all are split off exactly.

    Raises:
        TopologyError: more bandwidth in than out, or the reverse, at some vertex of a network with
            switches; trees that the network has no capacity for.
    """
    check_balanced(topology)
    network = Capacities(topology, scaling)
    if topology.is_direct:
        return Logical(topology.num_ranks, network.paths, ())
    if network.first_short(range(topology.num_ranks)) is not None:
        raise TopologyError(f"{topology} cannot carry {scaling.k} trees per rank at this scale")
    level, tiers = levels(topology)
    left = [w for tier in tiers for w in tier]
    how: list[str] = []
    while left:
        tier = _next_tier(network, tiers, left)
        how += _split_tier(network, tier, level) if guess else _split_exactly(network, tier)
        left = left[len(tier) :]
    # Links among switches that no rank is joined to are of no use.
    kept = {pair: p for pair, p in network.paths.items() if max(pair) < topology.num_ranks}
    return Logical(topology.num_ranks, kept, tuple(how))


def levels(topology: Topology) -> tuple[dict[int, int], list[list[int]]]:
    """Hops from each vertex to the nearest rank; switches by hops and then by number of ports."""
    near: list[set[int]] = [set() for _ in range(topology.num_vertices)]
    for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        near[u].add(v)
        near[v].add(u)
    hops = dict.fromkeys(range(topology.num_ranks), 0)
    queue = list(hops)
    for u in queue:  # which grows while it is read: breadth first
        for v in near[u]:
            if v not in hops:
                hops[v] = hops[u] + 1
                queue.append(v)
    tiers: dict[tuple[int, int], list[int]] = {}
    for w in range(topology.num_ranks, topology.num_vertices):
        if w in hops:
            tiers.setdefault((hops[w], len(near[w])), []).append(w)
    return hops, [tiers[key] for key in sorted(tiers)]


def _next_tier(network: Capacities, tiers: list[list[int]], left: list[int]) -> list[int]:
    """The first switches of one tier, up to one that has capacity from or to another of them."""
    near: dict[int, set[int]] = {w: set() for w in left}
    for u, v in network.capacity:
        if u in near and v in near:
            near[u].add(v)
            near[v].add(u)
    tier = next(tier for tier in tiers if left[0] in tier)
    chosen: list[int] = []
    for w in left:
        if w not in tier or not near[w].isdisjoint(chosen):
            break
        chosen.append(w)
    return chosen


def _split_tier(network: Capacities, tier: list[int], level: dict[int, int]) -> list[str]:
    """Split off switches that are not joined to one another: guessed, repaired, or exactly."""
    seen = []
    for name in NAMES:
        splits = _guessed(network, tier, name, level)
        if splits in seen:
            continue
        seen.append(splits)
        if network.holds(splits):
            network.split(splits)
            return [name] * len(tier)
    left, turn, idle = list(tier), 0, 0
    while left and idle < len(NAMES):
        held = network.most_of(_guessed(network, left, NAMES[turn % len(NAMES)], level))
        network.split(held)
        idle = 0 if held else idle + 1
        turn += 1
        left = [w for w, (into, out) in network.ports(left).items() if into or out]
    exactly = set(left)
    _split_exactly(network, left)
    return ["split" if w in exactly else "repaired" for w in tier]


def _guessed(
    network: Capacities, switches: Iterable[int], name: str, level: dict[int, int]
) -> list[Split]:
    """One pairing of all capacity of some switches."""
    ports, group = network.ports(switches), network.groups()
    return [
        (u, w, t, amount)
        for place, (w, (into, out)) in enumerate(ports.items())
        for u, t, amount in pairing(
            name, into, out, {v: group[v] for v in {*into, *out}}, level, level[w], place
        )
    ]


# ---------------------------------------------------------------------- exact splitting


def _split_exactly(network: Capacities, switches: Iterable[int]) -> list[str]:
    """Split off switches one by one (Algorithm 3): every link out can be paired (Theorem 27)."""
    how = []
    for w in switches:
        _split_off(network, w)
        how.append("split")
    return how


def _split_off(network: Capacities, w: int) -> None:
    into, out = network.ports([w])[w]
    cuts = _Cuts(network)
    for t in out:  # "foreach egress edge f = (w, t)"
        # "foreach ingress edge e = (u, w)", the way back last: its capacity would be lost.
        for u in sorted(into, key=lambda u: (u == t, u)):
            if (w, t) not in network.capacity:
                break
            if (u, w) in network.capacity:
                amount = cuts.most(u, w, t)  # "Compute gamma as in (B.1)"
                if amount:
                    network.route(u, w, t, amount)  # also "routing[(u, t)][w] += gamma"
        # "Edge f should have 0 capacity at this point": Theorem 27, which needs a balanced network.
        if (w, t) in network.capacity:
            raise TopologyError(
                f"switch {w} cannot be split off: {network.capacity[w, t]} trees towards {t} "
                f"find no way in, which cannot happen on a balanced network"
            )


class _Cuts:
    """Cuts that once stopped a split, so that most need no flow to be stopped again."""

    def __init__(self, network: Capacities):
        self.network = network
        self.sides: list[np.ndarray] = []
        self.slacks: list[int] = []
        self.last = 0

    def most(self, u: int, w: int, t: int) -> int:
        """Split off the most of (u, w), (w, t) that leaves every rank every tree: the paper's
        gamma (Theorem 28), found with one flow per rank instead of two.

        As much as the links and the known cuts allow is split off tentatively; a rank that then
        falls short by d names a cut, which allows d less.
        """
        network = self.network
        crossed = [i for i, side in enumerate(self.sides) if side[u] == side[t] != side[w]]
        capacity = network.capacity
        limits = (capacity[u, w], capacity[w, t], *(self.slacks[i] for i in crossed))
        amount = min(limits)
        if amount == 0:
            return 0
        network.change(u, w, t, amount)
        n = len(network.trees)
        turn, checked = [*range(self.last, n), *range(self.last)], 0
        while amount:
            short = network.first_short(turn[checked:])
            if short is None:
                break
            self.last = short.target
            checked = turn.index(short.target)
            missing = sum(network.trees) - short.flow
            network.change(u, w, t, -missing)
            amount -= missing
            crossed.append(len(self.sides))
            self.sides.append(short.source_side)
            self.slacks.append(amount)  # what is split off below comes off again
        for i in crossed:
            self.slacks[i] -= amount
        return amount


Ports = Mapping[int, int]
Pairing = list[tuple[int, int, int]]  # port in, port out, amount

NAMES = ("spread", "rotated", "spread singly", "rotated singly")


def pairing(
    name: str, into: Ports, out: Ports, group: Ports, level: Ports, own: int, place: int
) -> Pairing:
    """All of a switch's capacity, paired.

    Args:
        name: one of ``NAMES``; "singly": every port is a group of its own.
        into, out: capacity from each vertex into the switch, and out of it.
        group: of each port.
        level: hops from each vertex to the nearest rank; ``own`` those of the switch.
        place: of the switch among those of its tier, which differ where narrow ports cannot take
            part in every rotation.
    """
    upper = {v for v in {*into, *out} if level[v] > own}
    down_in, up_in = _parted(into, upper)
    down_out, up_out = _parted(out, upper)
    rising, down_in, up_out = transported(down_in, up_out)
    falling, up_in, down_out = transported(up_in, down_out)
    pairs = rising + falling
    if name.endswith("singly"):
        group = {v: v for v in group}
    for left_in, left_out in ((down_in, down_out), (up_in, up_out)):
        if left_in:
            ways = len({group[v] for v in left_in}) - 1
            ways = max(1, ways) if name.startswith("spread") else 1
            pairs += list(_spread(left_in, left_out, group, ways, place))
    return pairs


def _parted(ports: Ports, upper: set[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Ports to what lies below the switch, and above."""
    below = {v: c for v, c in ports.items() if v not in upper}
    return below, {v: c for v, c in ports.items() if v in upper}


def transported(into: Ports, out: Ports) -> tuple[Pairing, dict[int, int], dict[int, int]]:
    """As much as possible from some ports to others, evenly; and the rest of both."""
    most = min(sum(into.values()), sum(out.values()))
    if not most:
        return [], dict(into), dict(out)
    senders, receivers = share_of(into, most), share_of(out, most)
    left_in = {v: c - senders[v] for v, c in into.items() if c > senders[v]}
    left_out = {v: c - receivers[v] for v, c in out.items() if c > receivers[v]}
    pairs = []
    for place, (t, wanted) in enumerate(receivers.items()):
        if not wanted:
            continue
        for u, amount in share_of(senders, wanted, place).items():
            if amount:
                pairs.append((u, t, amount))
                senders[u] -= amount
    return pairs, left_in, left_out


def share_of(ports: Ports, amount: int, start: int = 0) -> dict[int, int]:
    """An amount shared out among ports in proportion to their capacity, in whole numbers.

    What rounding leaves goes to ports in order from ``start`` on, round.
    """
    total = sum(ports.values())
    share = {v: c * amount // total for v, c in ports.items()}
    left, vertices = amount - sum(share.values()), list(ports)
    i = start
    while left:
        v = vertices[i % len(vertices)]
        if share[v] < ports[v]:
            share[v] += 1
            left -= 1
        i += 1
    return share


def _spread(
    into: Ports, out: Ports, group: Ports, ways: int, place: int
) -> Iterator[tuple[int, int, int]]:
    """Shares of all capacity, rotated by 1, 2, ... groups; by one if they cannot be equal."""
    widest = max(*into.values(), *out.values())
    first = place * widest if widest < ways else 0
    nonempty = range(min(ways, widest))  # all further parts are empty
    shares = [(_part(into, ways, j), _part(out, ways, j)) for j in nonempty]
    if any(sum(a.values()) != sum(b.values()) for a, b in shares):
        shares = [(dict(into), dict(out))]
    for j, (a, b) in enumerate(shares):
        yield from _rotated(a, b, group, 1 + (first + j) % ways)


def _part(ports: Ports, ways: int, j: int) -> dict[int, int]:
    """The j-th of nearly equal parts of every port's capacity."""
    return {v: c // ways + (j < c % ways) for v, c in ports.items()}


def _rotated(into: Ports, out: Ports, group: Ports, groups: int) -> Iterator[tuple[int, int, int]]:
    """Pairs of ports that meet when the circle is rotated by a number of largest groups."""
    ring_in = sorted(((v, c) for v, c in into.items() if c), key=lambda p: (group[p[0]], p[0]))
    ring_out = sorted(((v, c) for v, c in out.items() if c), key=lambda p: (group[p[0]], p[0]))
    size: dict[int, int] = {}
    for v, c in ring_in:
        size[group[v]] = size.get(group[v], 0) + c
    total = sum(size.values())
    if not total:
        return
    # The port out that the first port in meets, and where in it.
    place, turn = 0, groups * max(size.values()) % total
    while turn >= ring_out[place][1]:
        turn -= ring_out[place][1]
        place += 1
    room = ring_out[place][1] - turn
    for u, left in ring_in:
        while left:
            both = min(left, room)
            yield u, ring_out[place][0], both
            left -= both
            room -= both
            if not room:
                place = (place + 1) % len(ring_out)
                room = ring_out[place][1]
