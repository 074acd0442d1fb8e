"""The data that every other folder reads: the factor graph, placements, and JAX's primitives.

In reading order: ``graph`` (tensors, operators, nodes), ``placements`` (how a tensor is distributed
over a mesh), ``jaxprs`` (the treatment of JAX's primitives).
"""
