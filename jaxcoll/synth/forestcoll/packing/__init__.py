"""Spanning trees that fit into the capacities between ranks: the second half of ForestColl.

Read in this order: ``tree_packing`` (the choice of method, and the exact one), ``balancing`` on top
of ``alternating_paths`` and ``spanning`` (many roots), ``tight_cuts`` (networks that fall in two),
``height_reduction`` (lower trees).
"""
