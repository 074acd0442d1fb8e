"""Patterns over rank numbers, carried over shortest routes where no link joins two ranks.

``ring`` (around circles of links where there are some, in NCCL's channels, and everyone to everyone
at once), ``rhd`` (partners at growing distances: halving and doubling, Bruck, HDRM, any number
of ranks, Swing, Trivance).
"""
