"""Schedules made for a runtime: the fastest whose files it takes."""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from jaxcoll.errors import CollectiveError, FormatError, TopologyError
from jaxcoll.io import msccl, mscclpp
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import simulate
from jaxcoll.synth import Portfolio, Synthesizer, synthesize
from jaxcoll.synth.building.base import BUCKET_BYTES, Problem
from jaxcoll.synth.entry import synthesizer_named
from jaxcoll.topology import Topology

log = logging.getLogger(__name__)

# Of each runtime, a call that refuses a schedule which its file cannot hold.
_LOWERED: dict[str, Callable[[Schedule], object]] = {
    "msccl": lambda schedule: msccl.lower(schedule, dialect="msccl"),
    "azure": lambda schedule: msccl.lower(schedule, dialect="azure"),
    "mscclpp": mscclpp.lower,
}
FOR_RUNTIMES = tuple(_LOWERED)
_MOST_MAKERS = 4  # synthesizers of auto's table that are tried at least, if one of them fits


def synthesize_for(
    topology: Topology,
    collective: str,
    synthesizer: str | Synthesizer = "auto",
    *,
    for_runtime: str,
    **options: Any,
) -> Schedule:
    """The schedule of ``jc.synthesize`` if a runtime's file holds it, else the fastest that fits.

    Files are the longer the more chunks a pipeline has, and chunks do not divide links equally
    well, so of fewer chunks the fastest that fits is taken, not the most. Where ``auto`` chose the
    synthesizer, the next ones of its table are tried too as long as they may be faster.

    Args:
        collective: a kind.
        for_runtime: ``msccl``, ``azure`` or ``mscclpp``.
        options: of ``jc.synthesize``; ``chunks`` fixes them, so that nothing is left to choose.

    Raises:
        FormatError: none that fits, with the number that is too large at first; an unknown
            runtime.
        CollectiveError, TopologyError: see ``jc.synthesize``.
    """
    fits = _LOWERED[checks.choice(for_runtime, FOR_RUNTIMES, "for_runtime", FormatError)]
    schedule = synthesize(topology, collective, synthesizer, **options)
    try:
        fits(schedule)
        return schedule
    except FormatError as error:
        refused = error
    if options.get("chunks") is not None or not isinstance(collective, str):
        raise refused
    log.info("not as it is for %s: %s", for_runtime, refused)
    search = _Search(fits, topology, collective, options)
    table = _by_maker(schedule, synthesizer, Problem.stated(topology, collective), search.nbytes)
    for tried, (maker, times) in enumerate(table):
        if min(times.values()) >= search.seconds or (search.best and tried >= _MOST_MAKERS):
            break
        search.run(maker, times, schedule.collective.chunks_per_shard)
    if search.best is None:
        raise refused
    return search.best


Times = dict[int, float]  # seconds by chunk count


def _by_maker(
    schedule: Schedule, given: str | Synthesizer, problem: Problem, nbytes: Number
) -> list[tuple[str | Synthesizer, Times]]:
    """The synthesizers that a search has tried, the fastest first, with their seconds by count."""
    table: Any = schedule.provenance.certificate.get("table", ())
    times: defaultdict[str, Times] = defaultdict(dict)
    for row in table:
        if "time" in row:
            times[row["candidate"]][row["chunks"]] = row["time"]
    by_auto = synthesizer_named(given)
    if not isinstance(by_auto, Portfolio):
        return [(given, times.popitem()[1] if times else {schedule.collective.chunks_per_shard: 0})]
    climbs = by_auto.with_nbytes(nbytes).candidates(dataclasses.replace(problem, any_chunks=True))
    makers = {repr(climb.synthesizer): climb.synthesizer for climb in climbs}
    fastest = sorted((min(each.values()), name) for name, each in times.items() if name in makers)
    return [(makers[name], times[name]) for _, name in fastest]


@dataclasses.dataclass
class _Search:
    """The fastest schedule that fits so far."""

    fits: Callable[[Schedule], object]
    topology: Topology
    collective: str
    options: dict[str, Any]
    best: Schedule | None = None
    seconds: float = float("inf")

    @property
    def nbytes(self) -> Number:
        given = self.options.get("nbytes")
        return BUCKET_BYTES if given is None else given

    def run(self, maker: str | Synthesizer, times: Times, most: int) -> None:
        """Try a synthesizer's chunk counts: halves of the most and powers of two, which may do as
        well as those that the search has tried, and those, the fastest first.

        Args:
            times: known of some counts.
            most: the count that was refused.
        """
        guessed = {most >> i for i in range(1, most.bit_length())}
        guessed |= {1 << i for i in range(most.bit_length())}
        for count in sorted({*times, *guessed} - {most}, key=lambda c: (times.get(c, 0.0), c)):
            if times.get(count, 0.0) >= self.seconds:
                return
            try:
                schedule = synthesize(
                    self.topology, self.collective, maker, **{**self.options, "chunks": count}
                )
                self.fits(schedule)
            except (CollectiveError, FormatError, TopologyError):
                continue
            execution = self.options.get("execution")
            seconds = simulate(schedule, self.nbytes, execution=execution).time
            if seconds < self.seconds:
                self.best, self.seconds = schedule, seconds
