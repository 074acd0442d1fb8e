"""The timeline of an iteration (App. A.1.4), and the networks that its collectives run on."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from experiments.direct_connect.baselines import (
    Machine,
    double_tree_us,
    shifted_ring,
    traditional_torus,
)
from experiments.direct_connect.many_ranks import (
    BOUND,
    DEGREE,
    RING,
    TORUS,
    TREES,
    distance_rate,
)
from experiments.direct_connect.predictions import rate_bound
from experiments.limits import above, one_of
from experiments.study import ConfigError
from jaxcoll.bounds.moore import Cost, least_cost
from jaxcoll.finder import FoundTopology
from jaxcoll.finder.candidates import with_bfb_cost
from jaxcoll.finder.search import search
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.synth.routing.concurrent_flow import digraph_flow
from jaxcoll.topologies.generative import Digraph, circulant, torus

IN_ORDER, EXCHANGES_FIRST = "in order", "all-to-all first"
ORDERS = (IN_ORDER, EXCHANGES_FIRST)
_ZERO = Fraction(0)


class Compute(NamedTuple):
    """Compute of so many seconds."""

    seconds: Fraction


class Gradient(NamedTuple):
    """A gradient of so many bytes is complete."""

    nbytes: int


class Exchange(NamedTuple):
    """An all-to-all of so many bytes per rank, which compute waits for."""

    nbytes: int


Operation = Compute | Gradient | Exchange


@dataclasses.dataclass(frozen=True)
class CollectiveTimes:
    """Seconds of both collectives, exact."""

    all_reduce: Callable[[int], Fraction]  # by bytes of a rank's buffer
    all_to_all: Callable[[int], Fraction]  # by bytes that a rank sends, its own part included


@dataclasses.dataclass(frozen=True)
class Iteration:
    """The seconds of an iteration, exact."""

    compute: Fraction  # compute is busy
    # Compute waits for an all_reduce: for the last ones at the end, and for those that an
    # all-to-all has to wait for
    all_reduce: Fraction
    all_to_all: Fraction  # compute waits for a running all-to-all
    hidden: Fraction  # all_reduces run beside compute

    @property
    def total(self) -> Fraction:
        """The whole iteration."""
        return self.compute + self.all_reduce + self.all_to_all


def iteration(
    operations: Iterable[Operation],
    times: CollectiveTimes,
    bucket_bytes: int,
    order: str = IN_ORDER,
) -> Iteration:
    """Run the operations of one rank, of many that all do the same.

    Args:
        operations: in the order of the compute stream.
        times: times of both collectives.
        bucket_bytes: capacity of a bucket. The last one is all-reduced however full.
        order: the order of the collectives that wait: "in order" of their issue, as a stream runs
            them; or "all-to-all first", of which one waits for the running all_reduce only.

    Raises:
        ConfigError: a capacity below 1, or an unknown order.
    """
    above("bucket_bytes", bucket_bytes, 0)
    one_of("order", order, ORDERS)
    stream = _Communication()
    now = compute = exposed = exchanged = _ZERO
    bucket = 0
    for operation in operations:
        match operation:
            case Compute(seconds):
                compute += seconds
                now += seconds
            case Gradient(nbytes):
                bucket += nbytes
                if bucket >= bucket_bytes:
                    stream.issue(now, times.all_reduce(bucket))
                    bucket = 0
            case Exchange(nbytes):
                # In order, the all-to-all waits for every all_reduce issued before it; first, only
                # for the running one, since a collective on the links is not interrupted.
                stream.start_before(now if order == EXCHANGES_FIRST else None)
                start = max(now, stream.free)
                seconds = times.all_to_all(nbytes)
                exposed += start - now
                exchanged += seconds
                now = stream.free = start + seconds
    if bucket:
        stream.issue(now, times.all_reduce(bucket))
    stream.start_before(None)
    exposed += max(stream.free - now, _ZERO)
    # All all_reduces less the part that compute waited for.
    return Iteration(compute, exposed, exchanged, stream.reduced - exposed)


class _Communication:
    """The stream of collectives.

    Attributes:
        free: when the collective that was started last ends.
        reduced: seconds of all all_reduces that were started.
    """

    def __init__(self) -> None:
        self.free = self.reduced = _ZERO
        self._waiting: deque[tuple[Fraction, Fraction]] = deque()

    def issue(self, now: Fraction, seconds: Fraction) -> None:
        """Queue an all_reduce."""
        self._waiting.append((now, seconds))

    def start_before(self, now: Fraction | None) -> None:
        """Start the waiting all_reduces whose turn comes before a time; all where it is None."""
        while self._waiting:
            issued, seconds = self._waiting[0]
            start = max(self.free, issued)
            if now is not None and start >= now:
                return
            self._waiting.popleft()
            self.free = start + seconds
            self.reduced += seconds


def best_bucket(
    operations: Sequence[Operation],
    times: CollectiveTimes,
    buckets: Sequence[int],
    order: str = IN_ORDER,
) -> tuple[int, Iteration]:
    """The capacity of the fastest iteration, the least of equal ones, and that iteration.

    Raises:
        ConfigError: no capacities.
    """
    if not buckets:
        raise ConfigError("buckets must name at least one capacity")
    runs = {nbytes: iteration(operations, times, nbytes, order) for nbytes in sorted(buckets)}
    best = min(runs, key=lambda nbytes: runs[nbytes].total)
    return best, runs[best]


# ------------------------------------------------------------------- networks and their collectives


_MICRO = Fraction(1, 10**6)


class Network(NamedTuple):
    """A topology of degree 4."""

    topology: str  # its construction, or what stands in its place
    times: CollectiveTimes  # of both collectives on it


def found_networks(n: int, machine: Machine) -> list[FoundNetwork]:
    """The topologies that the finder keeps of a size, the Pareto frontier among them."""
    return [FoundNetwork(point, machine) for point in _kept(n)]


@functools.cache
def _kept(n: int) -> list[FoundTopology]:
    # Constructions of n ranks are made of bases whose sizes divide n.
    cells = search([m for m in range(2, n + 1) if n % m == 0], DEGREE, measure=True)
    return [FoundTopology(n, DEGREE, with_bfb_cost(c)) for c in cells[n, DEGREE]]


@dataclasses.dataclass(frozen=True)
class FoundNetwork:
    """A topology of the finder."""

    point: FoundTopology  # its construction and cost
    machine: Machine  # constants of the cost model

    def hoped(self) -> Network:
        """With the all-to-all rate that its distances allow, at once."""
        return self._network(distance_rate(self.point.digraph))

    def certified(self) -> Network:
        """With the rate that its flow proves possible; up to a minute at 1024 ranks."""
        return self._network(_rate(self.point.digraph))

    def _network(self, rate: Fraction) -> Network:
        times = collective_times(self.machine, self.point.size, self.point.cost, rate)
        return Network(str(self.point.construction), times)


def baselines(n: int, machine: Machine) -> dict[str, Network]:
    """Shifted ring, double binary trees, the bound, and a torus where n is a square.

    The torus and the ring run the schedules of the paper's baselines and have exact all-to-all
    rates. The trees are given the rate that the links at their roots allow, which is not less than
    theirs. The bound is of no topology: least T_L and T_B, and the largest rate, of any each.
    """
    side = math.isqrt(n)
    ring = collective_times(machine, n, shifted_ring(n), _rate(circulant(n, (1, (n - 1) // 2))))
    networks = {RING: Network(f"C({n},{{1,{(n - 1) // 2}}})", ring)}
    if side**2 == n:
        grid = collective_times(machine, n, traditional_torus(side), _rate(torus(side, side)))
        networks[TORUS] = Network(f"torus {side}x{side}", grid)

    def tree_seconds(nbytes: int) -> Fraction:
        return as_fraction(double_tree_us(machine, n, nbytes, at_once=False)) * _MICRO

    # Four links join the halves of both trees, of (n / 2)^2 pairs each way.
    trees = CollectiveTimes(tree_seconds, _exchange(machine, n, Fraction(16, n**2)))
    networks[TREES] = Network(f"two trees of {n} ranks", trees)
    bound = collective_times(machine, n, least_cost(n, DEGREE), rate_bound(n, DEGREE))
    networks[BOUND] = Network("of any topology", bound)
    return networks


def collective_times(machine: Machine, n: int, cost: Cost, rate: Fraction) -> CollectiveTimes:
    """Of an all_gather's cost, doubled, and of a rate of all-to-all, links being of capacity 1."""
    return CollectiveTimes(reduction(machine, cost), _exchange(machine, n, rate))


def reduction(machine: Machine, cost: Cost) -> Callable[[int], Fraction]:
    """Exact seconds of an all_reduce by all_gathers of a cost."""
    alpha, constant = as_fraction(machine.alpha_us), as_fraction(machine.constant_us)
    bandwidth = _bytes_per_second(machine)

    def seconds(nbytes: int) -> Fraction:
        return 2 * cost.time(alpha * _MICRO, nbytes, bandwidth) + constant * _MICRO

    return seconds


def _exchange(machine: Machine, n: int, rate: Fraction) -> Callable[[int], Fraction]:
    factor = Fraction(DEGREE, n) / rate / _bytes_per_second(machine)
    return lambda nbytes: nbytes * factor


def _bytes_per_second(machine: Machine) -> Fraction:
    return as_fraction(machine.bandwidth_gbit) * 10**9 / 8


@functools.cache
def _rate(digraph: Digraph) -> Fraction:
    """Exact where symmetry leaves a small program, else certified from below."""
    return digraph_flow(digraph.size, digraph.tails, digraph.heads).lower
