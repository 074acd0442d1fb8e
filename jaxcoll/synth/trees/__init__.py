"""Algorithms that send along trees.

``pipeline`` (all_reduce up and down a few trees) carries ``double_binary_tree``,
``hierarchical_tree``, ``c_cube`` and ``tto``; ``blink`` packs trees from one root; ``multitree``
and its kernel grow one tree per rank; ``joint_trees`` and its kernel grow two per chunk, one to sum
up and one to copy down.
"""
