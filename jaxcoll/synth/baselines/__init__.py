"""Baselines: algorithms of papers and libraries, to compare with, one file per algorithm.

They are written down over rank numbers, a circle, the dimensions of a grid or a few trees, and
nothing is searched. ``auto`` tries them too: on networks for which they were made some are as fast
as any (docs/which-synthesizer.md counts where).

- Around circles: ``ring``, ``nccl_ring``. Straight: ``direct``.
- Partners at growing distances: ``rhd`` (halving and doubling), ``bruck`` and ``halving`` (any
  number of ranks), ``hdrm`` (BiGraphs), ``swing`` and ``trivance`` (shorter ways on rings).
- A dimension of a grid after another: ``bucket``, ``ring_2d``, ``hierarchical_ring``,
  ``blueconnect`` (chunks in a pipeline), ``themis`` (an order of dimensions per chunk).
- Up and down a few trees (``tree_pipeline``): ``double_binary_tree``, ``c_cube``, ``tto``,
  ``hierarchical_tree`` (NCCL's), ``blink`` (packed from one root).

Where an algorithm does not look at the network, shortest routes join ranks without a direct link.
"""
