"""A shortcut for steps 3 and 4: trees of many roots are balanced instead of grown edge by edge.

Algorithm 4 asks a flow for each edge of each batch. Beyond a few ranks trees are found by balancing
(``balancing``), and where trees must use every arc across a cut, which balancing does not find
easily, both sides of it are packed by themselves (``tight_cuts``). Trees of one root are spread
layer by layer (``spread_trees``). Small networks, where height is worth more time, and what none of
these finds are packed exactly (``tree_packing``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcoll.synth.forestcoll import tree_packing
from jaxcoll.synth.forestcoll.edge_splitting import Pair
from jaxcoll.synth.forestcoll.shortcuts.balancing import arcs_of, as_trees, balanced_trees
from jaxcoll.synth.forestcoll.shortcuts.spread_trees import spread_trees
from jaxcoll.synth.forestcoll.shortcuts.tight_cuts import pack_across
from jaxcoll.synth.forestcoll.spanning import Trees

# Ranks up to which trees are packed exactly, without balancing.
_SEVERAL = tree_packing.SEVERAL


def packed_trees(num_ranks: int, capacity: dict[Pair, int], trees: Sequence[int]) -> Trees:
    """Spanning trees from every root, in mostly less time than ``tree_packing.pack_trees`` takes.

    Args:
        capacity: trees that can use each pair of ranks.
        trees: trees each rank is the root of.

    Raises:
        TopologyError: as ``tree_packing.pack_trees``.
    """
    tree_packing.check_exact(capacity, trees)
    if num_ranks > _SEVERAL and sum(map(bool, trees)) > 1:
        arcs = arcs_of(num_ranks, capacity)
        # A 64th of the steps is enough on most networks. Where it is not, the cause is mostly a
        # tight cut, which balancing meets as arcs without any room: looking for one costs a flow
        # per rank, the rest of the steps may cost minutes.
        for brief in (True, False):
            found = balanced_trees(arcs, trees, brief=brief)
            if found is not None:
                return as_trees(arcs, found)
            across = pack_across(num_ranks, capacity, trees, packed_trees) if brief else None
            if across is not None:
                return across
    elif num_ranks > _SEVERAL:
        root = int(np.argmax(trees))
        spread = spread_trees(num_ranks, capacity, root, trees[root])
        if spread is not None:
            return spread
    return tree_packing.pack_trees(num_ranks, capacity, trees)
