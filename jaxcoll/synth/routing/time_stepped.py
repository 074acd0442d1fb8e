"""All-to-all at nearly the rate of the maximum concurrent flow, in steps of equal length.

A linear program says at which rate all ranks can send to one another at once, and what of every
source's data then crosses each link (``concurrent_flow``). A flow may split a byte, a schedule only
a shard into chunks. So there are three parts: every chunk follows the flow along one path, from its
destination back, where the flow is furthest ahead of the chunks so far; what rounding piled onto
single links is rerouted; and links send a fixed number of chunks in each step.

The rate is lost to rounding and to the first and last steps, in which not all links have work: both
shrink as shards are cut into more chunks, and every step costs alpha.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import as_fraction
from jaxcoll.paths import Edges, hop_distances
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import DOUBLINGS, Counts, Problem, Synthesizer
from jaxcoll.synth.building.routed import check_everyone
from jaxcoll.synth.routing import time_stepped_kernel as kernel
from jaxcoll.synth.routing.concurrent_flow import FlowRate, concurrent_flow
from jaxcoll.topology import Topology

# Chunks up to which they are rerouted one by one, and how often.
_MOST_REROUTED, _PASSES = 2**17, 12
# A path may be longer than the farthest ranks are apart by this factor.
_DETOUR = 2


@dataclasses.dataclass(frozen=True)
class TimeStepped(Synthesizer):
    """The maximum concurrent flow, rounded to a path per chunk and run in time steps.

    The time-stepped schedule of Basu et al., "Efficient all-to-all collective communication
    schedules for direct-connect topologies" (HPDC 2024), by rounding: LP (A.1) says how much of
    every source's data crosses each link; chunks follow it, one path each; those on overloaded
    links are rerouted; and in every step each link sends the same number of chunks, those with
    the longest way to go first. A message is all that a link sends in one step. More chunks per
    shard come nearer to the rate.

    Attributes:
        width: chunks per step on the slowest links, and more on faster ones in proportion; the
            power of two that is fastest for ``nbytes`` when omitted.
        nbytes: bytes of a rank's buffer to choose the width for.
        tolerance: how far the flow may be from the best rate, as a share of it.

    Raises:
        CollectiveError: a field out of range.
    """

    width: int | None = None
    nbytes: float = 2**26
    tolerance: float = 0.005

    name: ClassVar[str] = "time_stepped"
    kinds: ClassVar[frozenset[str]] = frozenset({"all_to_all"})
    has_nbytes: ClassVar[bool] = True
    tried_by_auto: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "width", or_none=True)
        checks.put(
            self,
            nbytes=checks.nbytes(self.nbytes, CollectiveError),
            tolerance=checks.positive(self.tolerance, "tolerance", CollectiveError),
        )

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """More chunks come nearer to the rate."""
        return (DOUBLINGS,)

    def work(self, problem: Problem) -> float:
        """Chunks take paths of several links, each of which is searched and simulated."""
        return 2 * problem.hops

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``."""
        check_everyone(collective, self.name)
        if not topology.is_direct:
            raise TopologyError(
                f"{self.name} is defined for direct networks, whose ranks forward; {topology} has "
                f"switches: take min_congestion"
            )
        rate = concurrent_flow(topology, float(self.tolerance))
        ptr, path = _paths(topology, rate, collective.chunks_per_shard)
        step = self._steps(topology, collective, ptr, path)
        chunk = np.repeat(np.arange(collective.num_chunks), np.diff(ptr))
        order = np.lexsort((chunk, path, step))
        schedule = Schedule.from_sends(
            topology, collective, step[order], path[order], chunk[order],
            edges=Edges.from_links(topology),
        )  # fmt: skip
        return schedule.with_provenance(Provenance(certificate=_certificate(rate)))

    def _steps(self, topology, collective, ptr, path) -> np.ndarray:
        """The step of each send, at the width given or the one that takes the least time."""
        speed = _relative_speed(topology)
        if self.width is not None:
            return kernel.steps_of(ptr, path, speed * self.width)
        chunk = as_fraction(self.nbytes) / int(collective.chunks_per_buffer.max())
        seconds = float(chunk) / topology.bandwidth
        widest = int(np.bincount(path, minlength=topology.num_links).max())
        best, least, width = np.zeros(0, np.int64), math.inf, 1
        while width < 2 * widest:
            step = kernel.steps_of(ptr, path, speed * width)
            taken = _time(step, path, topology.alpha, seconds)
            if taken < least:
                best, least = step, taken
            width *= 2
        return best


def _paths(topology: Topology, rate: FlowRate, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """The links that each chunk crosses, as ragged rows."""
    ptr, link = topology.in_links
    tails, heads = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    hops = hop_distances(topology)
    most = _DETOUR * int(hops.max())
    rows, path = kernel.round_to_paths(rate.flow, rate.unit, chunks, hops, ptr, link, tails, most)
    if len(rows) - 1 > _MOST_REROUTED:
        return rows, path
    target = np.ceil(rate.flow.sum(axis=0) * chunks / rate.unit - 1e-6).astype(np.int64)
    fullest = math.ceil(chunks / rate.lower)
    target = np.maximum(target, fullest * _relative_speed(topology))
    return kernel.even_out(rows, path, target, tails, heads, *topology.out_links, most, _PASSES)


def _relative_speed(topology: Topology) -> np.ndarray:
    """Bandwidths over the least, rounded down and at most 2**31, int64 of shape (links,)."""
    speeds, which = topology.speeds
    least = min(bandwidth for _, bandwidth in speeds)
    return np.asarray([min(bandwidth // least, 2**31) for _, bandwidth in speeds], np.int64)[which]


def _time(step: np.ndarray, path: np.ndarray, alpha: np.ndarray, seconds: np.ndarray) -> float:
    """Seconds if every step lasts as long as its slowest link: (3.2) and alpha per step."""
    key = step * len(alpha) + path
    used, count = np.unique(key, return_counts=True)
    link = used % len(alpha)
    longest = np.zeros(int(step.max()) + 1)
    np.maximum.at(longest, used // len(alpha), alpha[link] + count * seconds[link])
    return float(longest.sum())


def _certificate(rate: FlowRate) -> dict[str, object]:
    """Shards per pair of ranks in the time in which the slowest link carries one."""
    return {"rate": rate.lower, "rate_bound": rate.upper}
