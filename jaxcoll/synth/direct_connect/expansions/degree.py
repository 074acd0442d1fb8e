"""Degree expansion: n times the ranks at n times the degree, for one step more (Section 3.5.2)."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds.moore import Cost
from jaxcoll.errors import TopologyError
from jaxcoll.numerics import checks
from jaxcoll.synth.direct_connect.expansions.columns import Gather, Sends
from jaxcoll.synth.direct_connect.expansions.expansion import Expansion
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers
from jaxcoll.topologies.generative.operations import degree_expansion, degree_expansion_arcs


@dataclasses.dataclass(frozen=True)
class DegreeExpansion(Expansion):
    """(G, A) to (G * n, A_G*n) for a digraph without self-loops (Definitions 2, 13).

    Data of copy j of a rank stays among copies j and leaves for copy i on the last arc of its
    path. In a last step the copies of a rank, which still lack each other's shards, receive them
    from all nd in-neighbours in equal parts.

    T_L grows by 1, T_B by (n - 1)/(nN) (Theorem 11): bandwidth optimality is kept (Cor. 11.1).

    Attributes:
        copies: n, at least 2.

    Raises:
        TopologyError: fewer copies.
    """

    copies: int

    name: ClassVar[str] = "degree_expansion"

    def __post_init__(self) -> None:
        checks.integer_fields(self, TopologyError, "copies", least=2)

    def digraph(self, base: Digraph) -> Digraph:
        """G * n."""
        return degree_expansion(base, self.copies)

    def size(self, size: int, degree: int) -> tuple[int, int]:
        """nN ranks of degree nd."""
        return size * self.copies, degree * self.copies

    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """T_L + 1 and T_B + (n - 1)/(nN) (Theorem 11)."""
        more = Fraction(self.copies - 1, self.copies * size)
        return Cost(base.steps + 1, base.inverse_bandwidth + more)

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """See ``Expansion.sends``."""
        n, ports = self.copies, expanded.degree
        chunks = math.lcm(base.chunks, ports)
        number = arc_numbers(*degree_expansion_arcs(base.digraph, n))
        send = base.sends.split(chunks // base.chunks)
        # Axes: send, copy j that its data belongs to, copy i of its receiver.
        source, target = np.arange(n)[:, None], np.arange(n)
        every = (slice(None), None, None)
        within = Sends.of(
            send.step[every],
            number[(send.arc[every] * n + source) * n + target],
            send.owner[every] * n + source,
            send.index[every],
        )
        # Axes: vertex, its copies i and j, in-arc of copy j, chunk of the part that this arc takes.
        vertex = np.arange(base.digraph.size).reshape(-1, 1, 1, 1, 1) * n
        part = chunks // ports
        last = Sends.of(
            base.steps,
            expanded.in_arcs.reshape(-1, 1, n, ports, 1),
            vertex + np.arange(n).reshape(-1, 1, 1, 1),
            np.arange(chunks).reshape(ports, part),
        )
        last = last.where(expanded.heads[last.arc] != last.owner)
        return chunks, base.steps + 1, Sends.joined([within, last])
