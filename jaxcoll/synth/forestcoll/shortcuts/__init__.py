"""Shortcuts: trees that are guessed, and count only once every link of every tree is added up.

The exact way (``stages.exact``) is polynomial and slow: a flow for every pair of links of a switch,
and for every edge of every batch of trees. Networks that people have are regular, and ``guess``
finds trees as good in seconds:

- where the network has a known form, whole forests: all roots' trees are those of rank 0 moved
  (``grid_trees``), those of one host joined (``rail_trees``), or those of hosts that trees enter
  once (``host_trees``);
- on any network, guesses for a step: how the capacity of switches is paired (``switch_pairing``),
  and trees by balancing (``balanced_packing``).

Nothing here is needed: without this folder all answers have the same throughput.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxcoll.bounds.throughput import Scaling, check_balanced
from jaxcoll.errors import ScheduleError
from jaxcoll.synth.forestcoll.rates import Rates
from jaxcoll.synth.forestcoll.routed_trees import RoutedTrees, as_flow, assemble
from jaxcoll.synth.forestcoll.shortcuts.balanced_packing import packed_trees
from jaxcoll.synth.forestcoll.shortcuts.grid_trees import moved_trees
from jaxcoll.synth.forestcoll.shortcuts.host_trees import packed_by_hosts
from jaxcoll.synth.forestcoll.shortcuts.rail_trees import packed_on_rails
from jaxcoll.synth.forestcoll.shortcuts.switch_pairing import paired_switches
from jaxcoll.synth.forestcoll.tree_packing import check_fast
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow

# Ranks up to which networks are packed whole, which keeps trees lower than hosts packed apart do.
_SMALL = 64


def guess(rates: Rates, fast: bool) -> TreeFlow | None:
    """Trees of the given rates; None if no guess holds.

    Raises:
        TopologyError: with ``fast``, a network of no known form that takes more than some seconds.
    """
    for trees in _guesses(rates, fast):
        try:
            # A network may only resemble a form: all trees are counted, link by link, so that a
            # wrong guess costs time and never throughput.
            return as_flow(rates.topology, rates.scaling, trees).counted()
        except ScheduleError:
            continue
    return None


def _guesses(rates: Rates, fast: bool) -> Iterator[RoutedTrees]:
    """Trees by the known forms of networks, where this is one, then by guesses for each step."""
    topology, scaling = rates.topology, rates.scaling

    # The whole network was seen to be balanced with its optimum; a host without its links to the
    # others need not be, and its switches cannot be removed then (Theorem 26).
    def pack_part(part: Topology, needed: Scaling) -> RoutedTrees:
        if part.num_ranks > 1:
            check_balanced(part)
        return packed(part, needed, fast)

    # A host may hold hosts (a rack of servers, say): its trees are those of a network again, so the
    # same form is tried inside it before the general way.
    def pack_host(part: Topology, needed: Scaling) -> RoutedTrees:
        found = next(packed_by_hosts(part, needed, pack_host), None)
        return pack_part(part, needed) if found is None else found

    moved = moved_trees(topology, scaling)
    if moved is not None:
        yield moved
    yield from packed_on_rails(topology, scaling, pack_part)
    # Trees that are joined from hosts have the height of both parts together. Up to this size the
    # whole network is packed within seconds, and lower.
    if topology.num_ranks > _SMALL:
        yield from packed_by_hosts(topology, scaling, pack_host)
    # For a fixed k links were trimmed to whole trees, and trees that are packed may then need the
    # links even less.
    yield dataclasses.replace(packed(topology, scaling, fast), is_tight=rates.is_exact)


def packed(topology: Topology, scaling: Scaling, fast: bool = False) -> RoutedTrees:
    """Steps 2 to 4 by guesses; a single rank has trees without edges."""
    n = topology.num_ranks
    if n == 1:
        root, nothing = np.zeros(1, np.int64), np.zeros(0, np.int64)
        return RoutedTrees(root, np.asarray(scaling.trees), nothing, root, nothing, "single rank")
    if fast:
        check_fast(topology, scaling.trees)
    logical = paired_switches(topology, scaling)  # step 2
    return assemble(logical, packed_trees(n, logical.capacity(), scaling.trees))  # steps 3 and 4
