"""Execution costs: a machine's charges for a schedule, in addition to the time on its links.

Link models time wires. A program also pays for every permute it starts and for every byte it copies
or adds; between devices that share a host nothing else counts. ``ExecutionCosts`` holds these
prices and their sources. A schedule of r rounds and s steps, whose ranks receive up to b bytes and
add a of them, is charged r * ``permute`` + s * ``step`` + b * ``copied`` + a * ``added``, and for
each step the time that machines were measured to take beyond that (``delays``, ``step_delays``).

Rounds are counted as ``jaxcoll.execute`` runs them: a step takes as many permutes as the most
messages that one rank sends or receives in it (Koenig).
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from jaxcoll.collective import Collective, common_parts
from jaxcoll.errors import TuneError
from jaxcoll.kinds import names_in
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number, as_fraction
from jaxcoll.paths import Edges, forwarded_routes
from jaxcoll.schedule import Schedule
from jaxcoll.simulation.execution_order import LINKS, ROUNDS, STEPS, ExecutionOrder, order_of
from jaxcoll.simulation.step_delays import Delay, delays_of

BACKENDS = ("cpu", "gpu", "tpu")
NATIVE_KINDS = tuple(names_in("lax"))


@dataclasses.dataclass(frozen=True)
class NativeCost:
    """The cost of a collective of ``jax.lax``, in addition to the time on links.

    Attributes:
        kind: the kind of collective, as in ``Collective``.
        seconds: seconds for any number of bytes.
        per_byte: seconds per byte of a rank's input or output, whichever is larger.

    Raises:
        TuneError: ``jax.lax`` does not have the kind, or a number is negative or not finite.
    """

    kind: str
    seconds: float
    per_byte: float

    def __post_init__(self) -> None:
        checks.choice(self.kind, NATIVE_KINDS, "kind of a native cost", TuneError)
        _put_prices(self, ("seconds", "per_byte"), f"the native cost of {self.kind}")


@dataclasses.dataclass(frozen=True, repr=False)
class ExecutionCosts:
    """Costs of collectives on devices of one backend, in addition to the time on their links.

    Attributes:
        backend: "cpu", "gpu" or "tpu".
        permute: seconds per round, one ``ppermute``.
        step: seconds per step of a schedule, in addition to those of its rounds.
        copied: seconds per byte that a rank receives, for all copies on its way.
        added: seconds per byte that a rank adds to its own, in addition to ``copied``.
        swapped: seconds per byte of a rank's buffer and round of an all_to_all, in addition to
            ``copied``: XLA for CPU copies the whole buffer in each round.
        native: the costs of the collectives of ``jax.lax``.
        shared: whether the ranks share the cores and the memory of one host. If so, prices are per
            rank, and those of all ranks add up; otherwise the busiest rank counts.
        order: the order of a rank's messages, an ``ExecutionOrder`` or its name: "links" if
            messages move independently, "steps" or "rounds" if a rank's steps or permutes follow
            one another.
        half_duplex: whether two ranks that send to each other share the time of one direction; only
            for "steps" and "rounds".
        native_order: the order of the collectives of ``jax.lax``, to which ``half_duplex`` then
            applies; ``None`` if they run like schedules.
        source: the source of the numbers.
        machine: the hardware and version of jax that they were measured on; "" for any of the
            backend.
        delays: curves of the seconds that a step takes in addition to all of this, one curve for
            each number of peers, in ascending order.

    Raises:
        TuneError: the backend is unknown, a number is negative or not finite, or the native cost of
            a kind or the delays of a number of peers are given twice.
    """

    backend: str
    permute: float
    step: float
    copied: float
    added: float
    swapped: float = 0.0
    native: tuple[NativeCost, ...] = ()
    shared: bool = False
    order: ExecutionOrder = LINKS
    half_duplex: bool = False
    native_order: ExecutionOrder | None = None
    source: str = ""
    machine: str = ""
    delays: tuple[Delay, ...] = ()

    def __post_init__(self) -> None:
        checks.choice(self.backend, BACKENDS, "backend of execution costs", TuneError)
        prices = ("permute", "step", "copied", "added", "swapped")
        _put_prices(self, prices, f"execution costs of {self.backend}")
        checks.put(self, native=checks.members(self.native, "native", TuneError))
        for cost in self.native:
            checks.instance(cost, NativeCost, "a native cost", TuneError)
        kinds = [cost.kind for cost in self.native]
        if twice := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
            raise TuneError(f"the native cost of {twice[0]} is given twice; give it once")
        for delay in checks.members(self.delays, "delays", TuneError):
            checks.instance(delay, Delay, "a delay", TuneError)
        checks.put(self, delays=tuple(sorted(self.delays, key=lambda each: each.peers)))
        peers = [delay.peers for delay in self.delays]
        if more := sorted({count for count in peers if peers.count(count) > 1}):
            raise TuneError(f"the delays of {more[0]} peers are given twice; give them once")
        checks.flag_fields(self, TuneError, "shared", "half_duplex")
        checks.put(self, order=order_of(self.order))
        if self.native_order is not None:
            checks.put(self, native_order=order_of(self.native_order))
        if self.half_duplex and not (self.native_order or self.order).waits:
            raise TuneError(
                "half_duplex is for machines whose ranks wait, with order 'steps' or 'rounds', "
                f"not for order {self.order.name!r}"
            )
        for name in ("source", "machine"):
            checks.text(getattr(self, name), name, TuneError)

    def __repr__(self) -> str:
        half = ", half duplex" if self.half_duplex and self.order.waits else ""
        return (
            f"ExecutionCosts({self.backend}: {self.permute * 1e6:.3g} us per round, "
            f"{self.copied * 1e9:.3g} s per GB copied, {len(self.native)} native costs, "
            f"order {self.order.name!r}{half})"
        )

    @property
    def said(self) -> str:
        """A description of the order by which times of this machine are computed."""
        half = ", two ranks send to each other one way at a time" if self.half_duplex else ""
        if self.native_order is None:
            return f"{self.backend} in order {self.order.name!r}: {self.order.meaning}{half}"
        return (
            f"{self.backend} in order {self.order.name!r}: {self.order.meaning}; of jax.lax "
            f"{self.native_order.meaning}{half}"
        )

    @property
    def of_native(self) -> ExecutionCosts:
        """The machine that runs the collectives of ``jax.lax``."""
        if self.native_order is None:
            return self
        return dataclasses.replace(self, order=self.native_order, native_order=None)

    @property
    def is_forwarded(self) -> bool:
        """Whether a network between processes chooses the links of a message."""
        return self.backend == "cpu" and self.of_native.order.by_round

    def as_sent(self, schedule: Schedule) -> Schedule:
        """The schedule with edges of several links moved to the ways on which the machine sends.

        Between processes a message is sent to a rank, and IP forwards it (``next_hops``),
        regardless of the path that the schedule names.
        """
        edges = schedule.edges
        far = np.flatnonzero(edges.hops > 1)
        if not self.is_forwarded or not len(far):
            return schedule
        found = forwarded_routes(schedule.topology, edges.src[far], edges.dst[far])
        ptr, link = edges.paths_of(far)
        if np.array_equal(ptr, found.path_ptr) and np.array_equal(link, found.path_link):
            return schedule
        paths = [edges.path(e) for e in range(len(edges))]
        for i, e in enumerate(far.tolist()):
            paths[e] = found.path(i)
        # Edges between two ranks that took several ways now take one, and their sends are one
        # message.
        number: dict[tuple[int, ...], int] = {}
        image = np.asarray([number.setdefault(path, len(number)) for path in paths])
        routed = Edges.from_paths(schedule.topology, list(number))
        columns = schedule.step, image[schedule.edge], schedule.chunk, schedule.reduce
        return Schedule.from_sends(schedule.topology, schedule.collective, *columns, edges=routed)

    def native_seconds(self, kind: str, nbytes: Number, ranks: int) -> float | None:
        """Seconds of a collective of ``jax.lax`` apart from links; ``None`` if unknown.

        Args:
            nbytes: bytes of a rank's input or output, whichever is larger.
            ranks: number of ranks in all groups that run it at the same time.
        """
        for cost in self.native:
            if cost.kind == kind:
                return self._times(ranks) * (cost.seconds + float(nbytes) * cost.per_byte)
        return None

    def seconds(self, schedule: Schedule, nbytes: Number) -> Fraction:
        """The exact charge of a schedule.

        Args:
            nbytes: bytes of a rank's buffer, above 0 (see ``Collective.chunk_bytes``).
        """
        times = self._times(schedule.topology.num_ranks)
        steps = rounds_of_steps(schedule)
        # Bytes that the busiest rank receives and adds, or that all ranks do if they share a host,
        # in parts of a buffer: integers far below 2**53, which floats hold exactly.
        weight, total = common_parts(schedule.collective)
        size, n = weight[schedule.chunk], schedule.topology.num_ranks
        pick = np.sum if self.shared else np.max
        received = round(float(pick(np.bincount(schedule.dst, size, n))))
        added = round(float(pick(np.bincount(schedule.dst, size * schedule.reduce, n))))
        per_byte = received * as_fraction(self.copied) + added * as_fraction(self.added)
        if schedule.collective.traits.is_pairwise:
            per_byte += times * total * int(steps.sum()) * as_fraction(self.swapped)
        per_step = int(steps.sum()) * as_fraction(self.permute)
        per_step += len(steps) * as_fraction(self.step)
        charge = times * per_step + as_fraction(nbytes) * per_byte / total
        if not self.delays:
            return charge
        return charge + times * as_fraction(delays_of(schedule, nbytes, self.delays))

    def least_seconds(self, collective: Collective) -> Fraction:
        """The least charge of any schedule of a collective.

        A rank receives one message per round, so that its knowledge at most doubles.
        """
        rounds = collective.most_peers.bit_length()
        price = rounds * as_fraction(self.permute) + min(rounds, 1) * as_fraction(self.step)
        return self._times(collective.num_ranks) * price

    def _times(self, ranks: int) -> int:
        return ranks if self.shared else 1


def _put_prices(frozen, names: Iterable[str], what: str) -> None:
    """Check that numbers are at least 0, and store them as floats."""
    for name in names:
        given = checks.nonnegative(getattr(frozen, name), f"{name} of {what}", TuneError)
        checks.put(frozen, **{name: float(given)})


def rounds_of_steps(schedule: Schedule) -> np.ndarray:
    """The number of permutes of every step: the most messages of a rank; int64 (steps,)."""
    n = schedule.topology.num_ranks
    first = schedule.message_ptr[:-1]
    step = schedule.step[first].astype(np.int64)
    edge = schedule.edge[first]
    src = schedule.edges.src[edge].astype(np.int64)
    dst = schedule.edges.dst[edge].astype(np.int64)
    # Parallel edges between two ranks make one message: a permute names ranks, not links.
    pairs = np.unique((step * n + src) * n + dst)
    rounds = np.zeros(schedule.num_steps, np.int64)
    for rank in (pairs // n % n, pairs % n):
        at, count = np.unique(pairs // (n * n) * n + rank, return_counts=True)
        np.maximum.at(rounds, at // n, count)
    return rounds


# ---------------------------------------------------------------------- shipped

# Two cores of an AMD EPYC that 2, 4, 8 and 16 CPU devices share, jax 0.12.0.1: measured by
# ``python -m experiments.benchmarks execution_costs``.
_CPU = ExecutionCosts(
    "cpu",
    permute=20e-6,
    step=0.0,
    copied=0.22e-9,
    added=0.05e-9,
    swapped=0.22e-9,
    native=(
        NativeCost("all_reduce", 20e-6, 0.11e-9),
        NativeCost("all_gather", 20e-6, 0.06e-9),
        NativeCost("reduce_scatter", 20e-6, 0.065e-9),
        NativeCost("all_to_all", 24e-6, 0.3e-9),
    ),
    shared=True,
    source="measured on 2 to 16 CPU devices of two cores (benchmark execution_costs)",
)

# Processes on CPUs, by gloo over TCP: XLA runs the permutes of a program one after the other, and a
# pair of sockets carries one direction at a time (measured between network namespaces whose cables
# had 12.5 to 200 Mbit/s: an exchange takes twice the time of a shift). The seconds of a round are
# only of the right magnitude, and the bytes are those of one host: on such cables neither weighs
# much. ``jax.lax`` gets the benefit of the doubt, and runs if the network is unknown.
_PROCESSES = ExecutionCosts(
    "cpu",
    permute=200e-6,
    step=0.0,
    copied=0.22e-9,
    added=0.05e-9,
    swapped=0.22e-9,
    native=tuple(NativeCost(kind, 200e-6, 0.0) for kind in NATIVE_KINDS),
    order=ROUNDS,
    half_duplex=True,
    source="order measured between 8 processes over gloo; 0.2 ms per round is not measured",
)

# The same processes if schedules are played over separate links (``execute.links``). With 0.05 ms
# per round, half of 115 schedules of 64 KiB on ten emulated networks took at most an eighth more or
# less than predicted, as many more as less.
_LINKS = dataclasses.replace(
    _PROCESSES,
    permute=50e-6,
    order=LINKS,
    native_order=ROUNDS,
    source="order and 0.05 ms per round measured between 8 processes on cables",
)

# Compiled programs show one NCCL group per step in one stream (docs/targets.md): a rank's steps
# follow one another. They show two copies and one addition of the bytes that arrive, which are
# charged at the memory's data sheet. All else is fitted to times that XLA publishes of its permutes
# and collectives (``validation.charges``), and written by ``scripts/bench charges --record``.
FORMAT = "jaxcoll.charges/1"
_OF_GPUS = "h100-host"  # where nothing says which


def _fitted() -> dict[str, ExecutionCosts]:
    """The charges of GPUs, by the machine that was measured."""
    file = importlib.resources.files("jaxcoll.simulation") / "charges.json"
    machines = json.loads(file.read_text(encoding="utf-8"))["machines"]
    return {name: _of_fields(fields) for name, fields in machines.items()}


def _of_fields(fields: dict[str, Any]) -> ExecutionCosts:
    native = tuple(NativeCost(*each) for each in fields["native"])
    delays = tuple(Delay(*each) for each in fields["delays"])
    return ExecutionCosts("gpu", **(fields | {"native": native, "delays": delays}), order=STEPS)


_GPUS = _fitted()


def _played(gpus: ExecutionCosts) -> ExecutionCosts:
    """The same GPUs if schedules are played over links (``execute.links``).

    Rows are sent from where they are, in queues that do not wait for each other, and a step of a
    queue is one launch. Nobody has measured it between GPUs; on one GPU that four processes share,
    over the loopback, a step took 40 us.
    """
    return dataclasses.replace(
        gpus,
        permute=0.0,
        copied=0.0,
        delays=(),
        order=LINKS,
        native_order=STEPS,
        source="as for groups of NCCL, without copies and with a launch per step; not measured",
    )


# The machine whose charges a device gets, by a part of the device's name; the first that fits.
_DEVICES = (
    ("GB300", "gb300-rack"), ("B300", "gb300-rack"), ("GB200", "gb200-rack"), ("B200", "b200-host"),
    ("MI300", "mi300x-host"), ("MI325", "mi300x-host"), ("MI350", "mi355x-host"),
    ("MI355", "mi355x-host"),
)  # fmt: skip

# Compiled programs show a start and a done per permute and a barrier per step, two copies and one
# addition. A `lax.ppermute` in a compiled loop takes 4.5 to 5.5 us of 1 to 16 KiB on a v5p and 5.6
# to 5.9 on a v6e, 16.9 and 17.5 of 1 MiB, 782 and 776 of 64 MiB (marin-community/marin#6736): the
# start-up beside the link's 1 us, and the bytes beside its 100 GB/s, are those, within 15 % below
# 1 MiB and 3 % from there on. How they split into rounds and steps, additions, and the start-ups of
# `lax`, nobody has published.
_TPU = ExecutionCosts(
    "tpu",
    permute=1e-6,
    step=3.2e-6,
    copied=1.5e-12,
    added=1.1e-12,
    native=tuple(NativeCost(kind, 2e-6, 0.0) for kind in NATIVE_KINDS),
    order=STEPS,
    source="published permutes of v5p and v6e within 15 % below 1 MiB, 3 % above; sums by data "
    "sheet; what jax.lax starts with is not measured",
)

_SHIPPED = {costs.backend: costs for costs in (_CPU, _GPUS[_OF_GPUS], _TPU)}
# The costs by the names that arguments may give. Those of the first kind are described in full by
# ``ExecutionCosts.said``; of the second a backend has several, which only their names tell apart.
_DESCRIBED = {**_SHIPPED, "processes": _PROCESSES, "links": _LINKS}
_ONE_OF_SEVERAL = {"gpu-links": _played(_GPUS[_OF_GPUS]), **_GPUS}
_NAMED = {**_DESCRIBED, **_ONE_OF_SEVERAL}
MACHINES = tuple(_NAMED)


def shipped_costs(
    backend: str, processes: int, has_links: bool = False, device: str = ""
) -> ExecutionCosts:
    """The costs shipped for a backend of ``BACKENDS`` with a number of processes.

    Args:
        has_links: whether schedules are played over links, between processes on CPUs or on GPUs.
        device: the name of a device; GPUs that nobody has measured are charged as H100.
    """
    if backend == "cpu" and processes > 1:
        return _LINKS if has_links else _PROCESSES
    if backend == "gpu":
        known = (machine for part, machine in _DEVICES if part in device.upper())
        costs = _GPUS[next(known, _OF_GPUS)]
        return _played(costs) if has_links else costs
    return _SHIPPED[backend]


def costs_of(
    execution: ExecutionCosts | str | None, error: checks.Error = TuneError
) -> ExecutionCosts | None:
    """The costs that an argument ``execution=`` stands for: given costs, or those of a backend.

    "processes" stands for the costs shipped for CPUs with one process each, "links" for those of
    such processes if the lowering "links" plays schedules, and "gpu-links" for those of GPUs if it
    does. "gpu" stands for H100; other GPUs that were measured go by the names of their machines, as
    "mi300x-host".

    Raises:
        error: the argument is neither costs nor the name of a backend.
    """
    if isinstance(execution, str):
        return _NAMED[checks.choice(execution, MACHINES, "execution", error)]
    return checks.optional(execution, checks.instance, ExecutionCosts, "execution", error)


def said_of(execution: ExecutionCosts | str | None) -> str:
    """A description of the order by which times are computed, with or without a machine."""
    costs = costs_of(execution)
    if costs is None:
        return f"{LINKS.meaning}; no machine is charged"
    is_one = isinstance(execution, str) and execution in _ONE_OF_SEVERAL
    return f"{costs.said} ({execution})" if is_one else costs.said
