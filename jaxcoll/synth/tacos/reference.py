"""TACOS as the paper prints it, in plain Python: the file to read first (Won et al., Sec. IV).

``matched`` is Algorithm 2, and ``_match`` Algorithm 1. In a span of time every idle link is matched
with a chunk that its source has and its end lacks, for as long as there are such pairs; the next
span begins when a chunk arrives. Where all links cost the same all chunks of a span arrive
together, and spans are steps. Where they do not (Sec. IV-F) a link stays busy until its chunk is
there, and the links of least cost are matched first.

The paper's ``precond[d][c]`` are the chunks ``has[d]`` and ``comes[d]``: a chunk that is on its way
need not be sent again, and cannot be passed on yet.

Two ranks with a link each way exchange their chunks in the first span, and no rank lacks anything.

``Tacos`` finds schedules of the same kind by kernels on words of bits (``search``), with further
rules for the chunk that a link takes; tests compare both.
"""

from __future__ import annotations

import heapq
import random
from fractions import Fraction

import numpy as np

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics import checks
from jaxcoll.numerics.rational import Number
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology


def matched(
    topology: Topology, collective: Collective, seed: int = 0, nbytes: Number = 2**26
) -> Schedule:
    """A schedule of one attempt (Algorithm 2); sends that start together are a step.

    Args:
        topology: without switches.
        collective: an all_gather or broadcast among all ranks.
        nbytes: bytes of a rank's buffer, for which links are priced.

    Raises:
        CollectiveError: another kind, or ranks that take no part and would have to pass chunks on.
        TopologyError: switches.
    """
    seed = checks.seed(seed, CollectiveError)
    if not collective.traits.copies or len(collective.groups[0]) < collective.num_ranks:
        raise CollectiveError(f"Algorithm 1 copies chunks among all ranks, got {collective}")
    if not topology.is_direct:
        raise TopologyError(f"Algorithm 1 needs links between ranks, {topology} has switches")
    cost = _costs(topology, collective, nbytes)
    chance = random.Random(seed)
    has = [set(np.flatnonzero(held).tolist()) for held in collective.precondition()]
    wants = [set(np.flatnonzero(wanted).tolist()) for wanted in collective.postcondition()]
    comes: list[set[int]] = [set() for _ in has]
    idle, arrivals, sends, now = set(range(topology.num_links)), [], [], Fraction(0)
    while any(want - held for want, held in zip(wants, has, strict=True)):
        lacking = [(d, c) for d, want in enumerate(wants) for c in sorted(want - has[d] - comes[d])]
        for link, c in _match(topology, lacking, has, idle, cost, chance):
            comes[topology.dst[link]].add(c)
            idle.remove(link)
            heapq.heappush(arrivals, (now + cost[link][c], link, c))
            sends.append((now, link, c))
        # "Expand TEN by 1 time span": up to the next arrival, and all others of that moment.
        now = arrivals[0][0]
        while arrivals and arrivals[0][0] == now:
            _, link, c = heapq.heappop(arrivals)
            has[topology.dst[link]].add(c)
            idle.add(link)
    starts = sorted({start for start, _, _ in sends})
    step = [starts.index(start) for start, _, _ in sends]
    link, chunk = [link for _, link, _ in sends], [c for _, _, c in sends]
    return Schedule.from_sends(topology, collective, step, link, chunk)


def _match(
    topology: Topology,
    lacking: list[tuple[int, int]],
    has: list[set[int]],
    idle: set[int],
    cost: list[tuple[Fraction, ...]],
    chance: random.Random,
) -> list[tuple[int, int]]:
    """Links, and the chunk that each carries, until none can carry what its end lacks: Algorithm 1.

    Args:
        lacking: the unsatisfied postconditions, a rank and a chunk that is not on its way there.
    """
    ptr, incoming = topology.in_links
    free, matches = set(idle), []
    chance.shuffle(lacking)  # "random_shuffle(unsatisfied_postcond)"
    for d, c in lacking:
        # "s: backtrack(TEN[t][*][d])", and of these the candidates: those that have the chunk.
        into = incoming[ptr[d] : ptr[d + 1]].tolist()
        candidates = [link for link in into if link in free and c in has[topology.src[link]]]
        if candidates:
            least = min(cost[link][c] for link in candidates)  # Sec. IV-F
            link = chance.choice([link for link in candidates if cost[link][c] == least])
            free.remove(link)
            matches.append((link, c))
    return matches


def _costs(
    topology: Topology, collective: Collective, nbytes: Number
) -> list[tuple[Fraction, ...]]:
    """Seconds of every chunk on every link: alpha + bytes / bandwidth (Sec. IV-F)."""
    sizes = collective.chunk_bytes(nbytes)
    return [
        tuple(alpha + size / bandwidth for size in sizes)
        for alpha, bandwidth in zip(topology.exact_alpha, topology.exact_bandwidth, strict=True)
    ]
