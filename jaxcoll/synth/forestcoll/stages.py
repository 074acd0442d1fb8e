"""Steps 2 to 4: from what each link may carry to trees, in every way that makes them.

The general way removes switches (``edge_splitting``), packs spanning trees into what is left
(``tree_packing``), and gives each tree edge its path through the switches back. Networks of a known
form have shorter ways to the same ``TreeFlow``: all roots' trees are those of rank 0 moved
(``moved_trees``), those of one host joined (``rail_trees``), or those of hosts that are entered
once (``host_trees``). They are tried in that order, in ``_ways`` alone, and their trees are counted
like the rest, so that a network that only resembles the form costs time and never throughput.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxcoll.bounds.throughput import Optimum, Scaling, check_balanced, fixed_k, optimum
from jaxcoll.errors import ScheduleError, TopologyError
from jaxcoll.numerics.rational import Number
from jaxcoll.paths import Edges
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.host_trees import packed_by_hosts
from jaxcoll.synth.forestcoll.moved_trees import moved_trees
from jaxcoll.synth.forestcoll.rail_trees import packed_on_rails
from jaxcoll.synth.forestcoll.tree_packing import assemble, pack_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Packing takes about a microsecond times the square of the ranks times the vertices.
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
    # believed. ``counted`` adds up every link of every tree, so that a wrong guess costs time
    # alone.
    wrong: ScheduleError | None = None
    for flow in _ways(rates, guess, fast):
        try:
            return flow.counted()
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


def _ways(rates: Rates, guess: bool, fast: bool) -> Iterator[TreeFlow]:
    """Trees by the known forms of networks, where this is one, then the general way; not checked.

    Parts of networks of hosts are packed the general way, hosts of hosts as such.
    """
    topology, scaling = rates.topology, rates.scaling
    pack = functools.partial(packed, guess=guess, fast=fast)

    # A host may hold hosts (a rack of servers, say): its trees are those of a network again, so the
    # same form is tried inside it before the general way.
    def pack_host(part: Topology, needed: Scaling) -> TreeFlow:
        found = next(packed_by_hosts(part, needed, pack_host), None)
        return pack(part, needed) if found is None else found

    if guess:
        moved = moved_trees(topology, scaling)
        if moved is not None:
            yield moved
        yield from packed_on_rails(topology, scaling, pack)
        # Trees that are joined from hosts have the height of both parts together. Up to this size
        # the whole network is packed within seconds, and lower.
        if topology.num_ranks > _SMALL:
            yield from packed_by_hosts(topology, scaling, pack_host)
    flow = packed(topology, scaling, guess=guess, fast=fast)
    # For a fixed k links were trimmed to whole trees, and trees that are packed may then need the
    # links even less: the flow is as slow as its fullest link, not as the scale that was promised.
    yield flow if rates.is_exact else dataclasses.replace(flow, inverse=flow.slowest_link())


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
    check_balanced(topology)
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
