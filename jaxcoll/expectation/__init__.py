"""``expect``: how long a collective takes on a machine, by whom that was measured, and the bound.

Measured times come first, between measured sizes as ``measured.native`` has them, each with its
source and with the error that such times have on rows that were held out. Where nobody has measured
the machine, the collective or the size, the library's model says a time, with its own error where
one is known. Beside both stands the bound. One's own log is held against the others' times.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from jaxcoll.bounds import bound
from jaxcoll.calibration.doubts import doubts_of
from jaxcoll.calibration.fit import price, with_links
from jaxcoll.collective import Collective
from jaxcoll.errors import (
    AssumptionWarning,
    CollectiveError,
    FormatError,
    TopologyError,
    warn_user,
)
from jaxcoll.io import timings as logs
from jaxcoll.io.files import load_text, read_text
from jaxcoll.io.timings import Timing, Timings, passed_over
from jaxcoll.kinds import kind_of
from jaxcoll.measured import (
    Curve,
    Machine,
    Table,
    curves_of,
    machine_like,
    machine_of,
    machine_of_log,
)
from jaxcoll.measured.native import Estimate, at
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.simulation import simulate
from jaxcoll.synth import synthesize
from jaxcoll.topology import Topology
from jaxcoll.validation import CLASSES, LINKS, class_of, errors, linked, of_links, predictions

__all__ = ["Expectation", "Expected", "expect"]

# Times within a tenth of one another are called equal: machines of one kind differ by that much.
_EQUAL = 0.1
_SEED = 0  # of the rows that known errors are of: those of the page of validation


@dataclasses.dataclass(frozen=True)
class Reported:
    """A time by measured ones.

    Attributes:
        table: where they are published.
        estimate: the time, and the rows that it rests on.
        error: mean relative error of such times on held-out rows of this machine, collective and
            class of sizes; None of a row itself, and where none was held out.
    """

    table: Table
    estimate: Estimate
    error: float | None

    @property
    def seconds(self) -> float:
        return self.estimate.seconds


@dataclasses.dataclass(frozen=True)
class Modelled:
    """A time by the library's model.

    Attributes:
        seconds: seconds of the schedule that it takes for the machine's own.
        said: the links and the schedule that it comes from, in words.
        error: mean relative error on held-out rows; None where it is not known.
    """

    seconds: float
    said: str
    error: float | None


@dataclasses.dataclass(frozen=True)
class Expected:
    """Times that are expected at one size.

    Attributes:
        nbytes: bytes of a rank's buffer.
        reports: times from measured ones, the fastest first; empty if nobody measured.
        model: the model's time, if there are no reports.
        bound_seconds: the time that nothing can beat by the network's data sheet, switches that
            copy and add included.
        own_seconds: the time in the user's own log, if one is given.
    """

    nbytes: Number
    reports: tuple[Reported, ...]
    model: Modelled | None
    bound_seconds: float
    own_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The fastest measured time, else the model's."""
        return self.reports[0].seconds if self.reports else self.model.seconds  # type: ignore[union-attr]

    @property
    def of_bound(self) -> float:
        """The part of the bound's speed that is reached: 1 where nothing can be faster."""
        return self.bound_seconds / self.seconds if self.seconds else 1.0

    @property
    def reached(self) -> float | None:
        """The part of the expected speed that one's own log reaches."""
        return None if self.own_seconds is None else self.seconds / self.own_seconds

    @property
    def size_class(self) -> str:
        return class_of(self.nbytes)


@dataclasses.dataclass(frozen=True, repr=False)
class Expectation:
    """Times that are expected of a collective on a network.

    Attributes:
        machine: the measured machine that the network is, or None.
        network: its links by the data sheet.
        collective: its kind.
        sizes: the times at each.
    """

    machine: Machine | None
    network: Topology
    collective: str
    sizes: tuple[Expected, ...]

    @property
    def verdicts(self) -> tuple[str, ...]:
        """How one's own times stand to those of others, by classes of sizes."""
        said = []
        for _, words in CLASSES:
            own = [row for row in self.sizes if row.size_class == words and row.own_seconds]
            # Beside measured times a model's tell nothing.
            measured = [row for row in own if row.reports]
            parts = [row.reached for row in measured or own if row.reached is not None]
            if parts:
                by = "others measured" if measured else "the model expects"
                said.append(f"{words}: {_compared(float(np.median(parts)), by)}")
        return tuple(said)

    def __repr__(self) -> str:
        where = self.machine.name if self.machine else self.network.name or self.network
        return f"Expectation({self.collective} on {where}: {len(self.sizes)} sizes)"


def _compared(part: float, by: str) -> str:
    if abs(part - 1) <= _EQUAL:
        return f"yours are as fast as {by}, within {100 * _EQUAL:.0f} %"
    if part < 1:
        return f"yours reach {100 * part:.0f} % of the speed that {by}"
    return f"yours are {part:.2f} times as fast as {by}"


def expect(
    network: Topology | str,
    collective: str = "all_reduce",
    sizes: Sequence[float] | None = None,
    *,
    log: str | os.PathLike | Timings | None = None,
) -> Expectation:
    """Tell how long a collective takes on a machine: as others measured, by the model, and at best.

    ::

        print(jc.expectation.expect("gb200-rack", "all_gather", [2**30]).sizes[0].seconds)

    Args:
        network: the name of a measured machine, some of its ranks ("gb200-rack:36"), or a network.
            A network with the links of a measured machine is taken for that machine.
        collective: its kind.
        sizes: bytes of a rank's buffer; when None those of the log, else 1 MiB to 1 GiB.
        log: your own times of this collective on as many ranks, as ``jc.io.timings`` reads them.

    Raises:
        FormatError: an unknown machine; a log of another collective or of other ranks, or one that
            lacks every size.
        TopologyError: no network.
        CollectiveError: an unknown collective, a size that is not a number of bytes above 0.
        OSError: the log cannot be read.
    """
    machine, topology = known_machine(network)
    kind = kind_of(collective).name
    own = {} if log is None else own_times(log, kind, topology.num_ranks, on=topology)
    if machine is not None and isinstance(log, (str, os.PathLike)):
        _warn_of_devices(machine, read_text(log))
    given = (sorted(own) or [2**20, 2**25, 2**30]) if sizes is None else sizes
    counts = [
        checks.positive(each, "a size", CollectiveError)
        for each in checks.members(given, "sizes", CollectiveError)
    ]
    if not counts:
        raise CollectiveError("expect needs at least one size, got none")
    root = 0 if kind_of(kind).has_root else None
    whole = Collective(kind, topology.num_ranks, root=root)  # type: ignore[arg-type]
    found = []
    for nbytes in counts:
        times = () if machine is None else reports(machine, kind, topology.num_ranks, nbytes)
        model = None if times else _modelled(topology, kind, nbytes)
        if machine is None:
            least = bound(topology, whole, nbytes).time
        else:
            least = machine.least_seconds(topology, whole, nbytes)
        found.append(Expected(nbytes, times, model, least, own.get(int(nbytes))))
    if own and all(row.own_seconds is None for row in found):
        raise FormatError(f"the log has none of these sizes; it has {sorted(own)[:8]}")
    return Expectation(machine, topology, kind, tuple(found))


def known_machine(network: object) -> tuple[Machine | None, Topology]:
    """The measured machine, where it is one, and the network by its data sheet."""
    if isinstance(network, str):
        name, _, ranks = network.partition(":")
        machine = machine_of(name)
        if ranks and not (ranks.isascii() and ranks.isdigit() and len(ranks) < 10):
            raise FormatError(f"{network[:60]!r} is not a machine's name and a number of ranks")
        return machine, machine.topology(int(ranks) if ranks else None)
    topology: Topology = checks.instance(network, Topology, "network", TopologyError)
    found = machine_like(topology)
    return (None if found is None else found[0]), topology


# ---------------------------------------------------------------------- as measured


def reports(machine: Machine, kind: str, ranks: int, nbytes: Number) -> tuple[Reported, ...]:
    """Measured times, one of each table that has the machine, the fastest first."""
    curves: dict[str, tuple[Table, list[Curve]]] = {}
    for table, curve in curves_of(machine.name, kind):
        if curve.is_chosen:
            curves.setdefault(table.name, (table, []))[1].append(curve)
    for _, of_table in curves.values():
        # A single group before several at once, and full precision before half.
        of_table.sort(key=lambda curve: (curve.dtype == "bf16", curve.groups))
    for near in (False, True):
        found = []
        for table, of_table in curves.values():
            estimate = at(of_table, float(nbytes), ranks, near)
            if estimate is not None:
                error = _held_out(machine.name, kind, estimate, nbytes)
                found.append(Reported(table, estimate, error))
        if found:
            return tuple(sorted(found, key=lambda each: each.seconds))
    return ()


def _held_out(machine: str, kind: str, estimate: Estimate, nbytes: Number) -> float | None:
    if estimate.is_measured:
        return None
    between_ranks = len({row.curve.ranks for row in estimate.rows}) > 1
    known = _errors("ranks" if between_ranks else "sizes")
    return known.get((machine, kind, class_of(nbytes)))


@functools.cache
def _errors(way: str) -> dict[tuple, float]:
    found = errors(predictions(way, _SEED), ("machine", "collective", "size_class"))
    return {key: each.mean for key, each in found.items()}


# ---------------------------------------------------------------------- by the model


def _modelled(topology: Topology, kind: str, nbytes: Number) -> Modelled:
    """The time of a schedule taken for the machine's own, on links as measured elsewhere."""
    machine = linked_machine(topology)
    if machine is not None and kind in LINKS[machine]:
        network, is_whole = carried(machine, topology)
        synthesizer, chunks = LINKS[machine][kind]
        # The pieces are those that fit one host; rings through several need more of them.
        timing = Timing(
            kind, topology.num_ranks, int(nbytes), 1.0, synthesizer, chunks if is_whole else None
        )
        said = f"{synthesizer} on links fitted to {machine}"
        if not is_whole:
            return Modelled(price(network, timing), f"{said}, others by the data sheet", None)
        is_known = topology.num_ranks == linked(machine).num_ranks
        known = _link_errors(machine).get((kind, class_of(nbytes))) if is_known else None
        return Modelled(price(network, timing), said, known)
    root = 0 if kind_of(kind).has_root else None
    schedule = synthesize(topology, kind, nbytes=float(nbytes), root=root)
    return Modelled(simulate(schedule, nbytes).time, "auto on the links given", None)


def linked_machine(topology: Topology) -> str | None:
    """The first machine with fitted links that has links of a network's speeds by data sheet."""
    speeds = topology.speeds[0]
    return next((machine for machine in LINKS if _speed(machine) in speeds), None)


def _speed(machine: str) -> tuple:
    (only,) = machine_of(machine).topology(8).speeds[0]
    return only


@functools.cache
def _fitted_speed(machine: str) -> tuple[float, float]:
    network = linked(machine)
    return float(network.alpha[0]), float(network.bandwidth[0])


def carried(machine: str, topology: Topology) -> tuple[Topology, bool]:
    """A network with the fitted links in place of those of their kind, and whether all are."""
    speeds, kind = topology.speeds
    changed = np.asarray([
        _fitted_speed(machine) if each == _speed(machine) else tuple(map(float, each))
        for each in speeds
    ])  # fmt: skip
    return with_links(topology, kind, changed), len(speeds) == 1


@functools.cache
def _link_errors(machine: str) -> dict[tuple, float]:
    found = errors(of_links(machine, _SEED), ("collective", "size_class"))
    return {key: each.mean for key, each in found.items()}


# ---------------------------------------------------------------------- one's own


def own_times(
    log: object,
    kind: str,
    ranks: int,
    sizes: Sequence[float] | None = None,
    on: Topology | None = None,
) -> dict[int, float]:
    """The times of one's own log by size, the median of each, in seconds.

    Args:
        log: a file of ``jc.io.timings``, or its times.
        kind: the kind of collective.
        ranks: number of ranks of the log.
        sizes: in bytes; those of the log when None.
        on: the network that the log is held against.

    Warns:
        AssumptionWarning: rows could not be read; or times seem to be in other units, of several
            runs or machines, or noise.

    Raises:
        FormatError: a log of another collective or of other ranks, or one that lacks a size.
    """
    read = _read(log, kind, ranks)
    if read.torn:
        warn_user(passed_over(read.torn), AssumptionWarning)
    if not read.rows:
        raise FormatError("the log has no times; give the print of a whole run")
    kinds, counts = ({getattr(row, name) for row in read.rows} for name in ("collective", "ranks"))
    if kind not in kinds:
        raise FormatError(f"the log has no times of {kind}; it has {', '.join(sorted(kinds))}")
    if counts != {ranks}:
        raise FormatError(f"expected a log of {ranks} ranks, got one of {sorted(counts)[:8]}")
    rows = [row for row in read.rows if row.collective == kind]
    for doubt in doubts_of(rows, on):
        warn_user(doubt, AssumptionWarning)
    times: dict[int, list[float]] = {}
    for row in rows:
        times.setdefault(row.nbytes, []).append(row.seconds)
    found = {nbytes: float(np.median(each)) for nbytes, each in sorted(times.items())}
    lacking = [size for size in sizes or () if size not in found]
    if lacking:
        raise FormatError(f"the log has no size {lacking[0]}; it has {list(found)[:24]}")
    return found if sizes is None else {int(size): found[int(size)] for size in sizes}


def _warn_of_devices(machine: Machine, text: str) -> None:
    """Say where a log's list of devices is of another machine that was measured."""
    try:
        other, _ = machine_of_log(text)
    except FormatError:
        return  # no list, or of devices that nobody has measured
    wires = machine_like(machine.topology(machine.most))
    if other.name != machine.name and other != (wires or (None,))[0]:
        warn_user(
            f"the log's devices are those of {other.name}, not of {machine.name}; name that one",
            AssumptionWarning,
        )


def _read(log: object, kind: str, ranks: int) -> Timings:
    if isinstance(log, Timings):
        return log
    path = checks.instance(log, (str, os.PathLike), "log", FormatError)
    try:
        return load_text(path, logs.loads, ranks=ranks)
    except FormatError:
        # Old logs do not say which collective they are of; where one says it, it is believed.
        return load_text(path, logs.loads, collective=kind, ranks=ranks)
