"""Breadth-First Broadcast: shards reach the ranks at distance t in step t, by balanced links.

Every shard takes shortest paths only, so an all_gather takes as many steps as the diameter, and
which ranks receive what in which step is known before anything is solved. The only freedom is which
neighbour a rank gets a shard from. It is used to keep the load of the busiest link into the rank as
low as possible, for every rank and step separately: no two of these problems share a link.

For example, on a ring of 4 ranks with links both ways, rank 0 gets the shards of ranks 1 and 3 in
step 1, one over each link. In step 2 both neighbours have the shard of rank 2, and half of it comes
over each link. With one chunk per shard one of the links would idle, so ``Bfb.chunks`` is 2.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from jaxcoll.bounds.moore import Cost, ports_of
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.connectivity import orbits
from jaxcoll.numerics.rational import Number, as_fraction, common_denominator
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.synth.building.base import IN_BLOCKS, Counts, Problem, Synthesizer
from jaxcoll.synth.direct_connect.bfb_balance import direct
from jaxcoll.synth.direct_connect.bfb_steps import Bottleneck, InLinks, bottlenecks, gather_columns
from jaxcoll.topology import Topology

_MOST_SENDS = 2**31 - 1
_MOST_BALANCED = 4096  # the most ranks for which links are balanced to count chunks
_SAFE = 2**60  # the most ticks of a step: sums over the links of a vertex stay below 2**63


@runtime_checkable
class Arcs(Protocol):
    """A regular digraph as columns of arcs, including self-loops, which count in its degree."""

    @property
    def size(self) -> int: ...
    @property
    def degree(self) -> int: ...
    @property
    def tails(self) -> np.ndarray: ...
    @property
    def heads(self) -> np.ndarray: ...
    @property
    def generators(self) -> tuple[tuple[int, ...], ...]: ...


@dataclasses.dataclass(frozen=True)
class Bfb(Synthesizer):
    """Sends shards along all shortest paths of a direct network, in as many steps as its diameter.

    In step t every rank u receives the shards of the ranks at distance t, each from neighbours that
    received it in step t - 1. How many chunks each link into u takes is an integer program (A.11)
    of its own, which a maximum flow solves exactly: the busiest link carries ceil(P U) chunks, U
    being the optimum of the linear program (3.1) and P the chunks per shard. So no breadth-first
    schedule has a lower T_B (Thm. 16), and with ``Bfb.chunks(topology)`` chunks per shard, or a
    multiple of them, rounding loses nothing.

    Where links differ, a step takes the least possible time (A.12): a link of latency alpha and
    bandwidth B takes as many chunks as it carries in (time - alpha), and a link whose latency is
    longer than the step is skipped. The result depends on the number of bytes.

    Groups are gathered along the links between their own ranks.

    Dissertation, Secs. 3.6 and A.5.

    Attributes:
        nbytes: bytes of a rank's buffer, which matter if links differ; None stands for so many
            bytes that latency does not count.

    Raises:
        CollectiveError: nbytes is not above 0.
    """

    nbytes: Number | None = None

    name: ClassVar[str] = "bfb"
    orders_links: ClassVar[bool] = True
    has_nbytes: ClassVar[bool] = True
    send_work: ClassVar[float] = IN_BLOCKS

    def __post_init__(self) -> None:
        nbytes = checks.optional(self.nbytes, checks.positive, "nbytes", CollectiveError)
        checks.put(self, nbytes=nbytes)

    @staticmethod
    def chunks(topology: Topology) -> int:
        """The fewest chunks per shard with which rounding costs no bandwidth.

        It is the least common multiple of the denominators of U in all steps, where U is the
        largest optimum of (3.1) in a step.

        Raises:
            TopologyError: the network has switches, or links of different bandwidth.
        """
        direct(checks.instance(topology, Topology, "topology", TopologyError))
        if len(set(topology.exact_bandwidth)) > 1:
            raise TopologyError(f"the links of {topology} differ, so no number of chunks is exact")
        return common_denominator(found.shards for found in bfb_bottlenecks(topology))

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Few chunks, and the fewest that balance the links into every rank, if found fast."""
        topology, few = problem.topology, {1, 2, 4, 8}
        is_uniform = topology.is_direct and len(set(topology.bandwidth.tolist())) == 1
        is_one = not problem.collective.is_grouped and topology.num_ranks <= _MOST_BALANCED
        if is_uniform and is_one:
            few.add(self.chunks(topology))
        return (tuple(sorted(few)),)

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network has switches.
            CollectiveError: ranks of a group cannot reach each other over links among themselves,
                or there are more than 2**31 - 1 sends.
        """
        direct(topology)
        if collective.num_deliveries > _MOST_SENDS:
            raise CollectiveError(
                f"{collective} takes {collective.num_deliveries} sends, more than {_MOST_SENDS}; "
                f"take fewer chunks, or a GroupSchedule, which keeps those of one rank"
            )
        # Groups share no link, because each is gathered over links among its own ranks. So their
        # steps run at the same time, and the part with the most steps ends last.
        parts = [
            self._gather(topology, collective, g)
            for g, group in enumerate(collective.groups)
            if len(group) > 1
        ]
        edges = Edges.from_links(topology)
        provenance = Provenance(certificate=_certificate(parts))
        if len(parts) == 1:
            ptr, link, chunk = parts[0].columns
            copies = np.zeros(len(link), bool)
            return Schedule(topology, collective, edges, ptr, link, chunk, copies, provenance)
        step = np.concatenate(
            [np.repeat(np.arange(len(p.steps)), np.diff(p.columns[0])) for p in parts]
        )
        _, links, chunks = (
            np.concatenate(column) for column in zip(*(p.columns for p in parts), strict=True)
        )
        return Schedule.from_sends(
            topology, collective, step, links, chunks, edges=edges, provenance=provenance
        )

    def _gather(self, topology: Topology, collective: Collective, g: int) -> _Part:
        """The all_gather of one group over the links among its ranks."""
        group = np.asarray(collective.groups[g])
        place = np.full(topology.num_ranks, -1, np.int64)
        place[group] = np.arange(len(group))
        inner = np.flatnonzero((place[topology.src] >= 0) & (place[topology.dst] >= 0))
        tails, heads = place[topology.src[inner]], place[topology.dst[inner]]
        links = InLinks.of(len(group), tails, heads)
        links = dataclasses.replace(links, link=inner[links.link])
        chunks = collective.chunks_per_shard
        try:
            ticks = _ticks(topology, links, chunks, self.nbytes)
            ptr, link, chunk, times = gather_columns(links, chunks, ticks.delay, ticks.pace)
        except TopologyError:
            raise CollectiveError(
                f"bfb gathers a group over links among its own ranks, which do not connect all of "
                f"group {g}, {checks.shown(collective.groups[g])}"
            ) from None
        chunk += np.int32(collective.chunk_ptr[g])
        return _Part((ptr, link, chunk), times.tolist(), ticks)


def bfb_bottlenecks(network: Topology | Arcs) -> tuple[Bottleneck, ...]:
    """The largest U of the linear program (3.1) over all ranks, in each step, with its proof.

    Only one of the ranks that known symmetries (``generators``) map to one another is solved.

    Args:
        network: a network without switches, or a digraph; all links count as equally fast.

    Raises:
        TopologyError: there are switches, or ranks that cannot reach each other.
    """
    checks.instance(network, (Topology, Arcs), "network", TopologyError)
    if isinstance(network, Topology):
        size, tails, heads = direct(network).num_ranks, network.src, network.dst
    else:
        size, tails, heads = network.size, network.tails, network.heads
    links = InLinks.of(size, np.asarray(tails), np.asarray(heads))
    if size == 1:
        return ()
    # Vertices that an automorphism maps to one another have the same jobs and links, so only the
    # first of each orbit is solved: on a vertex-transitive graph, a single vertex.
    orbit = orbits(np.asarray(network.generators, np.int64).reshape(-1, size))
    return bottlenecks(links, np.unique(orbit, return_index=True)[1])


def bfb_cost(network: Topology | Arcs) -> Cost:
    """T_L and T_B of the best BFB all_gather, without a schedule (3.2).

    Args:
        network: a network without switches whose ranks all have equally many links of one
            bandwidth; or a digraph, whose self-loops count in its degree.

    Raises:
        TopologyError: there are switches, ranks of different degrees, links of different bandwidth,
            or ranks that cannot reach each other.
    """
    checks.instance(network, (Topology, Arcs), "network", TopologyError)
    is_topology = isinstance(network, Topology)
    degree = ports_of(network) if is_topology else network.degree
    size = network.num_ranks if is_topology else network.size
    found = bfb_bottlenecks(network)
    # (3.2): T_L is the number of steps. T_B is the sum of the loads of each step's busiest link, in
    # units of the time that the whole buffer takes over all links of a rank.
    shards = sum((step.shards for step in found), Fraction(0))
    return Cost(len(found), shards * degree / size)


# ---------------------------------------------------------------------- times of links


@dataclasses.dataclass(frozen=True)
class _Ticks:
    """Times of links in integers, called ticks.

    Attributes:
        delay: latency of each row of ``InLinks``, int64.
        pace: ticks of a chunk on each, int64.
        seconds: seconds of a tick, or None if links are equal and a tick is a chunk.
        is_exact: whether nothing was rounded.
    """

    delay: np.ndarray
    pace: np.ndarray
    seconds: Fraction | None = None
    is_exact: bool = True


def _ticks(topology: Topology, links: InLinks, chunks: int, nbytes: Number | None) -> _Ticks:
    speeds, which = topology.speeds
    which = which[links.link]
    used = np.unique(which)
    if not len(used):
        raise TopologyError("every vertex must reach every other")
    speeds = {int(i): speeds[i] for i in used}
    if len({speed[nbytes is None :] for speed in speeds.values()}) == 1:  # alpha needs bytes
        return _Ticks(np.zeros(len(which), np.int64), np.ones(len(which), np.int64))
    # If links differ, a step takes the time of (A.12), in whole ticks, so that flows stay exact
    # integers. Rounding up only makes links slower, so the claimed time is never too short. Without
    # bytes only ratios of times matter, and the buffer has one byte.
    size = Fraction(1) if nbytes is None else as_fraction(checks.nbytes(nbytes, CollectiveError))
    share = size / (links.size * chunks)
    delay = {i: Fraction(0) if nbytes is None else alpha for i, (alpha, _) in speeds.items()}
    pace = {i: share / bandwidth for i, (_, bandwidth) in speeds.items()}
    unit = Fraction(1, common_denominator([*delay.values(), *pace.values()]))
    longest = max(delay.values()) + max(pace.values()) * links.size * chunks
    is_exact = longest / unit < _SAFE
    unit = unit if is_exact else longest / _SAFE
    table = np.zeros((2, int(used[-1]) + 1), np.int64)
    for i in speeds:
        table[:, i] = math.ceil(delay[i] / unit), max(1, math.ceil(pace[i] / unit))
    return _Ticks(table[0][which], table[1][which], unit, is_exact)


@dataclasses.dataclass(frozen=True)
class _Part:
    """The sends of one group (step_ptr, link, chunk), and the time of each step in ticks."""

    columns: tuple[np.ndarray, np.ndarray, np.ndarray]
    steps: list[int]
    ticks: _Ticks


def _certificate(parts: list[_Part]) -> dict[str, object]:
    """The steps, and the chunks over all steps' busiest links or, if links differ, the time.

    The time is in seconds (A.12), per byte of the buffer if the bytes were omitted.
    """
    longest = max(parts, key=lambda part: len(part.steps))
    said: dict[str, object] = {"steps": len(longest.steps)}
    loads = [sum(part.steps) for part in parts if part.ticks.seconds is None]
    times = [sum(part.steps) * part.ticks.seconds for part in parts if part.ticks.seconds]
    if loads:
        said["busiest"] = max(loads)
    if times:
        said |= {"time": float(max(times)), "exact": all(part.ticks.is_exact for part in parts)}
    return said
