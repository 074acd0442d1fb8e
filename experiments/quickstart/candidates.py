"""All-reduce schedules of many synthesizers on one network: proved, timed and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

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
    """Verified schedules with their simulated times, or why there are none.

    Attributes:
        synthesizer: its name.
        chunks: chunks per shard; None where they are chosen for every size, as ``synthesize`` does.
        schedules: one per size, the same for all where the chunks are fixed; none where the
            synthesizer is not defined for the network.
        reason: why there are none.
        times: seconds at each size.
    """

    synthesizer: str
    chunks: int | None
    schedules: tuple[Schedule, ...]
    reason: str = ""
    times: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        """Name for tables: the synthesizer, and its chunks if fixed and more than one."""
        return (
            self.synthesizer if self.chunks in (None, 1) else f"{self.synthesizer} x{self.chunks}"
        )

    @property
    def is_defined(self) -> bool:
        """Whether there are schedules."""
        return bool(self.schedules)


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
        for chunks in (None,) if name in config.chosen else config.of(name):
            try:
                # A schedule that synthesize returns is verified.
                schedules = [
                    jc.synthesize(topology, "all_reduce", name, **settings, seed=seed)
                    for settings in _settings(chunks, sizes)
                ]
            except (CollectiveError, TopologyError) as error:
                yield Candidate(name, chunks, (), str(error))
                continue
            schedules *= len(sizes) // len(schedules)
            pairs = zip(schedules, sizes, strict=True)
            times = tuple(jc.simulate(schedule, size, model=model).time for schedule, size in pairs)
            yield Candidate(name, chunks, tuple(schedules), times=times)


def _settings(chunks: int | None, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The arguments by which chunks are fixed, or chosen for every size."""
    return [{"nbytes": size} for size in sizes] if chunks is None else [{"chunks": chunks}]


def best_at(found: Sequence[Candidate], size: int) -> Candidate:
    """The fastest at the size with this index; of equals the one with fewer messages."""
    defined = [candidate for candidate in found if candidate.is_defined]
    return min(defined, key=lambda c: (c.times[size], c.schedules[size].num_messages))


def best_for(found: Sequence[Candidate], nbytes: int, model: str) -> Candidate:
    """Of the candidates with fixed chunks the one that is fastest for a buffer of ``nbytes``.

    Of equals fewer messages win. Chunks chosen for links alone may mean hundreds of steps, each of
    which is work for the virtual devices that train here.
    """
    timed = [
        dataclasses.replace(
            candidate,
            schedules=candidate.schedules[:1],
            times=(jc.simulate(candidate.schedules[0], nbytes, model).time,),
        )
        for candidate in found
        if candidate.is_defined and candidate.chunks is not None
    ]
    return best_at(timed, 0)
