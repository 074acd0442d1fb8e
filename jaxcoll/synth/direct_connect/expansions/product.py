"""Cartesian product of different digraphs, scheduled by BFB (Definition 3, Theorem 13)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.bfb import Bfb
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import cartesian_product
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH


def bfb_all_gather(digraph: Digraph, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> Schedule:
    """The optimal BFB all_gather of a digraph, with as many chunks as it takes to be exact.

    Args:
        digraph: any.
        alpha: seconds per link.
        link_bandwidth: bytes per second per link.
    """
    topology = digraph.topology(alpha, link_bandwidth)
    collective = Collective("all_gather", digraph.size, Bfb.chunks(topology))
    return Bfb().synthesize(topology, collective)


def product_all_gather(
    factors: Sequence[Digraph], alpha=ALPHA, link_bandwidth=BANDWIDTH
) -> tuple[Digraph, Schedule]:
    """The product of digraphs and its optimal BFB all_gather; factors need no schedules.

    Raises:
        TopologyError: no factors, or a product that is too large.
    """
    digraph = cartesian_product(*factors)
    return digraph, bfb_all_gather(digraph, alpha, link_bandwidth)


def product_cost(factors: Sequence[Digraph], costs: Sequence[Cost]) -> Cost | None:
    """T_L and T_B of the BFB all_gather of a product, where a theorem gives them; otherwise None.

    If all factors are simple and have bandwidth-optimal BFB schedules, T_L is the sum of theirs
    and T_B = (N - 1)/N (Theorem 13). Parallel arcs break the proof: UniRing(2,4) x UniRing(1,3)
    has T_B 1, not 11/12, though both factors are bandwidth-optimal.

    Args:
        factors: the digraphs.
        costs: of the BFB schedule of each.

    Raises:
        TopologyError: not one cost per factor.
    """
    if len(factors) != len(costs) or not factors:
        raise TopologyError(
            f"a product needs one cost per factor, got {len(costs)} for {len(factors)} factors"
        )
    size = 1
    for factor, cost in zip(factors, costs, strict=True):
        size *= factor.size
        if not factor.is_simple or cost.inverse_bandwidth != bandwidth_optimum(factor.size):
            return None
    return Cost(sum(cost.steps for cost in costs), Fraction(size - 1, size))
