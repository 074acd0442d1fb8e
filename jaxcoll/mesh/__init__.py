"""Meshes of JAX devices seen as networks; devices are read by their attributes, without JAX.

- ``rank_order``: which device becomes which rank, so that the links of a network are wires;
- ``axes``: the groups along the axes of a mesh, and schedules for them.
"""

from jaxcoll.mesh.axes import axis_groups, axis_schedule, reorder

__all__ = ["axis_groups", "axis_schedule", "reorder"]
