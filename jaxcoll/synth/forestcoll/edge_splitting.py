"""Step 2: switches removed by edge splitting (Sec. 4.5.3, App. B.5.2).

Splitting off c of the links (u, w) and (w, t) replaces c of both by c of a direct link (u, t). A
network in which all capacity of every switch is split off has ranks only, and as long as every rank
still gets all trees from an added source, trees exist in it (Theorem 25). How much of a pair of
links may be split off is gamma (Theorem 28, ``_Cuts.most``).

Three ranks at one switch, with ports for two trees each way: splitting (0, w), (w, 1), then (1, w),
(w, 2) and (2, w), (w, 0) leaves a ring of capacity 2, and splitting one tree of each port towards
each other rank leaves all six links of capacity 1. Both keep the optimum.

``Capacities`` is the network meanwhile: capacities from vertex to vertex, with the paths that make
them up, the paper's ``routing``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.bounds.throughput import Scaling
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.max_flow import FlowNetwork, Shortfall
from jaxcoll.topology import Topology

Pair = tuple[int, int]
Path = tuple[int, ...]


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
        how: for each switch removed, in that order: "split" where capacity of it was split off as
            here, otherwise the name of the shortcut that paired it.
    """

    num_ranks: int
    paths: dict[Pair, list[PathCapacity]]
    how: tuple[str, ...]

    def capacity(self) -> dict[Pair, int]:
        """Trees that each pair of ranks can carry from one to the other."""
        return {pair: sum(p.amount for p in paths) for pair, paths in self.paths.items()}


def remove_switches(topology: Topology, scaling: Scaling) -> Logical:
    """Split off every switch (Algorithms 2 and 3).

    Args:
        scaling: trees and what each link can carry of them.
        topology: where it has switches, with as much bandwidth into each vertex as out of it
            (``check_balanced``).

    Raises:
        TopologyError: trees that the network has no capacity for.
    """
    network, removed = capacities(topology, scaling), 0
    for tier in tiers(topology):
        for w in tier:  # "foreach switch node w"
            split_off(network, w)
            removed += 1
    return network.logical(["split"] * removed)


def capacities(topology: Topology, scaling: Scaling) -> Capacities:
    """The network before any switch is removed.

    Raises:
        TopologyError: trees that the network has no capacity for.
    """
    network = Capacities(topology, scaling)
    if not topology.is_direct and network.first_short(range(topology.num_ranks)) is not None:
        raise TopologyError(f"{topology} cannot carry {scaling.k} trees per rank at this scale")
    return network


def tiers(topology: Topology) -> list[list[int]]:
    """Switches that are as far from the ranks and have as many ports, nearest first.

    Theorem 27 allows any order. From the ranks up, a switch is split off when all that is below it
    are ranks. Switches that reach no rank are in no tier.
    """
    joined = np.unique(np.sort([topology.src, topology.dst], axis=0), axis=1)
    ports = np.bincount(joined.ravel(), minlength=topology.num_vertices).tolist()
    level = topology.hops_to_rank.tolist()
    tier_of: dict[tuple[int, int], list[int]] = {}
    for w, hops in enumerate(level):
        if hops > 0:
            tier_of.setdefault((hops, ports[w]), []).append(w)
    return [tier_of[place] for place in sorted(tier_of)]


def split_off(network: Capacities, w: int) -> None:
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

    def logical(self, how: Sequence[str]) -> Logical:
        """The network between ranks, once no switch has capacity left."""
        # Links among switches that no rank is joined to are of no use.
        kept = {pair: p for pair, p in self.paths.items() if max(pair) < len(self.trees)}
        return Logical(len(self.trees), kept, tuple(how))

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

    def first_short(self, targets: Sequence[int] | range) -> Shortfall | None:
        """The first rank that cannot get every tree from a source linked to all roots (D_k)."""
        return self.with_source(list(self.capacity)).first_short(
            [*self.capacity.values(), *self.trees],
            self.topology.num_vertices,
            targets,
            sum(self.trees),
        )

    def with_source(self, pairs: Sequence[Pair]) -> FlowNetwork:
        """The pairs, then an arc from one more vertex to each rank."""
        source, n = self.topology.num_vertices, len(self.trees)
        ends = np.asarray(pairs, np.int64).reshape(-1, 2)
        src = np.concatenate([ends[:, 0], np.full(n, source)])
        return FlowNetwork(source + 1, src, np.concatenate([ends[:, 1], np.arange(n)]))

    def change(self, u: int, w: int, t: int, amount: int) -> None:
        """Split off an amount of (u, w) and (w, t); give it back if negative. Capacities only.

        A way back to where it came from (u = t) carries nothing new, and is dropped.
        """
        for pair, more in (((u, w), -amount), ((w, t), -amount), ((u, t), amount)):
            if pair[0] != pair[1]:
                self.capacity[pair] = self.capacity.get(pair, 0) + more
                if not self.capacity[pair]:
                    del self.capacity[pair]

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
