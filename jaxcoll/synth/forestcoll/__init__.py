"""ForestColl: schedules of optimal throughput on any network (dissertation, Chapter 4).

Read in this order: ``synthesizer`` (the public dataclass), ``stages`` (from a network to its
forest), ``edge_splitting`` (switches removed), ``packing`` (trees that fit into the capacities);
``translated_trees`` and ``rail_trees`` for networks with a structure, ``host_trees`` for hosts that
differ; ``fixed_chunks`` (as many trees as the chunks of a collective can share).
"""

from jaxcoll.synth.forestcoll.stages import forest
from jaxcoll.synth.forestcoll.synthesizer import ForestColl

__all__ = ["ForestColl", "forest"]
