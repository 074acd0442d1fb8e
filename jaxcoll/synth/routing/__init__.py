"""Chunks that one rank sends to one other: all_to_all, gather and scatter by routing.

``min_congestion`` and its kernel choose paths that share the load among the links.
"""
