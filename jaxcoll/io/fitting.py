"""Schedules made for a runtime: with as many chunks as its files hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from jaxcoll.errors import FormatError
from jaxcoll.io import msccl, mscclpp
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth import Synthesizer, synthesize
from jaxcoll.topology import Topology

log = logging.getLogger(__name__)

# Of each runtime, a call that refuses a schedule which its file cannot hold.
_LOWERED: dict[str, Callable[[Schedule], object]] = {
    "msccl": lambda schedule: msccl.lower(schedule, dialect="msccl"),
    "azure": lambda schedule: msccl.lower(schedule, dialect="azure"),
    "mscclpp": mscclpp.lower,
}
FOR_RUNTIMES = tuple(_LOWERED)


def synthesize_for(
    topology: Topology,
    collective: str,
    synthesizer: str | Synthesizer = "auto",
    *,
    for_runtime: str,
    **options: Any,
) -> Schedule:
    """The schedule of ``jc.synthesize`` if a runtime's file holds it, else one of fewer chunks.

    Pipelines are the faster the more chunks they have, and files the longer: chunk counts are tried
    from the fastest down, those that ``auto`` has tried itself first.

    Args:
        collective: a kind.
        for_runtime: ``msccl``, ``azure`` or ``mscclpp``.
        options: of ``jc.synthesize``; ``chunks`` fixes them, so that nothing is left to choose.

    Raises:
        FormatError: no count that fits, with the number that is too large at first; an unknown
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
    if options.get("chunks") is None:
        for count in _fewer(schedule):
            log.info("for %s with %d chunks, as %s", for_runtime, count, refused)
            schedule = synthesize(topology, collective, synthesizer, **{**options, "chunks": count})
            try:
                fits(schedule)
                return schedule
            except FormatError:
                continue
    raise refused


def _fewer(schedule: Schedule) -> Iterator[int]:
    """Chunk counts below a schedule's, the largest first."""
    most = schedule.collective.chunks_per_shard
    table: Any = schedule.provenance.certificate.get("table", ())
    tried = {row["chunks"] for row in table if "time" in row}
    halves = {most >> i for i in range(1, most.bit_length())}
    yield from sorted((count for count in tried | halves if count < most), reverse=True)
