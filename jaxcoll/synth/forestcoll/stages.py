"""Steps 1 to 4: from the optimum to trees of that throughput, counted before they are given.

1. The optimum says how fast any schedule can be, and the fewest trees per rank that are as fast
   (Sec. 4.5.1). Where the chunks of a collective cannot be shared out to so many, as few as divide
   them are taken, and the links are scaled to be the fastest that so few trees can use
   (Sec. 4.5.5). A ring of 3 ranks with links both ways needs 2 trees per rank: with 1, one of its
   links would idle. Both ways make the same frozen ``Rates``.
2. Switches are removed, so that links join ranks only (``edge_splitting``, Sec. 4.5.2).
3. Spanning trees are packed into what is left (``tree_packing``, Sec. 4.5.3), and
4. made low, the loads of links being shared out evenly among roots (``balancing``).
Each tree edge then gets its path through the switches back (``assemble``).

Networks of a known form have shorter ways to such trees: all roots' trees are those of rank 0 moved
(tori), those of one host joined (rails), or those of hosts that are entered once. They are tried in
that order, in ``_structured`` alone, and their trees are counted like the rest, so that a network
that only resembles the form costs time and never throughput.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.bounds.throughput import (
    Optimum,
    Scaling,
    fastest,
    fixed_k,
    known_optimum,
    known_scaling,
    optimum,
)
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import Edges
from jaxcoll.synth.forestcoll.edge_splitting import Logical, PathCapacity, remove_switches
from jaxcoll.synth.forestcoll.host_trees import packed_by_hosts
from jaxcoll.synth.forestcoll.rail_trees import moved_trees, packed_on_rails
from jaxcoll.synth.forestcoll.spanning import Trees
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Packing takes about a microsecond times the square of the ranks times the vertices.
_PACKED_FAST = 128**3
# Ranks up to which networks are packed whole, which keeps trees lower than hosts packed apart do.
_SMALL = 64
# Trees per rank that are tried where the chunks per shard do not fit the optimum's (Sec. 4.5.5).
_SCAN = 16

Weights = tuple[Number, ...] | None


@dataclasses.dataclass(frozen=True)
class Rates:
    """A network, and the data that each link may carry.

    Attributes:
        topology: the network.
        best: how fast anything could be, and the cut that proves it.
        scaling: trees per rank, and trees that each link can carry.
        is_exact: whether some link carries as many trees as ``scaling.U`` allows, as at the
            optimum; links that were trimmed for a fixed k may turn out to be needed less than that.
    """

    topology: Topology
    best: Optimum
    scaling: Scaling
    is_exact: bool = True


def rates_for_chunks(
    topology: Topology, weights: Weights, chunks: int, k: int | None = None
) -> Rates:
    """The fastest number of trees that divides the chunks, or k.

    The optimum's own where it divides them, otherwise the fastest of up to 16 (Sec. 4.5.5).

    Args:
        weights: size of each rank's shard relative to the others; equal when None.
        chunks: chunks per shard of weight 1.

    Raises:
        CollectiveError: k does not divide the chunks.
    """
    best = known_optimum(topology, weights)
    # A tree is a whole number of chunks, so the chunks of a shard must be a multiple of the trees
    # per rank. The optimum's own number of trees loses nothing; any other rounds what a link can
    # carry down to whole trees (Theorem 34), at most 1/(k min b) seconds per byte (Theorem 35).
    if k is None and chunks % best.k == 0:
        return Rates(topology, best, best.scaling)
    if k is None:
        numbers = [d for d in range(1, _SCAN + 1) if chunks % d == 0]
        return Rates(topology, best, fastest(topology, best, numbers), is_exact=False)
    if chunks % k:
        raise CollectiveError(
            f"k={k} trees per rank need a multiple of {k} chunks per shard, got {chunks}"
        )
    return Rates(topology, best, known_scaling(topology, best, k), is_exact=False)


def numbers_of_trees(topology: Topology, root: int | None = None) -> tuple[int, ...]:
    """Trees per rank of an all_gather: the fastest number of up to 16, then the optimum's own.

    Args:
        root: of a broadcast, to whose trees the numbers then apply.
    """
    ranks = range(topology.num_ranks)
    weights = None if root is None else tuple(int(rank == root) for rank in ranks)
    best = known_optimum(topology, weights)
    if best.k <= _SCAN:
        return (best.k,)
    return fastest(topology, best, range(1, _SCAN + 1)).k, best.k


def forest(
    topology: Topology,
    weights: Sequence[Number] | None = None,
    *,
    k: int | None = None,
    guess: bool = True,
    fast: bool = False,
) -> TreeFlow:
    """Trees of optimal throughput (dissertation, Sec. 4.5).

    Args:
        weights: size of each rank's shard relative to the others; equal when omitted, a single 1
            among zeros for a broadcast.
        k: trees per rank; as many as the optimum needs when omitted, otherwise the fastest that k
            trees can be (Theorem 34).
        guess: whether structured guesses may be tried before the exact way. Each counts only once
            verified, so that the throughput is the same.
        fast: whether to refuse to pack what takes more than some seconds: more than 128 ranks, or
            fewer with switches, unless a guess makes do with less.

    Raises:
        TopologyError: as ``optimum`` and ``fixed_k``; numbers of trees beyond 2**61; see ``fast``.
    """
    best = optimum(topology, weights)
    if k is None:
        return forest_at(Rates(topology, best, best.scaling), guess, fast)
    scaling = fixed_k(topology, k, weights, best=best)
    return forest_at(Rates(topology, best, scaling, is_exact=False), guess, fast)


def forest_at(rates: Rates, guess: bool = True, fast: bool = False) -> TreeFlow:
    """``forest`` where the rates are known: by a known form of networks, or the general way."""
    # Known forms first: each takes seconds where the general way takes minutes, and none is
    # believed. ``_counted`` adds up every link of every tree, so that a wrong guess costs time
    # alone.
    if guess:
        for flow in _structured(rates.topology, rates.scaling, fast):
            try:
                return _counted(flow)
            except ScheduleError:  # the network only resembled this form
                continue
    flow = packed(rates.topology, rates.scaling, guess=guess, fast=fast)
    # For a fixed k links were trimmed to whole trees, and trees that are packed may then need the
    # links even less: the flow is as slow as its fullest link, not as the scale that was promised.
    if not rates.is_exact:
        flow = dataclasses.replace(flow, inverse=flow.slowest_link())
    return _counted(flow)


@functools.lru_cache(maxsize=4)
def known_forest(rates: Rates, guess: bool = True, fast: bool = False) -> TreeFlow:
    """``forest_at``, found once for every number of chunks of a network.

    The certificate also says how fast the trees are and how fast any could be.
    """
    flow = forest_at(rates, guess, fast)
    claims = {
        "seconds per byte of shard": str(flow.inverse),
        "optimum": str(rates.best.inverse),
        "cut": str(rates.best),
        "k": flow.k,
        "height": flow.height,
        "mean height": flow.mean_height,
    }
    return dataclasses.replace(flow, certificate={**claims, **flow.certificate})


def _counted(flow: TreeFlow) -> TreeFlow:
    """The trees, checked link by link, with the throughput that was found.

    Raises:
        ScheduleError: they are no such trees.
    """
    said = (
        f"{flow.num_trees} different trees that span all ranks, those of every rank as many as "
        f"its shard asks for, no link over its bandwidth at {flow.check_load()} s per byte of shard"
    )
    return dataclasses.replace(flow, certificate={**flow.certificate, "counted": said})


def _structured(topology: Topology, scaling: Scaling, fast: bool) -> Iterator[TreeFlow]:
    """Trees by the known forms of networks, where this is one; not yet checked.

    Parts of networks of hosts are packed the general way, hosts of hosts as such.
    """
    pack = functools.partial(packed, guess=True, fast=fast)

    # A host may hold hosts (a rack of servers, say): its trees are those of a network again, so the
    # same form is tried inside it before the general way.
    def pack_host(part: Topology, needed: Scaling) -> TreeFlow:
        found = next(packed_by_hosts(part, needed, pack_host), None)
        return pack(part, needed) if found is None else found

    moved = moved_trees(topology, scaling)
    if moved is not None:
        yield moved
    yield from packed_on_rails(topology, scaling, pack)
    # Trees that are joined from hosts have the height of both parts together. Up to this size the
    # whole network is packed within seconds, and lower.
    if topology.num_ranks > _SMALL:
        yield from packed_by_hosts(topology, scaling, pack_host)


def packed(topology: Topology, scaling: Scaling, *, guess: bool, fast: bool) -> TreeFlow:
    """Steps 2 to 4 on any network; a single rank has trees without edges."""
    n, vertices = topology.num_ranks, topology.num_vertices
    if n == 1:
        return _of_one_rank(topology, scaling)
    if fast and n * n * vertices > _PACKED_FAST:
        raise TopologyError(
            "forestcoll packs trees in seconds on up to 128 ranks, or fewer with switches; "
            f"{topology} has {n} and {vertices - n} switches; fast=False takes the time"
        )
    # Edge splitting keeps what every rank can receive from all roots (Theorem 25), so trees of the
    # same rate exist between ranks alone; each of their edges is a path in the network, which
    # ``assemble`` gives back.
    logical = remove_switches(topology, scaling, guess=guess)  # step 2
    trees = pack_trees(topology.num_ranks, logical.capacity(), scaling.trees)  # steps 3 and 4
    return assemble(topology, scaling, logical, trees)


def _of_one_rank(topology: Topology, scaling: Scaling) -> TreeFlow:
    nothing = np.zeros(0, np.int64)
    edges = Edges(nothing, nothing, np.zeros(1, np.int64), nothing)
    return TreeFlow(
        topology, scaling.k, scaling.trees, np.zeros(1, int), np.asarray(scaling.trees), edges,
        np.zeros(2, int), nothing, scaling.inverse,
    )  # fmt: skip


def assemble(topology: Topology, scaling: Scaling, logical: Logical, trees: Trees) -> TreeFlow:
    """Give every tree edge one path through the switches.

    A batch of like trees whose edges run over several paths is cut where one of them ends, which
    leaves batches whose edges have one path each.
    """
    if all(len(paths) == 1 for paths in logical.paths.values()):
        return _assembled_at_once(topology, scaling, logical, trees)
    left = {
        pair: [PathCapacity(p.path, p.amount) for p in ps] for pair, ps in logical.paths.items()
    }
    number: dict[tuple[int, ...], int] = {}
    root, weight, edge = [], [], []
    for i in range(len(trees.root)):
        pairs = list(zip(trees.parent[i, 1:].tolist(), trees.vertex[i, 1:].tolist(), strict=True))
        rest = int(trees.weight[i])
        while rest:
            # The paths of a pair carry equally much for it in any order: the last one is taken
            # until it is full, which keeps the number of different trees low.
            taken = [left[pair][-1] for pair in pairs]
            like = min(rest, min(part.amount for part in taken))
            root.append(int(trees.root[i]))
            weight.append(like)
            edge += [number.setdefault(part.path, len(number)) for part in taken]
            for pair, part in zip(pairs, taken, strict=True):
                part.amount -= like
                if not part.amount:
                    left[pair].pop()
            rest -= like
    return TreeFlow(
        topology,
        scaling.k,
        scaling.trees,
        np.asarray(root),
        np.asarray(weight),
        edges_of(topology, list(number)),
        np.arange(len(root) + 1) * (topology.num_ranks - 1),
        np.asarray(edge),
        scaling.inverse,
        {"trees": "packed", "switches": ", ".join(logical.how) or "none"},
    )


def _assembled_at_once(
    topology: Topology, scaling: Scaling, logical: Logical, trees: Trees
) -> TreeFlow:
    """``assemble`` where every pair of ranks has one path."""
    n, count = topology.num_ranks, len(trees.root)
    number = np.full((n, n), -1, np.int32)
    for i, (u, v) in enumerate(logical.paths):
        number[u, v] = i
    return TreeFlow(
        topology,
        scaling.k,
        scaling.trees,
        trees.root,
        trees.weight,
        edges_of(topology, [paths[0].path for paths in logical.paths.values()]),
        np.arange(count + 1) * (n - 1),
        number[trees.parent[:, 1:], trees.vertex[:, 1:]].ravel(),
        scaling.inverse,
        {"trees": "packed", "switches": ", ".join(logical.how) or "none"},
    )


def edges_of(topology: Topology, paths: Sequence[tuple[int, ...]]) -> Edges:
    """One edge for each path."""
    lengths = [len(path) for path in paths]
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    links = np.asarray([link for path in paths for link in path], np.int64)
    return Edges(topology.src[links[ptr[:-1]]], topology.dst[links[ptr[1:] - 1]], ptr, links)
