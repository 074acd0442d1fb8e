"""Algorithms that send along trees.

``multitree`` grows one tree per rank. ``joint_trees`` and its kernel grow two trees per chunk, one
to sum up and one to copy down. ``middle_trees`` sums little data in the middle of the network,
``earliest_tree`` broadcasts little data, ``striped_trees`` much data over low trees, and
``timed_trees`` data whose time on the links is about that of latencies.
"""
