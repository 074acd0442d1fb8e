"""Families of networks, one file per kind of construction.

All are functions that return a ``Topology``. Start with ``grids``: rings, meshes, tori, and
``product``, which builds most of the others. ``jaxcoll.links`` has the checks that all of them
share.

``generative`` has direct-connect families, which are regular digraphs to expand.
"""

from jaxcoll.topologies import generative
from jaxcoll.topologies.gpu_clusters import (
    DGX1_CIRCLES,
    dgx1,
    dgx2,
    dgx_a100,
    dgx_h100,
    mi250,
    nvswitch_hosts,
)
from jaxcoll.topologies.grids import (
    fully_connected,
    hypercube,
    mesh,
    product,
    ring,
    star,
    switch,
    torus,
)
from jaxcoll.topologies.switch_tiers import (
    behind_routers,
    bigraph,
    dragonfly,
    fat_tree,
    flattened_butterfly,
    leaf_spine,
    multi_rail,
    ring_fc_switch,
    switch_2d,
)

__all__ = [
    "DGX1_CIRCLES",
    "behind_routers",
    "bigraph",
    "dgx1",
    "dgx2",
    "dgx_a100",
    "dgx_h100",
    "dragonfly",
    "fat_tree",
    "flattened_butterfly",
    "fully_connected",
    "generative",
    "hypercube",
    "leaf_spine",
    "mesh",
    "mi250",
    "multi_rail",
    "nvswitch_hosts",
    "product",
    "ring",
    "ring_fc_switch",
    "star",
    "switch",
    "switch_2d",
    "torus",
]
