"""Maximum concurrent flow where no symmetry helps: the dual, climbed at soft distances.

For lengths l of the arcs, sum(capacity l) / sum of distances bounds the rate from above, and the
flow that follows shortest paths bounds it from below; both are tight at the best lengths. Replacing
the minima in the distances by soft minima makes the dual smooth, and its gradient the loads of a
flow that splits over near-shortest paths. L-BFGS climbs it, softness falling in stages; now and
then a linear program mixes the flows met on the way, until the bounds meet.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.optimize import minimize

from jaxcoll.links import group_by
from jaxcoll.numerics import highs
from jaxcoll.paths import fewest_hops
from jaxcoll.synth.routing import concurrent_flow_kernel as kernel
from jaxcoll.synth.routing.flow_classes import FlowClasses

# Softness in units of the mean length, and steps of L-BFGS at each.
_SOFTNESS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
_STEPS = 60
# Relative gain of a step below which a softness is done with, but for the last.
_LITTLE = 1e-5
# Flows are mixed whenever so many more have been tried; those tried last are.
_MIXED_EVERY, _MIXED = 10, 600
# Shares left out of a mixture: the first if the bounds are near enough without, since every flow of
# a mixture is computed once more for all sources.
_LEAST_SHARES = (1e-2, 1e-6)
# No arc is shorter than this share of the mean.
_SHORTEST = 1e-5


class _Found(Exception):
    """The bounds are as near as asked for."""


def climb(
    classes: FlowClasses,
    tails: np.ndarray,
    heads: np.ndarray,
    capacity: np.ndarray,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """A flow of one unit from every vertex to every other, and lengths, whose bounds nearly meet.

    Args:
        classes: arcs of a class have equal lengths, and equal sources stand for one another.
        capacity: of each arc.
        tolerance: the relative gap at which to stop; where it is not reached, the best found.

    Returns:
        Flows, float64 of shape (vertices, arcs), and lengths, float64 of shape (arcs,).
    """
    search = _Search(classes, tails, heads, capacity, tolerance)
    point = np.zeros(len(classes.arc_size))
    options: dict[str, float] = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "maxcor": 30}
    try:
        for softness in _SOFTNESS:
            search.softness = softness
            options["ftol"] = _LITTLE if softness > _SOFTNESS[-1] else 1e-13
            point = minimize(search, point, jac=True, method="L-BFGS-B", options=options).x
            search.mix()
    except _Found:
        pass
    return search.flow(), search.best_lengths


@dataclasses.dataclass(frozen=True, eq=False)
class _Tried:
    """Lengths that were tried, by class of arcs, and the loads of the flow that follows them."""

    length: np.ndarray
    softness: float
    load: np.ndarray


class _Search:
    """The smoothed dual as a function of the logarithms of the lengths, and the best bounds met."""

    def __init__(self, classes, tails, heads, capacity, tolerance):
        size = len(classes.pair_colour)
        hops = fewest_hops(size, tails, heads)
        self.classes, self.tails = classes, tails
        self.room = np.bincount(classes.arc_class, weights=capacity)
        self.scale = 1.0 / hops.sum()
        self.tolerance, self.softness = tolerance, _SOFTNESS[0]
        self.in_ptr, self.in_arc = group_by(heads, size)
        self.order = np.argsort(hops, axis=1, kind="stable")
        self.order_of_sources = self.order[classes.sources]
        self.lower, self.upper = 0.0, np.inf
        self.best_lengths = np.ones(len(tails))
        self.tried: list[_Tried] = []
        self.shares: list[tuple[_Tried, float]] = []  # whose mixture proves ``lower``

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the smoothed dual, and its gradient."""
        room, total_room = self.room, self.room.sum()
        raw = np.exp(point - point.max())
        length = np.maximum(raw * (total_room / (room @ raw)), _SHORTEST)
        arc_load, soft, exact = kernel.soft_flows(
            self.in_ptr, self.in_arc, self.tails, length[self.classes.arc_class], self.softness,
            self.classes.sources, self.order_of_sources, self.classes.weight.astype(float),
            1.0, np.zeros((0, 0)),
        )  # fmt: skip
        load = np.bincount(self.classes.arc_class, weights=arc_load)
        self._note(_Tried(length, self.softness, load), exact)
        gradient = length * (load - room * (length @ load) / total_room)
        return -soft * self.scale, -gradient * self.scale

    def _note(self, tried: _Tried, distances: float) -> None:
        """Keep the best bounds; stop where they meet."""
        self.tried.append(tried)
        upper = float(self.room @ tried.length) / distances
        if upper < self.upper:
            self.upper, self.best_lengths = upper, tried.length[self.classes.arc_class]
        self._offer(1 / float((tried.load / self.room).max()), [(tried, 1.0)])
        if len(self.tried) % _MIXED_EVERY == 0:
            self.mix()

    def _offer(self, lower: float, shares: list[tuple[_Tried, float]]) -> None:
        if lower > self.lower:
            self.lower, self.shares = lower, shares
        if self.upper <= self.lower * (1 + self.tolerance):
            raise _Found

    def mix(self) -> None:
        """The mixture of the flows tried that loads the arcs most evenly, by a linear program."""
        tried = self.tried[-_MIXED:]
        loads = np.array([each.load / self.room for each in tried])
        unit = loads.mean()
        arcs, flows = len(self.room), len(tried)
        rows = np.zeros((arcs + 1, flows + 1))
        rows[:arcs, :flows], rows[:arcs, flows], rows[arcs, :flows] = loads.T / unit, -1.0, 1.0
        low, high = np.full(arcs + 1, -np.inf), np.zeros(arcs + 1)
        low[arcs] = high[arcs] = 1.0
        found, _ = highs.linear_program(np.append(np.zeros(flows), 1.0), rows, low, high)
        for least in _LEAST_SHARES:
            share = np.where(found[:flows] > least, found[:flows], 0.0)
            share /= share.sum()
            chosen = [(tried[i], float(share[i])) for i in np.flatnonzero(share)]
            self._offer(1 / float((share @ loads).max()), chosen)

    def flow(self) -> np.ndarray:
        """The flow, of all sources, that proves the best lower bound."""
        size = len(self.order)
        flow = np.zeros((size, len(self.tails)))
        for tried, share in self.shares:
            kernel.soft_flows(
                self.in_ptr, self.in_arc, self.tails, tried.length[self.classes.arc_class],
                tried.softness, np.arange(size), self.order, np.ones(size), share, flow,
            )  # fmt: skip
        return flow
