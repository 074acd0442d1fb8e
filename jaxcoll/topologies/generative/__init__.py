"""Direct-connect families: regular digraphs that exist at many sizes and degrees.

- ``digraph``: the type that all of them return, self-loops and parallel arcs included.
"""

from jaxcoll.topologies.generative.digraph import Digraph

__all__ = ["Digraph"]
