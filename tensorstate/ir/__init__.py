"""The data that every other folder reads: the factor graph, placements, and JAX's jaxprs.

In reading order: ``graph`` (tensors, operators, nodes), ``placements`` (how a tensor lies on a
mesh), ``jaxprs`` (the one file that reads JAX's internals).
"""
