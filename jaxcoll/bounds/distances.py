"""Bounds by distances: how long the links take for data that goes from rank to rank.

Any lengths of the links give a bound: bytes times distance, over the capacity of the links. For
example, on a one-way ring of 3 ranks, an all_to_all with a byte per pair crosses 1 + 2 links from
every rank, 9 in all; the 3 links share these crossings, so one link carries at least 3 bytes.

Good lengths show the narrow links. The best lengths are the dual variables of a linear program, for
the least time in which all data flow to where they are needed (Shahrokhi and Matula, 1990). If it
is small, it is solved. Otherwise the lengths climb: links that shortest paths load for longer than
others become longer. Any resulting lengths prove their bound.

Two quantities from papers also build on distances, but do not bound the time: the fewest steps on a
direct network (``step_bound``), and TACOS's ``ideal``, which a schedule can beat by sending while
other data are on their way.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxcoll.bounds.cuts import as_collective, as_size, needs_of
from jaxcoll.bounds.needs import Needs
from jaxcoll.bounds.symmetries import Symmetries
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.numerics.program import Program
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import (
    distances_from,
    exact_latency,
    hop_distances,
    latency_distances,
    least_distances,
)
from jaxcoll.topology import Topology

# The most flows (sources times links) for which the program is solved: a tenth of a second.
FLOWS = 2**12
# The most work of the climb, in sources times links times steps, and its most steps.
_CLIMB, _STEPS = 2**20, 64
# A step aims above the best so far by the fraction _AIM, times _LESS after _PATIENCE steps that
# each gained less than _LITTLE.
_AIM, _LESS, _PATIENCE, _LITTLE = 0.3, 0.6, 5, 0.002
# The part of the last step's direction that is kept in the next, and the least length of a link as
# a share.
_KEPT, _SHORTEST = 0.6, 1e-6
_EVEN = 1e-12
# The most choices of lengths that are examined; most networks have fewer bandwidths.
_MOST_LENGTHS = 8


class Transport(NamedTuple):
    """A time that no schedule can beat.

    Attributes:
        time: the time in seconds.
        lengths: the lengths of links that prove it, in words.
    """

    time: float
    lengths: str


def transport_bound(
    topology: Topology,
    needs: Needs,
    rest: np.ndarray,
    flows: int = FLOWS,
    symmetries: Symmetries | None = None,
) -> Transport:
    """The best bound of ``lengths_of``: bytes times distance, over the capacity of the links.

    Give every link l a length w_l of at least 0, and let d(u, v) be the least sum of lengths along
    a path from u to v. The bytes that go from u to v cross links whose lengths sum to d(u, v) or
    more, on every route and however they are split. So the bytes x_l that cross each link satisfy

        sum over pairs of bytes(u, v) d(u, v)  <=  sum over links of w_l x_l.

    A link of bandwidth b_l that is done r_l before the end at the latest carries x_l <= b_l (T -
    r_l) in a time of T. Together, T is at least

        (sum of bytes(u, v) d(u, v) + sum of w_l b_l r_l) / sum of w_l b_l.

    This is weak duality of the linear program of concurrent flows (Shahrokhi and Matula, "The
    maximum concurrent flow problem", 1990), whose optimum some lengths attain. Data copied on its
    way needs less, so the bound holds only if every rank needs different data.

    Args:
        needs: bytes that go from rank to rank.
        rest: seconds before the end by which each link must be done, at least 0, and at most some
            time that no schedule can beat; float64 of shape (links,).
        flows: the most work to spend on the lengths, see ``narrow_links``.
        symmetries: symmetries that the bytes have, too; only one of equivalent ranks is examined.
    """
    best = Transport(0.0, "")
    for lengths, name in lengths_of(topology, needs, flows):
        work = _work(topology, needs, lengths, symmetries)
        capacity = lengths * topology.bandwidth
        if capacity.sum() > 0:
            time = (work + float((capacity * rest).sum())) / float(capacity.sum())
            best = max(best, Transport(time, name))
    return best


def _work(
    topology: Topology, needs: Needs, lengths: np.ndarray, symmetries: Symmetries | None
) -> float:
    """The sum of all bytes times their distances."""
    n = topology.num_ranks
    everyone = np.arange(n)
    if symmetries is None:
        distances, nbytes = least_distances(topology, lengths), needs.block(everyone, everyone)
        return float((nbytes[nbytes > 0] * distances[nbytes > 0]).sum())
    if len(needs.targets) < len(needs.sources):  # fewer rows of distances on the reversed network
        mirrored = np.empty_like(lengths)
        mirrored[topology.transpose_links()] = lengths
        return _work(topology.transpose(), needs.reversed(), mirrored, symmetries)
    sources, count = needs.sources, np.ones(1)
    if symmetries.keep(topology, lengths):
        sources, count = np.unique(symmetries.first[sources], return_counts=True)
    nbytes = needs.block(sources, everyone)
    distances = distances_from(topology, lengths, sources)[:, :n]
    each = np.where(nbytes > 0, nbytes * distances, 0.0).sum(axis=1)
    return float((each * count).sum())


def lengths_of(topology: Topology, needs: Needs, flows: int) -> Iterator[tuple[np.ndarray, str]]:
    """Lengths of links that give good bounds, float64 of shape (links,), each with its name.

    They are 1 for every link, so that distances are hops; seconds per byte, so that slow links are
    long; 1 for the links up to some bandwidth and 0 for faster ones, so that only slow links count;
    1 for the links along a dimension of a grid, so that only its longest side counts; and, if
    several ranks send to several, those of ``narrow_links``.
    """
    ones = np.ones(topology.num_links)
    yield ones, "links"
    if min(len(needs.sources), len(needs.targets)) > 1:
        narrow = narrow_links(topology, needs, flows)
        if narrow is not None:
            yield narrow, "lengths of the narrow links"
        yield from _along_dimensions(topology)
    speeds = np.unique(topology.bandwidth)
    if len(speeds) < 2:
        return
    yield speeds[0] / topology.bandwidth, "seconds per byte"
    for most in speeds[:-1][: _MOST_LENGTHS - 2]:
        yield ones * (topology.bandwidth <= most), f"links of up to {most:g} B/s"


def _along_dimensions(topology: Topology) -> Iterator[tuple[np.ndarray, str]]:
    """Lengths of 1 along one dimension, for each dimension of a grid with unequal sides.

    Without some links or ranks it is not a grid any more, but its sides bound it as well.
    """
    placement, number = topology.placement, np.arange(topology.num_vertices)
    if placement is None:
        placement, number = topology.whole.placement, topology.whole_vertices
    if placement is None or not topology.is_direct:
        return
    grid = placement.grid
    if len({side for side in grid.shape if side > 1}) < 2:
        return
    at = np.empty_like(grid.coordinates())
    at[np.asarray(placement.ranks)] = grid.coordinates()
    for dim, side in enumerate(grid.shape):
        if side > 1:
            lengths = at[number[topology.src], dim] != at[number[topology.dst], dim]
            yield lengths.astype(float), f"links along the dimension of {side}"


def narrow_links(topology: Topology, needs: Needs, flows: int = FLOWS) -> np.ndarray | None:
    """Lengths of the links, float64 of shape (links,); None if they take too much work.

    Args:
        needs: bytes that go from rank to rank.
        flows: the most sources times links for which the program is solved.
    """
    size = len(needs.sources) * topology.num_links
    steps = min(_STEPS, _CLIMB // size)
    if size > flows and steps <= 1:
        return None
    everyone = np.arange(topology.num_ranks)
    nbytes = needs.block(everyone, everyone)
    return _solved(topology, nbytes) if size <= flows else _climbed(topology, nbytes, steps)


def _solved(topology: Topology, nbytes: np.ndarray) -> np.ndarray | None:
    """The dual variables of the program: minimize T, a flow of each source on each link."""
    sources = np.flatnonzero((nbytes > 0).any(axis=1))
    count, vertices, links = len(sources), topology.num_vertices, topology.num_links
    # Solvers work best with numbers near 1.
    room = np.maximum(topology.bandwidth / np.median(topology.bandwidth), 1e-9)
    need = np.zeros((count, vertices))
    need[:, : topology.num_ranks] = nbytes[sources] / nbytes[sources].sum(axis=1).max()
    need[np.arange(count), sources] = -np.inf
    flow = np.arange(count * links)
    source, link = flow // links, flow % links
    into = links + source * vertices + topology.dst[link]
    out = links + source * vertices + topology.src[link]
    rows = np.concatenate([link, into, out, np.arange(links)])
    columns = np.concatenate([flow, flow, flow, np.full(links, len(flow))])
    ones = np.ones(len(flow))
    matrix = sp.coo_matrix(
        (np.concatenate([ones, ones, -ones, -room]), (rows, columns)),
        (links + count * vertices, len(flow) + 1),
    )
    low = np.concatenate([np.full(links, -np.inf), need.ravel()])
    high = np.concatenate([np.zeros(links), np.full(count * vertices, np.inf)])
    program = Program()
    program.add_variables(len(flow))
    program.add_variable(cost=1.0)
    program.add_rows(matrix, low, high)
    try:
        dual = program.minimize().optimal().duals
    except RuntimeError:  # the solver gives up on very unequal links: use other lengths
        return None
    # Floats may be just below 0, which lengths may not be. Any lengths give a bound, so rounding up
    # is valid.
    return np.maximum(-dual[:links], 0.0)


def _climbed(topology: Topology, nbytes: np.ndarray, steps: int) -> np.ndarray:
    """Lengths by a subgradient method with the steps of Polyak ("Introduction to optimization",
    1987): towards links that the shortest paths load for longer than the bound.
    """
    room = topology.bandwidth / topology.bandwidth.max()
    demand = nbytes / nbytes.sum()
    lengths = 1 / room / topology.num_links
    best, found, aim, idle = 0.0, lengths, _AIM, 0
    direction = np.zeros_like(lengths)
    for _ in range(steps):
        load = _loads(topology, lengths, demand)
        time = float(load @ lengths)  # the lengths of all room add up to 1
        idle = 0 if time > best * (1 + _LITTLE) else idle + 1
        if time > best:
            best, found = time, lengths
        if idle > _PATIENCE:
            # Without gain for a while, no lengths reach the aim: return to the best ones, with a
            # lower aim.
            lengths, aim, idle = found, aim * _LESS, 0
        uneven = load - time * room
        # If every link is loaded for equally long, apart from rounding, no lengths are better, and
        # a step along the rounding errors would never end.
        if np.abs(uneven).max() <= _EVEN * load.max():
            break
        direction = uneven + _KEPT * direction
        norm = float(direction @ direction)
        if norm == 0:
            break
        lengths = lengths + (best * (1 + aim) - time) / norm * direction
        # With unequal data most links may fall below 0, and so may the mean of all.
        lengths = np.maximum(lengths, 0.0)
        lengths = np.maximum(lengths, _SHORTEST * lengths.mean())
        lengths = lengths / float(lengths @ room)
    return found


def _loads(topology: Topology, lengths: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """The load of each link if all data take shortest paths, float64 of shape (links,)."""
    n, vertices = topology.num_ranks, topology.num_vertices
    order = np.lexsort((lengths, topology.dst, topology.src))
    pair = topology.src[order].astype(np.int64) * vertices + topology.dst[order]
    shortest = order[np.append(True, pair[1:] != pair[:-1])]
    ends = topology.src[shortest], topology.dst[shortest]
    graph = sp.csr_matrix((lengths[shortest], ends), shape=(vertices, vertices))
    apart, before = sp.csgraph.dijkstra(graph, indices=np.arange(n), return_predecessors=True)
    link_of = sp.csr_matrix((shortest + 1, ends), shape=(vertices, vertices)).toarray()
    carried = np.zeros((n, vertices))
    carried[:, :n] = demand
    load, source = np.zeros(topology.num_links + 1), np.arange(n)
    # From the farthest vertex of each source inwards, so that a vertex has all data that it passes
    # on.
    for vertex in np.argsort(-apart, axis=1, kind="stable").T:
        parent = before[source, vertex]
        moved = np.where(parent >= 0, carried[source, vertex], 0.0)
        parent = np.maximum(parent, 0)
        carried[source, parent] += moved
        load += np.bincount(link_of[parent, vertex], weights=moved, minlength=len(load))
    return load[1:]


def step_bound(topology: Topology, collective: str | Collective) -> int:
    """Steps that no schedule with one chunk per link and step can beat, on a direct network.

    For every rank v and distance t, the chunks that v wants from ranks at least t links away arrive
    in step t at the earliest, and from then on at most one per link into v and step.

    Raises:
        TopologyError: the network has switches.
        CollectiveError: the collective sums; its dual needs as many steps on the transposed network
            (twice an all_gather's for all_reduce run as two phases).
    """
    what = as_collective(topology, collective)
    if not topology.is_direct:
        raise TopologyError(f"steps are counted on direct networks; {topology} has switches")
    if what.is_reducing:
        raise CollectiveError(f"count the steps of {what.dual().kind} on the transposed network")
    distances = hop_distances(topology)
    # The number of chunks that start at rank u and that rank v wants, at [u, v].
    chunks = np.zeros(distances.shape, np.int64)
    for chunk, u in enumerate(what.ends(what.traits.before)):
        chunks[u] += what.wants(np.arange(what.num_ranks), chunk)
    ports = np.bincount(topology.dst, minlength=topology.num_ranks)
    best = 0
    for v in range(topology.num_ranks):
        at = np.bincount(distances[:, v], weights=chunks[:, v]).astype(np.int64)
        at[0] = 0
        beyond = np.cumsum(at[::-1])[::-1]  # chunks from t links away or more
        for t in np.flatnonzero(beyond[1:]) + 1:
            best = max(best, int(t - 1 + -(-beyond[t] // max(ports[v], 1))))
    return best


def ideal(topology: Topology, collective: str | Collective, nbytes: Number) -> Fraction:
    """The TACOS paper's Ideal (Sec. V-A) in exact seconds, which is a heuristic, not a bound.

    It is the bytes that enter and leave a rank over the bandwidth of the slowest rank, plus the
    latency between the farthest two ranks: size x (n-1)/n / min BW + diameter, with 2(n-1)/n for
    all_reduce. A schedule can be slower than it (all_reduce pays the diameter twice) and, where the
    farthest ranks are not the slowest, faster.
    """
    what = as_collective(topology, collective).with_equal_shards("Ideal")
    size = as_size(nbytes)
    if what.traits.has_root:
        raise CollectiveError(f"Ideal is defined for collectives without a root, not {what.kind}")
    n = max(len(group) for group in what.groups)
    if n == 1:
        return Fraction(0)
    apart = np.where(needs_of(what) > 0, latency_distances(topology), -1.0)
    u, v = np.unravel_index(int(apart.argmax()), apart.shape)
    diameter = exact_latency(topology, int(u), int(v))
    into, out = np.full((2, topology.num_vertices), Fraction(0), object)
    np.add.at(into, topology.dst, topology.exact_bandwidth)
    np.add.at(out, topology.src, topology.exact_bandwidth)
    slowest = min(*into[: topology.num_ranks], *out[: topology.num_ranks])
    return size * what.busbw_factor() / slowest + diameter
