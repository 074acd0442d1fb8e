"""Families of networks, one a file: free functions that return a ``Topology``."""

from jaxcoll.topologies.complete import fully_connected, star
from jaxcoll.topologies.grids import hypercube, mesh, ring, torus
from jaxcoll.topologies.switched import switch

__all__ = ["fully_connected", "hypercube", "mesh", "ring", "star", "switch", "torus"]
