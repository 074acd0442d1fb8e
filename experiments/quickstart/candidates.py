"""All-reduce schedules of many synthesizers on one network: proved, timed and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import jaxcoll as jc
from experiments.config import HardwareConfig, SynthConfig, TopologyConfig
from jaxcoll import CollectiveError, Schedule, Topology, TopologyError, topologies

FAMILIES = {
    "torus": topologies.torus,
    "mesh": topologies.mesh,
    "ring": topologies.ring,
    "fully_connected": topologies.fully_connected,
}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A verified schedule and its simulated times, or why there is none.

    Attributes:
        synthesizer: its name.
        chunks: chunks per shard.
        schedule: the schedule; None where the synthesizer is not defined for the network.
        reason: why there is none.
        times: seconds at each size.
    """

    synthesizer: str
    chunks: int
    schedule: Schedule | None
    reason: str = ""
    times: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Name for tables: the synthesizer, and its chunks if more than one."""
        return self.synthesizer if self.chunks == 1 else f"{self.synthesizer} x{self.chunks}"


def build_topology(config: TopologyConfig, hardware: HardwareConfig) -> Topology:
    """The network of a configuration, with the links of the hardware."""
    return FAMILIES[config.family](
        *config.sides, alpha=hardware.alpha_us * 1e-6, bandwidth=hardware.bandwidth_gbps * 1e9
    )


def candidates(
    topology: Topology, config: SynthConfig, sizes: Sequence[int], model: str, seed: int
) -> Iterator[Candidate]:
    """The all-reduce of every synthesizer that the configuration names, one by one.

    Args:
        sizes: bytes of a rank's buffer.
        model: link model of the simulation.
    """
    for name in config.names or jc.SYNTHESIZERS:
        for chunks in config.of(name):
            try:
                # A schedule that synthesize returns is verified.
                schedule = jc.synthesize(topology, "all_reduce", name, chunks=chunks, seed=seed)
            except (CollectiveError, TopologyError) as error:
                yield Candidate(name, chunks, None, str(error))
                continue
            times = tuple(jc.simulate(schedule, nbytes, model=model).time for nbytes in sizes)
            yield Candidate(name, chunks, schedule, times=times)


def best_at(found: Sequence[Candidate], size: int) -> Candidate:
    """The fastest at the size with this index; of equals the one with fewer messages."""
    defined = [candidate for candidate in found if candidate.schedule is not None]
    return min(defined, key=lambda c: (c.times[size], c.schedule.num_messages if c.schedule else 0))


def best_for(found: Sequence[Candidate], nbytes: int, model: str) -> Candidate:
    """The candidate that is fastest for a buffer of ``nbytes``; of equals fewer messages win."""
    timed = [
        dataclasses.replace(candidate, times=(jc.simulate(candidate.schedule, nbytes, model).time,))
        for candidate in found
        if candidate.schedule is not None
    ]
    return best_at(timed, 0)
