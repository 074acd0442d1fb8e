"""Spanning trees that fit into the capacities between ranks: the second half of ForestColl.

Read in this order: ``tree_packing`` (the choice of method, the exact one, and networks that fall in
two), ``balancing`` (many roots), ``spanning`` (their columns, and lower trees).
"""
