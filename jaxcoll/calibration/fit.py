"""The fit of latencies and bandwidths: prices of schedules at other speeds, and descent.

The parameters are logarithms of the latency and the inverse bandwidth of each class. They minimize
the squares of log(price / measured), in units of the error promised at the size: 5 % from 64 MB,
10 % from 1 MB, 50 % below. First all latencies are scaled by one factor and all bandwidths by
another, then each class moves separately, both by Levenberg-Marquardt steps (Nocedal and Wright,
Numerical Optimization, 2nd ed., section 10.3). The price is the largest of many sums and the least
of several schedules, so it has corners, and steps that do not help are shortened. A parameter on
which no time depends, such as the latency of unused links, does not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxcoll.errors import FormatError
from jaxcoll.io.timings import Timing
from jaxcoll.kinds import kind_of
from jaxcoll.links import canonical_order
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.progress import Progress, Report
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.topology import Topology, rebuilt

# Promised relative errors, each from a size on.
PROMISED = ((64e6, 0.05), (1e6, 0.10), (0.0, 0.50))
# The most sizes of a collective for which schedules are made: the fastest one hardly changes
# between them.
_MOST_SCHEDULES = 5
_TURNS, _SAME = 4, 0.01
# The cost, in units of the promised error, of a factor e of a parameter. It holds parameters on
# which no time depends.
_PRIOR = 1e-3
_STEPS, _LONGEST, _LEAST_GAIN, _MOST_DAMPING = 30, 1.5, 1e-4, 1e6
_STEP = 1e-3  # of a logarithm, for derivatives
_ROUNDING, _SAME_PATH = 1e-9, 1e-7  # of times, relative
_SEEN = 0.01  # change of a time per change of a parameter that counts as measured
# Limits within those of ``links.warn_of_units``, so that a step of the fit is never reported as a
# mistake of units.
_LEAST_ALPHA, _MOST_ALPHA = 1e-9, 0.25
_LEAST_BANDWIDTH, _MOST_BANDWIDTH, _MOST_IN_FLIGHT = 1.001e6, 1e13, 3.9e9


class Steps:
    """Reports every step of a fit, with their number."""

    def __init__(self, report: Report | None) -> None:
        self.report, self.done = report, 0

    def __call__(self, what: str) -> None:
        self.done += 1
        if self.report is not None:
            self.report(Progress(self.done, None, what))


def promised(nbytes: float) -> float:
    return next(error for least, error in PROMISED if nbytes >= least)


def groups(points: Sequence[Timing]) -> list[list[Timing]]:
    """The points grouped by collective and schedule."""
    groups: dict[tuple, list[Timing]] = {}
    for point in points:
        key = (point.collective, point.synthesizer, point.chunks)
        groups.setdefault(key, []).append(point)
    return list(groups.values())


def spread(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` places: the first, the last, and others evenly between."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()))


# ---------------------------------------------------------------------- prices


def with_links(topology: Topology, kind: np.ndarray, speeds: np.ndarray) -> Topology:
    """The network with other latencies and bandwidths; links of a class stay equal.

    Args:
        kind: class of each link.
        speeds: (classes, 2), alpha and bandwidth of each class.
    """
    alpha, bandwidth = speeds[kind].T
    return rebuilt(topology, alpha=alpha, bandwidth=bandwidth)


@dataclasses.dataclass(frozen=True)
class _Prices:
    """Prices of some schedules of a network at other speeds of its classes of links.

    Attributes:
        topology: the network to whose links the paths of the schedules refer.
        kind: class of each link.
        points: the measured times.
        schedules: the schedules of each point, of which the fastest runs.
        paths: for a schedule, the number of times that paths have each charge, for paths that were
            slowest at some speeds.
        known: for a schedule and size, the charges (``_charges``) for which all schedules were last
            compared, and its seconds.
    """

    topology: Topology
    kind: np.ndarray
    points: Sequence[Timing]
    schedules: Sequence[Sequence[Schedule]]
    paths: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)
    known: dict[tuple[int, int], tuple[np.ndarray, float]] = dataclasses.field(default_factory=dict)

    def network(self, logarithms: np.ndarray) -> tuple[Topology, np.ndarray]:
        """The network for some parameters, and the number of each link in it.

        Parallel links of two classes change places if the other becomes the slower one.
        """
        speeds = _speeds(logarithms)
        order = canonical_order(self.topology.src, self.topology.dst, *speeds[self.kind].T)
        return with_links(self.topology, self.kind, speeds), np.argsort(order)

    def at(
        self, logarithms: np.ndarray, chosen: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[int]]:
        """Logarithms of the prices of all points, and the number of each one's fastest schedule.

        Args:
            chosen: the schedule of each point, instead of the fastest.
        """
        (network, place), charges = self.network(logarithms), _charges(logarithms)
        moved: dict[int, Schedule] = {}

        def seconds(schedule: Schedule, nbytes: int) -> float:
            before, known = self.known.get((id(schedule), nbytes), (None, 0.0))
            if before is not None and np.array_equal(before, charges):
                return known
            key = id(schedule)
            if key not in moved:
                moved[key] = _on(schedule, network, place)
            return simulate(moved[key], nbytes).time

        prices, fastest = [], []
        for i, (point, tried) in enumerate(zip(self.points, self.schedules, strict=True)):
            numbers = range(len(tried)) if chosen is None else (chosen[i],)
            floors = {number: self._floor(tried[number], point, charges) for number in numbers}
            found: list[tuple[float, int]] = []
            for number in sorted(numbers, key=lambda number: (floors[number], number)):
                # Most schedules are far slower than the fastest, and remain so while speeds change
                # a little.
                if found and floors[number] > min(found)[0]:
                    break
                found.append((seconds(tried[number], point.nbytes), number))
                if chosen is None:
                    key = id(tried[number]), point.nbytes
                    self.known[key] = charges, found[-1][0]
            price, number = min(found)
            prices.append(np.log(price))
            fastest.append(number)
        return np.asarray(prices), fastest

    def _floor(self, schedule: Schedule, point: Timing, charges: np.ndarray) -> float:
        """A lower bound on a schedule's seconds, by its time for other charges; 0 if unknown.

        A time is the sum of charges along some path: with all of them at least r times as large it
        is at least r times as long.
        """
        before, known = self.known.get((id(schedule), point.nbytes), (None, 0.0))
        return 0.0 if before is None else known * float((charges / before).min()) * (1 - _ROUNDING)

    def slopes(self, logarithms: np.ndarray, free: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
        """Derivatives of logarithms of prices in some directions, of shape (points, directions)."""
        prices, charges = np.exp(self.at(logarithms, chosen)[0]), _charges(logarithms)
        paths: list[np.ndarray | None] = [None] * len(prices)
        while True:
            left: dict[int, int] = {}
            for i, point in enumerate(self.points):
                schedule = self.schedules[i][chosen[i]]
                paths[i] = self._path(schedule, point.nbytes, charges, prices[i])
                if paths[i] is None:
                    left.setdefault(id(schedule), i)
            if not left:
                break
            # One size of each schedule: its other sizes mostly take the same path.
            self._find_paths([*left.values()], logarithms, chosen, prices)
        shares = [
            path * _of_size(charges, point.nbytes) / price
            for path, point, price in zip(paths, self.points, prices, strict=True)
            if path is not None
        ]
        return np.asarray(shares) @ free

    def _path(
        self, schedule: Schedule, nbytes: int, charges: np.ndarray, price: float
    ) -> np.ndarray | None:
        """The count of each charge on the slowest path, by an earlier path; None if unknown.

        A price is the largest sum of charges along a path. As long as a path's sum is the price,
        its charges are the derivatives, at any speed and size: no further simulation is needed.
        """
        for path in self.paths.get(id(schedule), ()):
            if abs(path @ _of_size(charges, nbytes) / price - 1) <= _SAME_PATH:
                return path
        return None

    def _find_paths(
        self, points: list[int], logarithms: np.ndarray, chosen: Sequence[int], prices: np.ndarray
    ) -> None:
        """Store the slowest paths of some points, by prices at slightly different speeds."""
        part = dataclasses.replace(
            self,
            points=[self.points[i] for i in points],
            schedules=[(self.schedules[i][chosen[i]],) for i in points],
        )
        now, first = prices[points], [0] * len(points)
        charges = _charges(logarithms)
        shares = np.empty((len(points), len(logarithms)))
        for k in range(len(logarithms)):
            moved = logarithms.copy()
            moved[k] += _STEP
            grown = _charges(moved)[k] / charges[k] - 1
            # A speed at the end of its range does not change, and neither does any price.
            after = np.exp(part.at(moved, first)[0]) if grown else now
            shares[:, k] = (after / now - 1) / grown if grown else 0.0
        for i, share in zip(points, shares, strict=True):
            # If no speed can grow, none is the reason.
            share = share if share.sum() > 0 else np.ones(len(share))
            # If two paths meet between the two speeds, the sum is not the price.
            path = share / share.sum() * prices[i] / _of_size(charges, self.points[i].nbytes)
            self.paths.setdefault(id(self.schedules[i][chosen[i]]), []).append(path)


def _on(schedule: Schedule, network: Topology, place: np.ndarray) -> Schedule:
    edges = schedule.edges
    moved = Edges(edges.src, edges.dst, edges.path_ptr, place[edges.path_link])
    columns = schedule.step_ptr, schedule.edge, schedule.chunk, schedule.reduce
    return Schedule(network, schedule.collective, moved, *columns, schedule.provenance)


def _speeds(logarithms: np.ndarray) -> np.ndarray:
    """(classes, 2) of alpha and bandwidth; parameters are log(alpha), log(1 / bandwidth)."""
    alpha, inverse = np.exp(np.clip(logarithms, -100, 100).reshape(-1, 2)).T
    bandwidth = np.clip(1 / inverse, _LEAST_BANDWIDTH, _MOST_BANDWIDTH)
    alpha = np.clip(alpha, _LEAST_ALPHA, np.minimum(_MOST_ALPHA, _MOST_IN_FLIGHT / bandwidth))
    return np.column_stack([alpha, bandwidth])


def _charges(logarithms: np.ndarray) -> np.ndarray:
    """Seconds per message and per byte of each class; every time is a sum of these."""
    alpha, bandwidth = _speeds(logarithms).T
    return np.column_stack([alpha, 1 / bandwidth]).ravel()


def _of_size(charges: np.ndarray, nbytes: int) -> np.ndarray:
    """Seconds per message and per buffer with ``nbytes`` bytes."""
    return charges * np.tile([1.0, nbytes], len(charges) // 2)


def _schedules(topology: Topology, points: Sequence[Timing], tell: Steps) -> list[list[Schedule]]:
    """The schedules that may have run at each point: those that ``auto`` chooses near its size."""
    tried: dict[int, list[Schedule]] = {}
    for group in groups(points):
        places = spread(len(group), _MOST_SCHEDULES)
        made: dict[int, Schedule] = {}
        for i, point in enumerate(group):
            # A schedule of a fixed synthesizer and number of chunks is the same at all sizes.
            is_fixed = None not in (point.synthesizer, point.chunks)
            below, above = max(p for p in places if p <= i), min(p for p in places if p >= i)
            around = places[:1] if is_fixed else [below, above]
            for place in around:
                if place not in made:
                    made[place] = _schedule(topology, group[place])
                    tell(f"chose a schedule of {group[place].nbytes} bytes")
            tried[id(point)] = [made[place] for place in dict.fromkeys(around)]
    return [tried[id(point)] for point in points]


def _schedule(topology: Topology, point: Timing) -> Schedule:
    name, root = point.synthesizer or "auto", 0 if kind_of(point.collective).has_root else None
    checks.choice(name, SYNTHESIZERS, "the synthesizer of a log", FormatError)
    return synthesize(
        topology, point.collective, name, nbytes=point.nbytes, chunks=point.chunks, root=root
    )


def price(topology: Topology, point: Timing) -> float:
    return simulate(_schedule(topology, point), point.nbytes).time


# ---------------------------------------------------------------------- the fit


def fit(
    topology: Topology, points: Sequence[Timing], tell: Steps | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Speeds of the classes, (classes, 2), and whether some time depends on each.

    Args:
        tell: called with every schedule that is chosen and every step of the descent.
    """
    tell = tell or Steps(None)
    speeds, kind = topology.speeds
    assumed = np.asarray([(float(alpha), float(bandwidth)) for alpha, bandwidth in speeds])
    start = np.log([(max(a, _LEAST_ALPHA), 1 / b) for a, b in assumed]).ravel()
    together, alone = np.tile(np.eye(2), (len(assumed), 1)), np.eye(len(start))
    # The fastest schedule depends on the speeds, and these depend on the schedules that run. So
    # schedules for the speeds found so far are added until they lower no price.
    prices = _more(_Prices(topology, kind, points, [()] * len(points)), start, tell)
    found = _descend(prices, start, start, together, tell)
    for _ in range(_TURNS):
        found = _descend(prices, start, found, alone, tell)
        more = _more(prices, found, tell)
        if (more.at(found)[0] > prices.at(found)[0] - _SAME).all():
            break
        prices = more
    slopes = prices.slopes(found, alone, prices.at(found)[1])
    seen = (abs(slopes).max(axis=0) > _SEEN).reshape(-1, 2)
    return np.where(seen, _speeds(found), assumed), seen


def _more(prices: _Prices, found: np.ndarray, tell: Steps) -> _Prices:
    """The prices with the additional schedules that ``auto`` chooses at some speeds."""
    network, place = prices.network(found)
    made = _schedules(network, prices.points, tell)
    own = {id(each): each for tried in made for each in tried}
    back = {key: _on(each, prices.topology, np.argsort(place)) for key, each in own.items()}
    schedules = []
    for tried, others in zip(prices.schedules, made, strict=True):
        several = list(tried)
        for each in others:
            # Small changes of speeds mostly do not change the choice.
            if back[id(each)] not in several:
                several.append(back[id(each)])
        schedules.append(several)
    return dataclasses.replace(prices, schedules=schedules)


def _descend(
    prices: _Prices, start: np.ndarray, found: np.ndarray, free: np.ndarray, tell: Steps
) -> np.ndarray:
    """Parameters of lower cost, reached from ``found`` in the directions of ``free``."""
    measured = np.log([point.seconds for point in prices.points])
    weight = 1 / np.asarray([promised(point.nbytes) for point in prices.points])

    def residuals(logarithms: np.ndarray) -> tuple[np.ndarray, list[int]]:
        priced, chosen = prices.at(logarithms)
        held = _PRIOR * (logarithms - start)
        return np.concatenate([weight * (priced - measured), held]), chosen

    here, chosen = residuals(found)
    damping = 1e-3
    for _ in range(_STEPS):
        slopes = prices.slopes(found, free, chosen) * weight[:, None]
        slopes = np.concatenate([slopes, _PRIOR * free])
        square = slopes.T @ slopes
        while damping < _MOST_DAMPING:
            damped = square + damping * np.diag(np.diag(square) + _PRIOR)
            step = np.clip(np.linalg.solve(damped, -slopes.T @ here), -_LONGEST, _LONGEST)
            tried = found + free @ step
            there, then = residuals(tried)
            if there @ there < here @ here:
                break
            damping *= 8
        else:
            return found
        tell("fitted the links by another step")
        gained = 1 - (there @ there) / (here @ here)
        found, here, chosen, damping = tried, there, then, max(damping / 16, 1e-6)
        if gained < _LEAST_GAIN or not here.any():
            return found
    return found
