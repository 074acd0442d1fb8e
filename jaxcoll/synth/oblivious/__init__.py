"""Patterns over rank numbers, carried over shortest routes where no link joins two ranks.

``ring`` (around circles of links where there are some) and ``nccl_ring`` (in channels), ``direct``,
``rhd`` (recursive halving-doubling), ``halving`` (of any number of ranks), ``bruck``, ``trivance``,
``swing``, ``hdrm``.
"""
