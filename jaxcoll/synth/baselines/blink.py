"""Blink: as many spanning trees from one root as the network holds.

On three ranks in a triangle of equal links the root has two trees, one starting at each of its
links, and each carries half of the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import ClassVar

import numpy as np

from jaxcoll.bounds.throughput import bottleneck, check_balanced, optimum
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.paths import Edges
from jaxcoll.schedule import Provenance, Schedule
from jaxcoll.simulation import steady_seconds
from jaxcoll.synth.building.base import (
    DOUBLINGS,
    ONE_CHUNK,
    Counts,
    Problem,
    Synthesizer,
)
from jaxcoll.synth.building.sends import distinct_edges
from jaxcoll.synth.building.switch_unwinding import Unwound, unwind
from jaxcoll.synth.forestcoll.rates import rates_for_chunks
from jaxcoll.synth.forestcoll.stages import known_forest
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

_MOST_ROOTS = 2**19  # the most work to find the root of all trees


@dataclasses.dataclass(frozen=True)
class Blink(Synthesizer):
    """Broadcast, reduce and all_reduce over an optimal packing of spanning trees from one root.

    Wang, Venkataraman, Phanishayee, Devanur, Thelin and Stoica, "Blink: Fast and generic
    collectives for distributed ML" (MLSys 2020), as ForestColl's authors rebuilt it (dissertation,
    Sec. 4.6.2). The root can broadcast at the rate of the least of its maximum flows to the other
    ranks (Edmonds, 1973), and trees that attain this rate are packed exactly, where Blink
    approximates.
    All_reduce is a reduce to the root and a broadcast from it. The certificate says how long a byte
    takes on the link with most traffic of both. Pieces that follow closely take no longer, unless
    traffic up, which waits for nothing, crowds traffic down out of the switches that they share.

    Blink itself knows no switches. They are removed as ForestColl does, losing nothing
    ("Blink+Switch" in Fig. 4.10), or replaced by preset connections, as TACCL and TACOS do.

    Attributes:
        root: the root of an all_reduce; the fastest rank when None.
        degree: how switches are replaced: None to remove them exactly, otherwise every port is
            joined to the next ``degree`` ports (see ``jaxcoll.synth.building.switch_unwinding``).
        k: number of trees from the root; None for as many as the optimum needs, or, if that number
            does not divide the chunks, the fastest number up to 16 that does.
        pieces: the most messages for the load of each tree edge; None for one chunk per message.

    Raises:
        CollectiveError: a field is not a valid number.
    """

    root: int | None = None
    degree: int | None = None
    k: int | None = None
    pieces: int | None = None

    name: ClassVar[str] = "blink"
    orders_links: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"broadcast", "all_reduce"})

    def __post_init__(self) -> None:
        checks.integer_fields(self, CollectiveError, "root", least=0, or_none=True)
        checks.integer_fields(self, CollectiveError, "degree", "k", "pieces", or_none=True)

    def granularity(self, topology: Topology) -> int:
        """A number of which the chunks per shard of an all_reduce should be a multiple."""
        network, _ = self._without_switches(topology)
        root = self._root_on(network)
        alone = [int(rank == root) for rank in range(network.num_ranks)]
        trees = (optimum(way, alone).k for way in (network, network.transpose()))
        needed = math.lcm(*trees) if self.k is None else self.k
        return needed // math.gcd(needed, network.num_ranks)

    def chunk_counts(self, problem: Problem) -> tuple[Counts, ...]:
        """Multiples of the number of trees from the root, if finding the root is little work."""
        is_much = _work_of_roots(problem.topology) > _MOST_ROOTS
        if problem.collective.kind not in self.kinds or is_much:
            return ONE_CHUNK
        k = self.granularity(problem.topology)
        return (tuple(k * pieces for pieces in DOUBLINGS),)

    def work(self, problem: Problem) -> float:
        """The work of finding the root and making the sends."""
        return _work_of_roots(problem.topology) + problem.sends

    def solve(self, topology: Topology, collective: Collective, seed: int) -> Schedule:
        """A schedule; see ``Synthesizer``.

        Raises:
            CollectiveError: there is not one group of all ranks, or the root is not a rank.
            TopologyError: switches to remove exactly have more bandwidth in than out.
        """
        n = topology.num_ranks
        (group, *others) = collective.groups
        if others or len(group) < n:
            raise CollectiveError(
                f"blink is defined for one group of all {n} ranks, not for {collective}"
            )
        network, unwound = self._without_switches(topology)
        if unwound is None:
            return self._on(network, collective, 1)
        found = self._on(network, collective, int(unwound.edges.hops.max()))
        link = found.edges.first_link[found.edge]
        on_links = dataclasses.replace(found, edges=Edges.from_links(network), edge=link)
        return unwound.carry(on_links, topology).with_provenance(found.provenance)

    def _without_switches(self, topology: Topology) -> tuple[Topology, Unwound | None]:
        """The network on which trees are packed, and how its links are preset on the real one."""
        if self.degree is None or topology.is_direct:
            return topology, None
        unwound = unwind(topology, self.degree)
        return unwound.topology, unwound

    def _on(self, topology: Topology, collective: Collective, hops: int) -> Schedule:
        """A schedule on a network whose links stand for up to ``hops`` real links."""
        if collective.traits.copies:
            root = collective.root_of(collective.groups[0])
            return self._broadcast(topology, root, collective, hops)
        # An all_reduce goes through one root: reversed trees bring the sums to it, and trees bring
        # the result back.
        root = self._root_on(topology)
        simple = Collective(
            "broadcast", topology.num_ranks, collective.num_chunks, collective.groups,
            collective.groups[0].index(root),
        )  # fmt: skip
        down = self._broadcast(topology, root, simple, hops)
        # Sums flow over the reversed links, so they need separate trees if links differ by
        # direction.
        back = topology.transpose()
        is_same = back.has_links_of(topology)
        up = (down if is_same else self._broadcast(back, root, simple, hops)).reverse()
        return _one_after_another(up, down, collective)

    def _broadcast(
        self, topology: Topology, root: int, collective: Collective, hops: int
    ) -> Schedule:
        """The pieces of all trees, one after another, each with consecutive chunks."""
        weights = tuple(int(rank == root) for rank in range(topology.num_ranks))
        rates = rates_for_chunks(topology, weights, collective.num_chunks, self.k)
        flow = known_forest(rates)
        pieces = collective.num_chunks if self.pieces is None else self.pieces
        found = flow.to_schedule(pieces, order="steps", collective=collective)
        # Through switches, the last arrivals of one step would delay the next.
        entered = np.zeros(collective.num_chunks, np.int64)
        entered[found.chunk[::-1]] = found.step[::-1]
        sent = entered[found.chunk]
        return Schedule.from_sends(
            topology,
            collective,
            sent + hops * int(found.edges.hops.max()) * (found.step - sent),
            found.edge,
            _dealt(flow, collective.num_chunks)[found.chunk],
            edges=found.edges,
            provenance=Provenance(certificate={"root": root, **found.provenance.certificate}),
        )

    def _root_on(self, topology: Topology) -> int:
        """The given root, or the fastest one."""
        if self.root is not None:
            if self.root < topology.num_ranks:
                return self.root
            raise CollectiveError(
                f"root {self.root} is not a rank; ranks are 0..{topology.num_ranks - 1}"
            )
        check_balanced(topology)
        return _fastest_root(topology)


@functools.lru_cache(maxsize=16)
def _fastest_root(topology: Topology) -> int:
    """The first root to and from which a byte takes the least time.

    A cut that limits one root limits every rank on the root's side of it, so few flows decide for
    all ranks. Results are cached, since every number of chunks asks about the same network.
    """
    n, back = topology.num_ranks, topology.transpose()
    ways = (topology,) if back.has_links_of(topology) else (topology, back)
    least = np.full((len(ways), n), Fraction(0), object)
    best, fastest = None, 0
    for root in range(n):
        # A cut found for an earlier root also limits this one, so no flow is needed.
        if best is not None and sum(least[:, root]) >= best:
            continue
        alone = [int(rank == root) for rank in range(n)]
        found = [bottleneck(way, alone) for way in ways]
        for row, worst in zip(least, found, strict=True):
            held = list(worst.cut_ranks)
            row[held] = np.maximum(row[held], worst.inverse)
        seconds = sum(worst.inverse for worst in found)
        if best is None or seconds < best:
            best, fastest = seconds, root
    return fastest


def _dealt(flow: TreeFlow, chunks: int) -> np.ndarray:
    """Renumber chunks from tree by tree to piece by piece, dealt to the trees in turn."""
    # The first pieces of all trees are consecutive, then the second ones: so a run of the buffer is
    # ready at a time.
    share = flow.weight // (flow.k // flow.granularity)
    first = np.cumsum(share) - share
    tree = np.repeat(np.arange(len(share)), share * (chunks // flow.granularity))
    place = np.arange(chunks) - first[tree] * (chunks // flow.granularity)
    return place // share[tree] * flow.granularity + first[tree] + place % share[tree]


def _one_after_another(up: Schedule, down: Schedule, collective: Collective) -> Schedule:
    """Sums up the trees and results down; every chunk goes down once it is summed completely.

    In a reversed schedule the last chunks come first, so chunks are renumbered in reverse.
    """
    topology = up.topology
    rising = collective.num_chunks - 1 - up.chunk
    # The steps when all of a chunk has come up, and when it first goes down. Assigning backwards
    # keeps the first of several.
    risen, first = np.zeros((2, collective.num_chunks), np.int64)
    np.maximum.at(risen, rising, up.step)
    first[down.chunk[::-1]] = down.step[::-1]
    # The phases overlap: the second lags behind the first by the fewest steps with which no chunk
    # leaves the root before it is summed.
    wait = int((risen - first).max()) + 1
    ends = np.concatenate([up.edges.path_ptr, up.edges.path_ptr[-1] + down.edges.path_ptr[1:]])
    paths = np.concatenate([up.edges.path_link, down.edges.path_link])
    edges, image = distinct_edges(topology, ends, paths)
    both = Schedule.from_sends(
        topology,
        collective,
        np.concatenate([up.step, down.step + wait]),
        image[np.concatenate([up.edge, down.edge + len(up.edges)])],
        np.concatenate([rising, down.chunk]),
        np.concatenate([up.reduce, down.reduce]),
        edges=edges,
    )
    certificate = {
        "seconds per byte": str(steady_seconds(both)),
        "reduce": up.provenance.certificate,
        "broadcast": down.provenance.certificate,
    }
    return both.with_provenance(Provenance(certificate=certificate))


def _work_of_roots(topology: Topology) -> float:
    """The work of a maximum flow from every rank, to find the root with the fastest trees."""
    return 6.0 * topology.num_ranks * topology.num_links
