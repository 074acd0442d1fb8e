"""Times of collectives: a schedule, simulated once for every size that is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import Framing
from jaxcoll.synth import Synthesizer
from jaxcoll.topology import Topology

# Seconds of a collective of so many bytes.
Time = Callable[[int], Fraction]
Groups = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """The time of a synthesizer's all-reduce on a network, at any size.

    ``jaxcoll.simulation`` stores messages and forwards them. Where messages cross several links and
    the network cuts through, they are cut into ``pieces`` that follow one another: as many, in
    powers of two, as leave each at least one packet. Ranks, too, pass a piece on before the next
    has come, which hides some latency.

    Attributes:
        topology: the network.
        synthesizer: an algorithm with its hyperparameters, or its name.
        chunks: chunks per shard; times the pieces.
        groups: that run at the same time; all ranks when None.
        model: the link model.
        framing: heads that cost bandwidth.
        pieces: most pieces of a message.
        seed: of the synthesizer.
    """

    topology: Topology
    synthesizer: str | Synthesizer
    chunks: int = 1
    groups: Groups | None = None
    model: str = "astra"
    framing: Framing | None = None
    pieces: int = 1
    seed: int = 0
    _schedules: dict[int, Schedule] = dataclasses.field(default_factory=dict, repr=False)
    _times: dict[int, Fraction] = dataclasses.field(default_factory=dict, repr=False)

    def __call__(self, nbytes: int) -> Fraction:
        """Seconds of the all-reduce of ``nbytes``, exact."""
        if nbytes not in self._times:
            schedule = self.schedule(self._pieces_at(nbytes))
            timeline = jc.simulate(schedule, nbytes, self.model, self.framing)
            self._times[nbytes] = timeline.exact_time
        return self._times[nbytes]

    def schedule(self, pieces: int = 1) -> Schedule:
        """The schedule, with every message in so many pieces."""
        if pieces not in self._schedules:
            schedule = jc.synthesize(
                self.topology,
                "all_reduce",
                self.synthesizer,
                chunks=self.chunks * pieces,
                groups=self.groups,
                seed=self.seed,
            )
            self._schedules[pieces] = cut_through(schedule, pieces)
        return self._schedules[pieces]

    def _pieces_at(self, nbytes: int) -> int:
        if self.pieces == 1:
            return 1
        payload = (self.framing or Framing()).payload or Framing().payload or 1
        ranks = max(map(len, self.groups)) if self.groups else self.topology.num_ranks
        packets = nbytes // (ranks * self.chunks * payload)
        return 1 << min(max(packets, 1), self.pieces).bit_length() - 1


def cut_through(schedule: Schedule, pieces: int) -> Schedule:
    """The schedule with every step in so many, each with a part of every shard's chunks."""
    if pieces == 1:
        return schedule
    per_shard = schedule.collective.chunks_per_shard
    piece = schedule.chunk.astype(np.int64) % per_shard * pieces // per_shard
    return Schedule.from_sends(
        schedule.topology,
        schedule.collective,
        schedule.step * np.int64(pieces) + piece,
        schedule.edge,
        schedule.chunk,
        schedule.reduce,
        edges=schedule.edges,
        provenance=schedule.provenance,
    )


def fastest(times: Sequence[Time]) -> Time:
    """The least of several at every size, as of a library that is tuned."""
    return lambda nbytes: min(time(nbytes) for time in times)


def in_turn(first: Sequence[Time], second: Sequence[Time], parts: int = 2) -> Time:
    """Collectives of equal parts of the data at the same time, then others.

    Those that run together must not share links.
    """

    def seconds(nbytes: int) -> Fraction:
        part = -(-nbytes // parts)
        return max(time(part) for time in first) + max(time(part) for time in second)

    return seconds


def ideal(topology: Topology, groups: Groups | None = None) -> Time:
    """The TACOS paper's Ideal of an all-reduce (``jaxcoll.ideal``)."""
    collective = Collective("all_reduce", topology.num_ranks, 1, groups)  # type: ignore[arg-type]
    return lambda nbytes: jc.ideal(topology, collective, nbytes)
