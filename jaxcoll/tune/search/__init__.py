"""Searches of a configuration space, in reading order.

``base`` (the face), ``exhaustive``, ``printed`` (AutoCCL's Algorithms 1 and 2), ``released`` (the
authors' code), ``fitted`` (this library's: a model fitted to few points), ``afnfa`` (a random
forest on a sample of the space).
"""

from jaxcoll.tune.search.base import Search

__all__ = ["Search"]
