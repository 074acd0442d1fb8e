"""Topology-oblivious algorithms: patterns over rank numbers, carried over shortest routes.

``ring``, ``direct``, ``rhd`` (recursive halving-doubling), ``halving`` (of any number of ranks),
``bruck``, ``swing``, ``hdrm``.
"""
