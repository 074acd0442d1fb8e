"""Patterns that are written down, not searched: over rank numbers, or the dimensions of a grid.

``ring`` (around circles of links where there are some, in NCCL's channels, and everyone to everyone
at once); partners at growing distances, a file each: ``rhd`` (halving and doubling), ``bruck`` and
``halving`` (any number of ranks), ``hdrm`` (of a BiGraph), ``swing`` and ``trivance`` (shorter ways
on rings). All these are carried over shortest routes where no link joins two ranks.
``grid_rings`` (bucket, 2D and hierarchical rings) and ``cascade`` (BlueConnect: chunks in a
pipeline; Themis: an order of dimensions per chunk) work on one dimension of a grid after another,
and so does ``exchange``, for an all_to_all. ``rail_gather`` is of hosts on rails.
"""
