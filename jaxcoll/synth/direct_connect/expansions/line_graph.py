"""Line graph expansion: d times the ranks at the same degree, for one step more (Section 3.5.1)."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds.moore import Cost
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.synth.direct_connect.expansions.expansion import Expansion
from jaxcoll.topologies.generative.digraph import Digraph
from jaxcoll.topologies.generative.operations import line_graph


@dataclasses.dataclass(frozen=True)
class LineGraph(Expansion):
    """(G, A) to (L(G), A_L(G)): paths of G between the arcs at their ends (Definitions 1, 12).

    In a first step every rank v'v sends its shard to all neighbours vu; a send of v's chunk from u
    to w then becomes, a step later, one of v'v's chunk from uw to ww' for every v' and w'.

    T_L grows by 1, if d > 1; T_B by at most 1/N (Theorem 7), and by exactly that where A is an
    optimal BFB schedule and every vertex has more than one out-neighbour: then the result is the
    optimal BFB schedule of L(G) (Theorem 10). Otherwise T_B may grow by less, since no rank is
    sent its own shard: that of L(UniRing(2,4)) is 7/8, not 1. Moore optimality is kept (Theorem 8).
    """

    name: ClassVar[str] = "line_graph"

    def digraph(self, base: Digraph) -> Digraph:
        """L(G)."""
        return line_graph(base)

    def size(self, size: int, degree: int) -> tuple[int, int]:
        """dN ranks of degree d."""
        return size * degree, degree

    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """T_L + 1 and T_B + 1/N, upper bounds (Theorem 7)."""
        return Cost(base.steps + 1, base.inverse_bandwidth + Fraction(1, size))

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """See ``Expansion.sends``."""
        digraph, degree = base.digraph, base.digraph.degree
        links = expanded.links[:, None]
        first = Sends.of(0, links, expanded.tails[links], np.arange(base.chunks))
        # Axes: send, arc v'v into the owner v of its chunk, arc ww' out of its receiver w.
        send = base.sends
        source = digraph.in_arcs[send.owner][:, :, None]
        arc = (send.arc[:, None] * degree + np.arange(degree))[:, None, :]
        later = Sends.of(send.step[:, None, None] + 1, arc, source, send.index[:, None, None])
        later = later.where(expanded.heads[later.arc] != later.owner)
        return base.chunks, base.steps + 1, Sends.joined([first, later])

    def vertices_of_transpose(self, base: Digraph) -> np.ndarray:
        """Arc i of the transpose is the i-th arc by head, then tail."""
        return np.lexsort((base.tails, base.heads))


def line_graph_power_cost(base: Cost, size: int, degree: int, times: int) -> Cost:
    """T_L + k, and T_B + d/(d-1) (1/N - 1/(d^k N)) at most, of L^k(G) (Corollary 7.1)."""
    expansion = LineGraph()
    for _ in range(times):
        base, size = expansion.cost(base, size, degree), size * degree
    return base
