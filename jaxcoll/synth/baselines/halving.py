"""Halving: recursive halving for any number of ranks, with one order of addition everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.kinds import those
from jaxcoll.schedule import Schedule, concatenate
from jaxcoll.synth.building.base import ONE_CHUNK, Counts, Synthesizer
from jaxcoll.synth.building.sends import Sends, gathered
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Halving(Synthesizer):
    """Recursive halving and doubling for any number of ranks; all chunks are added in one order.

    The places of a group form a balanced binary tree: a run of places is halved, with the longer
    half first, down to single places. A chunk is added along this tree: the sum of a run is that of
    its first half plus that of its second. Only the ranks that add differ from chunk to chunk. So
    an element's sum does not depend on its chunk, and therefore not on the size of its buffer
    (``jaxcoll.simulation.sum_orders`` is 1).

    The sum of a run is computed at a rank of the run, and finally at the chunk's owner. In the half
    without this rank it is computed at the place with the same distance from the half's start,
    modulo its length, which spreads the chunks evenly. For 2**k ranks these are Rabenseifner's
    exchanges, those of ``Rhd(far_first=True)`` (Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", 2005, Sec. 4). Any number of ranks takes
    ceil(log2 n) steps each way and n - 1 sends per chunk, which is the minimum. Topology-oblivious:
    pairs are routed over shortest paths.
    """

    name: ClassVar[str] = "halving"
    kinds: ClassVar[frozenset[str]] = those(lambda kind: kind.is_sharded)
    # For powers of two it equals a variant of rhd; users ask for it by name, for its order of
    # addition.
    tried_by_auto: ClassVar[bool] = False
    series: ClassVar[tuple[Counts, ...]] = ONE_CHUNK

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Sums are the gather reversed step by step. Other synthesizers reverse its simulated run
        (``reverse_in_time``), which may add either of two runs first if a switch let them arrive
        early.
        """
        gather, kind = collective.with_kind("all_gather"), collective.traits
        if kind.copies:
            return self._gathered(topology, gather)
        # Gathered on the transposed network, so that the reversed sends use existing links.
        scatter = self._gathered(topology.transpose(), gather).reverse()
        if not kind.has_phases:
            return scatter
        return concatenate(scatter, self._gathered(topology, gather))

    @staticmethod
    def _gathered(topology: Topology, collective: Collective) -> Schedule:
        # One send per shard first, then one per chunk: all chunks take the same way, because
        # otherwise sums of one shard's elements would differ in their order.
        index = np.arange(collective.chunks_per_shard)

        def write(group: np.ndarray) -> tuple[np.ndarray, Sends]:
            owner = np.arange(len(group))
            parts = [
                Sends(np.full(len(owner), step), src, dst, owner, np.zeros_like(owner))
                for step, src, dst in _exchanges(owner, 0, len(group), 0)
            ]
            sends = Sends.joined(parts)
            names = [field.name for field in dataclasses.fields(sends)]
            every = {name: np.repeat(getattr(sends, name), len(index)) for name in names}
            return group, Sends(**every | {"index": np.tile(index, len(sends.step))})

        return gathered(topology, collective, write)


def _exchanges(
    holder: np.ndarray, start: int, end: int, step: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(step, from, to) of the gather within a run of places, each chunk starting at its holder.

    Args:
        holder: the place, in ``start``, ..., ``end - 1``, that has each chunk.
    """
    if end - start < 2:
        return
    # The tree of runs is the same for all chunks; only the ranks that add differ. So every element
    # is added in one order, regardless of its chunk.
    middle = start + (end - start + 1) // 2
    # The half that has a chunk already needs no message; the other half gets it at one place.
    is_first = holder < middle
    across = np.where(
        is_first,
        middle + (holder - start) % (end - middle),
        start + (holder - middle) % (middle - start),
    )
    yield step, holder, across
    # In each half the chunk now has one holder, and the halves continue separately in the same
    # steps.
    yield from _exchanges(np.where(is_first, holder, across), start, middle, step + 1)
    yield from _exchanges(np.where(is_first, across, holder), middle, end, step + 1)
