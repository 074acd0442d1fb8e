"""Steps 2 to 4: from what each link may carry to trees.

``exact`` is the paper's way, step by step. ``forest_at`` asks the shortcuts first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from jaxcoll.bounds.throughput import fixed_k, optimum
from jaxcoll.numerics.rational import Number
from jaxcoll.synth.forestcoll import shortcuts
from jaxcoll.synth.forestcoll.edge_splitting import remove_switches
from jaxcoll.synth.forestcoll.rates import Rates
from jaxcoll.synth.forestcoll.routed_trees import as_flow, assemble
from jaxcoll.synth.forestcoll.tree_packing import check_fast, pack_trees
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow


def exact(rates: Rates, fast: bool = False) -> TreeFlow:
    """Trees of the given rates, on every balanced network (Theorems 25 to 29).

    Raises:
        TopologyError: ``fast``, and a network that takes more than some seconds.
    """
    topology, scaling = rates.topology, rates.scaling
    if fast:
        check_fast(topology, scaling.trees)
    # Edge splitting keeps what every rank can receive from all roots (Theorem 25), so trees of the
    # same rate exist between ranks alone; each of their edges is a path in the network, which
    # ``assemble`` gives back.
    logical = remove_switches(topology, scaling)  # step 2
    trees = pack_trees(topology.num_ranks, logical.capacity(), scaling.trees)  # steps 3 and 4
    routed = dataclasses.replace(assemble(logical, trees), is_tight=rates.is_exact)
    return as_flow(topology, scaling, routed).counted()


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
        guess: whether shortcuts may be tried before the exact way. Each counts only once verified,
            so that the throughput is the same.
        fast: whether to refuse to pack what takes more than some seconds: more than 128 ranks, or
            fewer with switches, unless a shortcut makes do with less or few trees have one root.

    Raises:
        TopologyError: as ``optimum`` and ``fixed_k``; numbers of trees beyond 2**61; see ``fast``.
    """
    best = optimum(topology, weights)
    if k is None:
        return forest_at(Rates(topology, best, best.scaling), guess, fast)
    scaling = fixed_k(topology, k, weights, best=best)
    return forest_at(Rates(topology, best, scaling, is_exact=False), guess, fast)


def forest_at(rates: Rates, guess: bool = True, fast: bool = False) -> TreeFlow:
    """``forest`` where the rates are known."""
    flow = shortcuts.guess(rates, fast) if guess else None
    return exact(rates, fast) if flow is None else flow


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
