"""Costs of collectives along the axes of a mesh: by schedules, by two numbers, or as measured.

``ScheduleCosts`` simulates the schedules that ``jaxcoll`` synthesizes for the replica groups of
each mesh axis on the real network.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.copies import Copies
from jaxcoll.errors import JaxcollError
from jaxcoll.kinds import kind_of
from jaxcoll.numerics import checks
from jaxcoll.paths import shortest_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Message, simulate, simulate_messages
from jaxcoll.simulation.execution_costs import ExecutionCosts, costs_of
from jaxcoll.synth import Bucket, Direct, Ring, Synthesizer, Tacos, synthesize
from jaxcoll.topology import Topology
from jaxcoll.verifier import verify
from tensorstate.errors import PlanError
from tensorstate.ir.placements import MeshShape
from tensorstate.measuring import SIZES


class CollectiveCostModel:
    """Costs of collectives along the axes of a mesh, computed by a subclass."""

    mesh: MeshShape

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """Seconds of a collective along an axis, run in all replica groups at once.

        Args:
            kind: one that ``jax.lax`` has, by its name in ``jaxcoll.kinds``.
            axis: number of the mesh axis.
            nbytes: bytes of the larger buffer of a device (input or output), at least 0.
        """
        raise NotImplementedError

    def send_seconds(self, axis: int, nbytes: int, around: bool = False) -> float:
        """Seconds in which every device but the last sends a buffer to the next along an axis.

        By default, seconds of one of the n - 1 steps of a ring of n devices that gathers n buffers.

        Args:
            axis: number of the mesh axis.
            nbytes: bytes of the buffer, at least 0.
            around: whether the last device sends too, to the first.
        """
        # A model that prices collectives alone says how long a ring takes, which is such steps.
        n = self.mesh.sizes[axis]
        return 0.0 if n == 1 else self.collective_seconds("all_gather", axis, n * nbytes) / (n - 1)

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """The schedule behind ``collective_seconds``; by default ``None``: the cost has none."""
        return None

    def link_groups(self) -> tuple[int, ...]:
        """A number per mesh axis, the same for axes whose collectives share links."""
        return tuple(range(len(self.mesh.sizes)))


@dataclasses.dataclass(frozen=True)
class AlphaBetaCosts(CollectiveCostModel):
    """Ring collectives, with separate links for every axis.

    A ring of n devices takes n - 1 steps and sends (n - 1)/n of the buffer; an all_reduce takes
    twice as much of both. An all_to_all is costed like an all_gather.

    Attributes:
        mesh: the device mesh.
        alpha: seconds per step, for every axis.
        bandwidth: bytes per second that a device sends, for every axis.
    """

    mesh: MeshShape
    alpha: tuple[float, ...]
    bandwidth: tuple[float, ...]

    def __post_init__(self) -> None:
        axes = len(checks.instance(self.mesh, MeshShape, "mesh", PlanError).sizes)
        for name, check in (("alpha", checks.nonnegative), ("bandwidth", checks.positive)):
            values = checks.sequence(getattr(self, name), name, PlanError)
            if len(values) != axes:
                raise PlanError(
                    f"{name} has {len(values)} values for {axes} axes; give one for each axis"
                )
            for i, value in enumerate(values):
                check(value, f"{name}[{i}]", PlanError)

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        n = self.mesh.sizes[axis]
        once = (n - 1) * self.alpha[axis] + nbytes * (n - 1) / n / self.bandwidth[axis]
        # An all-reduce is a reduce-scatter and an all-gather, which take equally long.
        return 2 * once if kind_of(kind).has_phases else once


@dataclasses.dataclass(frozen=True)
class MeasuredCosts(CollectiveCostModel):
    """Costs of ``jax.lax`` between devices, interpolated between sizes that were measured.

    Below the smallest size a collective takes as long as it; beyond the largest, bytes cost what
    they cost between the last two.

    Attributes:
        mesh: the device mesh.
        seconds: by collective and name of a mesh axis, one for every size of ``measuring.SIZES``.
    """

    mesh: MeshShape
    seconds: Mapping[tuple[str, str], tuple[float, ...]]

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return 0.0
        times = self.seconds[kind, self.mesh.names[axis]]
        # Interpolation holds the first value below the first size, where latency is all there is.
        if nbytes <= SIZES[-1]:
            return float(np.interp(nbytes, SIZES, times))
        return times[-1] + (nbytes - SIZES[-1]) * (times[-1] - times[-2]) / (SIZES[-1] - SIZES[-2])


# Bytes of the all-reduce whose links tell which mesh axes share some.
PROBE_BYTES = 1 << 24

# Synthesizers and chunks per shard, of which each collective takes the fastest. Synthesizers that
# are not defined for the replica groups of an axis are skipped.
CANDIDATES: tuple[tuple[Synthesizer, int], ...] = (
    (Tacos(), 1),
    (Tacos(), 4),
    (Bucket(), 1),
    (Bucket(), 4),
    (Ring(), 2),
    (Direct(), 1),
)


class ScheduleCosts(CollectiveCostModel):
    """Costs of simulated schedules, synthesized for all replica groups of an axis at once.

    If the groups of an axis have networks that are copies of one another, as the rows of a torus
    (``jaxcoll.copies``), one of them is simulated for all.

    Args:
        topology: the network.
        mesh: the device mesh.
        device_order: the rank of each device of the mesh, in the order of devices; by default
            device r has rank r. It determines the links that every mesh axis uses. Schedules number
            devices by their index on the mesh.
        candidates: synthesizers with chunks per shard; every collective and size takes the fastest.
        seed: the seed of the synthesizers.
        execution: the machine's charges in addition to the links, or the name of a backend for
            the shipped ones. If they are given, ``jax.lax`` is a candidate, too, around the
            ranks in order: ``schedule`` is then ``None``, which runs it. None counts links alone.

    Raises:
        PlanError: the mesh does not have as many devices as the network has ranks, or
            ``device_order`` is not a permutation of the ranks.
    """

    def __init__(
        self,
        topology: Topology,
        mesh: MeshShape,
        *,
        device_order: Sequence[int] | None = None,
        candidates: Sequence[tuple[Synthesizer, int]] = CANDIDATES,
        seed: int = 0,
        execution: ExecutionCosts | str | None = None,
    ):
        checks.instance(topology, Topology, "topology", PlanError)
        n = checks.instance(mesh, MeshShape, "mesh", PlanError).num_devices
        if topology.num_ranks != n:
            sizes = " x ".join(map(str, mesh.sizes))
            raise PlanError(
                f"a mesh of {sizes} devices over {topology}: expected a mesh with as many devices "
                f"as the topology has ranks, {topology.num_ranks}"
            )
        device_order = range(n) if device_order is None else device_order
        device_order = checks.integers(device_order, "device_order", PlanError)
        if sorted(device_order) != list(range(n)):
            raise PlanError(
                f"device_order must name every rank from 0 to {n - 1} once, got "
                f"{checks.shown(device_order)}"
            )
        self.mesh, self.device_order = mesh, device_order
        # Rank device_order[i] of the network is device i: below, ranks are devices.
        self.topology = topology.relabel(np.argsort(device_order))
        self.candidates = _checked_candidates(candidates)
        self.seed = checks.seed(seed, PlanError)
        self.execution = costs_of(execution, PlanError)
        self._network_of = functools.cache(self._find_network)
        self._schedules = functools.cache(self._synthesize)
        self._fastest = functools.cache(self._find_fastest)
        self._in_order = functools.cache(self._around_ranks)
        self._send = functools.cache(self._simulate_send)

    def groups(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """The devices of every group along an axis."""
        return tuple(map(tuple, self.mesh.replica_groups((axis,)).tolist()))

    def collective_seconds(self, kind: str, axis: int, nbytes: int) -> float:
        """See ``CollectiveCostModel``."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return 0.0
        return self._fastest(kind, axis, nbytes)[0]

    def send_seconds(self, axis: int, nbytes: int, around: bool = False) -> float:
        """See ``CollectiveCostModel``; sends take the shortest routes."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return 0.0
        return self._send(axis, nbytes, around)

    def _find_network(self, axis: int) -> tuple[Topology, np.ndarray, Copies | None]:
        """The network and the groups to simulate for an axis: one group where all are copies."""
        groups = self.mesh.replica_groups((axis,))
        # On a host whose ranks share its cores every rank is charged for the work of all.
        shares_a_host = self.execution is not None and self.execution.shared
        copies = None if shares_a_host else Copies.of(self.topology, groups.tolist())
        if copies is None:
            return self.topology, groups, None
        return copies.one, np.arange(self.mesh.sizes[axis])[None], copies

    def _simulate_send(self, axis: int, nbytes: int, around: bool) -> float:
        topology, groups, _ = self._network_of(axis)
        # All devices send at once, and share what links their routes have in common.
        last = groups.shape[1] if around else groups.shape[1] - 1
        source = groups[:, :last].ravel()
        target = np.roll(groups, -1, axis=1)[:, :last].ravel()
        routes = shortest_routes(topology, source, target)
        messages = [
            Message((int(first), *topology.dst[list(routes.path(edge))].tolist()), nbytes)
            for edge, first in enumerate(source)
        ]
        charge = 0.0
        if self.execution is not None:
            together = topology.num_ranks if self.execution.shared else 1
            charge = together * (self.execution.permute + self.execution.copied * nbytes)
        return charge + simulate_messages(topology, messages).time

    def schedule(self, kind: str, axis: int, nbytes: int) -> Schedule | None:
        """See ``CollectiveCostModel``."""
        if self.mesh.sizes[axis] == 1 or nbytes == 0:
            return None
        schedule, copies = self._fastest(kind, axis, nbytes)[1], self._network_of(axis)[2]
        if schedule is None or copies is None:
            return schedule
        # Only here, where it will run: prices need one group's times alone.
        whole = copies.on_all(schedule)
        verify(whole)
        return whole

    def link_groups(self) -> tuple[int, ...]:
        """See ``CollectiveCostModel``."""
        return self._groups

    @functools.cached_property
    def _groups(self) -> tuple[int, ...]:
        # Each axis of a torus has separate wires; through one switch all use the same ports.
        groups, links = [*range(len(self.mesh.sizes))], list[frozenset[int]]()
        for axis, size in enumerate(self.mesh.sizes):
            links.append(self._links_of(axis) if size > 1 else frozenset())
            for other in range(axis):
                if not links[other].isdisjoint(links[axis]):
                    groups = [groups[axis] if g == groups[other] else g for g in groups]
        return tuple(groups)

    def _links_of(self, axis: int) -> frozenset[int]:
        """The links that an all-reduce along an axis uses, in both directions."""
        # An all-reduce goes both ways, where a gather may leave half of the links to another axis.
        schedule = self._fastest("all_reduce", axis, PROBE_BYTES)[1]
        schedule = self._in_order("all_reduce", axis) if schedule is None else schedule
        ptr, links = schedule.edges.path_ptr, schedule.edges.path_link
        used = np.unique(schedule.edge).tolist()
        found = frozenset(link for e in used for link in links[ptr[e] : ptr[e + 1]].tolist())
        copies = self._network_of(axis)[2]
        return found if copies is None else frozenset(copies.links[:, [*found]].ravel().tolist())

    def _find_fastest(self, kind: str, axis: int, nbytes: int) -> tuple[float, Schedule | None]:
        schedules = self._schedules(kind, axis)
        # Which schedule is the fastest depends on the size: few steps where latency is what counts.
        times = [
            simulate(schedule, nbytes, execution=self.execution).time for schedule in schedules
        ]
        best = int(np.argmin(times))
        if self.execution is not None:
            ranks = self._network_of(axis)[0].num_ranks
            charge = self.execution.native_seconds(kind, nbytes, ranks)
            if charge is not None:
                native = charge + simulate(self._in_order(kind, axis), nbytes).time
                if native <= times[best]:
                    return native, None
        return times[best], schedules[best]

    def _around_ranks(self, kind: str, axis: int) -> Schedule:
        """The links that ``jax.lax`` is taken to use: those of a ring of the ranks in order."""
        ring = Ring(bidirectional=False, order="ranks")
        # The algorithms of XLA are not known here: charges beside the links were measured.
        return self._made(kind, axis, Direct() if kind_of(kind).is_pairwise else ring, 1)

    def _made(self, kind: str, axis: int, synthesizer: Synthesizer, chunks: int) -> Schedule:
        topology, groups, _ = self._network_of(axis)
        collective = Collective(
            kind, topology.num_ranks, chunks, tuple(map(tuple, groups.tolist()))
        )
        return synthesize(topology, collective, synthesizer, seed=self.seed)

    def _synthesize(self, kind: str, axis: int) -> tuple[Schedule, ...]:
        schedules, reasons = [], []
        # Each is for some networks and groups, and refuses others: the rest is enough.
        for synthesizer, chunks in self.candidates:
            try:
                schedules.append(self._made(kind, axis, synthesizer, chunks))
            except JaxcollError as error:
                reasons.append(f"{synthesizer.name}: {error}")
        if not schedules:
            name = self.mesh.names[axis]
            raise PlanError(
                f"no schedule was found for {kind} along mesh axis {checks.shown(name)}: "
                f"{'; '.join(reasons)}"
            )
        return tuple(schedules)


def _checked_candidates(given: object) -> tuple[tuple[Synthesizer, int], ...]:
    pairs = checks.members(given, "candidates", PlanError)
    for i, pair in enumerate(pairs):
        what = f"candidates[{i}]"
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise PlanError(f"{what} must be (synthesizer, chunks), got {checks.shown(pair)}")
        checks.instance(pair[0], Synthesizer, f"the synthesizer of {what}", PlanError)
        checks.integer(pair[1], f"the chunks of {what}", PlanError, least=1)
    return tuple((synthesizer, int(chunks)) for synthesizer, chunks in pairs)
