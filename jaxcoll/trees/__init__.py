"""Tree-flow schedules: weighted spanning trees, their loads, and their lowering to sends."""

from jaxcoll.trees.flow import TreeFlow

__all__ = ["TreeFlow"]
