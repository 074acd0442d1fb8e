"""Algorithms that work on one dimension of a grid after another.

``rings`` first, since they are the plainest (bucket, 2D and hierarchical rings); then ``cascade``:
BlueConnect (chunks in a pipeline) and Themis (an order of dimensions per chunk).
"""
