"""Tree-flow schedules: weighted spanning trees, what they load, and their lowering to sends."""

from jaxcoll.trees.flow import TreeFlow

__all__ = ["TreeFlow"]
