"""Unidirectional to bidirectional: links both ways, at no loss (Appendix A.1.6)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jaxcoll.bounds.moore import Cost
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.synth.direct_connect.expansions.expansion import Expansion
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers
from jaxcoll.topologies.generative.operations import bidirectional, both_ways_arcs, find_reversal


@dataclasses.dataclass(frozen=True)
class Bidirectional(Expansion):
    """(G, A) of a reverse-symmetric digraph to G and its transpose on the same ranks.

    One half of each shard follows A, the other the image of A under an isomorphism from G to its
    transpose, over the reversed links. The degree doubles; T_L and T_B stay. Bandwidth optimality
    is kept, Moore optimality need not be.
    """

    name: ClassVar[str] = "bidirectional"

    def digraph(self, base: Digraph) -> Digraph:
        """G and its transpose.

        Raises:
            TopologyError: G is not isomorphic to its transpose.
        """
        find_reversal(base)
        return bidirectional(base)

    def size(self, size: int, degree: int) -> tuple[int, int]:
        """N ranks of degree 2d."""
        return size, 2 * degree

    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """T_L and T_B of the base."""
        return base

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """See ``Expansion.sends``."""
        digraph, send = base.digraph, base.sends
        image = find_reversal(digraph)
        number = arc_numbers(*both_ways_arcs(digraph))
        reversed_arc = arc_numbers(image[digraph.heads], image[digraph.tails])
        there = Sends(send.step, number[send.arc], send.owner, send.index)
        back = Sends.of(
            send.step,
            number[digraph.num_arcs + reversed_arc[send.arc]],
            image[send.owner],
            base.chunks + send.index,
        )
        return 2 * base.chunks, base.steps, Sends.joined([there, back])
