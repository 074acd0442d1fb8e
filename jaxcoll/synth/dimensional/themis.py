"""Themis: every chunk takes the dimensions in an order of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, LATER, Counts, Problem, Synthesizer
from jaxcoll.synth.building.dimensions import (
    dimension_bandwidth,
    dimension_counts,
    dimension_patterns,
)
from jaxcoll.synth.building.grids import checked_shape, group_dimensions, rank_grid_of
from jaxcoll.synth.building.routed import on_ranks, schedule_of
from jaxcoll.synth.building.sends import Sends, gather_along, steps
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Themis(Synthesizer):
    """BlueConnect whose chunks are free to order the dimensions, by greedy load balance.

    Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy" (ISCA 2022),
    as the TACOS paper describes it (Sec. VI-B.3). Chunks are scheduled one after another. The phase
    that an all-gather ends with moves the most bytes, so a chunk gathers along the dimension with
    the most load first and along that with the least load last (reduce-scatter: the other way
    round); its phases are then added to the loads. Loads are bytes over the bandwidth of a rank
    along the dimension; latency is neglected, as sizes are not known. On each dimension chunks are
    served one at a time, the earliest ready first.

    Networks and groups must be grids, as for BlueConnect. With one chunk the two are the same.

    Attributes:
        shape: see ``BlueConnect``.

    Raises:
        CollectiveError: a shape that is none.
    """

    shape: tuple[int, ...] | None = None

    name: ClassVar[str] = "themis"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    put_off: ClassVar[float] = LATER

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """One chunk, two, and multiples of the dimensions, among which chunks are shared out."""
        return dimension_counts(problem.topology)

    def work(self, problem: Problem) -> float:
        """Blocks of many shards are one message: most of the work is done once a message."""
        return IN_BLOCKS * problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a grid.
            CollectiveError: groups that are not subgrids of this grid.
        """
        rank_grid = rank_grid_of(topology, self.name, self.shape)
        dims = group_dimensions(rank_grid, collective, self.name)
        patterns = dimension_patterns(topology, rank_grid, dims)
        side = {d: rank_grid.grid.shape[d] for d in dims}
        rate = {d: dimension_bandwidth(topology, rank_grid, d, patterns[d]) for d in dims}
        orders = balanced_orders(side, rate, collective.chunks_per_shard)
        phases = served(orders, side, rate)
        # A step for every moment at which some chunk takes one.
        moments = {phase: _moments(phase, steps(patterns[phase.dim])) for phase in phases}
        step_of = {t: i for i, t in enumerate(sorted({t for m in moments.values() for t in m}))}
        sends = []
        for phase in phases:
            order = orders[phase.chunk]
            before = order[: order.index(phase.dim)]
            index = np.asarray([phase.chunk])
            part = gather_along(rank_grid.grid, before, phase.dim, patterns[phase.dim], index, 0)
            step = np.asarray([step_of[t] for t in moments[phase]])[part.step]
            sends.append(dataclasses.replace(part, step=step))
        return schedule_of(topology, collective, on_ranks(Sends.joined(sends), rank_grid.ranks))


class Phase(NamedTuple):
    """A chunk on a dimension, from ``start`` to ``end`` in seconds for a shard of one byte."""

    chunk: int
    dim: int
    start: Fraction
    end: Fraction


def balanced_orders(
    side: Mapping[int, int], rate: Mapping[int, Fraction], chunks: int
) -> list[tuple[int, ...]]:
    """For each chunk the order in which it gathers along the dimensions.

    Args:
        side, rate: ranks, and bytes per second and rank, of every dimension, outermost first.
        chunks: how many.
    """
    load = dict.fromkeys(side, Fraction(0))
    orders = []
    for _ in range(chunks):
        order = tuple(sorted(side, key=lambda d: -load[d]))  # equal loads: outermost first
        orders.append(order)
        for dim, seconds in zip(order, _durations(order, side, rate), strict=True):
            load[dim] += seconds
    return orders


def _durations(
    order: tuple[int, ...], side: Mapping[int, int], rate: Mapping[int, Fraction]
) -> list[Fraction]:
    """Seconds of each phase of a chunk of one byte: blocks grow by the sides behind them."""
    block, seconds = 1, []
    for dim in order:
        seconds.append(block * (side[dim] - 1) / rate[dim])
        block *= side[dim]
    return seconds


def served(
    orders: list[tuple[int, ...]], side: Mapping[int, int], rate: Mapping[int, Fraction]
) -> list[Phase]:
    """When each chunk is on each dimension, if a dimension serves one at a time."""
    free = dict.fromkeys(side, Fraction(0))
    ready = [Fraction(0)] * len(orders)
    todo = [[*zip(order, _durations(order, side, rate), strict=True)] for order in orders]
    phases = []
    while any(todo):
        waiting = [chunk for chunk, left in enumerate(todo) if left]
        chunk = min(waiting, key=lambda c: (max(ready[c], free[todo[c][0][0]]), ready[c], c))
        dim, seconds = todo[chunk].pop(0)
        start = max(ready[chunk], free[dim])
        free[dim] = ready[chunk] = start + seconds
        phases.append(Phase(chunk, dim, start, start + seconds))
    return phases


def _moments(phase: Phase, count: int) -> list[Fraction]:
    """When the steps of a phase begin, at even distances."""
    return [phase.start + (phase.end - phase.start) * s / count for s in range(count)]
