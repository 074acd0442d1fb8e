"""The fit of latencies and bandwidths: prices of schedules under other speeds, and descent.

The parameters are logarithms of the latency and the inverse bandwidth of each class. They minimize
the squares of log(price / measured), in units of the error promised at the size: 5 % from 64 MB,
10 % from 1 MB, 50 % below. First all latencies are scaled by one factor and all bandwidths by
another, then each class moves for itself, both by Levenberg-Marquardt steps (Nocedal and Wright,
Numerical Optimization, 2nd ed., section 10.3). The price is the largest of many sums and the least
of several schedules, and has corners: steps that do not help are shortened. A parameter that no
time depends on, as the latency of links that no schedule uses, stays what it was.
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
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.topology import Topology, rebuilt

# Relative errors that are promised, from a size on.
PROMISED = ((64e6, 0.05), (1e6, 0.10), (0.0, 0.50))
# Sizes of a collective that schedules are made for: the fastest one hardly changes in between.
_MOST_SCHEDULES = 5
_TURNS, _SAME = 4, 0.01
# In units of the promised error per factor e of a parameter: holds one that no time depends on.
_PRIOR = 1e-3
_STEPS, _LONGEST, _LEAST_GAIN, _MOST_DAMPING = 30, 1.5, 1e-4, 1e6
_STEP = 1e-3  # of a logarithm, for derivatives
_SEEN = 0.01  # change of some time per change of a parameter from which on it is measured
# Within what a network can be (``links.warn_of_units``), so that a step of the fit is never taken
# for a mistake of units.
_LEAST_ALPHA, _MOST_ALPHA = 1e-9, 0.25
_LEAST_BANDWIDTH, _MOST_BANDWIDTH, _MOST_IN_FLIGHT = 1.001e6, 1e13, 3.9e9


def promised(nbytes: float) -> float:
    return next(error for least, error in PROMISED if nbytes >= least)


def groups(points: Sequence[Timing]) -> list[list[Timing]]:
    """Points of one collective and schedule each."""
    groups: dict[tuple, list[Timing]] = {}
    for point in points:
        key = (point.collective, point.synthesizer, point.chunks)
        groups.setdefault(key, []).append(point)
    return list(groups.values())


def spread(count: int, most: int) -> list[int]:
    """The first and the last of ``count`` places, and others evenly between, ``most`` in all."""
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
    """Prices of some schedules of a network under other speeds of its classes of links.

    Attributes:
        topology: whose links the paths of the schedules count.
        kind: class of each link.
        points: the measured times.
        schedules: of each point, those of which the fastest runs.
    """

    topology: Topology
    kind: np.ndarray
    points: Sequence[Timing]
    schedules: Sequence[Sequence[Schedule]]

    def network(self, logarithms: np.ndarray) -> tuple[Topology, np.ndarray]:
        """The network of some parameters, and the number that each link has in it.

        Parallel links of two classes change places where the other becomes the slower one.
        """
        speeds = _speeds(logarithms)
        order = canonical_order(self.topology.src, self.topology.dst, *speeds[self.kind].T)
        return with_links(self.topology, self.kind, speeds), np.argsort(order)

    def at(
        self, logarithms: np.ndarray, chosen: Sequence[int] | None = None
    ) -> tuple[np.ndarray, list[int]]:
        """Logarithms of the prices of all points, and which schedule is the fastest of each.

        Args:
            chosen: the schedule of each point, instead of the fastest.
        """
        network, place = self.network(logarithms)
        moved: dict[int, Schedule] = {}

        def seconds(schedule: Schedule, nbytes: int) -> float:
            key = id(schedule)
            if key not in moved:
                moved[key] = _on(schedule, network, place)
            return simulate(moved[key], nbytes).time

        prices, fastest = [], []
        for i, (point, tried) in enumerate(zip(self.points, self.schedules, strict=True)):
            numbers = range(len(tried)) if chosen is None else (chosen[i],)
            price, number = min(
                (seconds(tried[number], point.nbytes), number) for number in numbers
            )
            prices.append(np.log(price))
            fastest.append(number)
        return np.asarray(prices), fastest

    def slopes(self, logarithms: np.ndarray, free: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
        """Derivatives of the logarithms of prices in some directions, (points, directions)."""
        now = self.at(logarithms, chosen)[0]
        moved = [self.at(logarithms + _STEP * way, chosen)[0] for way in free.T]
        return (np.column_stack(moved) - now[:, None]) / _STEP


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


def _schedules(topology: Topology, points: Sequence[Timing]) -> list[list[Schedule]]:
    """What may have run at each point: those that ``auto`` chooses at the sizes around it."""
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


def fit(topology: Topology, points: Sequence[Timing]) -> tuple[np.ndarray, np.ndarray]:
    """Speeds of the classes, (classes, 2), and whether some time depends on each."""
    speeds, kind = topology.speeds
    assumed = np.asarray([(float(alpha), float(bandwidth)) for alpha, bandwidth in speeds])
    start = np.log([(max(a, _LEAST_ALPHA), 1 / b) for a, b in assumed]).ravel()
    together, alone = np.tile(np.eye(2), (len(assumed), 1)), np.eye(len(start))
    # The fastest schedule depends on the speeds, and these on the schedules that run: the schedules
    # of the speeds found so far are added, until they make no price less.
    prices = _more(_Prices(topology, kind, points, [()] * len(points)), start)
    found = _descend(prices, start, start, together)
    for _ in range(_TURNS):
        found = _descend(prices, start, found, alone)
        more = _more(prices, found)
        if (more.at(found)[0] > prices.at(found)[0] - _SAME).all():
            break
        prices = more
    slopes = prices.slopes(found, alone, prices.at(found)[1])
    seen = (abs(slopes).max(axis=0) > _SEEN).reshape(-1, 2)
    return np.where(seen, _speeds(found), assumed), seen


def _more(prices: _Prices, found: np.ndarray) -> _Prices:
    """The prices with those schedules besides that ``auto`` chooses under some speeds."""
    network, place = prices.network(found)
    made = _schedules(network, prices.points)
    own = {id(each): each for tried in made for each in tried}
    back = {key: _on(each, prices.topology, np.argsort(place)) for key, each in own.items()}
    schedules = [
        (*tried, *(back[id(each)] for each in others))
        for tried, others in zip(prices.schedules, made, strict=True)
    ]
    return dataclasses.replace(prices, schedules=schedules)


def _descend(prices: _Prices, start: np.ndarray, found: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Parameters of less cost, reached from ``found`` in the directions of ``free``."""
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
        gained = 1 - (there @ there) / (here @ here)
        found, here, chosen, damping = tried, there, then, max(damping / 16, 1e-6)
        if gained < _LEAST_GAIN or not here.any():
            return found
    return found
