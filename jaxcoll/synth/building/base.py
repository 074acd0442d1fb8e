"""What every synthesizer shares: one method to write, and the collectives derived from it."""

from __future__ import annotations

import abc
import dataclasses
import time
from typing import ClassVar, final

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule, concatenate
from jaxcoll.simulation.execution_costs import ExecutionCosts
from jaxcoll.synth.building.reversal import reverse_in_time
from jaxcoll.topology import Topology, connected

# PyTorch's DistributedDataParallel and ``jc.optax`` reduce gradients in buckets of 25 MiB.
BUCKET_BYTES = 25 * 2**20


class Synthesizer(abc.ABC):
    """An algorithm that turns a topology and a collective into a schedule.

    Subclasses are frozen dataclasses whose fields are hyperparameters, checked when made. They
    write ``solve`` for the kinds in ``kinds``; the reducing kinds follow: reduce_scatter and reduce
    are the all_gather and broadcast of the transposed network run backwards, all_reduce is a
    reduce_scatter and an all_gather (TACOS, Sec. IV-E). An algorithm that sums in a way of its own,
    as up and down a tree, writes all_reduce itself. Those with ``takes_shares`` also solve
    collectives of unequal shards. ``seed`` seeds random choices; where an algorithm makes none, it
    changes nothing.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"all_gather"})
    takes_shares: ClassVar[bool] = False

    @abc.abstractmethod
    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule of a collective of one of ``kinds``.

        ``topology`` has at least two ranks. Provenance is filled in by ``synthesize``, except for
        its certificate.
        """

    @final
    def synthesize(
        self,
        topology: Topology,
        collective: Collective,
        seed: int = 0,
        nbytes: float | None = None,
    ) -> Schedule:
        """A schedule of the collective on the topology; the same arguments give the same schedule.

        Args:
            nbytes: bytes of a rank's buffer for which a schedule that is run backwards through
                switches is put in order (see ``reverse_in_time``); when omitted those of the
                algorithm's own field, or 25 MiB.

        Raises:
            CollectiveError: the algorithm is not defined for the collective, or bytes not above 0.
            TopologyError: the algorithm is not defined for the network, or it has another number
                of ranks than the collective.
        """
        started = time.perf_counter()
        seed = self.checked(topology, collective, seed)
        checks.optional(nbytes, checks.positive, "nbytes", CollectiveError)
        schedule = self._derive(topology, collective, seed, nbytes)
        return schedule.with_provenance(
            Provenance(
                self.name,
                self.parameters(),
                seed,
                time.perf_counter() - started,
                schedule.provenance.certificate,
            )
        )

    @final
    def checked(self, topology: Topology, collective: Collective, seed: int) -> int:
        """The seed, if it is one and the collective is for the topology's ranks.

        Raises:
            CollectiveError: a bad seed, unequal shards that the algorithm is not defined for, or
                too many chunks (``Collective.check_listed``).
            TopologyError: another number of ranks.
        """
        connected(topology)
        checks.instance(collective, Collective, "collective", CollectiveError)
        if topology.num_ranks != collective.num_ranks:
            raise TopologyError(
                f"the collective is for {collective.num_ranks} ranks, {topology} has "
                f"{topology.num_ranks}"
            )
        collective.check_listed()
        if not self.takes_shares:
            collective.with_equal_shards(self.name)
        return checks.seed(seed, CollectiveError)

    @final
    def parameters(self) -> dict[str, object]:
        """The hyperparameters by name, except fields that cannot change a schedule.

        Those are the fields that equality leaves out. A synthesizer among them stands as its name
        and parameters.
        """
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {f.name: _said(getattr(self, f.name)) for f in fields if f.compare}

    def solves(self, kind: str) -> bool:
        """Whether ``solve`` makes schedules of a kind; schedules of other kinds are derived."""
        return kind in self.kinds

    @final
    def two_phases(
        self,
        topology: Topology,
        collective: Collective,
        seed: int,
        nbytes: float | None = None,
    ) -> Schedule:
        """The all_reduce of the algorithm's reduce_scatter and its all_gather."""
        gather = self._derive(topology, collective.with_kind("all_gather"), seed, nbytes)
        if topology == topology.transpose():
            return _of_phase(concatenate(self._reverse(gather, nbytes), gather), gather)
        scatter = self._derive(topology, collective.with_kind("reduce_scatter"), seed, nbytes)
        return _of_phase(concatenate(scatter, gather), gather)

    def _derive(
        self, topology: Topology, collective: Collective, seed: int, nbytes: float | None
    ) -> Schedule:
        if all(len(group) == 1 for group in collective.groups):
            return empty_schedule(topology, collective)
        if self.solves(collective.kind):
            return self.solve(topology, collective, seed)
        phases = any(self.solves(kind) for kind in ("all_gather", "reduce_scatter"))
        if collective.kind == "all_reduce" and phases:
            return self.two_phases(topology, collective, seed, nbytes)
        if self.solves(collective.dual().kind):
            dual = self.solve(topology.transpose(), collective.dual(), seed)
            return _of_phase(self._reverse(dual, nbytes), dual)
        offered = sorted(self.kinds | _derived(self.kinds))
        raise CollectiveError(
            f"{self.name} is not defined for {collective.kind}; it offers {', '.join(offered)}"
        )

    def _reverse(self, schedule: Schedule, nbytes: float | None) -> Schedule:
        own = getattr(self, "nbytes", None)
        return reverse_in_time(schedule, nbytes or own or BUCKET_BYTES)


def _said(value: object) -> object:
    if isinstance(value, Synthesizer):
        return {"synthesizer": value.name, **value.parameters()}
    if isinstance(value, ExecutionCosts):
        return dataclasses.asdict(value)
    return tuple(map(_said, value)) if isinstance(value, tuple) else value


def _of_phase(schedule: Schedule, phase: Schedule) -> Schedule:
    """The schedule with the certificate of the one it was made from, under that one's kind."""
    said = phase.provenance.certificate
    certificate = {phase.collective.kind: said} if said else {}
    return schedule.with_provenance(Provenance(certificate=certificate))


def _derived(kinds: frozenset[str]) -> set[str]:
    pairs = {"all_gather": "reduce_scatter", "broadcast": "reduce"}
    found = {dual for kind, dual in pairs.items() if kind in kinds}
    return found | ({"all_reduce"} if "all_gather" in kinds else set())


def empty_schedule(topology: Topology, collective: Collective) -> Schedule:
    """The schedule without sends: all there is to do when every group is one rank."""
    nothing = np.zeros(0, np.int64)
    edges = Edges(nothing, nothing, np.zeros(1, np.int64), nothing)
    return Schedule.from_sends(topology, collective, nothing, nothing, nothing, edges=edges)
