"""Steps 2 to 4: from what each link may carry to trees, in every way that makes them.

The general way removes switches (``edge_splitting``), packs spanning trees into what is left
(``tree_packing``), and gives each tree edge its path through the switches back (``assemble``: the
paper's routing, App. B.5.3, kept as paths). Networks of a known form have shorter ways to the same
``RoutedTrees``: all roots' trees are those of rank 0 moved (``moved_trees``), those of one host
joined (``rail_trees``), or those of hosts that are entered once (``host_trees``). They are tried in
that order, in ``_ways`` alone. What any of them makes becomes a ``TreeFlow`` in ``as_flow``, and
its trees are counted like the rest, so that a network that only resembles the form costs time and
never throughput.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.bounds.throughput import Optimum, Scaling, check_balanced, fixed_k, optimum
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.numerics.connectivity import FlowNetwork
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import Edges
from jaxcoll.synth.forestcoll.edge_splitting import Logical, Path, PathCapacity, remove_switches
from jaxcoll.synth.forestcoll.host_trees import packed_by_hosts
from jaxcoll.synth.forestcoll.rail_trees import packed_on_rails
from jaxcoll.synth.forestcoll.spanning import MOST_EDGES, RoutedTrees, Trees
from jaxcoll.synth.forestcoll.tree_packing import pack_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Packing takes about a microsecond times the ranks, the vertices and the trees, of which at most as
# many batches as ranks are grown: 1.7 s of 128 trees from one root on eight hosts of 16 MI250, and
# 0.03 s of 8 trees on 16 DGX H100.
_PACKED_FAST = 128**3
# Ranks up to which networks are packed whole, which keeps trees lower than hosts packed apart do.
_SMALL = 64


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
            fewer with switches, unless a guess makes do with less or few trees have one root.

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
    # believed. ``counted`` adds up every link of every tree, so that a wrong guess costs time
    # alone.
    wrong: ScheduleError | None = None
    for trees in _ways(rates, guess, fast):
        try:
            return as_flow(rates.topology, rates.scaling, trees).counted()
        except ScheduleError as error:  # the network only resembled this form
            wrong = error
    raise ScheduleError(f"no trees that were found for {rates.topology} hold: {wrong}") from wrong


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


def _ways(rates: Rates, guess: bool, fast: bool) -> Iterator[RoutedTrees]:
    """Trees by the known forms of networks, where this is one, then the general way; not checked.

    Parts of networks of hosts are packed the general way, hosts of hosts as such.
    """
    topology, scaling = rates.topology, rates.scaling

    # The whole network was seen to be balanced with its optimum; a host without its links to the
    # others need not be, and its switches cannot be removed then (Theorem 26).
    def pack_part(part: Topology, needed: Scaling) -> RoutedTrees:
        if part.num_ranks > 1:
            check_balanced(part)
        return packed(part, needed, guess=guess, fast=fast)

    # A host may hold hosts (a rack of servers, say): its trees are those of a network again, so the
    # same form is tried inside it before the general way.
    def pack_host(part: Topology, needed: Scaling) -> RoutedTrees:
        found = next(packed_by_hosts(part, needed, pack_host), None)
        return pack_part(part, needed) if found is None else found

    if guess:
        moved = moved_trees(topology, scaling)
        if moved is not None:
            yield moved
        yield from packed_on_rails(topology, scaling, pack_part)
        # Trees that are joined from hosts have the height of both parts together. Up to this size
        # the whole network is packed within seconds, and lower.
        if topology.num_ranks > _SMALL:
            yield from packed_by_hosts(topology, scaling, pack_host)
    # For a fixed k links were trimmed to whole trees, and trees that are packed may then need the
    # links even less.
    trees = packed(topology, scaling, guess=guess, fast=fast)
    yield dataclasses.replace(trees, is_tight=rates.is_exact)


def packed(topology: Topology, scaling: Scaling, *, guess: bool, fast: bool) -> RoutedTrees:
    """Steps 2 to 4 on a balanced network; a single rank has trees without edges."""
    n, vertices = topology.num_ranks, topology.num_vertices
    if n == 1:
        root, nothing = np.zeros(1, np.int64), np.zeros(0, np.int64)
        return RoutedTrees(root, np.asarray(scaling.trees), nothing, root, nothing, "single rank")
    batches = min(sum(scaling.trees), n)
    if fast and batches * n * vertices > _PACKED_FAST:
        raise TopologyError(
            "forestcoll packs trees in seconds on up to 128 ranks, or fewer with switches, and a "
            f"few trees of one root on more; {topology} has {n} ranks and {vertices - n} switches, "
            f"for {batches} trees or more; fast=False takes the time"
        )
    # Edge splitting keeps what every rank can receive from all roots (Theorem 25), so trees of the
    # same rate exist between ranks alone; each of their edges is a path in the network, which
    # ``assemble`` gives back.
    logical = remove_switches(topology, scaling, guess=guess)  # step 2
    trees = pack_trees(topology.num_ranks, logical.capacity(), scaling.trees)  # steps 3 and 4
    return assemble(logical, trees)


def assemble(logical: Logical, trees: Trees) -> RoutedTrees:
    """Give every tree edge one path through the switches.

    A batch of like trees whose edges run over several paths is cut where one of them ends, which
    leaves batches whose edges have one path each.
    """
    if all(len(paths) == 1 for paths in logical.paths.values()):
        return _assembled_at_once(logical, trees)
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
    columns = (np.asarray(root), np.asarray(weight), np.asarray(edge))
    return _along(logical, *columns, list(number))


def _assembled_at_once(logical: Logical, trees: Trees) -> RoutedTrees:
    """``assemble`` where every pair of ranks has one path."""
    number = np.full((logical.num_ranks,) * 2, -1, np.int32)
    for i, (u, v) in enumerate(logical.paths):
        number[u, v] = i
    edge = number[trees.parent[:, 1:], trees.vertex[:, 1:]].ravel()
    paths = [parts[0].path for parts in logical.paths.values()]
    return _along(logical, trees.root, trees.weight, edge, paths)


def _along(
    logical: Logical, root: np.ndarray, weight: np.ndarray, edge: np.ndarray, paths: list[Path]
) -> RoutedTrees:
    """Trees whose edge i runs over path i."""
    return RoutedTrees(
        root,
        weight,
        edge,
        path_ptr=np.cumsum([0, *map(len, paths)], dtype=np.int64),
        path_link=np.asarray([link for path in paths for link in path], np.int64),
        how="packed",
        switches=", ".join(logical.how) or "none",
    )


def as_flow(topology: Topology, scaling: Scaling, trees: RoutedTrees) -> TreeFlow:
    """The trees as a flow on their network: as fast as was asked for, or as its fullest link is."""
    flow = TreeFlow(
        topology,
        scaling.k,
        scaling.trees,
        trees.root,
        trees.weight,
        Edges.along(topology, trees.path_ptr, trees.path_link),
        trees.tree_ptr,
        trees.edge,
        scaling.inverse,
        {"trees": trees.how, "switches": trees.switches},
    )
    return flow if trees.is_tight else dataclasses.replace(flow, inverse=flow.slowest_link())


# ---------------------------------------------------------------------- moved trees

# Forests of tori and hypercubes: the trees of rank 0, moved to every other rank.
#
# On a grid of ranks all of whose dimensions close, moving along the grid takes links to links. If
# the trees of all roots are those of rank 0 moved, a link carries what the trees of rank 0 have in
# all links of its direction together: what must fit is one number a direction. So rank 0's trees
# may reach every rank by a shortest way, as high as the network is wide and no higher, and one flow
# chooses the last link of each way.
#
# On a ring of four ranks every rank has two trees, and a link carries three. Both trees of rank 0
# reach ranks 1 and 3 straight, and rank 2 one by way of 1 and one by way of 3: three edges in each
# direction.


def moved_trees(topology: Topology, scaling: Scaling) -> RoutedTrees | None:
    """Trees of shortest paths for all roots.

    None where the network is not a closed grid, its links are too uneven for shortest paths, or
    shards are unequal.

    The result is for the caller to check.
    """
    grid, n = topology.grid, topology.num_ranks
    if grid is None or not topology.is_direct or set(scaling.trees) != {scaling.k}:
        return None
    at, shape = grid.coordinates(), grid.shape
    found = _directions(topology, scaling, at, shape)
    if found is None:
        return None
    moves, link, quota = found
    # All trees are rank 0's, moved, so that only rank 0's are planned: n - 1 edges instead of n (n
    # - 1).
    distance = np.minimum(at, shape - at).sum(axis=1)  # steps from rank 0
    before = [np.ravel_multi_index((at - move).T, shape, mode="wrap") for move in moves]
    is_last = np.asarray([distance[ranks] < distance for ranks in before])
    share = _last_links(is_last, quota, scaling.k)
    if share is None:
        return None
    # Where the k trees part: tree i reaches v by the direction whose part of 0..k-1 holds i.
    ends = np.cumsum(share, axis=0)
    starts = np.unique(np.concatenate([[0], ends.ravel()]))[:-1]
    if len(starts) * n * n > MOST_EDGES:
        return None
    order = np.argsort(distance, kind="stable")[1:]
    edge = np.empty((n, len(starts), n - 1), np.int32)
    for i, start in enumerate(starts):
        direction = (ends[:, order] <= start).sum(axis=0)
        parent = np.moveaxis(at[:, None] + at[order] - moves[direction], -1, 0)
        before_last = np.ravel_multi_index(parent, shape, mode="wrap")
        edge[:, i] = link[before_last, direction]
    return RoutedTrees(
        root=np.repeat(np.arange(n), len(starts)),
        weight=np.tile(np.diff([*starts, scaling.k]), n),
        edge=edge.ravel(),
        path_ptr=np.arange(topology.num_links + 1),
        path_link=np.arange(topology.num_links),
        how="moved from rank 0",
    )


def _directions(
    topology: Topology, scaling: Scaling, at: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, list[int]] | None:
    """Steps along each dimension up and down, the link of each from each rank, trees per link."""
    n, moves, links, quota = len(at), [], [], []
    of_pair = {
        (int(u), int(v)): e for e, (u, v) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    for dimension, side in enumerate(shape):
        for by in (1, -1) if side > 2 else (1,) if side == 2 else ():
            move = np.eye(len(shape), dtype=np.int64)[dimension] * by
            after = np.ravel_multi_index((at + move).T, shape, mode="wrap")
            column = [of_pair.get((r, int(after[r])), -1) for r in range(n)]
            capacities = {scaling.capacity[e] if e >= 0 else -1 for e in column}
            if len(capacities) > 1 or -1 in capacities:
                return None  # an open dimension, or links that differ along it
            moves.append(move)
            links.append(column)
            quota.append(capacities.pop())
    if not moves or topology.num_links != n * len(moves):
        return None
    return np.asarray(moves), np.asarray(links).T, quota


def _last_links(is_last: np.ndarray, quota: list[int], k: int) -> np.ndarray | None:
    """Of the k trees to each rank, how many arrive by each direction.

    ``is_last`` says which directions end a shortest way to a rank; both (directions, ranks).
    """
    # Trees of shortest paths are free to choose the last link of each way, and only that: whichever
    # is chosen, the rank before it has been reached one step earlier by all trees. So loads are a
    # transport problem, which one flow solves: k to each rank, and each direction's quota in all.
    count, n = is_last.shape
    arcs = [(r, direction) for direction, r in np.argwhere(is_last).tolist()]
    source, sink = n + count, n + count + 1
    src = [*(r for r, _ in arcs), *[source] * (n - 1), *range(n, n + count)]
    dst = [*(n + direction for _, direction in arcs), *range(1, n), *[sink] * count]
    network = FlowNetwork(n + count + 2, np.asarray(src), np.asarray(dst))
    carried = network.carried([*[k] * len(arcs), *[k] * (n - 1), *quota], source, sink)
    if sum(carried[len(arcs) : len(arcs) + n - 1]) < k * (n - 1):
        return None
    share = np.zeros((count, n), np.int64)
    for (r, direction), amount in zip(arcs, carried, strict=False):
        share[direction, r] = amount
    return share
