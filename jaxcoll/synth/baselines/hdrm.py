"""Hdrm: halving-doubling on ranks mapped so that no two messages share a link of a BiGraph."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.grid import Grid
from jaxcoll.schedule import Schedule
from jaxcoll.synth.building.base import InPieces
from jaxcoll.synth.building.sends import (
    check_everyone,
    doubling,
    gather_in_order,
    is_power_of_two,
    on_ranks,
    schedule_of,
)
from jaxcoll.topologies import bigraph
from jaxcoll.topology import Topology


@dataclasses.dataclass(frozen=True)
class Hdrm(InPieces):
    """Halving-doubling on a BiGraph, every exchange between an upper and a lower switch.

    Dong et al., "EFLOPS" (HPCA 2020), as the MultiTree paper describes it (Sec. II-C): each pair
    consists of a rank of an upper switch and one of a lower switch. Positions with an even number
    of one bits are upper ranks, so all their partners are lower ranks; the low bits choose the
    upper switch, the high bits the lower one. So in every step the partners of a switch's ranks are
    spread evenly over the switches of the other half. If a switch has at most as many ranks as a
    half has switches, no two messages share a link.

    Defined on networks made by ``topologies.bigraph`` whose numbers of switches and of ranks per
    switch are powers of two, for all ranks at once.

    Its field ``pieces`` is that of ``InPieces``.
    """

    name: ClassVar[str] = "hdrm"

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            TopologyError: the network is not a BiGraph, or has other sizes.
            CollectiveError: the groups are not all ranks in order.
        """
        ranks, switches = _shape(topology)
        check_everyone(collective, self.name)
        n = topology.num_ranks
        everyone = Grid((n,), (False,))
        index = np.arange(collective.chunks_per_shard)
        sends = gather_in_order(everyone, (0,), {0: doubling(n)}, index)
        sends = sends.in_pieces(collective.chunks_per_shard, self.pieces)
        mapping = rank_mapping(ranks, switches)
        return schedule_of(topology, collective, on_ranks(sends, mapping))


def rank_mapping(ranks: int, switches: int) -> np.ndarray:
    """The rank at each position of the halving-doubling, int64 of shape (ranks * switches,).

    Args:
        ranks: number of ranks of a switch, a power of two.
        switches: number of upper switches, and of lower ones, a power of two.
    """
    half = switches // 2
    position = np.arange(ranks * switches)
    # Two positions that exchange differ in one bit, so one has an even number of ones and the other
    # an odd number. With the even ones on upper switches, every exchange crosses from one half to
    # the other.
    ones = np.zeros_like(position)
    for bit in range(int(position[-1]).bit_length()):
        ones += position >> bit & 1
    upper, lower = position % half, half + position // (2 * ranks)
    switch = np.where(ones % 2 == 0, upper, lower)
    mapping = np.empty_like(position)
    mapping[np.argsort(switch, kind="stable")] = position  # a switch's ranks in order of position
    return mapping


def _shape(topology: Topology) -> tuple[int, int]:
    """The ranks per switch of a BiGraph, and its number of switches.

    Raises:
        TopologyError: the network is not a BiGraph, or has other sizes.
    """
    n, switches = topology.num_ranks, topology.num_vertices - topology.num_ranks
    if switches >= 2 and switches % 2 == 0 and n % switches == 0:
        expected = bigraph(n // switches, switches)
        if np.array_equal(topology.src, expected.src) and np.array_equal(
            topology.dst, expected.dst
        ):
            if is_power_of_two(n // switches) and is_power_of_two(switches):
                return n // switches, switches
            raise TopologyError(
                "hdrm halves and doubles, so ranks per switch and switches must be powers of "
                f"two; {topology} has {n // switches} and {switches}"
            )
    raise TopologyError(f"hdrm is only defined on BiGraph networks, and {topology} is not one")
