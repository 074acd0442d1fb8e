"""Routing of chunks that one rank sends to one other: all_to_all, gather and scatter.

``min_congestion`` chooses paths that share the load among the links, and makes a broadcast of such
a scatter and an all_gather. ``open_shop`` orders the pieces on such paths if every pair of ranks
has a different share.

``concurrent_flow`` computes the best rate of all_to_all: ``flow_classes`` finds the symmetry that
makes its linear program small, and ``soft_distances`` takes over if it stays large.
``time_stepped`` rounds the flow to a schedule. ``shortest_flow`` proves bounds of the rate without
that program.
"""
