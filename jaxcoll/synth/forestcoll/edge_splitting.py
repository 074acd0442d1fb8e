"""Switch removal: capacities between ranks, with paths, that keep the throughput optimum.

Splitting off c of the links (u, w) and (w, t) replaces c of both by c of a direct link (u, t). A
network in which all capacity of every switch is split off has ranks only, and as long as
every rank still gets all trees from an added source, trees exist in it (Theorem 25). Switches go
one by one, those nearest to the ranks first. How the capacity of a switch is paired is guessed
where its ports look alike, and the guess counts only once flows have verified it; otherwise it is
split off exactly (dissertation, Algorithms 2 and 3, Theorem 28).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import networkx as nx
import numpy as np

from jaxcoll.bounds.throughput import Scaling, check_balanced
from jaxcoll.errors import TopologyError
from jaxcoll.numerics.max_flow import FlowNetwork, Shortfall
from jaxcoll.topology import Topology

Pair = tuple[int, int]
Path = tuple[int, ...]


@dataclasses.dataclass
class Piece:
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
        pieces: for each pair of ranks with capacity from one to the other, the paths that make
            it up; amounts are trees.
        how: for each switch removed, in that order: "spread" or "rotated" where a guess held,
            "split" where its capacity was split off exactly.
    """

    num_ranks: int
    pieces: dict[Pair, list[Piece]]
    how: tuple[str, ...]

    def capacity(self) -> dict[Pair, int]:
        """Trees that each pair of ranks can carry from one to the other."""
        return {pair: sum(p.amount for p in pieces) for pair, pieces in self.pieces.items()}


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
    network = _Network(topology, scaling)
    if network.first_short(range(topology.num_ranks)) is not None:
        raise TopologyError(f"{topology} cannot carry {scaling.k} trees a rank at this scale")
    how = []
    for w in _bottom_up(topology):
        guesses = _guesses(network, w) if guess else iter(())
        for name, pairing in guesses:
            if network.try_pairing(w, pairing):
                how.append(name)
                break
        else:
            _split_off(network, w)
            how.append("split")
    # Links among switches that no rank is joined to are of no use.
    kept = {pair: p for pair, p in network.pieces.items() if max(pair) < topology.num_ranks}
    return Logical(topology.num_ranks, kept, tuple(how))


class _Network:
    """What is left of a network while its switches go.

    Attributes:
        capacity: trees from vertex to vertex, above 0.
        pieces: the paths that make up each capacity.
        trees: trees each rank is the root of.
    """

    def __init__(self, topology: Topology, scaling: Scaling):
        self.topology = topology
        self.trees = scaling.trees
        self.capacity: dict[Pair, int] = {}
        self.pieces: dict[Pair, list[Piece]] = {}
        ends = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        for link, (pair, amount) in enumerate(zip(ends, scaling.capacity, strict=True)):
            if amount:
                self.capacity[pair] = self.capacity.get(pair, 0) + amount
                self.pieces.setdefault(pair, []).append(Piece((link,), amount))

    def first_short(self, targets: Sequence[int] | range) -> Shortfall | None:
        """The first rank that cannot get every tree from a source linked to all roots (D_k)."""
        source = self.topology.num_vertices
        src = [u for u, _ in self.capacity] + [source] * len(self.trees)
        dst = [v for _, v in self.capacity] + list(range(len(self.trees)))
        network = FlowNetwork(source + 1, np.asarray(src), np.asarray(dst))
        arcs = [*self.capacity.values(), *self.trees]
        return network.first_short(arcs, source, targets, sum(self.trees))

    def change(self, u: int, w: int, t: int, amount: int) -> None:
        """Split off an amount of (u, w) and (w, t); give it back if negative. Capacities only.

        A way back to where it came from (u = t) carries nothing that was not there, and is dropped.
        """
        for pair, more in (((u, w), -amount), ((w, t), -amount), ((u, t), amount)):
            if pair[0] != pair[1]:
                self.capacity[pair] = self.capacity.get(pair, 0) + more
                if not self.capacity[pair]:
                    del self.capacity[pair]

    def route(self, u: int, w: int, t: int, amount: int) -> None:
        """Join the pieces of what was split off: the routing table, as paths."""
        while amount:
            first, second = self.pieces[u, w][-1], self.pieces[w, t][-1]
            both = min(first.amount, second.amount, amount)
            amount -= both
            for pair, piece in (((u, w), first), ((w, t), second)):
                piece.amount -= both
                if not piece.amount:
                    self.pieces[pair].pop()
            if u != t:
                path = _without_loops(self.topology, first.path + second.path)
                self._add(u, t, path, both)
        for pair in ((u, w), (w, t)):
            if not self.pieces[pair]:
                del self.pieces[pair]

    def _add(self, u: int, t: int, path: Path, amount: int) -> None:
        pieces = self.pieces.setdefault((u, t), [])
        same = next((piece for piece in pieces if piece.path == path), None)
        if same is None:
            pieces.append(Piece(path, amount))
        else:
            same.amount += amount

    def try_pairing(self, w: int, pairing: Sequence[tuple[int, int, int]]) -> bool:
        """Split off all of a switch at once, if it is all and every rank still gets every tree."""
        before = dict(self.capacity)
        for u, t, amount in pairing:
            self.change(u, w, t, amount)
        left = any(w in pair for pair in self.capacity)
        if left or self.first_short(range(len(self.trees))) is not None:
            self.capacity = before
            return False
        for u, t, amount in pairing:
            self.route(u, w, t, amount)
        return True

    def ports(self, w: int) -> tuple[dict[int, int], dict[int, int]]:
        """Capacity from each vertex into w, and from w to each."""
        into = {u: c for (u, v), c in sorted(self.capacity.items()) if v == w}
        out = {v: c for (u, v), c in sorted(self.capacity.items()) if u == w}
        return into, out


def _without_loops(topology: Topology, path: Path) -> Path:
    """The path without the rounds it makes through a switch that it crosses twice."""
    kept: list[int] = []
    reached = {int(topology.src[path[0]]): 0}
    for link in path:
        end = int(topology.dst[link])
        if end in reached:
            del kept[reached[end] :]
            reached = {v: count for v, count in reached.items() if count <= len(kept)}
        else:
            kept.append(link)
            reached[end] = len(kept)
    return tuple(kept)


def _bottom_up(topology: Topology) -> list[int]:
    """Switches by hops from the nearest rank, then by number of ports, then by number."""
    graph = nx.Graph(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    ranks = set(range(topology.num_ranks))
    hops = nx.multi_source_dijkstra_path_length(graph, ranks & set(graph))
    switches = [w for w in range(topology.num_ranks, topology.num_vertices) if w in hops]
    return sorted(switches, key=lambda w: (hops[w], graph.degree(w), w))


# ---------------------------------------------------------------------- guesses


def _guesses(network: _Network, w: int) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
    """Pairings (u, t, amount) of a switch's capacity that often keep the optimum.

    Ports are grouped by what hangs together without switches (a box, say), and laid on a circle,
    group by group, as long as their capacity. Turned by the largest group, every port into the
    switch meets the like port out of it in the next group (a rail). "spread" shares the
    capacity out among turns by 1, 2, ... groups, which keeps trees low; "rotated" takes one turn.
    """
    into, out = network.ports(w)
    ports = {*into, *out}
    together, alone = _groups(network, ports), {v: v for v in ports}
    for group in (together, alone) if len(set(together.values())) > 1 else (alone,):
        turns = max(1, len({group[v] for v in into}) - 1)
        shares = [(_share(into, turns, j), _share(out, turns, j)) for j in range(turns)]
        if all(sum(a.values()) == sum(b.values()) for a, b in shares):
            spread = (_turned(a, b, group, j + 1) for j, (a, b) in enumerate(shares))
            yield "spread", [pair for pairs in spread for pair in pairs]
        if turns > 1:
            yield "rotated", _turned(into, out, group, 1)


def _groups(network: _Network, ports: set[int]) -> dict[int, int]:
    """For each port the least rank of its component among the ranks; a switch is its own."""
    n = network.topology.num_ranks
    direct = nx.Graph(pair for pair in network.capacity if max(pair) < n)
    direct.add_nodes_from(ports)
    return {v: min(part) for part in nx.connected_components(direct) for v in part if v in ports}


def _share(ports: dict[int, int], turns: int, j: int) -> dict[int, int]:
    """The j-th of nearly equal parts of every port's capacity."""
    return {v: c // turns + (j < c % turns) for v, c in ports.items()}


def _turned(
    into: dict[int, int], out: dict[int, int], group: dict[int, int], groups: int
) -> list[tuple[int, int, int]]:
    """Pairs of ports that meet when the circle is turned by a number of largest groups."""
    size: dict[int, int] = {}
    for v, c in into.items():
        size[group[v]] = size.get(group[v], 0) + c
    total = sum(into.values())
    turn = groups * max(size.values()) % total if total else 0
    meets = []
    ring = [(v, c) for v, c in sorted(out.items(), key=lambda p: (group[p[0]], p[0])) if c]
    # The ports out of the switch as seen from the first port into it, twice round.
    position = 0
    arcs = []
    for v, c in ring + ring:
        arcs.append((position - turn, position - turn + c, v))
        position += c
    start = 0
    for u, c in sorted(into.items(), key=lambda p: (group[p[0]], p[0])):
        for low, high, t in arcs:
            both = min(high, start + c) - max(low, start)
            if both > 0:
                meets.append((u, t, both))
        start += c
    return meets


# ---------------------------------------------------------------------- exact splitting


def _split_off(network: _Network, w: int) -> None:
    """Split off a switch exactly (Algorithm 3): every link out can be paired (Theorem 27)."""
    into, out = network.ports(w)
    cuts = _Cuts(network)
    for t in out:
        # The way back last: what it splits off is lost.
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

    def __init__(self, network: _Network):
        self.network = network
        self.sides: list[np.ndarray] = []
        self.slacks: list[int] = []
        self.last = 0

    def most(self, u: int, w: int, t: int) -> int:
        """Split off the most of (u, w), (w, t) that leaves every rank every tree: the paper's
        gamma (Theorem 28), found with one flow a rank instead of two.

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
