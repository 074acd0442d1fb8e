"""Chunks that one rank sends to one other: all_to_all, gather and scatter by routing.

``min_congestion`` chooses paths that share the load among the links, and makes a broadcast of such
a scatter and an all_gather. ``open_shop`` orders what goes over such paths where every pair of
ranks has another share.
``concurrent_flow`` is the best rate of all_to_all: ``flow_classes`` finds the symmetry that makes
its linear program small, ``soft_distances`` takes over where it stays large. ``time_stepped``
rounds the flow to a schedule. ``shortest_flow`` proves bounds of the rate without that program.
"""
