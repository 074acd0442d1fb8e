"""ForestColl: schedules of optimal throughput on any network (dissertation, Chapter 4).

Read in this order: ``synthesizer`` (the public dataclass and its five steps, and an all_reduce in
joint phases), ``stages`` (how many trees, and from rates to trees), ``edge_splitting`` and
``pairings`` (switches removed), ``tree_packing`` (trees that fit into the capacities: the choice of
method, the exact one, and networks that fall in two), ``balancing`` (trees of many roots),
``spanning`` (their columns, and lower trees); ``rail_trees`` for networks with a structure,
``host_trees`` for hosts that differ.
"""

from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.synth.forestcoll.synthesizer import ForestColl

__all__ = ["ForestColl", "forest"]
