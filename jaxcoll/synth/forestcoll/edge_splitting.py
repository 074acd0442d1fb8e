"""Edge splitting: switches replaced by capacities between ranks that keep the throughput optimum.

Splitting off c of the links (u, w) and (w, t) replaces c of both by c of a direct link (u, t). A
network in which all capacity of every switch is split off has ranks only, and as long as
every rank still gets all trees from an added source, trees exist in it (Theorem 25). Switches are
split off tier by tier, those nearest to the ranks first. How the capacities of a tier are paired is
guessed (``pairings``), and a guess counts only once flows have verified it. Where none holds, the
splits that a flow objects to are taken back until the others hold, and the rest is paired again;
what no guess pairs is split off exactly (dissertation, Algorithms 2 and 3, Theorem 28).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import networkx as nx
import numpy as np

from jaxcoll.bounds.throughput import Scaling, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.synth.forestcoll.capacities import Capacities, Pair, PathCapacity, Split
from jaxcoll.synth.forestcoll.pairings import NAMES, pairing
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
    graph = nx.Graph(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    ranks = set(range(topology.num_ranks))
    found = nx.multi_source_dijkstra_path_length(graph, ranks & set(graph))
    hops = {int(v): int(h) for v, h in found.items()}
    tiers: dict[tuple[int, int], list[int]] = {}
    for w in range(topology.num_ranks, topology.num_vertices):
        if w in hops:
            tiers.setdefault((hops[w], graph.degree(w)), []).append(w)
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
    for t in out:
        # The way back last: the capacity that it splits off is lost.
        for u in sorted(into, key=lambda u: (u == t, u)):
            if (w, t) not in network.capacity:
                break
            if (u, w) in network.capacity:
                amount = cuts.most(u, w, t)
                if amount:
                    network.route(u, w, t, amount)
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
