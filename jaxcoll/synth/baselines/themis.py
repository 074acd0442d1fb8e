"""Themis: a dimension of a grid per stage, every chunk in its own order of dimensions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.synth.baselines.blueconnect import InPhases
from jaxcoll.synth.building.grids import (
    dimension_bandwidth,
)
from jaxcoll.synth.building.sends import (
    Sends,
    gather_along,
    on_ranks,
    schedule_of,
    steps,
)
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Themis(InPhases):
    """BlueConnect with an order of dimensions per chunk, chosen by greedy load balance.

    Rashidi et al., "Themis: a network bandwidth-aware collective scheduling policy" (ISCA 2022),
    as the TACOS paper describes it (Sec. VI-B.3). Chunks are scheduled one after another. The last
    phase of an all-gather moves the most bytes, so a chunk gathers along the dimension with the
    most load first, and along the one with the least load last (a reduce-scatter does the reverse);
    its phases are then added to the loads. Loads are bytes over the bandwidth of a rank along the
    dimension; latency is neglected, as sizes are not known. On each dimension chunks are served one
    at a time, the earliest ready first.

    Networks and groups must be grids, as for BlueConnect. With one chunk the two are the same.

    Attributes:
        shape: see ``BlueConnect``.

    Raises:
        CollectiveError: a shape that is none.
    """

    name: ClassVar[str] = "themis"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        rank_grid, dims, patterns = self._laid_out(topology, collective)
        side = {d: rank_grid.grid.shape[d] for d in dims}
        rate = {d: dimension_bandwidth(topology, rank_grid, d, patterns[d]) for d in dims}
        orders = balanced_orders(side, rate, collective.chunks_per_shard)
        phases = served(orders, side, rate)
        # The steps of a phase begin at equal intervals; a step of the schedule is a moment at which
        # some chunk begins one.
        moments: dict[Phase, list[Fraction]] = {}
        for phase in phases:
            count, span = steps(patterns[phase.dim]), phase.end - phase.start
            moments[phase] = [phase.start + span * s / count for s in range(count)]
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
        side, rate: number of ranks, and bytes per second of a rank, for every dimension, outermost
            first.
        chunks: number of chunks.
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
    """Seconds of each phase of a chunk of one byte; blocks grow by the sides gathered before."""
    block, seconds = 1, []
    for dim in order:
        seconds.append(block * (side[dim] - 1) / rate[dim])
        block *= side[dim]
    return seconds


def served(
    orders: list[tuple[int, ...]], side: Mapping[int, int], rate: Mapping[int, Fraction]
) -> list[Phase]:
    """The times of each chunk on each dimension, if a dimension serves one chunk at a time."""
    free = dict.fromkeys(side, Fraction(0))
    ready = [Fraction(0)] * len(orders)
    todo = [[*zip(order, _durations(order, side, rate), strict=True)] for order in orders]
    phases = []
    while any(todo):
        waiting = [chunk for chunk, left in enumerate(todo) if left]
        # The earliest start wins; among equals the chunk that was ready first, then the lower
        # number. So every run is the same.
        chunk = min(waiting, key=lambda c: (max(ready[c], free[todo[c][0][0]]), ready[c], c))
        dim, seconds = todo[chunk].pop(0)
        start = max(ready[chunk], free[dim])
        free[dim] = ready[chunk] = start + seconds
        phases.append(Phase(chunk, dim, start, start + seconds))
    return phases
