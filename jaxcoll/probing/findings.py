"""The network of links that were found: their kinds, those that differ, and its name.

Links of one kind, within a tenth of each other, get the median of the kind; a link that differs by
more is a finding. A network of cables that is a ring, a torus or a hypercube is recognised, even if
some cables are missing. At last the network is checked against the times of random permutations.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from jaxcoll import topologies
from jaxcoll.paths import forwarded_routes
from jaxcoll.probing.meter import Flow, Meter
from jaxcoll.topology import Topology

Pair = tuple[int, int]
Again = Callable[[], float]

# Seconds that a flow takes alone: long compared with the milliseconds of delay on a busy machine.
TIME = 0.07
REPEATS = 3  # of a measurement
# Processes are woken some microseconds late, so shorter latencies cannot be measured.
_LEAST_LATENCY = 5e-6
# Kinds of links whose rates are within the first of each other are one kind; rates of one kind are
# each within the second of the next.
_EQUAL, _SAME = 0.04, 0.12
_FEW = 0.2  # a kind with a smaller share of all links does not count


@dataclasses.dataclass(frozen=True)
class Link:
    """A directed link that was found.

    Attributes:
        role: cable, port or uplink; links are compared with links of the same role.
        src, dst: its vertices.
        alpha, bandwidth: seconds, and bytes per second, as measured.
        again: measures the bandwidth once more.
    """

    role: str
    src: int
    dst: int
    alpha: float
    bandwidth: float
    again: Again


@dataclasses.dataclass(frozen=True)
class Fit:
    """A network found by measurement.

    Attributes:
        network: each link that is similar to others has the bandwidth of its kind.
        findings: a sentence for each link that differs from its kind.
        errors: results of the check: measured seconds over those that the network gives, for
            permutations of all ranks; float64 of shape (permutations,).
    """

    network: Topology
    findings: tuple[str, ...]
    errors: np.ndarray


@dataclasses.dataclass(frozen=True)
class FoundLinks:
    """Links as they were found.

    Attributes:
        num_ranks, num_vertices: numbers of ranks, and of ranks and switches.
        links: the links.
        groups: the switches that join some ranks, and these ranks.
    """

    num_ranks: int
    num_vertices: int
    links: Sequence[Link]
    groups: Sequence[tuple[int, Sequence[int]]]

    def name(self, vertex: int) -> str:
        """The name of a vertex."""
        if vertex < self.num_ranks:
            return f"rank {vertex}"
        ranks = dict(self.groups).get(vertex)
        return "the core switch" if ranks is None else f"the switch of ranks {_ranges(ranks)}"

    def confirmed(self) -> FoundLinks:
        """The network after measuring links that differ from their kind twice more.

        Other work may have caused the difference, so the median counts.
        """
        links = list(self.links)
        for cluster, usual in _kinds(links):
            for link in cluster if usual is not None else ():
                rate = float(np.median([link.bandwidth, link.again(), link.again()]))
                links[links.index(link)] = dataclasses.replace(link, bandwidth=rate)
        return dataclasses.replace(self, links=links)

    def named(self) -> tuple[list[Link], list[str]]:
        """The links with the numbers of their kinds, and sentences about those that differ."""
        found, said, rates = [], [], list[float]()
        for cluster, usual in _kinds(self.links):
            median = float(np.median([link.bandwidth for link in cluster]))
            # Cables and ports whose rates are equal within the accuracy get the same number.
            close = [rate for rate in rates if abs(rate / median - 1) < _EQUAL]
            rate = close[0] if close else _rounded(median, 3)
            if usual is None:
                rates.append(rate)
                found += [dataclasses.replace(link, bandwidth=rate) for link in cluster]
                continue
            for link in cluster:
                own = _rounded(link.bandwidth, 3)
                found.append(dataclasses.replace(link, bandwidth=own))
                ends = f"{self.name(link.src)} to {self.name(link.dst)}"
                said.append(f"{ends}: {_compared(own, _rounded(usual, 3))}")
        return found, said


def _kinds(links: Sequence[Link]) -> list[tuple[list[Link], float | None]]:
    """Links grouped by rate and role: first the kinds, with None, then links unlike their kind.

    The latter come with the rate of the kind that they should have.
    """
    by_role, kinds, unlike = defaultdict(list), [], []
    for link in links:
        by_role[link.role].append(link)
    for of_role in by_role.values():
        clusters = _clusters(of_role)
        usual = [c for c in clusters if _is_kind(c, of_role)] or [max(clusters, key=len)]
        kinds += [(cluster, None) for cluster in usual]
        medians = [float(np.median([link.bandwidth for link in cluster])) for cluster in usual]
        for cluster in clusters:
            if cluster not in usual:
                rate = float(np.median([link.bandwidth for link in cluster]))
                # A slow link belongs to a faster kind, if there is one: links lose speed.
                key = [(other < rate, abs(np.log(other / rate))) for other in medians]
                unlike.append((cluster, medians[key.index(min(key))]))
    return [*kinds, *unlike]


def _clusters(links: Sequence[Link]) -> list[list[Link]]:
    """Links grouped by rate: those of one cluster are each within a few per cent of the next."""
    ordered = sorted(links, key=lambda link: link.bandwidth)
    found = [[ordered[0]]]
    for before, link in itertools.pairwise(ordered):
        if link.bandwidth > (1 + _SAME) * before.bandwidth:
            found.append([])
        found[-1].append(link)
    return found


def _is_kind(cluster: Sequence[Link], links: Sequence[Link]) -> bool:
    """Whether links are a kind of their own, and not a few that differ from the others."""
    ends = [{link.src, link.dst} for link in cluster]
    of_one_end = bool(set.intersection(*ends))
    return len(cluster) == len(links) or (len(cluster) >= _FEW * len(links) and not of_one_end)


def checked(meter: Meter, found: FoundLinks, generator: np.random.Generator) -> Fit:
    """The network of links that were found, checked against the times of random permutations."""
    links, said = found.confirmed().named()
    by_role = defaultdict(list)
    for link in links:
        by_role[link.role].append(link.alpha)
    medians = {role: float(np.median(of)) for role, of in by_role.items()}
    alpha = {
        role: _rounded(seconds, 2) if seconds > _LEAST_LATENCY else 0.0
        for role, seconds in medians.items()
    }
    links = [dataclasses.replace(link, alpha=alpha[link.role]) for link in links]
    network, missing = _network_of(found, links)
    errors = []
    n = meter.num_ranks
    for _ in range(REPEATS + 2):
        image = generator.permutation(n)
        pairs = [(a, int(b)) for a, b in enumerate(image) if a != b]
        if pairs:
            errors.append(_error(meter, network, pairs))
    return Fit(network, (*said, *missing), np.array(errors))


def _error(meter: Meter, network: Topology, pairs: Sequence[Pair]) -> float:
    """Seconds of equal flows, relative to those of the link that carries most of them."""
    src, dst = np.array(pairs).T
    edges = forwarded_routes(network, src, dst)
    load = np.bincount(edges.path_link, minlength=network.num_links) / network.bandwidth
    nbytes = max(1, int(2 * TIME / load.max()))
    took = meter.times([Flow(a, b, nbytes) for a, b in pairs]).max()
    return float(took / (nbytes * load.max()))


def _network_of(found: FoundLinks, links: Sequence[Link]) -> tuple[Topology, list[str]]:
    """The network, as a torus or a hypercube if it is one, perhaps without some cables."""
    n = found.num_ranks
    bandwidth = {(link.src, link.dst): link.bandwidth for link in links}
    if all(link.role == "cable" for link in links) and n > 2:
        common = max(set(bandwidth.values()), key=list(bandwidth.values()).count)
        for whole in _families(n, links[0].alpha, common):
            edges = set(zip(whole.src.tolist(), whole.dst.tolist(), strict=True))
            lost = edges - set(bandwidth)
            if set(bandwidth) <= edges and len(lost) <= max(2, len(edges) // 10):
                slow = {
                    pair: Fraction(int(rate), int(common))
                    for pair, rate in bandwidth.items()
                    if rate != common
                }
                network = whole.scaled(slow) if slow else whole
                said = [
                    f"rank {a} to rank {b}: no cable, where {whole.name} has one"
                    for a, b in sorted(lost)
                ]
                return (network.without(sorted(lost)) if lost else network), said
    columns = zip(*((k.src, k.dst, k.alpha, int(k.bandwidth)) for k in links), strict=True)
    names = tuple(found.name(v).replace("the ", "") for v in range(found.num_vertices))
    return Topology(n, *columns, num_vertices=found.num_vertices, vertex_names=names), []  # type: ignore[arg-type]


def with_devices(network: Topology, devices: Sequence[Sequence[int]], bandwidth: float) -> Topology:
    """A network whose ranks are processes, changed to have their devices as ranks.

    Args:
        devices: the numbers of each process's devices.
        bandwidth: bandwidth of a process's memory, bytes per second.
    """
    n, processes = sum(map(len, devices)), network.num_ranks
    place = np.arange(network.num_vertices) + n
    process, device = zip(*((n + p, d) for p, row in enumerate(devices) for d in row), strict=True)
    rate = int(_rounded(bandwidth, 3))
    names = [network.vertex_names[v] for v in range(processes, network.num_vertices)]
    return Topology(
        n,
        np.concatenate([place[network.src], process, device]),
        np.concatenate([place[network.dst], device, process]),
        np.concatenate([network.alpha, np.zeros(2 * n)]),
        [*network.exact_bandwidth, *[rate] * (2 * n)],  # type: ignore[arg-type]
        num_vertices=n + network.num_vertices,
        vertex_names=(
            *(f"rank {d}" for d in range(n)),
            *(f"process {p}" for p in range(processes)),
            *names,
        ),
    )


def _families(n: int, alpha: float, bandwidth: float) -> list[Topology]:
    """Named networks of cables, with ranks in their order."""
    kwargs = {"alpha": alpha, "bandwidth": int(bandwidth)}
    found = [topologies.ring(n, bidirectional=False, **kwargs), topologies.ring(n, **kwargs)]
    for sides in _factorizations(n):
        if len(sides) > 1:
            found += [topologies.torus(*sides, **kwargs)]
    found.append(topologies.fully_connected(n, **kwargs))
    return found


def _factorizations(n: int) -> list[tuple[int, ...]]:
    """The ways to write a number as a product, in each order."""
    if n == 1:
        return [()]
    return [
        (side, *rest)
        for side in range(2, n + 1)
        if n % side == 0
        for rest in _factorizations(n // side)
    ]


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _compared(rate: float, usual: float) -> str:
    """A rate and the usual one, in bits per second."""
    units = {"Gbit/s": 1.25e8, "Mbit/s": 1.25e5, "kbit/s": 125.0}
    unit = next((unit for unit, size in units.items() if usual >= size), "kbit/s")
    return f"{rate / units[unit]:.3g} of {usual / units[unit]:.3g} {unit}"


def _ranges(ranks: Sequence[int]) -> str:
    """Numbers, with runs as FIRST-LAST."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0]):
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)
