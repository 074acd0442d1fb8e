"""A network inferred from times of flows: cables, ports of switches, and narrow uplinks.

Ranks do not see cables. They see how often their bytes are forwarded, and how long flows take alone
and together:

1. *Near* pairs have no rank between them: those that two shorter paths do not explain. They send to
   each other in rounds in which a rank sends to one and receives from one.
2. *Fans*: a rank sends to all ranks near it at once. If that takes as long as one of these flows,
   each has its own cable. If it takes as long as all of them one after the other, they leave by one
   *port*. Otherwise the flows are paired, to see which of them share a port. Fans into a rank are
   treated likewise.
3. *Segments*: pairs that share a port at either end belong to one segment. A segment of two ranks
   is a cable in one direction; a larger one is a switch, with a port of each rank, up and down.
4. *Groups*: permutations of a switch's ranks send at once. Pairs that are then slower than their
   ports cross a narrow link; the others belong to one group, for example a host. The rate at which
   all of a group send or receive at once is the bandwidth of its uplink.

Times are taken two or three times, and the least counts, because other work on a machine makes
flows longer and seldom shorter. ``findings`` makes a network of the links that are found.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import pdist

from jaxcoll.probing.findings import (
    REPEATS,
    TIME,
    Again,
    Fit,
    FoundLinks,
    Link,
    Pair,
    checked,
)
from jaxcoll.probing.meter import Flow, Meter

# Bytes of the first flow of a pair whose speed nobody knows, and the most of any flow.
_FIRST_BYTES, _MOST_BYTES = 1 << 15, 1 << 28
# Flows that share nothing take as long as one; those that share a port take as long as all of them
# one after the other. A time in between counts as one of these ends if it is nearer to it than this
# share of the distance.
_NEAR_AN_END = 0.25
# One measurement is enough if it was nearer than this to an end.
_CLEAR = 0.15
# Permutations in which more than a few pairs get less than this share cross a narrow link.
_ACROSS, _BY_CHANCE = 0.75, 0.06
# Random permutations in addition to the shifts: a few, and if there is a narrow link many, until
# each pair has occurred this many times.
_FEW_PERMUTATIONS, _MANY_PERMUTATIONS, _MOST_PERMUTATIONS, _APPEARANCES = 3, 18, 32, 4
# If a group's ports get more than this share through an uplink, the switch does not block.
_FULL = 0.85


def infer(meter: Meter, seed: int = 0, say: Callable[[str], None] = lambda text: None) -> Fit:
    """The network that the times of flows imply.

    Args:
        meter: measures the network.
        seed: seed of the permutations.
        say: called with the name of each measurement.
    """
    say("counting hops")
    pairs = near_pairs(meter.hops())
    say(f"timing {len(pairs)} pairs")
    timed = _Timed(meter, pairs)
    say("timing what leaves and enters a rank at once")
    out = {a: timed.ports([p for p in pairs if p[0] == a]) for a in range(meter.num_ranks)}
    into = {b: timed.ports([p for p in pairs if p[1] == b]) for b in range(meter.num_ranks)}
    links: list[Link] = []
    vertices, groups = meter.num_ranks, []
    generator = np.random.default_rng(seed)
    for segment in segments(out, into):
        if len(segment) == 1:
            (pair,) = segment
            _, rate, again = timed.cable(pair)
            links.append(Link("cable", *pair, timed.latency(pair), rate, again))
            continue
        say(f"timing permutations of the {len({p[0] for p in segment})} ranks of a switch")
        found = _Switch(timed, segment, out, into, generator)
        links += found.links(vertices)
        groups += [(vertices + i, ranks) for i, ranks in enumerate(found.groups)]
        vertices += found.num_vertices
    say("checking what was found")
    return checked(meter, FoundLinks(meter.num_ranks, vertices, links, groups), generator)


def near_pairs(hops: np.ndarray) -> list[Pair]:
    """The pairs with no rank between them; unknown numbers of hops count as none."""
    n, known = len(hops), np.maximum(hops, 0)
    found = []
    for a, b in itertools.permutations(range(n), 2):
        between = known[a] + known[:, b] + 1 == known[a, b]
        between[[a, b]] = False
        if not between.any():
            found.append((a, b))
    return found


class Port(NamedTuple):
    """Pairs whose flows share a port of a rank, and the port's bandwidth."""

    pairs: frozenset[Pair]
    bandwidth: float
    again: Again


Ports = dict[int, list[Port]]


class _Timed:
    """Rates of near pairs, and the ports that their flows share."""

    def __init__(self, meter: Meter, pairs: Sequence[Pair]) -> None:
        self._meter = meter
        self.rate: dict[Pair, float] = {}
        self._latency = dict(zip(pairs, meter.latencies(pairs).tolist(), strict=True))
        for together in rounds(pairs, meter.num_ranks):
            self._time(together)

    def latency(self, pair: Pair) -> float:
        """Seconds of a few bytes, at least 0."""
        return max(0.0, self._latency[pair])

    def _time(self, pairs: Sequence[Pair]) -> None:
        """Measure rates of pairs that send at once: flows grow until each takes its full time."""
        # A flow as fast as earlier ones then takes a fourth of its time; at a tenth of their speed
        # it is not too long.
        usual = float(np.median([*self.rate.values()])) if self.rate else 0.0
        nbytes = dict.fromkeys(pairs, max(_FIRST_BYTES, int(TIME / 4 * usual)))
        while True:
            seconds = self.seconds(nbytes)
            short = [
                pair
                for pair, t in zip(pairs, seconds, strict=True)
                if t < 0.5 * TIME and nbytes[pair] < _MOST_BYTES
            ]
            if not short:
                break
            for pair, t in zip(pairs, seconds, strict=True):
                if pair in short:
                    larger = min(32.0, max(2.0, TIME / max(t, 1e-9)))
                    nbytes[pair] = min(_MOST_BYTES, int(larger * nbytes[pair]))
        # All flows send for their whole time: if a flow were half as long, the part that passes
        # freely into queues and buckets at its start would count twice.
        nbytes = {
            pair: min(_MOST_BYTES, max(size, int(size * TIME / max(t, 1e-9))))
            for (pair, size), t in zip(nbytes.items(), seconds, strict=True)
        }
        rows = [self.seconds(nbytes) for _ in range(REPEATS - 1)]
        for pair, t in zip(pairs, np.min(rows, axis=0), strict=True):
            self.rate[pair] = nbytes[pair] / max(t, 1e-9)

    def seconds(self, nbytes: dict[Pair, int]) -> np.ndarray:
        """Seconds of simultaneous flows."""
        return self._meter.times([Flow(*pair, size) for pair, size in nbytes.items()])

    def sharing(self, pairs: Sequence[Pair]) -> tuple[float, dict[Pair, int], np.ndarray]:
        """Ratio of the seconds of flows at once to those of each alone; their bytes and seconds.

        Each flow has so many bytes that it would take the same time alone.
        """
        alone = 1.5 * TIME / len(pairs)
        nbytes = {pair: max(1, int(alone * self.rate[pair])) for pair in pairs}
        best, count = self.seconds(nbytes), 1
        # Other work makes flows look as if they shared a port, never the opposite.
        while count < REPEATS:
            share = (best.max() / alone - 1) / (self._most(pairs) - 1)
            if share < _CLEAR or (count > 1 and share > 1 - _CLEAR):
                break
            best, count = min(best, self.seconds(nbytes), key=np.max), count + 1
        return float(best.max() / alone), nbytes, best

    def cable(self, pair: Pair) -> Port:
        """The port of a pair that shares none."""
        return Port(frozenset([pair]), self.rate[pair], functools.partial(self._alone, pair))

    def _alone(self, pair: Pair) -> float:
        self._time([pair])
        return self.rate[pair]

    def ports(self, fan: Sequence[Pair]) -> list[Port]:
        """The flows of a fan grouped by the port that they share, with each port's bandwidth."""
        if not fan:
            return []
        if len(fan) == 1:
            return [self.cable(fan[0])]
        times, nbytes, seconds = self.sharing(fan)
        part = (times - 1) / (self._most(fan) - 1)
        if part < _NEAR_AN_END:
            return [self.cable(pair) for pair in fan]
        # Four flows that share a port are hard to distinguish from three that do and one that does
        # not.
        if len(parts := self._parts(fan)) > 1:
            one_each = [max(pairs, key=lambda pair: self.rate[pair]) for pairs in parts]
            if self._is_apart(one_each):
                return [port for pairs in parts for port in self.ports(pairs)]
        again = functools.partial(self._port, nbytes, seconds)
        if part > 1 - _NEAR_AN_END:
            return [Port(frozenset(fan), again(), again)]
        first, *others = sorted(fan, key=lambda pair: -self.rate[pair])
        beside = [first, *(pair for pair in others if not self._is_apart([first, pair]))]
        left = [pair for pair in fan if pair not in beside]
        own = self.ports(beside) if left else [Port(frozenset(fan), again(), again)]
        return [*own, *self.ports(left)]

    def _port(self, nbytes: dict[Pair, int], seconds: np.ndarray) -> float:
        """The bandwidth of a port that flows share, which took these times at once.

        The flows run twice more, each with so many bytes that it should end with the others, so
        that none leaves the port to flows that are slower elsewhere.
        """
        fastest = sum(nbytes.values()) / float(seconds.max())
        for _ in range(2):
            nbytes = {
                pair: max(1, int(TIME * min(size / t, self.rate[pair])))
                for (pair, size), t in zip(nbytes.items(), seconds, strict=True)
            }
            seconds = self.seconds(nbytes)
            fastest = max(fastest, sum(nbytes.values()) / float(seconds.max()))
        return fastest

    def _is_apart(self, pairs: Sequence[Pair]) -> bool:
        """Whether flows share no port."""
        return self.sharing(pairs)[0] < 1 + 0.5 * (self._most(pairs) - 1)

    def _parts(self, fan: Sequence[Pair]) -> list[list[Pair]]:
        """The flows of a fan, in groups whose other ends are near each other."""
        which = 0 if len({a for a, _ in fan}) > 1 else 1
        end = {pair: pair[which] for pair in fan}
        graph = nx.Graph()
        graph.add_nodes_from(fan)
        graph.add_edges_from(
            (p, q) for p, q in itertools.combinations(fan, 2) if (end[p], end[q]) in self.rate
        )
        return [sorted(part) for part in nx.connected_components(graph)]

    def _most(self, fan: Sequence[Pair]) -> float:
        """The time of flows through one port, as fast as the fastest, in times of one flow."""
        rates = [self.rate[pair] for pair in fan]
        return sum(rates) / max(rates)


def segments(out: Ports, into: Ports) -> list[list[Pair]]:
    """Pairs grouped by the ports that they share at either end, in order."""
    graph = nx.Graph()
    for side, ports in (("out", out), ("into", into)):
        for rank, found in ports.items():
            for i, port in enumerate(found):
                for pair in port.pairs:
                    graph.add_edge(pair, (side, rank, i))
    whole = [
        sorted(node for node in component if len(node) == 2)
        for component in nx.connected_components(graph)
    ]
    return sorted(whole)


def _permutations(k: int, generator: np.random.Generator) -> Iterator[Iterable[int]]:
    """The shifts of k, then random permutations; for up to four all without a fixed point."""
    yield from (np.roll(np.arange(k), -i) for i in range(1, k))
    if k > 4:
        yield from (generator.permutation(k) for _ in range(_MOST_PERMUTATIONS))
    else:
        every = itertools.permutations(range(k))
        yield from (image for image in every if all(i != j for i, j in enumerate(image)))


def rounds(pairs: Iterable[Pair], num_ranks: int) -> list[list[Pair]]:
    """Pairs in rounds in which each rank sends to one other at most, and receives from one."""
    left, found = set(pairs), []
    while left:
        rows, columns = np.array(sorted(left)).T
        graph = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (num_ranks, num_ranks))
        matched = sparse.csgraph.maximum_bipartite_matching(graph, perm_type="column")
        found.append([(a, int(b)) for a, b in enumerate(matched) if b >= 0])
        left -= set(found[-1])
    return found


class _Switch:
    """A segment of more than two ranks: its ports, and the groups that uplinks join."""

    def __init__(
        self,
        timed: _Timed,
        segment: Sequence[Pair],
        out: Ports,
        into: Ports,
        generator: np.random.Generator,
    ) -> None:
        self._timed = timed
        self._pairs = frozenset(segment)
        self._out = {a: self._port(out[a]) for a in sorted({a for a, _ in segment})}
        self._into = {b: self._port(into[b]) for b in sorted({b for _, b in segment})}
        self.up = {a: port.bandwidth for a, port in self._out.items()}
        self.down = {b: port.bandwidth for b, port in self._into.items()}
        self.ranks = sorted({*self.up, *self.down})
        self.groups = self._find_groups(generator) if len(self.ranks) > 3 else [self.ranks]
        self.num_vertices = len(self.groups) + (len(self.groups) > 2)

    def _port(self, ports: Sequence[Port]) -> Port:
        """The port of a rank in this segment; its fastest if it seems to have several."""
        return max((p for p in ports if p.pairs & self._pairs), key=lambda p: p.bandwidth)

    def _find_groups(self, generator: np.random.Generator) -> list[list[int]]:
        k, place = len(self.ranks), {rank: i for i, rank in enumerate(self.ranks)}
        speed = np.zeros((k, k))
        seen, slow, is_uneven = np.zeros((k, k), int), 0, False
        for drawn, image in enumerate(_permutations(k, generator), 1 - k):
            pairs = [(self.ranks[i], self.ranks[j]) for i, j in enumerate(image)]
            pairs = [pair for pair in pairs if pair in self._pairs]
            if not pairs:
                continue
            nbytes = {p: max(1, int(TIME * self._timed.rate[p] / 3)) for p in pairs}
            for (a, b), t in zip(pairs, self._timed.seconds(nbytes), strict=True):
                i, j = sorted((place[a], place[b]))
                alone = nbytes[a, b] / min(self.up[a], self.down[b])
                speed[i, j] += min(1.0, alone / t)
                seen[i, j] += 1
                slow += alone < _ACROSS * t
            is_uneven = slow > _BY_CHANCE * seen.sum()
            if drawn >= _FEW_PERMUTATIONS and not is_uneven:
                break
            if drawn >= _MANY_PERMUTATIONS and seen[np.triu_indices(k, 1)].min() >= _APPEARANCES:
                break
        if not is_uneven:
            return [self.ranks]
        speed = np.divide(speed, seen, out=np.ones_like(speed), where=seen > 0)
        slowness = np.triu(1 - speed, 1)
        # All slowness counts: two ranks of two groups may never have met in a full cable.
        tree = hierarchy.linkage(pdist(slowness + slowness.T), "average")
        labels = hierarchy.fcluster(tree, tree[-1, 2] / 2, "distance")
        found = [[r for r, of in zip(self.ranks, labels, strict=True) if of == label]
                 for label in sorted(set(labels))]  # fmt: skip
        return sorted(found)

    def _through(self, senders: Sequence[int], receivers: Sequence[int]) -> float:
        """The rate at which ranks send to others at once, each to one or in turn to several."""
        pairs = {
            (senders[i % len(senders)], receivers[i % len(receivers)])
            for i in range(max(len(senders), len(receivers)))
        }
        of_sender, of_receiver = defaultdict(int), defaultdict(int)
        for a, b in pairs:
            of_sender[a] += 1
            of_receiver[b] += 1
        nbytes = {
            (a, b): max(
                1, int(TIME * min(self.up[a] / of_sender[a], self.down[b] / of_receiver[b]))
            )
            for a, b in sorted(pairs)
            if (a, b) in self._pairs
        }
        took = min(self._timed.seconds(nbytes).max() for _ in range(REPEATS))
        return sum(nbytes.values()) / float(took)

    def links(self, first: int) -> list[Link]:
        """The links of the ranks and of the switches, which are numbered from ``first`` on."""
        group_of = {rank: i for i, group in enumerate(self.groups) for rank in group}
        inside = self._latency(group_of, within=True)
        at = {rank: first + group for rank, group in group_of.items()}
        found = [
            *(Link("port", a, at[a], inside / 2, *port[1:]) for a, port in self._out.items()),
            *(Link("port", at[b], b, inside / 2, *port[1:]) for b, port in self._into.items()),
        ]
        if len(self.groups) == 1:
            return found
        across = max(0.0, self._latency(group_of, within=False) - inside)
        if len(self.groups) == 2:
            ways = [(0, 1, *self.groups, across), (1, 0, *reversed(self.groups), across)]
        else:
            ways, core = [], len(self.groups)
            for i, group in enumerate(self.groups):
                others = [rank for rank in self.ranks if rank not in group]
                # Spread over the other groups, so that the uplinks of these do not limit the rate.
                others.sort(key=lambda r: (self.groups[group_of[r]].index(r), group_of[r]))
                chosen = others[: max(len(group), len(self.groups) - 1)]
                ways += [(i, core, group, chosen, across / 2), (core, i, chosen, group, across / 2)]
        for i, j, senders, receivers, alpha in ways:
            senders = [a for a in senders if a in self.up]
            receivers = [b for b in receivers if b in self.down]
            if senders and receivers:
                again = functools.partial(self._uplink, senders, receivers)
                found.append(Link("uplink", first + i, first + j, alpha, again(), again))
        return found

    def _uplink(self, senders: Sequence[int], receivers: Sequence[int]) -> float:
        """The rate of ranks that send to others at once; that of their ports if these are full."""
        ports = min(sum(self.up[a] for a in senders), sum(self.down[b] for b in receivers))
        rate = self._through(senders, receivers)
        return ports if rate > _FULL * ports else rate

    def _latency(self, group_of: Mapping[int, int], within: bool) -> float:
        found = [
            self._timed.latency((a, b))
            for a, b in self._pairs
            if (group_of[a] == group_of[b]) == within
        ]
        return float(np.median(found)) if found else 0.0
