"""Expansions: larger networks, with schedules, from a small network and its schedule (Sec. 3.5).

Few digraphs of low T_L and T_B are known, and they are small. An expansion turns a digraph and its
all_gather into a larger digraph and an all_gather on it. The cost follows from that of the base
(Table 3.3), so a search over expansions of expansions need not build any of them.

- Line graph: d times the ranks at the same degree, for one step more (Section 3.5.1).
- Degree expansion: n times the ranks at n times the degree, for one step more (Section 3.5.2).
- Cartesian power: a box of ranks with the base along every dimension (Section 3.5.3).
- Unidirectional to bidirectional: links both ways, at no loss (Appendix A.1.6).
- Cartesian product of different digraphs, scheduled by BFB (Definition 3, Theorem 13).

For example, the line graph of 3 ranks with links both ways has a rank for each of the 6 links. The
block of such a rank goes where the base would send the block of the rank that its link leads to.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, final

import numpy as np

from jaxcoll.bounds.moore import Cost, bandwidth_optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.kinds import ALL_GATHER
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.synth.direct_connect.bfb import Bfb
from jaxcoll.synth.direct_connect.columns import Gather, Sends, rename_ranks, reversed_on
from jaxcoll.topologies.generative.digraph import Digraph, arc_numbers
from jaxcoll.topologies.generative.operations import (
    bidirectional,
    both_ways_arcs,
    cartesian_power,
    degree_expansion,
    degree_expansion_arcs,
    find_reversal,
    line_graph,
    product_arcs,
)
from jaxcoll.topologies.grids import ALPHA, BANDWIDTH


class Expansion(abc.ABC):
    """A mapping of (digraph, all_gather) to a larger digraph and an all_gather on it (Table 3.3).

    Subclasses are frozen dataclasses. ``cost`` predicts T_L and T_B of the expanded schedule
    from those of the base's, so that a search need not build either of them.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def digraph(self, base: Digraph) -> Digraph:
        """The expanded digraph.

        Raises:
            TopologyError: the expansion is not defined for the base.
        """

    @abc.abstractmethod
    def size(self, size: int, degree: int) -> tuple[int, int]:
        """Size and degree of the expansion of a base of this size and degree."""

    @abc.abstractmethod
    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        """T_L and T_B of the expanded all_gather; for line graphs these are upper bounds.

        Args:
            base: cost of the base's all_gather.
            size, degree: size and degree of the base.
        """

    @abc.abstractmethod
    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        """Chunks per shard, steps and sends of the expanded all_gather."""

    def vertices_of_transpose(self, base: Digraph) -> np.ndarray:
        """The vertex of ``digraph(base)`` for each vertex of ``digraph(base.transpose())``.

        The two digraphs are each other's transpose under this numbering; int64 of shape (size,).
        """
        size, _ = self.size(base.size, base.degree)
        return np.arange(size)

    @final
    def all_gather(self, base: Digraph, schedule: Schedule) -> tuple[Digraph, Schedule]:
        """The expanded digraph and all_gather, with links as fast as those of the base.

        Args:
            base: the digraph.
            schedule: an all_gather of all ranks on ``base.topology(...)``; it is verified.

        Raises:
            TopologyError, CollectiveError, ScheduleError: see ``digraph`` and ``Gather.read``.
        """
        gather = Gather.read(base, schedule)
        expanded = self.digraph(base)
        chunks, steps, sends = self.sends(gather, expanded)
        topology = schedule.topology
        alpha, bandwidth = topology.exact_alpha[0], topology.exact_bandwidth[0]
        result = Gather(expanded, chunks, steps, sends).write(alpha, bandwidth, self.name)
        return expanded, result

    @final
    def reduce_scatter(self, base: Digraph, schedule: Schedule) -> tuple[Digraph, Schedule]:
        """The expanded digraph and reduce_scatter, by way of the transpose (Corollary 1.2).

        A base that is not reverse-symmetric has two schedules, and so do its expansions. For a
        reverse-symmetric base, ``scatter_of`` derives the reduce_scatter from the all_gather.

        Args:
            base: the digraph.
            schedule: a reduce_scatter of all ranks on ``base.topology(...)``; it is verified.

        Raises:
            CollectiveError: the collective is another one; other errors are those of
                ``all_gather``.
        """
        checks.instance(base, Digraph, "base", TopologyError)
        checks.instance(schedule, Schedule, "schedule", ScheduleError)
        if schedule.collective.traits is not ALL_GATHER.dual:
            raise CollectiveError(f"this expands a reduce_scatter, not {schedule.collective}")
        # Run backwards, a reduce_scatter of G is an all_gather of its transpose. Expanded there and
        # reversed, it has the rank numbers of the transposed expansion.
        _, gather = self.all_gather(base.transpose(), schedule.reverse())
        return self.digraph(base), rename_ranks(gather.reverse(), self.vertices_of_transpose(base))


def scatter_of(digraph: Digraph, schedule: Schedule) -> Schedule:
    """A reduce_scatter on the network of an all_gather, equally fast (Theorem 2).

    Raises:
        TopologyError: the digraph is not isomorphic to its transpose.
    """
    checks.instance(digraph, Digraph, "digraph", TopologyError)
    return reversed_on(schedule, find_reversal(digraph))


@dataclasses.dataclass(frozen=True)
class Bidirectional(Expansion):
    """(G, A) of a reverse-symmetric digraph to G and its transpose on the same ranks.

    One half of each shard follows A, the other the image of A under an isomorphism from G to its
    transpose, over the reversed links. The degree doubles; T_L and T_B stay. Bandwidth optimality
    is preserved; Moore optimality may be lost.
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
        return base

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        digraph, send = base.digraph, base.sends
        # A shard is cut in two: one half follows A, the other half follows the image of A under an
        # isomorphism from G to its transpose. So both take T_L steps, each over separate links.
        image = find_reversal(digraph)
        number = arc_numbers(*both_ways_arcs(digraph))
        # The isomorphism maps arc (u, v) of G to an arc of the transpose. As an arc of G, that
        # leads from the image of v to the image of u.
        reversed_arc = arc_numbers(image[digraph.heads], image[digraph.tails])
        there = Sends(send.step, number[send.arc], send.owner, send.index)
        back = Sends.of(
            send.step,
            number[digraph.num_arcs + reversed_arc[send.arc]],
            image[send.owner],
            base.chunks + send.index,
        )
        return 2 * base.chunks, base.steps, Sends.joined([there, back])


@dataclasses.dataclass(frozen=True)
class DegreeExpansion(Expansion):
    """(G, A) to (G * n, A_G*n) for a digraph without self-loops (Definitions 2, 13).

    Data of copy j of a rank stays among copies j, and goes to copy i on the last arc of its path.
    In a last step the copies of a rank, which still lack each other's shards, receive them from all
    nd in-neighbours in equal parts.

    T_L grows by 1, T_B by (n - 1)/(nN) (Theorem 11): bandwidth optimality is kept (Cor. 11.1).

    Attributes:
        copies: the number n of copies, at least 2.

    Raises:
        TopologyError: there are fewer copies.
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
        more = Fraction(self.copies - 1, self.copies * size)
        return Cost(base.steps + 1, base.inverse_bandwidth + more)

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        n, ports = self.copies, expanded.degree
        chunks = math.lcm(base.chunks, ports)
        number = arc_numbers(*degree_expansion_arcs(base.digraph, n))
        send = base.sends.split(chunks // base.chunks)
        # The axes are: send, copy j to which its data belongs, copy i of its receiver.
        # All copies of a send run at once: the data of copy j uses only arcs out of copies j, so no
        # two copies meet on an arc.
        source, target = np.arange(n)[:, None], np.arange(n)
        every = (slice(None), None, None)
        within = Sends.of(
            send.step[every],
            number[(send.arc[every] * n + source) * n + target],
            send.owner[every] * n + source,
            send.index[every],
        )
        # The axes are: vertex, its copies i and j, in-arc of copy j, chunk of the part that this
        # arc takes.
        vertex = np.arange(base.digraph.size).reshape(-1, 1, 1, 1, 1) * n
        part = chunks // ports
        last = Sends.of(
            base.steps,
            expanded.in_arcs.reshape(-1, 1, n, ports, 1),
            vertex + np.arange(n).reshape(-1, 1, 1, 1),
            np.arange(chunks).reshape(ports, part),
        )
        # A copy needs the shards of the other copies of its rank, but not its own.
        last = last.where(expanded.heads[last.arc] != last.owner)
        return chunks, base.steps + 1, Sends.joined([within, last])


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
        return Cost(base.steps + 1, base.inverse_bandwidth + Fraction(1, size))

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        digraph, degree = base.digraph, base.digraph.degree
        # The base sends over arcs of G, which are ranks here. A first step brings each shard from
        # its rank v'v to all ranks vu; from there it takes the ways of v's shard in A.
        links = expanded.links[:, None]
        first = Sends.of(0, links, expanded.tails[links], np.arange(base.chunks))
        # The axes are: send, arc v'v into the owner v of its chunk, arc ww' out of its receiver w.
        send = base.sends
        source = digraph.in_arcs[send.owner][:, :, None]
        arc = (send.arc[:, None] * degree + np.arange(degree))[:, None, :]
        later = Sends.of(send.step[:, None, None] + 1, arc, source, send.index[:, None, None])
        # No rank is sent its own shard.
        later = later.where(expanded.heads[later.arc] != later.owner)
        return base.chunks, base.steps + 1, Sends.joined([first, later])

    def vertices_of_transpose(self, base: Digraph) -> np.ndarray:
        """Arc i of the transpose is the i-th arc by head, then tail."""
        return np.lexsort((base.tails, base.heads))


def line_graph_power_cost(base: Cost, size: int, degree: int, times: int) -> Cost:
    """The cost of L^k(G): T_L + k, and at most T_B + d/(d-1) (1/N - 1/(d^k N)) (Corollary 7.1)."""
    expansion = LineGraph()
    for _ in range(times):
        base, size = expansion.cost(base, size, degree), size * degree
    return base


@dataclasses.dataclass(frozen=True)
class CartesianPower(Expansion):
    """(G, A) to (G^n, A_G^n): dimension by dimension, each n-th of a shard in its own order.

    Part i of every shard is gathered along dimension i first, then along i + 1, and so on around
    (Definition 14), so that all dimensions are busy in every step.

    T_L becomes n T_L, and T_B becomes T_B N/(N - 1) (N^n - 1)/N^n (Theorem 12): bandwidth
    optimality is kept (Corollary 12.1).

    Attributes:
        exponent: the exponent n, at least 2.

    Raises:
        TopologyError: the exponent is smaller.
    """

    exponent: int

    name: ClassVar[str] = "cartesian_power"

    def __post_init__(self) -> None:
        checks.integer_fields(self, TopologyError, "exponent", least=2)

    def digraph(self, base: Digraph) -> Digraph:
        """G^n."""
        return cartesian_power(base, self.exponent)

    def size(self, size: int, degree: int) -> tuple[int, int]:
        """N^n ranks of degree nd."""
        return size**self.exponent, degree * self.exponent

    def cost(self, base: Cost, size: int, degree: int) -> Cost:
        ranks = size**self.exponent
        # The factor from the optimum (N - 1)/N of N ranks to that of N^n ranks. A base that takes
        # longer than its optimum keeps the ratio.
        factor = Fraction(size * (ranks - 1), (size - 1) * ranks)
        return Cost(base.steps * self.exponent, base.inverse_bandwidth * factor)

    def sends(self, base: Gather, expanded: Digraph) -> tuple[int, int, Sends]:
        n = self.exponent
        number = arc_numbers(*product_arcs((base.digraph,) * n))
        parts = [self._phase(base, number, part, phase) for part in range(n) for phase in range(n)]
        return base.chunks * n, base.steps * n, Sends.joined(parts)

    def _phase(self, base: Gather, number: np.ndarray, part: int, phase: int) -> Sends:
        """A phase of one part: blocks gathered along earlier dimensions move along the next one."""
        n, side, send = self.exponent, base.digraph.size, base.sends
        stride = [side ** (n - 1 - d) for d in range(n)]
        dimension = (part + phase) % n
        # Part i starts along dimension i. So in every phase the n parts use n different dimensions,
        # one part per dimension, and no link idles (Definition 14).
        gathered = [(part + earlier) % n for earlier in range(phase)]
        vertices = np.arange(side**n).reshape((side,) * n)
        # The axes are: line along the dimension, send, origin along the dimensions gathered before.
        lines = np.moveaxis(vertices, dimension, -1).reshape(-1, side)
        first_arc = (dimension * len(lines) + np.arange(len(lines))) * base.digraph.num_arcs
        # A rank now has the shards of all ranks that differ from it only in gathered dimensions.
        # These are its own place with those coordinates set to 0, plus the offset of each of their
        # values.
        cleared = lines - sum(lines // stride[d] % side * stride[d] for d in gathered)
        block = np.zeros(1, np.int64)
        for d in gathered:
            block = (block[:, None] + np.arange(side) * stride[d]).ravel()
        return Sends.of(
            (phase * base.steps + send.step)[:, None],
            number[first_arc[:, None, None] + send.arc[:, None]],
            cleared[:, send.owner, None] + block,
            (part * base.chunks + send.index)[:, None],
        )


def bfb_all_gather(digraph: Digraph, alpha=ALPHA, link_bandwidth=BANDWIDTH) -> Schedule:
    """The optimal BFB all_gather of a digraph, with enough chunks to be exact.

    Args:
        digraph: any digraph.
        alpha: seconds per link.
        link_bandwidth: bytes per second per link.
    """
    topology = digraph.topology(alpha, link_bandwidth)
    collective = Collective("all_gather", digraph.size, Bfb.chunks(topology))
    return Bfb().synthesize(topology, collective)


def product_cost(factors: Sequence[Digraph], costs: Sequence[Cost]) -> Cost | None:
    """T_L and T_B of the BFB all_gather of a product, if a theorem gives them; otherwise None.

    If all factors are simple and have bandwidth-optimal BFB schedules, T_L is the sum of theirs
    and T_B = (N - 1)/N (Theorem 13). Parallel arcs break the proof: UniRing(2,4) x UniRing(1,3)
    has T_B 1, not 11/12, though both factors are bandwidth-optimal.

    Args:
        factors: the digraphs.
        costs: the cost of the BFB schedule of each factor.

    Raises:
        TopologyError: there is not one cost per factor.
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
