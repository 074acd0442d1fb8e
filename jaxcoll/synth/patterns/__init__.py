"""Patterns that are written down, not searched: over rank numbers, or the dimensions of a grid.

``ring`` (around circles of links where there are some, in NCCL's channels, and everyone to everyone
at once), ``rhd`` (partners at growing distances: halving and doubling, Bruck, HDRM, any number
of ranks, Swing, Trivance). Both are carried over shortest routes where no link joins two ranks.
``grid_rings`` (bucket, 2D and hierarchical rings) and ``cascade`` (BlueConnect: chunks in a
pipeline; Themis: an order of dimensions per chunk) work on one dimension of a grid after another.
"""
