"""Algorithms that work on one dimension of a grid after another.

``bucket`` first, since it is the plainest; then ``ring_2d``, ``hierarchical_ring``,
``blueconnect`` (chunks in a pipeline), ``themis`` (an order of dimensions per chunk), ``cascade``.
"""
