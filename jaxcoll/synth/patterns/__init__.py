"""Patterns that are written down, not searched, over rank numbers or the dimensions of a grid.

``ring`` has rings around circles of links if there are any, NCCL's channels, and direct sends
between all ranks. Algorithms with partners at growing distances have one file each: ``rhd``
(halving and doubling), ``bruck`` and ``halving`` (any number of ranks), ``hdrm`` (for BiGraphs),
``swing`` and ``trivance`` (shorter ways on rings). In all of these, shortest routes join ranks
without a direct link.

``grid_rings`` (bucket, 2D and hierarchical rings) and ``cascade`` (BlueConnect: chunks in a
pipeline; Themis: an order of dimensions per chunk) work on one dimension of a grid after another,
and so does ``exchange``, for an all_to_all. ``rail_gather`` is for hosts on rails.
"""
