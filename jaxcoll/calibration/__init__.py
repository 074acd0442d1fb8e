"""Calibration: latencies and bandwidths of links fitted to measured times of collectives.

A network's links form classes of equal latency and bandwidth (such as NVLink, or the NIC). The
model of a measured time is the library's own price: the simulated time of the schedule that
``auto`` chooses at this size or the sizes around it, or of the schedule that a row of the log
names. So the fitted numbers are those with which plans and ``auto`` calculate.

Every third size from 1 MB on is held out of the fit, and shows how good it is. ``fit`` has the
algorithm.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Sequence

import numpy as np

from jaxcoll.calibration.doubts import doubts_of, is_noise
from jaxcoll.calibration.fit import (
    PROMISED,
    Steps,
    fit,
    groups,
    price,
    promised,
    spread,
    with_links,
)
from jaxcoll.calibration.protocols import account_of
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError, warn_user
from jaxcoll.io import timings as logs
from jaxcoll.io.files import naming
from jaxcoll.io.timings import Timing, Timings, passed_over
from jaxcoll.numerics import checks
from jaxcoll.progress import Wanted, checked, reporting
from jaxcoll.topologies import switch
from jaxcoll.topology import Topology

__all__ = ["Calibration", "calibrate"]

_LEAST_HELD_OUT = 1e6
# The most sizes of a collective that are fitted, evenly from all; more of them add no information.
_MOST_SIZES = 16
# The start of a fit on a network that nobody has described.
_ALPHA, _BANDWIDTH = 5e-6, 25e9


@dataclasses.dataclass(frozen=True)
class LinkClass:
    """Links that were equal before the fit.

    Attributes:
        links: number of links.
        assumed: their (alpha, bandwidth) before the fit, in seconds and bytes per second.
        alpha, bandwidth: the fitted numbers.
        alpha_seen, bandwidth_seen: whether a measured time depends on them; if none does, they are
            unchanged.
    """

    links: int
    assumed: tuple[float, float]
    alpha: float
    bandwidth: float
    alpha_seen: bool
    bandwidth_seen: bool

    def __str__(self) -> str:
        alpha, bandwidth = self.assumed
        parts = [
            f"alpha {1e6 * self.alpha:.4g} us (was {1e6 * alpha:.4g})" if self.alpha_seen
            else f"alpha {1e6 * self.alpha:.4g} us (not seen)",
            f"{self.bandwidth / 1e9:.4g} GB/s (was {bandwidth / 1e9:.4g})" if self.bandwidth_seen
            else f"{self.bandwidth / 1e9:.4g} GB/s (not seen)",
        ]  # fmt: skip
        return f"{self.links} links: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """A measured time that the fit has not seen.

    Attributes:
        collective, nbytes, seconds: the measurement.
        price: seconds on the calibrated network.
    """

    collective: str
    nbytes: int
    seconds: float
    price: float

    @property
    def error(self) -> float:
        """The relative error of the price: 0.02 if it is 2 % too slow."""
        return self.price / self.seconds - 1

    @property
    def promised(self) -> float:
        """The largest relative error promised at this size."""
        return promised(self.nbytes)


@dataclasses.dataclass(frozen=True, repr=False)
class Calibration:
    """A network's links as they were measured.

    Attributes:
        topology: the network with the fitted links.
        classes: the classes of its links.
        held_out: the times that were not fitted, by collective and size.
        fitted: number of times that were fitted.
        torn: rows of the logs that could not be read.
    """

    topology: Topology
    classes: tuple[LinkClass, ...]
    held_out: tuple[HeldOut, ...]
    fitted: int
    torn: int = 0

    def on(self, topology: Topology) -> Topology:
        """Another network of the same kinds of links, such as more hosts, with fitted links.

        Raises:
            TopologyError: some links were not among those that were fitted.
        """
        checks.instance(topology, Topology, "topology", TopologyError)
        speeds, kind = topology.speeds
        known = {each.assumed: (each.alpha, each.bandwidth) for each in self.classes}
        assumed = [(float(alpha), float(bandwidth)) for alpha, bandwidth in speeds]
        for alpha, bandwidth in assumed:
            if (alpha, bandwidth) not in known:
                raise TopologyError(
                    f"links of {1e6 * alpha:g} us and {bandwidth / 1e9:g} GB/s were not in the "
                    "network that was calibrated; give a network whose links are of the same kinds"
                )
        # Classes go by the speeds before the fit: links of one kind on the measured network are of
        # one kind on a larger network.
        return with_links(topology, kind, np.asarray([known[each] for each in assumed]))

    def worst(self, least: float) -> HeldOut | None:
        """The held-out time from ``least`` bytes on with the largest error."""
        found = [each for each in self.held_out if each.nbytes >= least]
        return max(found, key=lambda each: abs(each.error), default=None)

    def __repr__(self) -> str:
        lines = [f"{self.fitted} times fitted, {len(self.held_out)} held out"]
        lines += [str(each) for each in self.classes]
        for least, most in PROMISED[:2]:
            if (found := self.worst(least)) is not None:
                lines.append(
                    f"largest error from {least / 1e6:g} MB: {100 * abs(found.error):.1f} % at "
                    f"{found.nbytes} bytes of {found.collective} (promised {100 * most:g} %)"
                )
        return f"Calibration({self.topology.name or self.topology}: {'; '.join(lines)})"


Log = str | os.PathLike | Timings


def calibrate(
    log: Log | Sequence[Log],
    topology: Topology | None = None,
    *,
    collective: str | None = None,
    least: float = 0,
    progress: Wanted = None,
) -> Calibration:
    """Fit the latencies and bandwidths of a network's links to measured times.

    ::

        measured = jc.calibrate("all_reduce.txt", jc.topologies.dgx_h100(1))
        jc.synthesize(measured.topology, "all_reduce", nbytes=64e6)

    Args:
        log: a file for ``jc.io.timings`` (the output of nccl-tests or MSCCL++, CSV, JSON), the
            times of a file, or several of these, all measured on the same ranks.
        topology: the assumed network, whose classes of links are fitted; when None, a switch with
            one link per rank.
        collective: the collective, if a log does not tell it.
        least: smaller sizes in bytes are left out. NCCL changes protocol and algorithm with the
            size, and one latency and bandwidth describe only one of them.
        progress: True for a line in the terminal, or a function called with a
            ``jaxcoll.progress.Progress`` after every schedule that is chosen and every step.

    Warns:
        AssumptionWarning: the error at a held-out size is above 5 % from 64 MB on, or 10 % from 1
            MB on; there is no size to hold out; rows could not be read; or times seem to be in
            other units, of several runs or machines, or noise.

    Raises:
        FormatError: there is no log, its number of ranks is not the network's, or every collective
            has fewer than two sizes.
        TopologyError: the argument is not a network.
        OSError: a file cannot be read.
    """
    checks.optional(topology, checks.instance, Topology, "topology", TopologyError)
    checks.nonnegative(least, "least", FormatError)
    checked(progress, FormatError)
    given = _several(log)
    read = [_read(each, collective, topology) for each in given]
    torn = sum(part.torn for part in read)
    named = ", ".join(os.fspath(each) for each in given if not isinstance(each, Timings))
    with naming(named) if named else contextlib.nullcontext():
        rows = _of_one_network(read, topology, float(least))
        points = _points(rows)
    for doubt in doubts_of(rows, topology):
        warn_user(doubt, AssumptionWarning)
    if topology is None:
        topology = switch(rows[0].ranks, alpha=_ALPHA, bandwidth=_BANDWIDTH)
    held_out = _held_out(points)
    left = groups([point for point in points if point not in held_out])
    # Sizes are chosen evenly, because a log with two hundred small sizes would otherwise be fitted
    # to these alone.
    fitted = [group[at] for group in left for at in spread(len(group), _MOST_SIZES)]
    with reporting(progress, "fitting the links", FormatError) as report:
        tell = Steps(report)
        return _told(topology, fit(topology, fitted, tell), fitted, held_out, torn, tell)


# ---------------------------------------------------------------------- what was measured


def _several(log: object) -> tuple:
    alone = isinstance(log, (str, os.PathLike, Timings))
    given = (log,) if alone else checks.members(log, "log", FormatError)
    for each in given:
        checks.instance(each, (str, os.PathLike, Timings), "log", FormatError)
    if not given:
        raise FormatError("calibrate needs at least one log, got an empty list")
    return given


def _read(log: Log, collective: str | None, topology: Topology | None) -> Timings:
    if isinstance(log, Timings):
        return log
    ranks = None if topology is None else topology.num_ranks
    return logs.load(log, collective, ranks)


def _of_one_network(
    read: Sequence[Timings], topology: Topology | None, least: float
) -> list[Timing]:
    """The times from ``least`` bytes on, all of one number of ranks."""
    rows = [row for part in read for row in part.rows if row.nbytes >= least]
    if not rows:
        some = f" from {least:g} bytes" if least else ""
        raise FormatError(f"the log has no times{some}; give the print of a whole run")
    ranks = {row.ranks for row in rows}
    expected = ranks if topology is None else {topology.num_ranks}
    # One rank sends nothing, and times of several numbers of ranks are of several networks.
    if len(ranks) != 1 or ranks != expected or ranks == {1}:
        wanted = "one number of ranks from 2" if topology is None else f"{topology.num_ranks} ranks"
        raise FormatError(f"expected a log of {wanted}, got {sorted(ranks)[:8]}")
    return rows


def _points(rows: Iterable[Timing]) -> list[Timing]:
    """The median of the times of each size and schedule, by collective and size."""
    times: dict[tuple, list[Timing]] = {}
    for row in rows:
        key = (row.collective, row.nbytes, row.synthesizer or "", row.chunks or 0)
        times.setdefault(key, []).append(row)
    # The median, since a disturbed benchmark is slow, never fast.
    points = [
        dataclasses.replace(same[0], seconds=float(np.median([row.seconds for row in same])))
        for _, same in sorted(times.items())
    ]
    if len({point.nbytes for point in points}) < 2:
        raise FormatError(
            f"fitting a latency and a bandwidth needs times at two or more sizes, got {len(points)}"
        )
    return points


def _held_out(points: Sequence[Timing]) -> list[Timing]:
    """Every third size from 1 MB, never the smallest or largest that a collective has."""
    held = []
    # The ends are kept, because a line through the sizes in between would not describe them.
    for group in groups(points):
        large = [point for point in group[1:-1] if point.nbytes >= _LEAST_HELD_OUT]
        held += large[1::3] or large[:1]
    return held


# ---------------------------------------------------------------------- the result


def _told(
    topology: Topology,
    found: tuple[np.ndarray, np.ndarray],
    fitted: Sequence[Timing],
    held_out: Sequence[Timing],
    torn: int,
    tell: Steps,
) -> Calibration:
    """The calibration, after giving its warnings."""
    speeds, seen = found
    assumed, kind = topology.speeds
    network = with_links(topology, kind, speeds)
    classes = tuple(
        LinkClass(
            int((kind == i).sum()),
            (float(a), float(b)),
            float(speeds[i, 0]),
            float(speeds[i, 1]),
            bool(seen[i, 0]),
            bool(seen[i, 1]),
        )
        for i, (a, b) in enumerate(assumed)
    )
    held = []
    for point in held_out:
        found_price = price(network, point)
        held.append(HeldOut(point.collective, point.nbytes, point.seconds, found_price))
        tell(f"priced {point.nbytes} bytes, which were held out")
    made = Calibration(network, classes, tuple(held), len(fitted), torn)
    _warn(made, fitted)
    return made


def _warn(made: Calibration, fitted: Sequence[Timing]) -> None:
    """Say what is wrong with a fit, or what explains its log better."""
    held, torn = made.held_out, made.torn
    if torn:
        warn_user(passed_over(torn), AssumptionWarning)
    if not held:
        warn_user(
            "no size from 1 MB could be held out of the fit, so nothing says how good it is; "
            "measure five sizes or more, from 1 MB",
            AssumptionWarning,
        )
    explained = _explained(held, fitted)
    if explained:
        warn_user(explained, AssumptionWarning)
        return
    beyond = [each for each in held if abs(each.error) > each.promised]
    if beyond:
        shown = "; ".join(
            f"{each.nbytes} bytes of {each.collective}: {1e6 * each.seconds:.6g} us measured, "
            f"{1e6 * each.price:.6g} us by the fit ({100 * each.error:+.1f} %)"
            for each in sorted(beyond, key=lambda each: -abs(each.error))[:3]
        )
        warn_user(
            f"{len(beyond)} of {len(held)} held-out sizes are off by more than 5 % (from 64 MB) or "
            f"10 % (from 1 MB): one latency and bandwidth per class of links do not describe this "
            f"log, leave small sizes out by least=: {shown}",
            AssumptionWarning,
        )


# Protocols explain a log where their error is at most this part of the links', which has to be
# above the other, in units of the errors that are promised: below it, noise decides.
_BETTER, _WORTH = 0.5, 0.5


def _explained(held: Sequence[HeldOut], fitted: Sequence[Timing]) -> str:
    """How NCCL's protocols explain sizes that were held out, where they do and links do not."""
    for kind in dict.fromkeys(each.collective for each in held):
        account = account_of([each for each in fitted if each.collective == kind])
        of_kind = [each for each in held if each.collective == kind]
        if account is None or len(of_kind) < 2:
            continue
        # Where chance decides, protocols explain nothing either.
        if is_noise([each for each in fitted if each.collective == kind]):
            continue
        promises = np.asarray([each.promised for each in of_kind])
        links = np.asarray([each.error for each in of_kind])
        protocols = np.asarray([account.seconds(h.nbytes) / h.seconds - 1 for h in of_kind])
        by_links, by_protocols = (
            float(np.sqrt(np.mean((errors / promises) ** 2))) for errors in (links, protocols)
        )
        if by_links > _WORTH and by_protocols < _BETTER * by_links:
            return (
                f"NCCL's start and its protocols explain the times of {kind} better than slow "
                f"links do: {account}; sizes that were held out are off by "
                f"{100 * abs(protocols).max():.1f} %, and by {100 * abs(links).max():.1f} % of the "
                f"links. Fit the sizes of one protocol alone, by least={account.of_last:.0f}"
            )
    return ""
