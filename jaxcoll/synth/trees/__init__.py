"""Algorithms that send along trees.

``multitree`` grows one tree per rank. ``joint_trees`` and its kernel grow two trees per chunk, one
to sum up and one to copy down. ``middle_trees`` sums little data in the middle of the network,
``earliest_tree`` broadcasts little data, and ``striped_trees`` broadcasts much data over low trees.
"""
