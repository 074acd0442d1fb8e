"""Maximum concurrent flow where no symmetry helps: the dual, climbed at soft distances.

For lengths l of the arcs, sum(capacity l) / sum of distances bounds the rate from above, and the
flow that follows shortest paths bounds it from below; both are tight at the best lengths. Replacing
the minima in the distances by soft minima makes the dual smooth, and its gradient the loads of a
flow that splits over near-shortest paths. L-BFGS climbs it, softness falling in stages, until the
bounds meet.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from jaxcoll.links import group_by
from jaxcoll.paths import fewest_hops
from jaxcoll.synth.routing import concurrent_flow_kernel as kernel
from jaxcoll.synth.routing.flow_classes import FlowClasses

# Softness in units of the mean length, and steps of L-BFGS at each.
_SOFTNESS = (0.3, 0.1, 0.05, 0.02, 0.01, 0.005)
_STEPS = 80
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
    try:
        for softness in _SOFTNESS:
            search.softness = softness
            options = {"maxiter": _STEPS, "maxfun": 2 * _STEPS, "maxcor": 30, "ftol": 1e-13}
            point = minimize(search, point, jac=True, method="L-BFGS-B", options=options).x
    except _Found:
        pass
    return search.flows(), search.best_lengths


class _Search:
    """The smoothed dual as a function of the logarithms of the lengths, and the best bounds met."""

    def __init__(self, classes, tails, heads, capacity, tolerance):
        size = len(classes.pair_colour)
        hops = fewest_hops(size, tails, heads)
        self.classes, self.tails, self.heads = classes, tails, heads
        self.room = np.bincount(classes.arc_class, weights=capacity)
        self.scale = 1.0 / hops.sum()
        self.tolerance, self.softness = tolerance, _SOFTNESS[0]
        self.in_ptr, self.in_arc = group_by(heads, size)
        self.order = np.argsort(hops, axis=1, kind="stable")
        self.order_of_sources = self.order[classes.sources]
        self.lower, self.upper = 0.0, np.inf
        self.best_lengths = np.ones(len(tails))
        self.best_flow = self.best_lengths, self.softness

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the smoothed dual, and its gradient."""
        room, total_room = self.room, self.room.sum()
        raw = np.exp(point - point.max())
        length = np.maximum(raw * (total_room / (room @ raw)), _SHORTEST)
        nothing = np.zeros((0, 0))
        arc_load, soft, exact = kernel.soft_flows(
            self.in_ptr, self.in_arc, self.tails, length[self.classes.arc_class],
            self.softness, self.classes.sources, self.order_of_sources,
            self.classes.weight.astype(float), nothing,
        )  # fmt: skip
        load = np.bincount(self.classes.arc_class, weights=arc_load)
        self._note(length, load, exact)
        gradient = length * (load - room * (length @ load) / total_room)
        return -soft * self.scale, -gradient * self.scale

    def _note(self, length: np.ndarray, load: np.ndarray, distances: float) -> None:
        """Keep the best bounds; stop where they meet."""
        lower, upper = float((self.room / load).min()), float(self.room @ length) / distances
        if lower > self.lower:
            self.lower, self.best_flow = lower, (length[self.classes.arc_class], self.softness)
        if upper < self.upper:
            self.upper, self.best_lengths = upper, length[self.classes.arc_class]
        if self.upper <= self.lower * (1 + self.tolerance):
            raise _Found

    def flows(self) -> np.ndarray:
        """The flows of all sources that prove the best lower bound."""
        size = len(self.order)
        length, softness = self.best_flow
        flow = np.zeros((size, len(self.tails)))
        kernel.soft_flows(
            self.in_ptr, self.in_arc, self.tails, length, softness,
            np.arange(size), self.order, np.ones(size), flow,
        )  # fmt: skip
        return flow
