"""Step 2: switches removed by edge splitting (Sec. 4.5.3), by pairings that flows verify.

Splitting off c of the links (u, w) and (w, t) replaces c of both by c of a direct link (u, t). A
network in which all capacity of every switch is split off has ranks only, and as long as
every rank still gets all trees from an added source, trees exist in it (Theorem 25). Switches are
split off tier by tier, those nearest to the ranks first. How the capacities of a tier are paired is
guessed (``pairings``), and a guess counts only once flows have verified it. Where none holds, the
splits that a flow objects to are taken back until the others hold, and the rest is paired again;
what no guess pairs is split off exactly (dissertation, Algorithms 2 and 3, Theorem 28).

``Capacities`` is the network meanwhile: capacities from vertex to vertex, with the paths that make
them up, the paper's ``routing``. Whether every rank still gets every tree after a split, one flow
per rank tells.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.connectivity import FlowNetwork, Shortfall, components
from jaxcoll.synth.forestcoll.pairings import NAMES, pairing
from jaxcoll.topology import Topology

Pair = tuple[int, int]
Path = tuple[int, ...]
Split = tuple[int, int, int, int]  # u, w, t and an amount of (u, w) and (w, t)

# Sums of capacities stay exact in 64 bits below this, with two bits to spare for a flow and its
# residual; above it NumPy would wrap around in silence, and Python's integers take over.
_SAFE = 2**61


@dataclasses.dataclass
class PathCapacity:
    """Part of a capacity from vertex to vertex that runs over one path.

    Attributes:
        path: links of the topology in the order they are crossed.
        amount: trees.
    """

    path: Path
    amount: int


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
        topology: where it has switches, with as much bandwidth into each vertex as out of it
            (``check_balanced``).
        guess: whether pairings may be guessed; otherwise all are split off exactly.

    Raises:
        TopologyError: trees that the network has no capacity for.
    """
    network = Capacities(topology, scaling)
    if topology.is_direct:
        return Logical(topology.num_ranks, network.paths, ())
    if network.first_short(range(topology.num_ranks)) is not None:
        raise TopologyError(f"{topology} cannot carry {scaling.k} trees per rank at this scale")
    # Theorem 27 allows any order. Tier by tier, from the ranks up, a switch is split off when all
    # that is below it are ranks, and the pairing can go by the hosts that these belong to.
    # Those of a tier have as many ports, and switches that reach no rank are in none.
    joined = np.unique(np.sort([topology.src, topology.dst], axis=0), axis=1)
    ports = np.bincount(joined.ravel(), minlength=topology.num_vertices).tolist()
    level = topology.hops_to_rank.tolist()
    switches = [w for w, hops in enumerate(level) if hops > 0]
    by_tier = sorted(switches, key=lambda w: (level[w], ports[w]))
    tiers = [list(t) for _, t in itertools.groupby(by_tier, lambda w: (level[w], ports[w]))]
    left = [w for tier in tiers for w in tier]
    how: list[str] = []
    while left:
        tier = _next_tier(network, tiers, left)
        how += _split_tier(network, tier, level) if guess else _split_exactly(network, tier)
        left = left[len(tier) :]
    # Links among switches that no rank is joined to are of no use.
    kept = {pair: p for pair, p in network.paths.items() if max(pair) < topology.num_ranks}
    return Logical(topology.num_ranks, kept, tuple(how))


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
        # Splits of switches that are not joined use disjoint ports, so that a single flow per rank
        # verifies all of them at once.
        if w not in tier or not near[w].isdisjoint(chosen):
            break
        chosen.append(w)
    return chosen


def _split_tier(network: Capacities, tier: list[int], level: Sequence[int]) -> list[str]:
    """Split off switches that are not joined to one another: guessed, repaired, or exactly."""
    seen = []
    for name in NAMES:
        # "spread" comes first because it keeps trees low. On small networks several names give the
        # same splits.
        splits = _guessed(network, tier, name, level)
        if splits in seen:
            continue
        seen.append(splits)
        if network.holds(splits):
            network.split(splits)
            return [name] * len(tier)
    # No pairing holds as a whole. Of each as much is kept as holds, and the rest is paired again by
    # the next name, until a round of all names keeps nothing more; the remainder goes the exact
    # way.
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
    network: Capacities, switches: Iterable[int], name: str, level: Sequence[int]
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
    """Split off one switch, the body of Algorithm 3's outer loop."""
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
        # (B.1) asks two flows per rank, with infinite arcs that force the cut between the two
        # links. Here the split is made as far as known cuts allow, one flow per rank looks for a
        # cut that it overwhelms, and the missing amount is taken back: of all cuts only those with
        # w on the other side than both u and t lose capacity, and each loses exactly the amount
        # split off.
        network.change(u, w, t, amount)
        n = len(network.trees)
        # The rank that stopped the last split most often stops the next too, so it is asked first.
        # Ranks before it in this order need no second flow: a smaller split cannot make them short.
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
            # How much may be split off across a cut is remembered with the cut: the next pairs of
            # this switch that cross it are bounded without a flow.
            self.slacks.append(amount)  # what is split off below comes off again
        for i in crossed:
            self.slacks[i] -= amount
        return amount


# ---------------------------------------------------------------------- the network meanwhile


class Capacities:
    """The remaining network while its switches are split off.

    Attributes:
        topology: the network at first.
        trees: trees each rank is the root of.
        capacity: trees from vertex to vertex, above 0.
        paths: the paths that make up each capacity.
    """

    def __init__(self, topology: Topology, scaling: Scaling):
        self.topology = topology
        self.trees = scaling.trees
        self.capacity: dict[Pair, int] = {}
        self.paths: dict[Pair, list[PathCapacity]] = {}
        self._ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
        for link, (pair, amount) in enumerate(zip(self._ends, scaling.capacity, strict=True)):
            if amount:
                self.capacity[pair] = self.capacity.get(pair, 0) + amount
                self.paths.setdefault(pair, []).append(PathCapacity((link,), amount))

    def ports(self, switches: Iterable[int]) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
        """Per switch the capacity from each vertex into it, and from it to each."""
        found: dict[int, tuple[dict[int, int], dict[int, int]]] = {w: ({}, {}) for w in switches}
        touching = [pair for pair in self.capacity if pair[0] in found or pair[1] in found]
        for u, v in sorted(touching):
            if v in found:
                found[v][0][u] = self.capacity[u, v]
            if u in found:
                found[u][1][v] = self.capacity[u, v]
        return found

    def groups(self) -> dict[int, int]:
        """For each rank the least rank of its component among the ranks; a switch is its own."""
        n = self.topology.num_ranks
        direct = np.asarray([pair for pair in self.capacity if max(pair) < n], np.int64)
        ends = direct.reshape(-1, 2).T
        return dict(enumerate(components(self.topology.num_vertices, *ends).tolist()))

    def first_short(self, targets: Sequence[int] | range) -> Shortfall | None:
        """The first rank that cannot get every tree from a source linked to all roots (D_k)."""
        return self._with_source(list(self.capacity)).first_short(
            [*self.capacity.values(), *self.trees],
            self.topology.num_vertices,
            targets,
            sum(self.trees),
        )

    def _with_source(self, pairs: Sequence[Pair]) -> FlowNetwork:
        """The pairs, then an arc from one more vertex to each rank."""
        source, n = self.topology.num_vertices, len(self.trees)
        ends = np.asarray(pairs, np.int64).reshape(-1, 2)
        src = np.concatenate([ends[:, 0], np.full(n, source)])
        return FlowNetwork(source + 1, src, np.concatenate([ends[:, 1], np.arange(n)]))

    def holds(self, splits: Sequence[Split]) -> bool:
        """Whether every rank still gets every tree after some splits."""
        before = dict(self.capacity)
        for split in splits:
            self.change(*split)
        short = self.first_short(range(len(self.trees)))
        self.capacity = before
        return short is None

    def most_of(self, splits: Sequence[Split]) -> list[Split]:
        """As much of some splits as leaves every rank every tree, or nearly the most.

        All are made tentatively. A rank that falls short by d names a cut, which only splits whose
        switch lies on the other side than both its ports have narrowed: d of these are taken back
        (Theorem 28 for many pairs at once). One flow per rank, and one per cut that is found.
        """
        n, before = len(self.trees), self.capacity
        after = dict(before)
        self.capacity = after
        for split in splits:
            self.change(*split)
        self.capacity = before
        pairs = list(dict.fromkeys([*before, *after]))
        number = {pair: i for i, pair in enumerate(pairs)}
        # Columns instead of dictionaries: for each cut many splits are taken back in part, and the
        # flow network keeps its arcs while their capacities change.
        columns = np.asarray([split[:3] for split in splits], np.int64).reshape(-1, 3)
        whole = sum(before.values()) + sum(self.trees) < _SAFE
        dtype = np.int64 if whole else object
        amount = np.asarray([split[3] for split in splits], dtype)
        # Room of each pair, of the loops (u = t), which count nowhere, and of the roots.
        room = np.asarray([after.get(p, 0) for p in pairs] + [0, *self.trees], dtype)
        loop = len(pairs)
        arcs = np.asarray(
            [[number[u, w], number[w, t], number.get((u, t), loop)] for u, w, t, _ in splits],
            np.int64,
        ).reshape(-1, 3)
        counted = np.delete(np.arange(len(room)), loop)
        network = self._with_source(pairs)
        need, checked = sum(self.trees), 0
        while True:
            short = network.first_short(
                room[counted], self.topology.num_vertices, range(checked, n), need
            )
            if short is None:
                break
            checked = short.target
            side = short.source_side[columns]
            # Only a split with its switch on one side of the cut and both its ports on the other
            # has narrowed it: the path u, w, t crossed out and in again, the link (u, t) does not
            # cross at all.
            narrowing = np.flatnonzero((side[:, 0] == side[:, 2]) & (side[:, 0] != side[:, 1]))
            narrowing = narrowing[::-1]  # the last first
            total = np.cumsum(amount[narrowing])
            rest = np.maximum(need - short.flow - (total - amount[narrowing]), 0)
            back = np.minimum(amount[narrowing], rest)
            amount[narrowing] -= back
            np.add.at(room, arcs[narrowing, 0], back)
            np.add.at(room, arcs[narrowing, 1], back)
            np.subtract.at(room, arcs[narrowing, 2], back)
        return [
            (u, w, t, int(a))
            for (u, w, t), a in zip(columns.tolist(), amount.tolist(), strict=True)
            if a
        ]

    def change(self, u: int, w: int, t: int, amount: int) -> None:
        """Split off an amount of (u, w) and (w, t); give it back if negative. Capacities only.

        A way back to where it came from (u = t) carries nothing new, and is dropped.
        """
        for pair, more in (((u, w), -amount), ((w, t), -amount), ((u, t), amount)):
            if pair[0] != pair[1]:
                self.capacity[pair] = self.capacity.get(pair, 0) + more
                if not self.capacity[pair]:
                    del self.capacity[pair]

    def split(self, splits: Sequence[Split]) -> None:
        """Make splits, paths and all."""
        for split in splits:
            self.change(*split)
            self.route(*split)

    def route(self, u: int, w: int, t: int, amount: int) -> None:
        """Join the paths behind two split edges: the routing table, as paths."""
        into, out = self.paths[u, w], self.paths[w, t]
        while amount:
            first, second = into[-1], out[-1]
            both = min(first.amount, second.amount, amount)
            amount -= both
            for paths, part in ((into, first), (out, second)):
                part.amount -= both
                if not part.amount:
                    paths.pop()
            # Two paths joined may pass a switch twice, where both halves went through it. The loop
            # carries nothing and would cost latency and bandwidth, so that it is cut out of the
            # path.
            if u != t:
                path, paths = self._without_loops(first.path + second.path), self.paths
                for part in paths.setdefault((u, t), []):
                    if part.path == path:
                        part.amount += both
                        break
                else:
                    paths[u, t].append(PathCapacity(path, both))
        for pair in ((u, w), (w, t)):
            if not self.paths[pair]:
                del self.paths[pair]

    def _without_loops(self, path: Path) -> Path:
        """The path without the loops it makes through a switch that it crosses twice."""
        kept: list[int] = []
        reached = {self._ends[path[0]][0]: 0}
        for link in path:
            end = self._ends[link][1]
            if end in reached:
                del kept[reached[end] :]
                reached = {v: count for v, count in reached.items() if count <= len(kept)}
            else:
                kept.append(link)
                reached[end] = len(kept)
        return tuple(kept)
