"""Prices of schedules on a measured machine, in the order in which they are executed there.

JAX runs a schedule step by step: a rank's permutes of a step go together, and its steps follow one
another. There are three prices, listed from the nearest to measurement to the farthest:

- ``MeasuredSteps``, where permutes were measured on the machine: a step in which a rank sends to
  one other takes as long as the permute of so many bytes, and one in which it sends to k others as
  long as the all_to_all among k + 1. A straight line through the ends of the curve would miss them:
  on an H100 host a permute of 64 MiB runs at 76 GB/s and one of 1 GiB at 290.
- ``ChargedSteps``, of other GPUs: links by the data sheet, and the charges of a step that were
  fitted to one host.
- ``SheetSteps``, of the tori of Fugaku: links by the data sheet, nothing charged.

No price has an error bar, because no table has a program of several steps. ``factor`` is how far
off a price may be by our judgement, and a verdict needs a larger difference than that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol, cast

import numpy as np

from jaxcoll.expectation import linked_machine
from jaxcoll.measured import PERMUTE, Curve, Machine, curves_of
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import ExecutionCosts, simulate
from jaxcoll.simulation.execution_costs import costs_of
from jaxcoll.simulation.execution_order import STEPS
from jaxcoll.simulation.step_delays import step_loads
from jaxcoll.topology import Topology
from jaxcoll.validation.charges import MEMORY

# The costs of a machine whose ranks wait for their steps, and of which nothing else is known.
_FREE = ExecutionCosts("cpu", 0.0, 0.0, 0.0, 0.0, order=STEPS)
_LARGE = 2**26


class Price(Protocol):
    """A way to price schedules on a machine."""

    @property
    def said(self) -> str:
        """The evidence for the prices, in words."""
        ...

    @property
    def network(self) -> Topology:
        """The network on which schedules are made."""
        ...

    @property
    def costs(self) -> ExecutionCosts:
        """The costs by which a synthesizer chooses its chunks."""
        ...

    def seconds(self, schedule: Schedule, nbytes: Number) -> float:
        """The price of a schedule on ``network``, in seconds."""
        ...

    def factor(self, nbytes: Number) -> float:
        """The factor by which such a price may be wrong: 2 if it may be half or twice the time."""
        ...


def price_of(machine: Machine, network: Topology) -> Price:
    """The price of a network that is nearest to measurement.

    Args:
        network: the network of the machine, or of some of its ranks.
    """
    if (steps := MeasuredSteps.of(machine, network)) is not None:
        return steps
    if (near := linked_machine(network)) is not None:
        # A100 are charged like H100: nobody has published their permutes below 128 MiB.
        measured = near if near in MEMORY else "h100-host"
        return ChargedSteps(measured, network, cast("ExecutionCosts", costs_of(measured)))
    return SheetSteps(network)


# ---------------------------------------------------------------------- as permutes were measured


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Every step takes as long as a permute or an all_to_all was measured to take.

    Attributes:
        network: the network by the data sheet; no time depends on its links.
        permutes: curves of permutes among equally many ranks, one for each pattern.
        exchanges: curves of all_to_all, by the ranks of a group.
        copies: the charges of the bytes that ranks copy and add, which a permute does not.
    """

    network: Topology
    permutes: tuple[Curve, ...]
    exchanges: Mapping[int, Curve]
    copies: ExecutionCosts
    said: str
    costs: ExecutionCosts

    @classmethod
    def of(cls, machine: Machine, network: Topology) -> MeasuredSteps | None:
        """The price by the tables of a machine; None if nobody has measured its permutes."""
        found = curves_of(machine.name, PERMUTE) if machine.name in MEMORY else ()
        enough = [curve.ranks for _, curve in found if curve.ranks >= network.num_ranks]
        if not enough:
            return None
        nearest = min(enough)
        permutes = [(table, curve) for table, curve in found if curve.ranks == nearest]
        exchanges = {
            curve.ranks: curve
            for _, curve in curves_of(machine.name, "all_to_all")
            if curve.dtype == "f32"
        }
        said = (
            f"every step as long as a permute among {nearest} ranks, or an all_to_all among as "
            f"many as it joins, was measured to take ({permutes[0][0].name}), and copies at the "
            "memory's data sheet"
        )
        costs = cast("ExecutionCosts", costs_of(machine.name))
        copies = dataclasses.replace(costs, permute=0.0, step=0.0, delays=())
        return cls(network, tuple(curve for _, curve in permutes), exchanges, copies, said, costs)

    def seconds(self, schedule: Schedule, nbytes: Number) -> float:
        parts, whole = step_loads(schedule)
        kinds, counts = np.unique(parts, axis=0, return_counts=True)
        scale = float(nbytes) / whole
        taken = [
            count * max(self.step(int(peers), busiest * scale / peers), self.step(1, most * scale))
            for (peers, busiest, most), count in zip(kinds.tolist(), counts.tolist(), strict=True)
            if peers
        ]
        return sum(taken) + float(self.copies.seconds(schedule, nbytes))

    def step(self, peers: int, nbytes: float) -> float:
        """Seconds of a step in which every rank sends some bytes to each of ``peers`` others.

        Every rank also receives as many. Between two numbers of ranks that were measured, the time
        is interpolated on logarithmic scales.
        """
        # The fastest pattern counts: schedules that lose even at its times lose with any.
        among = {2: min(_along(curve, nbytes) for curve in self.permutes)}
        among |= {r: _along(each, r * nbytes) for r, each in self.exchanges.items() if r > 2}
        low = max(r for r in among if r <= peers + 1)
        high = min(r for r in among if r >= peers + 1)
        share = 0.0 if low == high else math.log((peers + 1) / low) / math.log(high / low)
        return among[low] ** (1 - share) * among[high] ** share

    def factor(self, nbytes: Number) -> float:
        return 1.25


def _along(curve: Curve, nbytes: float) -> float:
    """Seconds on a curve: below it those of its first row, above it at its last row's speed."""
    seconds = float(np.interp(nbytes, curve.nbytes, curve.seconds))
    return seconds * max(1.0, nbytes / float(curve.nbytes[-1]))


# ---------------------------------------------------------------------- by links


@dataclasses.dataclass(frozen=True, eq=False)
class ChargedSteps:
    """Times of the link model, in the order in which GPUs send, at the charges of one host.

    Attributes:
        near: the host that was measured.
        network: the network by the data sheet; links between hosts have no charge of their own.
        costs: the charges of its programs.
    """

    near: str
    network: Topology
    costs: ExecutionCosts

    @property
    def said(self) -> str:
        return (
            f"steps on links by the data sheet, at the charges that were fitted to published times "
            f"of {self.near}"
        )

    def seconds(self, schedule: Schedule, nbytes: Number) -> float:
        return simulate(schedule, nbytes, execution=self.costs).time

    def factor(self, nbytes: Number) -> float:
        # Held-out steps of one host are within a quarter; no step between hosts was measured.
        return 2.0


@dataclasses.dataclass(frozen=True, eq=False)
class SheetSteps:
    """Times of the link model if a rank's steps follow one another and nothing else is charged.

    Attributes:
        network: the network by the data sheet.
    """

    network: Topology
    costs: ExecutionCosts = _FREE

    @property
    def said(self) -> str:
        return "steps on links by the data sheet; no start-up of a message is charged but theirs"

    def seconds(self, schedule: Schedule, nbytes: Number) -> float:
        return simulate(schedule, nbytes, execution=self.costs).time

    def factor(self, nbytes: Number) -> float:
        # Prices of 3dtorus and recursive doubling, which ``bucket`` and ``rhd`` make, on 4x4x4 and
        # 8x8x8 were 0.57 to 1.6 of the measured times from 64 MiB, and 0.08 to 1.5 from 1 MiB.
        return 2.0 if nbytes >= _LARGE else 16.0
